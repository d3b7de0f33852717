"""The location of the command's store: `--store`, TOOLBUS_STORE, or the user's state folder.

This module imports no database driver: help and `--no-store` must not wait for one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError

LEASE_SECONDS = 10.0
"""The lease on a request, and thus the time for which a killed process still holds it. A running process renews the
lease three times in this period; a process that stalls for longer loses its request only if somebody resumes it just
then."""

NOTHING = "none"
"""The path that stands for no store at all. A file of this name is `./none`."""


@dataclass(slots=True, frozen=True)
class StoreLocation:
    """The store's file. `asked_by` is what named it, such as "--store"; it is empty for the default location.

    A `path` of None means that there is no default location, because the user has no home folder.
    """

    path: Path | None
    asked_by: str = ""

    @property
    def options(self) -> str:
        """The options, with a leading space, that a command needs in order to find the same store."""
        if self.asked_by != "--store":
            return ""
        from shlex import quote  # noqa: PLC0415 -- needs `re`, and is seldom wanted

        return f" --store {quote(str(self.path))}"


def location_of(options: argparse.Namespace, environment: Mapping[str, str]) -> StoreLocation | None:
    """Return the store that the options and the environment ask for, or None where nothing is to be kept.

    Raises `ConfigurationError` for a URL, without quoting it, since it may have a password.
    """
    if getattr(options, "no_store", False):
        return None
    given: str | None = options.store
    asked_by = "--store"
    if given is None:
        given, asked_by = environment.get("TOOLBUS_STORE") or None, "TOOLBUS_STORE"
    if given is None:
        return StoreLocation(default_path(environment))
    if "://" in given:
        raise ConfigurationError(
            f"{asked_by} is the path of an SQLite file, not a URL; `toolbus inspect --url` shows the requests of a "
            "PostgreSQL database"
        )
    return None if given == NOTHING else StoreLocation(Path(given), asked_by)


def default_path(environment: Mapping[str, str], platform: str = sys.platform) -> Path | None:
    """Return the platform's usual location for a program's own data, or None without a home folder.

    That is $XDG_STATE_HOME (https://specifications.freedesktop.org/basedir-spec/latest/, which says to ignore a
    relative path), Apple's "Application Support", or Windows' local application data.
    """
    try:
        home = Path(os.path.expanduser("~"))  # noqa: PTH111 -- Path.home() raises where this leaves "~"
        if platform == "darwin":
            folder = home / "Library" / "Application Support"
        elif platform == "win32":
            folder = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
        else:
            folder = Path(environment.get("XDG_STATE_HOME") or "")
            folder = folder if folder.is_absolute() else home / ".local" / "state"
    except ValueError:
        # A variable contains a NUL character.
        return None
    return folder / "toolbus" / "toolbus.db" if folder.is_absolute() else None
