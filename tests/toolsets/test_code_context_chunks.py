"""How sources become chunks, and identifiers and questions words."""
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import time
import warnings

import pytest

from support.interpreter_lock import MAX_SECONDS, longest_call
from toolbus.toolsets.code_context import _chunks
from toolbus.toolsets.code_context._chunks import chunk_text, is_source
from toolbus.toolsets.code_context._words import as_query, split_identifiers

MODULE = '''"""Leases."""

import time

LEASE_SECONDS = 10

# How a lease is held.
@decorated
def renew(lease):
    return lease


class Small:
    def left(self):
        return 1

'''
LARGE = "class Large:\n    limit = 3\n\n" + "".join(
    f"    def method_{n}(self):\n" + "        work()\n" * 9 + "\n" for n in range(4)
)


def outline(path: str, source: str) -> list[tuple[int, int, str]]:
    return [(chunk.start, chunk.end, chunk.name) for chunk in chunk_text(path, source)]


def test_python_is_cut_into_functions_and_classes_with_what_stands_above_them():
    assert outline("a.py", MODULE) == [(1, 5, ""), (7, 10, "renew"), (13, 15, "Small")]
    assert (
        chunk_text("a.py", MODULE)[1].text == "# How a lease is held.\n@decorated\ndef renew(lease):\n    return lease"
    )


def test_a_large_class_is_cut_into_its_head_and_its_methods():
    assert outline("a.py", LARGE) == [
        (1, 2, "Large"),
        *[(4 + 11 * n, 13 + 11 * n, f"Large.method_{n}") for n in range(4)],
    ]


def test_a_long_function_is_cut_where_it_is_least_indented_and_each_part_has_its_name():
    body = "".join(f"    if step == {n}:\n" + "        work()\n" * 6 for n in range(30))
    chunks = chunk_text("a.py", f"def long(step):\n{body}")
    assert len(chunks) > 2
    assert {chunk.name for chunk in chunks} == {"long"}
    assert all(chunk.text.startswith(("def long", "    if")) for chunk in chunks)
    assert all(chunk.end - chunk.start < 80 for chunk in chunks)
    assert [chunk.start for chunk in chunks[1:]] == [chunk.end + 1 for chunk in chunks[:-1]]


@pytest.mark.parametrize("broken", ["def f(:\n    pass\n\n\ndef g():\n    pass\n", "\0", "(" * 5_000])
def test_python_that_does_not_parse_is_cut_all_the_same(broken: str):
    assert [chunk.text for chunk in chunk_text("a.py", broken)] == ([broken.strip("\n")] if "def" in broken else [])


@pytest.mark.parametrize("end", ["\r\r\n", "\r", "\n"])
def test_carriage_returns_within_python_end_no_line(end: str):
    source = f'def first():{end}    return 1{end}{end}NAME = """a{end}b"""\n\ndef second():\n    return 2\n'
    lines = source.split("\n")
    found = chunk_text("a.py", source)
    assert found[-1].text.endswith("def second():\n    return 2")
    for chunk in found:
        assert chunk.text == "\n".join(lines[chunk.start - 1 : chunk.end])


def test_odd_escapes_in_sources_warn_nobody():
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert outline("a.py", 'def f():\n    return "\\d"\n') == [(1, 2, "f")]
    assert reported == []


def test_other_languages_go_by_their_definitions_and_prose_by_headings():
    script = "".join(f"export function take{n}(x) {{\n" + "  work()\n" * 14 + "}\n" for n in range(3))
    assert outline("a.ts", script) == [(1 + 16 * n, 16 + 16 * n, f"take{n}") for n in range(3)]
    prose = "".join(f"# Part {n}\n\n" + "A sentence.\n" * 12 + "\n" for n in range(3))
    assert outline("a.md", prose) == [(1 + 15 * n, 14 + 15 * n, f"Part {n}") for n in range(3)]


def test_small_blocks_of_other_languages_are_joined():
    lines = "".join(f"function take{n}(x) {{ work() }}\n" for n in range(8))
    assert outline("a.js", lines) == [(1, 8, " ".join(f"take{n}" for n in range(8)))]


def test_data_on_one_line_and_lines_without_words_are_no_chunks():
    assert chunk_text("a.js", "x" * 10_000) == []
    assert chunk_text("a.txt", "---\n\n***\n") == []
    assert chunk_text("a.py", "") == []


