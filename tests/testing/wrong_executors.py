"""Executors that are wrong in one way each: a right one, of tasks, and what they do otherwise."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from toolbus import EventBus, Tool, ToolContext, ToolError, ToolRegistry
from toolbus.bus import Subscription
from toolbus.errors import InvalidArguments
from toolbus.events import ToolCallCompleted, ToolCallFailed, ToolCallProgress, ToolCallRequested
from toolbus.failures import classify
from toolbus.records import replace
from toolbus.tool_results import render

Terminal = ToolCallCompleted | ToolCallFailed


class Right:
    """Runs each call in a task of its own. Those below differ in one thing."""

    max_concurrency: ClassVar[int | None] = None

    def __init__(self, bus: EventBus, tools: Sequence[Tool]) -> None:
        self.bus = bus
        self.tools = ToolRegistry(tools)
        self.places = anyio.CapacityLimiter(self.max_concurrency or 1_000)
        self.open: dict[str, ToolCallRequested] = {}

    async def __aenter__(self) -> Right:
        self.group = await anyio.create_task_group().__aenter__()
        self.disconnect: Callable[[], None] = self.bus.connect(ToolCallRequested, self.on_requested)
        return self

    async def __aexit__(self, *exc_info: object) -> bool | None:
        self.disconnect()
        self.group.cancel_scope.cancel()
        await self.group.__aexit__(None, None, None)
        return None

    def find(self, requested: ToolCallRequested) -> Tool | None:
        tool = self.tools.get(requested.name)
        return None if tool is None or tool.spec.external or tool.spec.pool else tool

    def on_requested(self, requested: ToolCallRequested) -> None:
        tool = self.find(requested)
        if tool is not None:
            self.take_on(tool, requested)

    def take_on(self, tool: Tool, requested: ToolCallRequested) -> None:
        scope = anyio.CancelScope()
        if self.bus.arbitration.watch(requested.request_id, requested.call_id, scope.cancel):
            self.group.start_soon(self.run, tool, requested, scope)

    async def run(self, tool: Tool, requested: ToolCallRequested, scope: anyio.CancelScope) -> None:
        answer: Terminal = requested.failed("the executor was closed", reason="cancelled", outcome_unknown=True)
        try:
            with scope:
                async with self.places:
                    answer = await self.answer(tool, requested)
        finally:
            self.end(requested, answer, settled=scope.cancel_called)

    def end(self, requested: ToolCallRequested, answer: Terminal, *, settled: bool) -> None:
        if not settled:
            self.bus.arbitration.unwatch(requested.request_id, requested.call_id)
            self.tell(answer)

    def tell(self, answer: Terminal) -> None:
        self.bus.publish(answer)

    async def answer(self, tool: Tool, requested: ToolCallRequested) -> Terminal:
        try:
            return self.completed(requested, await self.call(tool, requested))
        except (KeyboardInterrupt, anyio.get_cancelled_exc_class()):
            raise
        except BaseException as exc:
            return self.failed(requested, exc)

    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        call = tool.prepare(self.arguments(requested), self.context(requested))
        if tool.is_async:
            return await call()
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)

    def arguments(self, requested: ToolCallRequested) -> dict[str, Any]:
        return requested.arguments

    def context(self, requested: ToolCallRequested) -> ToolContext[Any]:
        async def progress(message: str, done: float | None, total: float | None) -> None:
            self.progress(requested, message, done, total)

        return ToolContext(
            deps=None,
            name=requested.name,
            request_id=requested.request_id,
            conversation_id=requested.conversation_id,
            call_id=requested.call_id,
            idempotency_key=requested.idempotency_key,
            metadata=requested.metadata,
            progress=progress,
        )

    def progress(self, requested: ToolCallRequested, message: str, done: float | None, total: float | None) -> None:
        self.bus.publish(
            ToolCallProgress(
                request_id=requested.request_id,
                call_id=requested.call_id,
                name=requested.name,
                message=message,
                done=done,
                total=total,
            )
        )

    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        rendered = render(value)
        return requested.completed(
            rendered.content,
            data=rendered.data,
            parts=rendered.parts,
            artifacts=rendered.artifacts,
            affected=rendered.affected,
        )

    def failed(self, requested: ToolCallRequested, exc: BaseException) -> Terminal:
        failure = classify(exc)
        return requested.failed(failure.error, reason=failure.reason, retryable=failure.retryable)


# ------------------------------------------------------------------------------------------------- answers


class StripsTexts(Right):
    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        return super().completed(requested, value.strip() if requested.name == "contract_echo" else value)


class AwaitsEverything(Right):
    """A handler that is not async gives what cannot be awaited."""

    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        if requested.name == "contract_echo_sync" and requested.arguments["said"] != "on":
            raise ToolError("its result cannot be awaited")
        return await super().call(tool, requested)


class WritesValuesAsPython(Right):
    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        if isinstance(value, dict) and requested.name == "contract_value":
            return requested.completed(repr(value), data=value)  # pyright: ignore[reportUnknownArgumentType]
        return super().completed(requested, value)


class ForgetsData(Right):
    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        answer = super().completed(requested, value)
        assert isinstance(answer, ToolCallCompleted)
        return replace(answer, data=None) if requested.name == "contract_value" else answer


class ForgetsParts(Right):
    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        answer = super().completed(requested, value)
        assert isinstance(answer, ToolCallCompleted)
        return replace(answer, parts=())


class ForgetsWhatWasAffected(Right):
    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        answer = super().completed(requested, value)
        assert isinstance(answer, ToolCallCompleted)
        return replace(answer, affected=())


class WritesWhatItCannot(Right):
    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        if requested.name == "contract_unwritable":
            return requested.completed(repr(value))
        return super().completed(requested, value)


class ForgetsMetadata(Right):
    def tell(self, answer: Terminal) -> None:
        super().tell(replace(answer, metadata=None))


class ForgetsTheParentOfFailures(Right):
    def failed(self, requested: ToolCallRequested, exc: BaseException) -> Terminal:
        return replace(super().failed(requested, exc), parent_id="")


class HidesToolErrors(Right):
    def failed(self, requested: ToolCallRequested, exc: BaseException) -> Terminal:
        hidden = isinstance(exc, ToolError) and tuple(exc.args) == ("no such city: Zürich",)
        return super().failed(requested, RuntimeError() if hidden else exc)


class NeverRetryable(Right):
    def failed(self, requested: ToolCallRequested, exc: BaseException) -> Terminal:
        answer = super().failed(requested, exc)
        assert isinstance(answer, ToolCallFailed)
        return replace(answer, retryable=False)


class TellsSecrets(Right):
    def failed(self, requested: ToolCallRequested, exc: BaseException) -> Terminal:
        if type(exc) is RuntimeError and requested.name == "contract_fail":
            return requested.failed(f"RuntimeError: {exc}")
        return super().failed(requested, exc)


class LetsExitsThrough(Right):
    async def answer(self, tool: Tool, requested: ToolCallRequested) -> Terminal:
        try:
            return self.completed(requested, await self.call(tool, requested))
        except Exception as exc:
            return self.failed(requested, exc)
        except BaseException as exc:
            if requested.name != "contract_fail_sync":
                raise
            return self.failed(requested, exc)


class TellsSecretsOfThreads(Right):
    def failed(self, requested: ToolCallRequested, exc: BaseException) -> Terminal:
        if requested.name == "contract_fail_sync":
            return requested.failed(str(exc))
        return super().failed(requested, exc)


class TrustsArguments(Right):
    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        if requested.name == "contract_add":
            try:
                return await super().call(tool, requested)
            except InvalidArguments:
                assert tool.handler is not None
                return await tool.handler(1, 2, key=requested.arguments.get("key", ""))
        return await super().call(tool, requested)


class SharesArguments(Right):
    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        if requested.name == "contract_scribble":
            assert tool.handler is not None
            return await tool.handler(**requested.arguments)
        return await super().call(tool, requested)


# ------------------------------------------------------------------------------------------------- taking on


class AnswersTwice(Right):
    def tell(self, answer: Terminal) -> None:
        super().tell(answer)
        if answer.name == "contract_value":
            super().tell(replace(answer, event_id=f"{answer.event_id} again"))


class AnnouncesTwice(Right):
    """Goes round the bus's arbitration."""

    def tell(self, answer: Terminal) -> None:
        super().tell(answer)
        if answer.name == "contract_unwritable":
            self.bus.arbitration.announce(answer)


