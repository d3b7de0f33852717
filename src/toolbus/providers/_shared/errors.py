"""The translation of exceptions of SDKs and HTTP libraries, and of servers' error answers, to toolbus's errors.

The module knows HTTP statuses, headers and the common shapes of error bodies. The subclass of a vendor adds its own
SDK's exceptions, codes and hints. Keys are never shown: every text that leaves this module has them replaced.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, ClassVar, cast

from ...core.arguments import depth, encodable
from ...core.plain_text import one_line
from ...errors import (
    ContentFiltered,
    ContextOverflow,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    ReplyTooLarge,
)
from ...schemas import as_object, as_objects
from .wire_text import dumped, loads

# And all 5xx, as in the vendors' own SDKs. 498 is Groq's "capacity exceeded", and 499 Google's "cancelled".
_RETRYABLE = frozenset({408, 409, 425, 429, 498, 499})
_MIN_KEY_CHARS = 8  # shorter ones are placeholders for servers without keys, such as "none", and occur in any text
_PHRASES = {529: "Overloaded"}  # Anthropic's own status
_MAX_MESSAGE_CHARS = 1000  # characters of a server's message; some servers answer with a whole stack trace
_MAX_READ_CHARS = 10_000  # characters of a body that are looked at for that message
_STATUS = re.compile(r"[45]\d\d", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s", re.ASCII)
# OpenAI and Groq write this also in streams, which have no headers: "try again in 7m12.5s", "in 850ms".
_TRY_AGAIN = re.compile(
    r"try again in (?:(\d{1,4})h)?(?:(\d{1,4})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?) ?(ms|s))?", re.IGNORECASE | re.ASCII
)
# The words of Anthropic, xAI, DeepSeek and OpenRouter, whose codes do not show this.
_FILTERED = re.compile(
    r"blocked by content filtering policy|content violates usage guidelines|content exists risk|your input was flagged",
    re.IGNORECASE,
)
# llama.cpp and Ollama report with status 500 that a model cannot read a kind of input.
_UNREADABLE = re.compile(
    r"(?:image|audio|video) input is not supported|unsupported content part type|missing data required for image input",
    re.IGNORECASE,
)
_MAX_DEPTH = 100  # levels of an error body that are shown; far beyond those of any real one
_OVERFLOW_STATUSES = frozenset({400, 413, 422, 500})  # the statuses for which wording about the context length counts


@dataclass(slots=True, frozen=True)
class ErrorBody:
    """The contents of a server's error body."""

    text: str
    codes: tuple[str, ...]
    fields: Mapping[str, Any]


