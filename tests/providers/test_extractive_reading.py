"""The provider's parts: words of a question, the structure of a text, the weight of a line."""

from __future__ import annotations

import json

import pytest

from toolbus.core.text_structure import Scope, read_structure
from toolbus.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from toolbus.providers.extractive._answer import quoted_answer
from toolbus.providers.extractive._constants import constant_passages
from toolbus.providers.extractive._passages import Passage, Weigher, best_passages
from toolbus.providers.extractive._plan import weigher_of
from toolbus.providers.extractive._question import read_question, split_identifier, stem
from toolbus.providers.extractive._transcript import Search, Turn, read_turn


def forms(text: str) -> list[str]:
    return [form for term in read_question(text).terms for form in term.forms]


@pytest.mark.parametrize(
    "words",
    [("handle", "handles", "handling", "handled"), ("limit", "limits", "limited"), ("compress", "compression"),
     ("stop", "stops", "stopped", "stopping"), ("retry", "retries"), ("class", "classes"), ("validate", "validation"),
     ("connect", "connection", "connections")],
)  # fmt: skip
def test_the_forms_of_a_word_share_a_beginning(words: tuple[str, ...]) -> None:
    for word in words:
        assert any(each.startswith(beginning) for each in words[:1] for beginning in stem(word))


@pytest.mark.parametrize("word", ["string", "speed", "status", "class", "bus", "ring", "this", "version", "red"])
def test_what_only_looks_like_an_ending_is_kept(word: str) -> None:
    assert stem(word) == (word,)


def test_small_words_and_how_long_are_no_terms() -> None:
    assert forms("How long is the timeout, and what does it do?") == ["timeout"]


def test_words_are_as_rare_as_the_widest_search_for_words_has_reported() -> None:
    question = read_question("the soak of a kiln")
    searches = [
        Search({"mode": "words"}, 1, files_with_word={"soak": 2, "kiln": 5}, files_searched=9),
        Search({"mode": "words", "glob": "*.md"}, 2, files_with_word={"soak": 1, "kiln": 1}, files_searched=10),
        Search({"mode": "regex"}, 3, files_with_word={"soak": 3, "kiln": 3}, files_searched=11),
    ]
    expected = Weigher(question, {"soak": 2, "kiln": 5}, 9).weights
    assert weigher_of(question, Turn(searches=searches)).weights == expected


def test_a_dotted_name_asks_for_its_last_part() -> None:
    question = read_question("What is the default timeout of socket.create_connection?")
    assert question.identifiers == ("create_connection",)
    assert "socket" in [term.text for term in question.terms]
    assert question.wants_values


@pytest.mark.parametrize("name", ["run()", "`run`", "max_rounds", "GzipFile", "createServer", "_private"])
def test_what_is_written_as_in_a_program_is_an_identifier(name: str) -> None:
    assert read_question(f"what about {name} there").identifiers == (name.strip("`").removesuffix("()"),)


def test_a_file_name_is_one_term_and_no_identifier() -> None:
    question = read_question("what is in package.json")
    assert [term.text for term in question.terms] == ["package.json"]
    assert not question.identifiers


def test_words_in_capitals_are_not_stemmed() -> None:
    assert forms("HTTPS or URLs") == ["https", "url"]


def test_a_flag_with_dashes_is_read_by_its_words() -> None:
    assert forms("the --dry-run flag") == ["dry", "run", "flag"]


def test_what_stands_before_module_is_a_name() -> None:
    by_text = {term.text: term.weight for term in read_question("the warnings module and other warts").terms}
    assert by_text["warnings"] > by_text["warts"]


def test_weak_words_are_searched_for_when_there_is_little_else() -> None:
    assert [term.text for term in read_question("the functions of the class").searched] == ["functions", "class"]
    assert [term.text for term in read_question("functions of the kiln vent").searched] == ["kiln", "vent"]


def test_the_newest_question_comes_with_those_before_it_the_last_one_first() -> None:
    turn = read_turn([UserMessage(content=each) for each in ("one", "two", "three")], "search", "read")
    assert (turn.question, [*turn.earlier]) == ("three", ["two", "one"])


def test_a_question_that_stands_alone_takes_nothing_from_earlier_ones() -> None:
    assert "apples" not in [term.text for term in read_question("how is copper ore smelted", ["red apples"]).terms]
    assert "apples" in [term.text for term in read_question("and copper?", ["red apples"]).terms]


def test_identifiers_split_at_humps_and_underscores() -> None:
    assert split_identifier("parseHTTPHeader_v2") == ["parse", "http", "header"]


