"""What every event is made of: the class decorator, ids, and the fields that all carry."""

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
    global _process_prefix  # noqa: PLW0603 -- a forked child must not repeat its parent's ids
    _process_prefix = os.urandom(8).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_prefix)


def new_id() -> str:
    """A fresh id, unique over processes: 64 random bits for the process, then a counter. Thread-safe."""
    return f"{_process_prefix}{_next_number():x}"


@contextlib.contextmanager
def ids_from(prefix: str) -> Generator[None]:
    """In this block ids are `prefix` and a counter from 1: for simulations, which have to be the same each time."""
    global _process_prefix, _next_number
    kept = _process_prefix, _next_number
    _process_prefix, _next_number = prefix, count(1).__next__
    try:
        yield
    finally:
        _process_prefix, _next_number = kept


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def event(cls: type[_E]) -> type[_E]:
    """Make `cls` an event: slotted, keyword-only, frozen to the type checker, and in fact while debugging."""
    made = dataclass(slots=True, kw_only=True, frozen=_DEBUG)(cls)
    setattr(made, "__hash__", None)  # noqa: B010 -- else events could be hashed while debugging, and not in earnest
    declared.append(made)
    return made


@event
class Event:
    """What every event carries. `metadata` (tenant, user) is the application's and rides on every event and log."""

    type: str
    event_id: str = field(default_factory=new_id)
    request_id: str = ""
    conversation_id: str = ""
    parent_id: str = ""
    at: float = field(default_factory=time.time)
    metadata: Mapping[str, Any] | None = None

    is_fact: ClassVar[bool] = False
