"""A provider that follows a script, for tests, demonstrations and benchmarks.

The module knows only the provider protocol. `respond` waits only where a step asks for it, and has no other checkpoint.

Example:
    from toolbus import Runtime
    from toolbus.errors import ProviderUnavailable
    from toolbus.providers.scripted import Script, ScriptedProvider, Step, calls, error, text

    step: Step = text("It is 5.", delays=0.01)
    busy = ProviderUnavailable("busy", vendor="scripted", retryable=True)
    script: Script = [error(busy), calls(("add", {"a": 2, "b": 3})), step]

    def add(a: int, b: int) -> int:
        return a + b

    async with Runtime(ScriptedProvider(script), tools=[add]) as runtime:
        print((await runtime.run("What is 2 + 3?")).text)  # It is 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeAlias, cast, get_args

import anyio
import orjson

from .._option_checks import TEXT, Rule, check, is_async, one_of, takes
from ..core.plain_text import clip
from ..errors import ConfigurationError, ScriptError
from ..messages import AssistantMessage, ToolCall, Usage
from ..protocols import (
    ArgumentsPiece,
    Delta,
    Emit,
    FinishReason,
    ModelReply,
    ModelRequest,
    NativeOutput,
    ReasoningPiece,
    TextPiece,
)
from ..records import replace
from .expectations import Expectation, shown_request

__all__ = ["Delays", "Script", "ScriptedProvider", "Step", "calls", "error", "hang", "text"]

Arguments: TypeAlias = Mapping[str, Any] | str
Delays: TypeAlias = float | Sequence[float]
"""Seconds before each piece of a reply: one number for all pieces, or one for each, in order. A sequence may be shorter
than the pieces; after the delay of the last piece there may be one more, for the time until the reply is whole. A
number for a reply without pieces is the time until the reply."""
_PIECES = 3  # enough to show that a listener has to join pieces


@dataclass(slots=True, frozen=True, kw_only=True)
class Step:
    """One prepared reply, made by `calls`, `text`, `error` or `hang`. It may answer any number of requests."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()  # name, argument text, provider call id
    reasoning: str = ""
    finish_reason: FinishReason = ""
    usage: Usage = field(default_factory=Usage)
    deltas: tuple[Delta, ...] = ()
    exception: Exception | None = None
    delays: tuple[float, ...] = ()
    hangs: bool = False
    expect: Expectation | None = None
    is_plain: bool = True  # all of the reply comes at once, and the request is not checked


_EXCEPTION = Rule(
    lambda given: isinstance(given, Exception), "pass an exception, such as ProviderUnavailable('down', retryable=True)"
)
_FUNCTION = Rule(
    lambda given: takes(given, 1) and not is_async(given),
    "pass a list of steps, or a function, not async, that takes the ModelRequest and returns a step",
)

StepFunction: TypeAlias = "Callable[[ModelRequest], Step | StepFunction]"
Script: TypeAlias = "Sequence[Step | StepFunction] | StepFunction"


def calls(
    *pairs: tuple[str, Arguments],
    text: str = "",
    ids: Sequence[str] | None = None,
    reasoning: str = "",
    finish_reason: FinishReason = "tool_calls",
    usage: Usage | None = None,
    delays: Delays = 0.0,
    expect: Expectation | None = None,
) -> Step:
    """Make a reply that calls tools: `calls(("get_weather", {"city": "Paris"}), ...)`, in call order.

    The arguments in a pair are an object, or JSON text that is passed on unchanged, malformed or not. `ids` are the
    provider's call ids, one for each pair, which may be empty or repeated; without `ids` they are `call_0`, `call_1`
    and so on, starting again in every reply, as some servers do. Each argument text is streamed in at most 3 pieces.
    `delays` and `expect` are as in `text`. Raises `ConfigurationError` for malformed pairs, a wrong number of ids, and
    delays that are not possible.
    """
    if ids is not None and len(ids) != len(pairs):
        raise ConfigurationError(f"{len(ids)} ids for {len(pairs)} calls; pass one for each, '' for none")
    prepared: list[tuple[str, str, str]] = []
    deltas: list[Delta] = _streamed(reasoning, text, None)
    for index, pair in enumerate(pairs):
        name, arguments = _checked_pair(pair)
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
        **_conditions(deltas, delays, expect),
    )


def _checked_pair(given: Any) -> tuple[str, Arguments]:
    if isinstance(given, (tuple, list)) and len(pair := cast("Sequence[Any]", given)) == 2:
        name, arguments = pair
        if isinstance(name, str) and isinstance(arguments, (str, Mapping)):
            return name, cast("Arguments", arguments)
    raise ConfigurationError(
        f"{given!r} is not a call: pass pairs of a tool's name and its arguments, "
        "such as calls(('get_weather', {'city': 'Paris'}))"
    )


