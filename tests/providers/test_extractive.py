"""The provider without a language model: it searches, reads, quotes, and says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from extractive_loop import Conversation, conversation_over, respond

from toolbus.errors import ToolError
from toolbus.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import ArgumentsPiece, ModelRequest, ModelSettings, Provider, TextPiece
from toolbus.providers.extractive import ExtractiveProvider, _answer
from toolbus.records import replace
from toolbus.tools import Tool
from toolbus.toolsets.workspace import workspace_tools

NO_MODEL = "no language model"


@pytest.fixture
def kiln(tmp_path: Path) -> Path:
    """A small project, about something that no other test knows."""
    (tmp_path / "kiln").mkdir()
    (tmp_path / "kiln" / "firing.py").write_text(
        '"""Firing pots."""\n\nimport time\n\nSOAK_MINUTES = 45\n\n\n'
        "class FiringPlan:\n"
        '    """How hot a kiln gets, and for how long."""\n\n'
        "    peak_celsius: int = 1240\n    ramp_per_hour: float = 150.0\n    glaze: str = 'ash'\n\n"
        "    def cool_down(self, vent=False):\n"
        '        """Cool slowly; cracks come from haste."""\n'
        "        if vent:\n            raise RuntimeError('never vent above 600')\n        return time.monotonic()\n\n\n"
        "def soak(plan, minutes=SOAK_MINUTES):\n"
        '    """Hold the peak temperature."""\n    return plan.peak_celsius, minutes\n'
    )
    (tmp_path / "kiln" / "stock.py").write_text("def count_pots(shelf):\n    return len(shelf)\n")
    (tmp_path / "README.md").write_text(
        "# Kiln\n\nRuns a kiln.\n\n## Glazing\n\nDip each pot twice.\nWait an hour between dips.\n\n## Licence\n\nFree.\n"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_firing.py").write_text("def test_soak_minutes():\n    assert soak(plan, minutes=45)\n")
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "gauge.js").write_text(
        "const DEFAULT_NEEDLE = 'red'\n\nexport class Gauge {\n  constructor(scale) {\n    this.scale = scale\n  }\n\n"
        "  drawNeedle(angle) {\n    return rotate(angle)\n  }\n}\n\n"
        "export const pollGauge = async (url) => {\n  return fetch(url)\n}\n"
    )
    return tmp_path


def test_it_is_a_provider() -> None:
    provider = ExtractiveProvider()
    assert isinstance(provider, Provider)
    assert provider.vendor == "extractive"


async def test_it_quotes_the_fields_of_the_class_that_was_asked_for(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("What are the default values of a firing plan?")
    assert talk.quotes("kiln/firing.py", r"class FiringPlan")
    assert talk.quotes("kiln/firing.py", r"peak_celsius: int = 1240")
    assert talk.quotes("kiln/firing.py", r"ramp_per_hour: float = 150")
    assert NO_MODEL in talk.answer


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("默认的超时时间是多少?", "请求的超时时间默认是三十秒。"),
        ("ログの形式は何ですか", "ログの形式は、一行ずつです。"),
        ("猫?", "这里有猫。"),
    ],
)
async def test_words_without_spaces_between_them_are_found(question: str, line: str, kiln: Path) -> None:
    (kiln / "page.md").write_text(f"# Kiln\n\n{line}\n", encoding="utf-8")
    talk = conversation_over(kiln)
    await talk.ask(question)
    assert [text for path, _, text in talk.quoted() if path == "page.md"][-1] == line


async def test_every_quoted_line_stands_at_the_place_that_it_names(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("How does FiringPlan cool down, and when is venting an error?")
    assert talk.quoted()
    for path, number, text in talk.quoted():
        assert (kiln / path).read_text().split("\n")[number - 1].rstrip() == text


def test_a_mark_stands_for_the_lines_between_quoted_ones_and_nowhere_else() -> None:
    block = _answer._block("kiln.py", {9: "nine", 3: "three", 10: "ten", 12: "`twelve`"})  # pyright: ignore[reportPrivateUsage]
    lines = ["**`kiln.py:3`**", "", "```text", " 3  three", "...", " 9  nine", "10  ten", "...", "12  `twelve`", "```"]
    assert block.split("\n") == lines
    block = _answer._block("kiln.md", {1: "```python"})  # pyright: ignore[reportPrivateUsage]
    assert block.split("\n")[2:] == ["````text", "1  ```python", "````"], "the fence has one mark more than its lines"


async def test_it_takes_at_least_two_rounds_and_two_tools(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("How long does the kiln soak?")
    assert len(talk.rounds) >= 2
    assert {name for names in talk.rounds for name in names} == {"search_text", "read_lines"}
    assert talk.rounds[0][0] == "search_text"
    assert "read_lines" in talk.rounds[1]


async def test_a_constant_that_a_signature_names_is_quoted_with_its_value(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("What is the default of minutes in soak()?")
    assert talk.quotes("kiln/firing.py", r"minutes=SOAK_MINUTES")
    assert talk.quotes("kiln/firing.py", r"^SOAK_MINUTES = 45")
    assert not talk.quotes("tests/test_firing.py", ".") or talk.quoted()[0][0] == "kiln/firing.py"


async def test_a_section_of_prose_is_quoted_with_its_heading(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("How is the glazing done?")
    assert talk.quotes("README.md", r"^## Glazing")
    assert talk.quotes("README.md", r"Wait an hour between dips")
    assert not talk.quotes("README.md", r"Free\.")


async def test_a_method_in_javascript_is_quoted_with_its_class(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("Which function draws the needle of the gauge?")
    assert talk.quotes("web/gauge.js", r"class Gauge")
    assert talk.quotes("web/gauge.js", r"drawNeedle\(angle\)")


async def test_an_arrow_function_is_found_by_its_name(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("What does pollGauge return?")
    assert talk.quotes("web/gauge.js", r"pollGauge = async")
    assert talk.quotes("web/gauge.js", r"return fetch\(url\)")


async def test_nothing_found_is_said_with_the_words_and_how_much_was_searched(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("Where is the zebra xylophone?")
    assert "found nothing for: zebra, xylophone (5 files searched)" in talk.answer
    assert NO_MODEL in talk.answer
    assert not talk.quoted()


async def test_an_identifier_without_a_hit_is_looked_for_by_its_parts(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("What is maximum_pots_counted?")
    assert talk.quotes("kiln/stock.py", r"def count_pots")


async def test_an_identifier_is_first_looked_for_as_it_is_and_by_its_parts_only_where_nothing_was_found(
    kiln: Path,
) -> None:
    for name, looked_for in (("soak_minutes", [False]), ("maximum_pots_counted", [False, True])):
        talk = conversation_over(kiln)
        await talk.ask(f"What is {name}?")
        made = [call for each in talk.messages if isinstance(each, AssistantMessage) for call in each.tool_calls]
        queries = [orjson.loads(call.arguments).get("query", "") for call in made if call.name == "search_text"]
        by_parts = [name.partition("_")[0] in query.split() for query in queries]
        assert list(dict.fromkeys(by_parts)) == looked_for, queries


async def test_words_that_stand_nowhere_near_are_named(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("How does the soak handle xylophones?")
    assert talk.quotes("kiln/firing.py", r"def soak")
    assert "Not found near these lines:" in talk.answer
    assert "xylophones" in talk.answer.rsplit("Not found", 1)[1]


async def test_a_question_of_small_words_is_answered_without_a_search(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("What is this?")
    assert talk.rounds == []
    assert "no word to search for" in talk.answer


async def test_without_a_user_message_it_asks_for_a_question() -> None:
    reply = await respond(ExtractiveProvider(), [], [])
    assert "no word to search for" in reply.message.text


async def test_without_the_workspace_tools_it_says_which_it_lacks(kiln: Path) -> None:
    talk = Conversation([tool for tool in workspace_tools(kiln) if tool.name != "read_lines"])
    await talk.ask("How long does the kiln soak?")
    assert talk.rounds == []
    assert "was not given read_lines" in talk.answer
    assert NO_MODEL in talk.answer


async def test_a_tool_of_the_same_name_with_other_parameters_is_not_called(kiln: Path) -> None:
    def search_text(text: str) -> str:
        """Something else."""
        return text

    talk = Conversation([Tool(handler=search_text), *workspace_tools(kiln)[1:]][:1] + workspace_tools(kiln)[2:])
    await talk.ask("How long does the kiln soak?")
    assert "was not given search_text" in talk.answer


async def test_when_no_tool_may_be_called_it_answers_from_what_it_has_read(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("How long does the kiln soak?")
    reply = await respond(ExtractiveProvider(), talk.messages[:-1], [])
    assert "SOAK_MINUTES = 45" in reply.message.text
    assert reply.finish_reason == "stop"


async def test_a_tool_choice_of_none_is_obeyed(kiln: Path) -> None:
    request = ModelRequest(
        messages=[UserMessage(content="How long does the kiln soak?")],
        tools=[tool.spec for tool in workspace_tools(kiln)],
        settings=ModelSettings(tool_choice="none"),
    )
    reply = await ExtractiveProvider().respond(request, lambda _delta: None)
    assert not reply.message.tool_calls
    assert "needs the workspace tools" in reply.message.text


async def test_a_follow_up_searches_anew_and_keeps_the_subject(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("What is the glaze of a FiringPlan?")
    assert talk.quotes("kiln/firing.py", r"glaze: str = 'ash'")
    await talk.ask("And its ramp?")
    assert len(talk.rounds) >= 2
    assert talk.quotes("kiln/firing.py", r"ramp_per_hour: float = 150")


async def test_a_new_subject_leaves_the_old_one_behind(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("What is the glaze of a FiringPlan?")
    await talk.ask("Where does the code count pots on a shelf?")
    assert talk.quoted()[0][0] == "kiln/stock.py"
    assert "glaze" not in talk.answer


async def test_pieces_of_text_join_to_the_text_and_come_one_by_one(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("What are the default values of a firing plan?")
    texts = [piece.text for piece in talk.pieces if isinstance(piece, TextPiece)]
    assert "".join(texts) == talk.answer
    assert len(texts) > 3


async def test_calls_are_emitted_as_arguments(kiln: Path) -> None:
    pieces: list[Any] = []
    messages = [UserMessage(content="How long does the kiln soak?")]
    reply = await respond(ExtractiveProvider(), messages, workspace_tools(kiln), pieces=pieces)
    assert [(piece.index, piece.name, piece.text) for piece in pieces if isinstance(piece, ArgumentsPiece)] == [
        (index, call.name, call.arguments) for index, call in enumerate(reply.message.tool_calls)
    ]
    assert all(call.call_id == "" for call in reply.message.tool_calls)


async def test_it_keeps_no_state_so_the_same_transcript_gives_the_same_reply(kiln: Path) -> None:
    talk = conversation_over(kiln)
    await talk.ask("How long does the kiln soak?")
    tools = workspace_tools(kiln)
    ends = [index for index, message in enumerate(talk.messages) if isinstance(message, AssistantMessage)]
    for end in reversed(ends):  # each of its replies again, the last one first
        said = talk.messages[end]
        assert isinstance(said, AssistantMessage)
        again = (await respond(ExtractiveProvider(), talk.messages[:end], tools)).message
        assert again.text == said.text
        assert [call.arguments for call in again.tool_calls] == [call.arguments for call in said.tool_calls]


async def test_failed_calls_are_reported_and_the_rest_is_used(kiln: Path) -> None:
    calls = 0

    def read_lines(path: str, start: int = 1, end: int | None = None) -> str:
        """Fails, the first time."""
        nonlocal calls
        calls += 1
        raise ToolError(f"the disk of {path} is on fire at {start} to {end}")

    talk = Conversation([*workspace_tools(kiln)[:2], Tool(handler=read_lines)])
    await talk.ask("How long does the kiln soak?")
    assert calls
    assert "found nothing" in talk.answer
    assert "Some calls failed: read_lines: the disk" in talk.answer


@pytest.mark.parametrize(
    "content",
    ["", "not json", "[1, 2]", '{"ok": true}', '{"ok": true, "data": {"matches": 3}}', '{"ok": true, "data": []}',
     '{"ok": true, "data": {"matches": [1, {"path": "a"}, {"path": "a", "line": "x", "text": ""}], "files_searched": "?"}}',
     '{"ok": true, "data": {"path": 1, "text": 2}}', '{"ok": true, "data": {"path": "a", "text": "no number"}}'],
)  # fmt: skip
async def test_results_of_another_shape_end_in_an_answer(content: str, kiln: Path) -> None:
    messages: list[Message] = [UserMessage(content="How long does the kiln soak?")]
    for number in range(8):
        message = (await respond(ExtractiveProvider(), messages, workspace_tools(kiln))).message
        if not message.tool_calls:
            assert "found nothing" in message.text
            return
        named = tuple(replace(call, call_id=f"{number}.{i}") for i, call in enumerate(message.tool_calls))
        messages.append(replace(message, tool_calls=named))
        messages += [ToolMessage(call_id=call.call_id, name=call.name, content=content) for call in named]
    raise AssertionError("it never answered")


async def test_calls_of_other_tools_in_the_turn_are_passed_over(kiln: Path) -> None:
    messages: list[Message] = [
        UserMessage(content="How long does the kiln soak?"),
        AssistantMessage(tool_calls=(ToolCall(name="weather", call_id="1", arguments="{broken"),)),
        ToolMessage(call_id="1", name="weather", content='{"ok": true, "data": {"sun": 1}}'),
        ToolMessage(call_id="2", name="orphan", content='"text"', is_error=True),
    ]
    reply = await respond(ExtractiveProvider(), messages, workspace_tools(kiln))
    assert reply.message.text or reply.message.tool_calls


async def test_a_path_with_the_signs_of_a_glob_is_searched_again_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "[slug]{x}.js").write_text("export const saffronLimit = 12\n")
    (tmp_path / "pages" / "s.js").write_text("// nothing\n")
    talk = conversation_over(tmp_path)
    await talk.ask("What is the saffron limit?")
    assert talk.quotes("[slug]{x}.js", "saffronLimit = 12")
    globs = [
        glob
        for message in talk.messages
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
        if (glob := orjson.loads(call.arguments).get("glob"))
    ]
    assert "pages/[[]slug][{]x}.js" in globs
