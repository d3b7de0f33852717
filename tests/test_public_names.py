"""The names that users rely on, and the error catalogue."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import toolbus
from toolbus import errors
from toolbus.errors import (
    ConversationBusy,
    InboxFull,
    MissingExtra,
    Overloaded,
    ProviderError,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    ToolbusError,
    ToolError,
)

ROOT = Path(__file__).parent.parent
MODULES = [
    info.name
    for info in pkgutil.walk_packages(toolbus.__path__, "toolbus.")
    if not any(part.startswith("_") for part in info.name.split("."))
]
CATALOGUE = (ROOT / "docs/reference/errors.md").read_text("utf-8")


def all_errors() -> list[type[ToolbusError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [each for each in found if isinstance(each, type) and issubclass(each, ToolbusError)]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_module_says_what_is_public_in_it(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no header"
    if name.count(".") == 1 or hasattr(module, "__all__"):
        for public in getattr(module, "__all__", ()):
            assert hasattr(module, public), f"{name}.__all__ names {public!r}, which is not there"


def test_the_names_that_the_design_fixes_are_there() -> None:
    top = {
        "EventBus", "Limits", "ModelSettings", "RequestResult", "RequestSession", "Runtime", "Tool", "ToolContext",
        "ToolDispatcher", "ToolError", "ToolRegistry", "ToolResult", "ToolRetry", "tool",
    }  # fmt: skip
    ours = {
        "Budget",
        "Compression",
        "Denied",
        "ImagePart",
        "Interceptor",
        "Price",
        "SqliteStore",
        "Summarizer",
        "UserMessage",
        "__version__",
        "sub_request_tool",
    }  # which the design does not name
    assert set(toolbus.__all__) == top | ours
    assert all(getattr(toolbus, name) for name in top)
    assert top <= set(dir(toolbus))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        toolbus.nothing_of_the_kind  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    events = importlib.import_module("toolbus.events")
    for name in [
        "RequestStarted",
        "RoundStarted",
        "ModelResponded",
        "ModelRetrying",
        "TextDelta",
        "ReasoningDelta",
        "ToolArgumentsDelta",
        "ToolCallRequested",
        "ToolCallStarted",
        "ToolCallProgress",
        "ToolCallRetrying",
        "ToolCallCompleted",
        "ToolCallFailed",
        "ToolCallLate",
        "ApprovalRequested",
        "ApprovalDecided",
        "SteeringAdded",
        "CancelRequested",
        "PlanChanged",
        "MessageAppended",
        "HistoryCompressed",
        "StatusChanged",
        "RequestCompleted",
        "RequestFailed",
        "RequestCancelled",
        "SubscriberLagged",
        "ReceiverFailed",
        "DeadLetter",
    ]:
        assert name in events.__all__
    for module, names in {
        "toolbus.testing": [
            *("Harness", "ScriptedProvider", "calls", "text", "ExampleCall"),
            *("check_executor", "check_provider", "check_store", "check_tools", "check_toolset"),
        ],
        "toolbus.messages": ["to_openai", "from_openai", "to_anthropic", "from_anthropic"],
        "toolbus.core.transcript": ["validate", "repair"],
    }.items():
        assert set(names) <= set(importlib.import_module(module).__all__)


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_stands_in_the_catalogue_with_its_code_and_fault(kind: type[ToolbusError]) -> None:
    if kind is ToolbusError:
        return
    row = re.search(rf"^\| `{kind.__name__}` \| `(\w+)` \| (\w+) \|", CATALOGUE, re.MULTILINE)
    assert row is not None, f"docs/reference/errors.md has no row for {kind.__name__}"
    assert (row[1], row[2]) == (kind.code, kind.fault)


@pytest.mark.parametrize("kind", all_errors())
def test_the_code_of_an_error_is_the_name_of_its_class(kind: type[ToolbusError]) -> None:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    # A request that was cancelled has the same word as its outcome.
    assert kind.code == {"toolbus_error": "error", "request_cancelled_error": "cancelled"}.get(name, name)


def test_codes_are_unique_and_the_catalogue_names_no_error_that_is_not_there() -> None:
    codes = [kind.code for kind in all_errors()]
    assert len(set(codes)) == len(codes)
    there = {kind.__name__ for kind in all_errors()}
    assert set(re.findall(r"^\| `([A-Z]\w+)` \| `\w+` \|", CATALOGUE, re.MULTILINE)) <= there


def test_errors_carry_their_fields_and_say_what_to_do() -> None:
    overloaded = Overloaded(3.0, 10, 5)
    assert (overloaded.retry_after_seconds, overloaded.running, overloaded.queued) == (3.0, 10, 5)
    assert "try again in 3 seconds" in str(overloaded)
    missing = MissingExtra("openai", "openai")
    assert "pip install 'toolbus[openai]'" in str(missing)
    assert isinstance(missing, (ImportError, ValueError))
    provider = ProviderError("x", vendor="v", status=503, retryable=True, retry_after_seconds=2.0)
    assert (provider.vendor, provider.status, provider.retryable, provider.retry_after_seconds) == ("v", 503, True, 2.0)
    unless_told = [ToolbusError("x"), StoreError("x"), ProviderError("x", vendor="v"), ToolError("x")]
    assert [each.retryable for each in unless_told] == [False] * 4
    may_pass = [overloaded, InboxFull("x"), ConversationBusy("x"), StoreUnavailable("x")]
    assert [each.retryable for each in may_pass] == [True] * 4
    assert (StoreDamaged("x").request_id, StoreDamaged("x").seq) == ("", 0)
