"""A stub of Ollama: real HTTP on the loopback interface, Ollama's real protocol, and a script as the model.

Delete this file in your application: with `ollama serve`, everything else stays as it is.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from toolbus.providers.scripted import Step
from toolbus.records import replace
from toolbus.testing.wire import (
    Answer,
    HttpRequest,
    WireBreak,
    WireCall,
    WireReply,
    WireServer,
    WireStep,
    dialect_of,
)

from .scenarios import play, word

__all__ = ["MODEL", "QUICK", "StubOllama", "stub_ollama"]

MODEL, QUICK = "ollama:stub", "ollama:stub-quick"
_OLLAMA = dialect_of("ollama")


class StubOllama(WireServer):
    """The server. Its model takes `seconds` for each word; the quick model takes no time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(self._next, dialect=_OLLAMA)
        self._seconds = seconds

    def _next(self, request: HttpRequest) -> WireStep:
        asked = _OLLAMA.read(request)
        if f"ollama:{asked.model}" != QUICK:
            return play(asked)
        sentence = word(asked)
        whole = WireReply(text=sentence.text)
        return WireBreak(reply=whole, how="stall", after=None) if sentence.hangs else whole

    def answer_of(self, step: WireStep) -> Answer:
        """The pieces to send for a step; the model's text is sent word by word."""
        if not isinstance(step, Step):
            return super().answer_of(step)
        words = tuple(re.findall(r"\S+\s*", step.text))
        made = tuple(WireCall(name=name, arguments=arguments) for name, arguments, _ in step.calls)
        answer = super().answer_of(WireReply(text=words, calls=made))
        return replace(answer, frames=self._slowly(answer.frames))

    def _slowly(self, frames: Iterable[bytes]) -> Iterator[bytes]:
        for each in frames:
            time.sleep(self._seconds)  # this blocks only the connection's own thread
            yield each


@contextmanager
def stub_ollama(seconds: float) -> Generator[StubOllama]:
    """Run the stub, and point OLLAMA_HOST at it, so that requests to `ollama:...` go there."""
    with StubOllama(seconds) as server:
        here = {"OLLAMA_HOST": server.base_url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        with patch.dict(os.environ, here):
            yield server
