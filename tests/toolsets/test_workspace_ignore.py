"""What is ignored: directories of tools, virtual environments, and the rules of .gitignore as git understands them."""

from __future__ import annotations

import os
import shutil
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from toolbus.errors import ToolError
from toolbus.toolsets._files.budget import Budget
from toolbus.toolsets._files.patterns import DEFAULT_IGNORED, parse_gitignore
from toolbus.toolsets._files.regex import Pattern
from toolbus.toolsets._files.tree import Tree
from toolbus.toolsets.workspace import workspace_tools


def listed(root: Path, *, include_ignored: bool = False) -> list[str]:
    tools = {tool.name: tool for tool in workspace_tools(root, include_ignored=include_ignored)}
    return tools["list_files"].prepare({}, None)().data["files"]


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("limit\n")


def test_directories_of_tools_are_left_out(tmp_path: Path) -> None:
    make(
        tmp_path, ".git/config", "node_modules/x/a.js", "a/__pycache__/b.py", ".venv/lib/c.py", "lib/site-packages/d.py"
    )
    make(tmp_path, ".github/ci.yml", "venv/module.py", "env/pyvenv.cfg", "env/lib/e.py")
    assert listed(tmp_path) == [".github/ci.yml", "venv/module.py"]
    assert len(listed(tmp_path, include_ignored=True)) == 9


IGNORED = [
    ".git", ".hg", ".svn", ".jj", ".venv", ".tox", ".nox", ".eggs", "node_modules", "site-packages", "__pycache__",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".idea", ".DS_Store",
]  # fmt: skip


@pytest.mark.parametrize("name", IGNORED)
def test_each_directory_of_a_tool_is_left_out_at_any_depth_and_cannot_be_read(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"{name}/a.py", f"deep/er/{name}/b.py", f"{name}.py", f"x{name}/c.py")
    assert sorted(listed(tmp_path)) == sorted([f"{name}.py", f"x{name}/c.py"])
    read = {tool.name: tool for tool in workspace_tools(tmp_path)}["read_lines"]
    for path in (f"{name}/a.py", f"deep/er/{name}/b.py"):
        with pytest.raises(ToolError, match="is ignored in this workspace"):
            read.prepare({"path": path}, None)()
    assert len(listed(tmp_path, include_ignored=True)) == 4


@pytest.mark.parametrize("name", IGNORED)
def test_a_file_that_is_named_like_a_directory_of_a_tool_is_left_out_too(tmp_path: Path, name: str) -> None:
    make(tmp_path, name, "kept.py")
    assert listed(tmp_path) == ["kept.py"]


def test_no_other_name_is_left_out_without_a_rule() -> None:
    assert sorted(DEFAULT_IGNORED) == sorted(IGNORED)


def test_a_root_inside_of_such_a_directory_is_read(tmp_path: Path) -> None:
    make(tmp_path, "site-packages/a.py")
    assert listed(tmp_path / "site-packages") == ["a.py"]


@pytest.mark.parametrize("path", ["secret.env", "out/a.txt", ".git/config", "deep/more/skip.txt"])
def test_ignored_files_cannot_be_read_by_name_either(tmp_path: Path, path: str) -> None:
    make(tmp_path, "secret.env", "out/a.txt", ".git/config", "deep/more/skip.txt", "keep.txt", "deep/out")
    (tmp_path / ".gitignore").write_text("*.env\nout/\n")
    (tmp_path / "deep" / ".gitignore").write_text("skip.*\n")
    tools = {tool.name: tool for tool in workspace_tools(tmp_path)}
    with pytest.raises(ToolError, match="is ignored in this workspace"):
        tools["read_lines"].prepare({"path": path}, None)()
    for kept in ("keep.txt", "deep/out"):  # The rule `out/` is for directories.
        assert tools["read_lines"].prepare({"path": kept}, None)().data["text"] == "1\tlimit"
    tools = {tool.name: tool for tool in workspace_tools(tmp_path, include_ignored=True)}
    assert tools["read_lines"].prepare({"path": path}, None)().data["text"] == "1\tlimit"


RULES = {
    "": "# comment\n*.log\n!keep.log\n/root.txt\nbuild/\ndocs/*.tmp\n**/cache\nlogs/**\na/**/z.txt\n[ab]?.dat\n\\#odd\nspace\\ \n"
    "trail   \n[!x]y.cfg\nq[\n/\n!\n",
    "sub/": "*.md\n!/special.md\n",
}
PATHS = [
    "x.log", "keep.log", "d/y.log", "d/keep.log", "root.txt", "d/root.txt", "build/f", "d/build/f", "file/build", "docs/a.tmp",
    "docs/d/a.tmp", "cache/f", "d/e/cache/f", "logs/f", "logs/d/f", "a/z.txt", "a/b/z.txt", "a/b/c/z.txt", "az.dat", "cz.dat",
    "#odd", "space ", "trail", "zy.cfg", "xy.cfg", "q[", "sub/a.md", "sub/special.md", "sub/d/special.md", "b.md", "plain",
]  # fmt: skip


