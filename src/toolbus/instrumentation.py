"""Instrumentation: context managers of the application around requests, model calls and tool calls (tracing, metrics).

A listener on the bus runs in the session's task. An `Instrumentation` is entered where the work is done, so that what
it makes current, such as a trace's span, is current inside the handler. This module knows the bus and the records that
it hands out. Must not know sessions.

Example:
    import contextlib
    from collections.abc import Iterator

    from toolbus import Runtime
    from toolbus.instrumentation import Instrumentation, ModelEnded, RequestEnded
    from toolbus.request_result import RequestResult
    from toolbus.testing import ScriptedProvider, text

    class Timing(Instrumentation):
        @contextlib.contextmanager
        def request(self, view) -> Iterator[RequestEnded]:
            def ended(result: RequestResult) -> None:
                pass  # for example, report result.duration_seconds
            yield ended

        @contextlib.contextmanager
        def model(self, request, provider) -> Iterator[ModelEnded]:
            def ended(reply) -> None:
                print(request.round, reply.message.text)  # 0 Hello.
            yield ended

    async with Runtime(ScriptedProvider([text("Hello.")]), instrumentation=[Timing()]) as runtime:
        await runtime.run("Hello?")
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pkgutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, cast

from .bus import EventBus
from .events import ToolCallRequested
from .failures import keyboard_interrupt_of, log_exception
from .protocols import ModelReply, ModelRequest, Provider, RequestView
from .request_result import RequestResult
from .tool_results import RenderedResult

__all__ = [
    "CarriedBy",
    "Instrumentation",
    "ModelEnded",
    "RequestEnded",
    "RuntimeNumbers",
    "ToolEnded",
    "Work",
    "continued_from",
    "continued_here",
    "observed_process",
]

_logger = logging.getLogger("toolbus.instrumentation")

RequestEnded: TypeAlias = Callable[[RequestResult[Any]], object]
"""A function that is called with the result of a request, also of one that failed."""

ModelEnded: TypeAlias = Callable[[ModelReply], object]
"""A function that is called with the whole reply of a model, without secrets."""

ToolEnded: TypeAlias = Callable[[RenderedResult], object]
"""A function that is called with the result of a tool call's attempt, without secrets."""

CarriedBy: TypeAlias = tuple[str, str, dict[str, str]]
"""What an instrumentation carries to another process, after the module and the qualified name of its class."""


_NOTHING: AbstractContextManager[None] = nullcontext()
"""The context manager of methods that are not overridden. It is not entered, so that such a method costs one call."""


class RuntimeNumbers(Protocol):
    """The numbers of a runtime that are worth a metric, as of the moment in which they are read, in any thread.

    They are those of `RuntimeStatistics`: `waiting` is the number of requests that wait for people only, and `lag` the
    number of events that the slowest reader of a subscription has still to take.
    """

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def pending_approvals(self) -> int: ...
    @property
    def approvals_overdue(self) -> int: ...
    @property
    def calls_overdue(self) -> int: ...
    @property
    def lag(self) -> int: ...
    @property
    def leases(self) -> int: ...
    @property
    def appends(self) -> int: ...
    @property
    def append_seconds(self) -> float: ...
    @property
    def append_failures(self) -> int: ...
    @property
    def store_unavailable(self) -> bool: ...


class Instrumentation:
    """The base class of instrumentations. Override the methods that you need; by default each does nothing.

    `request`, `model` and `tool` are synchronous context managers, entered in the task or thread that does the work,
    in its context (`contextvars`), and left there in the opposite order. What `__enter__` returns is either None or a
    function, which is called with the outcome before `__exit__`. If the work raised an exception or was cancelled,
    that function is not called, and `__exit__` gets the exception; its text may contain secrets. `__exit__` cannot
    swallow it.

    What an instrumentation raises changes nothing for the request. It is logged at ERROR, once for each object. One
    object serves many requests at once, from several threads. Everything here must be quick.
    """

    def process(self, bus: EventBus, numbers: RuntimeNumbers | None) -> AbstractContextManager[object]:
        """Surround the time in which a `Runtime`, or a worker for remote calls, runs: to count what happens in it.

        `bus` has its events, and `numbers` those of the runtime; None on a worker. Instrumentation that only a single
        request was given does not come here.
        """
        return _NOTHING

    def request(self, view: RequestView) -> AbstractContextManager[RequestEnded | None]:
        """Surround a request in this process, from before its first event until after its last one.

        The outermost of the three. A sub-request is inside of its tool's attempt. The function that `__enter__` returns
        is called however the request ends, and `__exit__` gets no exception. A request that continues in another
        process (`Runtime.resume`) is entered there again: see `RequestView.original_metadata`.
        """
        return _NOTHING

    def model(self, request: ModelRequest, provider: Provider) -> AbstractContextManager[ModelEnded | None]:
        """Surround one call of `provider`, inside of all interceptors. Each further attempt is entered anew.

        A call for a summary of the history is entered too, if it asks the provider that the summarizer is given.
        """
        return _NOTHING

    def tool(self, requested: ToolCallRequested) -> AbstractContextManager[ToolEnded | None]:
        """Surround one attempt of a tool's handler; the attempts of one call have the same `call_id`.

        It is entered in the thread of a handler that runs in one. For a handler in a process it is entered in the task
        that waits for the process. A call that is refused, or is answered from the cache, is not entered. If the
        result is wanted, the handler's value is rendered inside.
        """
        return _NOTHING

    def carried(self) -> Mapping[str, str]:
        """Return the present context as text, such as a `traceparent`, for the work that follows elsewhere.

        Called inside of `request`, for the `metadata` of the request's events, which its journal keeps; and inside of
        `tool`, for the process of a handler.
        """
        return {}

    @classmethod
    def continued(cls, carried: Mapping[str, str]) -> AbstractContextManager[object]:
        """Make the context that was `carried` current. Entered in a handler's process, around the handler.

        The class has to be importable there by its name. On a worker for remote calls it is entered around `tool`, with
        all texts in the request's metadata. What this raises is not reported.
        """
        return _NOTHING


