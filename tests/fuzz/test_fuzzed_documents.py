"""Argument texts, events, long results and streams, broken anywhere: only documented errors come out, and soon."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from event_shapes import EVENTS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mutations import broken_bytes, broken_texts, broken_values

from toolbus.core.arguments import MAX_DEPTH, parse_arguments
from toolbus.core.shorten import MIN_CHARS, page, shorten
from toolbus.errors import DecodeError, InvalidArguments, ReplyTooLarge
from toolbus.events import decode, encode
from toolbus.messages.wire import arguments_object, arguments_text
from toolbus.providers._shared.errors import ErrorTranslator
from toolbus.providers._shared.stream_events import EventLines, JsonLines

EXAMPLES = settings(suppress_health_check=[HealthCheck.too_slow])

words = st.text(max_size=8)  # lone surrogates included
numbers = st.integers() | st.integers(10**18, 10**21) | st.floats()
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(words, values, max_size=5)
written = st.builds(json.dumps, objects, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 1]))
MIB = 2**20
HUGE = {
    "a long text": '{"a": "' + "x" * (2 * MIB - 9) + '"}',
    "a text that is too long": '{"a": "' + "x" * (8 * MIB) + '"}',
    "a deep list": '{"a": ' + "[" * 10_000 + "]" * 10_000 + "}",
    "a deep object": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "a list that is never closed": '{"a": ' + "[" * (8 * MIB),
    "a long number": '{"a": ' + "9" * 10_000 + "}",
    "a long fraction": '{"a": 0.' + "9" * 10_000 + "}",
    "a long exponent": '{"a": 1e' + "9" * 10_000 + "}",
    "many keys": "{" + ",".join(f'"k{number}":0' for number in range(45_000)) + "}",
    "one key many times": "{" + ",".join(['"k":0'] * 200_000) + "}",
    "many lists": "[" + "[]," * 200_000 + "[]]",
    "a deep list with a long number": '{"a": ' + "[" * 1_010 + "1" * 25 + "]" * 1_010 + "}",
    "half characters": '{"a": "' + "\ud800" * 100_000 + '"}',
    "escaped half characters": '{"a": "' + "\\ud800" * 100_000 + '"}',
    "zeros": "\x00" * MIB,
    "white space": " \n" * (4 * MIB),
    "marks of byte order": "\ufeff" * 100_000 + "{}",
    "quotes": '"' * MIB,
    "backslashes": '{"a": "' + "\\" * MIB,
}


# --------------------------------------------------------------------------------------------------- arguments


def parsed(text: str) -> dict[str, Any] | None:
    """What the parser makes of a text; None where it refuses it, in few words."""
    try:
        found = parse_arguments(text)
    except InvalidArguments as exc:
        message = str(exc)
        assert len(message) < 400
        message.encode()
        return None
    assert isinstance(orjson.loads(orjson.dumps(found)), dict)
    return found


@EXAMPLES
@given(text=written | broken_texts(written) | st.text())
@example(text='{"a":' * 70 + "1" + "}" * 70)
def test_arguments_are_read_or_refused_in_words(text: str) -> None:
    found = parsed(text)
    strict: Any = None
    if found is not None and text.strip():
        pairs: list[int] = []
        strict = json.loads(text, object_pairs_hook=lambda members: (pairs.append(len(members)), dict(members))[1])
        assert found == strict, "what is taken is what the standard library reads"


@pytest.mark.repeats("what smaller ones run")
@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_arguments_of_any_size_are_read_or_refused_in_words(text: str) -> None:
    found = parsed(text)
    assert (found is not None) is any(HUGE[name] is text for name in TAKEN)


TAKEN = ("a long text", "a long fraction", "many keys", "white space")


@EXAMPLES
@given(text=written | broken_texts(written) | st.text() | st.sampled_from(sorted(HUGE.values(), key=len)[:14]))
def test_argument_text_becomes_an_object_and_that_a_text_again(text: str) -> None:
    found = arguments_object(text)
    assert isinstance(found, dict)
    assert isinstance(arguments_text(0, found), str)


@given(depth=st.integers(1, 70))
def test_nesting_is_refused_past_its_bound(depth: int) -> None:
    text = '{"a":' * depth + "1" + "}" * depth
    assert (parsed(text) is not None) is (depth <= MAX_DEPTH)


# --------------------------------------------------------------------------------------------------- events

encoded = st.sampled_from(EVENTS).map(encode)


def decoded(data: bytes | str) -> None:
    """What is decoded is written and read again as the same."""
    try:
        event = decode(data)
    except DecodeError as exc:
        assert len(str(exc)) < 2_000  # noqa: PT017 -- it may be raised, or not
        return
    try:
        again = encode(event)
    except TypeError as exc:
        assert "64-bit" in str(exc) or "254 levels" in str(exc)  # noqa: PT017 -- JSON has more than we write
        return
    assert b"\n" not in again
    assert decode(again) == event


@EXAMPLES
@given(data=broken_bytes(encoded) | st.binary())
def test_bytes_are_an_event_or_refused_in_words(data: bytes) -> None:
    decoded(data)


@EXAMPLES
@given(value=broken_values(encoded.map(orjson.loads)))
def test_json_is_an_event_or_refused_in_words(value: Any) -> None:
    decoded(json.dumps(value))
    decoded(json.dumps(value, ensure_ascii=False))


@pytest.mark.repeats("what smaller ones run")
@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_an_event_of_any_size_is_decoded_or_refused_in_words(text: str) -> None:
    decoded(text)
    decoded(f'{{"type": "tool_call_completed", "call_id": "c", "name": "n", "content": "", "data": {text}}}')


# --------------------------------------------------------------------------------------------------- long results


@EXAMPLES
@given(
    text=written | broken_texts(written) | st.builds("".join, st.lists(written | st.text(), max_size=5)),
    times=st.integers(1, 30),
    most=st.integers(0, 600),
    call_id=st.sampled_from(["", "c", '"\ud800\n', "x" * 500]),
)
def test_any_text_is_shortened_to_its_bound_and_json_stays_json(text: str, times: int, most: int, call_id: str) -> None:
    content = "[" + ",".join([text] * times) + "]"
    cut = shorten(content, most, call_id)
    if len(content) <= max(most, MIN_CHARS):
        assert cut == content
        return
    assert len(cut) <= max(most, MIN_CHARS)
    assert shorten(content, most, call_id) == cut
    try:
        json.loads(content, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return
    assert isinstance(json.loads(cut, parse_constant=_no_json), list)


def _no_json(word: str) -> None:
    """NaN and its like, which Python's reader would take."""
    raise ValueError(word)


