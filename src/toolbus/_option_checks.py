"""The rules for values of options, and the words in which an error states them. Pure; must not know any option.

Callers without a type checker may give anything, so every rule takes any object.
"""

from __future__ import annotations

import difflib
import inspect
import math
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import ConfigurationError

__all__ = [
    "ABOVE_ZERO",
    "FLAG",
    "NOT_NEGATIVE",
    "NUMBER",
    "POSITIVE",
    "Rule",
    "at_least",
    "check",
    "no_option",
    "one_of",
    "or_none",
    "shown",
    "takes",
    "whole",
]

T = TypeVar("T")
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that values of an option have to meet, and the advice for a value that does not."""

    holds: Callable[[Any], bool]
    advice: str


def check(name: str, given: T, *rules: Rule) -> T:
    """Return the value. Raises `ConfigurationError` for the first rule that it breaks, under the option's `name`."""
    for rule in rules:
        if not rule.holds(given):
            raise ConfigurationError(f"{name} is {given!r}; {rule.advice}")
    return given


NUMBER = Rule(lambda given: isinstance(given, (int, float)) and not isinstance(given, bool), "it must be a number")
ABOVE_ZERO = Rule(lambda given: NUMBER.holds(given) and given > 0, "it must be above 0")
POSITIVE = Rule(lambda given: NUMBER.holds(given) and 0 < given < math.inf, "it must be above 0 and finite")
NOT_NEGATIVE = Rule(lambda given: NUMBER.holds(given) and 0 <= given < math.inf, "it must be at least 0 and finite")
FLAG = Rule(lambda given: isinstance(given, bool), "say True or False")


def at_least(least: int) -> Rule:
    """Return the rule for a number of at least `least`."""
    return Rule(lambda given: NUMBER.holds(given) and given >= least, f"it must be at least {least}")


def whole(least: int) -> Rule:
    """Return the rule for a whole number of at least `least`."""
    rule = at_least(least)
    return Rule(
        lambda given: isinstance(given, int) and rule.holds(given), f"it must be a whole number of at least {least}"
    )


def one_of(*words: str) -> Rule:
    """Return the rule for one of `words`."""
    said = [repr(each) for each in words]
    return Rule(
        lambda given: given in words,
        f"it must be {' or '.join(said)}" if len(said) == 2 else f"it must be one of {', '.join(said)}",
    )


def or_none(rule: Rule, meaning: str = "") -> Rule:
    """Return the rule that also accepts None. `meaning` says in the error what None stands for."""
    advice = f"{rule.advice}, or None {meaning}" if meaning else rule.advice
    return Rule(lambda given: given is None or rule.holds(given), advice)


def takes(given: Any, count: int) -> bool:
    """Return whether `given` can be called with `count` arguments; without a signature, whether it can be called."""
    if not callable(given):
        return False
    try:
        inspect.signature(given).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        # Some built-in functions have no signature.
        return True
    return True


def no_option(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return the error text for options that do not exist: it names the known options and similar ones."""
    wrong, names = sorted(unknown), list(known)
    alike = [near for each in wrong for near in difflib.get_close_matches(each, names, 1)]
    meant = f"; did you mean {', '.join(alike)}?" if alike else ""
    return f"there is no option {', '.join(wrong)}; the options are {', '.join(names)}{meant}"


def shown(given: object) -> str:
    """Return a description of `given` for an error message: its type and the beginning of its representation."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    name = type(given).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name} ({_short.repr(given)})"