class Work:
    """A piece of work, or a process, inside the context managers of all its instrumentations. Itself a context manager.

    `is_heard` says whether anybody wants the outcome.
    """

    __slots__ = ("_about", "_entered", "_instrumentation", "_kind", "is_heard")

    def __init__(
        self,
        kind: Literal["process", "request", "model", "tool"],
        instrumentation: Sequence[Instrumentation],
        *about: Any,
    ) -> None:
        self._kind = kind
        self._instrumentation = instrumentation
        self._about = about
        self._entered: list[tuple[Instrumentation, AbstractContextManager[Any], Callable[[Any], object] | None]] = []
        self.is_heard = False

    def __enter__(self) -> Work:
        for each in self._instrumentation:
            try:
                manager = cast("AbstractContextManager[Any]", getattr(each, self._kind)(*self._about))
                if manager is not _NOTHING:
                    ended = manager.__enter__()
                    self._entered.append((each, manager, ended))
                    self.is_heard = self.is_heard or ended is not None
            except BaseException as exc:
                self._report(each, exc)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, manager, _ in reversed(self._entered):
            try:
                manager.__exit__(kind, exc, trace)
            except BaseException as raised:
                # A context manager may raise the work's own exception again, and that is raised anyway.
                if raised is not exc:
                    self._report(each, raised)

    def ended(self, outcome: object) -> None:
        """Give the outcome to whoever wants it."""
        for each, _, ended in self._entered:
            if ended is not None:
                try:
                    ended(outcome)
                except BaseException as exc:
                    self._report(each, exc)

    def carried(self) -> dict[str, str]:
        """Return what all instrumentations carry."""
        return {name: text for _, carried in self._carried() for name, text in carried.items()}

    def elsewhere(self) -> list[CarriedBy]:
        """Return what each instrumentation carries to the process of a handler."""
        return [(type(each).__module__, type(each).__qualname__, carried) for each, carried in self._carried()]

    def _carried(self) -> list[tuple[Instrumentation, dict[str, str]]]:
        found: list[tuple[Instrumentation, dict[str, str]]] = []
        for each in self._instrumentation:
            try:
                if carried := dict(each.carried()):
                    found.append((each, carried))
            except BaseException as exc:
                self._report(each, exc)
        return found

    def _report(self, each: Instrumentation, exc: BaseException) -> None:
        """Log what an instrumentation has raised, once for each object. Raises a `KeyboardInterrupt` again."""
        if keyboard_interrupt_of(exc):
            raise exc
        if not vars(each).get("_is_reported"):
            vars(each)["_is_reported"] = True
            message = "%s failed; it is not reported again"
            ids = {} if self._kind == "process" else {"request_id": self._about[0].request_id}
            log_exception(_logger, logging.ERROR, message, type(each).__name__, cause=exc, ids=ids)


@contextlib.contextmanager
def observed_process(
    instrumentation: Sequence[Instrumentation], bus: EventBus, numbers: RuntimeNumbers | None
) -> Generator[None]:
    """Surround the time in which a runtime or a worker runs by `Instrumentation.process`."""
    work = Work("process", instrumentation, bus, numbers).__enter__()
    try:
        yield
    finally:  # An instrumentation does not learn why the runtime or the worker ends.
        work.__exit__(None, None, None)


@contextlib.contextmanager
def continued_here(carried: Sequence[CarriedBy]) -> Generator[None]:
    """Make current, in the process of a handler, what was carried there.

    What instrumentations raise there is dropped, since nobody reads the log of such a process.
    """
    with contextlib.ExitStack() as stack:
        for module, name, texts in carried:
            with contextlib.suppress(BaseException):
                kind = cast("type[Instrumentation]", pkgutil.resolve_name(f"{module}:{name}"))
                _continue(kind, texts, stack)
        yield


@contextlib.contextmanager
def continued_from(metadata: Mapping[str, Any] | None, instrumentation: Sequence[Instrumentation]) -> Generator[None]:
    """Make current, on a worker, what the `metadata` of a request's events carries. What that raises is dropped."""
    with contextlib.ExitStack() as stack:
        texts = {name: text for name, text in (metadata or {}).items() if isinstance(text, str)}
        for each in instrumentation:
            with contextlib.suppress(BaseException):
                _continue(each, texts, stack)
        yield


def _continue(
    continues: Instrumentation | type[Instrumentation], texts: Mapping[str, str], stack: contextlib.ExitStack
) -> None:
    manager = continues.continued(texts)
    manager.__enter__()
    stack.push(functools.partial(_leave, manager))


def _leave(manager: AbstractContextManager[object], *exc_info: Any) -> None:
    with contextlib.suppress(BaseException):
        manager.__exit__(*exc_info)
