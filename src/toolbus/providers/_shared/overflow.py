"""Recognition of errors that report an exceeded context window, with the size of the window.

The module knows only codes and wordings of servers; a wording is listed only if no other error has it. Sources: OpenAI
and Groq (code), llama.cpp (#15780, code with `n_ctx`), Anthropic (both wordings and 413), vLLM (#20409, #12600),
OpenRouter (its own wording, or the upstream's in `metadata.raw`), xAI, Gemini, Bedrock, LM Studio (#546), Ollama (its
older runners, its cloud, and llm/llama_server.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["overflow"]

_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "request_too_large",
        "model_context_window_exceeded",
    }
)
_WORDS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"maximum context length (?:is|of) (?P<limit>\d+)",
        r"context length is only (?P<limit>\d+) tokens",
        r"prompt is too long(?:: \d+ tokens > (?P<limit>\d+))?",
        r"exceed context limit: \d+ \+ \d+ > (?P<limit>\d+)",
        r"exceeds the available context size(?: \((?P<limit>\d+) tokens\))?",
        r"exceeds? (?:the )?context window(?: of (?P<limit>\d+)| of this model)",
        r"longer than the maximum model length of (?P<limit>\d+)",
        r"maximum prompt length is (?P<limit>\d+)",
        r"input token count \(?\d+\)? exceeds the maximum number of tokens allowed \(?(?P<limit>\d+)",
        r"input is too long for requested model",
        r"loaded with context length of only (?P<limit>\d+)",
        r"exceed(?:s|ed) (?:the|max) context length",
        r"longer than the context length currently available",
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
        limit = int(digits[:18]) or None if digits else None
    return (True, limit) if found is not None or codes & _CODES else (False, None)
