"""The refusals of an Ollama server, with advice. See `_shared.errors` for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ...errors import ProviderError
from .._shared.errors import ErrorTranslator, read_body

# Each entry has a status, a part of the server's message (see server/routes.go and server/images.go of ollama/ollama)
# and the advice.
_REMEDIES = (
    (404, "model", "get it with: ollama pull {model}"),
    (404, "", "check that host= (or OLLAMA_HOST) is that of an Ollama server"),
    (400, "does not support tools", "ask it without tools, or use a model that supports them (see: ollama show MODEL)"),
    (400, "does not support thinking", "leave reasoning_effort= out"),
    (400, "think value", "leave reasoning_effort= out; a model without such levels thinks by default"),
)
# The rest of such a message is the runner's log, which has the errors of other requests too (llm/status.go).
_CRASHED = "an error was encountered while running the model"


class OllamaErrors(ErrorTranslator):
    """A maker of the errors of a provider over the `ollama` SDK."""

    hints: ClassVar[Mapping[int, str]] = {401: "check the key (api_key=, or OLLAMA_API_KEY)"}
    other_service: ClassVar[str] = "which is not a chat; check host= (or OLLAMA_HOST)"

    def __init__(self, *, model: str, where: str, hint: str) -> None:
        super().__init__(vendor="ollama", where=where, hint=hint)
        self._model = model

    def status(self, status: int, headers: Mapping[str, str], body: object) -> ProviderError:
        """Return the error for an HTTP error answer, with the server's own message and advice."""
        body = _without_log(body)
        said = read_body(body, self.clean).text
        remedies = (remedy for code, words, remedy in _REMEDIES if code == status and words in said)
        if remedy := next(remedies, ""):
            remedy = remedy.format(model=self._model)
            body = {"error": f"{said}; {remedy}" if said else remedy}
        return super().status(status, headers, body)

    def in_stream(self, body: object) -> ProviderError:
        """Return the error that the server reports inside a stream that began well."""
        return super().in_stream(_without_log(body))

    def translate(self, exc: Exception) -> ProviderError | None:
        """Return the error for an exception of the SDK or its HTTP library; None for any other exception."""
        import ollama  # noqa: PLC0415 -- part of the extra

        if isinstance(exc, ConnectionError):  # the SDK raises it for a server that it cannot reach
            return self._broken(exc, reached=False)
        if isinstance(exc, ollama.RequestError | ollama.ResponseError):
            return self.rejected(exc)
        return self.connection(exc)


def _without_log(body: object) -> object:
    if read_body(body).text.startswith(_CRASHED):
        return {"error": f"{_CRASHED}; the log of the Ollama server has the reason"}
    return body
