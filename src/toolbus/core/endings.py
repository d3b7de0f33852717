"""The sentences for people on how a request ended, one for each limit and each error code. Pure.

A sentence names no option, code, class or id: it is for whoever asked the question. Developers have `reason` and
`error`, and the log. Two kinds of texts are shown as they are, on one line, because they were written for people: the
model's own reason to give up, and that of a guardrail to deny a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..events import RequestCompleted, RequestEnding, RequestFailed
from .plain_text import clip, one_line

__all__ = ["CONTINUES", "explain"]

CONTINUES = "I stopped here because the work continues elsewhere."
"""The sentence for a request that this process has left, and that another one can continue."""

_QUOTED_CHARS = 300
_INTERNAL = "I could not finish because of an internal error."
_SET_UP = "I could not finish because I am not set up correctly."
_TOOL_FAILED = "I stopped because a tool failed."
_NO_MEMORY = "I could not finish because my storage cannot be used at the moment."
_BAD_MEMORY = "I could not finish because my stored data can no longer be read."
_TOO_LONG = "I stopped because this has become too long."
_SENTENCES: Mapping[str, str] = {
    # The limits, by their names; {n} is the value, and {s} the ending of a plural.
    "max_rounds": "I stopped after {n} step{s} without finishing.",
    "max_tool_calls": "I stopped after using tools {n} time{s} without finishing.",
    "max_consecutive_errors": "I stopped because my tools failed {n} time{s} in a row.",
    "max_repeats": "I stopped because I repeated the same step again and again.",
    "timeout_seconds": "I stopped because it took longer than {n} second{s}.",
    "max_input_tokens": "I stopped because I have read as much as I may for one question.",
    "max_output_tokens": "I stopped because I have written as much as I may for one question.",
    "max_facts": _TOO_LONG,
    "max_journal_bytes": _TOO_LONG,
    "max_cost": "I stopped because I have spent as much as I may on one question.",
    "budget.max_cost": "I stopped because the budget is used up.",
    "budget.max_tokens": "I stopped because the budget is used up.",
    "on_failure": _TOOL_FAILED,
    "stop_on": _TOOL_FAILED,
    # The codes of errors. Those that are not here mean an internal error.
    "configuration_error": _SET_UP,
    "missing_extra": _SET_UP,
    "native_output_unsupported": _SET_UP,
    "provider_error": "I could not finish because the language model failed.",
    "provider_rejected": "I could not finish because the language model did not accept the request.",
    "provider_unavailable": "I could not finish because the language model cannot be reached at the moment.",
    "provider_timeout": "I could not finish because the language model did not answer in time.",
    "empty_reply": "I could not finish because the language model gave no answer.",
    "reply_too_large": "I could not finish because the language model's answer was too long.",
    "context_overflow": "I could not finish because this is too long for the language model.",
    "content_filtered": "I could not finish because the language model refused to answer.",
    "invalid_output": "I could not finish because the language model's answer did not have the right form.",
    "conversation_busy": "I am still busy with your last message.",
    "turn_lost": "I did not begin because another message came first, so please ask me again.",
    "store_error": _NO_MEMORY,
    "store_unavailable": _NO_MEMORY,
    "store_damaged": _BAD_MEMORY,
    "unsupported_store_format": _BAD_MEMORY,
    "lease_lost": CONTINUES,
}


def explain(ending: RequestEnding) -> str:
    """Return one sentence for people on why a request has no whole answer; "" for one that was completed.

    Example:
        from toolbus.core.endings import explain
        from toolbus.events import RequestCompleted, RequestFailed

        print(explain(RequestCompleted(text="Done.")) == "")  # True
        print(explain(RequestFailed(reason="provider_unavailable", error="503")) != "")  # True
    """
    if isinstance(ending, RequestCompleted):
        if ending.outcome == "completed":
            return ""
        if ending.limit:
            value = ending.reason.partition("=")[2]
            return _SENTENCES.get(ending.limit, "I stopped.").format(n=value, s="" if value == "1" else "s")
        return _with_words("I could not finish", ending.reason)
    if isinstance(ending, RequestFailed):
        if ending.reason == "denied":
            return _with_words("This is not allowed", ending.error)
        return _SENTENCES.get(ending.reason, _INTERNAL)
    return _with_words("The request was cancelled", ending.reason)


def _with_words(sentence: str, words: str) -> str:
    words = clip(one_line(words[: 4 * _QUOTED_CHARS]), _QUOTED_CHARS).rstrip(".")
    return f"{sentence}: {words}." if words else f"{sentence}."
