"""Globs, and the rules of .gitignore. Pure; no I/O.

Both come from strangers, so each is matched by the engine of `_regex`, whose time is at most the size of the pattern
times the length of the path. Rules are matched in groups of a bounded size, with a look at the time in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic_core import SchemaError

from ...errors import ToolError
from .regex import Matcher, engine, escaped

__all__ = ["DEFAULT_IGNORED", "IgnoreRules", "compile_glob", "fixed_directory", "parse_gitignore"]

# Directories that hold no sources of the project itself, whatever its .gitignore says. A virtual environment is told by
# its pyvenv.cfg, not by its name: the standard library has a package called venv.
DEFAULT_IGNORED = frozenset(
    {
        ".git", ".hg", ".svn", ".jj", ".venv", ".tox", ".nox", ".eggs", "node_modules", "site-packages", "__pycache__",
        ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".idea", ".DS_Store",
    }
)  # fmt: skip

_MAX_RULES = 1_000
_MAX_RULE_BYTES = 250
_MAX_GLOB_BYTES = 500
_WILD = frozenset("*?[]{},")
_GROUP_BYTES = 500  # of rules that are matched at once: some 40 ms for the longest path that is listed


def compile_glob(glob: str) -> Matcher:
    """A function that tells whether a path (with `/`, relative to the root) is meant by `glob`.

    A glob without a slash is about the file's name at any depth, one with a slash about the whole path; `**` stands for
    any number of directories, `{a,b}` for alternatives. What names a directory means all below it. Raises `ToolError`
    for one that is too long or cannot be read.
    """
    body = glob.strip().replace("\\", "/").removeprefix("./").strip("/")
    if body in ("", ".", "**", "*"):
        return lambda _path: True
    if len(body.encode()) > _MAX_GLOB_BYTES:
        raise ToolError(f"the glob is longer than {_MAX_GLOB_BYTES} bytes; name fewer alternatives")
    prefix = "" if "/" in body else "(?:.*/)?"
    try:
        return engine(rf"\A{prefix}{_translate(body, braces=True)}(?:/.*)?\z")
    except SchemaError:
        raise ToolError(f"the glob {glob!r} is not valid; use *, **, ?, [abc] and {{a,b}}") from None


def fixed_directory(glob: str) -> str:
    """The directory, with a slash at its end, below which all is that `glob` means; empty where that is the root."""
    *directories, _ = glob.strip().replace("\\", "/").removeprefix("./").strip("/").split("/")
    fixed = itertools.takewhile(lambda part: part and not _WILD.intersection(part), directories)
    return "".join(f"{part}/" for part in fixed)


def _translate(glob: str, *, braces: bool = False) -> str:
    """The glob as a regular expression, not anchored."""
    out: list[str] = []
    index, depth = 0, 0
    while index < len(glob):
        char = glob[index]
        index += 1
        if char == "*":
            piece, index = _stars(glob, index)
            out.append(piece)
        elif char == "?":
            out.append("[^/]")
        elif char == "[" and (end := glob.find("]", index + 1)) > 0:
            inner = glob[index:end]
            negated = inner[0] in "!^"
            inside = "".join(c if c.isalnum() or c in "-_" else f"\\{c}" for c in inner[negated:] if ord(c) < 128)
            out.append(f"[{'^/' if negated else ''}{inside}]" if inside.strip("-") else escaped(f"[{inner}]"))
            index = end + 1
        elif char == "[" and not braces:
            out.append(r"\b\B")  # a class without an end: git matches nothing by it
        elif char == "\\" and index < len(glob):
            out.append(escaped(glob[index]))
            index += 1
        elif braces and char == "{" and "}" in glob[index:]:
            depth += 1
            out.append("(?:")
        elif depth and char in ",}":
            depth -= char == "}"
            out.append("|" if char == "," else ")")
        else:
            out.append(escaped(char))
    return "".join(out) + ")" * depth


def _stars(glob: str, index: int) -> tuple[str, int]:
    """What the run of stars, whose first is before `index`, stands for, and where the glob goes on."""
    start = index - 1
    while index < len(glob) and glob[index] == "*":
        index += 1
    if index - start == 1:
        return "[^/]*", index
    if index < len(glob) and glob[index] == "/" and (start == 0 or glob[start - 1] in "/{,"):
        return "(?:.*/)?", index + 1
    return ".*", index


def _never() -> bool:
    return False


@dataclass(slots=True, frozen=True)
class IgnoreRules:
    """The rules of one .gitignore: `base` is its directory ("" for the root, else with a slash at the end)."""

    base: str
    runs: Sequence[tuple[bool, Matcher]]

    def verdict(self, path: str, over: Callable[[], bool] = _never) -> bool | None:
        """True for ignored, False for taken back with `!`, None where no rule speaks, or `over` says so.

        `path` is relative to the root; a directory's ends with a slash.
        """
        subject = path.removeprefix(self.base)
        for negated, matches in self.runs:  # the last rule that matches wins, and the runs stand in that order
            if matches(subject):
                return not negated
            if over():
                return None
        return None


def parse_gitignore(text: str, base: str, over: Callable[[], bool] = _never) -> IgnoreRules | None:
    """The rules in `text`, or None if there are none, or none could be read until `over` says so.

    Rules that make no sense are passed over, as git does, and so are those of more than 250 bytes.
    """
    runs: list[tuple[bool, list[str]]] = []
    size = 0  # of the rules in the newest run
    for line in text.splitlines()[:_MAX_RULES]:
        if over():
            break
        rule = line if line.endswith("\\ ") else line.rstrip()
        if not rule or rule.startswith("#"):
            continue
        negated = rule.startswith("!")
        body = rule[1:] if negated else rule
        anchored = "/" in body.rstrip("/")
        end = "/" if body.endswith("/") else "/?"
        body = body.strip("/")
        length = len(body.encode())
        if not body or length > _MAX_RULE_BYTES:
            continue
        expression = ("" if anchored else "(?:.*/)?") + _translate(body) + end
        size += length
        if not runs or runs[-1][0] != negated or size > _GROUP_BYTES:
            runs.append((negated, []))
            size = length
        runs[-1][1].append(expression)
    compiled = [(negated, matcher) for negated, rules in reversed(runs) if not over() and (matcher := _any_of(rules))]
    return IgnoreRules(base, compiled) if compiled else None


def _any_of(rules: list[str]) -> Matcher | None:
    """One matcher for all of `rules`; those that do not compile are left out."""
    try:
        return engine(rf"\A(?:{'|'.join(rules)})\z")
    except SchemaError:
        if len(rules) == 1:
            return None
    matchers = [matcher for rule in rules if (matcher := _any_of([rule]))]
    return lambda path: any(matches(path) for matches in matchers)