def text(
    content: str,
    pieces: Sequence[str] | int | None = None,
    *,
    reasoning: str = "",
    finish_reason: FinishReason = "stop",
    usage: Usage | None = None,
    delays: Delays = 0.0,
    expect: Expectation | None = None,
) -> Step:
    """Make a reply of text. `pieces` are the pieces in which it is streamed, or their maximum number.

    With `delays` the pieces take time: see `Delays`; pieces of reasoning come first. `expect` checks the request that
    this step answers: `asked(last_user="And in Rome?")`, for example, or a function of the request that asserts, or
    returns whether the request is right. For a wrong request `respond` raises `ScriptError`, which shows the request,
    and `assert_done` raises the same.

    Raises `ConfigurationError` for anything but a text, for pieces that do not add up to the text, and for delays that
    are not possible.
    """
    check("content", content, TEXT)
    if pieces is not None and not isinstance(pieces, int) and "".join(pieces) != content:
        raise ConfigurationError(f"the pieces, joined, are {''.join(pieces)!r}, not {content!r}")
    deltas = _streamed(reasoning, content, pieces)
    return Step(
        text=content,
        reasoning=reasoning,
        finish_reason=finish_reason,
        usage=usage or Usage(),
        deltas=tuple(deltas),
        **_conditions(deltas, delays, expect),
    )


def error(
    exception: Exception, *, after: Step | str = "", delays: Delays = 0.0, expect: Expectation | None = None
) -> Step:
    """Make a reply that is an error: `respond` raises `exception`, usually a `ProviderError`.

    `after` is streamed before the error: text, or the pieces of a step. `delays` and `expect` are as in `text`. Raises
    `ConfigurationError` for anything but an exception, such as its class.
    """
    check("exception", exception, _EXCEPTION)
    deltas = _streamed_before(after)
    return replace(Step(deltas=deltas, exception=exception), **_conditions(deltas, delays, expect, is_plain=False))


def hang(*, after: Step | str = "", delays: Delays = 0.0, expect: Expectation | None = None) -> Step:
    """Make a reply that never comes: `respond` waits to be cancelled. `after` is streamed first, as in `error`."""
    deltas = _streamed_before(after)
    return replace(Step(deltas=deltas, hangs=True), **_conditions(deltas, delays, expect, is_plain=False))


