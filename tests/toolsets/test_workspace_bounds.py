"""What strangers choose (patterns, names, sizes, files of a million lines) costs the workspace tools a bounded time.

Clocks are made here, and advance each time they are looked at: a loop that does not look would never end, or would
report nothing.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import difflib
import io
import itertools
import os
import re
import shutil
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.interpreter_lock import MAX_SECONDS, longest_call
from toolbus.errors import ToolError
from toolbus.toolsets._files import budget as _budget
from toolbus.toolsets._files import patterns as _globs
from toolbus.toolsets._files import scan as _scan
from toolbus.toolsets._files import tree as _tree
from toolbus.toolsets._files.patterns import fixed_directory, parse_gitignore
from toolbus.toolsets._files.regex import Pattern
from toolbus.toolsets.workspace import workspace_tools
from toolbus.toolsets.workspace._search import Hit, _forget  # pyright: ignore[reportPrivateUsage]

posix = pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")

SOURCE = "def place_order(items: list[str], note=None) -> Order:  # one of many\n"


def call(root: Path, name: str, bounds: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """The result of one of the tools."""
    tools = {tool.name: tool for tool in workspace_tools(root, **(bounds or {}))}
    return tools[name].prepare(arguments, None)()


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a millisecond at each look."""
    looks = iter(range(10**9))
    monkeypatch.setattr(_budget, "monotonic", lambda: next(looks) / 1000)


# ------------------------------------------------------------------------------------------------ regular expressions


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize(
    "pattern",
    [r"(?s)(.{0,300}[a-z]){9}\x01", r"\w{1000}", r"(?:a{1000}){1000}", r"\p{Any}" * 100, "[a-\U0010ffff]" * 200, "a" * 5_000,
     "(?:" * 800 + ")" * 800, r"(?:(?:(?:a{9}){9}){9}){9}", "x{999999999}", "(?:){100000}", r"[\W]" * 100, "[ä-ü]{300}"],
)  # fmt: skip
def test_a_pattern_that_would_take_long_is_refused_before_it_is_compiled(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.py").write_text(SOURCE * 1_000)

    def search() -> None:
        with pytest.raises(ToolError, match=r"is too large: .* Use smaller counts"):
            call(tmp_path, "search_text", query=pattern, mode="regex")

    longest = longest_call(search, below=MAX_SECONDS / 2)
    assert longest.seconds < MAX_SECONDS / 2, longest.name


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize(
    "pattern",
    [r"(.{0,60}[a-z]){9}\x01", r"(?:.{0,200}){3}[^\x00-\x7f]", r"\w{75}[\x01\x02]", r"(?:a?b?c?){150}[\x01\x02]", r"(?:\b.?){200}[\x01\x02]",
     r"^(a+)+$", r"(?:\w+\s*)*[\x01\x02]", r"[\pL\pN]{40}\PL[\x01\x02]"],
)  # fmt: skip
@pytest.mark.parametrize("shape", ["lines", "one line", "beyond ASCII"])
@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_no_match_holds_the_interpreter_for_long(tmp_path: Path, pattern: str, shape: str) -> None:
    text = SOURCE * 1_500 if shape == "lines" else SOURCE.replace("\n", " ") * 1_500
    (tmp_path / "a.py").write_text(text if shape != "beyond ASCII" else "жжK😀 " * 20_000)
    bounds = {"max_scan_seconds": 0.3}  # pieces of a text are alike, and each takes a tenth of this
    longest = longest_call(lambda: call(tmp_path, "search_text", bounds, query=pattern, mode="regex"))
    assert longest.seconds < MAX_SECONDS, longest.name


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("a(?=b)", r"look-around, \(\?=b"), ("a(?!b)", "look-around"), ("(?<=a)b", "look-around"), ("(?<!a)b", "look-around"),
     (r"(\w)\1", r"back-references, \\1"), ("(?P<x>a)(?P=x)", r"back-references, \(\?P="), ("(?>a)", r"the group \(\?>a"),
     ("(?x) a b", r"the group \(\?x\)"), ("[a", "not closed"), ("[\\", "not closed|not known"), (r"\q", r"the escape \\q"), ("a\\", "the escape"),
     (r"[\q]", r"the escape \\q is not known in a class"), ("(", "unclosed group"), ("*", "repetition")],
)  # fmt: skip
def test_what_the_syntax_does_not_have_is_named(tmp_path: Path, pattern: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        call(tmp_path, "search_text", query=pattern, mode="regex")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [("function .* {", "function f() {", "function f()"), ("{x}", "a{x}", "ax"), ("a{,2}b", "aab", "ac"), ("[[]", "a[", "a]"), ("[]]", "]", "["),
     ("[^]]b", "ab", "]b"), ("[a&&b]c", "&c", "dc"), ("[~~]", "~", "-"), ("[+--]x", "-x", "/x"), (r"[\b]", "\b", "b"), (r"\<p\>", "<p>", "p"),
     (r"\Ax\Z", "x", "xx"), ("(?m)^x$", "x", "xx"), ("(?i:X)y", "xy", "xY"), ("(?-m)^a", "a", "ba"), ("a(?P<n>b|c){2}", "abc", "ab"), (r"\-\_", "-_", "__"),
     ("[[:alpha:]_]=", "_=", "1="), (r"\u0041\x41", "AA", "A"), (r"\p{Lu}x", "Äx", "äx"), ("a{2,}?$", "aaa", "a"), (r"[\]\-x]z", "-z", "az")],
)  # fmt: skip
def test_a_pattern_means_what_it_says(pattern: str, matching: str, other: str) -> None:
    matches = Pattern(pattern, ignore_case=False).matcher(begins=True, ends=True)
    assert (matches(matching), matches(other)) == (True, False)


_ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "_",
        ".",
        "[ab]",
        "[^a]",
        "[]a]",
        "[^]b]",
        "[a-]",
        r"\d",
        r"\w",
        r"\s",
        r"\.",
        "^",
        "$",
        r"\b",
        "é",
        "{",
        "}",
        "[[b]",
    ]
)
_COUNTS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}?", "{2,}", "+?"])


def _patterns(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(st.sampled_from(["(", "(?:", "(?i:", "(?P<n>"]), inner).map(lambda pair: f"{pair[0]}{pair[1]})")
    item = st.tuples(st.one_of(_ATOMS, group), _COUNTS).map("".join)
    return st.tuples(st.lists(item, max_size=4), st.sampled_from(["", "|"]), st.lists(item, max_size=3)).map(
        lambda parts: "".join(parts[0]) + parts[1] + "".join(parts[2])
    )


@given(st.recursive(_ATOMS, _patterns, max_leaves=6), st.text("abAB_é1. -[]{}", max_size=9), st.booleans())
def test_a_pattern_of_the_common_syntax_means_what_it_means_to_python(
    pattern: str, text: str, ignore_case: bool
) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of a bracket in a class
            expected = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error:  # such as a group's name twice, or a repetition of nothing
        return
    try:
        ours = Pattern(pattern, ignore_case=ignore_case)
    except ToolError:  # such as a repetition of a repetition, which is something else to Python
        return
    assert ours.matcher(begins=True, ends=True)(text) == (expected.search(text) is not None)


def test_a_line_that_is_matched_in_parts_is_found_once_and_its_ends_are_those_of_the_line(tmp_path: Path) -> None:
    middle = SOURCE.replace("\n", " ") * 3_000
    (tmp_path / "a.py").write_text(f"first\nbegin {middle} needle=7; {middle} end\nlast\n")

    def found(pattern: str) -> list[int]:
        result = call(tmp_path, "search_text", query=pattern, mode="regex")
        assert result.data["total_matches"] == len(result.data["matches"])
        return [match["line"] for match in result.data["matches"]]

    assert found(r"(?:n[e]{2}dle){1,9}=\d") == [2]
    assert found(rf"place_.{{{4 * len(SOURCE) - 6}}}place") == [2]
    assert found(r"^begin .{200}") == [2]
    assert found(r".{200} end$") == [2]
    assert found(r"^(?:def|needle|[a-z]+=7).{100}") == []
    assert found(r".{100}(?:Order|many)$") == []
    assert found(r"^\w+$") == [1, 3]


def test_what_is_shown_of_a_part_of_a_line_has_marks(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x" * 700_000 + "needle" + "y" * 700_000)
    (match,) = call(tmp_path, "search_text", {"max_line_chars": 100}, query="needle").data["matches"]
    assert "needle" in match["text"]
    assert match["text"].startswith("[cut] ")
    assert match["text"].endswith(" [cut]")


@given(
    st.lists(st.sampled_from(["", "a", "ß", "ab", "abcdefgh0123456789", "абвгдежзи", "😀😁😂😃😄"]), max_size=9),
    st.integers(8, 40),
    st.booleans(),
)
@example(["", "abcdefgh0123456789"], 8, False)
def test_blocks_hold_each_line_with_its_number_and_no_block_is_too_large(
    lines: list[str], size: int, windows: bool
) -> None:
    text = "".join(f"{line}\r\n" if windows else f"{line}\n" for line in lines).encode()
    seen: dict[int, str] = {}
    for block in _scan.blocks(text, size):
        assert len(block.text) <= size
        parts = block.text.decode().split("\n")  # no character is cut
        for index, part in enumerate(parts, block.line):
            known = seen.get(index, "")
            assert block.begins == (index not in seen)
            joined = max(n for n in range(len(part) + 1) if known.endswith(part[:n])) if known else 0
            seen[index] = known + part[joined:]
        if not block.ends:
            assert len(parts) == 1
    assert [seen[index] for index in sorted(seen)] == lines


def test_bytes_that_are_no_text_are_cut_into_blocks_too() -> None:
    found = [block.text for block in _scan.blocks(b"\x80" * 50, 20)]
    assert found == [b"\x80" * 20] * 4


def test_what_is_half_as_long_as_a_block_is_whole_in_one_of_them() -> None:
    text = bytes(range(32, 127)) + b"\nnext"
    for size in (8, 9, 20, 60):
        found = [block.text for block in _scan.blocks(text, size)]
        for start in range(95 - size // 2 + 1):
            assert any(text[start : start + size // 2] in each for each in found), (size, start)


# ------------------------------------------------------------------------------------------------ time


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six hundred files in three directories, which no test changes."""
    folder = tmp_path_factory.mktemp("many")
    for directory in "abc":
        (folder / directory).mkdir()
        for number in range(200):
            (folder / directory / f"{number}.txt").write_text("line\n")
    return folder


@pytest.mark.parametrize(("bound", "files"), [(9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_no_file_is_searched_once_as_many_bytes_as_the_bound_were_read(tmp_path: Path, bound: int, files: int) -> None:
    for name in "abc":
        (tmp_path / name).write_text("0123456789")
    found = call(tmp_path, "search_text", {"max_scan_bytes": bound}, query="nothing").data
    assert found["files_searched"] == files
    assert (f"stopped after {10 * files} bytes" in found.get("stopped", "")) == (files < 3)


@pytest.mark.guarantee("G12")
@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("list_files", {"glob": "*.nothing"}), ("search_text", {"query": "line", "glob": "*.nothing"}), ("search_text", {"query": "nothing"}),
     ("search_text", {"query": "n.thing", "mode": "regex"}), ("search_text", {"query": "nothing", "mode": "words", "glob": "*.nothing"})],
)  # fmt: skip
def test_a_walk_ends_in_time_though_nothing_matches_and_says_so(
    many: Path, name: str, arguments: dict[str, Any]
) -> None:
    result = call(many, name, {"max_scan_seconds": 0.3}, **arguments)
    assert "stopped after 0.3 seconds" in result.message
    assert "stopped after 0.3 seconds" in result.data["stopped"]


@pytest.mark.usefixtures("ticking")
def test_a_directory_of_any_size_is_listed_only_while_there_is_time(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = 0

    def entries() -> Iterator[Any]:
        nonlocal listed
        while True:
            listed += 1
            yield entry

    with os.scandir(many) as scanned:
        entry = next(scanned)
    monkeypatch.setattr(os, "scandir", lambda *_: contextlib.nullcontext(entries()))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    result = call(many, "list_files", {"max_scan_seconds": 0.3})
    assert "stopped after 0.3 seconds" in result.message
    assert listed <= 301


@pytest.mark.guarantee("G12")
@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("mode", ["text", "regex", "words"])
def test_a_file_of_many_lines_is_searched_only_while_there_is_time(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a.txt").write_text("word\n" * 800_000)
    result = call(tmp_path, "search_text", {"max_scan_seconds": 0.012}, query="word", mode=mode)
    assert "stopped after" in result.data["stopped"]
    assert result.data["matches"]
    if mode != "words":
        assert 0 < result.data["total_matches"] < 800_000


@pytest.mark.usefixtures("ticking")
def test_the_best_places_are_chosen_in_a_quarter_of_the_time(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("a word or another\n" * 1_500)
    result = call(tmp_path, "search_text", {"max_scan_seconds": 0.4}, query="word another", mode="words")
    assert "stopped after 0.1 seconds" in result.data["stopped"]
    assert result.data["matches"]


@pytest.mark.usefixtures("ticking")
def test_a_line_is_matched_in_parts_only_while_there_is_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 2_000_000)
    result = call(tmp_path, "search_text", {"max_scan_seconds": 0.1}, query="y{500}[xz]{2}q", mode="regex")
    assert "stopped after 0.1 seconds" in result.data["stopped"]


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("text", [b"x" * 1_000_000, b"\n" * 1_000_000])
def test_lines_are_read_only_while_there_is_time(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    data = call(tmp_path, "read_lines", {"max_scan_seconds": 0.01, "max_read_lines": 2}, path="a.txt").data
    assert data["truncated"] is True
    assert "total_lines" not in data


@pytest.mark.guarantee("G12")
def test_a_line_without_an_end_is_read_up_to_the_bound_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.write(b"x" * 9_000)
        file.truncate(1 << 30)  # a gigabyte, of which the disk holds 9 kB
    read = 0

    class Counting(io.FileIO):
        def readinto(self, buffer: Any, /) -> int:
            nonlocal read
            count = super().readinto(buffer) or 0
            read += count
            return count

    monkeypatch.setattr(io, "FileIO", Counting)
    data = call(tmp_path, "read_lines", {"max_scan_bytes": 1_000_000}, path="a.txt").data
    assert data["truncated"] is True
    assert data["text"].endswith(" [cut]")
    assert 1_000_000 <= read <= 1_200_000


@pytest.mark.usefixtures("ticking")
def test_names_that_are_alike_are_compared_only_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        (tmp_path / f"{'ab' * 80}{number}").touch()
    compared = 0

    class Counted(difflib.SequenceMatcher[str]):
        def ratio(self) -> float:
            nonlocal compared
            compared += 1
            return super().ratio()

    monkeypatch.setattr(_tree, "_SUGGESTION_SECONDS", 1.0)  # of which the walk takes most
    monkeypatch.setattr(difflib, "SequenceMatcher", Counted)
    with pytest.raises(ToolError, match="did you mean"):
        call(tmp_path, "read_lines", path="ba" * 80)
    assert 0 < compared < 400


@pytest.mark.usefixtures("ticking")
def test_ignore_rules_are_read_and_asked_only_while_there_is_time(many: Path, tmp_path: Path) -> None:
    shutil.copytree(many, tmp_path, dirs_exist_ok=True)
    (tmp_path / ".gitignore").write_text("\n".join(f"*{'a*' * 100}{number}" for number in range(900)))
    result = call(tmp_path, "list_files", {"max_scan_seconds": 0.5})
    assert "stopped after 0.5 seconds" in result.message
    with pytest.raises(ToolError, match="takes too long"):
        call(tmp_path, "read_lines", {"max_scan_seconds": 0.3}, path="a/1.txt")


@pytest.mark.guarantee("G14")
def test_no_rule_and_no_glob_holds_the_interpreter_for_long(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a" * 90] * 40)
    deep.mkdir(parents=True)
    (deep / "a.txt").touch()
    (tmp_path / ".gitignore").write_text("\n".join("*a" * 110 + "b" for _ in range(280)))
    bounds, glob = {"max_scan_seconds": 3.0}, "/".join(["**", "*a" * 200])
    longest = longest_call(lambda: call(tmp_path, "list_files", bounds, glob=glob))
    assert longest.seconds < MAX_SECONDS, longest.name
    with pytest.raises(ToolError, match="glob is longer than 500 bytes"):
        call(tmp_path, "list_files", glob="*a" * 300)


def test_a_glob_and_a_query_that_cannot_be_used_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"the glob '\[b-a\]' is not valid; use"):
        call(tmp_path, "list_files", glob="[b-a]")
    for ignore_case in (True, False):
        with pytest.raises(ToolError, match=r"the query is longer than \d+ bytes; look for a part of it"):
            call(tmp_path, "search_text", query="x" * 10_001, ignore_case=ignore_case)


def test_a_rule_that_is_too_long_is_passed_over_and_so_is_one_that_is_cut() -> None:
    rules = parse_gitignore("a" * 251 + "\nb\n", "")
    assert rules is not None
    assert [rules.verdict(path) for path in ("a" * 251, "b")] == [None, True]


def test_an_ignore_file_that_is_too_large_ends_with_its_last_whole_rule(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("#" * 65_525 + "\nx.txt\nkeep" + "ing.md\n" * 99)
    for name in ("x.txt", "keep"):
        (tmp_path / name).touch()
    assert call(tmp_path, "list_files").data["files"] == [".gitignore", "keep"]


SLOW_TO_READ = {
    "halves of characters": b"\xff\xfe" + b"\x00\xd8" * 2_000_000,
    "letters that grow": ("İ" * 2_000_000).encode(),
    "no UTF-8": b"\xff" * 4_000_000,
    "empty lines": b"\n" * 400_000,
    "line ends of Windows": b"\r\n" * 400_000,
}


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("data", SLOW_TO_READ.values(), ids=SLOW_TO_READ)
@pytest.mark.parametrize("query", ["i\N{COMBINING DOT ABOVE}x", "kettle"])
@pytest.mark.parametrize("mode", ["text", "words"])
@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_no_text_that_is_searched_holds_the_interpreter_for_long(
    tmp_path: Path, data: bytes, query: str, mode: str
) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    bounds = {"max_scan_seconds": 1.0}
    longest = longest_call(lambda: call(tmp_path, "search_text", bounds, query=query, mode=mode))
    assert longest.seconds < MAX_SECONDS, longest.name


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("data", SLOW_TO_READ.values(), ids=SLOW_TO_READ)
@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_no_text_that_is_shown_holds_the_interpreter_for_long(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    longest = longest_call(lambda: call(tmp_path, "read_lines", {"max_scan_seconds": 600.0}, path="a.txt"))
    assert longest.seconds < MAX_SECONDS, longest.name


# ------------------------------------------------------------------------------------------------ names


def test_as_many_names_are_looked_at_as_there_may_be_and_the_rest_is_said(many: Path) -> None:
    result = call(many, "list_files", {"max_scan_files": 75})
    assert result.data["total"] == 297  # of 300 names, three are directories
    assert "stopped after 300 names" in result.message
    assert (
        "stopped after 300 names"
        in call(many, "search_text", {"max_scan_files": 75}, query="x", glob="[xyz].md").message
    )


def test_a_glob_that_names_a_directory_looks_at_no_other(many: Path) -> None:
    result = call(many, "list_files", {"max_scan_files": 51}, glob="c/*.txt")
    assert result.data["total"] == 200
    assert "stopped" not in result.data


@pytest.mark.parametrize(
    ("glob", "directory"),
    [("src/**/*.py", "src/"), ("./src/deep/a.py", "src/deep/"), ("src\\deep\\*", "src/deep/"), ("*.py", ""), ("src", ""), ("", ""), ("{a,b}/c/d", ""),
     ("a/{b,c}/d", "a/"), ("a/b[c]/d", "a/"), ("/src/x", "src/"), ("**/a/b", "")],
)  # fmt: skip
def test_the_directory_of_a_glob_is_what_stands_before_its_first_pattern(glob: str, directory: str) -> None:
    assert fixed_directory(glob) == directory


def test_many_names_are_sorted_in_parts_and_stay_in_order(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call(many, "list_files", max_results=1000).data["files"]
    assert whole == sorted(whole)
    monkeypatch.setattr(_tree, "_SORTED_AT_ONCE", 7)
    assert call(many, "list_files", max_results=1000).data["files"] == whole


def test_a_database_in_use_is_not_opened_where_a_listing_ended_before_the_names_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    really = os.open

    def noted(name: Any, *arguments: Any, **options: Any) -> int:
        opened.append(Path(name).name)
        return really(name, *arguments, **options)

    with contextlib.closing(sqlite3.connect(tmp_path / "z.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE limits (x)")
        connection.commit()
        with os.scandir(tmp_path) as scanned:
            first = [entry for entry in scanned if entry.name == "z.db"]
            cut = contextlib.nullcontext(iter(first * 5))
            monkeypatch.setattr(os, "scandir", lambda *_: cut)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        monkeypatch.setattr(os, "open", noted)
        assert call(tmp_path, "list_files", {"max_scan_files": 1}).data["files"] == []
    assert "z.db" not in opened


def test_a_path_of_more_directories_than_a_walk_enters_is_refused(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 45)
    deep.mkdir(parents=True)
    (deep / "a.txt").touch()
    with pytest.raises(ToolError, match="more than 40 directories deep"):
        call(tmp_path, "read_lines", path="d/" * 45 + "a.txt")
    at_the_bound = tmp_path.joinpath(*["d"] * 40)
    (at_the_bound / "b.txt").write_text("here\n")
    assert call(tmp_path, "read_lines", path="d/" * 40 + "b.txt").data["text"] == "1\there"
    assert call(tmp_path, "list_files").data["files"] == ["d/" * 40 + "b.txt"]


@posix
def test_a_file_that_cannot_be_read_to_its_end_is_an_error_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("line\n")

    class Broken(io.FileIO):
        def readinto(self, _buffer: Any, /) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(io, "FileIO", Broken)
    with pytest.raises(ToolError, match=r"'a\.txt' cannot be read: Input/output error"):
        call(tmp_path, "read_lines", path="a.txt")


# ------------------------------------------------------------------------------------------------ swapped for a link


SECRET = "the secret of the outside"


@pytest.fixture(params=["descriptors", "paths"])
def swapped(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a workspace in which one thing becomes a link to the outside at the very moment at which it is opened."""
    if request.param == "paths":
        monkeypatch.setattr(_tree, "_HAS_DIR_FD", False)
    root, outside = tmp_path / "root", tmp_path / "outside"
    for directory in (root / "src", outside / "src"):
        directory.mkdir(parents=True)
    (root / "src" / "app.py").write_text("harmless\n")
    (root / ".gitignore").write_text("*.log\n")
    (outside / "src" / "app.py").write_text(f"{SECRET}\n")
    (outside / ".gitignore").write_text("src/\n")
    really = os.open

    def prepare(path: str) -> Path:
        def swapping(name: Any, *arguments: Any, **options: Any) -> int:
            if Path(name).name == Path(path).name and not (root / path).is_symlink():
                (root / path).rename(root / "aside")
                (root / path).symlink_to(outside / path)
            return really(name, *arguments, **options)

        monkeypatch.setattr(os, "open", swapping)
        return root

    return prepare


@posix
def test_a_file_that_becomes_a_link_while_it_is_opened_is_not_read(swapped: Callable[[str], Path]) -> None:
    root = swapped("src/app.py")
    with pytest.raises(ToolError, match=r"'src/app\.py' cannot be read"):
        call(root, "read_lines", path="src/app.py")
    assert (root / "src/app.py").is_symlink()


@posix
@pytest.mark.parametrize("mode", ["text", "regex", "words"])
def test_a_file_that_becomes_a_link_while_it_is_opened_is_not_searched(
    swapped: Callable[[str], Path], mode: str
) -> None:
    root = swapped("src/app.py")
    result = call(root, "search_text", query="secret", mode=mode)
    assert (root / "src/app.py").is_symlink()
    assert (result.data["matches"], result.data["files_searched"]) == ([], 1)


@posix
@pytest.mark.parametrize("swapped", ["descriptors"], indirect=True)  # without them, a directory has no such protection
@pytest.mark.parametrize("tool", ["read_lines", "search_text", "list_files"])
def test_a_directory_that_becomes_a_link_while_it_is_opened_is_not_entered(
    swapped: Callable[[str], Path], tool: str
) -> None:
    root = swapped("src")
    if tool == "read_lines":
        with pytest.raises(ToolError, match=r"no such file|cannot be read"):
            call(root, tool, path="src/app.py")
    else:
        data = call(root, tool, bounds=None, **({"query": "secret"} if tool == "search_text" else {})).data
        assert (data.get("matches", []), data.get("files", [".gitignore"])) == ([], [".gitignore"])
    assert (root / "src").is_symlink()


@posix
def test_an_ignore_file_that_becomes_a_link_while_it_is_opened_says_nothing(swapped: Callable[[str], Path]) -> None:
    root = swapped(".gitignore")
    assert "src/app.py" in call(root, "list_files").data["files"]
    assert (root / ".gitignore").is_symlink()


def test_a_path_of_any_length_is_refused_in_few_words(tmp_path: Path) -> None:
    for path in ("x" * 60_000, "./" * 30_000 + "x", "x/" * 1_900, "x" * 3_900, "x" * 300, "x" * 300 + "/y"):
        with pytest.raises(ToolError) as refused:
            call(tmp_path, "read_lines", path=path)
        assert len(str(refused.value)) < 500


def test_only_the_first_hits_of_a_long_search_are_kept():
    found = [(path, [Hit(number, path) for number in range(4)]) for path in "abc"]
    assert _forget(found, 6) == 6
    assert [(path, len(hits)) for path, hits in found] == [("a", 4), ("b", 2), ("c", 0)]


@posix
def test_without_open_directories_a_path_through_a_link_is_refused(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("x")
    (tmp_path / "link").symlink_to("a")
    _tree._check_no_link(str(tmp_path / "a" / "b.txt"))
    with pytest.raises(FileNotFoundError):
        _tree._check_no_link(str(tmp_path / "link" / "b.txt"))


def test_rules_that_are_compiled_together_have_a_bound(monkeypatch: pytest.MonkeyPatch):
    groups: list[int] = []

    def any_of(rules: list[str]) -> None:
        groups.append(len(rules))

    monkeypatch.setattr(_globs, "_any_of", any_of)
    monkeypatch.setattr(_globs, "_GROUP_BYTES", 8)
    parse_gitignore("ab\ncd\nef\ngh\nij\n!kl\nmn\n", "")
    assert groups == [1, 1, 1, 4]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_blocks_are_whole_lines_or_parts_of_one_line_that_overlap(size: int):
    for letters in itertools.product(b"a\n", repeat=9):
        text = bytes(letters)
        lines = text.removesuffix(b"\n").split(b"\n")
        seen: dict[int, bytes] = {}
        for block in _scan.blocks(text, size):
            assert len(block.text) <= size
            if block.begins and block.ends:
                whole = block.text.split(b"\n")
                assert lines[block.line : block.line + len(whole)] == whole
                seen |= dict(enumerate(whole, start=block.line))
            else:
                before = seen.get(block.line, b"")
                overlap = 0 if block.begins else size - size // 2
                assert b"\n" not in block.text
                seen[block.line] = before[: len(before) - overlap] + block.text
        assert [seen[number] for number in sorted(seen)] == lines


def test_a_block_ends_before_a_character_or_within_what_is_none():
    assert [_scan._before_character(b"a\xf0\x9f\x98\x80b", at) for at in range(1, 6)] == [1, 1, 1, 1, 5]
    assert _scan._before_character(b"a\x80\x80\x80\x80", 4) == 4


def test_a_file_of_as_many_bytes_as_are_searched_is_searched_whole(tmp_path: Path):
    for name, text in (("a.txt", "abc\n"), ("b.txt", "abcd\n")):
        (tmp_path / name).write_text(text)
    found = call(tmp_path, "search_text", {"max_file_bytes": 4}, query="abc").data
    assert [each["path"] for each in found["matches"]] == ["a.txt"]
    assert found["skipped_too_large"] == ["b.txt"]


@pytest.mark.parametrize(
    ("chars", "at", "shown"),
    [(6, 0, "abcdef"), (5, 0, "abcde [cut]"), (2, 0, "ab [cut]"), (3, 3, "[cut] cde [cut]"), (3, 6, "[cut] def")],
)
def test_a_long_line_is_cut_around_what_was_found(chars: int, at: int, shown: str):
    assert _scan.cut_line("abcdef", chars, at) == shown
    if not at:
        assert _scan.cut_line("abcdef", chars) == shown
