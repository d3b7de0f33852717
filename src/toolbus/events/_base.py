"""The base of every event: the class decorator, ids, and the fields that all events carry."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, TypeVar, dataclass_transform

_DEBUG = os.environ.get("TOOLBUS_DEBUG", "") not in ("", "0")
_E = TypeVar("_E")

declared: list[type[Any]] = []
_process_prefix = os.urandom(8).hex()
_next_number = count(1).__next__


def _reset_prefix() -> None:
    global _process_prefix  # noqa: PLW0603 -- a forked child must not repeat the ids of its parent
    _process_prefix = os.urandom(8).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_prefix)


def new_id() -> str:
    """Return a fresh id, unique across processes: 64 random bits for the process, then a counter. Thread-safe."""
    return f"{_process_prefix}{_next_number():x}"


@contextlib.contextmanager
def ids_from(prefix: str) -> Generator[None]:
    """Make ids of `prefix` and a counter from 1 within this block, for simulations that must be reproducible."""
    global _process_prefix, _next_number
    kept = _process_prefix, _next_number
    _process_prefix, _next_number = prefix, count(1).__next__
    try:
        yield
    finally:
        _process_prefix, _next_number = kept


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def event(cls: type[_E]) -> type[_E]:
    """Make `cls` an event class: slotted, keyword-only, frozen for the type checker, and at run time when debugging."""
    made = dataclass(slots=True, kw_only=True, frozen=_DEBUG)(cls)
    # A frozen dataclass can be hashed and an ordinary one cannot, so debugging would change what works.
    setattr(made, "__hash__", None)  # noqa: B010 -- the type checker rejects a plain assignment
    declared.append(made)
    return made


@event
class Event:
    """The fields that every event carries.

    `metadata` belongs to the application (a tenant or a user, for example) and is on every event and log record.
    """

    type: str
    event_id: str = field(default_factory=new_id)
    request_id: str = ""
    conversation_id: str = ""
    parent_id: str = ""
    at: float = field(default_factory=time.time)
    metadata: Mapping[str, Any] | None = None

    is_fact: ClassVar[bool] = False
