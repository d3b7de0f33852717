"""The workspace tools: what they find, that they never leave their root, and that they say what they cut."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolbus import Runtime
from toolbus.errors import ConfigurationError, InvalidArguments, ToolError
from toolbus.messages import ToolMessage
from toolbus.testing import ScriptedProvider, calls
from toolbus.testing import text as answer
from toolbus.tool_results import render
from toolbus.toolsets._files import tree as _tree
from toolbus.toolsets._files.scan import cut_line
from toolbus.toolsets.workspace import _rank, workspace_tools

posix = pytest.mark.skipif(sys.platform == "win32", reason="symbolic links and FIFOs")


class Workspace:
    """Calls the tools as a dispatcher does, and gives the data and the message of the result."""

    def __init__(self, root: str | Path, **bounds: Any) -> None:
        bounds.setdefault("max_scan_seconds", 600.0)  # A search that a slow machine cuts finds less.
        self._tools = {tool.name: tool for tool in workspace_tools(root, **bounds)}
        self.message = ""

    def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = self._tools[name].prepare(arguments, None)()
        render(result)
        self.message = result.message
        return result.data

    def lines(self, path: str, **arguments: Any) -> list[str]:
        return self("read_lines", path=path, **arguments)["text"].split("\n")

    def found(self, query: str, **arguments: Any) -> list[tuple[str, int]]:
        return [(match["path"], match["line"]) for match in self("search_text", query=query, **arguments)["matches"]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "app.py").write_text("import os\n\nLIMIT = 3\n\n\ndef run(limit=LIMIT):\n    return limit\n")
    (root / "src" / "deep" / "other.ts").write_text("export const Limit = 4\r\nlast\r\n", newline="")
    (root / "notes.md").write_text("# Notes\n\nthe limit is soft\n")
    (tmp_path / "secret.txt").write_text("limit of the outside\n")
    return root


@pytest.fixture(params=["descriptors", "paths"])
def opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to open files: by descriptors of directories, and by path where a platform has none."""
    if request.param == "paths":
        monkeypatch.setattr(_tree, "_HAS_DIR_FD", False)
    elif not _tree._HAS_DIR_FD:  # pyright: ignore[reportPrivateUsage]
        pytest.skip("no descriptors of directories here")
    return request.param


# ------------------------------------------------------------------------------------------------ finding


@pytest.mark.usefixtures("opening")
def test_files_are_listed_in_order_with_paths_relative_to_the_root(tree: Path) -> None:
    assert Workspace(tree)("list_files")["files"] == ["notes.md", "src/app.py", "src/deep/other.ts"]


@pytest.mark.parametrize(
    ("glob", "files"),
    [("*.py", ["src/app.py"]), ("src", ["src/app.py", "src/deep/other.ts"]), ("src/*", ["src/app.py", "src/deep/other.ts"]),
     ("src/**/*.ts", ["src/deep/other.ts"]), ("**/*.ts", ["src/deep/other.ts"]), ("*.{md,ts}", ["notes.md", "src/deep/other.ts"]),
     ("./notes.md", ["notes.md"]), ("n?tes.[lm]d", ["notes.md"]), ("[!n]*.py", ["src/app.py"]), ("*.go", []),
     ("{**/app*,**/deep/*}", ["src/app.py", "src/deep/other.ts"]), ("**", ["notes.md", "src/app.py", "src/deep/other.ts"])],
)  # fmt: skip
def test_a_glob_means_names_at_any_depth_or_whole_paths(tree: Path, glob: str, files: list[str]) -> None:
    assert Workspace(tree)("list_files", glob=glob)["files"] == files


