"""Coding: every event survives JSON, and what is no event is refused with its place and what was expected."""

from __future__ import annotations

import datetime as dt
from typing import Any

import jsonschema_rs
import orjson
import pytest
from event_strategies import events, events_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolbus.errors import DecodeError, ToolbusError
from toolbus.events import (
    EVENT_TYPES,
    ApprovalDecided,
    Artifact,
    CallOutcome,
    Event,
    MessageAppended,
    ModelRetrying,
    RoundStarted,
    Spent,
    StatusChanged,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
    decode,
    encode,
    json_schema,
)
from toolbus.messages import AssistantMessage, ImagePart, TextPart, ToolCall, Usage, UserMessage
from toolbus.records import defaults_of, replace

SCHEMA = json_schema()
DELTA: dict[str, Any] = {"type": "text_delta", "message_id": "m", "text": "x"}
REQUESTED: dict[str, Any] = {
    "type": "tool_call_requested",
    "call_id": "c",
    "name": "look_up",
    "arguments": {},
    "round": 0,
    "timeout_seconds": 30.0,
    "idempotency_key": "k",
}


@pytest.mark.parametrize("kind", EVENT_TYPES)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_every_event_round_trips_with_any_values(kind: type[Event], data: st.DataObject):
    event = data.draw(events_of(kind))
    again = decode(encode(event))
    assert type(again) is kind
    assert again == event


@given(events)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_an_event_is_one_line_of_json_with_its_type(event: Event):
    line = encode(event)
    assert b"\n" not in line
    written = orjson.loads(line)
    assert written["type"] == event.type
    assert set(written) == {"type", *event.__struct_fields__}
    assert encode(decode(line)) == line


def test_nested_values_come_back_as_what_they_were():
    message = AssistantMessage(text="x", tool_calls=(ToolCall(name="a"), ToolCall(name="b")), vendor_data={"v": [1]})
    for event in (
        MessageAppended(message=message),
        MessageAppended(message=UserMessage(content=(TextPart(text="a"), ImagePart(url="https://example.com/a.png")))),
        RoundStarted(round=1, message_count=2, call_outcomes=(CallOutcome(name="a", ok=True),)),
        ToolCallCompleted(call_id="c", name="a", content="", artifacts=(Artifact(name="f", content="x"),)),
    ):
        again = decode(encode(event))
        assert again == event
        assert repr(again) == repr(event)


def test_text_is_accepted_as_well_as_bytes():
    event = TextDelta(message_id="m", text="zażółć 😀")
    assert decode(encode(event).decode()) == event


def test_what_is_left_out_gets_its_default():
    event = decode(orjson.dumps(DELTA))
    assert isinstance(event, TextDelta)
    assert (event.request_id, event.round, event.metadata) == ("", 0, None)
    assert event.event_id != decode(orjson.dumps(DELTA)).event_id
    assert Spent() == Spent(usage=Usage(), tool_calls=0, cost=0.0)
    assert ModelRetrying(round=0, reason="empty_reply").provider_index == 0


def test_fields_that_are_unknown_are_ignored_at_any_depth():
    line = orjson.dumps(
        {
            "type": "message_appended",
            "of_a_newer_version": [1, 2],
            "message": {"role": "user", "content": "hello", "mood": "good"},
        }
    )
    event = decode(line)
    assert isinstance(event, MessageAppended)
    assert event.message == UserMessage(content="hello")


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("change", "path", "expectation"),
    [
        ({"text": ...}, "event", "missing required field text"),
        ({"text": 5}, "event.text", "Expected str, got int"),
        ({"round": "3"}, "event.round", "Expected int"),
        ({"round": 1.5}, "event.round", "Expected int"),
        ({"round": True}, "event.round", "Expected int"),
        ({"at": "noon"}, "event.at", "Expected float, got str"),
        ({"at": "5"}, "event.at", "Expected float, got str"),
        ({"metadata": [1]}, "event.metadata", "Expected object [|] null, got array"),
        ({"event_id": None}, "event.event_id", "Expected str, got null"),
    ],
)
def test_a_wrong_field_is_reported_by_its_path_and_what_was_expected(
    change: dict[str, Any], path: str, expectation: str
):
    fields = {name: value for name, value in {**DELTA, **change}.items() if value is not ...}
    with pytest.raises(DecodeError, match=rf"^{path}: .*({expectation})"):
        decode(orjson.dumps(fields))


