"""A tool that runs in a process of its own. Imported there too, so it imports little, and nothing of the tests."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from toolbus import tool
from toolbus.instrumentation import Instrumentation


class NotContinued(Instrumentation):
    """Carries what it cannot continue."""

    def carried(self) -> Mapping[str, str]:
        return {"carried": "here"}

    @classmethod
    def continued(cls, carried: Mapping[str, str]) -> AbstractContextManager[object]:
        raise RuntimeError(carried)


class NotLeft(NotContinued):
    """Raises when the handler has ended."""

    @classmethod
    @contextmanager
    def continued(cls, carried: Mapping[str, str]) -> Generator[None]:
        try:
            yield
        finally:
            raise RuntimeError(carried)


@tool(isolation="process")
def traced() -> list[str]:
    """The trace and the parent of a span that the handler itself makes."""
    with TracerProvider().get_tracer("own").start_as_current_span("own") as span:
        assert isinstance(span, ReadableSpan)
        assert span.parent is not None
        return [format(span.parent.trace_id, "032x"), format(span.parent.span_id, "016x")]