@pytest.mark.parametrize("glob", ["app/[id]/page.ts", "app/[id]", "app/[id]/*", "{app,lib}/[id]/**"])
def test_brackets_in_a_glob_also_match_the_same_brackets_in_a_name(tmp_path: Path, glob: str) -> None:
    for name in ("app/[id]/page.ts", "app/i/page.ts", "app/x/page.ts"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert Workspace(tmp_path)("list_files", glob=glob)["files"] == ["app/[id]/page.ts", "app/i/page.ts"]


def test_a_search_for_text_gives_path_line_and_text(tree: Path) -> None:
    data = Workspace(tree)("search_text", query="limit = ")
    assert data["matches"] == [
        {"path": "src/app.py", "line": 3, "text": "LIMIT = 3"},
        {"path": "src/deep/other.ts", "line": 1, "text": "export const Limit = 4"},
    ]
    assert data["total_matches"] == 2
    assert data["files_searched"] == 3


def test_case_counts_when_asked_to(tree: Path) -> None:
    assert Workspace(tree).found("Limit", ignore_case=False) == [("src/deep/other.ts", 1)]


def test_letters_beyond_ascii_have_case_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\nGRÖSSE\n", encoding="utf-8")
    assert Workspace(tmp_path).found("größe".replace("ß", "ss")) == [("a.txt", 2)]
    assert Workspace(tmp_path).found("GRÖ", ignore_case=False) == [("a.txt", 2)]


@pytest.mark.parametrize(
    ("pattern", "places"),
    [(r"^def \w+\(", [("src/app.py", 6)]), (r"Limit\b", [("notes.md", 3), ("src/app.py", 3), ("src/app.py", 6), ("src/app.py", 7), ("src/deep/other.ts", 1)]),
     (r"\Alast\z", [("src/deep/other.ts", 2)]), (r"^last$", [("src/deep/other.ts", 2)]), ("nothing.*here", [])],
)  # fmt: skip
def test_a_regular_expression_matches_line_by_line(tree: Path, pattern: str, places: list[tuple[str, int]]) -> None:
    assert Workspace(tree).found(pattern, mode="regex") == places


def test_a_pattern_that_would_backtrack_for_ever_is_matched_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 100_000 + "!\n")
    assert Workspace(tmp_path).found(r"^(a+)+$", mode="regex") == []


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", r"(\w)\1"])
def test_a_bad_pattern_is_explained(tree: Path, pattern: str) -> None:
    with pytest.raises(ToolError, match=r"is not valid: .*mode='text'"):
        Workspace(tree)("search_text", query=pattern, mode="regex")