@pytest.mark.repeats("what smaller ones run")
@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_a_text_of_any_size_is_shortened_to_its_bound(text: str) -> None:
    for most in (0, 4_000):
        assert len(shorten(text, most, "c")) <= max(most, MIN_CHARS)
    assert len(page(text, len(text) // 2, 4_000)) <= 4_000


@EXAMPLES
@given(text=st.text(max_size=2_000), offset=st.integers(0, 3_000), most=st.integers(0, 700))
def test_a_page_has_its_bound_and_says_where_the_next_begins(text: str, offset: int, most: int) -> None:
    found = page(text, offset, most)
    assert len(found) <= max(most, MIN_CHARS)


# --------------------------------------------------------------------------------------------------- streams

LIMIT_BYTES = 400
ERRORS = ErrorTranslator(vendor="v", where="http://stub", hint="")
sse = st.lists(
    st.sampled_from([b"data: {}\n", b"data:x\n", b"event: e\n", b"\n", b"\r\n", b": note\n", b"id: 1\n", b"data\n"])
    | st.binary(max_size=60),
    max_size=20,
).map(b"".join)


def lines_of(kind: type[EventLines | JsonLines], pieces: list[bytes]) -> list[tuple[str, bytes]] | None:
    """The events of a body in pieces; None where one is too large."""
    lines = kind(LIMIT_BYTES, ERRORS)
    try:
        return [*(each for piece in pieces for each in lines.feed(piece)), *lines.finish()]
    except ReplyTooLarge:
        return None


@pytest.mark.parametrize("kind", [EventLines, JsonLines])
@EXAMPLES
@given(body=sse | broken_bytes(sse), cuts=st.lists(st.integers(0, 600), max_size=8))
def test_a_body_says_the_same_however_it_is_cut(
    kind: type[EventLines | JsonLines], body: bytes, cuts: list[int]
) -> None:
    at = [0, *sorted({min(each, len(body)) for each in cuts}), len(body)]
    pieces = [body[start:until] for start, until in pairwise(at)]
    whole = lines_of(kind, [body])
    byte_by_byte = lines_of(kind, [bytes([each]) for each in body])
    if len(body) <= LIMIT_BYTES:
        assert whole is not None
        assert lines_of(kind, pieces) == whole == byte_by_byte
    for _, data in whole or ():
        assert len(data) <= LIMIT_BYTES


@pytest.mark.repeats("piece after piece")
@pytest.mark.parametrize("kind", [EventLines, JsonLines])
@pytest.mark.parametrize(
    "piece", [b"x" * 1_000, b"data: x\n" * 200, b"\n" * 4_000, b"\r" * 4_000, b"event: \xff\n" * 400]
)
def test_a_body_without_an_end_is_bounded(kind: type[EventLines | JsonLines], piece: bytes) -> None:
    lines = kind(LIMIT_BYTES, ERRORS)
    try:
        for _ in range(200):
            for _, data in lines.feed(piece):
                assert len(data) <= LIMIT_BYTES
    except ReplyTooLarge:
        pass
