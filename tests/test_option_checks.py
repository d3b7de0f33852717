"""The rules for values of options: the values that each accepts and refuses, and the words of its error."""

from __future__ import annotations

import functools
import math

import pytest

from toolbus._option_checks import (
    ABOVE_ZERO,
    FLAG,
    NOT_NEGATIVE,
    NUMBER,
    POSITIVE,
    Rule,
    check,
    is_async,
    no_option,
    one_of,
    or_none,
    shown,
    takes,
    whole,
)
from toolbus.errors import ConfigurationError

ODD: tuple[object, ...] = (None, "3", True, (), math.nan)  # the values that no rule for numbers of a size accepts


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (NUMBER, (0, -1.5, math.inf), (None, "3", True, ())),
        (ABOVE_ZERO, (0.1, math.inf), (0, -1, *ODD)),
        (POSITIVE, (0.1, 3), (0, -1, math.inf, *ODD)),
        (NOT_NEGATIVE, (0, 0.1), (-1, math.inf, *ODD)),
        (FLAG, (True, False), (None, 0, 1, "yes")),
        (whole(2), (2, 3), (1, 1.9, 2.0, math.inf, *ODD)),
        (one_of("a", "b"), ("a", "b"), (None, "c", "", ["a"])),
        (or_none(whole(2)), (None, 2), (1, "2")),
    ],
    ids=["number", "above-zero", "positive", "not-negative", "flag", "whole", "one-of", "or-none"],
)
def test_a_rule_takes_any_object(rule: Rule, good: tuple[object, ...], bad: tuple[object, ...]):
    assert [check("size", each, rule) for each in good] == list(good)
    for each in bad:
        with pytest.raises(ConfigurationError) as refused:
            check("size", each, rule)
        assert str(refused.value) == f"size is {each!r}; {rule.advice}"


def test_the_first_broken_rule_is_reported():
    with pytest.raises(ConfigurationError, match=r"^size is '3'; it must be a number$"):
        check("size", "3", NUMBER, POSITIVE)


def test_the_advice_names_the_choices():
    assert one_of("a", "b").advice == "it must be 'a' or 'b'"
    assert one_of("a", "b", "c").advice == "it must be one of 'a', 'b', 'c'"
    assert or_none(whole(2), "for no window").advice == "it must be a whole number of at least 2, or None for no window"


def test_a_function_is_asked_whether_it_takes_so_many_arguments() -> None:
    def of_two(first: int, second: int) -> None: ...

    def of_any(*given: int) -> None: ...

    assert [takes(of_two, count) for count in (1, 2, 3)] == [False, True, False]
    assert takes(of_any, 5)
    assert not takes("a text", 1)
    assert takes(dict.fromkeys, 2)
    assert takes(max, 2), "it has no signature"


def test_a_handler_is_async_if_calling_it_gives_a_coroutine() -> None:
    async def find(name: str) -> str:
        return name

    class Finder:
        async def __call__(self, name: str) -> str:
            return name

    partial = functools.partial
    asynchronous = [find, partial(find, "a"), partial(partial(find), "a"), Finder(), partial(Finder(), "a")]
    assert [is_async(each) for each in asynchronous] == [True] * 5
    assert [is_async(each) for each in (str, str.upper, partial(str, "a"), "a text")] == [False] * 4  # type: ignore[arg-type]


def test_the_error_of_an_unknown_option_names_the_option_that_is_meant() -> None:
    assert no_option(["output"], ["provider", "limits"]) == (
        "there is no option output (did you mean run(..., output=...)?); the options are provider, limits"
    )
    assert "(did you mean output?)" in no_option(["output_type"], ["provider", "output"])
    assert "(did you mean limits?)" in no_option(["limit"], ["provider", "limits"])
    assert no_option(["x"], ["provider"], "field") == "there is no field x; the fields are provider"


def test_a_value_is_shown_by_its_type_and_the_beginning_of_its_text() -> None:
    assert shown("order") == "a str ('order')"
    assert shown(int) == "the class int"
    assert shown(3) == "an int (3)"
    long = shown("x" * 30 + "y" * 100)
    assert (len(long), long.count("x")) == (68, 27)