class ErrorTranslator:
    """A maker of the errors of one provider. `where` is the provider's base URL for people, without credentials.

    A vendor's subclass overrides the class variables, and `translate` for an SDK unlike those of OpenAI and Anthropic.
    """

    sdk_error: ClassVar[str] = ""
    """The name of the class from which all exceptions of the SDK are derived."""
    hints: ClassVar[Mapping[int, str]] = {}
    """Advice for the user, by status."""
    permanent_codes: ClassVar[frozenset[str]] = frozenset()
    """The codes of errors with a retryable status, such as 429, that no retry can solve."""
    filtered: ClassVar[frozenset[str]] = frozenset()
    """The codes of requests and replies that the provider withholds because of their content."""
    statuses: ClassVar[Mapping[str, int]] = {}
    """The HTTP status that a code stands for, for errors inside a stream that began well."""
    request_id_header: ClassVar[str] = "x-request-id"
    other_service: ClassVar[str] = "which is not a reply of a model; check base_url="
    """The end of the message for an answer that does not come from a server of this kind."""

    def __init__(self, *, vendor: str, where: str, hint: str) -> None:
        self.vendor = vendor
        self.where = where
        self.hint = hint
        # Keys from a callable change, and errors may still quote earlier ones.
        self._secrets: deque[str] = deque(maxlen=16)

    def keep_secret(self, text: str) -> None:
        """Remove `text` from every message from now on, unless it is too short to be a key."""
        if len(text) >= _MIN_KEY_CHARS and text not in self._secrets:
            self._secrets.append(text)

    def clean(self, text: str) -> str:
        """Return `text` with all keys replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def leaks_secret(self, exc: BaseException) -> bool:
        """Return whether a traceback of `exc` and its causes would show a key."""
        return any(self.clean(text) != text for each in chain_of(exc) for text in (str(each), repr(each)))

    # -------------------------------------------------------------------------------------- from exceptions

    def translate(self, exc: Exception) -> ProviderError | None:
        """Return the error for an exception of the SDK or its HTTP library; None for any other exception."""
        kinds = {base.__name__ for base in type(exc).__mro__}
        if "APIStatusError" in kinds:
            refusal: Any = exc
            return self.status(refusal.status_code, refusal.response.headers, refusal.body)
        if found := self.connection(exc):
            return found
        return self.rejected(exc) if self.sdk_error in kinds else None

    def connection(self, exc: Exception) -> ProviderError | None:
        """Return the error for an exception of the HTTP library, or of the SDK for it; None for any other exception.

        The names of the exception classes decide, so that httpx2, the older httpx, which SDKs still accept, and the
        SDKs' own wrappers of both are understood without importing any of them.
        """
        names = {base.__name__ for each in chain_of(exc) for base in type(each).__mro__}
        if names & {"TimeoutException", "APITimeoutError"}:
            what = "no connection within the time limit" if "ConnectTimeout" in names else "no answer in time"
            return ProviderTimeout(f"{self.vendor} at {self.where}: {what}", vendor=self.vendor, retryable=True)
        if names & {"HTTPError", "APIConnectionError"}:
            return self._broken(exc, reached="ConnectError" not in names)
        return None

    def _broken(self, exc: Exception, *, reached: bool) -> ProviderUnavailable:
        reason = _reason(exc)
        if reached:
            text = f"{self.vendor} at {self.where} broke the connection before the reply was whole ({reason})"
        else:
            text = f"could not reach {self.vendor} at {self.where} ({reason}): {self.hint}"
        return ProviderUnavailable(self.clean(text), vendor=self.vendor, retryable=True)

    # ------------------------------------------------------------------------------------ from servers' answers

    def advice(self, status: int, said: ErrorBody) -> str:  # noqa: ARG002 -- for the subclasses
        """Return the advice for the user at a status, or for what the server said; mostly empty."""
        return self.hints.get(status, "")

    def status(self, status: int, headers: Mapping[str, str], body: object) -> ProviderError:
        """Return the error for an HTTP error answer, with the server's own message."""
        said = read_body(body, self.clean)
        try:
            name = _PHRASES.get(status) or HTTPStatus(status).phrase
        except ValueError:
            name = "unknown status"
        text = f"{self.vendor} answered {status} ({name})" + (f": {said.text}" if said.text else "")
        request_id = headers.get(self.request_id_header)
        tail = f" [request {request_id}]" if request_id else ""
        if found := self._filtered(text + tail, said, status) or self._overflow(text + tail, said, status):
            return found
        if hint := self.advice(status, said):
            text += f"; {hint}"
        asked = retry_after(headers)
        if asked:
            text += f"; it asks to wait {asked:g} s"
        passing = (status in _RETRYABLE or status >= 500) and not _UNREADABLE.search(said.text)
        retryable = passing and self.permanent_codes.isdisjoint(said.codes)
        retryable = {"true": True, "false": False}.get(headers.get("x-should-retry", ""), retryable)
        kind = ProviderUnavailable if retryable or passing else ProviderRejected
        return kind(
            self.clean(text + tail),
            vendor=self.vendor,
            status=status,
            retryable=retryable,
            retry_after_seconds=_retry_delay(said) if asked is None else asked,
        )

    def in_stream(self, body: object) -> ProviderError:
        """Return the error that the server reports inside a stream that began well."""
        said = read_body(body, self.clean)
        for code in said.codes:
            if _STATUS.fullmatch(code):  # vLLM and OpenRouter send the status as the code
                return self.status(int(code), {}, body)
            if status := self.statuses.get(code):
                return self.status(status, {}, body)
        text = f"{self.vendor} broke its reply off: {said.text or 'it gave no reason'}"
        if found := self._filtered(text, said, None) or self._overflow(text, said, None):
            return found
        is_permanent = any(code in self.permanent_codes or "invalid_request" in code for code in said.codes)
        if is_permanent or _UNREADABLE.search(said.text):
            return ProviderRejected(self.clean(text), vendor=self.vendor)
        return ProviderUnavailable(
            self.clean(text), vendor=self.vendor, retryable=True, retry_after_seconds=_retry_delay(said)
        )

    def _filtered(self, text: str, said: ErrorBody, status: int | None) -> ContentFiltered | None:
        found = self.filtered.intersection(said.codes) or _FILTERED.search(said.text)
        return ContentFiltered(self.clean(text), vendor=self.vendor, status=status) if found else None

    def _overflow(self, text: str, said: ErrorBody, status: int | None) -> ContextOverflow | None:
        by_words = status is None or status in _OVERFLOW_STATUSES
        found, limit_tokens = overflow(said.text, frozenset(said.codes), said.fields, by_words=by_words)
        return self.context_overflow(text, status, limit_tokens) if found else None

    # -------------------------------------------------------------------------------------------- by kind

    def context_overflow(
        self, text: str, status: int | None = None, limit_tokens: int | None = None
    ) -> ContextOverflow:
        """Return the error for a request that does not fit the model's context window."""
        return ContextOverflow(self.clean(text), vendor=self.vendor, status=status, limit_tokens=limit_tokens)

    def rejected(self, problem: object) -> ProviderRejected:
        """Return the error for a request that this provider will never accept as it is."""
        return ProviderRejected(self.clean(f"{self.vendor} at {self.where}: {problem}"), vendor=self.vendor)

    def no_function(self, what: str) -> ProviderRejected:
        """Return the error for a reply with a call of something other than a function, which toolbus cannot run."""
        return self.rejected(
            f"the reply has {what}, and toolbus runs functions only: offer no such tool (see extra_body)"
        )

    def unavailable(self, problem: str) -> ProviderUnavailable:
        """Return the error for a reply that broke the protocol. Another attempt may succeed."""
        return ProviderUnavailable(
            self.clean(f"{self.vendor} at {self.where} {problem}"), vendor=self.vendor, retryable=True
        )

    def no_reply(self, what: str, answer: Mapping[str, Any]) -> ProviderError:
        """Return the error for an answer of status 200 that is a gateway's own message, and not a reply."""
        said = ErrorBody(self.clean(encodable(_shown(answer)))[:_MAX_MESSAGE_CHARS], (), answer)
        problem = f"answered with no {what}: {said.text}"
        return self._overflow(f"{self.vendor} {problem}", said, None) or self.unavailable(problem)

    def wrong_service(self, content_type: str) -> ProviderRejected:
        """Return the error for an answer that does not come from a server of this kind."""
        return ProviderRejected(
            f"{self.vendor} at {self.where} answered with {content_type}, {self.other_service}", vendor=self.vendor
        )

    def too_large(self, limit_bytes: int) -> ReplyTooLarge:
        """Return the error for a reply that exceeded the size at which reading stops."""
        return ReplyTooLarge(
            f"{self.vendor}'s reply passed {limit_bytes} bytes, where reading stops; "
            "bound it with ModelSettings(max_output_tokens=...)",
            vendor=self.vendor,
        )

    def too_many(self, limit: int, what: str) -> ReplyTooLarge:
        """Return the error for a reply that exceeded the number of calls or other parts at which reading stops."""
        return ReplyTooLarge(f"{self.vendor}'s reply has more than {limit} {what}: reading stopped", vendor=self.vendor)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks to wait, from `retry-after-ms` or `Retry-After` (seconds or a date).

    They are never negative. A date is compared with the answer's own `Date`, so a wrong local clock does no harm. None
    for a missing or malformed header.
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


