"""Patterns: regular expressions that cannot run away, globs, and the rules of .gitignore. Pure; no I/O.

Patterns come from models and from files of strangers, so a backtracking engine is out of the question: one bad pattern
would hold the interpreter for hours, in a thread that nobody can stop. pydantic's own engine is linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic_core import SchemaError, SchemaValidator, core_schema

from ...errors import ToolError

__all__ = ["DEFAULT_IGNORED", "IgnoreRules", "compile_glob", "compile_regex", "literal_in", "parse_gitignore"]

# Directories that hold no sources of the project itself, whatever its .gitignore says. A virtual environment is told by
# its pyvenv.cfg, not by its name: the standard library has a package called venv.
DEFAULT_IGNORED = frozenset(
    {
        ".git", ".hg", ".svn", ".jj", ".venv", ".tox", ".nox", ".eggs", "node_modules", "site-packages", "__pycache__",
        ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".idea", ".DS_Store",
    }
)  # fmt: skip

_MAX_RULES = 1_000
_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~/ ")

Matcher = Callable[[str], bool]


def compile_regex(pattern: str, *, ignore_case: bool = False) -> Matcher:
    """A function that tells whether `pattern` matches somewhere in a text. `^` and `$` are the ends of lines.

    Time is linear in the text. Raises `ToolError` for a pattern that cannot be compiled, saying why.
    """
    flags = "(?im)" if ignore_case else "(?m)"
    try:
        schema = core_schema.str_schema(pattern=flags + pattern, regex_engine="rust-regex")
        return SchemaValidator(schema).isinstance_python
    except SchemaError as exc:
        lines = [line.removeprefix("error: ") for line in str(exc).splitlines() if "error:" in line[:6]]
        why = "; ".join(lines) or str(exc).rpartition("SchemaError: ")[2]
        raise ToolError(
            f"the regular expression {pattern!r} is not valid: {why}. The syntax has no look-around and no "
            "back-references; use mode='text' to search for the characters as they are."
        ) from None


def literal_in(pattern: str) -> str:
    """The longest run of word characters that every match of `pattern` holds; empty where none is certain.

    A text without it needs no match at all, and looking for a few bytes is many times faster.
    """
    best = run = ""
    depth = index = 0
    while index < len(pattern):
        char = pattern[index]
        if char == "\\" or (char == "[" and depth == 0) or char == "(":
            best, run = max(best, run, key=len), ""
            if char == "[":
                index = max(pattern.find("]", index + 2), index + 1)
            elif char == "\\":
                if pattern[index + 1 : index + 2] in ("Q", "p", "P", "x", "u", "U"):  # what follows is no plain text
                    return ""
                index += 1
            elif pattern.startswith("(?", index) and not pattern.startswith(("(?:", "(?P<", "(?<"), index):
                return ""  # flags
            else:
                depth += 1
        elif char == ")":
            depth -= 1
        elif depth == 0 and char == "|":
            return ""
        elif depth == 0 and char in "?*{":
            best, run = max(best, run[:-1], key=len), ""
        elif depth == 0 and (char.isalnum() or char == "_") and char.isascii():
            run += char
        else:
            best, run = max(best, run, key=len), ""
        index += 1
    return max(best, run, key=len) if depth == 0 else ""


def compile_glob(glob: str) -> Matcher:
    """A function that tells whether a path (with `/`, relative to the root) is meant by `glob`.

    A glob without a slash is about the file's name at any depth, one with a slash about the whole path; `**` stands for
    any number of directories, `{a,b}` for alternatives. What names a directory means all below it.
    """
    body = glob.strip().replace("\\", "/").removeprefix("./").strip("/")
    if body in ("", ".", "**", "*"):
        return lambda _path: True
    prefix = "" if "/" in body else "(?:.*/)?"
    return compile_regex(rf"\A{prefix}{_translate(body, braces=True)}(?:/.*)?\z")


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
            out.append(f"[{'^/' if negated else ''}{inside}]" if inside.strip("-") else _escape(f"[{inner}]"))
            index = end + 1
        elif char == "[" and not braces:
            out.append(r"\b\B")  # a class without an end: git matches nothing by it
        elif char == "\\" and index < len(glob):
            out.append(_escape(glob[index]))
            index += 1
        elif braces and char == "{" and "}" in glob[index:]:
            depth += 1
            out.append("(?:")
        elif depth and char in ",}":
            depth -= char == "}"
            out.append("|" if char == "," else ")")
        else:
            out.append(_escape(char))
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


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)


@dataclass(slots=True, frozen=True)
class IgnoreRules:
    """The rules of one .gitignore: `base` is its directory ("" for the root, else with a slash at the end)."""

    base: str
    runs: Sequence[tuple[bool, Matcher]]

    def verdict(self, path: str) -> bool | None:
        """True for ignored, False for taken back with `!`, None where no rule speaks.

        `path` is relative to the root; a directory's ends with a slash.
        """
        subject = path.removeprefix(self.base)
        for negated, matches in self.runs:  # the last rule that matches wins, and the runs stand in that order
            if matches(subject):
                return not negated
        return None


def parse_gitignore(text: str, base: str) -> IgnoreRules | None:
    """The rules in `text`, or None if there are none. Rules that make no sense are passed over, as git does."""
    runs: list[tuple[bool, list[str]]] = []
    for line in text.splitlines()[:_MAX_RULES]:
        rule = line if line.endswith("\\ ") else line.rstrip()
        if not rule or rule.startswith("#"):
            continue
        negated = rule.startswith("!")
        body = rule[1:] if negated else rule
        anchored = "/" in body.rstrip("/")
        end = "/" if body.endswith("/") else "/?"
        body = body.strip("/")
        if not body:
            continue
        expression = ("" if anchored else "(?:.*/)?") + _translate(body) + end
        if not runs or runs[-1][0] != negated:
            runs.append((negated, []))
        runs[-1][1].append(expression)
    compiled = [(negated, matcher) for negated, rules in reversed(runs) if (matcher := _any_of(rules))]
    return IgnoreRules(base, compiled) if compiled else None


def _any_of(rules: list[str]) -> Matcher | None:
    """One matcher for all of `rules`; those that do not compile are left out."""
    try:
        return compile_regex(rf"\A(?:{'|'.join(rules)})\z")
    except ToolError:
        if len(rules) == 1:
            return None
    matchers = [matcher for rule in rules if (matcher := _any_of([rule]))]
    return lambda path: any(matches(path) for matches in matchers)
