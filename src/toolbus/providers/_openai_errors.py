"""From what the OpenAI SDK and its HTTP library raise, and what servers say, to toolbus's provider errors.

Knows HTTP statuses, headers and error bodies of OpenAI-compatible servers. Keys never get through: every text that
leaves here has them blotted out.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, cast

import orjson

from ..errors import ProviderError, ProviderRejected, ProviderTimeout, ProviderUnavailable, ReplyTooLarge

__all__ = ["ErrorTranslator", "retry_after"]

_RETRYABLE = frozenset({408, 409, 429})  # and 5xx, as the vendor's own SDK does
_HOPELESS = frozenset({"insufficient_quota", "billing_hard_limit_reached"})  # a 429 that waiting does not mend
_NO_SECRETS = frozenset({"none", "ollama"})  # placeholders that toolbus itself sends to servers without keys
_LONGEST_MESSAGE = 1000  # characters of a server's message; some answer with their whole stack
_HINTS = {
    401: "check the key (api_key=, or OPENAI_API_KEY)",
    403: "check what the key may be used for",
    404: "check the model's name and base_url=",
}


class ErrorTranslator:
    """Makes the errors of one provider. `where` is its base URL for people, without credentials."""

    __slots__ = ("_secrets", "hint", "vendor", "where")

    def __init__(self, *, vendor: str, where: str, hint: str) -> None:
        self.vendor = vendor
        self.where = where
        self.hint = hint
        self._secrets: deque[str] = deque(maxlen=16)  # keys from a callable change; the last ones can still echo

    def keep_secret(self, text: str) -> None:
        """Blot `text` out of every message from now on."""
        if text and text not in _NO_SECRETS and text not in self._secrets:
            self._secrets.append(text)

    def clean(self, text: str) -> str:
        """`text` without keys."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def tells(self, exc: BaseException) -> bool:
        """Whether the chain of `exc` would show a key in a traceback."""
        return any(self.clean(text) != text for each in _chain(exc) for text in (str(each), repr(each)))

    def translate(self, exc: Exception) -> ProviderError | None:
        """The error to raise for what the SDK or its HTTP library raised; None for what is not theirs."""
        import httpx2  # noqa: PLC0415 -- part of the extra
        import openai  # noqa: PLC0415

        if isinstance(exc, openai.APIStatusError):
            return self.status(exc.status_code, exc.response.headers, exc.body)
        names = {base.__name__ for each in _chain(exc) for base in type(each).__mro__}
        if isinstance(exc, openai.APITimeoutError) or "TimeoutException" in names:
            what = "no connection within the time limit" if "ConnectTimeout" in names else "no answer in time"
            return ProviderTimeout(f"{self.vendor} at {self.where}: {what}", vendor=self.vendor, retryable=True)
        # By name too, so that a client of the older httpx, which the SDK still takes, is understood.
        if isinstance(exc, openai.APIConnectionError | httpx2.HTTPError) or "HTTPError" in names:
            return self._broken(exc, reached="ConnectError" not in names)
        if isinstance(exc, openai.OpenAIError):
            return ProviderRejected(self.clean(f"{self.vendor} at {self.where}: {exc}"), vendor=self.vendor)
        return None

    def _broken(self, exc: Exception, *, reached: bool) -> ProviderUnavailable:
        reason = _reason(exc)
        if reached:
            text = f"{self.vendor} at {self.where} broke the connection before the reply was whole ({reason})"
        else:
            text = f"could not reach {self.vendor} at {self.where} ({reason}): {self.hint}"
        return ProviderUnavailable(self.clean(text), vendor=self.vendor, retryable=True)

    def status(self, status: int, headers: Mapping[str, str], body: object) -> ProviderError:
        """An HTTP error answer, with the server's own words."""
        said, code = _said(body)
        try:
            name = HTTPStatus(status).phrase
        except ValueError:
            name = "unknown status"
        text = f"{self.vendor} answered {status} ({name})" + (f": {said}" if said else "")
        if hint := _HINTS.get(status):
            text += f"; {hint}"
        if request_id := headers.get("x-request-id"):
            text += f" [request {request_id}]"
        retryable = (status in _RETRYABLE or status >= 500) and code not in _HOPELESS
        retryable = {"true": True, "false": False}.get(headers.get("x-should-retry", ""), retryable)
        kind = ProviderUnavailable if retryable or status in _RETRYABLE or status >= 500 else ProviderRejected
        return kind(
            self.clean(text),
            vendor=self.vendor,
            status=status,
            retryable=retryable,
            retry_after_seconds=retry_after(headers),
        )

    def in_stream(self, body: object) -> ProviderError:
        """An error that the server reports inside a stream that began well."""
        said, code = _said(body)
        if code.isdecimal() and 400 <= int(code) < 600:  # vLLM and OpenRouter put the status there
            return self.status(int(code), {}, body)
        text = self.clean(f"{self.vendor} broke its reply off: {said or 'it gave no reason'}")
        if code in _HOPELESS or "invalid_request" in code:
            return ProviderRejected(text, vendor=self.vendor)
        return ProviderUnavailable(text, vendor=self.vendor, retryable=True)

    def unavailable(self, problem: str) -> ProviderUnavailable:
        """A reply that broke the protocol and may go well the next time."""
        return ProviderUnavailable(
            self.clean(f"{self.vendor} at {self.where} {problem}"), vendor=self.vendor, retryable=True
        )

    def no_such_service(self, content_type: str) -> ProviderRejected:
        """An answer that no chat-completions server gives."""
        return ProviderRejected(
            f"{self.vendor} at {self.where} answered with {content_type}, which is no chat completion; "
            "check base_url=, which usually ends in /v1",
            vendor=self.vendor,
        )

    def too_large(self, limit_bytes: int) -> ReplyTooLarge:
        """A reply that passed the size at which reading stops."""
        return ReplyTooLarge(
            f"{self.vendor}'s reply passed {limit_bytes} bytes, where reading stops; "
            "bound it with ModelSettings(max_output_tokens=...)",
            vendor=self.vendor,
        )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, from `retry-after-ms` or `Retry-After` (seconds or a date); not negative.

    A date is measured against the answer's own `Date`, so a wrong clock here does no harm. None for none or nonsense.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    until, now = _date(headers.get("retry-after")), _date(headers.get("date"))
    if until is None:
        return None
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