def _retry_delay(said: ErrorBody) -> float | None:
    """Return the seconds to wait from the details of Google's errors, or from the words of an error."""
    for each in as_objects(said.fields.get("details")):
        delay = each.get("retryDelay")
        if isinstance(delay, str) and (found := _DURATION.fullmatch(delay)):
            return float(found[1])
    found = _TRY_AGAIN.search(said.text)
    if found is None or not any(found.groups()):
        return None
    hours, minutes, number, unit = found.groups("0")
    return int(hours) * 3600 + int(minutes) * 60 + float(number) / (1000 if unit.lower() == "ms" else 1)


def _date(text: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def read_body(body: object, clean: Callable[[str], str] = str) -> ErrorBody:
    """Return the server's message, its codes and the fields around them, from any of the common shapes of a body.

    `clean` replaces keys in the message before it is cut: the beginning of a key could not be found any more.
    """
    fields = _fields_of(body)
    # A loop, since a server may nest errors deeper than Python calls functions.
    while isinstance(inner := fields.get("error") or _quoted_in(fields), Mapping | str) and inner:
        body = cast("object", inner)
        fields = _fields_of(body)
    given = (fields.get("code"), fields.get("type"), as_object(fields.get("details")).get("error_code"))
    codes = tuple(str(code) for code in given if isinstance(code, str | int) and code)
    if fields:
        words = (fields.get(name) for name in ("message", "detail", "error_message"))  # the last is DeepInfra's
        body = next(filter(None, words), fields if any(fields.values()) else "")
        if isinstance(body, Mapping | Sequence) and not isinstance(body, str):
            body = _shown(cast("object", body))
        raw = as_object(fields.get("metadata")).get("raw")  # the answer that OpenRouter got from the model's server
        if isinstance(raw, Mapping):
            raw = _shown(cast("object", raw))
        if isinstance(body, str) and isinstance(raw, str) and raw:
            body = f"{body}: {raw}"
    text = one_line(clean(encodable(body[:_MAX_READ_CHARS]))) if isinstance(body, str) else ""
    if text.startswith("<"):  # the HTML page of a proxy is meant for browsers
        text = ""
    return ErrorBody(text[:_MAX_MESSAGE_CHARS], codes, fields)


def _shown(value: object) -> str:
    return dumped(value) if depth(value) <= _MAX_DEPTH else ""


def _fields_of(body: object) -> Mapping[str, Any]:
    if isinstance(body, list) and body:  # Gemini
        return as_object(cast("list[object]", body)[0])
    if isinstance(body, str):
        event = body.startswith("data:")  # LiteLLM refuses a stream in its first event
        text = body[5:_MAX_READ_CHARS].partition("\n")[0] if event else body[:_MAX_READ_CHARS]
        with contextlib.suppress(ValueError, RecursionError):
            return as_object(loads(text.encode(errors="replace")))
    return as_object(cast("object", body))


def _quoted_in(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer of another server that a message quotes, as Ollama quotes its runner's; empty without one."""
    message = fields.get("message")
    return _fields_of(message) if isinstance(message, str) else {}


def chain_of(exc: BaseException | None) -> Iterator[BaseException]:
    """Iterate over an exception and those that it was raised from, the outermost first."""
    while exc is not None:
        yield exc
        # Trio reports all its attempts to connect as a group, of which the first is enough.
        inner: Sequence[BaseException] = getattr(exc, "exceptions", ())
        exc = inner[0] if inner else exc.__cause__ or exc.__context__


def _reason(exc: BaseException) -> str:
    """Return the most useful message in a chain of exceptions: the operating system's, or the innermost of all."""
    found = ""
    for each in chain_of(exc):
        words = str(each)
        if isinstance(each, OSError) and each.errno and not isinstance(each, ssl.SSLError):
            # asyncio puts its own text into strerror; errors of name resolution have negative numbers. Those of TLS
            # have numbers of OpenSSL, of which 1 would read "Operation not permitted".
            words = os.strerror(each.errno) if each.errno > 0 else each.strerror
        found = words or found
    return found or type(exc).__name__


_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "request_too_large",
        "model_context_window_exceeded",
    }
)
_WORDS = tuple(
    re.compile(pattern.replace("LIMIT", r"(?P<limit>\d[\d,]*)"), re.IGNORECASE)
    for pattern in (
        r"maximum context length (?:is |of |\()LIMIT",
        r"context length is only LIMIT tokens",
        r"prompt is too long(?:: \d+ tokens > LIMIT)?",
        r"exceed context limit: \d+ \+ \d+ > LIMIT",
        r"exceeds the available context size(?: \(LIMIT tokens\))?",
        r"exceeds? (?:the )?context window(?: of LIMIT| of this model)",
        r"longer than the maximum model length of LIMIT",
        r"maximum prompt length is LIMIT",
        r"input token count (?:\(?\d+\)? )?exceeds the maximum number of tokens(?: allowed \(?LIMIT)?",
        r"input token count is \d+ but model only supports up to LIMIT",
        r"input is too long for requested model",
        r"loaded with context length of only LIMIT",
        r"exceed(?:s|ed) (?:(?:the|max) )?context length",
        r"longer than the context length currently available",
        # Mistral, LM Studio, llama.cpp while it writes, SGLang, Together, TensorRT-LLM; SiliconFlow and TabbyAPI.
        r"too large for model with LIMIT maximum context length",
        r"initial prompt is greater than the context length(?: \(n_keep: ?\d+ ?>= ?n_ctx: ?LIMIT)?",
        r"cannot truncate prompt with n_keep \(\d+\) >= n_ctx(?: \(LIMIT)?",
        r"reached context length of LIMIT tokens",
        r"context size has been exceeded",
        r"longer than the model's context length(?: \(LIMIT)?",
        r"(?:input|prompt) length \(?\d+\D{0,10}exceeds (?:the )?maximum (?:\w+ ){0,2}length (?:of )?\(?LIMIT",
        r"max_tokens must be at least 1, got -",  # vLLM, of what a prompt that is too long leaves for the reply
        r"(?:less|greater) than max_seq_len \(?LIMIT",
        # OpenAI and Cerebras, beside the code; Copilot, TGI, Kimi, MiniMax, Qwen, GLM.
        r"tokens exceed the configured limit of LIMIT",
        r"current length is \d+ while limit is LIMIT",
        r"prompt token count of \d+ exceeds the limit of LIMIT",
        r"`inputs` tokens \+ `max_new_tokens` must be <= LIMIT",
        r"exceeded model token limit(?:: LIMIT)?",
        r"context window exceeds limit",
        r"range of input length should be \[\d+, ?LIMIT",
        r"prompt exceeds max length",
        # Cloudflare; GitHub; Groq, with status 413, where the limit is that of a minute.
        r"exceeded this model context window limit \(LIMIT",
        r"request body too large for .{1,100} model\. max size: LIMIT tokens",
        r"request too large for .{1,200}: limit LIMIT, requested",
        r"ContextWindowExceededError",  # LiteLLM, of any model's server
    )
)


def overflow(text: str, codes: frozenset[str], fields: Mapping[str, Any], *, by_words: bool) -> tuple[bool, int | None]:
    """Return whether an error reports an exceeded context window, and the window's limit in tokens.

    The limit stays None where the server does not report it. The wording in `text` counts only with `by_words`, which
    should be false for statuses that no server uses for this error.
    """
    reported = fields.get("n_ctx")
    limit = reported if isinstance(reported, int) and reported > 0 else None
    found = None
    if by_words or codes & _CODES:
        found = next((match for each in _WORDS if (match := each.search(text))), None)
    if found is not None and limit is None:
        digits = found.groupdict().get("limit")
        limit = int(digits.replace(",", "")[:18]) or None if digits else None
    return (True, limit) if found is not None or codes & _CODES else (False, None)
