"""The rules for values of options: the values that each accepts and refuses, and the words of its error."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from toolbus import Budget, Compression, Limits, ModelSettings, Price
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


def test_options_that_have_no_names_are_refused_with_the_first_name() -> None:
    make: Any = Price
    with pytest.raises(TypeError, match=r"^Price: an int \(3\) has no name; write Price\(input_per_million=\.\.\.\)$"):
        make(3, 15)


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
    assert "(did you mean input_per_million?)" in no_option(["input"], ["output_per_million", "input_per_million"])
    assert "did you mean" not in no_option(["output"], ["name"]), "no request begins where no limits can be given"
    assert no_option(["x"], ["provider"], "field") == "there is no field x; the fields are provider"


@pytest.mark.parametrize(
    ("kind", "wrong", "text"),
    [
        (Limits, "max_turns", "Limits: there is no option max_turns (did you mean max_rounds?); the options are max_r"),
        (Price, "input", "Price: there is no option input (did you mean input_per_million?); the options are input_"),
        (Budget, "max_usd", "Budget: there is no option max_usd (did you mean max_cost?); the options are max_cost, "),
        (Compression, "turns", "Compression: there is no option turns (did you mean keep_turns?); the options are "),
        (ModelSettings, "max_tokens", "ModelSettings: there is no option max_tokens (did you mean max_output_tokens?)"),
    ],
)
def test_a_class_answers_an_option_that_it_does_not_have_as_a_function_does(kind: type, wrong: str, text: str) -> None:
    with pytest.raises(TypeError) as refused:
        kind(**{wrong: 3})
    assert str(refused.value).startswith(text)


def test_a_value_is_shown_by_its_type_and_the_beginning_of_its_text() -> None:
    assert shown("order") == "a str ('order')"
    assert shown(int) == "the class int"
    assert shown(3) == "an int (3)"
    long = shown("x" * 30 + "y" * 100)
    assert (len(long), long.count("x")) == (68, 27)
