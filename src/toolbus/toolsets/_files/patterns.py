"""Globs and the rules of .gitignore files. Pure; no I/O.

Both are untrusted, so each is matched by the engine of `regex`, whose time is at most the size of the pattern times the
length of the path. Rules are matched in groups of a bounded size, and the time is checked between groups.

Paths have the form that `composed` returns: macOS may store "é" as two characters, and editors and models write one.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic_core import SchemaError

from ...errors import ToolError
from .regex import Matcher, engine, escaped

# These names have no sources of the project itself, whatever its .gitignore says. A virtual environment is recognised
# by its pyvenv.cfg, not by its name, because the standard library has a package called venv.
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
# The bytes of rules that are matched at once: about 40 ms for the longest path that is listed.
_GROUP_BYTES = 500


def composed(name: str) -> str:
    """Return a name in the form of Unicode that people and models write (NFC). The caller bounds its length.

    A long run of combining characters takes time that grows with its square.
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def compile_glob(glob: str) -> Matcher:
    """Return a function that says whether a path (with `/`, relative to the root) matches `glob`.

    A glob without a slash is matched with the file's name at any depth, one with a slash with the whole path; `**`
    stands for any number of directories, `{a,b}` for alternatives. A class such as `[id]` also stands for itself, since
    names of files may hold brackets. A glob that matches a directory matches everything below it. Raises `ToolError`
    for a glob that is too long or not valid.
    """
    body = glob.strip().replace("\\", "/").removeprefix("./").strip("/")
    if body in ("", ".", "**", "*"):
        return lambda _path: True
    if len(body.encode()) > _MAX_GLOB_BYTES:
        raise ToolError(f"the glob is longer than {_MAX_GLOB_BYTES} bytes; name fewer alternatives")
    prefix = "" if "/" in body else "(?:.*/)?"
    try:
        return engine(rf"\A{prefix}{_translate(composed(body), braces=True)}(?:/.*)?\z")
    except SchemaError:
        raise ToolError(f"the glob {glob!r} is not valid; use *, **, ?, [abc] and {{a,b}}") from None


def fixed_directory(glob: str) -> str:
    """Return the directory, with a slash at its end, that contains all matches of `glob`; empty for the root."""
    *directories, _ = glob.strip().replace("\\", "/").removeprefix("./").strip("/").split("/")
    fixed = itertools.takewhile(lambda part: part and not _WILD.intersection(part), directories)
    return "".join(f"{composed(part)}/" for part in fixed)


def _translate(glob: str, *, braces: bool = False) -> str:
    """Return the glob as a regular expression without anchors."""
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
        elif char == "[" and (end := glob.find("]", index + 1)) != -1:
            inner = glob[index:end]
            negated = inner[0] in "!^"
            inside = "".join(c if c.isalnum() or c in "-_" else f"\\{c}" for c in inner[negated:] if ord(c) < 128)
            given, found = escaped(f"[{inner}]"), f"[{'^/' if negated else ''}{inside}]"
            out.append(given if not inside.strip("-") else f"(?:{found}|{given})" if braces else found)
            index = end + 1
        elif char == "[" and not braces:
            # A class without an end matches nothing in git.
            out.append(r"\b\B")
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
    """Return the expression for a run of stars, whose first is before `index`, and the index after the run."""
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
        """Return True for an ignored path, False for one that a rule with `!` includes again, None if no rule matches.

        Also None if `over` returns True first. `path` is relative to the root; a directory's path ends with a slash.
        """
        subject = path.removeprefix(self.base)
        # The last matching rule wins, so the runs are in reverse order.
        for negated, matches in self.runs:
            if matches(subject):
                return not negated
            if over():
                return None
        return None


def parse_gitignore(text: str, base: str, over: Callable[[], bool] = _never) -> IgnoreRules | None:
    """Return the rules in `text`, or None without any rule, or if `over` returned True before one was read.

    Invalid rules are skipped, as git does, and so are rules of more than 250 bytes.
    """
    runs: list[tuple[bool, list[str]]] = []
    # The bytes of the rules in the current run.
    size = 0
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
        expression = ("" if anchored else "(?:.*/)?") + _translate(composed(body)) + end
        size += length
        if not runs or runs[-1][0] != negated or size > _GROUP_BYTES:
            runs.append((negated, []))
            size = length
        runs[-1][1].append(expression)
    compiled = [(negated, matcher) for negated, rules in reversed(runs) if not over() and (matcher := _any_of(rules))]
    return IgnoreRules(base, compiled) if compiled else None


def _any_of(rules: list[str]) -> Matcher | None:
    """Return one matcher for all of `rules`, without those that do not compile; None if no rule is left."""
    try:
        return engine(rf"\A(?:{'|'.join(rules)})\z")
    except SchemaError:
        if len(rules) == 1:
            return None
    matchers = [matcher for rule in rules if (matcher := _any_of([rule]))]
    return lambda path: any(matches(path) for matches in matchers)
