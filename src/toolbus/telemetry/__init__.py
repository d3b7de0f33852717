"""Spans and metrics of requests, model calls and tool calls, for OpenTelemetry. Needs the extra `otel`.

    async with Runtime(..., instrumentation=[OpenTelemetry()]) as runtime:
        ...

The package needs the API of OpenTelemetry only, and imports it when an `OpenTelemetry` is made. It must not configure
anything: without an SDK, which the application sets up, nothing is recorded. Its invariants:

1. A span is current while its work is done, in the context of that work. Without this a handler's own spans would be
   beside the span of their tool call.
2. Content (prompts, replies, arguments, results) is recorded only if that was asked for, and without secrets. An error
   is recorded as its type: its text may have secrets in it. Without this a trace would keep what a journal does not.
3. All names of spans, attributes and metrics are in `_names`. They are still in development, and change together.
4. Texts that models, servers and tools choose are cut and made valid, and metrics have a bounded number of them
   (`_texts`). Without this one made-up name for each call would grow every reader's memory, and half of a surrogate
   pair would lose a whole batch of spans.
5. Simple counts are kept here, and the SDK reads them when it collects. One measurement by the SDK costs as much as
   publishing ten events.
"""

from __future__ import annotations

from ._open_telemetry import OpenTelemetry

__all__ = ["OpenTelemetry"]
