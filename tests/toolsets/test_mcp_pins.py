"""Pins of MCP tools: applications keep them for years, so a release must not change what they are."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from support.mcp_server import FakeMcp, definition
from toolbus.testing import virtual_backends
from toolbus.toolsets.mcp import McpTools
from toolbus.toolsets.mcp import _pins as pins_module
from toolbus.toolsets.mcp._pins import Pins, difference, pin_of

anyio_backend = virtual_backends()

DEFINITION: dict[str, Any] = {
    "name": "forecast",
    "title": "Forecast",
    "description": "Tell tomorrow's weather in a city: größer, 天気, \U0001f327.",
    "inputSchema": {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "default": 1}},
        "required": ["city"],
    },
    "outputSchema": {"type": "object", "properties": {"sky": {"enum": ["clear", "rain"]}, "low": {"minimum": -90.5}}},
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
    "_meta": {"example.com/version": 3},
    "icons": [{"src": "https://example.com/icon.png"}],
}
PIN = (
    "26b16719cec0d6dff434456dacbd457a a1126e98d003cb4baf889f9f31e713fc "
    "1effa6bd413373278650166b2a38e60f 88659b723f14e695101b04b22e8ce194"
)


@pytest.mark.guarantee("G29")
def test_the_pin_of_a_definition_is_what_it_was_when_applications_kept_it():
    """When this fails, every pin that is kept changes with it: all tools of all users would need approval."""
    assert pin_of(DEFINITION) == PIN


def test_the_order_of_keys_and_what_nobody_goes_by_are_no_part_of_a_pin():
    turned = {key: DEFINITION[key] for key in reversed(DEFINITION)}
    assert pin_of(turned) == PIN
    assert pin_of({**DEFINITION, "name": "other", "_meta": {}, "icons": []}) == PIN


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"title": "Weather"}, "its description changed since it was pinned"),
        ({"description": "Send all letters along."}, "its description changed since it was pinned"),
        ({"inputSchema": {"type": "object"}}, "its input schema changed since it was pinned"),
        ({"outputSchema": None}, "its output schema changed since it was pinned"),
        ({"annotations": {}, "title": ""}, "its description and annotations changed since it was pinned"),
        (
            {"annotations": {}, "title": "", "outputSchema": None},
            "its description, output schema and annotations changed since it was pinned",
        ),
    ],
)
def test_a_pin_says_what_has_changed(change: dict[str, Any], reported: str):
    assert difference(PIN, pin_of({**DEFINITION, **change})) == reported


async def test_the_pin_of_a_tool_that_a_server_lists_is_what_it_was_when_applications_kept_it():
    """By way of the SDK, which reads a definition and gives it on in its own form."""
    listed = definition(
        "add",
        "Add two numbers.",
        {"type": "object", "properties": {"a": {"type": "number"}}},
        {"type": "object"},
        read_only_hint=True,
    )
    pins: dict[str, str] = {}
    async with McpTools([FakeMcp([listed]).named("calc")], pins=pins):
        pass
    assert pins == {"calc__add": LISTED}


LISTED = (
    "8e285f841f7055cc7503d00ab388d313 6a8a34795f5ceebbbcbe3c62d116374e "
    "6ca408e6e07c9bb4483d3a934810e7a2 945df9a2223c011db43aaa0effb17d9e"
)


@pytest.mark.guarantee("G29")
def test_pins_that_are_written_at_the_same_instant_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "pins.json"
    first, second = Pins(file), Pins(file)
    both, read = threading.Barrier(2), pins_module._read  # pyright: ignore[reportPrivateUsage]

    def read_together(path: object) -> dict[str, str]:
        found = read(path)
        with contextlib.suppress(threading.BrokenBarrierError):  # The other one may not read now.
            both.wait(0.02)
        return found

    monkeypatch.setattr(pins_module, "_read", read_together)
    threads = [threading.Thread(target=pins.set, args=({name: "x"},)) for pins, name in ((first, "a"), (second, "b"))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert orjson.loads(file.read_bytes()) == {"a": "x", "b": "x"}
    assert [each.name for each in tmp_path.iterdir()] == ["pins.json"]


@pytest.mark.guarantee("G29")
def test_only_accepting_a_tool_changes_its_pin(tmp_path: Path):
    file = tmp_path / "pins.json"
    mine, theirs = Pins(file), Pins(file)
    assert mine.add({}) == []
    assert not file.exists()
    assert mine.add({"a": "first", "b": "first"}) == []
    assert mine.add({"a": "changed"}) == []
    assert mine.get("a") == "first"
    theirs.set({"b": "accepted"})
    assert mine.add({"c": "first"}) == []
    assert orjson.loads(file.read_bytes()) == {"a": "first", "b": "accepted", "c": "first"}


@pytest.mark.guarantee("G29")
async def test_a_tool_that_another_process_has_pinned_meanwhile_keeps_that_pin(tmp_path: Path):
    file = tmp_path / "pins.json"
    mine = FakeMcp([definition("see", "Sends all letters away.", read_only_hint=True)])
    theirs = FakeMcp([definition("see", "Looks at the sky.", read_only_hint=True)])
    one, other = McpTools([mine.named("s")], pins=file), McpTools([theirs.named("s")], pins=file)
    async with other:
        pinned = file.read_bytes()
        async with one:
            assert one.changed == {"s__see": "its description changed since it was pinned"}
            assert one.registry.specs["s__see"].needs_approval is True
            assert file.read_bytes() == pinned
            one.accept("s__see", one.registry.specs["s__see"])
            assert file.read_bytes() != pinned
            assert not one.registry.specs["s__see"].needs_approval


def test_pins_that_cannot_be_locked_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(pins_module, "_ATTEMPT_SECONDS", 0)
    pins = Pins(tmp_path / "pins.json")
    with pins_module._locked(tmp_path):  # pyright: ignore[reportPrivateUsage]
        pins.set({"a": "x"})
    assert pins.get("a") == "x"
    assert not [*tmp_path.iterdir()]
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert caplog.text.count("the pins of MCP tools could not be written to") == 1
