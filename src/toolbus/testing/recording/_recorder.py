"""The writer of a recording: a `Journal` that writes its facts into a file, instead of another journal or around it.

Knows sessions, buses and stores.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import orjson

from ..._logs import logger
from ..._version import __version__
from ...bus import EventBus
from ...errors import ConfigurationError
from ...events import Event, ReasoningDelta, RequestEnding, RequestStarted, TextDelta, ToolArgumentsDelta, encode
from ...secrets import Mask, hide, masked
from ...session import SessionView
from ...storage import Journal
from ._agreement import agreement_of, specs_of, tools_now
from ._format import AGREED, CHANGED, END, FORMAT, FORMAT_VERSION, HEADER, RELEASED, RecordingError, as_json, line_of

if TYPE_CHECKING:
    from ...runtime import Runtime

_BEGINNING = orjson.dumps({"type": HEADER, "format": FORMAT})[:-1]
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_DELTAS = (TextDelta, ReasoningDelta, ToolArgumentsDelta)


class Recorder:
    """A journal that writes a recording: `RequestSession(bus, provider, prompt, journal=recorder)`.

        with Recorder("weather.jsonl", bus) as recorder:
            result = await RequestSession(bus, provider, "Weather?", tools=tools, journal=recorder).run()

    The facts are first passed to `journal`, if there is one, and then written to the file. The file also gets the facts
    of the sub-requests of tools. A recording at `path` is replaced; any other file there is refused. Only the file's
    owner can read a new file. `signals` also writes the signals, and `deltas` the pieces of replies; a replay skips
    both. `mask=True` hides texts that look like secrets; a function from text to text replaces texts as it decides.

    If the file cannot be written, the recording ends and the requests continue: the error is logged, and leaving the
    block raises `RecordingError`. Writing blocks the event loop: a recorder is meant for tests and for debugging.
    Raises `RecordingError` if the file cannot be created.
    """

    with_sub_requests = True
    """Read by the session: requests that its tools make write to this journal too."""

    def __init__(
        self,
        path: str | Path,
        bus: EventBus,
        *,
        journal: Journal | None = None,
        signals: bool = False,
        deltas: bool = False,
        mask: bool | Mask = False,
    ) -> None:
        self.path = Path(path)
        self.requests = 0
        self.facts = 0
        self.problem: RecordingError | None = None
        self._bus = bus
        self._journal = journal
        self._signals = signals
        self._deltas = deltas
        self._mask: Mask | None = masked if mask is True else mask or None
        # The parts of the agreement that may change, by request, for the requests that run.
        self._agreed: dict[str, dict[str, Any]] = {}
        self._written: dict[str, int] = {}  # number of facts, by request
        self._sub_requests: set[str] = set()  # sub-requests that run
        self._digest = hashlib.sha256()
        self._lines = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_file() and not _may_be_replaced(self.path):
                raise RecordingError(self.path, 0, "it exists and is not a recording; pass another path")
            self._file: BinaryIO | None = os.fdopen(os.open(self.path, _NEW, 0o600), "wb")
        except OSError as exc:
            raise RecordingError(self.path, 0, f"the file cannot be created: {exc.strerror or exc}") from exc
        self._disconnect = bus.connect(Event, self._on_event)
        self._write({"type": HEADER, "format": FORMAT, "version": FORMAT_VERSION, "toolbus": __version__})

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and self.problem is not None:
            raise self.problem

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> int | None:
        """Implement `toolbus.protocols.Journal`. Raises what the inner journal raises."""
        size_bytes: int | None = None
        if self._journal is not None and self._is_for(self._journal, request_id, facts):
            size_bytes = await self._journal.append(request_id, seq, facts)
        self._record(request_id, seq, facts)
        return size_bytes

    def _record(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
        if self._file is None or (seq > 0 and request_id not in self._written):
            return  # the request began before the recording, or in another process, so its beginning is unknown
        view = self._bus.arbitration.view(request_id)
        if isinstance(view, SessionView):
            self._write_agreement(view, seq, facts)
        for fact in facts:
            self._write_event(fact, step=seq)
        self.facts += len(facts)
        self._written[request_id] = seq + len(facts)
        if facts and isinstance(facts[-1], RequestEnding):
            self._agreed.pop(request_id, None)
            self._written.pop(request_id, None)

    def _is_for(self, journal: Journal, request_id: str, facts: Sequence[Event]) -> bool:
        """Return whether the inner journal wants these facts; it has to ask for those of sub-requests."""
        first = facts[0]
        if isinstance(first, RequestStarted) and first.parent_request_id:
            self._sub_requests.add(request_id)
        return request_id not in self._sub_requests or getattr(journal, "with_sub_requests", False)

    def close(self) -> None:
        """End the file. Requests that still run are not recorded any further. Idempotent."""
        self._disconnect()
        if self._file is None:
            return
        for request_id in list(self._agreed):
            self._leave(request_id)
        self._write({"type": END, "lines": self._lines, "sha256": self._digest.hexdigest()})
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # each line was flushed
                file.close()

    # ---------------------------------------------------------------------------------------------- internals

    def _on_event(self, event: Event) -> None:
        if event.is_fact:
            if isinstance(event, RequestEnding):
                self._sub_requests.discard(event.request_id)
                if self._agreed.pop(event.request_id, None) is not None:
                    # The request's journal has not seen the ending: its host left the request, or the session broke.
                    self._leave(event.request_id, ending=event.type)
        elif self._deltas if isinstance(event, _DELTAS) else self._signals:
            self._write_event(event)

    def _write_agreement(self, view: SessionView, seq: int, facts: Sequence[Event]) -> None:
        """Write the agreement before the first facts, and later each change of it."""
        request_id = view.request_id
        if seq == 0:
            started = cast("RequestStarted", facts[0])
            agreed = agreement_of(view, started.history_count)
            self._agreed[request_id] = {
                "tools": agreed.get("tools", []),
                "granted": dict(view.state.granted),
            }
            self.requests += 1
            self._write({"type": AGREED, **agreed})
        elif (before := self._agreed.get(request_id)) is not None:
            now = {"tools": specs_of(tools_now(view).values()), "granted": dict(view.state.granted)}
            if changed := {name: value for name, value in now.items() if value != before[name]}:
                before.update(changed)
                self._write({"type": CHANGED, "request_id": request_id, **changed})

    def _leave(self, request_id: str, **more: str) -> None:
        self._write({"type": RELEASED, "request_id": request_id, "facts": self._written.pop(request_id, 0), **more})

    def _write_event(self, event: Event, **more: int) -> None:
        with self._ending_on_error():
            try:
                line = encode(event, default=as_json)
            except TypeError:  # a key is not text, for example; Python's own module writes it
                line = json.dumps(event, default=as_json).encode()
            if self._mask is not None:
                line = orjson.dumps(hide(orjson.loads(line), self._mask))
            self._put(line[:-1] + b"," + orjson.dumps(more)[1:] if more else line)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._ending_on_error():
            if self._mask is not None and line["type"] == AGREED:
                line = hide(line, self._mask)
            self._put(line_of(line))

    def _put(self, line: bytes) -> None:
        if self._file is None:
            return
        line += b"\n"
        self._digest.update(line)
        self._lines += 1
        self._file.write(line)
        self._file.flush()

    @contextlib.contextmanager
    def _ending_on_error(self) -> Generator[None]:
        """Turn an error of the file into the end of the recording, and let nothing else fail."""
        try:
            yield
        except Exception as exc:
            self._close_file()
            self.problem = RecordingError(self.path, 0, f"the recording could not be written: {exc}")
            self.problem.__cause__ = exc
            logger.error("%s", self.problem)


@contextlib.contextmanager
def record(
    path: str | Path,
    runtime: Runtime,
    *,
    signals: bool = False,
    deltas: bool = False,
    mask: bool | Callable[[str], str] = False,
) -> Generator[Recorder]:
    """Record the requests that a runtime begins inside this block, and those that their tools make.

    See `Recorder`. Requests that still run at the end of the block are recorded up to that moment. Raises
    `ConfigurationError` while another recording of the runtime runs.
    """
    journal = runtime.journal
    if isinstance(journal, Recorder):
        raise ConfigurationError("the runtime is being recorded already; one recording at a time")
    with Recorder(path, runtime.bus, journal=journal, signals=signals, deltas=deltas, mask=mask) as recorder:
        runtime.journal = recorder
        try:
            yield recorder
        finally:
            runtime.journal = journal


def _may_be_replaced(path: Path) -> bool:
    """Return whether a file is empty, or begins like a recording."""
    with path.open("rb") as file:
        found = file.read(len(_BEGINNING))
    return found in (b"", _BEGINNING)
