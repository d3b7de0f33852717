"""Makers make what the classes make, from the same arguments."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from toolbus._fast_dataclasses import maker
from toolbus.core.turn import CallState, RoundState, TurnState
from toolbus.events import EVENT_TYPES
from toolbus.messages import AssistantMessage, ToolCall, ToolMessage, Usage
from toolbus.protocols import ModelRequest

RECORDS = [*EVENT_TYPES, AssistantMessage, ToolCall, ToolMessage, Usage, CallState, RoundState, TurnState, ModelRequest]


def values_for(kind: Any, *, all_of_them: bool) -> dict[str, Any]:
    """A value of its own for each field, or for those alone that have to be given; those of chance in any case."""
    return {
        each.name: object()
        for each in dataclasses.fields(kind)
        if all_of_them
        or (each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING)
        or each.name in ("event_id", "at")
    }


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("all_of_them", [True, False])
def test_a_maker_sets_what_the_class_sets(kind: Any, all_of_them: bool) -> None:
    values = values_for(kind, all_of_them=all_of_them)
    made, by_class = maker(kind)(**values), kind(**values)
    assert type(made) is kind
    for each in dataclasses.fields(kind):
        assert getattr(made, each.name) == getattr(by_class, each.name)
        if each.name in values:
            assert getattr(made, each.name) is values[each.name]


def test_a_maker_makes_a_new_default_each_time() -> None:
    make = maker(TurnState)
    first, second = make("r1"), make("r2")
    assert first.messages == second.messages == []
    assert first.messages is not second.messages


@pytest.mark.parametrize("given", [((), {}), (("a", "b"), {}), ((), {"nope": 1})])
def test_a_maker_refuses_the_arguments_that_the_class_refuses(given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    positional, named = given
    for make in (ToolCall, maker(ToolCall)):
        with pytest.raises(TypeError):
            make(*positional, **named)


def test_a_class_that_does_more_than_to_set_fields_is_given_back() -> None:
    @dataclass
    class Checked:
        number: int

        def __post_init__(self) -> None:
            self.number += 1

    @dataclass
    class Counted:
        number: int = field(init=False, default=0)

    assert maker(Checked) is Checked
    assert maker(Counted) is Counted
