"""A provider that says what a script says: for tests, demonstrations and benchmarks.

Knows the provider seam alone. It has no clock and never waits: `respond` has no checkpoint in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import orjson

from ..errors import ConfigurationError, ScriptError
from ..messages import AssistantMessage, ToolCall, Usage, UserMessage, user_text
from ..protocols import ArgumentsPiece, Delta, Emit, FinishReason, ModelReply, ModelRequest, ReasoningPiece, TextPiece

__all__ = ["Script", "ScriptedProvider", "Step", "calls", "error", "text"]

Arguments: TypeAlias = Mapping[str, Any] | str
_PIECES = 3  # enough for a listener to see that pieces have to be joined


@dataclass(slots=True, frozen=True, kw_only=True)
class Step:
    """One reply, prepared: made by `calls`, `text` or `error`, and good for any number of requests."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()  # name, argument text, provider call id
    reasoning: str = ""
    finish_reason: FinishReason = ""
    usage: Usage = field(default_factory=Usage)
    deltas: tuple[Delta, ...] = ()
    exception: Exception | None = None


StepFunction: TypeAlias = "Callable[[ModelRequest], Step | StepFunction]"
Script: TypeAlias = "Sequence[Step | StepFunction] | StepFunction"


def calls(
    *pairs: tuple[str, Arguments],
    text: str = "",
    ids: Sequence[str] | None = None,
    reasoning: str = "",
    finish_reason: FinishReason = "tool_calls",
    usage: Usage | None = None,
) -> Step:
    """A reply that calls tools: `calls(("get_weather", {"city": "Paris"}), ...)`, in call order.

    A pair's arguments are an object, or JSON text that is passed on as it is, malformed or not. `ids` are the
    provider's call ids, one for each pair, which may be empty or repeated; without them they are `call_0`, `call_1`
    and so on, in every reply anew, as some servers do. Raises `ConfigurationError`.
    """
    if ids is not None and len(ids) != len(pairs):
        raise ConfigurationError(f"{len(ids)} ids for {len(pairs)} calls; give one for each, '' for none")
    prepared: list[tuple[str, str, str]] = []
    deltas: list[Delta] = _spoken(reasoning, text, None)
    for index, (name, arguments) in enumerate(pairs):
        written = arguments if isinstance(arguments, str) else orjson.dumps(dict(arguments)).decode()
        prepared.append((name, written, f"call_{index}" if ids is None else ids[index]))
        deltas += [ArgumentsPiece(index, name, piece) for piece in _cut(written, _PIECES)]
    return Step(
        text=text,
        calls=tuple(prepared),
        reasoning=reasoning,
        finish_reason=finish_reason,
        usage=usage or Usage(),
        deltas=tuple(deltas),
    )


def text(
    content: str,
    pieces: Sequence[str] | int | None = None,
    *,
    reasoning: str = "",
    finish_reason: FinishReason = "stop",
    usage: Usage | None = None,
) -> Step:
    """A reply of text. `pieces` is how it is streamed: the pieces themselves, or how many there are at most.

    Raises `ConfigurationError` for pieces that, joined, are not the text.
    """
    if pieces is not None and not isinstance(pieces, int) and "".join(pieces) != content:
        raise ConfigurationError(f"the pieces, joined, are {''.join(pieces)!r}, not {content!r}")
    return Step(
        text=content,
        reasoning=reasoning,
        finish_reason=finish_reason,
        usage=usage or Usage(),
        deltas=tuple(_spoken(reasoning, content, pieces)),
    )


def error(exception: Exception) -> Step:
    """A reply that is an error: `respond` raises `exception`, usually a `ProviderError`."""
    return Step(exception=exception)