def test_rules_mean_what_git_says_that_they_mean(tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    make(tmp_path, *PATHS)
    for base, rules in RULES.items():
        (tmp_path / base / ".gitignore").write_text(rules)
    alone = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run([git, "init", "-q", "."], cwd=tmp_path, env=alone, check=True)
    reported = subprocess.run(
        [git, "check-ignore", "-z", "--stdin"],
        input="\0".join(PATHS),
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        check=True,
        text=True,
    )
    by_git = set(reported.stdout.split("\0")) - {""}
    assert by_git
    shown = set(listed(tmp_path))
    assert {path for path in PATHS if path not in shown} == by_git


def test_rules_that_cannot_be_read_spoil_nothing() -> None:
    assert parse_gitignore("# nothing\n\n", "") is None
    rules = parse_gitignore("*.log\n[z-a]\n*.tmp\n", "")
    assert rules is not None
    assert [rules.verdict(path) for path in ("a.log", "a.tmp", "a.txt")] == [True, True, None]
    assert parse_gitignore("[z-a]\n", "") is None


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [("def run_it", "run_it"), (r"\bclass\s+Kettle\b", "Kettle"), ("a|b", ""), ("(a|b)kettle", "kettle"), ("kettles?", "kettle"),
     ("(?i)kettle", ""), ("[abc]pot", "pot"), (r"\x41kettle", "kettle"), ("(?:x)*kettle{2}", "kettl"), ("(kettle)", ""), ("[^]x]pot[[]", "pot"), (r"\d{4,}=$", "")],
)  # fmt: skip
def test_the_certain_part_of_a_pattern_is_known(pattern: str, literal: str) -> None:
    assert Pattern(pattern, ignore_case=False).literal == literal


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls of the system ignore case and the forms of Unicode in names, as on a Mac."""
    real_open, real_stat = os.open, os.stat

    def key(name: str) -> str:
        return unicodedata.normalize("NFC", name).casefold()

    def found(name: Any, directory: int | None) -> Any:
        names = [] if directory is None else os.listdir(directory)  # noqa: PTH208 -- of a descriptor
        return name if name in names else next((each for each in names if key(each) == key(name)), name)

    def opened(name: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return real_open(found(name, dir_fd), flags, mode, dir_fd=dir_fd)

    def status(name: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        return real_stat(found(name, dir_fd), dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "stat", status)


SPELLED_OTHERWISE = [".GIT/config", "SECRET.env", "secret.ENV", "OUT/a.txt", "cle\N{COMBINING ACUTE ACCENT}.key", "\N{LATIN SMALL LETTER LONG S}ecret.env"]  # fmt: skip


@pytest.mark.parametrize("path", SPELLED_OTHERWISE)
def test_a_name_that_only_the_file_system_takes_for_an_ignored_one_reads_nothing(
    tmp_path: Path, folding: None, path: str
) -> None:
    make(tmp_path, ".git/config", "secret.env", "out/a.txt", "clé.key", "keep.txt")
    (tmp_path / ".gitignore").write_text("*.env\nout/\nclé.key\n")
    read = {tool.name: tool for tool in workspace_tools(tmp_path)}["read_lines"]
    with pytest.raises(ToolError, match=r"is ignored in this workspace|no such file"):
        read.prepare({"path": path}, None)()
    with pytest.raises(ToolError, match=r"no such file: 'KEEP\.txt'; did you mean 'keep\.txt'\?"):
        read.prepare({"path": "KEEP.txt"}, None)()
    assert read.prepare({"path": "keep.txt"}, None)().data["text"] == "1\tlimit"


def test_names_that_a_mac_has_stored_decomposed_are_those_that_a_model_writes(tmp_path: Path) -> None:
    def on_a_mac(name: str) -> str:
        return unicodedata.normalize("NFD", name)

    make(tmp_path, *map(on_a_mac, ("Köln/café.md", "Köln/plan.md", "clé.key", "Ablage/straße.md")))
    (tmp_path / ".gitignore").write_text("/clé.key\nAblage/straße.*\n")
    tools = {tool.name: tool for tool in workspace_tools(tmp_path)}
    assert sorted(listed(tmp_path)) == [".gitignore", "Köln/café.md", "Köln/plan.md"]
    assert tools["list_files"].prepare({"glob": "Köln/caf?.md"}, None)().data["files"] == ["Köln/café.md"]
    for path in ("Köln/café.md", on_a_mac("Köln/café.md")):
        assert tools["read_lines"].prepare({"path": path}, None)().data["path"] == "Köln/café.md"
    for path in ("clé.key", on_a_mac("clé.key")):
        with pytest.raises(ToolError, match="is ignored in this workspace"):
            tools["read_lines"].prepare({"path": path}, None)()
    with pytest.raises(ToolError, match=r"no such file: 'Köln/the\.md'"):
        tools["read_lines"].prepare({"path": "Köln/the.md"}, None)()
    with pytest.raises(ToolError, match=r"no such file: 'Köln/thé\.md'"):
        tools["read_lines"].prepare({"path": "Köln/thé.md"}, None)()


def test_of_names_that_look_the_same_one_is_listed(tmp_path: Path) -> None:
    make(tmp_path, "café.md", "cafe\N{COMBINING ACUTE ACCENT}.md")
    assert listed(tmp_path) == ["café.md"]


def test_the_search_for_a_name_ends_with_the_time_of_the_call(tmp_path: Path) -> None:
    make(tmp_path, "café.md")
    with (
        pytest.raises(ToolError, match="it takes too long to find its name"),
        Tree(tmp_path).open("cafe\N{COMBINING ACUTE ACCENT}.md", Budget(seconds=0, names=1)),
    ):
        pass