def test_sources_are_reported_from_data_by_name():
    taken = ["a.py", "src/a.TS", "Makefile", "docs/a.md", "pyproject.toml"]
    passed_over = ["a.png", "a.min.js", "package-lock.json", "data.csv", "LICENSE", ".gitignore"]
    assert [each for each in (*taken, *passed_over) if is_source(each)] == taken


def test_identifiers_are_split_into_their_parts():
    assert split_identifiers("getUserName(MAX_SIZE, HTTPServer2)") == "get User Name MAX SIZE HTTP Server 2"
    assert split_identifiers("größe _private x9" + "y" * 100) == "größe private"


def test_where_there_are_no_spaces_the_words_are_pairs_of_characters():
    assert split_identifiers("設定のAPI、値") == "設定 定の API 値"
    assert split_identifiers("설정을 getName温度上") == "설정 정을 get Name 温度 度上"
    assert split_identifiers("温度" * 40) == " ".join(["温度", *["度温", "温度"] * 39])
    assert as_query("重试次数?") == '"重试" OR "试次" OR "次数"'


def test_a_question_is_a_query_for_its_telling_words_and_has_no_syntax():
    assert as_query('How does "renewLease" OR (x) NEAR work?') == '"renew" OR "lease" OR "x" OR "near" OR "work"'
    assert as_query("what is it") == '"what" OR "is" OR "it"'
    assert as_query("?!") == ""


def test_a_large_python_file_is_parsed_in_pieces_and_cut_as_a_small_one():
    functions = [f"@decorated\ndef take_{n}(x):\n" + "    work(x)\n" * 20 for n in range(600)]
    source = "\n\n".join(functions)
    assert len(source) > 100_000
    assert outline("a.py", source) == [(1 + 24 * n, 22 + 24 * n, f"take_{n}") for n in range(600)]


def test_a_piece_begins_at_an_unindented_definition_or_at_its_decorator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_chunks, "_PARSED_CHARS", 20)
    lines = [
        "x = 1",
        "def a():",
        "    def b():",
        "        pass",
        "@c",
        "@d",
        "class E:",
        "    f = 1",
        "    ggggggg = 2",
        "y = 3",
    ]
    lines += ["async def h():", "    i()", "def j():", "    k()", "def l():"]
    pieces = [*_chunks._pieces(lines)]  # pyright: ignore[reportPrivateUsage]
    assert pieces == [(1, 4), (5, 10), (11, 12), (13, 15)]
    monkeypatch.setattr(_chunks, "_PARSED_CHARS", 1)
    assert [*_chunks._pieces(lines)] == [(1, 1), (2, 4), (5, 10), (11, 12), (13, 14), (15, 15)]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("lines", "name"), [(8_000, "Big.one"), (8_400, "one")])
def test_python_of_up_to_25_000_words_and_marks_at_once_is_cut_by_its_syntax(lines: int, name: str):
    source = "class Big:\n    x = 1\n\n    def one(self):\n" + "        a=1\n" * lines
    assert outline("a.py", source)[-1][2] == name


def test_a_class_that_is_too_large_to_be_parsed_at_once_is_cut_by_its_definitions():
    source = "class Big:\n" + "\n".join(f"    def m{n}(self):\n" + "        work(self)\n" * 40 for n in range(150))
    assert [name for _, _, name in outline("a.py", source)][:3] == ["Big", "m0", "m1"]


def test_a_large_python_file_whose_pieces_do_not_parse_is_cut_by_its_definitions():
    source = 'TEXT = """\n' + "def inside(): pass\n" * 3_000 + '"""\n\n\ndef outside():\n    pass\n'
    assert outline("a.py", source)[-1][2].endswith("outside")


@pytest.mark.parametrize(
    "text",
    [
        "a\n" * 40_000,
        "// c\n" * 40_000 + "function f() {\n}\n",
        "x = 1\n" * 20_000 + "// c\nfunction f() {\n}\n" * 8_000,
    ],
)
def test_a_file_of_many_lines_takes_time_in_proportion_to_them(text: str):
    before = time.thread_time()
    assert chunk_text("a.js", text)
    assert time.thread_time() - before < 4  # ten times what it needs


