"""Names of a package that are imported when they are first used, so that nobody waits for a module that is not used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def imported_when_used(
    package: str, modules: Mapping[str, str], public: Iterable[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of `package` (PEP 562). `modules` maps each name to its module.

    Module names are relative to the package, with their dots. After its first use, a name is an attribute of the
    package.
    """
    own = vars(sys.modules[package])

    def find(name: str) -> Any:
        found_in = modules.get(name)
        if found_in is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = own[name] = getattr(importlib.import_module(found_in, package), name)
        return value

    def names() -> list[str]:
        return sorted({*own, *public})

    return find, names
