"""Long results cut for the model: JSON stays JSON with the head of every list, and what is missing is said."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import toolbus.core.shorten as module
from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.core.shorten import MIN_CHARS, page, shorten

CALL = "r_0_0"
MARKED_TEXT = re.compile(r"(.*)\.\.\. (\d+) more (?:characters|digits)", re.DOTALL)
MARKED_LIST = re.compile(r"\.\.\. (?:(\d+) more items?)?(?:; )?(shortened from \d+ characters.*)?", re.DOTALL)
MARKED_KEYS = re.compile(r"(?:(\d+) more keys?)?(?:; )?(shortened from \d+ characters.*)?", re.DOTALL)

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=30) | st.integers(0, 300).map(lambda count: "é\n" * count)
rows = st.tuples(scalars | texts, st.integers(0, 60))
many = rows.map(lambda row: [row[0]] * row[1]) | rows.map(
    lambda row: {f"k{number}": row[0] for number in range(row[1])}
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars | texts | many,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=8,
)
repeated = st.tuples(values, st.integers(2, 20)).map(lambda pair: [pair[0]] * pair[1])
containers = (values | repeated).filter(lambda value: isinstance(value, (list, dict)))
bounds = st.integers(MIN_CHARS, 600) | st.sampled_from([4_000])


def check_is_head(cut: Any, whole: Any) -> None:
    """`cut` is `whole` with lists that are prefixes, texts that are prefixes, and fewer keys, each with its mark."""
    if isinstance(whole, list):
        items = cast("list[Any]", cut)
        wholes = cast("list[Any]", whole)
        kept = len(items)
        if len(items) != len(wholes) or items[-1:] != wholes[-1:]:
            marked = MARKED_LIST.fullmatch(items[-1]) if isinstance(items[-1], str) else None
            if marked is not None and (marked[1] or marked[2]):
                kept -= 1
                assert kept + int(marked[1] or 0) == len(wholes)
        for left, right in zip(items[:kept], wholes, strict=False):
            check_is_head(left, right)
        assert kept <= len(wholes)
    elif isinstance(whole, dict):
        members = cast("dict[str, Any]", cut)
        wholes_by_key = cast("dict[str, Any]", whole)
        added = [key for key in members if key not in wholes_by_key]
        assert len(added) <= 1
        if added:
            marked = MARKED_KEYS.fullmatch(members[added[0]])
            assert marked is not None
            assert len(members) - 1 + int(marked[1] or 0) == len(wholes_by_key)
        else:
            assert len(members) == len(wholes_by_key)
        keys = [key for key in members if key not in added]
        assert keys == list(wholes_by_key)[: len(keys)], "keys are left out from the end"
        for key in keys:
            check_is_head(members[key], wholes_by_key[key])
    elif cut != whole:
        marked = MARKED_TEXT.fullmatch(cut)
        assert marked is not None
        text = whole if isinstance(whole, str) else json.dumps(whole)
        assert text.startswith(marked[1])
        assert len(marked[1]) + int(marked[2]) == len(text)


@given(containers, bounds, st.sampled_from(["", CALL, "x" * 300, 'odd"\n\ud800']), st.sampled_from([None, 1]))
@example(["a"], MIN_CHARS, "", None)
@example([[[[0] * 20]] * 9] * 9, MIN_CHARS, CALL, None)
@example({"...": "x" * 300, "... 2": 1}, MIN_CHARS, CALL, None)
@example({"x" * 900: 1, "y": 2}, MIN_CHARS, CALL, None)
@example([{f"key number {number}": [number] for number in range(200)}], MIN_CHARS, "x" * 60, None)
def test_json_stays_json_within_its_bound_and_is_the_head_of_what_it_was(
    value: Any, max_chars: int, call_id: str, indent: int | None
):
    content = json.dumps(value, indent=indent)
    cut = shorten(content, max_chars, call_id)
    assert len(cut) <= max_chars
    if len(content) <= max_chars:
        assert cut == content
    read = json.loads(cut, parse_constant=pytest.fail)
    assert type(read) is type(value)
    check_is_head(read, value)
    if read != value:
        assert f"shortened from {len(content)} characters" in cut
    assert shorten(cut, max_chars, call_id) == cut == shorten(content, max_chars, call_id)


@given(st.text() | st.text().map(lambda text: f"[{text}" * 200), st.integers(-5, 1_000), st.sampled_from(["", CALL]))
@example("[NaN]" + " " * 300, 200, CALL)
@example("[" * 3_000 + "]" * 3_000, 200, CALL)
@example('{"a":' * 3_000, 200, CALL)
@example("[1e999" + ",1" * 500 + "]", 200, CALL)
@example("\ud800" * 300, 200, CALL)
@example('"' + "x" * 300 + '"', 200, CALL)
def test_any_text_is_cut_to_its_bound_or_is_as_it_was(content: str, max_chars: int, call_id: str):
    cut = shorten(content, max_chars, call_id)
    most = max(max_chars, MIN_CHARS)
    assert len(cut) <= most
    if len(content) <= most:
        assert cut is content
    else:
        assert cut.encode()


def test_a_text_keeps_its_beginning_and_says_how_to_read_on():
    text = "".join(chr(97 + number % 26) for number in range(10_000))
    cut = shorten(text, 1_000, CALL)
    kept, _, mark = cut.partition("\n")
    assert text.startswith(kept)
    assert 900 < len(kept) < 1_000
    missing = 10_000 - len(kept)
    assert mark == (
        f'... {missing} of 10000 characters are missing; read_result(call_id="{CALL}", offset={len(kept)}) gives them'
    )
    assert shorten(text, 1_000).endswith("of 10000 characters are missing")


def test_a_long_list_says_how_many_items_are_missing_where_they_are():
    content = json.dumps({"ok": True, "data": [{"id": number} for number in range(500)]})
    cut = json.loads(shorten(content, 400, CALL))
    *rows, mark = cut["data"]
    assert rows == [{"id": number} for number in range(len(rows))]
    assert mark == f"... {500 - len(rows)} more items"
    assert cut["..."] == (
        f'shortened from {len(content)} characters; read_result(call_id="{CALL}", offset=0) gives all of it'
    )
    assert list(cut) == ["ok", "data", "..."]


def test_a_list_at_the_top_says_it_in_its_last_item():
    content = json.dumps(list(range(1_000)))
    *kept, mark = json.loads(shorten(content, 300))
    assert kept == list(range(len(kept)))
    assert mark == f"... {1_000 - len(kept)} more items; shortened from {len(content)} characters"


def test_long_texts_are_cut_before_any_key_or_part_is_left_out():
    value = {"a": {"b": {"log": "x" * 5_000, "code": 3}}, "z": [{"note": "y" * 5_000}] * 3}
    cut = json.loads(shorten(json.dumps(value), 1_000))
    assert (cut["a"]["b"]["code"], len(cut["z"])) == (3, 3)
    assert re.fullmatch(r"x{50,}\.\.\. \d+ more characters", cut["a"]["b"]["log"])
    assert all(re.fullmatch(r"y{50,}\.\.\. \d+ more characters", each["note"]) for each in cut["z"])


def test_what_is_deepest_is_left_out_before_keys_above_it():
    value = {f"part {number}": {"inside": {"name": "a name", "size": number}} for number in range(20)}
    cut = json.loads(shorten(json.dumps(value), 900))
    del cut["..."]
    assert list(cut) == list(value)
    assert cut["part 0"] == {"inside": {"...": "2 more keys"}}


def test_keys_are_left_out_from_the_end_when_nothing_else_is_left_to_cut():
    cut = json.loads(shorten(json.dumps({f"key {number}": number for number in range(1_000)}), 500))
    missing = 1_000 - (len(cut) - 1)
    assert cut["key 0"] == 0
    assert cut["..."].startswith(f"{missing} more keys; shortened from ")


def test_white_space_is_the_first_thing_to_go_and_the_only_one_if_that_is_enough():
    value = [{"id": number} for number in range(20)]
    assert shorten(json.dumps(value, indent=40), 300) == json.dumps(value, separators=(",", ":"))


def test_numbers_that_no_double_holds_keep_their_digits():
    content = json.dumps([2**80, 1.5, -(2**70), "x" * 500, int("7" * 90)])
    cut = shorten(content, MIN_CHARS)
    assert cut.startswith(f"[{2**80},1.5,{-(2**70)},")
    assert re.search(r'\["7{40,}\.\.\. \d\d more digits",', shorten(json.dumps([int("7" * 90), "x" * 500]), MIN_CHARS))


def test_lone_surrogates_stay_escaped_as_they_came():
    cut = shorten(json.dumps(["\ud800", "x" * 500]), 300)
    assert cut.startswith('["\\ud800","xxx')
    assert cut.encode()


def test_most_of_the_bound_is_used():
    rows = json.dumps([{"id": number, "name": f"row {number}"} for number in range(10_000)])
    assert 3_600 < len(shorten(rows, 4_000)) <= 4_000
    text = json.dumps({"log": "x" * 10_000})
    assert 3_600 < len(shorten(text, 4_000)) <= 4_000


@pytest.mark.parametrize("item", [1, {"b": "x" * 50}], ids=["numbers", "objects"])
def test_the_steps_it_takes_do_not_grow_with_what_there_is(item: Any, monkeypatch: pytest.MonkeyPatch):
    steps: list[int] = []

    def counted(item: Any, longest: int) -> Any:
        steps[-1] += 1
        return piece(item, longest)

    piece: Any = vars(module)["_piece"]
    monkeypatch.setattr(module, "_piece", counted)
    for count in (10_000, 100_000):
        steps.append(0)
        shorten(json.dumps([item] * count), 4_000)
    assert steps[1] <= steps[0] * 1.1 < 30 * 4_000


def test_the_bound_holds_for_call_ids_that_are_just_short_enough_to_be_named():
    for size in range(40, 80):
        assert len(shorten("x" * 1_000_000, MIN_CHARS, "i" * size)) <= MIN_CHARS


def test_a_call_id_that_would_fill_the_bound_is_left_out():
    assert "read_result" not in shorten("x" * 1_000, MIN_CHARS, "i" * 90)
    assert "read_result" in shorten("x" * 1_001, 1_000, "i" * 90)


# ------------------------------------------------------------------------------------------------------- pages


@given(st.text(max_size=2_000), st.integers(0, 600))
def test_pages_in_a_row_are_the_whole_text(content: str, max_chars: int):
    read: list[str] = []
    offset = 0
    while offset < len(content):
        reported, _, text = page(content, offset, max_chars).partition("\n")
        assert len(reported) + 1 + len(text) <= max(max_chars, MIN_CHARS)
        read.append(text)
        assert reported.startswith(f"Characters {offset} to {offset + len(text)} of {len(content)}. ")
        offset += len(text)
        assert reported.endswith("This is the end." if offset == len(content) else f"The next page: offset={offset}.")
    assert "".join(read) == content.encode("utf-8", "replace").decode()


def test_an_offset_past_the_end_is_told_so():
    assert page("abc", 3, 1_000) == "There is nothing at offset 3: the result has 3 characters."
    assert page("", 0, 1_000) == "There is nothing at offset 0: the result has 0 characters."


HUGE = {
    "brackets": "[" * 2**23,
    "empty objects": f"[{'{},' * 2**21}1]",
    "digits": f'["{"1" * 2**23}"]',
    "white space": " " * 2**23,
}


@pytest.mark.guarantee("G14")
@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("name", HUGE)
def test_a_result_of_8_mib_does_not_hold_the_event_loop(name: str) -> None:
    assert cpu_seconds(lambda: shorten(HUGE[name], 20_000, "c1")) < MAX_SECONDS


def test_json_with_too_many_values_to_be_read_is_cut_as_text() -> None:
    assert shorten(f"[{'1,' * 100_001}1]", 500).endswith("of 200005 characters are missing")
    assert orjson.loads(shorten(f"[{'1,' * 99_000}1]", 500))[-1].startswith("...")
