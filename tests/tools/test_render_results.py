"""From what a handler returns to the text for the model and the data for listeners, which is JSON whatever it was."""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import enum
import itertools
import pathlib
import types
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import pytest
from pydantic import BaseModel, Secret, SecretStr

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.errors import ToolError, UnserializableResult
from toolbus.events import Artifact, ToolCallCompleted, decode, encode
from toolbus.messages import FilePart, ImagePart, TextPart
from toolbus.tool_results import (
    MAX_RESULT_BYTES,
    RenderedResult,
    ToolResult,
    clean,
    failure_content,
    render,
    settled,
)

HALF = "\ud83d"  # half of a surrogate pair


class Colour(enum.StrEnum):
    RED = "red"


class Ratio(float):
    """A number of another library, such as numpy's float64."""


class Model(BaseModel):
    text: str
    ratio: float = 1.0


@dataclass
class Record:
    name: str
    _hidden: int = 0


class Point(NamedTuple):
    x: int
    y: int


class Spot(NamedTuple):
    name: str
    y: int


class Pair(tuple[int, int]):
    __slots__ = ()


class Report(BaseModel):
    chart: ImagePart


class Anything(BaseModel):
    inside: Any


@dataclass
class Holder:
    inside: Any


PLOT = ImagePart.from_bytes(b"plot", "image/png")
BILL = FilePart.from_bytes(b"bill", "application/pdf", "bill.pdf")


def cyclic_list() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


def cyclic_dict_with_half() -> dict[str, Any]:
    inside: dict[str, Any] = {"half": HALF}
    inside["inside"] = inside
    return inside


def cyclic_model() -> Anything:
    inside = Anything(inside=None)
    inside.inside = inside
    return inside


def through_the_wire(rendered: RenderedResult) -> ToolCallCompleted:
    """What a listener in another process gets; fails where the event cannot be written."""
    event = ToolCallCompleted(
        call_id="c",
        name="t",
        content=rendered.content,
        data=rendered.data,
        artifacts=rendered.artifacts,
        affected=rendered.affected,
        parts=rendered.parts,
    )
    back = decode(encode(event))
    assert back == event, "what listeners here and elsewhere see differs"
    return event


