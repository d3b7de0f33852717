"""`OpenTelemetry`, the instrumentation that an application gives to its runtime.

Imports the extra's package when it is used, and not before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

from .._option_checks import FLAG, check, or_none
from ..bus import EventBus
from ..errors import MissingExtra
from ..events import ToolCallRequested
from ..instrumentation import Instrumentation, ModelEnded, RequestEnded, ToolEnded
from ..protocols import ModelRequest, Provider, RequestView
from . import _names as names

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["OpenTelemetry"]


class OpenTelemetry(Instrumentation):
    """Records each request, model call and tool attempt as a span, and durations, tokens and counts as metrics.

    Spans are `invoke_agent`, `chat MODEL` and `execute_tool TOOL`, with the attributes of OpenTelemetry's conventions
    for generative AI. A failed one has the status ERROR and `error.type`: a code of toolbus, "cancelled", or the class
    of the exception. The text of an error is never recorded. A request that continues in another process is a new
    `invoke_agent` span with a link to the earlier one, whose `traceparent` is in the metadata of the request's events.

    `tracer_provider` and `meter_provider` are those of the SDK; without them the global ones are used. With
    `include_content`, spans have the messages, arguments and results too, without secrets. By default (None) the
    variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT decides: SPAN_ONLY or SPAN_AND_EVENT. Raises
    `MissingExtra`.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        include_content: bool | None = None,
    ) -> None:
        check("include_content", include_content, or_none(FLAG))
        if include_content is None:
            include_content = os.environ.get(names.CAPTURE_CONTENT, "").strip().upper() in names.IN_SPANS
        recording = _recording()
        self._spans = recording.Spans(tracer_provider, meter_provider, include_content=include_content)
        self._counts = recording.Counts(meter_provider)

    def connect(self, bus: EventBus) -> Callable[[], None]:
        """Count what is published on `bus` from now on, and return the function that stops that.

        Counted are tool calls by outcome (also those that were refused or timed out), results that came too late, dead
        letters, model retries, cost by model, questions to people that wait for an answer, requests that were resumed,
        and what is stuck: see `Runtime`.
        """
        return self._counts.connect(bus)

    def request(self, view: RequestView) -> AbstractContextManager[RequestEnded | None]:
        """Record a request as `invoke_agent`."""
        return self._spans.request(view)

    def model(self, request: ModelRequest, provider: Provider) -> AbstractContextManager[ModelEnded | None]:
        """Record a model call as `chat`."""
        return self._spans.model(request, provider)

    def tool(self, requested: ToolCallRequested) -> AbstractContextManager[ToolEnded | None]:
        """Record an attempt of a tool as `execute_tool`."""
        return self._spans.tool(requested)

    def carried(self) -> Mapping[str, str]:
        """Return the present span as a W3C `traceparent`, and a `tracestate` if there is one."""
        return self._spans.carried()

    @classmethod
    def continued(cls, carried: Mapping[str, str]) -> AbstractContextManager[object]:
        """Make the span current that was carried."""
        return _recording().continued(carried)


def _recording() -> ModuleType:
    try:
        from . import _recording as recording  # noqa: PLC0415 -- an extra
    except ImportError as exc:
        raise MissingExtra("otel", "opentelemetry-api") from exc
    return recording
