"""What an Ollama server says when it refuses, and what helps. The rest is in `_errors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ...errors import ProviderError
from .._shared.errors import ErrorTranslator
from .._shared.wire_text import as_object

__all__ = ["OllamaErrors"]

# The server's words (server/routes.go and server/images.go of ollama/ollama) and what to do about them.
_REMEDIES = (
    (404, "model", "get it with: ollama pull {model}"),
    (404, "", "check that host= (or OLLAMA_HOST) is an Ollama server's"),
    (400, "does not support tools", "ask it without tools, or take a model that has them (ollama show MODEL says)"),
    (400, "does not support thinking", "leave reasoning_effort= out"),
)


class OllamaErrors(ErrorTranslator):
    """Makes the errors of a provider over the `ollama` SDK."""

    __slots__ = ("_model",)

    hints: ClassVar[Mapping[int, str]] = {401: "check the key (api_key=, or OLLAMA_API_KEY)"}
    other_service: ClassVar[str] = "which is no chat; check host= (or OLLAMA_HOST)"

    def __init__(self, *, model: str, where: str, hint: str) -> None:
        super().__init__(vendor="ollama", where=where, hint=hint)
        self._model = model

    def status(self, status: int, headers: Mapping[str, str], body: object) -> ProviderError:
        """An HTTP error answer, with the server's own words and what helps."""
        said = as_object(body).get("error") or ""
        remedies = (remedy for code, words, remedy in _REMEDIES if code == status and words in str(said))
        if remedy := next(remedies, ""):
            remedy = remedy.format(model=self._model)
            body = {"error": f"{said}; {remedy}" if said else remedy}
        return super().status(status, headers, body)

    def translate(self, exc: Exception) -> ProviderError | None:
        """The error to raise for what the SDK or its HTTP library raised; None for what is not theirs."""
        import ollama  # noqa: PLC0415 -- part of the extra

        if isinstance(exc, ConnectionError):  # the SDK's own word for a server that it cannot reach
            return self._broken(exc, reached=False)
        if isinstance(exc, ollama.RequestError | ollama.ResponseError):
            return self.rejected(exc)
        return self.connection(exc)
