"""The turns that are refused while their conversation is busy, or that replace the turns before them (G34)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...durability import REPLACED
from ...errors import ConversationBusy
from ...request_result import RequestResult
from ...session import RequestSession

if TYPE_CHECKING:
    from ._process import Process


class Turns:
    """The turns that are asked for in one process, and the rules for `on_busy`.

    A turn that refuses to wait begins beside no other of its conversation, and only such a turn is refused. A turn that
    replaces others ends those of its process that were asked for earlier, and no other turn.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._replaced: dict[str, float] = {}  # by request: the time at which a turn was started that replaces it
        self._newest: dict[str, str] = {}  # by conversation: the newest turn, "" while its id is not known

    def asks(self, options: dict[str, Any]) -> None:
        """Note that a turn is about to be started with these options."""
        conversation_id = options["conversation_id"]
        self._newest[conversation_id] = ""
        if options["on_busy"] == "replace":
            self._process.world.replacing.add(conversation_id)

    def starts(self, session: RequestSession, on_busy: str, earlier: list[RequestSession]) -> None:
        """Check that a turn could be started. `earlier` are the sessions of its process."""
        process, conversation_id = self._process, session.conversation_id
        self._newest[conversation_id] = session.request_id
        running = [each.request_id for each in earlier if each.conversation_id == conversation_id and not each.ended]
        process.world.faults[f"turn to {on_busy}"] += bool(running) and on_busy != "queue"
        if on_busy == "refuse":
            process.watch.note("G34", not running, f"{session.request_id} is not refused beside {running}")
        elif on_busy == "replace":
            now = process.bus.clock()
            self._replaced |= {each: now for each in running if each not in self._replaced}

    def refused(self, exc: Exception, on_busy: str) -> None:
        """Check that only a turn that refuses to wait is refused because its conversation is busy."""
        if isinstance(exc, ConversationBusy):
            self._process.world.faults["turn refused"] += 1
            self._process.watch.note("G34", on_busy == "refuse", f"a turn to {on_busy} is refused: {exc}")

    def check(self, result: RequestResult[Any]) -> None:
        """Check the end of a turn: a replaced one does nothing more, and a refused one has not begun."""
        process, request_id = self._process, result.request_id
        request = process.watch.requests.get(request_id)
        at = 0.0 if request is None or request.ending is None else request.ending.at
        is_late = result.outcome == "completed" and at > self._replaced.get(request_id, at)
        process.watch.note("G34", not is_late, f"{request_id} completes after another turn has replaced it")
        if result.reason == REPLACED:
            process.world.faults["turn replaced"] += 1
            is_newest = len(process.world.plans) == 1 and self._newest.get(result.conversation_id) == request_id
            is_replaced = result.conversation_id in process.world.replacing and not is_newest
            process.watch.note("G34", is_replaced, f"no turn replaces {request_id}, and it ends as replaced")
        if result.reason == "conversation_busy":
            has_begun = request is not None and request.started is not None
            process.watch.note("G34", not has_begun, f"{request_id} has begun, and is refused")
