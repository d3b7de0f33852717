"""The tool: from the model's arguments to a query, and from the hits to a result within the token budget."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, cast

import anyio.to_thread
from pydantic import Field

from ...core.tokens import estimate_text
from ...errors import ToolError
from ...tools import Tool, ToolContext
from ._index import CodeHit, Retriever

# The tokens of a function of average length with its docstring.
_TOKENS_PER_HIT = 200
_MIN_HITS, _MAX_HITS = 5, 20
# The fewest tokens of a cut hit that are worth returning.
_WORTH_TOKENS = 40
# More characters per token than any text has: a huge text is cut by it before its tokens are counted.
_CHARS_PER_TOKEN = 8
_MAX_QUERY_CHARS = 4_000
_CUT = "\n[cut]"
_NAMES_CHARS = 16_384
# Chunks have at most 6,000 characters; in JSON, escaped quotes take twice as much.
_MAX_RESULT_CHARS = 2 * _MAX_HITS * 6_000 + _NAMES_CHARS


def code_context_tool(retriever: Retriever | None = None, *, timeout_seconds: float | None = None) -> Tool:
    """Return the tool `request_code_context(token_budget, hint)`, which searches with `retriever`.

    `retriever` is a `CodeIndex`, or an index of the application's own. The query is the hint, or the newest user
    message if the hint is empty. The tool asks for one hit for each 200 tokens of the budget, 5 to 20 of them. The
    result is {"ok": true, "query", "top_k", "results": [{"id", "score", "text"}]}, best first. The texts have about
    `token_budget` tokens in all: a text that does not fit is cut at a line, and those after it are left out, with their
    number as "omitted". Without a retriever each call fails and says so.

    `timeout_seconds` is the call's deadline instead of the request's: the first search of a large tree takes half a
    minute for each 60,000 functions. A search after one that was stopped continues the index where that one ended.
    """

    async def request_code_context(
        token_budget: Annotated[int, Field(ge=1, description="How many tokens of code to return at most, about.")],
        hint: Annotated[
            str, Field(description="What to look for: words, names, or a question. Empty: what the user has asked.")
        ] = "",
        context: ToolContext[Any] | None = None,
    ) -> dict[str, Any]:
        """Find the pieces of the source code that fit a hint best: functions, classes, sections, best first.

        The id of a result is path#start:end, with lines from 1. The score is larger for what fits better.
        """
        if retriever is None:
            raise ToolError("there is no retriever: this application has not given an index of its sources")
        query = (hint.strip() or (context.last_user_message.strip() if context is not None else ""))[:_MAX_QUERY_CHARS]
        if not query:
            raise ToolError("there is nothing to look for: no hint was given, and there is no user message")
        top_k = min(max(token_budget // _TOKENS_PER_HIT, _MIN_HITS), _MAX_HITS)
        hits = await _searched(retriever, query, top_k)
        results = _fitted(hits[:top_k], token_budget)
        found: dict[str, Any] = {"ok": True, "query": query, "top_k": top_k, "results": results}
        if len(results) < min(len(hits), top_k):
            found["omitted"] = min(len(hits), top_k) - len(results)
        return found

    return Tool(
        handler=request_code_context,
        timeout_seconds=timeout_seconds,
        idempotent=True,
        max_result_chars=_MAX_RESULT_CHARS,
        status="Looking for code",
    )


async def _searched(retriever: Retriever, query: str, top_k: int) -> Sequence[CodeHit]:
    found: Any
    if inspect.iscoroutinefunction(retriever.hybrid_search):
        found = retriever.hybrid_search(query, top_k)
    else:
        found = await anyio.to_thread.run_sync(retriever.hybrid_search, query, top_k)
    if inspect.isawaitable(found):
        found = await cast("Awaitable[Sequence[CodeHit]]", found)
    return cast("Sequence[CodeHit]", found)


def _fitted(hits: Sequence[CodeHit], budget: int) -> list[dict[str, Any]]:
    """Return as many of the hits, in order, as fit into the budget; the last one may be cut."""
    results: list[dict[str, Any]] = []
    left = budget
    for hit in hits:
        text, tokens = _cut(hit.text, left)
        if text != hit.text and results and left < _WORTH_TOKENS:
            break
        results.append({"id": hit.id, "score": round(hit.score, 4), "text": text})
        left -= tokens
        if text != hit.text:
            break
    return results


def _cut(text: str, budget: int) -> tuple[str, int]:
    """Return `text`, or its first lines that have about `budget` tokens, with the number of tokens."""
    beginning = text[: _CHARS_PER_TOKEN * budget]
    tokens = estimate_text(beginning)
    if beginning == text and tokens <= budget:
        return text, tokens
    kept: list[str] = []
    used = estimate_text(_CUT)
    for line in beginning.split("\n"):
        tokens = estimate_text(f"{line}\n")
        if used + tokens > budget:
            break
        kept.append(line)
        used += tokens
    if not kept:
        # Not even the first line fits.
        kept = [beginning[:budget]]
        used = budget
    return "\n".join(kept) + _CUT, used