@pytest.mark.guarantee("G14")
@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("unit", ["a;", "a+a\n", "()\n", "f(a,b=c);", "[[],[]];", "lambda:0;", "'\\d';"])
def test_dense_python_does_not_hold_the_interpreter_for_long(unit: str):
    line = unit * (250 // len(unit)) + "0\n"

    def work() -> None:
        assert chunk_text("a.py", line * (98_000 // len(line)))

    longest = longest_call(work)
    assert longest.seconds < MAX_SECONDS, longest.name


def test_a_file_of_very_many_lines_is_read_in_pieces_and_cut_as_a_small_one(monkeypatch: pytest.MonkeyPatch):
    functions = "".join(f"function f{n}(a) {{\n" + "    work(a);\n" * 13 + "}\n" for n in range(12))
    whole = outline("a.js", functions)
    assert [name for _, _, name in whole] == [f"f{n}" for n in range(12)]
    monkeypatch.setattr(_chunks, "_LINES_AT_ONCE", 45)  # three functions
    assert outline("a.js", functions) == whole
    monkeypatch.setattr(_chunks, "_LINES_AT_ONCE", 40)
    assert {name for _, _, name in outline("a.js", functions)} >= {name for _, _, name in whole}


def indented(depths: dict[int, int]) -> str:
    return "".join(f"{' ' * depths.get(number, 4)}word\n" for number in range(1, 121))


SIZES: dict[str, tuple[str, str]] = {
    "long": (
        "a.py",
        "def f():\n" + "".join(f"    x{n} = {n}\n" if n % 7 else "\n    # part\n    y = 1\n" for n in range(150)),
    ),
    "wide": ("a.py", "def f():\n" + "".join(f"    x{n} = '{'a' * 270}'\n" for n in range(30))),
    "one line": ("a.txt", "word " * 1_400 + "\n" + "word\n" * 40),
    "dense": ("a.txt", ("x" * 300)),
    "too dense": ("a.txt", ("x" * 301)),
    "script": (
        "a.go",
        "package kiln\n\n" + "".join(f"func f{n}() {{\n" + "\tcall()\n" * (3 * n) + "}\n\n" for n in range(8)),
    ),
    "class": (
        "a.py",
        "import a\n\nclass Big:\n    x = 1\n\n    def one(self):\n"
        + "        call()\n" * 20
        + "\n    # above\n    @wraps\n    def two(self):\n"
        + "        call()\n" * 10
        + "    y = 2\n\n\nif a:\n    def inner(): pass\nz = 3; w = 4\ndef last(): pass\n",
    ),
    "small class": ("a.py", "class Small:\n" + "    x = 1\n" * 29),
    "no end of line": ("a.py", "def f():\n    return 1"),
    "small class below": ("a.py", "x = 1\n" * 40 + "class Small:\n" + "    x = 1\n" * 29),
    "6,000 characters": ("a.txt", f"{'word ' * 19}word\n" * 61),
    "least indented before the last third": ("a.txt", indented({53: 0, 70: 2})),
    "least indented at the last third": ("a.txt", indented({54: 0, 70: 2})),
    "class of 31": ("a.py", "class Larger:\n" + "    x = 1\n" * 30),
}


@pytest.mark.parametrize(
    ("kind", "chunks"),
    [
        ("long", [(1, 80, "f", 866), (81, 160, "f", 926), (161, 195, "f", 432)]),
        ("wide", [(1, 22, "f", 5941), (23, 31, "f", 2546)]),
        ("one line", [(1, 1, "", 6000), (2, 41, "", 199)]),
        ("dense", [(1, 1, "", 300)]),
        ("too dense", []),
        (
            "script",
            [
                (1, 10, "f0 f1", 66),
                (12, 19, "f2", 61),
                (21, 31, "f3", 85),
                (33, 46, "f4", 109),
                (48, 64, "f5", 133),
                (66, 85, "f6", 157),
                (87, 109, "f7", 181),
            ],
        ),
        (
            "class",
            [
                (1, 1, "", 8),
                (3, 4, "Big", 20),
                (6, 26, "Big.one", 318),
                (28, 40, "Big.two", 191),
                (41, 41, "Big", 9),
                (44, 46, "", 40),
                (47, 47, "last", 16),
            ],
        ),
        ("small class", [(1, 30, "Small", 302)]),
        ("no end of line", [(1, 2, "f", 21)]),
        ("small class below", [(1, 40, "", 239), (41, 70, "Small", 302)]),
        ("6,000 characters", [(1, 60, "", 5_999), (61, 61, "", 99)]),
        ("least indented before the last third", [(1, 69, "", 616), (70, 120, "", 456)]),
        ("least indented at the last third", [(1, 53, "", 476), (54, 120, "", 596)]),
        ("class of 31", [(1, 31, "Larger", 313)]),
    ],
)
def test_chunks_end_where_their_bounds_say(kind: str, chunks: list[tuple[int, int, str, int]]):
    found = chunk_text(*SIZES[kind])
    assert [(chunk.start, chunk.end, chunk.name, len(chunk.text)) for chunk in found] == chunks
