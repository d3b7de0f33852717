"""Whether a server's error says that the model's context window was exceeded, and how large it is.

Knows codes and words of servers, and nothing else; a wording is here only if no other error has it. Where they were
seen: OpenAI and Groq (code), llama.cpp (#15780, code with `n_ctx`), Anthropic (both wordings and 413), vLLM (#20409,
#12600), OpenRouter (its own wording, or the upstream's in `metadata.raw`), xAI, Gemini, Bedrock, LM Studio (#546),
Ollama (its older runners, its cloud, and llm/llama_server.go).
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
    """Whether an error with these words, codes and fields is one of the context's length; the limit in tokens.

    The limit is None where the server does not tell. Words count only `by_words`, which should be false for statuses
    that no server gives for it.
    """
    told = fields.get("n_ctx")
    limit = told if isinstance(told, int) and told > 0 else None
    found = None
    if by_words or codes & _CODES:
        found = next((match for each in _WORDS if (match := each.search(text))), None)
    if found is not None and limit is None:
        digits = found.groupdict().get("limit")
        limit = int(digits[:18]) or None if digits else None
    return (True, limit) if found is not None or codes & _CODES else (False, None)
