"""The version of the installed package. Imports almost nothing, because `toolbus --version` has to answer at once."""

from __future__ import annotations

import os
import sys


def installed_version() -> str:
    """Return the installed version. Asking importlib.metadata takes four times as long as starting Python."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 -- pathlib costs more than the rest of this
        except OSError:
            continue
        for name in names:
            if name.startswith("toolbus-") and name.endswith(".dist-info"):
                return name[len("toolbus-") : -len(".dist-info")]
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("toolbus")
    except PackageNotFoundError:
        return "(not installed)"


__version__ = installed_version()
