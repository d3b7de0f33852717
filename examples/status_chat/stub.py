"""A stub that stands in for Ollama: real HTTP on the loopback, in Ollama's real words, and a script for a model.

Delete this file in your application: with `ollama serve` everything else stays as it is.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from toolbus.providers.scripted import Step
from toolbus.testing.wire import (
    Answer,
    RecordedRequest,
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
    """The server. Its model takes `seconds` for each word; the quick one takes none."""

    def __init__(self, seconds: float) -> None:
        super().__init__(self._next, dialect=_OLLAMA)
        self._seconds = seconds

    def _next(self, request: RecordedRequest) -> WireStep:
        asked = _OLLAMA.read(request)
        if f"ollama:{asked.model}" != QUICK:
            return play(asked)
        sentence = word(asked)
        whole = WireReply(text=sentence.text)
        return WireBreak(reply=whole, how="stall", after=None) if sentence.hangs else whole

    def answer_of(self, step: WireStep) -> Answer:
        """What is sent for a step; of the model's, text goes word by word."""
        if not isinstance(step, Step):
            return super().answer_of(step)
        words = tuple(re.findall(r"\S+\s*", step.text))
        made = tuple(WireCall(name=name, arguments=arguments) for name, arguments, _ in step.calls)
        answer = super().answer_of(WireReply(text=words, calls=made))
        return replace(answer, frames=self._slowly(answer.frames))

    def _slowly(self, frames: Iterable[bytes]) -> Iterator[bytes]:
        for each in frames:
            time.sleep(self._seconds)  # in the connection's own thread
            yield each


@contextmanager
def stub_ollama(seconds: float) -> Generator[StubOllama]:
    """The stub, where OLLAMA_HOST says that Ollama is: so `ollama:...` is asked there."""
    with StubOllama(seconds) as server:
        here = {"OLLAMA_HOST": server.base_url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        with patch.dict(os.environ, here):
            yield server
