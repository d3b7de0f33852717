"""The parser of a model's regular expressions: what it counts, what is certain in each match, what the engine gets."""

from __future__ import annotations

import pytest

from toolbus.errors import ToolError
from toolbus.toolsets._files.regex import Pattern, _Reader  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("pattern", "steps", "literal", "parts"),
    [
        ("", 1, "", ""),
        ("abc", 4, "abc", "abc"),
        ("a.bcd", 6, "bcd", "a.bcd"),
        ("ab?cde", 7, "cde", "ab?cde"),
        ("ab*c", 5, "a", "ab*c"),
        ("abc{2}de", 9, "ab", "abc{2}de"),
        ("a|bcde", 7, "", "a|bcde"),
        ("(a|b)cde", 8, "cde", "(a|b)cde"),
        ("(a|b)?cde", 9, "cde", "(a|b)?cde"),
        ("(?i)abc", 4, "", "(?i)abc"),
        ("(?i:abc)d", 6, "d", "(?i:abc)d"),
        ("(?m:a)", 3, "", "(?:a)"),
        ("(?m)ab", 3, "", "(?:)ab"),
        ("(?s-m:a)", 3, "", "(?s:a)"),
        ("(?m-i:a)", 3, "", "(?-i:a)"),
        ("(?-i:a)", 3, "", "(?-i:a)"),
        ("^ab$", 5, "ab", "\x00beginab\x00end"),
        ("\\Aab\\z", 5, "ab", "\x00beginab\x00end"),
        ("ab\\Z", 4, "ab", "ab\x00end"),
        ("\\w", 16, "", "\\w"),
        ("\\w{20}", 321, "", "\\w{20}"),
        ("\\w+x", 18, "x", "\\w+x"),
        ("\\d\\d", 5, "", "\\d\\d"),
        ("\\p{L}", 116, "", "\\p{L}"),
        ("\\PL\\u00e9", 120, "", "\\PL\\u00e9"),
        ("\\x41", 5, "", "\\x41"),
        ("\\x{41}b", 6, "b", "\\x{41}b"),
        ("é", 5, "", "é"),
        ("\\.", 2, "", "\\."),
        ("\\→", 5, "", "→"),
        ("[a-z]", 2, "", "[a-z]"),
        ("[^a-z]", 2, "", "[^a-z]"),
        ("[\\w]", 16, "", "[\\w]"),
        ("[\\W]", 116, "", "[\\W]"),
        ("[\\pL\\D]", 216, "", "[\\pL\\D]"),
        ("[é-z]", 116, "", "[é-z]"),
        ("[\\x41-\\x42]", 116, "", "[\\x41-\\x42]"),
        ("[[:^alpha:]]", 102, "", "[[:^alpha:]]"),
        ("[[:alpha:]]", 2, "", "[[:alpha:]]"),
        ("[]a]", 2, "", "[\\]a]"),
        ("[^]a]", 2, "", "[^\\]a]"),
        ("[a&&b]", 2, "", "[a\\&\\&b]"),
        ("[a-]", 2, "", "[a-]"),
        ("[+--]", 2, "", "[\\+-\\-]"),
        ("[\\b]", 2, "", "[\x08]"),
        ("[\\-]", 2, "", "[\\-]"),
        ("[\\]\\-x]", 2, "", "[\\]\\-x]"),
        ("[a-z0-9_-]", 3, "", "[a-z0-9_-]"),
        ("[abcdefgh]", 3, "", "[abcdefgh]"),
        ("[abcdefghijklmnop]", 4, "", "[abcdefghijklmnop]"),
        ("x{2,}", 7, "", "x{2,}"),
        ("x{,3}", 7, "", "x{0,3}"),
        ("x{2,3}", 7, "", "x{2,3}"),
        ("x{0}", 3, "", "x{0}"),
        ("x{}", 4, "", "x\\{\\}"),
        ("{", 2, "", "\\{"),
        ("(ab){3}", 13, "", "(ab){3}"),
        ("((ab){3}c){2}", 31, "", "((ab){3}c){2}"),
        ("(a(b(c", 7, "", "(a(b(c"),
        ("a)b", 4, "a", "a)b"),
        ("abc def_1", 10, "def_1", "abc\\ def_1"),
        ("(abc)def", 8, "def", "(abc)def"),
        ("ab(c)de{2}", 10, "ab", "ab(c)de{2}"),
        ("(?P<n>ab)c", 5, "c", "(?P<n>ab)c"),
        ("a++", 4, "a", "a++"),
    ],
)
def test_a_pattern_is_counted_and_written_again(pattern: str, steps: int, literal: str, parts: str) -> None:
    reader = _Reader(pattern)
    assert (reader.steps, reader.literal, "".join(reader.parts)) == (steps, literal, parts)


@pytest.mark.parametrize(
    ("pattern", "piece_bytes"), [("a", 262_144), ("abc", 250_000), (r"\w{20}", 3_115), ("a" * 1_499, 666)]
)
def test_the_more_steps_a_pattern_has_the_shorter_are_the_pieces(pattern: str, piece_bytes: int) -> None:
    assert Pattern(pattern, ignore_case=False).piece_bytes == piece_bytes


@pytest.mark.parametrize("pattern", ["a" * 1_499, "a{749}b", "(a{749}", r"[\W]{82}" + "x" * 87])
def test_a_pattern_may_have_as_many_steps_as_the_bound_and_not_one_more(pattern: str) -> None:
    assert _Reader(pattern).steps == 1_500
    with pytest.raises(ToolError, match="is too large"):
        _Reader(f"{pattern}a")


def test_a_pattern_that_the_engine_does_not_take_is_refused_with_its_reason() -> None:
    with pytest.raises(ToolError, match=r"'\(a' is not valid: unclosed group\. The syntax has"):
        Pattern("(a", ignore_case=False)


def test_a_pattern_may_have_as_many_characters_as_the_bound_and_not_one_more() -> None:
    names = f"(?P<{'n' * 94}>)" * 15
    assert _Reader(names).steps < 100
    with pytest.raises(ToolError, match="is too large"):
        _Reader(f"{names}a")