# ------------------------------------------------------------------------------------------------ structure


def structure(text: str, path: str = "a.py", first: int = 1) -> dict[str, list[str]]:
    lines = dict(enumerate(text.split("\n"), start=first))
    return {scope.name: [line.text.strip() for line in scope.lines] for scope in read_structure(path, lines)}


def test_lines_belong_to_the_innermost_definition() -> None:
    scopes = structure("class A:\n    x = 1\n    def f(self):\n        return 2\n    y = 3\nz = 4\n")
    assert scopes["A"] == ["class A:", "x = 1", "y = 3"]
    assert scopes["f"] == ["def f(self):", "return 2"]


def test_a_signature_of_several_lines_is_one_head() -> None:
    (scope,) = read_structure("a.py", dict(enumerate(["def f(", "    a=1,", "):", "    pass"], start=1)))
    assert [line.number for line in scope.head] == [1, 2, 3]


def test_a_decorator_and_a_comment_above_belong_to_the_definition() -> None:
    scopes = structure("x = 1\n\n# why\n@cached\ndef f():\n    pass\n")
    assert scopes["f"][:3] == ["# why", "@cached", "def f():"]


def test_definitions_inside_of_a_docstring_are_text() -> None:
    scopes = structure('def f():\n    """Like:\n\n    def g():\n        pass\n    """\n    return 1\n')
    assert "g" not in scopes


def test_lines_that_begin_inside_of_a_docstring_are_read_the_right_way() -> None:
    text = 'end of some text\n"""\n\ndef f():\n    """Doc."""\n    return 1\n\nclass B:\n    """Doc\n    two."""\n'
    scopes = structure(text, first=40)
    assert {"f", "B"} <= set(scopes)


@pytest.mark.parametrize(
    ("line", "name"),
    [("pub fn spin(x: u8) -> u8 {", "spin"), ("func (s *Server) Serve() error {", "Serve"), ("#define MAX 3", "MAX"),
     ("export default class Gauge extends Dial {", "Gauge"), ("  async draw(angle) {", "draw"), ("interface Shape {", "Shape"),
     ("const add = (a, b) => a + b", "add"), ("export async function* walk() {", "walk")],
)  # fmt: skip
def test_definitions_of_other_languages_are_seen(line: str, name: str) -> None:
    assert name in structure(f"{line}\n    body\n", "a.txt.x")


def test_statements_are_no_definitions() -> None:
    assert set(structure("if (a) {\n}\nwhile (b) {\n}\nfor (;;) {\n}\n", "a.js")) == {""}


def test_headings_nest_in_markdown_and_in_underlined_text() -> None:
    markdown = read_structure("a.md", dict(enumerate(["# A", "one", "## B", "two", "# C"], start=1)))
    assert [(scope.name, scope.parent.name if scope.parent else "") for scope in markdown] == [
        ("A", ""),
        ("B", "A"),
        ("C", ""),
    ]
    underlined = read_structure("a.rst", dict(enumerate(["A", "===", "one", "B", "---", "two"], start=1)))
    assert [(scope.name, scope.parent.name if scope.parent else "") for scope in underlined] == [("A", ""), ("B", "A")]


def test_lines_outside_of_definitions_are_paragraphs_of_at_least_five_lines() -> None:
    text = "a\nb\n\nc\nd\n\ne\n\n\nf\ng\nh\ni\n\nj\n\nk"
    scopes = read_structure("a.py", dict(enumerate(text.split("\n"), start=1)))
    assert ["".join(line.text for line in scope.lines) for scope in scopes] == ["abcde", "fghij", "k"]


def test_a_gap_ends_what_was_open() -> None:
    scopes = read_structure("a.py", {1: "def f():", 2: "    one", 50: "    two"})
    assert [[line.number for line in scope.lines] for scope in scopes] == [[1, 2], [50]]


# ------------------------------------------------------------------------------------------------ weighing


def passages(question: str, files: dict[str, str]) -> list[tuple[str, str]]:
    weigher = Weigher(read_question(question), {}, 10)
    lines = {path: dict(enumerate(text.split("\n"), start=1)) for path, text in files.items()}
    return [(passage.scope.path, passage.scope.name) for passage in best_passages(weigher, lines)]


def test_a_definition_comes_before_a_use() -> None:
    found = passages("where is spindle?", {"a.py": "x = spindle()\n", "b.py": "def spindle():\n    pass\n"})
    assert found[0] == ("b.py", "spindle")


