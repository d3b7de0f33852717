"""The base of every event: the fields that all events carry, and the name of a type."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ..records import Record, field
from .ids import new_id

_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def _type_of(name: str) -> str:
    """Return the `type` of the events of a class: the name of the class in snake case."""
    return _CAPITAL.sub("_", name).lower()


class Event(Record, kw_only=True, tag_field="type", tag=_type_of, frozen=True):
    """The fields that every event carries.

    `metadata` belongs to the application (a tenant or a user, for example) and is on every event and log record.
    """

    event_id: str = field(default_factory=new_id)
    request_id: str = ""
    conversation_id: str = ""
    parent_id: str = ""
    at: float = field(default_factory=time.time)
    metadata: Mapping[str, Any] | None = None

    type: ClassVar[str]
    is_fact: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.type = _type_of(cls.__name__)

    @property
    def is_derived(self) -> bool:
        """True for a fact that listeners hear and journals do not have, because it follows from another fact."""
        return False
