"""Secrets are found in any text as a simple search finds them, in a time that does not depend on how many there are."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import random
import string
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.secrets import REFERENCE, TextMask
from toolbus.secrets._text_mask import HIDDEN, PieceMask, forms_of, masked_content, masked_json


def mask_of(secrets: list[str]) -> TextMask:
    mask = TextMask()
    for number, each in enumerate(secrets):
        mask.add(each, f"secret:{number:016x}")
    return mask


def searched_simply(text: str, secrets: dict[str, str]) -> str:
    """`text` with the references of `secrets`, which are the values by their references."""
    forms = {form: reference for reference, value in secrets.items() for form in (*forms_of(value), reference)}
    shown, at = "", 0
    while at < len(text):
        form = max((each for each in forms if text.startswith(each, at)), key=len, default="")
        shown += forms[form] if form else text[at]
        at += len(form) or 1
    return shown


# Few letters, so that values overlap, repeat themselves and contain each other.
letters = st.sampled_from(["ab", "abc1", "aé€𝄞", '"\\/n'])
many_values = letters.flatmap(
    lambda of: st.lists(st.text(of, min_size=4, max_size=24), min_size=1, max_size=24, unique=True)
)


@given(many_values, st.data())
def test_any_number_of_values_is_found_as_by_a_simple_search_in_one_text_and_in_pieces(
    secrets: list[str], data: st.DataObject
) -> None:
    mask = mask_of(secrets)
    gone = data.draw(st.sets(st.sampled_from(range(len(secrets)))))
    if data.draw(st.booleans()):
        mask.mask("")  # From now on, the mask has windows of values that are discarded.
    for number in gone:
        mask.discard(f"secret:{number:016x}")
    kept = {f"secret:{number:016x}": each for number, each in enumerate(secrets) if number not in gone}
    forms = sorted({form for each in secrets for form in forms_of(each)})
    part = st.sampled_from(forms) | st.sampled_from(
        [*secrets, *(each[1:] for each in forms), "secret:00000000", "\ud800"]
    )
    whole = "".join(data.draw(st.lists(part, max_size=8)))
    shown = mask.mask(whole)
    assert shown == searched_simply(whole, kept)
    assert (shown is whole) or (shown != whole) or any(each in whole for each in kept)

    pieces, left, joined = PieceMask(mask), whole, ""
    while left:
        size = data.draw(st.integers(1, len(left)))
        joined += pieces.feed(left[:size])
        left = left[size:]
    assert joined + pieces.flush() == shown


@given(many_values, st.lists(st.integers(), max_size=3), st.booleans())
def test_all_texts_of_a_json_value_are_searched_together_and_do_not_join_each_other(
    secrets: list[str], numbers: list[int], nested: bool
) -> None:
    mask = mask_of(secrets)
    value: list[Any] = [each[:2] for each in secrets] + [each[2:] for each in secrets] + numbers + ["", True, None]
    assert masked_json(value, mask) == [mask.mask(each) if isinstance(each, str) else each for each in value]
    hidden = {"a": {secrets[0]: [secrets[-1], 1]}}
    written: Any = json.dumps(hidden) if nested else hidden
    shown = masked_json([written, *value], mask)[0]
    shown = json.loads(shown) if nested else shown
    assert shown == {"a": {mask.mask(secrets[0]): [mask.mask(secrets[-1]), 1]}}


# ------------------------------------------------------------------------------------------------- bounds

CHANCE = random.Random(5)
KEYS = ["sk-proj-" + "".join(CHANCE.choices(string.ascii_letters, k=32)) for _ in range(1_000)]
NAMES = ["".join(CHANCE.choices(string.ascii_lowercase, k=10)) for _ in range(1_000)]
PINS = [f"{number:04d}" for number in range(1_000)]
LONG = "".join(CHANCE.choices(string.ascii_letters, k=2**16))
SAME = "a" * 2**16 + "b"
ALIKE = ["ab" * size + "c" for size in range(2, 1_000)]
MIB = 2**20

TEXTS: dict[str, tuple[list[str], str]] = {
    "keys": (KEYS, "Nothing is secret in here. " * (MIB // 27)),
    "keys in a long text": (KEYS, "Nothing is secret in here. " * (8 * MIB // 27)),
    "names": (NAMES, "Nothing is secret in here. " * (MIB // 27)),
    "beginnings of keys": (KEYS, "sk-proj-" * (MIB // 8)),
    "a key again and again": (KEYS, KEYS[7] * (MIB // 40)),
    "all keys again and again": (KEYS, "\n".join(KEYS) * 20),
    "numbers": (PINS, "0123456789" * (MIB // 10)),
    "a short text of numbers": (PINS, "0123456789" * 10_000),
    "beginnings of a long value": ([LONG], LONG[:-1] * 16),
    "beginnings of a value that repeats itself": ([SAME], "a" * MIB),
    "values that contain each other": (ALIKE, "ab" * (MIB // 2)),
    "short values that contain each other": (["a" * size for size in range(4, 30)], "a" * MIB),
}


def without_longer_ones(secrets: list[str]) -> list[str]:
    """Return the secrets that contain no other one. A text without these contains none of the others."""
    found: list[str] = []
    for secret in sorted(secrets, key=len):
        if not any(each in secret for each in found):
            found.append(secret)
    return found


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("case", TEXTS)
def test_a_text_is_masked_in_bounded_time_whatever_is_in_it_and_however_many_secrets_there_are(case: str) -> None:
    secrets, text = TEXTS[case]
    mask = mask_of(secrets)
    mask.mask("")  # The windows are made once.
    assert cpu_seconds(lambda: mask.mask(text)) < MAX_SECONDS
    shown = REFERENCE.sub("", mask.mask(text))
    assert not any(each in shown for each in without_longer_ones(secrets))


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize(
    ("secrets", "text", "size"),
    [
        (KEYS, "sk-proj-" * 500, 5),
        (KEYS, "\n".join(KEYS[:100]), 7),
        ([LONG], (LONG[:20_000] + "!") * 2, 11),
        ([LONG], LONG, 997),
        ([LONG], "".join(CHANCE.choices(string.ascii_letters, k=MIB)), MIB),
        ([SAME], ("a" * 20_000 + "c") * 2, 11),
        ([SAME], ("a" * 2**16 + "c") * 2, 2**15),
    ],
    ids=["beginnings", "keys", "a long beginning", "a long value", "one piece", "the same letter", "large pieces"],
)
def test_a_piece_of_a_text_is_masked_in_bounded_time_whatever_came_before(
    secrets: list[str], text: str, size: int
) -> None:
    mask = mask_of(secrets)
    joined: list[str] = []

    def longest() -> float:
        pieces, seconds = PieceMask(mask), 0.0
        joined.clear()
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            seconds = max(seconds, _seconds(lambda: joined.append(pieces.feed(piece))))  # noqa: B023 -- called at once
        return max(seconds, _seconds(lambda: joined.append(pieces.flush())))

    assert min(longest() for _ in range(2)) < MAX_SECONDS
    assert "".join(joined) == mask.mask(text)


def _seconds(work: Callable[[], object]) -> float:
    return cpu_seconds(work, attempts=1)


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize(
    "value",
    [
        ["a text"] * 100_000,
        [f'["\\u0073{KEYS[0][1:]}"]'] * 4_000,
        [f'["\\u0073{KEYS[0][1:]}"]'] * 100_000,
        "[" + "[]," * MIB + '"\\""]',
        "[" + '"\\"",' * 40_000 + f'"{KEYS[0]}"]',
    ],
    ids=["texts", "JSON in texts", "much JSON in texts", "a text with many values", "a text with fewer values"],
)
def test_json_is_masked_in_bounded_time_however_many_texts_it_has(value: Any) -> None:
    mask = mask_of(KEYS)
    mask.mask("")
    assert cpu_seconds(lambda: masked_json(value, mask)) < MAX_SECONDS
    assert KEYS[0][1:] not in json.dumps(masked_json(value, mask))


def test_what_would_take_too_long_to_search_is_hidden_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = mask_of(KEYS[:1])
    assert masked_content('["a\\u0062"]', mask) == '["a\\u0062"]'
    monkeypatch.setattr("toolbus.secrets._text_mask._MAX_VALUES", 1)
    assert masked_content('["a\\u0062", "c"]', mask) == HIDDEN
    monkeypatch.setattr("toolbus.secrets._text_mask._MAX_NS", 0)
    assert mask.mask("a") == HIDDEN
    assert masked_json(["a"], mask) == HIDDEN
    assert masked_json({"a": "b"}, mask) == {"hidden": HIDDEN}
    assert PieceMask(mask).feed("a") == HIDDEN


@pytest.mark.parametrize(
    ("count", "chars", "searched_bytes", "hidden_bytes"),
    [
        (2, 4, 4_000_000, None),
        (2, 16, 4_000_000, None),
        (1_000, 16, 3_000_000, 5_000_000),
        (1_000, 6, 350_000, 400_000),
    ],
)
def test_the_more_and_the_shorter_the_values_are_the_shorter_is_the_longest_text_that_is_searched(
    count: int, chars: int, searched_bytes: int, hidden_bytes: int | None
) -> None:
    mask = mask_of([f"{number:x}".rjust(chars, "q") for number in range(count)])
    assert mask.mask(" " * searched_bytes).isspace()
    assert hidden_bytes is None or mask.mask(" " * hidden_bytes) == HIDDEN


def test_nothing_follows_a_piece_that_is_hidden_because_it_may_end_within_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = PieceMask(mask_of(["swordfish"]))
    with monkeypatch.context() as patch:
        patch.setattr("toolbus.secrets._text_mask._MAX_NS", 0)
        assert pieces.feed("It is swordf") == HIDDEN
    assert (pieces.feed("ish, "), pieces.feed("and more"), pieces.flush()) == ("", "", "")


def test_a_mask_does_not_grow_with_the_values_that_were_discarded() -> None:
    mask = TextMask()
    sizes: list[int] = []
    tracemalloc.start()
    try:
        for number in range(2_000):
            mask.add("".join(CHANCE.choices(string.ascii_letters, k=32)), f"secret:{number:016x}")
            mask.discard(f"secret:{number - 50:016x}")
            assert mask.split("no value.") == ("no value.", "")
            if number % 500 == 499:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes) < 2.5 * min(sizes)


def nested(levels: int, secret: str) -> str:
    """JSON in a text of JSON, and so on: with these escapes, each level adds only a few characters to a quote."""
    text = f'["{secret}"]'
    for _ in range(levels):
        text = '["' + text.replace("\\", "\\u005c").replace('"', "\\u0022") + '"]'
    return text


def test_a_new_value_is_searched_for_in_pieces_without_all_others_being_looked_through_again() -> None:
    mask = TextMask()
    mask.add("marlin-1", "secret:1")
    assert mask.split("a mar") == ("a ", "mar")
    known = mask._beginnings
    mask.add("swordfish", "secret:2")
    mask.add("swordfish", "secret:3")
    assert mask.split("a swordfi") == ("a ", "swordfi")
    assert mask.split("a mar") == ("a ", "mar")
    mask.discard("secret:2")
    assert mask.split("a swordfish is a sword") == ("a secret:3 is a ", "sword")
    assert mask._beginnings is known
    for each in ("secret:3", "secret:1"):
        mask.discard(each)
    assert mask.split("a sword") == ("a sword", "")


def test_json_in_texts_of_json_is_hidden_whole_if_it_has_too_many_levels() -> None:
    mask = mask_of(["swordfish"])
    assert masked_content(nested(5, "sw\\u006frdfish"), mask).count("secret:0000000000000000") == 1
    # A value has a level less than a text of JSON with the same texts in it.
    assert masked_json(nested(5, "sw\\u006frdfish"), mask).count("secret:0000000000000000") == 1
    # Each level doubles the backslashes of a text that is written again: 300 levels would not fit into the memory.
    assert masked_content(nested(10, "sw\\u006frdfish"), mask) == HIDDEN
    text = nested(300, "sw\\u006frdfish")
    assert cpu_seconds(lambda: masked_content(text, mask)) < MAX_SECONDS
    assert masked_content(text, mask) == HIDDEN


def test_json_that_is_nested_too_deeply_to_be_masked_is_hidden_whole() -> None:
    mask = mask_of(["swordfish"])
    text = "[" * 1_000 + '"swordfish"' + "]" * 1_000
    assert masked_content(text, mask) == HIDDEN
    assert masked_json({"a": text}, mask) == {"hidden": HIDDEN}


def test_more_is_held_back_where_the_search_for_the_beginning_of_a_value_would_take_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mask = mask_of(["abcdefgh"])
    assert PieceMask(mask).feed("abcdx") == "abcdx"
    monkeypatch.setattr("toolbus.secrets._text_mask._MAX_HOLD_NS", 150)
    pieces = PieceMask(mask)
    assert (pieces.feed(" abcdx"), pieces.flush()) == (" ", "abcdx")


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_a_piece_is_published_in_bounded_time_if_a_value_has_megabytes() -> None:
    mask = mask_of(["x" * MIB])
    text = "ab" * MIB
    pieces, shown = PieceMask(mask), list[str]()
    for piece in (text, *"cdefg"):
        assert _seconds(lambda: shown.append(pieces.feed(piece))) < MAX_SECONDS  # noqa: B023 -- called at once
    assert len(shown[-1]) > 50_000  # What is held back is published bit by bit.
    assert "".join(shown) + pieces.flush() == f"{text}cdefg"
