"""The exceptions of the OpenAI SDK, and the error codes of OpenAI and compatible servers.

See `_shared.errors` for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ...errors import ProviderError
from .._shared.errors import ErrorBody, ErrorTranslator, read_body
from ._failed_generation import CODES, FailedGeneration

# The codes of the Responses API for images that it cannot read (ResponseError in the SDK).
_IMAGES = frozenset(
    {
        "empty_image_file",
        "image_file_not_found",
        "image_file_too_large",
        "image_parse_error",
        "image_too_large",
        "image_too_small",
        "invalid_base64_image",
        "invalid_image",
        "invalid_image_format",
        "invalid_image_mode",
        "invalid_image_url",
        "unsupported_image_media_type",
    }
)


class OpenAIErrors(ErrorTranslator):
    """A maker of the errors of a provider over the `openai` SDK."""

    sdk_error: ClassVar[str] = "OpenAIError"
    hints: ClassVar[Mapping[int, str]] = {
        403: "check what the key may be used for",
        404: "check the model's name and base_url=",
    }
    permanent_codes: ClassVar[frozenset[str]] = (
        frozenset({"insufficient_quota", "billing_hard_limit_reached", "data_residency_mismatch"}) | _IMAGES
    )
    filtered: ClassVar[frozenset[str]] = frozenset(
        {
            "ResponsibleAIPolicyViolation",  # this code and the next are Azure's
            "content_filter",
            "content_policy_violation",
            "bio_policy",
            "cyber_policy",
            "data_inspection_failed",  # Qwen
            "1301",  # GLM
            "image_content_policy_violation",
            "invalid_prompt",
            "misalignment_policy_violation",
        }
    )
    other_service: ClassVar[str] = "which is not a model's reply; check base_url=, which usually ends in /v1"
    advised: ClassVar[Mapping[str, str]] = {
        # As in: Function tools with reasoning_effort are not supported [...] Please use /v1/responses.
        "v1/responses": "ask by the Responses API: openai-responses:MODEL, or OpenAIProvider(..., api='responses')",
    }
    """The advice for each text in which a server says that a model has to be asked in another way."""

    def __init__(self, *, key_variable: str = "OPENAI_API_KEY", **given: str) -> None:
        super().__init__(**given)
        self._key_variable = key_variable

    def advice(self, status: int, said: ErrorBody) -> str:
        """Return the advice, which for a refused key names its variable, and for a refused API the other one."""
        if found := next((advice for words, advice in self.advised.items() if words in said.text), ""):
            return found
        return f"check the key (api_key=, or {self._key_variable})" if status == 401 else super().advice(status, said)

    def status(self, status: int, headers: Mapping[str, str], body: object) -> ProviderError:
        """Return the error for an HTTP error answer: `FailedGeneration` if the server could not read its model."""
        return self._failed_generation(body, status) or super().status(status, headers, body)

    def in_stream(self, body: object) -> ProviderError:
        """Return the error that the server reports inside a stream, with the same exception as for `status`."""
        return self._failed_generation(body, None) or super().in_stream(body)

    def _failed_generation(self, body: object, status: int | None) -> FailedGeneration | None:
        said = read_body(body, self.clean)
        if CODES.isdisjoint(said.codes):
            return None
        text = self.clean(f"{self.vendor} could not read what its model wrote: {said.text or 'it gave no reason'}")
        generation = said.fields.get("failed_generation")
        return FailedGeneration(text, vendor=self.vendor, status=status, codes=said.codes, generation=generation)


class ResponsesErrors(OpenAIErrors):
    """A maker of the errors of a provider over the Responses API."""

    hints: ClassVar[Mapping[int, str]] = {
        **OpenAIErrors.hints,
        404: "check the model's name, base_url=, and that the server has the Responses API (others need api='chat')",
    }
    advised: ClassVar[Mapping[str, str]] = {
        "not supported with the Responses API": "ask by chat completions: OpenAIProvider(..., api='chat')",
        "Encrypted content is not supported": "it does not reason: OpenAIProvider(..., encrypted_reasoning=False)",
    }
