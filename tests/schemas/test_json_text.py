"""Measurements of JSON text against plain readers of one character after the other, on random texts."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import random
from typing import Any, cast

import pytest

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.messages.wire import MALFORMED, arguments_object
from toolbus.providers._shared.wire_text import WholeObject
from toolbus.schemas import _json_text, has_big_number, has_many_values, with_whole_characters

SIGNS = [*'"\\,[]{}: a1é', "\\\\", '\\"', '""', "\\u0022", '"a"', "9" * 19]
TEXTS = 700


@pytest.fixture(params=[7, 11, "fresh"])
def seed(request: pytest.FixtureRequest) -> int:
    """A known seed, or a new one, which is in no test's name: all processes of a run have to collect the same tests."""
    return random.randrange(2**31) if request.param == "fresh" else request.param


def value(chance: random.Random, levels: int = 4) -> Any:
    kind = chance.random()
    if not levels or kind < 0.5:
        return chance.choice(
            [None, True, 1, 2.5, 10**18, "", "\\", '"', ",[{", "é😀", 'a\\"b', "\\" * chance.randrange(5)]
        )
    if kind < 0.75:
        return [value(chance, levels - 1) for _ in range(chance.randrange(4))]
    return {f"{chance.choice(SIGNS)}{at}": value(chance, levels - 1) for at in range(chance.randrange(4))}


def texts(seed: int) -> list[str]:
    """JSON texts, some of them with a sign too many, and texts of any signs."""
    chance, found = random.Random(seed), list[str]()
    for _ in range(TEXTS):
        if chance.random() < 0.3:
            found.append("".join(chance.choices(SIGNS, k=chance.randrange(60))))
            continue
        text = json.dumps(value(chance), ensure_ascii=chance.random() < 0.5)
        at = chance.randrange(len(text) + 1) if chance.random() < 0.3 else None
        found.append(text if at is None else text[:at] + chance.choice(SIGNS) + text[at:])
    return found


def read(text: str) -> Any:
    """The value of a JSON text; the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def members(found: Any) -> int:
    """The members and items in a value; an empty list or object counts as one more."""
    if isinstance(found, dict):
        found = [*cast("dict[str, Any]", found).values()]
    if not isinstance(found, list):
        return 0
    inside = cast("list[Any]", found)
    return max(1, len(inside)) + sum(map(members, inside))


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 2**18])
def test_values_are_counted_as_a_reader_counts_them(
    seed: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a block ends inside of an escape, a character or a text."""
    monkeypatch.setattr(_json_text, "_BLOCK_BYTES", block_bytes)
    for text in texts(seed):
        data, found = text.encode(), read(text)
        if found is text:
            continue
        count = members(found)
        for limit in {max(1, count - 1), max(1, count), count + 1}:
            is_long = len(data) >= 2 * limit
            assert has_many_values(data, limit=limit) == (is_long and count > limit), (seed, text, limit)
        assert has_big_number(data) == any(
            data[at : at + 19].isdigit() for at in range(len(data) - 18) if len(data[at : at + 19]) == 19
        ), (seed, text)


def test_an_object_is_whole_when_a_reader_can_read_it(seed: int) -> None:
    chance = random.Random(seed)
    for text in texts(seed):
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(8)))
        if len(text) < 40:  # each character, with empty pieces between
            cuts = sorted([*range(len(text))] * 2)
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        test = WholeObject()
        for at in range(len(pieces)):
            so_far = pieces[: at + 1]
            assert test.is_whole(so_far) == isinstance(read("".join(so_far)), dict), (seed, so_far)


def test_arguments_are_the_object_that_a_reader_reads_or_kept_as_they_are(seed: int) -> None:
    for text in texts(seed):
        found = read(text)
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            continue  # Half of a surrogate pair, which not every writer can write.
        other: dict[str, Any] = {MALFORMED: text} if text.strip() else {}
        expected = cast("dict[str, Any]", found) if isinstance(found, dict) else other
        assert arguments_object(text) == expected, (seed, text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (rb'"a\ud83d"', "a\ufffd"),
        (rb'"\uDE00\ude00 b"', "\ufffd\ufffd b"),
        (rb'"\ud83d\ud83d\ude00\n\u00e9"', "\ufffd\U0001f600\n\u00e9"),
        (rb'"\\ud83d \\\ud83d"', "\\ud83d \\\ufffd"),
        (rb'"\ud83d\u0041"', "\ufffdA"),
        ('"é😀"'.encode(), "é😀"),
    ],
)
def test_halves_of_surrogate_pairs_are_replaced_and_nothing_else(text: bytes, read: str) -> None:
    assert json.loads(with_whole_characters(text)) == read


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("escapes", [rb"\\", rb"\ud83d", rb"\ud83d\ude00", rb"\n"])
def test_halves_of_surrogate_pairs_are_found_in_bounded_time(escapes: bytes) -> None:
    text = rb'"\ud83d' + escapes * (2**23 // len(escapes)) + b'"'
    assert cpu_seconds(lambda: with_whole_characters(text)) < MAX_SECONDS
