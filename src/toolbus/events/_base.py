"""The base of every event: the class decorator, and the fields that all events carry."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

from .ids import new_id

_DEBUG = os.environ.get("TOOLBUS_DEBUG", "") not in ("", "0")
_E = TypeVar("_E")

declared: list[type[Any]] = []


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

    @property
    def is_derived(self) -> bool:
        """True for a fact that listeners hear and journals do not have, because it follows from another fact."""
        return False