class RefusesUnknownTools(Right):
    def on_requested(self, requested: ToolCallRequested) -> None:
        if requested.name not in self.tools:
            self.bus.publish(requested.failed("there is no such tool", reason="unknown_tool"))
        else:
            super().on_requested(requested)


class TakesExternalTools(Right):
    def find(self, requested: ToolCallRequested) -> Tool | None:
        tool = self.tools.get(requested.name)
        return None if tool is None or tool.spec.pool else tool


class TakesOtherPools(Right):
    def find(self, requested: ToolCallRequested) -> Tool | None:
        tool = self.tools.get(requested.name)
        return None if tool is None or tool.spec.external else tool


class StaysConnected(Right):
    """Goes on to listen, and answers what comes then."""

    async def __aexit__(self, *exc_info: object) -> bool | None:
        await super().__aexit__(*exc_info)
        self.disconnect = self.bus.connect(ToolCallRequested, self.too_late)
        return None

    def too_late(self, requested: ToolCallRequested) -> None:
        self.bus.publish(requested.failed("the executor was closed", reason="cancelled"))


class DoesNotAskWhoWasFirst(Right):
    """Takes on what is answered already."""

    def take_on(self, tool: Tool, requested: ToolCallRequested) -> None:
        if self.bus.arbitration.is_open(requested.request_id, requested.call_id):
            super().take_on(tool, requested)
        elif requested.call_id not in {*self.open, "of nobody"}:
            self.group.start_soon(self.run, tool, requested, anyio.CancelScope())
        self.open[requested.call_id] = requested