@pytest.mark.parametrize(
    ("fields", "path", "expectation"),
    [
        (
            {"type": "message_appended", "message": {"role": "tool", "call_id": "c", "name": "n", "content": 1}},
            r"event\.message\.content",
            "Expected str, got int",
        ),
        ({"type": "message_appended", "message": {"role": "robot"}}, r"event\.message\.role", "Invalid value 'robot'"),
        (
            {"type": "round_started", "round": 1, "message_count": 1, "call_outcomes": [{"name": "a", "ok": True}, {}]},
            r"event\.call_outcomes\[1\]",
            "missing required field name",
        ),
        ({**REQUESTED, "arguments": "{}"}, r"event\.arguments", "Expected object, got str"),
        (
            {"type": "tool_call_failed", "call_id": "c", "name": "n", "error": "", "reason": "bored"},
            r"event\.reason",
            "Invalid enum value 'bored'",
        ),
        ({"type": "status_changed", "text": "", "stage": "asleep"}, r"event\.stage", "Invalid enum value 'asleep'"),
    ],
)
def test_a_wrong_field_inside_another_is_reported_by_its_whole_path(
    fields: dict[str, Any], path: str, expectation: str
):
    with pytest.raises(DecodeError, match=rf"^{path}: .*({expectation})"):
        decode(orjson.dumps(fields))


@pytest.mark.parametrize("word", ["yes", "true", "1", "on", 1])
def test_no_word_but_true_approves_a_call(word: object):
    line = orjson.dumps({"type": "approval_decided", "call_id": "c", "approved": word})
    with pytest.raises(DecodeError, match=r"^event\.approved: Expected bool"):
        decode(line)
    event = decode(orjson.dumps({"type": "approval_decided", "call_id": "c", "approved": True}))
    assert isinstance(event, ApprovalDecided)
    assert event.approved is True


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b'{"type":"text_delta"',
        b"\xff\xfe",
        b'{"type":"text_delta","message_id":"m","text":"\\ud800"}',
        "\ud800",
        b'{"type":"text_delta","message_id":"m","text":"x","at":NaN}',
        b'{"type":"tool_call_completed","call_id":"c","name":"n","content":"","data":{"deep":[Infinity]}}',
    ],
)
def test_what_is_not_json_is_refused_wherever_it_is(data: bytes | str):
    with pytest.raises(DecodeError, match=r"^event: not JSON: ") as caught:
        decode(data)
    assert isinstance(caught.value, ToolbusError)
    assert caught.value.fault == "caller"


def test_the_error_says_where_the_json_ends():
    with pytest.raises(DecodeError, match=r"^event: not JSON: .*line 2 column 1"):
        decode(b'{"type":\n}')


@pytest.mark.parametrize("data", [b"[]", b"3", b"null", b'"text_delta"'])
def test_json_that_is_no_object_is_no_event(data: bytes):
    with pytest.raises(DecodeError, match=r"^event: .*object"):
        decode(data)


def test_an_object_without_a_type_is_refused_and_the_field_is_named():
    with pytest.raises(DecodeError, match=r"^event: .*required field type"):
        decode(b'{"message_id":"m","text":"x"}')


def test_an_unknown_type_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(DecodeError, match=r"'text_sent'.*'text_delta'"):
        decode(orjson.dumps({**DELTA, "type": "text_sent"}))


def test_the_type_of_one_event_with_the_fields_of_another_is_refused():
    with pytest.raises(DecodeError, match=r"^event: .*missing required field call_id"):
        decode(orjson.dumps({**DELTA, "type": "tool_call_requested"}))


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_no_bytes_raise_anything_but_a_decode_error(data: bytes | str):
    with pytest.raises(DecodeError):
        decode(data)