@pytest.mark.parametrize(("query", "problem"), [("", "empty"), ("  ", "empty"), ("a\nb", "several lines")])
def test_a_query_that_can_match_nothing_is_refused(tree: Path, query: str, problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        Workspace(tree)("search_text", query=query)


def test_words_without_a_letter_are_refused(tree: Path) -> None:
    with pytest.raises(ToolError, match="no word"):
        Workspace(tree)("search_text", query="?? !!", mode="words")


def test_nothing_found_says_how_much_was_searched(tree: Path) -> None:
    workspace = Workspace(tree)
    assert workspace.found("zebra") == []
    assert workspace.message == "no line of 3 files matches 'zebra'"
    assert workspace.found("zebra", mode="words") == []
    assert workspace.message == "none of the words occurs in any of 3 files"


def test_tests_come_last_whatever_their_path(tmp_path: Path) -> None:
    for name in ("a_test.py", "tests/b.py", "z.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("needle\n")
    assert [path for path, _ in Workspace(tmp_path).found("needle")] == ["z.py", "a_test.py", "tests/b.py"]


def test_an_empty_workspace_says_so(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert workspace("list_files") == {"files": [], "total": 0}
    assert workspace.message == "the workspace has no files"
    workspace("list_files", glob="*.x")
    assert workspace.message == "no file matches '*.x'"


# ------------------------------------------------------------------------------------------------ ranking


def test_words_that_stand_together_come_before_words_apart(tmp_path: Path) -> None:
    (tmp_path / "apart.txt").write_text("kettle\n" + "filler\n" * 40 + "whistle\n")
    (tmp_path / "near.txt").write_text("filler\n" * 40 + "the kettle\nmay whistle\n")
    (tmp_path / "one.txt").write_text("kettle\n")
    data = Workspace(tmp_path)("search_text", query="kettle whistle", mode="words")
    assert data["matches"][0]["path"] == "near.txt"
    assert sorted(data["matches"][0]["words"]) == ["kettle", "whistle"]
    assert data["files_with_word"] == {"kettle": 3, "whistle": 2}


def test_a_definition_ranks_above_its_uses_and_an_import_below(tmp_path: Path) -> None:
    (tmp_path / "a_import.py").write_text("from stove import simmer\n")
    (tmp_path / "b_use.py").write_text("x = 1\nsimmer(pot)\n")
    (tmp_path / "c_define.py").write_text("x = 1\ndef simmer(pot):\n    return pot\n")
    found = Workspace(tmp_path).found("simmer", mode="words")
    assert found == [("c_define.py", 2), ("b_use.py", 2), ("a_import.py", 1)]


def test_words_are_searched_in_files_that_are_all_empty(tmp_path: Path) -> None:
    (tmp_path / "kettle.py").touch()
    assert Workspace(tmp_path).found("kettle", mode="words") == []


def test_a_file_that_is_named_like_the_word_ranks_first(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("kettle = 1\n")
    (tmp_path / "kettles.py").write_text("kettle = 1\n")
    (tmp_path / "tea_pots").mkdir()
    (tmp_path / "tea_pots" / "__init__.py").write_text("\n\nboils = True\n")
    workspace = Workspace(tmp_path)
    assert workspace.found("kettle", mode="words")[0][0] == "kettles.py"
    assert workspace.found("tea pot", mode="words")[0] == ("tea_pots/__init__.py", 3)


def test_the_words_of_an_identifier_in_a_path_are_found(tmp_path: Path) -> None:
    for name in ("Deserver.py", "HTTPServer.py"):
        (tmp_path / name).write_text("server = 1\n")
    assert Workspace(tmp_path).found("server", mode="words")[0][0] == "HTTPServer.py"


@pytest.mark.parametrize(
    ("word", "lines"),
    [("limit", [1, 2, 3, 4]), ("log", [6, 7, 9]), ("size", [10])],
)
def test_words_match_beginnings_parts_of_identifiers_and_ends_of_compounds(
    tmp_path: Path, word: str, lines: list[int]
) -> None:
    texts = [
        "limits",
        "max_limit",
        "maxLimit",
        "Limited",
        "unrelated",
        "log it",
        "logging",
        "logic",
        "myLog",
        "BLOCKSIZE",
    ]
    for number, text in enumerate(texts, start=1):
        (tmp_path / f"{number}.txt").write_text(text + "\n")
    assert sorted(int(path.split(".")[0]) for path, _ in Workspace(tmp_path).found(word, mode="words")) == lines


@pytest.mark.parametrize("end", ["\r\n", "\r\n\r\n"])
def test_the_end_of_the_last_line_of_windows_is_before_its_line_break(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.txt").write_bytes(f"x\r\nfoo{end}".encode())
    assert Workspace(tmp_path).found("foo$", mode="regex") == [("a.txt", 2)]


@pytest.mark.parametrize("mode", ["text", "words"])
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("лимит", "Лимит запросов"),
        ("ЛИМИТ", "лимита"),
        ("Änderung", "die Änderung"),
        ("οδος", "ΟΔΟΣ"),
        # The lower case of these letters has more bytes, or fewer.
        ("лимит", "\u0130\u0130 Лимит"),
        ("лимит", "300 \u212a, Лимит"),
    ],
)
def test_a_word_of_any_alphabet_is_found_in_both_cases(tmp_path: Path, mode: str, query: str, text: str) -> None:
    (tmp_path / "a.txt").write_text(f"x\n{text}\n", encoding="utf-8")
    assert Workspace(tmp_path).found(query, mode=mode) == [("a.txt", 2)]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("温度の上限はどこで設定しますか\uff1f", "# 上限を設定する"),
        ("如何设置最大重试次数", "重试的次数最大为 5。"),
        ("설정을 바꾸기", "설정이 바뀐다"),
        ("API「設定」", "設定"),
    ],
)
def test_words_are_found_where_a_language_puts_no_spaces_between_them(tmp_path: Path, query: str, text: str) -> None:
    (tmp_path / "a.txt").write_text(f"x\n{text}\n", encoding="utf-8")
    assert Workspace(tmp_path).found(query, mode="words") == [("a.txt", 2)]


def test_letters_whose_other_case_is_longer_do_not_change_what_a_word_counts() -> None:
    text = "\u0130maxLimit \u212a\xff Лимит".encode() + b"\xff"
    folded = _rank._folded(text)  # pyright: ignore[reportPrivateUsage]
    assert folded == "\u0130maxlimit \u212a\xff лимит".encode() + b"\xff"
    looked_for = _rank._Word("limit", b"limit")  # pyright: ignore[reportPrivateUsage]
    assert looked_for.count(text, folded) == 1


def test_minified_text_ranks_below_what_people_wrote(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("x;" * 400 + "kettle;" + "y;" * 400 + "\n")
    (tmp_path / "b.js").write_text("kettle;\n" + "// more\n" * 150)
    assert Workspace(tmp_path).found("kettle", mode="words")[0][0] == "b.js"


def test_a_heading_ranks_above_the_text_below_other_headings(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Other\n\nkettle\n" + "\n" * 20 + "# Kettle\n\nboils\n")
    assert Workspace(tmp_path).found("kettle", mode="words") == [("a.md", 24), ("a.md", 3)]


# ------------------------------------------------------------------------------------------------ reading


@pytest.mark.usefixtures("opening")
def test_lines_are_read_with_their_numbers(tree: Path) -> None:
    workspace = Workspace(tree)
    data = workspace("read_lines", path="src/app.py", start=2, end=3)
    assert data == {"path": "src/app.py", "start": 2, "end": 3, "text": "2\t\n3\tLIMIT = 3", "total_lines": 7}
    assert workspace.message == "src/app.py, lines 2 to 3 of 7"


def test_windows_line_ends_are_no_part_of_the_lines(tree: Path) -> None:
    assert Workspace(tree).lines("src/deep/other.ts") == ["1\texport const Limit = 4", "2\tlast"]


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"\xef\xbb\xbfkettle\n", "kettle"), ("kettle\n".encode("utf-16"), "kettle"),
     ("kettle".encode("utf-16") + b"x", "kettle\ufffd"), (b"k\xe9ttle\n", "k\ufffdttle"),
     (b"ket\x0ctle\n", "ket\x0ctle"), ("ket\u2028tle\n".encode(), "ket\u2028tle"), (b"no end", "no end")],
)  # fmt: skip
def test_encodings_that_are_off_are_read_all_the_same(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    workspace = Workspace(tmp_path)
    assert workspace.lines("a.txt") == [f"1\t{text}"]
    assert workspace.found(text[:2]) == [("a.txt", 1)]


def test_a_line_with_bytes_that_are_no_text_is_found_by_a_regular_expression(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"k\xe9ttle\n\nx\xff\nmug\n")
    workspace = Workspace(tmp_path)
    for query in ("k.ttle", "k.ttle|mug"):
        match = workspace("search_text", query=query, mode="regex")["matches"][0]
        assert (match["line"], match["text"]) == (1, "k\ufffdttle")  # as it is read
    assert workspace.lines("a.txt")[0] == "1\tk\ufffdttle"


def test_a_replacement_character_that_is_in_the_file_is_found_by_a_regular_expression(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("k\ufffdttle\nk?ttle\n", encoding="utf-8")
    matches = Workspace(tmp_path)("search_text", query="k\ufffdt+le", mode="regex")["matches"]
    assert [(each["line"], each["text"]) for each in matches] == [(1, "k\ufffdttle")]


def test_binary_files_are_not_searched_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"kettle\0\n")
    workspace = Workspace(tmp_path)
    assert workspace.found("kettle") == []
    with pytest.raises(ToolError, match=r"'a\.bin' is a binary file"):
        workspace("read_lines", path="a.bin")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"path": "src/app.py", "start": 5, "end": 4}, "end must not be below start"), ({"path": "src/app.py", "start": 99}, "has 7 lines; line 99"),
     ({"path": "src"}, r"is a directory; call list_files with glob='src/\*\*'"), ({"path": "."}, "is a directory"), ({"path": " "}, "empty"),
     ({"path": "app.py"}, "no such file: 'app.py'; did you mean 'src/app.py'?"), ({"path": "src/ap.py"}, "did you mean 'src/app.py'"),
     ({"path": "ap.x"}, "did you mean 'src/app.py'"),
     ({"path": "src/app.py/x"}, "no such file"), ({"path": "zzz"}, "no such file: 'zzz'$"), ({"path": "x" * 5000}, r"no such file: 'x+'\.\.\. is longer than 4000 bytes")],
)  # fmt: skip
@pytest.mark.usefixtures("opening")
def test_a_call_that_cannot_work_tells_what_would(tree: Path, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        Workspace(tree)("read_lines", **arguments)


def test_an_empty_file_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(ToolError, match=r"'a\.txt' has 0 lines; line 1 is past its end"):
        Workspace(tmp_path)("read_lines", path="a.txt")


@pytest.mark.parametrize("arguments", [{"path": "a", "start": 0}, {"path": "a", "end": -1}, {"path": 3}, {}])
def test_arguments_of_a_wrong_kind_never_reach_the_handler(tree: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments):
        Workspace(tree)("read_lines", **arguments)


# ------------------------------------------------------------------------------------------------ staying inside


@pytest.mark.parametrize(
    "path", ["../secret.txt", "src/../../secret.txt", "/etc/passwd", "..", "/", "src/deep/../../../secret.txt"]
)
@pytest.mark.usefixtures("opening")
def test_a_path_out_of_the_root_is_refused(tree: Path, path: str) -> None:
    with pytest.raises(ToolError, match="outside of the workspace"):
        Workspace(tree)("read_lines", path=path)


def test_a_refusal_does_not_tell_what_is_out_there(tree: Path) -> None:
    reported: list[str] = []
    for name in ("secret.txt", "missing.txt"):
        with pytest.raises(ToolError) as caught:
            Workspace(tree)("read_lines", path=f"../{name}")
        reported.append(str(caught.value).replace(name, ""))
    assert reported[0] == reported[1]


def test_a_nul_in_a_path_is_refused(tree: Path) -> None:
    with pytest.raises(ToolError, match="NUL"):
        Workspace(tree)("read_lines", path="src/app.py\0.txt")


def test_an_absolute_path_inside_of_the_root_is_understood(tree: Path) -> None:
    assert Workspace(tree)("read_lines", path=str(tree / "notes.md"))["path"] == "notes.md"


@posix
@pytest.mark.usefixtures("opening")
def test_a_link_out_of_the_root_leads_nowhere(tree: Path) -> None:
    (tree / "link.txt").symlink_to(tree.parent / "secret.txt")
    (tree / "up").symlink_to(tree.parent)
    workspace = Workspace(tree)
    for path in ("link.txt", "up/secret.txt"):
        with pytest.raises(ToolError, match="outside of the workspace"):
            workspace("read_lines", path=path)
    assert workspace.found("outside") == []
    assert not [path for path in workspace("list_files")["files"] if "link" in path or "up" in path]


@posix
@pytest.mark.usefixtures("opening")
def test_a_link_that_stays_inside_is_followed_to_the_real_file(tree: Path) -> None:
    (tree / "alias").symlink_to(tree / "src")
    (tree / "loop").symlink_to(tree / "loop")
    workspace = Workspace(tree)
    assert workspace("read_lines", path="alias/app.py")["path"] == "src/app.py"
    with pytest.raises(ToolError):
        workspace("read_lines", path="loop")


@posix
def test_a_directory_that_becomes_a_link_between_check_and_open_leads_nowhere(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tree.parent / "outside"
    outside.mkdir()
    (outside / "app.py").write_text("limit of the outside\n")
    workspace = Workspace(tree)
    real: Any = os.path.realpath

    def swapped(path: Any, *, strict: bool = False) -> str:
        resolved = real(path, strict=strict)
        if not (tree / "src").is_symlink():
            (tree / "src").rename(tree / "gone")
            (tree / "src").symlink_to(outside)
        return resolved

    monkeypatch.setattr("os.path.realpath", swapped)
    with pytest.raises(ToolError):
        workspace("read_lines", path="src/app.py")


@posix
@pytest.mark.usefixtures("opening")
def test_a_fifo_and_a_socket_neither_hang_nor_break_a_call(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tree / "sock"))
        workspace = Workspace(tree)
        assert len(workspace("list_files")["files"]) == 3
        assert workspace.found("soft") == [("notes.md", 3)]
        for name in ("pipe", "sock"):
            with pytest.raises(ToolError, match=r"not a regular file|cannot be read"):
                workspace("read_lines", path=name)


@posix
def test_what_may_not_be_read_is_passed_over(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., int] = os.open

    def guarded(path: Any, *arguments: Any, **options: Any) -> int:
        if path in ("app.py", "deep"):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    (tree / "src" / "later.txt").write_text("limit\n")
    workspace = Workspace(tree)
    monkeypatch.setattr("os.open", guarded)
    assert workspace.found("limit") == [("notes.md", 3), ("src/later.txt", 1)]
    with pytest.raises(ToolError, match=r"'src/app.py' cannot be read: Permission denied"):
        workspace("read_lines", path="src/app.py")


@posix
@pytest.mark.skipif(sys.platform == "darwin", reason="names are UTF-8 there")
def test_names_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"bad\xff.txt")).write_bytes(b"limit\n")
    (tmp_path / "good.txt").write_text("limit\n")
    workspace = Workspace(tmp_path)
    assert workspace("list_files")["files"] == ["good.txt"]
    assert workspace.found("limit") == [("good.txt", 1)]