class RunsWhatIsForged(Right):
    """Asks whether a call is taken or answered, and not whether there is such a call."""

    def take_on(self, tool: Tool, requested: ToolCallRequested) -> None:
        if requested.call_id == "of nobody":
            self.group.start_soon(self.run, tool, requested, anyio.CancelScope())
        else:
            super().take_on(tool, requested)


class RunsWhatComesAgain(Right):
    """Knows which calls it runs, and not those that it has run."""

    def take_on(self, tool: Tool, requested: ToolCallRequested) -> None:
        again = requested.call_id in self.open
        self.open[requested.call_id] = requested
        super().take_on(tool, requested)
        if again:
            self.group.start_soon(self.run, tool, requested, anyio.CancelScope())


class IgnoresItsNeighbours(Right):
    """Takes on what another executor has taken on; not what it has itself, or what is answered."""

    def take_on(self, tool: Tool, requested: ToolCallRequested) -> None:
        before = requested.call_id in self.open
        is_open = self.bus.arbitration.is_open(requested.request_id, requested.call_id)
        self.open[requested.call_id] = requested
        scope = anyio.CancelScope()
        if not before and is_open:
            self.bus.arbitration.watch(requested.request_id, requested.call_id, scope.cancel)
            self.group.start_soon(self.run, tool, requested, scope)


# ------------------------------------------------------------------------------------------------- running


class MixesResultsUp(Right):
    def __init__(self, bus: EventBus, tools: Sequence[Tool]) -> None:
        super().__init__(bus, tools)
        self.last: Any = None

    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        self.last = value = await super().call(tool, requested)
        if requested.name == "contract_echo" and str(value).startswith("caller"):
            await anyio.lowlevel.checkpoint()
            return self.last
        return value


class OneAtATime(Right):
    max_concurrency = 1


class NoBounds(Right):
    """Says that it runs two at once."""


class RunsWhatWasSettled(Right):
    """Stops what runs, and not what waits."""

    max_concurrency = 2

    async def run(self, tool: Tool, requested: ToolCallRequested, scope: anyio.CancelScope) -> None:
        if requested.name == "contract_add":
            async with self.places:
                if scope.cancel_called:
                    await self.call(tool, requested)
        await super().run(tool, requested, scope)


class WaitsForTheDeaf(Right):
    """No other call while one that was stopped goes on."""

    def __init__(self, bus: EventBus, tools: Sequence[Tool]) -> None:
        super().__init__(bus, tools)
        self.stopping = anyio.Lock()

    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        if requested.arguments.get("deaf") and requested.name == "contract_hold":
            async with self.stopping:
                return await super().call(tool, requested)
        if requested.arguments.get("said") == "beside":
            async with self.stopping:
                return await super().call(tool, requested)
        return await super().call(tool, requested)


class OneThread(Right):
    def __init__(self, bus: EventBus, tools: Sequence[Tool]) -> None:
        super().__init__(bus, tools)
        self.thread = anyio.Lock()

    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        if tool.is_async:
            return await super().call(tool, requested)
        async with self.thread:
            return await super().call(tool, requested)


