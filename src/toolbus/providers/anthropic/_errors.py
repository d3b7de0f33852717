"""The exceptions of the Anthropic SDK, and the error codes of the Messages API. See `_shared.errors` for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .._shared.errors import ErrorBody, ErrorTranslator


class AnthropicErrors(ErrorTranslator):
    """A maker of the errors of a provider over the `anthropic` SDK."""

    sdk_error: ClassVar[str] = "AnthropicError"
    hints: ClassVar[Mapping[int, str]] = {
        401: "check the key (api_key=, or ANTHROPIC_API_KEY)",
        403: "check what the key may be used for",
        404: "check the model's name and base_url=",
    }
    permanent_codes: ClassVar[frozenset[str]] = frozenset(
        {"contract_spend_limit_reached", "enforced_spend_limit_reached"}
    )
    statuses: ClassVar[Mapping[str, int]] = {
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "conflict_error": 409,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "api_error": 500,
        "timeout_error": 504,
        "overloaded_error": 529,
    }
    request_id_header: ClassVar[str] = "request-id"
    other_service: ClassVar[str] = "which is not a message; check base_url=, which ends before /v1"

    def advice(self, status: int, said: ErrorBody) -> str:
        """Return the advice. If the server does not know the version of the API, it is to ask by the oldest one."""
        if "anthropic-version" in said.text:
            return "ask it by an older version: default_headers={'anthropic-version': '2023-06-01'}"
        return super().advice(status, said)
