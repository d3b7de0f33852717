"""Reading what models write as arguments: strictly, without a crash, in words that help the model."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.core.arguments import MAX_CHARS, MAX_DEPTH, MAX_VALUES, encodable, parse_arguments
from toolbus.errors import InvalidArguments


def refused(text: str) -> str:
    with pytest.raises(InvalidArguments) as raised:
        parse_arguments(text)
    message = str(raised.value)
    assert len(message) < 300
    return message


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return f'{{"a": {opening * (depth - 1)}{closing * (depth - 1)}}}'


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "{}", " {} "])
def test_no_text_is_an_object_without_members(text: str) -> None:
    assert parse_arguments(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"city": "Par',
        '{"a": 1,}',
        "{'a': 1}",
        "{a: 1}",
        "{} {}",
        "city=Paris",
        '```json\n{"a": 1}\n```',
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": [-1e999]}',
        '{"a": 01}',
        '{"a": "\n"}',
        "\ufeff{}",
        '{"a": "\\ud800"}',
        '{"a": "\\udc00x"}',
        '{"\\ud83d": 1}',
        '{"a": "\ud800"}',
        "\x00",
    ],
)
def test_what_is_no_json_is_refused_with_the_place(text: str) -> None:
    message = refused(text)
    assert message.startswith("the arguments are not valid JSON: ")
    assert "line " in message


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[]", "an array"),
        ('[{"a": 1}]', "an array"),
        ('"{}"', "a string"),
        ("null", "null"),
        ("true", "a boolean"),
        ("3", "a number"),
        ("3.5", "a number"),
    ],
)
def test_what_is_no_object_is_refused_by_its_kind(text: str, kind: str) -> None:
    assert refused(text) == f"the arguments must be a JSON object, not {kind}"


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"a": 1, "b": 2, "a": 3}',
        '{"a": 1, "\\u0061": 2}',
        '{"b": {"a": 1, "a": 2}}',
        '{"b": [{"c": {"a": [], "a": []}}]}',
        '{"b:": 1, "a": ":", "a": ""}',
        '{"b": ":", "a": {}, "a": {}}',
    ],
)
def test_a_key_that_is_written_twice_is_refused_however_deep(text: str) -> None:
    assert refused(text) == "the arguments have the key 'a' twice"


def test_a_long_key_that_is_written_twice_is_quoted_in_part() -> None:
    key = "k" * 10_000
    assert "'kkkk" in refused(f'{{"{key}": 1, "{key}": 2}}')


def test_the_same_key_in_different_objects_is_no_repetition() -> None:
    assert parse_arguments('{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}') == {"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}


def test_one_key_too_many_among_many_is_found_in_linear_time() -> None:
    text = "{" + ",".join(f'"k{number}":0' for number in range(45_000)) + ',"k44999":0}'
    began = time.process_time()
    assert refused(text) == "the arguments have the key 'k44999' twice"
    assert time.process_time() - began < 5  # counting each key anew takes half a minute


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0, 10**18])
def test_integers_of_64_bits_are_exact(number: int) -> None:
    assert parse_arguments(f'{{"a": [{number}]}}') == {"a": [number]}


@pytest.mark.parametrize("number", [str(2**64), str(-(2**63) - 1), "9" * 21, "-" + "9" * 21, "9" * 300])
def test_integers_of_more_than_64_bits_are_refused_and_not_rounded(number: str) -> None:
    message = refused(f'{{"a": [{number}]}}')
    assert message == f"the integer {number[:24]}... has more than 64 bits; send it as a string"


def test_an_integer_of_5000_digits_is_refused() -> None:
    assert refused(f'{{"a": {"9" * 5_000}}}').startswith("the arguments are not valid JSON: ")


@pytest.mark.parametrize("text", ['{"a": "12345678901234567890123"}', '{"a": 0.1234567890123456789012}', '{"a": 1e20}'])
def test_many_digits_in_texts_and_fractions_are_fine(text: str) -> None:
    assert parse_arguments(text) == json.loads(text)


@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_64_levels_are_read_and_65_refused(brackets: tuple[str, str]) -> None:
    opening, closing = brackets
    inner = "1" if opening != "[" else ""

    def levels(depth: int) -> str:
        return f'{{"a": {opening * (depth - 1)}{inner}{closing * (depth - 1)}}}'

    assert parse_arguments(levels(MAX_DEPTH))
    assert refused(levels(MAX_DEPTH + 1)) == "the arguments are nested deeper than 64 levels"
    assert refused(levels(1_000)) == "the arguments are nested deeper than 64 levels"


def test_64_levels_are_read_whatever_stands_beside_them() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert parse_arguments(f'{{"a": {deep}, "b": [[], [], {{}}]}}')
    assert "nested deeper" in refused(f'{{"a": [{deep}], "b": []}}')


def test_brackets_in_a_text_and_side_by_side_are_no_nesting() -> None:
    wide: dict[str, Any] = {"text": "[{" * 500, "list": [[] for _ in range(200)], "objects": [{} for _ in range(200)]}
    assert parse_arguments(json.dumps(wide)) == wide


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, nested(100_000), nested(100_000, '{"a":', "}")])
def test_100000_brackets_are_refused_without_a_crash(text: str) -> None:
    assert refused(text)


# ------------------------------------------------------------------------------------------------ properties

_characters = st.text(st.characters(codec="utf-8"), max_size=8)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _characters,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_characters, inner, max_size=4),
    max_leaves=12,
)
_objects = st.dictionaries(_characters, _values, max_size=4)


@given(_objects, st.booleans(), st.sampled_from([None, 2]))
def test_every_object_that_json_has_comes_back_as_it_was(value: dict[str, Any], ascii_only: bool, indent: int | None):
    assert parse_arguments(json.dumps(value, ensure_ascii=ascii_only, indent=indent)) == value
    assert parse_arguments(orjson.dumps(value).decode()) == value


@given(st.text() | st.text('{}[]":,0123456789eE+-.\\ntrufalse \n', max_size=40))
def test_any_text_gives_an_object_that_json_can_carry_or_a_refusal(text: str):
    try:
        found = parse_arguments(text)
    except InvalidArguments:
        found = {}
    assert orjson.loads(orjson.dumps(found)) == found


@given(_objects, st.data())
def test_a_repeated_key_is_found_wherever_it_is(value: dict[str, Any], data: st.DataObject):
    key, first, second = data.draw(_characters), data.draw(_values), data.draw(_values)
    member = json.dumps(key)
    twice = f"{{{member}: {json.dumps(first)}, {member}: {json.dumps(second)}}}"
    outer = json.dumps({**value, "x": "HERE"}).replace('"HERE"', twice)
    assert "twice" in refused(outer)


@given(st.text(st.characters()))
def test_a_text_is_encodable_afterwards_and_unchanged_where_it_was_before(text: str):
    clean = encodable(text)
    assert orjson.loads(orjson.dumps(clean)) == clean
    assert len(clean) == len(text)
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert clean == text


def test_more_values_or_characters_than_are_read_are_refused() -> None:
    parse_arguments(f'{{"a": [{"1," * (MAX_VALUES - 2)}1]}}')
    assert refused(f'{{"a": [{"1," * MAX_VALUES}1]}}').startswith(f"the arguments have more than {MAX_VALUES} values")
    parse_arguments(f'{{"a": "{"x" * (MAX_CHARS - 9)}"}}')
    assert refused(f'{{"a": "{"x" * MAX_CHARS}"}}').endswith(f"characters; at most {MAX_CHARS} are read")


LONG, OBJECT, QUOTE = f"0.{'1' * 80},", '{"a":1234567890123456789},', '\\"'
WIDE: dict[str, str] = {
    "fractions": f'{{"a": [{"0.1234567890123456789," * (MAX_VALUES - 2)}1]}}',
    "long fractions": f'{{"a": [{LONG * (MAX_CHARS // 90)}1]}}',
    "long integers": f'{{"a": [{"1234567890123456789," * (MAX_VALUES - 2)}1]}}',
    "digits in a text": f'{{"a": "{"1" * (MAX_CHARS - 20)}"}}',
    "objects": f'{{"a": [{OBJECT * (MAX_VALUES // 2 - 2)}1]}}',
    "quotes": f'{{"a": {{"b": "{QUOTE * (MAX_CHARS // 2 - 20)}"}}}}',
}


@pytest.mark.guarantee("G14")
@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("name", WIDE)
def test_the_largest_arguments_do_not_hold_the_event_loop(name: str) -> None:
    text = WIDE[name]
    assert cpu_seconds(lambda: parse_arguments(text)) < MAX_SECONDS
