"""The rules for values of options, and the words in which an error states them. Pure.

Callers without a type checker may give anything, so every rule takes any object. The module must not know what an
option does; of options it has only the table of the names that other libraries use for them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from .errors import ConfigurationError

T = TypeVar("T")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:")
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
ABOVE_ZERO = Rule(lambda given: NUMBER.holds(given) and given > 0, "it must be a number above 0")
POSITIVE = Rule(lambda given: NUMBER.holds(given) and 0 < given < math.inf, "it must be a finite number above 0")
NOT_NEGATIVE = Rule(
    lambda given: NUMBER.holds(given) and 0 <= given < math.inf, "it must be a finite number of at least 0"
)
FLAG = Rule(lambda given: isinstance(given, bool), "say True or False")
TEXT = Rule(lambda given: isinstance(given, str), "pass a string")
NOT_BLANK = Rule(lambda given: isinstance(given, str) and bool(given.strip()), "pass a string that is not empty")


def whole(least: int) -> Rule:
    """Return the rule for a whole number of at least `least`."""
    return Rule(
        lambda given: isinstance(given, int) and NUMBER.holds(given) and given >= least,
        f"it must be a whole number of at least {least}",
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


def listed(name: str, given: Any, advice: str) -> list[Any]:
    """Return the values of an option that takes several.

    Raises `ConfigurationError` for a text, a mapping, and what cannot be iterated.
    """
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{name} is {shown(cast('object', given))}; {advice}")
    return list(cast("Iterable[Any]", given))


def check_implements(given: object, protocol: type, advice: str = "") -> None:
    """Raise `ConfigurationError` for an object that lacks a method of a protocol, and for a class."""
    missing = [name for name in vars(protocol) if not name.startswith("_") and not hasattr(given, name)]
    if missing or isinstance(given, type):
        lack = "make an instance of it" if isinstance(given, type) else f"it lacks {', '.join(missing)}"
        problem = f"{shown(given)} is not a {protocol.__name__}: {lack}"
        raise ConfigurationError(f"{problem}; {advice}" if advice else problem)


def is_url(text: str) -> bool:
    """Return whether a text begins with a scheme, as a URL does, and a path does not."""
    return _SCHEME.match(text) is not None


def is_http_url(text: str) -> bool:
    """Return whether a text is the URL of a server that speaks HTTP or HTTPS."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # `port` raises it, too
        return False


def takes(given: Any, count: int) -> bool:
    """Return whether `given` can be called with `count` arguments; without a signature, whether it can be called."""
    if not callable(given):
        return False
    try:
        # What a decorator returns is called, and not the function inside of it.
        inspect.signature(given, follow_wrapped=False).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        # Some built-in functions have no signature.
        return True
    return True


def is_async(handler: Callable[..., Any]) -> bool:
    """Return whether calling `handler` gives a coroutine.

    It does for an async function, a partial of one, and an object whose `__call__` is one.
    """
    called = handler.func if isinstance(handler, functools.partial) else handler
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(getattr(called, "__call__", None))  # noqa: B004


_ROUNDS = ("max_rounds", "limits=Limits(max_rounds=...)")
_SECONDS = ("timeout_seconds", "limits=Limits(timeout_seconds=...)")
_ATTEMPTS = ("retries", "max_model_attempts", "limits=Limits(max_model_attempts=...)")
_LENGTH = ("max_output_tokens", "settings=ModelSettings(max_output_tokens=...)")
_OUTPUT = ("output", "run(..., output=...)")
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "model": ("provider",),
    "llm": ("provider",),
    "system": ("instructions",),
    "system_prompt": ("instructions",),
    "messages": ("history",),
    "message_history": ("history",),
    "thread_id": ("conversation_id",),
    "session_id": ("conversation_id",),
    "output": _OUTPUT[1:],
    "output_type": _OUTPUT,
    "response_format": _OUTPUT,
    "timeout": _SECONDS,
    "timeout_seconds": _SECONDS,
    "max_turns": _ROUNDS,
    "max_steps": _ROUNDS,
    "max_iterations": _ROUNDS,
    "max_rounds": _ROUNDS,
    "retry": _ATTEMPTS,
    "retries": _ATTEMPTS,
    "max_retries": _ATTEMPTS,
    "max_cost": ("limits=Limits(max_cost=...)",),
    "temperature": ("settings=ModelSettings(temperature=...)",),
    "max_tokens": _LENGTH,
}
"""The options that are meant by names which other libraries use: the first one that exists where the name was given."""


def no_option(unknown: Iterable[str], known: Iterable[str], what: str = "option") -> str:
    """Return the error text for options that do not exist: it names the known options, and those that are meant."""
    wrong, names = sorted(unknown), list(known)
    alike = [near for each in wrong if (near := option_meant(each, names))]
    meant = f" (did you mean {', '.join(alike)}?)" if alike else ""
    return f"there is no {what} {', '.join(wrong)}{meant}; the {what}s are {', '.join(names)}"


def option_meant(wrong: str, names: Sequence[str]) -> str:
    """Return the one of `names`, or the use of one, that is meant by a name which does not exist; "" without one."""
    for option in _OTHER_NAMES.get(wrong, ()):
        # A function that takes limits begins requests, or makes what begins them.
        if option.partition("=")[0] in names or (option.startswith("run(") and "limits" in names):
            return option
    longer = [each for each in names if each.startswith(f"{wrong}_")]
    return next(iter(longer or difflib.get_close_matches(wrong, names)), "")


def hints_at_names(kind: type[T]) -> type[T]:
    """Make a class answer an argument that it does not take as a function answers an option: see `no_option`.

    The class takes its arguments only by name.
    """
    make = kind.__init__
    names = list(inspect.signature(make).parameters)[1:]

    @functools.wraps(make)
    def checked(self: T, *given: Any, **named: Any) -> None:
        if unknown := named.keys() - set(names):
            raise TypeError(f"{kind.__name__}: {no_option(unknown, names)}")
        if given:
            raise TypeError(f"{kind.__name__}: {shown(given[0])} has no name; write {kind.__name__}({names[0]}=...)")
        make(self, **named)

    kind.__init__ = checked
    return kind


def shown(given: object) -> str:
    """Return a description of `given` for an error message: its type and the beginning of its representation."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return f"{kind_of(given)} ({_short.repr(given)})"


def kind_of(given: object) -> str:
    """Return the name of the type of `given`, with its article."""
    name = type(given).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"
