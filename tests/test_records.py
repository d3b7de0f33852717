"""Records: frozen values that can be compared, copied, pickled, matched, collected, and used with pydantic."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import re
import weakref
from collections.abc import Callable
from typing import Any, cast, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from toolbus import Limits, ToolResult, tool
from toolbus.errors import DecodeError
from toolbus.events import (
    EVENT_TYPES,
    Artifact,
    ModelResponded,
    StatusChanged,
    ToolCallCompleted,
    ToolCallFailed,
    decode,
    encode,
)
from toolbus.messages import AssistantMessage, ImagePart, Message, TextPart, ToolCall, Usage, UserMessage
from toolbus.records import HandlerRecord, JsonForm, Record, asdict, defaults_of, json_bytes, replace

REPLY = AssistantMessage(
    text="Look.", tool_calls=(ToolCall(name="look", arguments='{"at":1}'),), vendor_data={"a": [1]}
)
EVENT = ModelResponded(round=0, message=REPLY, usage=Usage(input_tokens=3), metadata={"user": "u1"})
COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each)), replace]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("record", [EVENT, REPLY, Usage(), TextPart(text="x")], ids=lambda each: type(each).__name__)
def test_a_record_is_copied_and_pickled_as_what_it_is(copied: Callable[[Any], Any], record: Record) -> None:
    again = copied(record)
    assert type(again) is type(record)
    assert again == record
    assert repr(again) == repr(record)


def test_a_record_is_matched_by_its_fields() -> None:
    match ToolCallFailed(call_id="c", name="n", reason="timeout", error="late"):
        case ToolCallFailed(reason="timeout", error=error):
            assert error == "late"
        case _:
            pytest.fail("it did not match")


def test_another_value_is_set_in_a_copy_and_an_unknown_field_is_refused() -> None:
    assert replace(EVENT, round=2).round == 2
    assert EVENT.round == 0
    assert replace(Limits(), max_rounds=3).max_rounds == 3
    with pytest.raises(TypeError, match="rounds"):
        replace(EVENT, rounds=2)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            {"msg": "Sold."},
            "ToolResult: there is no field msg (did you mean message?); the fields are message, data, artifacts, ",
        ),
        ({"message": "Sold.", "file": "a.txt"}, "ToolResult: there is no field file; the fields are message, data, "),
    ],
)
def test_an_error_of_making_a_result_names_its_fields(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        ToolResult(**wrong)


def test_a_result_is_made_with_names() -> None:
    with pytest.raises(TypeError, match=r"^ToolResult: give its fields by name; the fields are message, data, "):
        ToolResult("Sold.")  # type: ignore[misc]


def test_an_error_of_making_an_artifact_names_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"^Artifact: Missing required argument 'content'; the fields are name, con"):
        Artifact(name="report.csv")  # type: ignore[call-arg]


class Seat(HandlerRecord, frozen=True):
    row: int
    number: int = 1

    def __post_init__(self) -> None:
        if self.row < 1:
            raise TypeError("rows begin at 1")


@pytest.mark.parametrize("make", [lambda: Seat(0), lambda: Seat(row=0)])
def test_a_records_own_error_stays_as_it_is(make: Callable[[], Seat]) -> None:
    with pytest.raises(TypeError, match=r"^rows begin at 1$") as raised:
        make()
    assert raised.traceback[-1].name == "__post_init__"


def test_the_values_of_a_record_are_those_of_its_json() -> None:
    assert encode(EVENT) == orjson.dumps(asdict(EVENT))
    assert list(asdict(REPLY)) == [
        "role",
        "text",
        "tool_calls",
        "reasoning",
        "message_id",
        "vendor_data",
        "interrupted",
    ]
    assert asdict(REPLY)["tool_calls"] == (asdict(REPLY.tool_calls[0]),)
    assert asdict(replace(EVENT, metadata={7: {8: "x"}}))["metadata"] == {"7": {"8": "x"}}


# --------------------------------------------------------------------------------------------- the garbage collector


class Held:
    """An object of the application, which a record holds and which refers to the record."""

    def __init__(self) -> None:
        self.event: object = None


MAKERS: list[Callable[[Any], Record]] = [
    lambda held: StatusChanged(stage="idle", text="", metadata={"of": held}),
    lambda held: ToolCallCompleted(call_id="c", name="n", content="", data=held),
    lambda held: AssistantMessage(vendor_data={"of": held}),
]


@pytest.mark.parametrize("made", MAKERS, ids=["metadata", "data", "vendor_data"])
def test_a_cycle_through_what_an_application_has_given_is_collected(made: Callable[[Any], Record]) -> None:
    held = Held()
    held.event = made(held)
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None


def test_a_record_that_is_not_tracked_holds_text_numbers_and_such_records_alone() -> None:
    untracked = [each for each in _all_records(Record) if not each.__struct_config__.gc]
    assert {ToolCall, Usage, TextPart, ImagePart} <= set(untracked)
    for kind in untracked:
        for annotation in kind.__annotations__.values():
            assert str(annotation).startswith(("str", "int", "float", "bool", "Literal[", "ClassVar[")), kind


def _all_records(kind: type[Record]) -> list[type[Record]]:
    return [each for sub in kind.__subclasses__() for each in (sub, *_all_records(sub))]


# ------------------------------------------------------------------------------------------------------------ JSON


def _json_of(value: Any) -> bytes | None:
    try:
        return orjson.dumps(value)
    except TypeError:
        return None


ANY: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=5)
    | st.dates()
    | st.datetimes()
    | st.uuids()
    | st.decimals()
    | st.sets(st.integers(), max_size=2)
    | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(value=ANY)
def test_what_an_event_may_hold_is_what_json_can_hold(value: Any) -> None:
    """The reader takes more than the writer; what could not be read back as it was written is never written."""
    event = ToolCallCompleted(call_id="c", name="n", content="", data=value)
    expected = _json_of(value)
    if expected is None and not _has_surrogates(value):
        with pytest.raises(TypeError):
            encode(event)
    else:
        again = decode(encode(event))
        assert isinstance(again, ToolCallCompleted)
        if expected is not None:
            assert again.data == orjson.loads(expected)


def _has_surrogates(value: Any) -> bool:
    if isinstance(value, str):
        return not value.isprintable() and value != value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        return any(map(_has_surrogates, [*pairs.keys(), *pairs.values()]))
    return isinstance(value, list) and any(map(_has_surrogates, cast("list[Any]", value)))


def test_a_value_that_is_nested_too_deep_to_be_read_is_not_written() -> None:
    value: Any = None
    for _ in range(400):
        value = [value]
    with pytest.raises(TypeError, match=r"[Rr]ecursion"):
        encode(ToolCallCompleted(call_id="c", name="n", content="", data=value))


@pytest.mark.parametrize("content", ["x", '"' * 2**20], ids=["short", "long"])
def test_a_long_text_of_a_record_is_written_once_and_what_is_beside_it_is_checked(
    content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bytes] = []
    write = orjson.dumps

    def dumps(*args: Any, **options: Any) -> bytes:
        checked.append(write(*args, **options))
        return checked[-1]

    event = ToolCallCompleted(request_id="r", call_id="c", name="look", content=content, data={"a": 1})
    monkeypatch.setattr(orjson, "dumps", dumps)
    assert orjson.loads(json_bytes(event))["content"] == content
    assert [len(each) < 200 for each in checked] == [True]
    assert orjson.loads(json_bytes(replace(event, data={"a": "\ud83d"})))["data"] == {"a": "?"}
    odd: list[Any] = [{1: "a"}, {"a": b"bytes"}, [2**70]]
    for each in odd:
        with pytest.raises(TypeError):
            json_bytes(replace(event, data=each))


def test_values_without_a_json_form_are_given_to_the_default() -> None:
    assert json_bytes([TextPart(text="x"), {1, 2}], sorted) == b'[{"type":"text","text":"x"},[1,2]]'


def test_json_that_only_its_reader_refuses_is_reported_in_the_words_of_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_data: Any) -> Any:
        raise ValueError("not today")

    form = JsonForm[list[Message]](list[Message], "history")
    monkeypatch.setattr(form, "_decode", refuse)
    with pytest.raises(DecodeError, match=r"^history: not JSON: not today$"):
        form.read(b"[]")


def test_a_list_of_messages_is_read_from_json_and_from_its_values() -> None:
    form = JsonForm[list[Message]](list[Message], "history")
    messages: list[Message] = [UserMessage(content=(TextPart(text="x"),)), REPLY]
    assert form.read(json_bytes(messages)) == messages
    assert form.read_values([asdict(each) for each in messages]) == messages
    with pytest.raises(DecodeError, match=r"^history\[0\]\.role: Invalid value 'robot'$"):
        form.read_values([{"role": "robot"}])


def test_the_defaults_of_a_record_are_those_of_an_instance() -> None:
    assert defaults_of(AssistantMessage) == {
        name: getattr(AssistantMessage(), name) for name in AssistantMessage.__struct_fields__
    }


# -------------------------------------------------------------------------------------------------------- pydantic


class Page(BaseModel):
    """A model of an application."""

    picture: ImagePart
    messages: list[Message] = []


def test_a_model_may_hold_records_as_they_are_and_as_objects() -> None:
    page = Page(picture=ImagePart(url="https://example.com/a.png"), messages=[REPLY])
    assert page.messages[0] is REPLY
    again = Page.model_validate_json(page.model_dump_json())
    assert again == page
    assert Page.model_validate(page.model_dump(mode="json")) == page
    with pytest.raises(ValidationError, match="url"):
        Page.model_validate({"picture": {"type": "image", "url": 5}})
    with pytest.raises(ValidationError, match="'image'"):
        Page.model_validate({"picture": {"type": "file", "url": "x"}})


@pytest.mark.parametrize("kind", [*EVENT_TYPES, *get_args(Message)])
def test_pydantic_has_a_schema_of_every_record(kind: type[Record]) -> None:
    schema = TypeAdapter(kind).json_schema()
    assert set(kind.__struct_fields__) <= set(schema["properties"])


@pytest.mark.parametrize("levels", [255, 1_100, 5_000])
def test_what_is_nested_too_deep_to_be_read_back_is_refused(levels: int) -> None:
    value: Any = 10**30
    for _ in range(levels):
        value = [value]
    with pytest.raises(TypeError):
        json_bytes({"a": value})


@pytest.mark.parametrize(("levels", "path"), [(3, "a[0][0][0]"), (30, "a[0][0][0][0][0][0][0]")])
def test_the_path_to_what_is_not_json_has_at_most_eight_parts(levels: int, path: str) -> None:
    """The value is written once more for each of them."""
    value: Any = {1}
    for _ in range(levels):
        value = [value]
    with pytest.raises(TypeError, match=rf"set, at {re.escape(path)}$"):
        json_bytes({"a": value})


def test_a_tool_may_take_a_record() -> None:
    @tool
    def look(picture: ImagePart) -> str:
        """Look at a picture."""
        return picture.url

    assert look.spec.parameters["properties"]["picture"]["required"] == ["url"]
    assert look.prepare({"picture": {"type": "image", "url": "x"}}, None)() == "x"


def test_a_dataclass_of_an_application_may_hold_records() -> None:
    @dataclasses.dataclass
    class Note:
        message: UserMessage

    assert orjson.loads(json_bytes(Note(UserMessage(content="x")))) == {
        "message": {"role": "user", "content": "x", "message_id": ""}
    }
