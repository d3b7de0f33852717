"""The graph assistant: its dialogues as a user reads them, and that its answers come from what the tools return."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graph_assistant import ask, make_runtime
from graph_assistant.__main__ import DIALOGUES, main
from graph_assistant.graph import Graph, cats_and_humans
from graph_assistant.script import play
from graph_assistant.selector import Condition, read_selector
from toolbus.messages import Message, ToolMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.testing import ScriptedProvider, calls, text

README = Path(__file__).parents[2] / "examples" / "graph_assistant" / "README.md"
SAMPLES = """\
Here are 3 sample nodes from your graph:

1. **Whiskers** (cat1) - A tabby cat
2. **Mittens** (cat2) - A persian cat
3. **Shadow** (cat3) - A siamese cat

Each node has properties: name, type, and breed."""
NO_DOGS = """\
I couldn't find any nodes with type 'dog' in your graph.
The available node types are: cat, human. Would you like me to style one of those instead?"""


def reported(messages: list[Message]) -> list[dict[str, Any]]:
    """The results that a model was sent."""
    return [json.loads(each.content) for each in messages if isinstance(each, ToolMessage)]


def stages(shown: list[str]) -> list[str]:
    return [line.split("]")[0].strip(" [") for line in shown if line.startswith("  [")]


def first_words(shown: list[str], word: str) -> list[str]:
    return [line.strip().removeprefix(word).strip() for line in shown if line.strip().startswith(word)]


async def test_the_dialogues_are_answered_from_what_the_tools_found_and_every_step_is_shown() -> None:
    graph, screens = cats_and_humans(), list[list[str]]()

    def announced() -> Iterator[str]:
        for question in DIALOGUES:
            screens.append([])
            yield question

    results = await ask(make_runtime(ScriptedProvider(play), graph), announced(), lambda line: screens[-1].append(line))
    samples, count, cats, dogs, repaired = screens

    assert [result.outcome for result in results] == ["completed"] * 5
    assert samples[-1] == f"Assistant: {SAMPLES}"
    assert stages(samples) == ["submitted", "streaming", "executing", "processing", "streaming", "complete"]
    assert first_words(samples, "call") == ['sample_data(target="nodes", count=3)']
    assert first_words(samples, "processing") == ["tool results: sample_data succeeded\n  turn 2 starts: 3 messages"]

    assert count[-1] == "Assistant: The graph has 20 nodes."

    assert cats[-1].splitlines() == [
        "Assistant: I found 3 cat nodes and styled them blue: Whiskers, Mittens, and Shadow.",
        "Affected nodes (3): cat1, cat2, cat3",
    ]
    assert first_words(cats, "call") == [
        "find_nodes(selector=\"type == 'cat'\")",
        'style_nodes(node_ids=["cat1", "cat2", "cat3"], color="#0000ff")',
    ]
    assert list(graph.colored("#0000ff")) == ["cat1", "cat2", "cat3"]
    assert "\n".join(cats) in README.read_text()

    assert dogs[-1] == f"Assistant: {NO_DOGS}"
    assert len(first_words(dogs, "call")) == 1

    assert [line.split(";")[0] for line in first_words(repaired, "failed")] == [
        "find_nodes, error: the selector cannot be read from 'type == human and age > 60' on"
    ]
    assert first_words(repaired, "call")[1] == "find_nodes(selector=\"type == 'human' and age > 60\")"
    assert "Affected edges (8): human2-human3, human3-human4, " in repaired[-1]
    assert len(list(graph.colored("#00aa00"))) == 4 + 8


async def test_another_graph_gives_other_answers() -> None:
    graph = Graph()
    graph.add_node("c", name="Tom", type="cat", breed="manx")
    graph.add_node("d", name="Rex", type="dog", breed="boxer")
    results = await ask(make_runtime(ScriptedProvider(play), graph), DIALOGUES[:4], lambda _line: None)
    assert [each.text.splitlines()[-1] for each in results] == [
        "Each node has properties: name, type, and breed.",
        "The graph has 2 nodes.",
        "I found 1 cat nodes and styled them blue: Tom.",
        "I found 1 dog nodes and styled them red: Rex.",
    ]
    assert "2. **Rex** (d) - A boxer dog" in results[0].text


async def test_the_model_is_sent_each_result_as_success_message_data_and_counts() -> None:
    provider = ScriptedProvider(play)
    await ask(make_runtime(provider, cats_and_humans()), ["Make all cats red, and their edges"], lambda _line: None)
    assert len(provider.requests) == 3
    found = {"node_ids": ["cat1", "cat2", "cat3"], "names": ["Whiskers", "Mittens", "Shadow"], "count": 3}
    assert reported(list(provider.requests[2].messages)) == [
        {"success": True, "message": "Found 3 nodes.", "data": found},
        {
            "success": True,
            "message": "Styled 3 nodes.",
            "data": {"styled_count": 3, "color": "#ff0000"},
            "affected_nodes": 3,
            "affected_edges": 3,
        },
    ]


async def test_calls_of_one_reply_run_in_order_and_all_their_results_are_collected() -> None:
    wrong = ("style_nodes", {"node_ids": ["dog1"], "color": "#0000ff"})
    twice = [("style_nodes", {"node_ids": [node], "color": "#0000ff"}) for node in ("cat2", "cat1")]
    provider = ScriptedProvider([calls(("find_nodes", {"selector": "tpye == 'cat'"}), wrong, *twice), text("Done.")])
    (result,) = await ask(make_runtime(provider, cats_and_humans()), ["Do it"], lambda _line: None)
    assert [each.get("error", each.get("message")) for each in reported(list(provider.requests[1].messages))] == [
        "no node has a property 'tpye'; the properties are name, type, breed, age",
        "there is no node dog1; find_nodes returns the ids that exist",
        "Styled 1 nodes.",
        "Styled 1 nodes.",
    ]
    assert result.affected == ["node cat2", "node cat1"]


async def test_a_model_that_never_answers_is_stopped_after_five_rounds_with_tools() -> None:
    def loop(request: ModelRequest) -> Step:
        return calls(("sample_data", {"target": "nodes", "count": request.round + 1}))

    provider, shown = ScriptedProvider(loop), list[str]()
    (result,) = await ask(make_runtime(provider, cats_and_humans()), ["infinite loop"], shown.append)
    assert sum(bool(request.tools) for request in provider.requests) == 5
    assert not result.ok
    assert shown[-1] == "I stopped after 5 steps without finishing."


async def test_of_a_long_result_the_model_gets_4000_characters_and_the_answer_says_that_there_is_more() -> None:
    graph, provider, shown = Graph(), ScriptedProvider(play), list[str]()
    for number in range(100):
        graph.add_node(f"cat{number}", name=f"Cat {number}", type="cat", breed="tabby")
    await ask(make_runtime(provider, graph), ["Show me 100 sample nodes"], shown.append)
    (sent,) = [each for each in provider.requests[1].messages if isinstance(each, ToolMessage)]
    assert 3_500 < len(sent.content) <= 4_000
    assert json.loads(sent.content)["success"]
    assert "    results shortened for the model: 1" in shown
    assert "more items" in shown[-1]


async def test_without_data_the_model_has_the_message_alone() -> None:
    runtime = make_runtime(ScriptedProvider(play), cats_and_humans(), include_data=False)
    results = await ask(runtime, ["What are some sample nodes?", "Make all cats blue"], lambda _line: None)
    assert [each.text for each in results] == ["Returned 3 node samples.", "Found 3 nodes."]


def test_a_selector_is_read_by_its_grammar() -> None:
    assert read_selector(""" type=='cat' and name != "O'Hara" and age >= 1.5 """) == [
        Condition("type", "==", "cat"),
        Condition("name", "!=", "O'Hara"),
        Condition("age", ">=", 1.5),
    ]
    assert not Condition("name", "<", 3.0).holds({"name": "Tom"})


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "cat",
        "type = 'cat'",
        "type == cat",
        "type == 'cat' and",
        "type == 'cat' or age > 3",
        "age > 3x",
        "__import__('os').system('true')",
        "type.__class__ == 'cat'",
    ],
)
def test_what_is_no_selector_is_refused_with_how_to_write_one(wrong: str) -> None:
    with pytest.raises(ValueError, match="write conditions such as type == 'human' and age > 30"):
        read_selector(wrong)


def test_one_question_is_asked_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ask", "How many edges are there?"]) == 0
    assert capsys.readouterr().out.endswith("\nAssistant: The graph has 18 edges.\n")


def test_a_chat_is_one_conversation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("How many nodes are there?\n\nHello\n"))
    assert main(["--chat"]) == 0
    shown = capsys.readouterr().out
    assert "  turn 1 starts: 5 messages" in shown
    assert "I am a script, not a language model." in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--provider", "openai:gpt-5-mini"], "OPENAI_API_KEY"),
        (["--provider", "mistrel"], "there is no provider 'mistrel'"),
        (["--max-rounds", "0"], "max_rounds is 0"),
        (["--max-result-chars", "10"], "at least 200"),
        (["--ask", " "], "the prompt is empty"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("graph_assistant: ")
    assert says in error
    assert error.count("\n") == 1
