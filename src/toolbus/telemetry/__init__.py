"""Spans and metrics of requests, model calls and tool calls, for OpenTelemetry. Needs the extra `otel`.

    telemetry = OpenTelemetry()
    async with Runtime(..., instrumentation=[telemetry]) as runtime:
        telemetry.connect(runtime.bus)

The package needs the API of OpenTelemetry only, and imports it when an `OpenTelemetry` is made. It must not configure
anything: without an SDK, which the application sets up, nothing is recorded. Its invariants:

1. A span is current while its work is done, in the context of that work. Without this a handler's own spans would be
   beside the span of their tool call.
2. Content (prompts, replies, arguments, results) is recorded only if that was asked for, and without secrets. An error
   is recorded as its type: its text may have secrets in it. Without this a trace would keep what a journal does not.
3. All names of spans, attributes and metrics are in `_names`. They are still in development, and change together.
"""

from __future__ import annotations

from ._open_telemetry import OpenTelemetry

__all__ = ["OpenTelemetry"]