def test_nesting_is_bounded_and_deep_nonsense_is_refused():
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(DecodeError):
        decode(b'{"type":"tool_call_completed","call_id":"c","name":"n","content":"","data":' + deep + b"}")


@pytest.mark.parametrize("depth", [64, 190])
def test_data_as_deep_as_arguments_may_be_and_more_comes_back(depth: int):
    value: Any = "core"
    for _ in range(depth):
        value = [value]
    event = ToolCallCompleted(call_id="c", name="n", content="", data=value)
    assert decode(encode(event)) == event


# ----------------------------------------------------------------------------------------------- what JSON has not


def test_a_value_that_json_has_not_is_refused_unless_somebody_says_what_it_is():
    event = StatusChanged(stage="idle", text="", metadata={"user": {1, 2}})
    with pytest.raises(TypeError, match="set"):
        encode(event)
    assert decode(encode(event, default=sorted)) == replace(event, metadata={"user": [1, 2]})


@pytest.mark.parametrize("value", [2**64, b"bytes", {1: "a key that is no text"}])
def test_values_beyond_json_are_refused(value: object):
    with pytest.raises(TypeError):
        encode(ToolCallCompleted(call_id="c", name="n", content="", data=value))


def test_half_a_surrogate_pair_which_json_cannot_carry_becomes_a_question_mark():
    event = ToolCallCompleted(call_id="c", name="n", content="a\ud800b", data={"\udc00": ["\ud83d", 1.5, None]})
    again = decode(encode(event))
    assert again == replace(event, content="a?b", data={"?": ["?", 1.5, None]})


def test_dates_are_written_as_text():
    day = dt.date(2025, 3, 1)
    again = decode(encode(ToolCallCompleted(call_id="c", name="n", content="", data=day)))
    assert isinstance(again, ToolCallCompleted)
    assert again.data == "2025-03-01"


def test_an_integer_where_a_number_is_wanted_is_a_number():
    event = ToolCallProgress(call_id="c", name="n", done=3, total=10)
    assert decode(encode(event)) == event


# -------------------------------------------------------------------------------------------------- the JSON schema


def test_the_schema_covers_every_type_and_tells_them_apart_by_type():
    schema = SCHEMA
    assert schema["discriminator"]["propertyName"] == "type"
    mapping = schema["discriminator"]["mapping"]
    assert mapping == {kind.type: f"#/$defs/{kind.__name__}" for kind in EVENT_TYPES}
    assert {each["$ref"] for each in schema["anyOf"]} == set(mapping.values())


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_the_schema_names_every_field_and_requires_what_has_no_default(kind: type[Event]):
    definition = SCHEMA["$defs"][kind.__name__]
    assert set(definition["properties"]) == {"type", *kind.__struct_fields__}
    required = {"type", *(name for name in kind.__struct_fields__ if name not in defaults_of(kind))}
    assert set(definition["required"]) == required
    assert definition["properties"]["type"]["enum"] == [kind.type]


@given(events)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_keeps_to_the_schema(event: Event):
    assert _is_valid(orjson.loads(encode(event)))


def test_the_schema_refuses_what_decode_refuses():
    assert _is_valid(DELTA)
    assert not _is_valid({**DELTA, "round": "3"})
    assert not _is_valid({**DELTA, "type": "text_sent"})


_validator: Any = jsonschema_rs.Draft202012Validator(SCHEMA)


def _is_valid(value: object) -> bool:
    return bool(_validator.is_valid(value))


def test_arguments_and_reasons_of_calls_survive():
    requested = ToolCallRequested(
        call_id="c", name="n", arguments={"a": [1, {"b": None}]}, round=0, timeout_seconds=1.5, idempotency_key="k"
    )
    failed = ToolCallFailed(call_id="c", name="n", reason="limit", error="no", limit="max_tool_calls=100")
    assert [decode(encode(each)) for each in (requested, failed)] == [requested, failed]
