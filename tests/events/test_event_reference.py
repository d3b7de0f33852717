"""docs/reference/events.md says what the classes say."""

from __future__ import annotations

import pytest
from event_table import PAGE, page, table

from toolbus.events import EVENT_TYPES, Event

TEXT = PAGE.read_text(encoding="utf-8")
TABLE = table()


def test_the_table_of_events_is_that_of_the_classes():
    assert page(TEXT) == TEXT, "run: python tests/events/event_table.py"


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_and_each_of_its_own_fields_is_in_the_table(kind: type[Event]):
    section = TABLE[TABLE.index(f"### {kind.__name__}\n") :].split("\n### ")[0]
    shared = set(Event.__struct_fields__)
    for name in kind.__struct_fields__:
        assert (f"| `{name}` |" in section) is (name not in shared)


def test_the_fields_that_all_events_carry_are_described_once():
    described = TEXT.partition("<!-- events")[0]
    for name in Event.__struct_fields__:
        assert f"| `{name}` |" in described