class ScriptedProvider:
    """A model that follows a script.

        ScriptedProvider([calls(("get_weather", {"city": "Paris"})), text("Sunny.")])

    Each request uses up the next step of a list; a step may be a function of the `ModelRequest` that returns the step.
    The script may also be one such function instead of a list: it answers any number of concurrent requests, and is
    never used up. `requests` are the requests so far, oldest first, with the messages as they were at the time;
    `record=False` keeps none, for long runs.

    `respond` emits text, reasoning and arguments in a few pieces, waits only where a step has `delays` or hangs, and
    raises `ScriptError` when there is no step for a request, or the request is not as its step expects; `problems` are
    the texts of these errors. The objects of a reply are new each time; its pieces are shared.

    `native_output` is the value that `native_output()` returns, one of `toolbus.protocols.NativeOutput`: pass one to
    act as a vendor that constrains replies to a JSON schema. The steps of the script are not constrained. By default
    the model has to call the tool `final_answer`, or to write the JSON.
    """

    def __init__(
        self, script: Script, *, vendor: str = "scripted", record: bool = True, native_output: NativeOutput = ""
    ) -> None:
        """Raise `ConfigurationError` for a wrong script, a value that is not a step, and an unknown `native_output`."""
        check("native_output", native_output, one_of(*get_args(NativeOutput)))
        if callable(script):
            check("the script", script, _FUNCTION)
        else:
            if isinstance(script, (Step, str)) or not isinstance(script, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(
                    f"the script is {script!r}; pass a list of steps, such as [text('Hello.')], or a function"
                )
            script = tuple(script)
            for index, step in enumerate(script):
                _checked(step, f"step {index}")
        self._script = script
        self._vendor = vendor
        self._record = record
        self._native_output: NativeOutput = native_output
        self._next = 0
        self.requests: list[ModelRequest] = []
        self.problems: list[str] = []

    @property
    def vendor(self) -> str:
        """The vendor's name on events."""
        return self._vendor

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:  # noqa: ARG002 -- named by the protocol
        """Return the value that the provider was constructed with: see `NativeOutputProvider`."""
        return self._native_output

    @property
    def steps_remaining(self) -> int:
        """The number of steps that no request has used yet; 0 for a script that is a function."""
        return len(self._left())

    def assert_done(self) -> None:
        """Raise `ScriptError` with the first of the `problems`, if there are some, or when steps are left over."""
        if self.problems:
            raise ScriptError(self.problems[0], vendor=self._vendor)
        if left := self._left():
            raise ScriptError(f"the script has {_counted(len(left))} left over: {', '.join(map(_named, left))}")

    def _left(self) -> Sequence[Step | StepFunction]:
        return () if callable(self._script) else self._script[self._next :]

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Answer with the next step: see the class."""
        if self._record:
            self.requests.append(replace(request, messages=tuple(request.messages)))
        step = self._step_for(request)
        if step.is_plain:
            for delta in step.deltas:
                emit(delta)
        else:
            await self._perform(step, request, emit)
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

    async def _perform(self, step: Step, request: ModelRequest, emit: Emit) -> None:
        """Perform a step that checks the request, takes time or fails."""
        if step.expect is not None and (wrong := _wrong(step.expect, request)):
            which = "a step" if callable(self._script) else f"step {self._next - 1}"
            raise self._problem(f"{which}, {_named(step)}, expects another request: {wrong}", request)
        for delta, seconds in zip_longest(step.deltas, step.delays, fillvalue=None):
            if seconds:
                await anyio.sleep(seconds)
            if delta is not None:
                emit(delta)
        if step.hangs:
            await anyio.sleep_forever()
        if step.exception is not None:
            raise step.exception.with_traceback(None)

    def _problem(self, what: str, request: ModelRequest) -> ScriptError:
        self.problems.append(f"{what}; it was asked in {shown_request(request)}")
        return ScriptError(self.problems[-1], vendor=self._vendor)

    def _step_for(self, request: ModelRequest) -> Step:
        script = self._script
        if callable(script):
            step = script
        elif self._next < len(script):
            step = script[self._next]
            self._next += 1
        else:
            raise self._problem(f"the script has {_counted(len(script))}, and one more was asked for", request)
        while callable(step):
            step = step(request)
            if type(step) is not Step:
                _checked(step, "what the script's function returned")
        return step

    def __repr__(self) -> str:
        return (
            f"ScriptedProvider({'a function' if callable(self._script) else f'{_counted(self.steps_remaining)} left'})"
        )


def _checked(step: object, what: str) -> None:
    if not isinstance(step, Step) and not callable(step):
        raise ConfigurationError(
            f"{what} is {step!r}, which is not a step: use calls(...), text(...), error(...) or hang(...)"
        )


def _counted(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _named(step: Step | StepFunction) -> str:
    if not isinstance(step, Step):
        return f"{getattr(step, '__name__', 'a function')}(request)"
    if step.exception is not None:
        return f"error({step.exception!r})"
    if step.hangs:
        return "hang()"
    if step.calls:
        return f"calls({', '.join(name for name, _, _ in step.calls)})"
    return f"text({clip(step.text, 80)!r})"


def _wrong(expect: Expectation, request: ModelRequest) -> str:
    """Return the reason why the request is not as expected; empty when it is."""
    try:
        verdict = expect(request)
    except AssertionError as exc:
        return str(exc) or "an assertion failed"
    except Exception as exc:  # a mistake in the test itself would otherwise look like a failed request
        return f"{getattr(expect, '__name__', 'expect')} raised {type(exc).__name__}: {exc}"
    refused = verdict is not None and not verdict
    return f"{getattr(expect, '__name__', 'expect')}(request) is {verdict!r}" if refused else ""


def _conditions(
    deltas: Sequence[Delta], delays: Delays, expect: Expectation | None, *, is_plain: bool = True
) -> dict[str, Any]:
    """Return the fields of a step that waits, fails or checks its request; empty for a plain reply.

    Raises `ConfigurationError` for impossible delays and for an `expect` that cannot be called.
    """
    if expect is None and not delays and is_plain:
        return {}
    seconds = [delays] * max(1, len(deltas)) if isinstance(delays, (int, float)) else list(delays)
    if len(seconds) > len(deltas) + 1 or not all(0 <= each < math.inf for each in seconds):
        raise ConfigurationError(
            f"delays={delays!r} for {len(deltas)} pieces; pass seconds, one number or one for each piece and the end"
        )
    if expect is not None and not callable(expect):
        raise ConfigurationError(f"expect is {expect!r}; pass asked(...), or a function of the request")
    return {"delays": tuple(seconds) if any(seconds) else (), "expect": expect, "is_plain": False}


def _streamed_before(after: Step | str) -> tuple[Delta, ...]:
    return after.deltas if isinstance(after, Step) else tuple(_streamed("", after, None))


def _streamed(reasoning: str, said: str, pieces: Sequence[str] | int | None) -> list[Delta]:
    if pieces is None or isinstance(pieces, int):
        pieces = _cut(said, _PIECES if pieces is None else pieces)
    return [*map(ReasoningPiece, _cut(reasoning, _PIECES)), *map(TextPiece, pieces)]


def _cut(whole: str, count: int) -> list[str]:
    """Return `whole` in at most `count` pieces of about the same length, none of them empty."""
    size = max(1, math.ceil(len(whole) / max(1, count)))
    return [whole[start : start + size] for start in range(0, len(whole), size)]
