"""Errors that say that the context window was exceeded, in the words of real servers; and those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus.errors import ContextOverflow, ProviderRejected, ProviderUnavailable
from toolbus.providers._shared.errors import ErrorTranslator

ERRORS = ErrorTranslator(vendor="stub", where="http://stub/v1", hint="look")


def inner(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


@pytest.mark.parametrize(
    ("status", "body", "limit_tokens"),
    [
        (
            400,
            inner(
                "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
                type="invalid_request_error",
                code="context_length_exceeded",
            ),
            128_000,
        ),
        (
            400,
            inner(
                "Your input exceeds the context window of this model. Please adjust your input and try again.",
                type="invalid_request_error",
                code="context_length_exceeded",
            ),
            None,
        ),
        (400, inner("too long", type="invalid_request_error", code="context_length_exceeded"), None),
        (
            400,
            inner(
                "the request exceeds the available context size. try increasing the context size",
                code=400,
                type="exceed_context_size_error",
                n_prompt_tokens=14429,
                n_ctx=8192,
            ),
            8192,
        ),
        (422, inner("The prompt is too long: 9 tokens > 8 maximum"), 8),
        (400, inner("full", type="exceed_context_size_error", n_ctx=0), None),
        (400, inner("full", type="exceed_context_size_error", n_ctx=1), 1),
        (500, inner("full", code=500, type="exceed_context_size_error", n_prompt_tokens=1407, n_ctx=256), 256),
        (400, inner("request (900 tokens) exceeds the available context size (512 tokens), try increasing it"), 512),
        (
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 6048 tokens. However, you requested 6616 tokens "
                "(568 in the messages, 6048 in the completion).",
                "type": "BadRequestError",
                "code": 400,
            },
            6048,
        ),
        (400, inner("The decoder prompt (length 44) is longer than the maximum model length of 16."), 16),
        (
            400,
            inner(
                "You passed 41 input tokens and requested 0 output tokens. However, the model's context length is only "
                "40 tokens, resulting in a maximum input length of 40 tokens."
            ),
            40,
        ),
        (
            400,
            {
                "type": "error",
                **inner("prompt is too long: 210000 tokens > 200000 maximum", type="invalid_request_error"),
            },
            200_000,
        ),
        (
            400,
            inner(
                "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648, decrease input length",
                type="invalid_request_error",
            ),
            204_648,
        ),
        (413, inner("Request exceeds the maximum allowed number of bytes.", type="request_too_large"), None),
        (
            400,
            inner(
                "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens "
                '(42832 of text input). Please reduce the length of either one, or use the "middle-out" transform.',
                code=400,
            ),
            32_768,
        ),
        (
            413,
            inner(
                "Provider returned error",
                code=413,
                metadata={"provider_name": "Google", "raw": '{"error":{"message":"Prompt is too long"}}'},
            ),
            None,
        ),
        (400, inner("This model's maximum prompt length is 131072 but the request contains 136973 tokens."), 131_072),
        (
            400,
            [
                inner(
                    "The input token count (1054016) exceeds the maximum number of tokens allowed (1048576).", code=400
                )
            ],
            1_048_576,
        ),
        (400, inner("The model returned the following errors: Input is too long for requested model."), None),
        (400, "However, the model is loaded with context length of only 32768 tokens, which is not enough.", 32_768),
        (400, inner("Requested tokens (2285) exceed context window of 2048"), 2048),
        (400, inner("Prompt contains 40000 tokens, too large for model with 32768 maximum context length"), 32_768),
        (
            400,
            {
                "error": "The number of tokens to keep from the initial prompt is greater than the context length "
                "(n_keep: 5100>= n_ctx: 4096). Try to load the model with a larger context length."
            },
            4096,
        ),
        (
            400,
            {"error": "The number of tokens to keep from the initial prompt is greater than the context length"},
            None,
        ),
        (400, {"error": "Cannot truncate prompt with n_keep (30180) >= n_ctx (4096)"}, 4096),
        (
            400,
            {
                "error": "Reached context length of 4096 tokens with model (arch: qwen3vlmoe) that does not currently "
                "support mid-generation context overflow. Try reloading with a larger context length."
            },
            4096,
        ),
        (
            400,
            {"code": 20015, "message": "length of prompt_tokens (57535) must be less than max_seq_len (32768)"},
            32_768,
        ),
        (400, inner("Request length 71599 + 2048 is greater than max_seq_len 65536"), 65_536),
        (400, inner("Prompt length (5056) exceeds maximum sequence length (2048)"), 2048),
        (400, inner("max_tokens must be at least 1, got -7584. (parameter=max_tokens, value=-7584)"), None),
        (500, inner("Context size has been exceeded.", code=500, type="server_error"), None),
        (400, inner("The input (516368 tokens) is longer than the model's context length (262144 tokens)."), 262_144),
        (400, inner("Input length 131393 exceeds the maximum allowed input length of 131040 tokens."), 131_040),
        (400, inner("Input length (9000 tokens) exceeds the maximum allowed length (8186 tokens)."), 8186),
        (400, inner("Requested input length 600010 exceeds maximum input length 131071"), 131_071),
        (400, inner("Input length (265330) exceeds model's maximum context length (262144)."), 262_144),
        (
            400,
            inner(
                "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.",
                code="context_length_exceeded",
            ),
            272_000,
        ),
        (
            400,
            inner(
                "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
                code="context_length_exceeded",
            ),
            8192,
        ),
        (400, inner("The input token count exceeds the maximum number of tokens allowed 1048576."), 1_048_576),
        (
            400,
            inner(
                "Unable to submit request because the input token count is 33000 but model only supports up to 32768."
            ),
            32_768,
        ),
        (400, inner("prompt token count of 13604 exceeds the limit of 8192"), 8192),
        (
            422,
            {
                "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4031 and 200"
            },
            4096,
        ),
        (400, inner("Your request exceeded model token limit: 262144 (requested: 291351)"), 262_144),
        (400, inner("invalid params, context window exceeds limit (2013)"), None),
        (400, inner("InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]"), 129_024),
        (400, inner("Prompt exceeds max length", code="1261"), None),
        (400, inner("This model's maximum context length is 131,072 tokens, however you requested 140,000."), 131_072),
        (
            400,
            inner(
                "The estimated number of input and maximum output tokens (441000) exceeded this model context window "
                "limit (262144)"
            ),
            262_144,
        ),
        (
            413,
            inner(
                "Request body too large for gpt-4o model. Max size: 8000 tokens.",
                code="tokens_limit_reached",
            ),
            8000,
        ),
        (
            413,
            inner(
                "Request too large for model `m` in organization `o` service tier `on_demand` on tokens per minute "
                "(TPM): Limit 12000, Requested 18032, please reduce your message size and try again.",
                type="tokens",
                code="rate_limit_exceeded",
            ),
            12_000,
        ),
        (400, {"error": "prompt too long; exceeded context length by 3 tokens"}, None),
        (
            400,
            inner("litellm.ContextWindowExceededError: litellm.BadRequestError: BedrockException - Too many tokens."),
            None,
        ),
        (
            400,
            inner(
                "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - This model's maximum "
                "context length is 8192 tokens."
            ),
            8192,
        ),
    ],
)
def test_a_context_that_is_too_long_is_reported_with_its_limit(
    status: int, body: Any, limit_tokens: int | None
) -> None:
    answered = ERRORS.status(status, {"x-request-id": "req_7", "x-should-retry": "true"}, body)
    streamed = ERRORS.in_stream(body)
    for error in (answered, streamed):
        assert type(error) is ContextOverflow
        assert (error.vendor, error.limit_tokens, error.retryable) == ("stub", limit_tokens, False)
    assert answered.status == status
    assert str(answered).endswith("[request req_7]")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, inner("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens")),
        (400, inner("messages.0: tool_use ids must be unique", type="invalid_request_error")),
        (400, inner("Invalid 'messages[1].content': string too long", code="string_above_max_length")),
        (401, inner("prompt is too long")),
        (404, inner("The model's maximum context length is 10")),
        (413, inner("Payload Too Large")),
        (400, inner("context", n_ctx=512)),
        (400, inner("Input validation error: `max_new_tokens` must be <= 4096")),
        (400, inner("Range of max_tokens should be [1, 8192]")),
        (400, inner("The images of this request exceed the configured limit of 50")),
        (400, inner("the description of a tool exceeds the maximum allowed length 1024")),
        (400, None),
    ],
)
def test_what_is_something_else_stays_a_rejection(status: int, body: Any) -> None:
    assert type(ERRORS.status(status, {}, body)) is ProviderRejected


def test_a_limit_of_tokens_per_minute_is_no_context_that_is_too_long() -> None:
    words = "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 14810"
    error = ERRORS.status(429, {}, inner(words, type="tokens", code="rate_limit_exceeded"))
    assert type(error) is ProviderUnavailable


def test_a_key_is_not_shown_by_an_overflow_either() -> None:
    errors = ErrorTranslator(vendor="stub", where="w", hint="h")
    errors.keep_secret("sk-secret")
    error = errors.status(400, {}, inner("prompt is too long, sk-secret", type="invalid_request_error"))
    assert "prompt is too long, ***" in str(error)


def test_the_beginning_of_a_key_is_not_shown_where_a_server_s_message_is_cut() -> None:
    errors = ErrorTranslator(vendor="stub", where="w", hint="h")
    errors.keep_secret("sk-secret-0123456789")
    for room in (1, 12, 20):
        said = "x" * (1_000 - room) + "sk-secret-0123456789"
        found = [
            errors.status(500, {}, inner(said)),
            errors.in_stream(inner(said)),
            errors.no_reply("reply", {"a": said}),
        ]
        assert not any("sk-" in str(each) for each in found)


@pytest.mark.parametrize("key", ["k", "none", "ollama", "EMPTY"])
def test_a_placeholder_in_the_place_of_a_key_stays_in_texts(key: str) -> None:
    # With the key "k", a message said that the server "bro***e the connection".
    errors = ErrorTranslator(vendor="stub", where="w", hint="h")
    errors.keep_secret(key)
    assert errors.clean(f"stub broke: {key}") == f"stub broke: {key}"