def test_directories_too_deep_to_walk_are_left_out(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 60)
    deep.mkdir(parents=True)
    (deep / "a.txt").write_text("limit\n")
    (tmp_path / "b.txt").write_text("limit\n")
    assert Workspace(tmp_path).found("limit") == [("b.txt", 1)]


# ------------------------------------------------------------------------------------------------ root and bounds


def test_a_root_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.*No such file"):
        workspace_tools(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"'.*file' is not a directory"):
        workspace_tools(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        workspace_tools("a\0b")


def test_a_root_that_goes_away_is_an_error_for_the_model(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    workspace = Workspace(root)
    root.rmdir()
    with pytest.raises(ToolError, match="cannot be read any more"):
        workspace("list_files")


@pytest.mark.parametrize("bound", ["max_results", "max_result_bytes", "max_line_chars", "max_scan_seconds"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_bound_of_nothing_is_refused(tmp_path: Path, bound: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{bound} is "):
        Workspace(tmp_path, **{bound: value})


def test_more_matches_than_fit_are_cut_and_said(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("limit\n" * 10)
    workspace = Workspace(tmp_path, max_results=12)
    data = workspace("search_text", query="limit")
    assert len(data["matches"]) == 12
    assert (data["total_matches"], data["truncated"], data["more_in"]) == (30, True, ["c.txt"])
    assert workspace.message.startswith("cut: the first 12 of 30 matching lines in 3 files")


def test_a_word_that_stands_everywhere_is_counted_in_full(tmp_path: Path) -> None:
    for number in range(80):
        (tmp_path / f"{number:02}.txt").write_text("limit\n" * 5)
    (tmp_path / "test_a.txt").write_text("limit\n")
    data = Workspace(tmp_path, max_results=2)("search_text", query="limit")
    assert data["total_matches"] == 401
    assert [match["path"] for match in data["matches"]] == ["00.txt", "00.txt"]


@pytest.mark.parametrize("mode", ["text", "words"])
def test_results_stay_below_their_bytes(tmp_path: Path, mode: str) -> None:
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text("limit " + "x" * 250 + "\n")
    workspace = Workspace(tmp_path, max_result_bytes=2_000)
    data = workspace("search_text", query="limit", mode=mode)
    assert data["truncated"] is True
    assert len(render(data).content) < 3_000


async def test_the_model_gets_results_as_the_tools_have_cut_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f'{{"line": "{number}"}}\n' for number in range(2_000)))
    provider = ScriptedProvider([calls(("read_lines", {"path": "a.txt"})), answer("Read.")])
    async with Runtime(provider, tools=workspace_tools(tmp_path)) as runtime:
        result = await runtime.run("Read it.")
    reported = provider.requests[1].messages[-1]
    assert isinstance(reported, ToolMessage)
    assert reported.content == result.tool_calls[0].content
    assert len(reported.content) > 4_000


def test_a_long_list_of_files_is_cut_and_counted_by_directory(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"d{number % 2}").mkdir(exist_ok=True)
        (tmp_path / f"d{number % 2}" / f"{number}.txt").write_text("")
    workspace = Workspace(tmp_path)
    data = workspace("list_files", max_results=5)
    assert len(data["files"]) == 5
    assert (data["total"], data["truncated"], data["directories"]) == (30, True, {"d0": 15, "d1": 15})
    assert workspace.message == "cut: the first 5 of 30 files; narrow the glob"
    few = Workspace(tmp_path, max_scan_files=2)
    assert few("list_files")["total"] == 6  # of eight names, two are those of the directories
    assert (
        few.message
        == "6 files; stopped after 8 names of files and directories, so there may be more; name a directory in the glob"
    )


@pytest.mark.parametrize(("bound", "shown"), [(8, ["a", "b"]), (7, ["a"])])
def test_of_a_list_of_files_as_many_are_shown_as_their_json_has_room_for(
    tmp_path: Path, bound: int, shown: list[str]
) -> None:
    for name in "ab":
        (tmp_path / name).touch()
    assert Workspace(tmp_path, max_result_bytes=bound)("list_files")["files"] == shown


def test_reading_stops_at_the_bound_and_says_where_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    workspace = Workspace(tmp_path, max_read_lines=10)
    data = workspace("read_lines", path="a.txt")
    assert (data["end"], data["total_lines"], data["truncated"]) == (10, 100, True)
    assert workspace.message == "a.txt, lines 1 to 10 of 100; cut, continue with start=11"
    assert workspace("read_lines", path="a.txt", start=95)["end"] == 100
    assert "truncated" not in workspace("read_lines", path="a.txt", start=99, end=2000)
    by_bytes = Workspace(tmp_path, max_result_bytes=50)("read_lines", path="a.txt", end=20)
    assert by_bytes["truncated"] is True
    assert by_bytes["end"] < 10


def test_a_line_without_end_is_cut_with_a_mark_around_the_match(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 200_000 + "needle" + "y" * 200_000 + "\nsecond\n")
    workspace = Workspace(tmp_path, max_line_chars=100)
    (match,) = workspace("search_text", query="needle")["matches"]
    assert "needle" in match["text"]
    assert match["text"].startswith("[cut] ")
    assert match["text"].endswith(" [cut]")
    assert len(match["text"]) < 120
    lines = workspace.lines("a.txt")
    assert len(lines[0]) < 120
    assert lines[1] == "2\tsecond"
    (tmp_path / "b.txt").write_text("x" + " " * 70_000 + "far\nsecond\n")
    assert workspace.lines("b.txt") == ["1\tx [cut]", "2\tsecond"]


def test_files_above_the_size_are_named_and_not_searched(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("limit\n" * 1000)
    (tmp_path / "big.bin").write_bytes(b"\0" * 6000)
    (tmp_path / "small.txt").write_text("limit\n")
    data = Workspace(tmp_path, max_file_bytes=1000)("search_text", query="limit")
    assert [match["path"] for match in data["matches"]] == ["small.txt"]
    assert data["skipped_too_large"] == ["big.txt"]


@pytest.mark.parametrize(
    ("bound", "said"),
    [({"max_scan_files": 2}, "stopped after 2 files"), ({"max_scan_bytes": 10}, "stopped after 12 bytes"),
     ({"max_scan_seconds": 1e-9}, "stopped after 1e-09 seconds")],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["text", "words"])
def test_a_search_that_spends_its_budget_says_so(tmp_path: Path, bound: dict[str, Any], said: str, mode: str) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("limit\n")
    workspace = Workspace(tmp_path, **bound)
    assert said in workspace("search_text", query="limit", mode=mode)["stopped"]
    assert said in workspace.message


def test_a_file_too_long_to_count_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line\n" * 1000)
    workspace = Workspace(tmp_path, max_scan_bytes=100)
    data = workspace("read_lines", path="a.txt", end=3)
    assert "total_lines" not in data
    assert data["truncated"] is True
    with pytest.raises(ToolError, match="too large to read at line 900"):
        workspace("read_lines", path="a.txt", start=900)


def test_the_tools_describe_themselves_to_a_model(tmp_path: Path) -> None:
    for tool in workspace_tools(tmp_path):
        assert tool.description
        assert not tool.is_async
        for name, schema in tool.parameters["properties"].items():
            assert schema.get("description"), name


def test_a_database_in_use_is_never_opened_since_its_process_would_lose_its_locks(
    tree: Path, opening: str, monkeypatch: pytest.MonkeyPatch
):
    opened: list[str] = []
    really = os.open

    def noted(name: Any, *arguments: Any, **options: Any) -> int:
        opened.append(Path(name).name)
        return really(name, *arguments, **options)

    with contextlib.closing(sqlite3.connect(tree / "z.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE limits (x)")
        connection.commit()
        assert (tree / "z.db-wal").exists()
        monkeypatch.setattr(os, "open", noted)
        workspace = Workspace(tree)
        assert workspace.found("limit")
        for name in ("z.db", "z.db-wal", "z.db-shm"):
            with pytest.raises(ToolError, match=f"'{name}' belongs to an SQLite database that is in use"):
                workspace.lines(name)
    assert [name for name in opened if name.startswith("z.db")] == []
    assert "app.py" in opened


def test_a_word_that_begins_a_part_of_the_path_counts_from_four_letters_on() -> None:
    words = [_rank._Word(word, word.encode()) for word in ("log", "logg")]  # pyright: ignore[reportPrivateUsage]
    assert _rank._in_path("src/my_logger.py", words) == [0.0, 0.7]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("at", "shown"), [(0, "ABCDEFGHIJ [cut]"), (12, "[cut] JKLMNOPQRS [cut]"), (25, "[cut] QRSTUVWXYZ")]
)
def test_a_line_is_cut_to_its_length_around_a_character_and_at_both_ends(at: int, shown: str) -> None:
    assert cut_line("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 10, at) == shown


@pytest.mark.parametrize(
    ("word", "text", "counts"),
    [
        ("limit", "limit", 1),
        ("limit", "token_limit, maxLimit; the limit", 3),
        ("size", "blocksize", 0.7),
        ("limit", "delimiter", 0.15),
        ("log", "log logs logged logic", 3),
        ("log", "catalog", 0),
    ],
)
def test_a_word_counts_whole_where_it_begins_and_less_inside_of_another(word: str, text: str, counts: float) -> None:
    looked_for = _rank._Word(word, word.encode())  # pyright: ignore[reportPrivateUsage]
    assert looked_for.count(text.encode(), text.lower().encode()) == pytest.approx(counts)
