"""What a provider or an interceptor raises that is no `Exception`: a failed call of the model, unless it is the host's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolbus import EventBus, RequestSession
from toolbus.core.compression import Compression
from toolbus.interceptors import Interceptor
from toolbus.messages import UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, Summary
from toolbus.testing import ScriptedProvider, text, virtual_backends

anyio_backend = virtual_backends()


class Odd(BaseException):
    """Nobody expects this one."""


class Evil(Exception):
    """Has no text that can be read."""

    def __str__(self) -> str:
        raise SystemExit(1)


def old_cancellation() -> BaseException:
    """One that somebody has kept, of a scope that is long left: trio's cannot be made otherwise."""
    return kept[0] if kept else asyncio.CancelledError()


kept: list[BaseException] = []
STRAY: dict[str, Callable[[], BaseException]] = {
    "asyncio's": asyncio.CancelledError,
    "the loop's": old_cancellation,
    "grouped": lambda: BaseExceptionGroup("", [old_cancellation(), ValueError()]),
    "odd": Odd,
    "evil": Evil,
    "deep": lambda: nested(ValueError(), 5_000),
}


def nested(innermost: BaseException, depth: int) -> BaseException:
    for _ in range(depth):
        innermost = BaseExceptionGroup("deeper", [innermost])
    return innermost


@pytest.fixture(autouse=True)
async def one_is_kept():
    kept.clear()
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class() as exc:
            kept.append(exc)
            raise
    yield
    kept.clear()


class Raising:
    """Fails in its own way."""

    vendor = "raising"

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self._make = make

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        await anyio.lowlevel.checkpoint()
        raise self._make()


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("name", list(STRAY))
async def test_a_cancellation_that_nobody_asked_for_is_a_failed_call_of_the_model(name: str):
    result = await RequestSession(EventBus(), Raising(STRAY[name]), "hi").run()
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert result.error is not None
    await anyio.lowlevel.checkpoint()  # and this task is none the worse


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("where", ["on_prompt", "around_model", "on_answer", "instructions"])
@pytest.mark.parametrize("name", list(STRAY))
async def test_the_same_from_the_applications_functions_is_a_failed_request(where: str, name: str):
    async def fail(*_arguments: Any) -> Any:
        raise STRAY[name]()  # noqa: RSE102 -- it is a function

    class Failing(Interceptor):
        pass

    if where != "instructions":
        setattr(Failing, where, fail)
    options: dict[str, Any] = {"instructions": fail} if where == "instructions" else {"interceptors": [Failing()]}
    session = RequestSession(EventBus(), ScriptedProvider(lambda _: text("hello")), "hi", **options)
    result = await session.run()
    assert result.outcome == "failed"


async def test_a_summary_that_raises_a_stray_cancellation_is_done_without():
    class Failing:
        async def summarize(self, earlier: str, messages: Any, provider: Any) -> Summary:
            raise old_cancellation()

    compression = Compression(max_context_tokens=2_000, summarizer=Failing())
    reported = [UserMessage(content="word " * 400) for _ in range(8)]
    session = RequestSession(EventBus(), ScriptedProvider(lambda _: text("hello")), reported, compression=compression)
    assert (await session.run()).text == "hello"


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_what_ends_a_program_passes(exception: type[BaseException]):
    session = RequestSession(EventBus(), Raising(exception), "hi")
    with pytest.raises(exception):
        await session.run()
    assert (await session.result()).outcome == "cancelled"


@pytest.mark.guarantee("G15")
async def test_the_hosts_cancellation_passes_whether_a_scope_or_asyncio_does_it(anyio_backend_name: str):
    class Waiting(Raising):
        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            await anyio.sleep_forever()
            raise AssertionError

    session = RequestSession(EventBus(), Waiting(Odd), "hi")
    with anyio.move_on_after(1) as scope:
        await session.run()
    assert scope.cancelled_caught
    assert (await session.result()).outcome == "cancelled"
    if anyio_backend_name == "asyncio":
        session = RequestSession(EventBus(), Waiting(Odd), "hi")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await session.run()
        assert (await session.result()).outcome == "cancelled"
