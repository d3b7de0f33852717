"""Globs as regular expressions: those of a tool's argument, which know braces, and those of .gitignore."""

from __future__ import annotations

import pytest

from toolbus.toolsets._files.patterns import _stars, _translate  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("glob", "braces", "expression"),
    [
        ("a.py", True, "a\\.py"),
        ("*.py", True, "[^/]*\\.py"),
        ("a?b", True, "a[^/]b"),
        ("**/a", True, "(?:.*/)?a"),
        ("a/**/b", True, "a\\/(?:.*/)?b"),
        ("a**/b", True, "a.*\\/b"),
        ("a/**", True, "a\\/.*"),
        ("a***b", True, "a.*b"),
        ("[a]x]", True, "(?:[a]|\\[a\\])x\\]"),
        ("[ab]", True, "(?:[ab]|\\[ab\\])"),
        ("[!ab]c", True, "(?:[^/ab]|\\[!ab\\])c"),
        ("[^ab]", True, "(?:[^/ab]|\\[\\^ab\\])"),
        ("[a-c_]", False, "[a-c_]"),
        ("[.é]", False, "[\\.]"),
        ("[é]", True, "\\[é\\]"),
        ("[-]", True, "\\[\\-\\]"),
        ("[]]", False, "[\\]]"),
        ("[]a]", False, "[\\]a]"),
        ("[a", True, "\\[a"),
        ("[a", False, "\\b\\Ba"),
        ("a\\*b", False, "a\\*b"),
        ("a\\", False, "a\\\\"),
        ("{a,b}", True, "(?:a|b)"),
        ("{a,b}", False, "\\{a,b\\}"),
        ("{a,{b,c}}d", True, "(?:a|(?:b|c))d"),
        ("{a", True, "\\{a"),
        ("{a,{b}", True, "(?:a|(?:b))"),
        ("a,b}", True, "a,b\\}"),
        ("{**/x,y}", True, "(?:(?:.*/)?x|y)"),
        ("x,**/y", False, "x,(?:.*/)?y"),
    ],
)
def test_a_glob_is_translated(glob: str, braces: bool, expression: str) -> None:
    assert _translate(glob, braces=braces) == expression


@pytest.mark.parametrize(
    ("glob", "index", "found"),
    [
        ("*a", 1, ("[^/]*", 1)),
        ("**", 1, (".*", 2)),
        ("**/a", 1, ("(?:.*/)?", 3)),
        ("a**/b", 2, (".*", 3)),
        ("/**/b", 2, ("(?:.*/)?", 4)),
        ("{**/b", 2, ("(?:.*/)?", 4)),
        (",**/b", 2, ("(?:.*/)?", 4)),
        ("***", 1, (".*", 3)),
        ("a/***/b", 3, ("(?:.*/)?", 6)),
    ],
)
def test_two_stars_and_a_slash_stand_for_any_number_of_directories(
    glob: str, index: int, found: tuple[str, int]
) -> None:
    assert _stars(glob, index) == found
