"""The options that a request was agreed with: as they are written, and as a later release reads them."""

from __future__ import annotations

from typing import Any

import pytest

from support.resuming import virtual_walls
from toolbus import Limits, ModelSettings, Runtime
from toolbus.core.history import Memo
from toolbus.core.prices import Price
from toolbus.durability._agreed_options import (
    fields_of,
    limits_in,
    memo_in,
    messages_from,
    messages_to_json,
    options_in,
)
from toolbus.errors import ConfigurationError
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()


def brief(_context: Any) -> str:
    """Instructions that are a function."""
    return "Be brief."


def never(_spec: Any, _arguments: Any) -> bool:
    """A policy that is a function."""
    return False


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"instructions": "Be brief.", "needs_approval": True}, {"instructions": "Be brief.", "needs_approval": True}),
    ({"needs_approval": False}, {"needs_approval": False}),
    (
        {"instructions": brief, "needs_approval": never},
        {"instructions": "function", "needs_approval": "function"},
    ),
]


@pytest.mark.parametrize(("given", "written"), CASES)
async def test_an_option_is_written_as_data_or_as_a_function_and_only_if_it_was_given(
    given: Any, written: dict[str, Any]
) -> None:
    store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider([text("Done.")]), store=store) as runtime:
        result = await runtime.run("go", **given)
    assert store.journal is not None
    record = await store.journal.request(result.request_id)
    assert record is not None
    found = record.agreed
    assert {name: found[name] for name in ("instructions", "needs_approval") if name in found} == written
    expected = {} if written.get("instructions") == "function" else written
    assert options_in(found).get("instructions") == expected.get("instructions")


def test_what_was_written_comes_back_without_what_only_a_newer_release_knows() -> None:
    limits, settings = Limits(max_rounds=3, stop_on=frozenset({"timeout", "denied"})), ModelSettings(temperature=0.5)
    memo, price = Memo(first_id="m1", turns_omitted=2), Price(input_per_million=1.0, output_per_million=2.0)
    newer = {"of_a_newer_release": 1}
    assert (fields_of(limits) or {})["stop_on"] == ["denied", "timeout"]
    assert limits_in({"limits": {**(fields_of(limits) or {}), **newer}}) == limits
    assert memo_in({"memo": {**(fields_of(memo) or {}), **newer}}) == memo
    agreed = {
        "settings": {**(fields_of(settings) or {}), **newer},
        "prices": {"acme:one": {**(fields_of(price) or {}), **newer}},
    }
    assert options_in(agreed) == {"settings": settings, "prices": {"acme:one": price}}


@pytest.mark.parametrize("written", ["x", [1], 7, True])
def test_options_of_another_type_are_refused(written: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Limits was written as .*, which is not an object"):
        limits_in({"limits": written})
    with pytest.raises(ConfigurationError, match="ModelSettings was written as"):
        options_in({"settings": written})


def test_messages_that_are_none_are_refused() -> None:
    messages = [UserMessage(content="go")]
    assert messages_from(messages_to_json(messages)) == messages
    assert messages_from(None) == []
    with pytest.raises(ConfigurationError, match="history"):
        messages_from([{"role": "oracle"}])


def test_what_was_not_written_has_its_default() -> None:
    assert (limits_in({}), options_in({}), memo_in({})) == (Limits(), {}, None)


@pytest.mark.parametrize("metadata", [{"user": object()}, {1: 2}, {"number": 2**70}])
async def test_metadata_that_no_journal_can_keep_is_refused_before_anything_begins(metadata: dict[Any, Any]) -> None:
    async with Runtime(ScriptedProvider([]), store=MemoryStore(journal=True)) as runtime:
        before = runtime.statistics().free_capacity
        with pytest.raises(ConfigurationError, match="metadata is not JSON, so the journal cannot keep it"):
            runtime.start("go", metadata=metadata)
        assert runtime.statistics().free_capacity == before


async def test_a_history_that_no_journal_can_keep_fails_its_request_and_says_where() -> None:
    history = [UserMessage(content="go"), AssistantMessage(text="Gone.", vendor_data={"odd": {"raw": object()}})]
    async with Runtime(ScriptedProvider([text("Done.")]), store=MemoryStore(journal=True)) as runtime:
        with pytest.raises(ConfigurationError, match=r"history\[1\] is not JSON.*: object, at vendor_data\.odd\.raw"):
            await runtime.run("go", history=history)


async def test_a_history_may_have_texts_and_numbers_of_subclasses() -> None:
    """Template engines and parsers of HTML give such texts."""

    class Markup(str):
        __slots__ = ()

    class Number(int): ...

    reply = AssistantMessage(text="Gone.", vendor_data={"number": Number(3)})
    assert messages_from(messages_to_json([UserMessage(content=Markup("<p>")), reply])) == [
        UserMessage(content="<p>"),
        AssistantMessage(text="Gone.", vendor_data={"number": 3}),
    ]
