"""What the OpenAI SDK raises, and what OpenAI-compatible servers call their errors. The rest is in `_errors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ..errors import ProviderError
from ._errors import ErrorTranslator

__all__ = ["OpenAIErrors"]


class OpenAIErrors(ErrorTranslator):
    """Makes the errors of a provider over the `openai` SDK."""

    __slots__ = ()

    hints: ClassVar[Mapping[int, str]] = {
        401: "check the key (api_key=, or OPENAI_API_KEY)",
        403: "check what the key may be used for",
        404: "check the model's name and base_url=",
    }
    hopeless: ClassVar[frozenset[str]] = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
    other_service: ClassVar[str] = "which is no chat completion; check base_url=, which usually ends in /v1"

    def translate(self, exc: Exception) -> ProviderError | None:
        """The error to raise for what the SDK or its HTTP library raised; None for what is not theirs."""
        import openai  # noqa: PLC0415 -- part of the extra

        if isinstance(exc, openai.APIStatusError):
            return self.status(exc.status_code, exc.response.headers, exc.body)
        if found := self.connection(exc):
            return found
        return self.rejected(exc) if isinstance(exc, openai.OpenAIError) else None
