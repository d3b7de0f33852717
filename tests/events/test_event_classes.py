"""The classes themselves: names, ids, immutability, and what they leave to others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

import toolbus.events
from toolbus.events import EVENT_TYPES, FACT_TYPES, Event, StatusChanged, TextDelta, ToolCallRequested, new_id
from toolbus.records import defaults_of, replace

SCHEMA = toolbus.events.json_schema()
FACTS = [
    "RequestStarted",
    "RequestResumed",
    "MessageAppended",
    "RoundStarted",
    "ModelResponded",
    "ModelRetrying",
    "ToolCallRequested",
    "ToolCallCompleted",
    "ToolCallFailed",
    "ApprovalRequested",
    "ApprovalDecided",
    "SteeringAdded",
    "ToolCallPaused",
    "ToolCallResumed",
    "CancelRequested",
    "PlanChanged",
    "HistoryCompressed",
    "RequestCompleted",
    "RequestFailed",
    "RequestCancelled",
]
SIGNALS = [
    "TextDelta",
    "ReasoningDelta",
    "ToolArgumentsDelta",
    "ToolCallStarted",
    "ToolCallProgress",
    "ToolCallRetrying",
    "StatusChanged",
    "ToolCallLate",
    "SubscriberLagged",
    "ToolCallOverdue",
    "ApprovalOverdue",
    "LoopBlocked",
    "SubscriptionFull",
    "RequestTakenOver",
    "ReceiverFailed",
    "DeadLetter",
]


def _blank(kind: type[Event]) -> Event:
    """An instance with nothing meaningful in its required fields."""
    values: dict[str, Any] = dict.fromkeys(kind.__struct_fields__, "") | defaults_of(kind)
    return kind(**values)


def test_there_are_the_facts_and_signals_of_the_design_and_no_others():
    assert [kind.__name__ for kind in EVENT_TYPES if kind.is_fact] == [kind.__name__ for kind in FACT_TYPES]
    assert {kind.__name__ for kind in FACT_TYPES} == set(FACTS)
    assert {kind.__name__ for kind in EVENT_TYPES} == {*FACTS, *SIGNALS}
    assert len(EVENT_TYPES) == len(FACTS) + len(SIGNALS)


def test_every_type_is_public():
    for kind in EVENT_TYPES:
        assert getattr(toolbus.events, kind.__name__) is kind
        assert kind.__name__ in toolbus.events.__all__


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_the_type_on_the_wire_is_the_class_name_in_snake_case(kind: type[Event]):
    expected = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    assert _blank(kind).type == expected
    assert SCHEMA["$defs"][kind.__name__]["properties"]["type"]["enum"] == [expected]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_says_what_it_is_for(kind: type[Event]):
    assert kind.__doc__ is not None
    assert not kind.__doc__.startswith(f"{kind.__name__}(")  # what a dataclass without a docstring gets


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_events_have_no_other_attributes_are_made_by_keywords_and_carry_the_ids(kind: type[Event]):
    event = _blank(kind)
    assert not hasattr(event, "__dict__")
    with pytest.raises(TypeError, match="positional"):
        kind("e1")  # pyright: ignore[reportCallIssue]
    shared = ("event_id", "request_id", "conversation_id", "parent_id", "at", "metadata")
    assert kind.__struct_fields__[:6] == shared
    assert not {"seq", "position"} & {*kind.__struct_fields__}


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_events_are_frozen(kind: type[Event]):
    event: Any = _blank(kind)
    for name in ("request_id", kind.__struct_fields__[-1]):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(event, name, "changed")
        with pytest.raises(AttributeError, match="immutable"):
            delattr(event, name)


def test_events_are_equal_by_value():
    event = StatusChanged(stage="idle", text="x")
    assert event == replace(event)
    assert event != replace(event, text="y")


def _run(program: str, **environment: str) -> list[str]:
    """What a fresh Python prints, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return done.stdout.split()


# ------------------------------------------------------------------------------------------------------------ ids


@pytest.mark.guarantee("G01")
def test_event_ids_are_unique():
    ids = {TextDelta(message_id="m", text="").event_id for _ in range(10_000)}
    assert len(ids) == 10_000


@pytest.mark.guarantee("G01")
def test_ids_are_unique_over_threads():
    ids: list[list[str]] = [[] for _ in range(8)]

    def make(into: list[str]) -> None:
        into.extend(new_id() for _ in range(5_000))

    threads = [threading.Thread(target=make, args=[into]) for into in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each for into in ids for each in into}) == 40_000


FORKS = """
import os
from toolbus.events import StatusChanged, new_id

before = new_id()
read, write = os.pipe()
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        made = [new_id() for _ in range(50)] + [StatusChanged(stage="idle", text="").event_id for _ in range(50)]
        os.write(write, (" ".join(made) + "\\n").encode())
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
os.close(write)
print(before, *(new_id() for _ in range(100)))
with os.fdopen(read) as pipe:
    print(pipe.read())
"""


@pytest.mark.guarantee("G01")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_children_repeat_neither_their_parents_ids_nor_each_others():
    ids = _run(FORKS)
    assert len(ids) == 301
    assert len(set(ids)) == 301
    assert len({each[:16] for each in ids}) == 3


@pytest.mark.guarantee("G01")
def test_two_processes_do_not_make_the_same_ids():
    program = "from toolbus.events import new_id\nprint(*(new_id() for _ in range(10)))"
    assert not set(_run(program)) & set(_run(program))


def test_time_is_given_by_whoever_makes_an_event_or_is_the_present():
    assert StatusChanged(stage="idle", text="", at=5.0).at == 5.0
    first, second = StatusChanged(stage="idle", text=""), StatusChanged(stage="idle", text="")
    assert 0 < first.at <= second.at


REQUESTED = ToolCallRequested(
    request_id="r", call_id="c", name="get_sky", arguments={}, round=0, timeout_seconds=1.0, idempotency_key="k"
)


@pytest.mark.parametrize("content", [{"sky": "clear"}, None, 42, b"clear"])
def test_a_result_that_is_no_text_is_refused_and_told_of_data(content: Any):
    kind = type(content).__name__
    with pytest.raises(TypeError, match=f"text for the model, not of type {kind}; .* give the value as data="):
        REQUESTED.completed(content)
    assert REQUESTED.completed("clear", data=content).data == content


def test_an_answer_to_a_call_takes_no_time_unless_its_executor_says_so():
    assert REQUESTED.completed("clear").duration_seconds == 0
    assert REQUESTED.failed("no such city").duration_seconds == 0
    assert not REQUESTED.failed("no such city").retryable
    assert not REQUESTED.failed("no such city").outcome_unknown


@pytest.mark.parametrize("error", [ValueError("no such city"), None, {"code": 1}])
def test_an_error_that_is_no_text_is_refused(error: Any):
    kind = type(error).__name__
    with pytest.raises(TypeError, match=f"text for the model, not of type {kind}; say in words what went wrong"):
        REQUESTED.failed(error)
    assert REQUESTED.failed("no such city").error == "no such city"
