"""The stub of a model server: it follows a script in neutral terms, in a vendor's dialect."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping

from ...errors import ConfigurationError
from ...providers.scripted import Step
from ._anthropic import AnthropicDialect
from ._dialect import Dialect
from ._ollama import OllamaDialect
from ._openai import OpenAIDialect
from ._responses import ResponsesDialect
from ._script import (
    HttpRequest,
    WireBreak,
    WireFault,
    WirePage,
    WireRequest,
    WireScript,
    WireStep,
    checked_script,
    reply_of,
)
from ._server import Answer, Ending, LoopbackServer

DIALECTS: Mapping[str, Dialect] = {
    each.name: each for each in (OpenAIDialect(), ResponsesDialect(), AnthropicDialect(), OllamaDialect())
}
"""The dialects by name."""

_FLOOD_PIECE = b"x" * 65_536
_ENDINGS: Mapping[str, Ending] = {"cut": "cut", "reset": "reset"}


def dialect_of(dialect: str | Dialect) -> Dialect:
    """Return a dialect by name, or the given `Dialect` itself. Raises `ConfigurationError` for an unknown name."""
    if not isinstance(dialect, str):
        return dialect
    if dialect not in DIALECTS:
        raise ConfigurationError(f"there is no dialect {dialect!r}: use {', '.join(DIALECTS)}, or a Dialect")
    return DIALECTS[dialect]


class WireServer(LoopbackServer):
    """A model server that follows a script, on a real socket, in a vendor's real wire format.

        with WireServer([calls(("get_weather", {"city": "Paris"})), text("Sunny.")], dialect="anthropic") as server:
            provider = AnthropicProvider("stub", api_key="k", base_url=server.base_url)
            ...
        assert server.read(1).messages[-1].content == ...

    `dialect` is "openai" (chat completions), "responses", "anthropic", "ollama", or a `Dialect` of your own. `script`
    is a list of steps, which are used in the order in which requests arrive, or one function of the `HttpRequest`;
    it may be replaced at any time, and then begins with its first step. A request after the last step gets a 500 that
    says so; a request that does not ask the model gets a 404. `requests` are all requests received, oldest first. Runs
    in threads of the standard library, so it serves clients on any event loop. Raises `ConfigurationError` for a step
    that cannot be sent.
    """

    def __init__(self, script: WireScript = (), *, dialect: str | Dialect = "openai") -> None:
        self.dialect = dialect_of(dialect)
        self._script = checked_script(script)
        super().__init__(self._answer_to)  # after the checks, since it opens a socket
        self.requests: list[HttpRequest] = []
        self._guard = threading.Lock()
        self._taken = 0

    @property
    def base_url(self) -> str:
        """The URL to give to a provider."""
        return self.dialect.base_url(self.origin)

    @property
    def script(self) -> WireScript:
        """The script of answers."""
        return self._script

    @script.setter
    def script(self, script: WireScript) -> None:
        with self._guard:
            self._script = checked_script(script)
            self._taken = 0

    def read(self, number: int = -1) -> WireRequest:
        """Return the meaning of a received request, by default of the last one. Raises `IndexError` without it."""
        return self.dialect.read(self.requests[number])

    def _answer_to(self, request: HttpRequest) -> Answer:
        with self._guard:
            self.requests.append(request)
            script = self._script
            number = self._taken
            served = self.dialect.serves(request)
            self._taken += served
        if not served:
            return self.answer_of(WireFault(kind="not_found", message=f"no route {request.method} {request.path}"))
        if callable(script):
            return self.answer_of(script(request))
        if number >= len(script):
            said = f"the stub's script has {len(script)} steps, and step {number} was asked for"
            return self.answer_of(WireFault(kind="server_error", message=said))
        return self.answer_of(script[number])

    def answer_of(self, step: WireStep) -> Answer:
        """Return the answer for a step."""
        if isinstance(step, WireFault):
            return self.dialect.refusals(step)[step.wording]
        if isinstance(step, WirePage):
            headers = {"Content-Type": "text/html; charset=utf-8"}
            return Answer(status=step.status, headers=headers, frames=(step.html.encode(),), streamed=False)
        if isinstance(step, WireBreak):
            return self._broken(step)
        stream = self.dialect.render(reply_of(step) if isinstance(step, Step) else step)
        return Answer(headers={"Content-Type": stream.content_type}, frames=stream.frames)

    def _broken(self, step: WireBreak) -> Answer:
        whole = self.answer_of(step.reply)
        frames = tuple(whole.frames)
        if step.how == "stall":
            return Answer(
                headers=whole.headers,
                frames=frames,
                stall_after=-1 if step.after is None else min(step.after, len(frames)),
            )
        kept = frames[: step.after or 0]
        more: Iterable[bytes] = ()
        if step.how == "error":
            more = (self.dialect.breaks(step.message)[step.wording],)
        elif step.how == "garbage":
            more = (self.dialect.garbage(),)
        elif step.how == "flood":
            more = itertools.repeat(_FLOOD_PIECE, -(-step.size_bytes // len(_FLOOD_PIECE)))
        return Answer(
            headers=whole.headers,
            frames=itertools.chain(kept, more),
            ending=_ENDINGS.get(step.how, "whole"),
            before_headers=step.after is None,
        )