@pytest.mark.parametrize(
    ("value", "content", "data"),
    [
        ("plain text", "plain text", None),
        ("", "", None),
        ("größe 🙂", "größe 🙂", None),
        (f"half {HALF}", "half ?", None),
        (Colour.RED, "red", None),
        (None, '{"ok":true}', None),
        (True, "true", True),
        (0, "0", 0),
        (2**63, "9223372036854775808", 2**63),
        (1.5, "1.5", 1.5),
        (float("nan"), "null", None),
        ({"x": float("inf")}, '{"x":null}', {"x": None}),
        ({"a": [1, None, "x"]}, '{"a":[1,null,"x"]}', {"a": [1, None, "x"]}),
        ({}, "{}", {}),
        ([], "[]", []),
        ({1: "a", None: "b"}, '{"1":"a","null":"b"}', {"1": "a", "null": "b"}),
        ({dt.date(2026, 1, 2): 1}, '{"2026-01-02":1}', {"2026-01-02": 1}),
        ({f"k{HALF}": [HALF]}, '{"k?":["?"]}', {"k?": ["?"]}),
        ((1, 2), "[1,2]", [1, 2]),
        (Point(1, 2), '{"x":1,"y":2}', {"x": 1, "y": 2}),
        (Spot(HALF, 2), '{"name":"?","y":2}', {"name": "?", "y": 2}),
        (Pair((1, 2)), "[1,2]", [1, 2]),
        (types.MappingProxyType({"a": 1}), '{"a":1}', {"a": 1}),
        ({3, 1, 2}, "[1,2,3]", [1, 2, 3]),
        ({"tags": frozenset({"b", "a"})}, '{"tags":["a","b"]}', {"tags": ["a", "b"]}),
        (decimal.Decimal("1.10"), '"1.10"', "1.10"),
        (dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), '"2026-01-02T03:04:00+00:00"', "2026-01-02T03:04:00+00:00"),
        ({"day": dt.date(2026, 1, 2)}, '{"day":"2026-01-02"}', {"day": "2026-01-02"}),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"', "00000000-0000-0000-0000-000000000001"),
        ([Colour.RED], '["red"]', ["red"]),
        (pathlib.PurePosixPath("a/b"), '"a/b"', "a/b"),
        (dt.timedelta(hours=1), '"PT1H"', "PT1H"),
        (collections.deque([dt.timedelta(days=-1)]), '["-P1D"]', ["-P1D"]),
        (Ratio(1.5), "1.5", 1.5),
        ({"mean": Ratio(1.5), "all": array.array("d", [1.5])}, '{"mean":1.5,"all":[1.5]}', {"mean": 1.5, "all": [1.5]}),
        (pathlib.PurePosixPath("a\udc80"), '"a?"', "a?"),
        (Model(text="x"), '{"text":"x","ratio":1.0}', {"text": "x", "ratio": 1.0}),
        (Model(text=HALF, ratio=float("nan")), '{"text":"?","ratio":null}', {"text": "?", "ratio": None}),
        ([Model(text="x")], '[{"text":"x","ratio":1.0}]', [{"text": "x", "ratio": 1.0}]),
        (Record("x", 1), '{"name":"x"}', {"name": "x"}),
        (Record(HALF, 1), '{"name":"?"}', {"name": "?"}),
        ({"part": TextPart(text=HALF)}, '{"part":{"type":"text","text":"?"}}', None),
        ([(HALF, {HALF}), Record, 1][:1], '[["?",["?"]]]', [["?", ["?"]]]),
        ([HALF, uuid.UUID(int=1)], '["?","00000000-0000-0000-0000-000000000001"]', None),
        (ToolResult(), '{"ok":true}', None),
        (ToolResult(message="Saved."), '{"ok":true,"message":"Saved."}', None),
        (ToolResult(message=HALF, data={HALF}), '{"ok":true,"message":"?","data":["?"]}', ["?"]),
        (ToolResult(data=0), '{"ok":true,"data":0}', 0),
        (
            ToolResult(data={"day": dt.date(2026, 1, 2)}),
            '{"ok":true,"data":{"day":"2026-01-02"}}',
            {"day": "2026-01-02"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_value_becomes_text_for_the_model_and_json_for_listeners(value: Any, content: str, data: Any):
    rendered = render(value)
    assert rendered.content == content
    assert type(rendered.content) is str
    if data is not None:
        assert rendered.data == data
    through_the_wire(rendered)


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        (b"raw", r"bytes .* ImagePart\.from_bytes\(data, media_type\)"),
        (memoryview(b"raw"), r"memoryview .* ImagePart\.from_bytes"),
        ({"deep": [b"raw"]}, "dict .* a value of type bytes"),
        (object(), "object; return plain values, a dataclass or a pydantic model"),
        (ToolError("sold out"), "ToolError; raise it instead"),
        (Model, "ModelMetaclass"),
        ([Model, HALF], "list .* ModelMetaclass"),
        ([array.array], "list .* a value of type type"),
        (1j, "complex"),
        (2**64, "int .* 64-bit range; return it as text"),
        ({(1, 2): 3}, "dict .* key .*; use keys that are text, numbers, dates"),
        (cyclic_list(), "list .* [Rr]ecursion"),
        (cyclic_dict_with_half(), "dict .* recursion"),
        (cyclic_model(), "Anything .* Circular"),
        ([HALF, cyclic_model()], "list .* Circular"),
        ([HALF, Anything(inside=object())], "list .* unknown type"),
        (ToolResult(data=b"raw"), "bytes"),
        (ToolResult(message={"rows": 1}), "the message .* of type dict; .* as data"),  # type: ignore[arg-type]
        ({"chart": PLOT}, r"dict with an image or a file inside; .* ToolResult\(parts=\[...\]\)"),
        ([{"rows": 1}, PLOT], "list with an image or a file inside"),
        ([{"deep": (Holder(PLOT),)}], "list with an image or a file inside"),
        ({"at": pathlib.PurePosixPath("a"), "chart": PLOT}, "dict with an image or a file inside"),
        ({"charts": types.MappingProxyType({"May": PLOT})}, "dict with an image or a file inside"),
        (Report(chart=PLOT), "Report with an image or a file inside"),
        ([{"deep": [Report(chart=PLOT)]}], "list with an image or a file inside"),
        (ToolResult(data=[BILL]), "dict with an image or a file inside"),
        (ImagePart(url="chart.png"), r"the URL of a part is a str \('chart.png'\); use ImagePart.from_bytes"),
        (ToolResult(parts=["text"]), "part of type str; use ImagePart or FilePart"),  # type: ignore[list-item]
        (ToolResult(parts=[TextPart(text="x")]), "part of type TextPart"),  # type: ignore[list-item]
        (ImagePart(url=b"raw"), r"the URL of a part is a bytes .*; use ImagePart.from_bytes"),  # type: ignore[arg-type]
        (ToolResult(artifacts=["text"]), "artifact of type str"),  # type: ignore[list-item]
        (ToolResult(artifacts=[Artifact(name="a", content=b"raw")]), "artifact 'a' is of type bytes.*base64"),  # type: ignore[arg-type]
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else each[:30],
)
def test_what_cannot_be_written_is_refused_by_the_name_of_its_type(value: Any, reported: str):
    with pytest.raises(UnserializableResult, match=reported):
        render(value)


@pytest.mark.parametrize("wrapped", ["by itself", "with half a character", "as data"])
def test_a_result_that_is_accepted_can_also_be_sent_however_deep_it_is(wrapped: str):
    value: Any = 1
    refused = 0
    for _ in range(260):
        value = [value]
        try:
            given = {"with half a character": [HALF, value], "as data": ToolResult(data=value)}
            rendered = render(given.get(wrapped, value))
        except UnserializableResult:
            refused += 1
        else:
            through_the_wire(rendered)
    assert 0 < refused < 20


def test_artifacts_and_what_was_affected_are_kept_beside_the_text():
    result = ToolResult(
        message="Saved.",
        artifacts=[Artifact(name=f"a{HALF}", content=f"text{HALF}", media_type="text/markdown")],
        affected=[pathlib.PurePosixPath("a/b"), f"c{HALF}", 7],  # type: ignore[list-item]
    )
    event = through_the_wire(render(result))
    assert event.content == '{"ok":true,"message":"Saved.","affected":3}'
    assert event.artifacts == (Artifact(name="a?", content="text?", media_type="text/markdown"),)
    assert event.affected == ("a/b", "c?", "7")


def test_one_affected_name_is_not_taken_for_its_letters():
    assert render(ToolResult(affected="notes.md")).affected == ("notes.md",)


@pytest.mark.parametrize(
    ("value", "content", "parts"),
    [
        (PLOT, '{"ok":true}', (PLOT,)),
        (BILL, '{"ok":true}', (BILL,)),
        (TextPart(text="words"), "words", ()),
        ([PLOT, BILL], '{"ok":true}', (PLOT, BILL)),
        (("Sales in May", PLOT, TextPart(text=f"and June{HALF}")), "Sales in May\nand June?", (PLOT,)),
        (ToolResult(parts=[PLOT]), '{"ok":true}', (PLOT,)),
        (ToolResult(parts=PLOT), '{"ok":true}', (PLOT,)),  # type: ignore[arg-type]
        (ToolResult(message="Drawn.", data=[1], parts=[PLOT]), '{"ok":true,"message":"Drawn.","data":[1]}', (PLOT,)),
        (FilePart(url="https://x/a", media_type="a/b", name=HALF), '{"ok":true}', None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_images_and_files_go_beside_the_text(value: Any, content: str, parts: tuple[Any, ...] | None):
    event = through_the_wire(render(value))
    assert event.content == content
    assert event.parts == parts or parts is None


def test_a_part_is_the_events_own_whatever_the_handler_does_with_its_own_later():
    plot = ImagePart.from_bytes(b"plot", "image/png")
    for value in (plot, [plot], ToolResult(parts=[plot])):
        rendered = render(value)
        assert rendered.parts == (plot,)
        assert rendered.parts[0] is not plot


def test_data_that_only_looks_like_a_part_is_data():
    value = {"url": "https://x", "type": "image"}
    assert render([value, Holder(1)]).data == [value, {"inside": 1}]
    assert render(["a", "b"]).data == ["a", "b"]


def test_how_many_are_affected_is_told_to_the_model_where_there_are_any():
    assert render(ToolResult(affected=["a", "b"])).content == '{"ok":true,"affected":2}'
    assert render(ToolResult(affected=[])).content == '{"ok":true}'


def test_data_is_the_events_own_whatever_the_handler_does_with_its_own_later():
    cache: dict[str, list[int]] = {"numbers": [1]}
    rendered = render(cache)
    cache["numbers"].append(2)
    assert rendered.data == {"numbers": [1]}
    result = render(ToolResult(data=cache))
    cache.clear()
    assert result.data == {"numbers": [1, 2]}


def test_a_failure_is_an_object_that_says_so():
    assert orjson.loads(failure_content("timeout", f"too slow {HALF}")) == {
        "ok": False,
        "reason": "timeout",
        "error": "too slow ?",
    }


def test_clean_leaves_what_is_whole_alone():
    assert (clean("ascii"), clean("größe"), clean(f"a{HALF}b")) == ("ascii", "größe", "a?b")
    assert type(clean(Colour.RED)) is str


def test_a_coroutine_that_was_not_awaited_is_refused_with_what_to_do():
    async def find() -> str:
        return "found"

    found = find()
    with pytest.raises(UnserializableResult, match="it contains a value of type coroutine; await it"):
        render(found)
    found.close()


MANY = 100_000
LARGE: dict[str, Any] = {
    "text": "a" * (MAX_RESULT_BYTES + 1),
    "control characters": "\x01" * (MAX_RESULT_BYTES // 6 + 1),
    "lines": "a\n" * (MAX_RESULT_BYTES // 3 + 1),
    "other letters": "é" * (MAX_RESULT_BYTES // 2 + 1),
    "JSON": {"a": "\x01" * MAX_RESULT_BYTES},
    "quotes in JSON": {"a": '"' * (MAX_RESULT_BYTES // 4)},
    "a message": ToolResult(message='"' * (MAX_RESULT_BYTES // 2)),
    "texts with an image": ["a" * 2**20] * 9 + [ImagePart(url="https://example.com/a.png")],
    "lists": [[]] * 1_000_000,
    "numbers": list(range(MANY + 1)),
    "a set": set(range(MANY + 1)),
    "texts with surrogates": [HALF] * 500_000,
    "decimals": [decimal.Decimal(1)] * 500_000,
    "changed things": ToolResult(affected=["a"] * (MANY + 1)),
    "many texts with an image": ["a"] * MANY + [ImagePart(url="https://example.com/a.png")],
}


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("name", LARGE)
def test_a_result_of_megabytes_or_with_very_many_values_is_refused_at_once(name: str):
    def refuse() -> None:
        with pytest.raises(UnserializableResult, match=r"the tool returned .* return a part of them, or the path"):
            render(LARGE[name])

    assert cpu_seconds(refuse) < MAX_SECONDS


def test_a_result_that_is_as_large_as_it_may_be_is_rendered_whole():
    assert render("a" * MAX_RESULT_BYTES).content == "a" * MAX_RESULT_BYTES
    for written, times in (("\x01", 6), ('"', 2), ("é", 2)):
        longest = written * (MAX_RESULT_BYTES // times)
        assert render(longest).content == longest
    assert len(render(["a" * (MAX_RESULT_BYTES - 6)]).content) == MAX_RESULT_BYTES - 2  # Its quotes are escaped.
    assert render(list(range(MANY - 1))).data == list(range(MANY - 1))
    assert render(set(range(MANY - 1))).data == sorted(range(MANY - 1), key=str)
    half = [decimal.Decimal(1)] * (MANY // 2)  # Those that toolbus has to convert count twice.
    assert render(half).data == ["1"] * (MANY // 2)
    with pytest.raises(UnserializableResult, match=r"50,000"):
        render([*half, decimal.Decimal(1)])
    names = ["a"] * MANY
    assert render(ToolResult(affected=names)).affected == tuple(names)


def test_half_of_a_surrogate_pair_in_a_long_text_of_a_dictionary_is_replaced() -> None:
    long = "x" * (MAX_RESULT_BYTES // 4)
    assert render({"text": HALF + long}).data == {"text": clean(HALF) + long}


@pytest.mark.parametrize("field", ["affected", "artifacts", "parts"])
def test_the_lists_of_a_tool_result_may_be_any_iterables_and_nothing_else(field: str) -> None:
    items: dict[str, Any] = {
        "affected": "a.txt",
        "artifacts": Artifact(name="a", content="b"),
        "parts": ImagePart(url="https://example.com/a.png"),
    }
    item = items[field]

    def rendered(given: Any) -> RenderedResult:
        return render(ToolResult(**{field: given}))

    for given in ([item], {item: 1}, iter([item]), (each for each in [item]), item):
        assert getattr(rendered(given), field) == (item,)
    with pytest.raises(UnserializableResult, match=f"^{field} of a ToolResult is of type NoneType; pass a list$"):
        rendered(None)
    with pytest.raises(UnserializableResult, match="more than 100,000 JSON values"):
        rendered(itertools.repeat(item))


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_the_secrets_of_a_result_are_replaced_in_time_that_grows_with_the_result_only() -> None:
    secrets = {f"name-{number}": SecretStr(f"value-{number}") for number in range(500)}
    rendered = render({"text": "x" * 2_000_000, **secrets})
    found: list[RenderedResult] = []
    assert cpu_seconds(lambda: found.append(settled(rendered, lambda value: f"<{value}>"))) < MAX_SECONDS
    assert found[-1].data["name-499"] == "<value-499>"
    assert found[-1].secrets == ()


@pytest.mark.parametrize(
    "secrets", [["a"] * 501, ["a" * 50_001] * 2, ["\u20ac" * 33_334]], ids=["many", "long", "letters"]
)
def test_more_secrets_than_can_be_hidden_in_time_are_refused(secrets: list[str]) -> None:
    assert len(render([SecretStr(each) for each in secrets[:-1]]).secrets) == len(secrets) - 1
    with pytest.raises(UnserializableResult, match="more than 500 secrets, or 100,000 bytes of them"):
        render([SecretStr(each) for each in secrets])


def test_a_secret_that_is_null_is_an_empty_text() -> None:
    assert render({"token": Secret(None)}).content == '{"token":""}'
