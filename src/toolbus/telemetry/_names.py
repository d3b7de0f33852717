"""The names of spans, attributes and metrics: those of OpenTelemetry's conventions for generative AI, and our own.

The former are the names that `opentelemetry-util-genai` 1.3b0 gives. Text only.
"""

from __future__ import annotations

# The operations, with which the names of spans begin.
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

# Attributes.
OPERATION = "gen_ai.operation.name"
CONVERSATION = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 -- of a model's tokens
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"
REQUEST_ID = "toolbus.request.id"
OUTCOME = "toolbus.request.outcome"
LIMIT = "toolbus.request.limit"
COST = "toolbus.request.cost"
ROUND = "toolbus.round"
EVENT_TYPE = "toolbus.event.type"

# Attributes with content.
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# The vendors that have another name in the conventions.
VENDORS = {"azure": "azure.ai.openai", "gemini": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}

# The number of earlier messages that are not in an attribute, since it would be too long.
OMITTED_MESSAGES = "toolbus.content.omitted_messages"

# Metrics.
REQUEST_SECONDS = "gen_ai.invoke_agent.duration"
MODEL_SECONDS = "gen_ai.client.operation.duration"
TOOL_SECONDS = "gen_ai.execute_tool.duration"
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105 -- of a model's tokens
REQUESTS_RUNNING = "toolbus.requests.running"
REQUESTS_WAITING = "toolbus.requests.waiting"
REQUESTS_QUEUED = "toolbus.requests.queued"
REQUESTS_REFUSED = "toolbus.requests.refused"
REQUESTS_RESUMED = "toolbus.requests.resumed"
MODEL_COST = "toolbus.model.cost"
MODEL_RETRIES = "toolbus.model.retries"
TOOL_CALLS = "toolbus.tool.calls"
LATE_RESULTS = "toolbus.tool.late_results"
CALLS_OVERDUE = "toolbus.tool.overdue"
APPROVALS_PENDING = "toolbus.approvals.pending"
APPROVALS_OVERDUE = "toolbus.approvals.overdue"
LOOP_BLOCKED = "toolbus.loop.blocked"
SUBSCRIPTIONS_LAG = "toolbus.subscriptions.lag"
SUBSCRIPTIONS_FULL = "toolbus.subscriptions.full"
LEASES = "toolbus.leases"
LEASES_LOST = "toolbus.leases.lost"
JOURNAL_APPENDS = "toolbus.journal.appends"
JOURNAL_SECONDS = "toolbus.journal.append_time"
JOURNAL_FAILURES = "toolbus.journal.failures"
STORE_UNAVAILABLE = "toolbus.store.unavailable"
DEAD_LETTERS = "toolbus.dead_letters"

# The variable that says whether content is recorded, and its values with which it is, in spans.
CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
IN_SPANS = frozenset({"SPAN_ONLY", "SPAN_AND_EVENT", "TRUE"})
