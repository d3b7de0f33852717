"""`request_code_context`: what is looked for, how much comes back, and whose index is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toolbus import Runtime
from toolbus.core.tokens import estimate_text
from toolbus.errors import InvalidArguments, ToolError
from toolbus.messages import UserMessage
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import ToolContext
from toolbus.toolsets.code_context import CodeHit, CodeIndex, Retriever, code_context_tool

FUNCTION = "def remaining_seconds(self):\n" + "    # how long the lease is held still\n" * 12


class Shelf:
    """An application's own index: as many hits as are asked for."""

    def __init__(self, body: str = FUNCTION) -> None:
        self.asked: list[tuple[str, int]] = []
        self._body = body

    async def hybrid_search(self, query: str, top_k: int) -> Sequence[CodeHit]:
        self.asked.append((query, top_k))
        return [CodeHit(f"lease.py#{place}:{place}", self._body, 1.0 / place) for place in range(1, top_k + 1)]


class PlainShelf:
    def hybrid_search(self, query: str, top_k: int) -> Sequence[CodeHit]:
        return [CodeHit("a.py#1:2", f"{query} {top_k}", 0.123456)]


async def ask(retriever: Retriever | None, said: str = "", **arguments: Any) -> dict[str, Any]:
    """Call the tool as a dispatcher does, in a request in which the user has said something."""
    messages = [UserMessage(content=each) for each in ("Before.", said)] if said else []
    tool = code_context_tool(retriever)
    return await tool.prepare(arguments, ToolContext(deps=None, messages=messages))()


@pytest.mark.parametrize(
    ("budget", "top_k"), [(1, 5), (1_000, 5), (1_199, 5), (1_200, 6), (3_999, 19), (4_000, 20), (90_000, 20)]
)
async def test_there_is_one_result_for_each_200_tokens_but_at_least_5_and_at_most_20(budget: int, top_k: int):
    shelf = Shelf("x")
    found = await ask(shelf, token_budget=budget, hint="lease")
    assert shelf.asked == [("lease", top_k)]
    assert (found["ok"], found["query"], found["top_k"]) == (True, "lease", top_k)


async def test_without_a_hint_the_newest_user_message_is_looked_for():
    shelf = Shelf()
    await ask(shelf, "How long is a lease?", token_budget=500)
    await ask(shelf, "How long is a lease?", token_budget=500, hint="  renewal ")
    assert [query for query, _ in shelf.asked] == ["How long is a lease?", "renewal"]


async def test_without_a_hint_and_a_user_message_the_call_says_what_is_missing():
    with pytest.raises(ToolError, match="nothing to look for"):
        await ask(Shelf(), token_budget=500)


async def test_texts_stay_within_the_budget_and_what_is_left_out_is_counted():
    found = await ask(Shelf(), token_budget=300, hint="lease")
    texts = [each["text"] for each in found["results"]]
    assert sum(estimate_text(each) for each in texts) <= 300
    assert texts[0] == FUNCTION
    assert texts[-1] != FUNCTION
    assert texts[-1].endswith("\n[cut]")
    assert FUNCTION.startswith(texts[-1].removesuffix("\n[cut]"))
    assert found["omitted"] == 5 - len(texts) > 0


async def test_nothing_comes_after_a_result_that_was_cut_though_it_would_fit():
    class Mixed(Shelf):
        async def hybrid_search(self, query: str, top_k: int) -> Sequence[CodeHit]:
            return [CodeHit("a.py#1:2", "word " * 60 + "\n" + "word " * 5_000, 1.0), CodeHit("a.py#9:9", "short", 0.5)]

    found = await ask(Mixed(), token_budget=500, hint="lease")
    assert [each["text"] for each in found["results"]] == ["word " * 60 + "\n[cut]"]
    assert found["omitted"] == 1


async def test_a_short_result_is_whole_though_little_is_left():
    class Mixed(Shelf):
        async def hybrid_search(self, query: str, top_k: int) -> Sequence[CodeHit]:
            return [CodeHit("a.py#1:2", "word " * 40, 1.0), CodeHit("a.py#9:9", "short", 0.5)]

    found = await ask(Mixed(), token_budget=estimate_text("word " * 40) + 10, hint="lease")
    assert [each["text"] for each in found["results"]] == ["word " * 40, "short"]


async def test_all_results_are_whole_where_the_budget_has_room():
    found = await ask(Shelf("short"), token_budget=500, hint="lease")
    assert [each["text"] for each in found["results"]] == ["short"] * 5
    assert [each["id"] for each in found["results"]] == [f"lease.py#{place}:{place}" for place in range(1, 6)]
    assert "omitted" not in found


async def test_a_line_that_is_longer_than_the_budget_is_cut_in_it():
    found = await ask(Shelf("word " * 5_000), token_budget=20, hint="lease")
    assert [len(each["text"]) for each in found["results"]] == [20 + len("\n[cut]")]


async def test_a_plain_method_is_a_retriever_too_and_runs_in_a_thread():
    assert isinstance(PlainShelf(), Retriever)
    found = await ask(PlainShelf(), token_budget=500, hint="lease")
    assert found["results"] == [{"id": "a.py#1:2", "score": 0.1235, "text": "lease 5"}]


async def test_a_budget_below_one_is_refused():
    with pytest.raises(InvalidArguments, match="token_budget"):
        await ask(Shelf(), token_budget=0, hint="lease")


async def test_a_missing_retriever_fails_the_call_and_says_so():
    script = ScriptedProvider([calls(("request_code_context", {"token_budget": 500})), text("No code here.")])
    async with Runtime(script, tools=[code_context_tool()]) as runtime:
        result = await runtime.run("How long is a lease?")
    assert result.text == "No code here."
    (call,) = result.tool_calls
    assert (call.ok, call.reason) == (False, "error")
    assert "there is no retriever" in (call.error or "")


async def test_a_request_gets_the_code_that_its_user_message_is_about(tmp_path: Path):
    (tmp_path / "lease.py").write_text('def renew(lease):\n    """Hold a lease for longer."""\n')
    script = ScriptedProvider([calls(("request_code_context", {"token_budget": 500})), text("By renew().")])
    tool = code_context_tool(CodeIndex(tmp_path, cache_dir=tmp_path / "cache", rerank=False))
    async with Runtime(script, tools=[tool]) as runtime:
        result = await runtime.run("How is a lease held for longer?")
    data = result.tool_calls[0].data
    assert data["query"] == "How is a lease held for longer?"
    assert data["results"][0]["id"] == "lease.py#1:2"
    assert data["results"][0]["text"] == 'def renew(lease):\n    """Hold a lease for longer."""'