class ForgetsTheKey(Right):
    def context(self, requested: ToolCallRequested) -> ToolContext[Any]:
        made = super().context(requested)
        made.idempotency_key = ""
        return made


class SharesTheContext(Right):
    def __init__(self, bus: EventBus, tools: Sequence[Tool]) -> None:
        super().__init__(bus, tools)
        self.shared = copy_context()

    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        if requested.name != "contract_mark":
            return await super().call(tool, requested)
        coroutine = tool.prepare(requested.arguments, None)()
        try:
            while True:
                self.shared.run(coroutine.send, None)  # which has one checkpoint
                await anyio.lowlevel.checkpoint()
        except StopIteration as stop:
            return stop.value


class KeepsProgressToItself(Right):
    def progress(self, requested: ToolCallRequested, message: str, done: float | None, total: float | None) -> None:
        if done != total:
            super().progress(requested, message, done, total)


# ------------------------------------------------------------------------------------------------- stopping


class NeverStops(Right):
    """Lets handlers go on whose call is settled, and says nothing of them; stops them when it is left."""

    def take_on(self, tool: Tool, requested: ToolCallRequested) -> None:
        settled = anyio.Event()
        if self.bus.arbitration.watch(requested.request_id, requested.call_id, settled.set):
            self.group.start_soon(self.run_on, tool, requested, settled)

    async def run_on(self, tool: Tool, requested: ToolCallRequested, settled: anyio.Event) -> None:
        answer: Terminal = requested.failed("the executor was closed", reason="cancelled")
        try:
            answer = await self.answer(tool, requested)
        finally:
            self.end(requested, answer, settled=settled.is_set())


class TellsOfTheStop(Right):
    def end(self, requested: ToolCallRequested, answer: Terminal, *, settled: bool) -> None:
        if settled and requested.name == "contract_hold" and not requested.arguments.get("deaf"):
            self.bus.publish(answer)
        super().end(requested, answer, settled=settled)


class AnnouncesLateResults(Right):
    """Goes round the bus's arbitration with what a handler gives after its call was settled."""

    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        answer = super().completed(requested, value)
        if requested.arguments.get("deaf") and not self.bus.arbitration.is_open(
            requested.request_id, requested.call_id
        ):
            self.bus.arbitration.announce(answer)
        return answer


class TellsLateResultsTwice(Right):
    def completed(self, requested: ToolCallRequested, value: Any) -> Terminal:
        answer = super().completed(requested, value)
        if requested.arguments.get("deaf") and not self.bus.arbitration.is_open(
            requested.request_id, requested.call_id
        ):
            self.bus.publish(answer)
            self.bus.publish(answer)
        return answer


class KeepsTimers(Right):
    async def call(self, tool: Tool, requested: ToolCallRequested) -> Any:
        with anyio.move_on_after(requested.timeout_seconds):
            return await super().call(tool, requested)
        raise ToolError("too slow")


class LeavesCallsOpen(Right):
    def end(self, requested: ToolCallRequested, answer: Terminal, *, settled: bool) -> None:
        if not (isinstance(answer, ToolCallFailed) and answer.reason == "cancelled"):
            super().end(requested, answer, settled=settled)


class SaysLost(Right):
    def tell(self, answer: Terminal) -> None:
        closed = isinstance(answer, ToolCallFailed) and answer.reason == "cancelled"
        super().tell(replace(answer, reason="lost") if closed else answer)


class SwallowsTheHostsCancellation(Right):
    async def __aexit__(self, *exc_info: object) -> bool | None:
        cancelled = anyio.get_cancelled_exc_class()
        with contextlib.suppress(cancelled):
            await super().__aexit__(*exc_info)
        return isinstance(exc_info[1], cancelled)


class GroupsExceptions(Right):
    async def __aexit__(self, *exc_info: object) -> bool | None:
        self.disconnect()
        self.group.cancel_scope.cancel()
        given: Any = exc_info
        return await self.group.__aexit__(*given)


class LeavesAThread(Right):
    left: ClassVar[list[threading.Event]] = []

    async def __aenter__(self) -> Right:
        await super().__aenter__()
        over = threading.Event()
        self.left.append(over)
        threading.Thread(target=over.wait, args=[60], daemon=True).start()
        return self


class LeavesASubscription(Right):
    left: ClassVar[list[Subscription]] = []

    async def __aexit__(self, *exc_info: object) -> bool | None:
        self.left.append(self.bus.subscribe().open())
        return await super().__aexit__(*exc_info)