def _date(text: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _said(body: object) -> tuple[str, str]:
    """The server's message and its error code, from the shapes of body that are about."""
    code = ""
    if isinstance(body, Mapping):
        fields = cast("Mapping[str, Any]", body)
        inner = fields.get("error")
        if isinstance(inner, Mapping | str) and inner:
            return _said(cast("object", inner))
        code = str(fields.get("code") or fields.get("type") or "")
        body = fields.get("message") or fields.get("detail") or ""
        if isinstance(body, Mapping | Sequence) and not isinstance(body, str):
            body = orjson.dumps(body, default=str).decode()
    text = body.strip() if isinstance(body, str) else ""
    if text.startswith("<"):  # a proxy's page; its words are for browsers
        text = ""
    return text[:_LONGEST_MESSAGE], code


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        # Trio reports all its attempts to connect as a group; one tells as much as all.
        inner: Sequence[BaseException] = getattr(exc, "exceptions", ())
        exc = inner[0] if inner else exc.__cause__ or exc.__context__


def _reason(exc: BaseException) -> str:
    """The plainest words in the chain: the operating system's, else the innermost that are not empty."""
    found = ""
    for each in _chain(exc):
        words = str(each)
        if isinstance(each, OSError) and each.errno:
            # asyncio puts words of its own into strerror; errors of name resolution have negative numbers.
            words = os.strerror(each.errno) if each.errno > 0 else each.strerror
        found = words or found
    return found or type(exc).__name__