class ScriptedProvider:
    """A model that follows a script.

        ScriptedProvider([calls(("get_weather", {"city": "Paris"})), text("Sunny.")])

    A list is used up step by step, by whoever asks next; a step may be a function of the `ModelRequest` that returns
    the step. The script may also be one such function instead of a list: it answers any number of concurrent
    requests, and is never used up. `requests` are the requests seen, oldest first, with the messages as they were
    then; `record=False` keeps none, for long runs.

    `respond` emits text, reasoning and arguments in a few pieces, never waits, and raises `ScriptError` when there is
    no step for a request. A reply's objects are fresh each time, its pieces are shared.
    """

    __slots__ = ("_next", "_record", "_script", "_vendor", "requests")

    def __init__(self, script: Script, *, vendor: str = "scripted", record: bool = True) -> None:
        """Raises `ConfigurationError` for what is no step."""
        if not callable(script):
            for index, step in enumerate(script):
                _checked(step, f"step {index}")
            script = tuple(script)
        self._script = script
        self._vendor = vendor
        self._record = record
        self._next = 0
        self.requests: list[ModelRequest] = []

    @property
    def vendor(self) -> str:
        """What stands on events as the vendor."""
        return self._vendor

    @property
    def steps_left(self) -> int:
        """How many steps nobody has asked for yet; 0 for a script that is a function."""
        return len(self._left())

    def assert_done(self) -> None:
        """Raise `ScriptError` when steps are left over."""
        if left := self._left():
            raise ScriptError(f"the script has {len(left)} steps that nobody asked for: {', '.join(map(_named, left))}")

    def _left(self) -> Sequence[Step | StepFunction]:
        return () if callable(self._script) else self._script[self._next :]

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Answer with the next step. See the class."""
        if self._record:
            self.requests.append(replace(request, messages=tuple(request.messages)))
        step = self._step_for(request)
        if step.exception is not None:
            raise step.exception.with_traceback(None)
        for delta in step.deltas:
            emit(delta)
        tool_calls = tuple(
            [
                ToolCall(name=name, arguments=arguments, provider_call_id=provider_call_id)
                for name, arguments, provider_call_id in step.calls
            ]
        )
        return ModelReply(
            message=AssistantMessage(text=step.text, tool_calls=tool_calls, reasoning=step.reasoning),
            finish_reason=step.finish_reason,
            usage=step.usage,
            vendor=self._vendor,
            model="script",
        )

    def _step_for(self, request: ModelRequest) -> Step:
        script = self._script
        if callable(script):
            step = script
        elif self._next < len(script):
            step = script[self._next]
            self._next += 1
        else:
            raise ScriptError(
                f"the script has {len(script)} steps, and step {self._next} was asked for: {_asked(request)}",
                vendor=self._vendor,
            )
        while callable(step):
            step = step(request)
            if type(step) is not Step:
                _checked(step, "what the script's function returned")
        return step

    def __repr__(self) -> str:
        return f"ScriptedProvider({'a function' if callable(self._script) else f'{self.steps_left} steps left'})"


def _checked(step: object, what: str) -> None:
    if not isinstance(step, Step) and not callable(step):
        raise ConfigurationError(f"{what} is {step!r}, which is no step: use calls(...), text(...) or error(...)")


def _named(step: Step | StepFunction) -> str:
    if not isinstance(step, Step):
        return f"{getattr(step, '__name__', 'a function')}(request)"
    if step.exception is not None:
        return f"error({step.exception!r})"
    if step.calls:
        return f"calls({', '.join(name for name, _, _ in step.calls)})"
    return f"text({_short(step.text)!r})"


def _asked(request: ModelRequest) -> str:
    said = next((user_text(each) for each in reversed(request.messages) if isinstance(each, UserMessage)), "")
    tools = ", ".join(tool.name for tool in request.tools) or "none"
    return f"round {request.round}, the user's last words were {_short(said)!r}, tools offered: {tools}"


def _short(said: str) -> str:
    return said if len(said) <= 80 else said[:79] + "…"


def _spoken(reasoning: str, said: str, pieces: Sequence[str] | int | None) -> list[Delta]:
    if pieces is None or isinstance(pieces, int):
        pieces = _cut(said, _PIECES if pieces is None else pieces)
    return [*map(ReasoningPiece, _cut(reasoning, _PIECES)), *map(TextPiece, pieces)]


def _cut(whole: str, count: int) -> list[str]:
    """`whole` in at most `count` pieces of much the same length, none of them empty."""
    size = max(1, math.ceil(len(whole) / max(1, count)))
    return [whole[start : start + size] for start in range(0, len(whole), size)]