def test_tests_come_last() -> None:
    body = "def spindle():\n    pass\n"
    assert passages("where is spindle?", {"tests/a.py": body, "src/a.py": body})[0][0] == "src/a.py"


def test_a_file_named_like_two_words_of_the_question_comes_first() -> None:
    body = "def open_it():\n    return spider\n"
    assert passages("how does the web spider open?", {"a.py": body, "webspider.py": body})[0][0] == "webspider.py"


@pytest.mark.parametrize(
    ("path", "words"),
    [("web_browser.py", ["web", "browser"]), ("webbrowserlike.py", ["web", "browser"]), ("webbrowserliked.py", [])],
)
def test_two_words_of_the_question_may_be_a_file_s_name_with_at_most_four_more_letters(
    path: str, words: list[str]
) -> None:
    said = Weigher(read_question("how does the web browser work"), {}, 10).in_path(path)
    assert {term.text: quality for term, quality in said.items()} == dict.fromkeys(words, 1.5)


def test_a_constant_is_quoted_from_the_file_of_the_best_passage() -> None:
    best, second = (Passage(Scope(path, lines=[]), 1.0, []) for path in ("b.py", "a.py"))
    turn = Turn(lines={path: {1: f"MOST = '{path}'"} for path in ("a.py", "b.py")})
    [found] = constant_passages(["MOST"], [best, second], turn)
    assert [line.text for line in found.lines] == ["MOST = 'b.py'"]


def test_short_words_match_alone_and_in_their_forms() -> None:
    weigher = Weigher(read_question("the log"), {}, 10)
    hits = [
        bool(list(weigher.in_text(text)))
        for text in ("log", "logs", "logging", "LogFile", "my_log", "logic", "blog", "catalog")
    ]
    assert hits == [True, True, True, True, True, False, False, False]


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    question = read_question("apples and pears")
    weigher = Weigher(question, {"appl": 90, "pear": 2}, 100)
    weights = {term.text: weight for term, weight in weigher.weights.items()}
    assert weights["pears"] > weights["apples"]


def test_what_happens_when_prefers_the_lines_that_raise() -> None:
    weigher = Weigher(read_question("what happens when the tank overflows"), {}, 10)
    filler = "".join(f"    tank{n} = fill({n})  # tank\n" for n in range(40))
    text = f"def pour():\n{filler}    raise TankOverflow('tank')\n"
    (passage, *_) = best_passages(weigher, {"a.py": dict(enumerate(text.split("\n"), start=1))})
    assert any("raise TankOverflow" in line.text for line in passage.lines)


@pytest.mark.parametrize(
    "data", [{"path": "a"}, {"text": "1  b"}, {"path": "a", "text": 1}, {"path": 1, "text": "1  b"}]
)
def test_a_reading_of_another_shape_has_no_lines(data: dict[str, object]) -> None:
    call = ToolCall(call_id="1", name="read", arguments="{}")
    content = json.dumps({"ok": True, "data": data})
    result = ToolMessage(call_id="1", name="read", content=content)
    turn = read_turn([UserMessage(content="what"), AssistantMessage(tool_calls=(call,)), result], "search", "read")
    assert (turn.rounds, turn.read_rounds, turn.lines, turn.failures) == (1, 1, {}, [])


def test_lines_are_quoted_below_the_heads_of_the_two_definitions_around_them() -> None:
    text = "class Outer:\n    class Inner:\n        class Kiln:\n            def fire(self):\n                soak = 1"
    weigher = Weigher(read_question("soak"), {"soak": 1}, 1)
    passages = best_passages(weigher, {"a.py": dict(enumerate(text.split("\n"), start=1))})
    answer = quoted_answer(weigher, passages, Turn())
    assert answer.splitlines()[4:8] == [
        "```text",
        "2      class Inner:",
        "3          class Kiln:",
        "4              def fire(self):",
    ]


@pytest.mark.parametrize(("data", "files"), [({"files_searched": 7}, 7), ({}, 0), ({"files_searched": "7"}, 0)])
def test_a_round_that_reads_and_searches_is_one_that_reads(data: dict[str, object], files: int) -> None:
    call = ToolCall(call_id="c", name="search", arguments="{}")
    reply = AssistantMessage(tool_calls=(call, ToolCall(call_id="d", name="read", arguments="{}")))
    result = ToolMessage(call_id="c", name="search", content=json.dumps({"ok": True, "data": data}))
    turn = read_turn([UserMessage(content="what"), reply, result], "search", "read")
    assert (turn.rounds, turn.read_rounds, [each.files_searched for each in turn.searches]) == (1, 1, [files])
