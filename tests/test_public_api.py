"""The signatures and defaults of all public names, as `data/public_api.txt` has them: they change only on purpose.

After a change that is meant, `python -m tests.test_public_api` writes the file again.
"""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import pytest

import toolbus

PLACE = Path(__file__).parent / "data" / "public_api.txt"
PLAIN = (str, bytes, int, float, bool, tuple, frozenset, set, list, dict, type(None))
MODULES = [
    "toolbus",
    *(
        info.name
        for info in pkgutil.walk_packages(toolbus.__path__, "toolbus.")
        if not any(part.startswith("_") for part in info.name.split("."))
    ),
]


def shown(value: Any) -> str:
    """A default or a constant, without what differs from run to run."""
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__qualname__
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(shown, cast('set[Any]', value))))}}}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def signature_of(value: Any) -> str:
    """Its parameters with their kinds and defaults, without types: pyright checks those."""
    if inspect.isclass(value):
        if issubclass(value, enum.Enum):
            return ""
        if inspect.isfunction(value.__init__):
            return signature_of(value.__init__).replace("(self, ", "(").replace("(self)", "()")
        if issubclass(value, BaseException):
            return "(*args)"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters: list[str] = []
    is_keyword_only = False
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            if not any(one.kind is one.VAR_POSITIONAL for one in found.parameters.values()):
                parameters.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f"={shown(each.default)}"
        parameters.append(f"{stars}{each.name}{default}")
    return f"({', '.join(parameters)})"


def members_of(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The public methods and constants that a class of ours has by itself."""
    for name, member in sorted(vars(kind).items()):
        if not name.startswith("_"):
            yield name, getattr(member, "__func__", member)


def described(module: str, name: str, value: Any) -> Iterator[str]:
    """The lines of a public name; only itself where another package defines it."""
    name = f"{module}.{name}"
    home: str = getattr(value, "__module__", None) or ""
    if module == "toolbus" or (home.startswith("toolbus") and not f"{home}.".startswith(f"{module}.")):
        yield name
    elif inspect.isclass(value) and value.__module__.startswith("toolbus"):
        yield f"{name}{signature_of(value)}"
        for own, member in members_of(value):
            if inspect.isfunction(member):
                yield f"{name}.{own}{signature_of(member)}"
            elif isinstance(member, (*PLAIN, enum.Enum)):
                yield f"{name}.{own} = {shown(member)}"
    elif inspect.isroutine(value):
        yield f"{name}{signature_of(value)}"
    elif arguments := get_args(value):
        yield f"{name}: {', '.join(map(shown, arguments))}"
    elif isinstance(value, (*PLAIN, Mapping)):
        yield f"{name} = {shown(value)}"


def api(module: str) -> list[str]:
    """The lines of a module: none if it has no public names of its own."""
    found = importlib.import_module(module)
    names: list[str] = sorted(getattr(found, "__all__", ()))
    return [line for name in names for line in described(module, name, getattr(found, name))]


def recorded() -> dict[str, list[str]]:
    """The lines of the file by module."""
    found: dict[str, list[str]] = {}
    for part in PLACE.read_text("utf-8").split("\n\n"):
        head, *lines = part.strip().split("\n")
        found[head.removesuffix(":")] = lines
    return found


@pytest.mark.parametrize("module", MODULES)
def test_the_signatures_and_defaults_of_a_public_module_are_those_that_are_recorded(module: str) -> None:
    before, now = recorded().get(module, []), api(module)
    changed = "\n".join(difflib.unified_diff(before, now, "recorded", "now", lineterm="", n=0))
    assert not changed, f"if this is meant, run `python -m tests.test_public_api`:\n{changed}"


@pytest.mark.parametrize("module", MODULES)
def test_each_public_function_and_method_has_a_docstring_or_is_explained_in_that_of_its_class(module: str) -> None:
    found = importlib.import_module(module)
    silent: list[str] = []
    for name in getattr(found, "__all__", ()):
        value = getattr(found, name)
        if inspect.isfunction(value) and not value.__doc__:
            silent.append(name)
        elif inspect.isclass(value) and value.__module__.startswith("toolbus"):
            explained = value.__doc__ or ""
            silent += [
                f"{name}.{own}"
                for own, member in members_of(value)
                if inspect.isfunction(member) and not inspect.getdoc(member) and f"`{own}`" not in explained
            ]
    assert not silent


def test_no_module_is_recorded_that_is_not_public() -> None:
    assert {*recorded()} <= {*MODULES}


if __name__ == "__main__":
    parts = [(module, api(module)) for module in MODULES]
    PLACE.write_text("\n\n".join("\n".join([f"{name}:", *lines]) for name, lines in parts if lines) + "\n", "utf-8")
