"""Names of a package that are imported when they are first used, so that nobody waits for a module that is not used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def imported_when_used(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of `package` (PEP 562). `modules` has the names of each module.

    Modules are relative to the package, with their dots. After its first use, a name is an attribute of the package.
    """
    own = vars(sys.modules[package])
    home_of = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = own[name] = getattr(importlib.import_module(home, package), name)
        return value

    def listed() -> list[str]:
        return sorted({*own, *home_of})

    return find, listed
