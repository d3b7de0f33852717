"""Where the command keeps what it does: `--store`, TOOLBUS_STORE, or the user's state folder.

Imports the standard library alone, and no database: help and `--no-store` must not wait for one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LEASE_SECONDS", "Place", "default_path", "place_of"]

LEASE_SECONDS = 10.0
"""How long a request whose process was killed is still held. It is renewed three times meanwhile: a process that stands
still for longer loses its request only where somebody resumes it just then."""

NOTHING = "none"
"""As the store's path: nothing is kept. A file of this name is `./none`."""


@dataclass(slots=True, frozen=True)
class Place:
    """The store's file. `asked_by` says what has named it, such as "--store"; it is empty for the default place.

    `path` is None where the default place cannot be told, since there is no home folder.
    """

    path: Path | None
    asked_by: str = ""

    @property
    def options(self) -> str:
        """What has to be typed behind a command so that it finds the same store; with a space in front."""
        if self.asked_by != "--store":
            return ""
        from shlex import quote  # noqa: PLC0415 -- needs `re`, and is seldom wanted

        return f" --store {quote(str(self.path))}"


def place_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Place | None:
    """The store that the options and the environment ask for; None where nothing is to be kept."""
    if getattr(options, "no_store", False):
        return None
    given: str | None = options.store
    asked_by = "--store"
    if given is None:
        given, asked_by = environment.get("TOOLBUS_STORE") or None, "TOOLBUS_STORE"
    if given is None:
        return Place(default_path(environment))
    return None if given == NOTHING else Place(Path(given), asked_by)


def default_path(environment: Mapping[str, str], platform: str = sys.platform) -> Path | None:
    """The platform's usual place for what a program keeps for its user; None without a home folder.

    $XDG_STATE_HOME (https://specifications.freedesktop.org/basedir-spec/latest/, which says to pass over a relative
    one), Apple's "Application Support", Windows' local application data.
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
    except ValueError:  # a NUL in a variable
        return None
    return folder / "toolbus" / "toolbus.db" if folder.is_absolute() else None
