"""The tool: from what the model asks for to a query, and from hits to what fits into its budget."""

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

__all__ = ["code_context_tool"]

_TOKENS_PER_HIT = 200  # a function of average length with its docstring
_FEWEST, _MOST = 5, 20
_WORTH_TOKENS = 40  # less of a hit than this says nothing
_CHARS_PER_TOKEN = 8  # more than any text has, so that a huge one is cut before it is counted
_MAX_QUERY_CHARS = 4_000
_CUT = "\n[cut]"
_NAMES_CHARS = 16_384
_MAX_RESULT_CHARS = 2 * _MOST * 6_000 + _NAMES_CHARS  # chunks are at most 6,000; as JSON, quotes are twice as long


def code_context_tool(retriever: Retriever | None = None, *, timeout_seconds: float | None = None) -> Tool[..., Any]:
    """`request_code_context(token_budget, hint)` over `retriever`: a `CodeIndex`, or an index of the application's own.

    The hint, or without one the newest user message, is what is looked for; one hit for each 200 tokens of the budget,
    5 to 20 of them. The result is {"ok": true, "query", "top_k", "results": [{"id", "score", "text"}]}, best first. The
    texts are about `token_budget` tokens in all: one that does not fit is cut at a line, and those behind it are left
    out, with their number as "left_out". Without a retriever each call fails and says so.

    `timeout_seconds` is the call's deadline in the place of the request's: the first search of a large tree takes half
    a minute for each 60,000 functions. One that was cut off goes on where it was.
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
        top_k = min(max(token_budget // _TOKENS_PER_HIT, _FEWEST), _MOST)
        hits = await _searched(retriever, query, top_k)
        results = _fitted(hits[:top_k], token_budget)
        found: dict[str, Any] = {"ok": True, "query": query, "top_k": top_k, "results": results}
        if len(results) < min(len(hits), top_k):
            found["left_out"] = min(len(hits), top_k) - len(results)
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
    """As many of the hits, in order, as fit; the last may be cut."""
    results: list[dict[str, Any]] = []
    left = budget
    for hit in hits:
        text, tokens = _cut(hit.text, left)
        if text != hit.text and results and left < _WORTH_TOKENS:
            break
        results.append({"id": hit.id, "score": round(hit.score, 4), "text": text})
        left -= tokens
        if text != hit.text or left <= 0:
            break
    return results


def _cut(text: str, budget: int) -> tuple[str, int]:
    """`text`, or as many of its lines from the beginning as have about `budget` tokens, and how many they have."""
    room = text[: _CHARS_PER_TOKEN * budget]
    tokens = estimate_text(room)
    if room == text and tokens <= budget:
        return text, tokens
    kept: list[str] = []
    used = estimate_text(_CUT)
    for line in room.split("\n"):
        tokens = estimate_text(f"{line}\n")
        if used + tokens > budget:
            break
        kept.append(line)
        used += tokens
    if not kept:  # not even one line
        kept = [room[: max(budget, 1)]]
        used = budget
    return "\n".join(kept) + _CUT, used
