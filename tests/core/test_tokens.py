"""Token counts without a vocabulary: of texts, messages and tools, and what reported usage makes of them."""

from __future__ import annotations

import base64
import sys
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.recorded_usage import FITTED, Row, percentile, rows
from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.core.tokens import (
    CALL_TOKENS,
    FILE_TOKENS,
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    TOOL_TOKENS,
    TOOLS_TOKENS,
    WEIGHTS,
    Calibration,
    count_classes,
    estimate_message,
    estimate_text,
    estimate_tools,
    weigh,
)
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from toolbus.protocols import ToolSpec

MODEL = "openai:gpt-4o"


def named(text: str) -> dict[str, int]:
    """The classes that occur in `text`."""
    return {name: count for name, count in zip(WEIGHTS, count_classes(text), strict=True) if count}


# -------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("Hello, world", {"words": 2, "punctuation": 1}),
        ("getUserName", {"words": 1, "long_words": 1, "humps": 2}),
        ("in 1815 and 2024", {"words": 2, "numbers": 2, "digits": 8}),
        ('{"a":1}', {"words": 1, "numbers": 1, "digits": 1, "punctuation": 3}),
        ("a\n\n    b", {"words": 2, "lines": 2, "indents": 1}),
        ("naïve café", {"words": 2, "accents": 2}),
        ("Привет", {"cyrillic": 6}),
        ("שלום مرحبا", {"semitic": 9}),
        ("नमस्ते", {"indic": 6}),
        ("日本のこと", {"cjk": 5}),
        ("안녕", {"hangul": 2}),
        ("“a” → b", {"words": 2, "symbols": 3}),
        ("🎉🎉", {"emoji": 2}),
        ("-" * 9, {"punctuation": 1, "rules": 2}),
        (" " * 33, {"indents": 1, "padding": 2}),
        ("x" * 40, {"words": 1, "long_words": 5, "blobs": 2}),
        ("\ud800", {"hangul": 1}),
    ],
)
def test_characters_are_counted_by_class(text: str, classes: dict[str, int]) -> None:
    assert named(text) == classes


@pytest.mark.parametrize(
    ("first", "last", "name"),
    [
        (0x80, 0x37F, "accents"),
        (0x380, 0x53F, "cyrillic"),
        (0x540, 0x7FF, "semitic"),
        (0x800, 0xFFF, "indic"),
        (0x1000, 0x1FFF, "accents"),
        (0x2000, 0x2FFF, "symbols"),
        (0x3000, 0x9FFF, "cjk"),
        (0xA000, 0xDFFF, "hangul"),
        (0xE000, 0xFFFF, "symbols"),
        (0x10000, 0x10FFFF, "emoji"),
    ],
)
def test_the_class_of_a_character_depends_on_its_block(first: int, last: int, name: str) -> None:
    for code in (first, (first + last) // 2, last):
        assert named(chr(code)).get(name) == 1


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("def add(self, other: int = 0) -> int:\n    return self.total + other\n", 2_054),
        ("Bitte füllen Sie das Formular bis zum 24. Dezember aus. ", 1_433),
        ("最初の三つの注文はどこですか", 1_008),
        ("Отправьте посылку завтра, ", 683),
        ("🎉 → ✅", 220),
        ("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9 ", 2_146),
        ("안녕하세요 ", 280),
        ("שלום नमस्ते ", 408),
        ("-------- ======== " + " " * 32, 449),
    ],
)
def test_the_estimates_of_a_hundred_repetitions_of_texts_in_which_all_classes_occur(text: str, tokens: int) -> None:
    assert estimate_text(text * 100) == tokens


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_text_that_is_appended_never_lowers_the_estimate(text: str, more: str) -> None:
    assert estimate_text(text + more) >= estimate_text(text)


@given(st.text(st.characters(exclude_categories=()), min_size=1))
def test_any_text_is_a_token_at_least_and_bounded_by_its_characters(text: str) -> None:
    assert 1 <= estimate_text(text) <= 3 * len(text)


def test_no_text_is_no_token_and_a_new_line_is_one() -> None:
    assert (estimate_text(""), estimate_text("\n")) == (0, 1)


@pytest.mark.parametrize("text", ["x" * 16_000, "7" * 16_000, base64.b64encode(bytes(range(256)) * 47).decode()])
def test_a_text_without_a_blank_is_not_taken_for_one_word(text: str) -> None:
    assert estimate_text(text) > len(text) / 8


def test_long_texts_are_counted_without_a_step_of_python_for_each_character() -> None:
    calls: list[int] = []
    before = sys.getprofile()
    for length in (100, 100_000):
        text = "word, " * length
        seen: list[str] = []
        sys.setprofile(lambda _frame, event, _arg, seen=seen: seen.append(event))
        try:
            estimate_text(text)
        finally:
            sys.setprofile(before)
        calls.append(len(seen))
    assert calls[0] == calls[1] > 0


def test_a_text_that_no_model_could_read_is_estimated_by_its_beginning() -> None:
    assert estimate_text("word, " * 500_000) == pytest.approx(500 * estimate_text("word, " * 1_000), rel=0.001)
    lengths = [2**20 - 1, 2**20, 2**20 + 1, 2**21]
    estimates = [estimate_text("1" * length) for length in lengths]
    assert estimates == sorted(estimates)
    assert estimates[3] == 2 * estimates[1]


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_a_text_of_megabytes_is_estimated_in_bounded_time() -> None:
    text = "a1. \n" * (8 * 2**20)
    assert cpu_seconds(lambda: estimate_text(text)) < MAX_SECONDS


# ----------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (SystemMessage(text="12345"), 5),
        (UserMessage(content="12345"), 5),
        (UserMessage(content=(TextPart(text="123"), TextPart(text="45"))), 5),
        (AssistantMessage(text="12345"), 5),
        (AssistantMessage(tool_calls=(ToolCall(name="ab", arguments="{}"),) * 2), 2 * (CALL_TOKENS + 4)),
        (ToolMessage(call_id="long" * 9, name="lookup", content="12345"), 5),
        (ToolMessage(call_id="c", name="f", content="1", parts=(ImagePart(url="u"),)), 1 + IMAGE_TOKENS),
        (UserMessage(content=""), 0),
    ],
)
def test_a_message_is_its_texts_and_what_stands_around_them(message: Message, tokens: int) -> None:
    assert estimate_message(message, len) == MESSAGE_TOKENS + tokens


def test_without_a_tokenizer_messages_are_estimated() -> None:
    text = "The quick brown fox jumps over the lazy dog."
    assert estimate_message(UserMessage(content=text)) == MESSAGE_TOKENS + estimate_text(text)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_inline_images_and_files_are_not_counted_by_their_characters(size: int) -> None:
    url = "data:application/pdf;base64," + "A" * size
    content = (ImagePart(url=url), FilePart(url=url, media_type="application/pdf"))
    assert estimate_message(UserMessage(content=content)) == MESSAGE_TOKENS + IMAGE_TOKENS + FILE_TOKENS


def test_an_inline_text_file_is_about_as_many_tokens_as_its_text() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 100
    url = "data:text/plain;base64," + base64.b64encode(text.encode()).decode()
    part = FilePart(url=url, media_type="text/plain")
    assert estimate_message(UserMessage(content=(part,))) == pytest.approx(estimate_text(text), rel=0.2)


def test_what_stands_around_messages_tools_and_inline_files_has_fixed_numbers() -> None:
    part = FilePart(url="data:text/plain,".ljust(5_300, "A"), media_type="text/plain")
    assert estimate_message(UserMessage(content=(part,))) == 5 + 1_000
    assert estimate_tools([ToolSpec(name="", description="", parameters={})], len) == 12 + 5 + len("{}")


def test_a_text_file_that_is_elsewhere_is_any_file() -> None:
    part = FilePart(url="https://files.example/a.txt", media_type="text/plain")
    assert estimate_message(UserMessage(content=(part,))) == MESSAGE_TOKENS + FILE_TOKENS


def test_reasoning_counts_only_where_it_is_sent_back() -> None:
    kept = {"anthropic": {"content": [{"type": "thinking", "thinking": "12345", "signature": "s" * 999}]}}
    told, sent = AssistantMessage(text="1", reasoning="12345"), AssistantMessage(reasoning="12345", vendor_data=kept)
    assert estimate_message(told, len) == MESSAGE_TOKENS + 1
    assert estimate_message(sent, len) == MESSAGE_TOKENS + 5


def test_tools_are_their_names_descriptions_and_schemas() -> None:
    spec = ToolSpec(name="abc", description="12345", parameters={"type": "object"})
    one = TOOL_TOKENS + 3 + 5 + len('{"type":"object"}')
    assert estimate_tools([spec], len) == TOOLS_TOKENS + one
    assert estimate_tools({"a": spec, "b": spec}.values(), len) == TOOLS_TOKENS + 2 * one
    assert estimate_tools([]) == 0


def test_a_schema_that_is_not_json_is_about_as_long_in_pythons_form():
    large = {"type": "integer", "maximum": 2**70}
    spec = ToolSpec(name="abc", description="12345", parameters=large)
    assert estimate_tools([spec], len) == TOOLS_TOKENS + TOOL_TOKENS + 3 + 5 + len(repr(large))


@pytest.mark.parametrize(
    "parameters", [MappingProxyType({"const": "\ud800"}), {"maximum": 2**70}, {"pattern": MappingProxyType({1: {2}})}]
)
def test_schemas_of_any_kind_are_estimated(parameters: dict[str, object]) -> None:
    assert estimate_tools([ToolSpec(name="f", parameters=parameters)]) > TOOLS_TOKENS + TOOL_TOKENS


def test_a_mapping_in_a_schema_counts_as_the_dictionary_that_it_is() -> None:
    inner = {"type": "string", "enum": ["north", "east", "south", "west"]}
    plain, mapping = ({"properties": {"way": each}} for each in (inner, MappingProxyType(inner)))
    one, other = (estimate_tools([ToolSpec(name="f", parameters=each)]) for each in (plain, mapping))
    assert one == other


# -------------------------------------------------------------------------------------------------- calibration


def predicted(calibration: Calibration, estimated: int) -> float:
    return calibration.overhead(MODEL) + calibration.factor(MODEL) * estimated


def test_nothing_observed_leaves_an_estimate_as_it_is() -> None:
    calibration = Calibration()
    assert (calibration.factor(MODEL), calibration.overhead(MODEL)) == (1, 0)


@pytest.mark.parametrize("factor", [0.5, 1.3, 2.5])
def test_how_a_model_counts_is_learned_as_its_requests_grow(factor: float) -> None:
    calibration = Calibration()
    for estimated in (300, 600, 1_200, 2_400, 4_800, 9_600, 9_700, 9_800):
        calibration.observe(MODEL, estimated, round(factor * estimated))
    assert predicted(calibration, 10_000) == pytest.approx(10_000 * factor, rel=0.15)


def test_what_a_vendor_adds_to_each_request_does_not_count_as_its_vocabulary() -> None:
    calibration = Calibration()
    for estimated in (60, 120, 90, 200):
        calibration.observe(MODEL, estimated, estimated + 500)
    assert predicted(calibration, 100) == pytest.approx(600, rel=0.05)
    assert predicted(calibration, 8_000) == pytest.approx(8_500, rel=0.1)


def test_one_report_for_a_large_request_is_enough_to_come_near() -> None:
    calibration = Calibration()
    calibration.observe(MODEL, 20_000, 36_000)
    assert predicted(calibration, 20_000) == pytest.approx(36_000, rel=0.1)
    assert predicted(calibration, 22_000) == pytest.approx(39_600, rel=0.1)


@pytest.mark.parametrize(("scale", "factor"), [(1, 1.0), (10, 1.2526), (100, 1.4042)])
def test_a_report_is_believed_more_the_less_the_overhead_can_explain_of_it(scale: int, factor: float) -> None:
    calibration = Calibration()
    calibration.observe(MODEL, 1_000 * scale, 1_500 * scale)
    assert calibration.factor(MODEL) == pytest.approx(factor, abs=1e-4)


@pytest.mark.parametrize("actual", [0, -5, 10**12, 1])
def test_reports_that_cannot_be_are_left_out(actual: int) -> None:
    calibration = Calibration()
    calibration.observe(MODEL, 4_000, actual)
    assert predicted(calibration, 4_000) == 4_000


@pytest.mark.parametrize("estimated", [0, -1])
def test_an_estimate_of_nothing_teaches_nothing(estimated: int) -> None:
    calibration = Calibration()
    calibration.observe(MODEL, estimated, 100)
    assert predicted(calibration, 100) == 100


def test_an_estimate_of_one_token_teaches_what_a_vendor_adds() -> None:
    calibration = Calibration()
    calibration.observe(MODEL, 1, 400)
    assert calibration.overhead(MODEL) == pytest.approx(399, abs=1)


@pytest.mark.parametrize(
    ("reports", "line"),
    [
        ([(1_000, 1_500)], (1.0, 500.0, 0.0)),
        ([(1_000, 1_500), (4_000, 5_000)], (1.1286, 381.44993, 0.02128)),
        ([(1_000, 1_500), (4_000, 5_000), (16_000, 30_000), (500, 700)], (1.44561, 0.0, 0.2)),
        ([(60, 560), (120, 620), (9_000, 9_100)], (0.96047, 503.43374, 0.0)),
        ([(1_000, 20_000)] * 3, (2.83378, 2000.0, 0.25)),
        ([(20_000, 2_000)] * 9, (0.3, 0.0, 0.0)),
        ([(20_000, 200_000)] * 9, (4.0, 2000.0, 0.25)),
        ([(100_000, 100_000), (100_000, 5_000)], (0.67051, 0.0, 0.0)),
        ([(100_000, 100_000), (100_000, 4_999)], (1.0, 0.0, 0.0)),
        ([(1_000, 22_000)], (1.57143, 2000.0, 0.12)),
        ([(1_000, 22_001)], (1.0, 0.0, 0.0)),
        ([(100, 4_000)], (1.05928, 2000.0, 0.04467)),
        ([(100, 4_001)], (1.0, 0.0, 0.0)),
    ],
)
def test_the_line_through_a_few_reports(reports: list[tuple[int, int]], line: tuple[float, float, float]) -> None:
    calibration = Calibration()
    for estimated, actual in reports:
        calibration.observe(MODEL, estimated, actual)
    learned = calibration.factor(MODEL), calibration.overhead(MODEL), calibration.margin(MODEL)
    assert learned == pytest.approx(line, abs=1e-4)


@pytest.mark.parametrize("odd", [0.1, 5, 15])
def test_one_odd_report_moves_the_estimate_by_a_limited_step_and_is_forgotten(odd: float) -> None:
    calibration = Calibration()
    for _ in range(5):
        calibration.observe(MODEL, 8_000, 8_800)
    calibration.observe(MODEL, 8_000, round(odd * 8_800))
    assert predicted(calibration, 8_000) == pytest.approx(8_800, rel=0.25)
    for _ in range(10):
        calibration.observe(MODEL, 8_000, 8_800)
    assert predicted(calibration, 8_000) == pytest.approx(8_800, rel=0.05)


@given(st.lists(st.tuples(st.integers(-1, 10**7), st.integers(-1, 10**8)), max_size=30))
def test_factor_and_overhead_stay_within_their_bounds(reports: list[tuple[int, int]]) -> None:
    calibration = Calibration()
    for estimated, actual in reports:
        calibration.observe(MODEL, estimated, actual)
        assert 0.3 <= calibration.factor(MODEL) <= 4
        assert 0 <= calibration.overhead(MODEL) <= 2_000


@given(st.lists(st.tuples(st.integers(-1, 10**7), st.integers(-1, 10**8)), max_size=30))
def test_the_margin_is_at_most_a_quarter(reports: list[tuple[int, int]]) -> None:
    calibration = Calibration()
    assert calibration.margin(MODEL) == 0
    for estimated, actual in reports:
        calibration.observe(MODEL, estimated, actual)
        assert 0 <= calibration.margin(MODEL) <= 0.25


def test_there_is_no_margin_where_reports_are_exact_and_it_grows_only_with_what_was_above() -> None:
    calibration = Calibration()
    for estimated in (1_000, 2_000, 4_000, 8_000):
        calibration.observe(MODEL, estimated, estimated)
        assert calibration.margin(MODEL) == pytest.approx(0, abs=1e-9)
    calibration.observe(MODEL, 8_000, 4_000)
    assert calibration.margin(MODEL) == pytest.approx(0, abs=1e-9), "a report below the estimate asks for no room"
    for _ in range(20):
        calibration.observe(MODEL, 8_000, 8_000)
    calibration.observe(MODEL, 8_000, 8_800)
    above = calibration.margin(MODEL)
    assert 0 < above < 0.1
    calibration.observe(MODEL, 8_000, 16_000)
    assert above < calibration.margin(MODEL) <= 0.25


def test_models_are_kept_apart_and_the_one_that_was_longest_unused_is_forgotten() -> None:
    calibration = Calibration(max_models=2)
    calibration.observe("v:a", 1_000, 1_500)
    calibration.observe("v:b", 1_000, 3_000)
    learned = calibration.overhead("v:b")
    assert 0 < calibration.overhead("v:a") < learned
    calibration.observe("v:c", 1_000, 1_500)  # the question for "b" used it, then that for "a"
    assert calibration.overhead("v:b") == 0
    assert 0 < calibration.overhead("v:a") < learned


# -------------------------------------------------------------------------------------------------- recorded usage


@given(st.lists(st.text(max_size=200), max_size=4))
def test_counts_may_be_added_first(texts: list[str]) -> None:
    counts = [sum(each) for each in zip(*(count_classes(text) for text in texts), strict=True)]
    assert weigh(counts or [0] * len(WEIGHTS)) == pytest.approx(sum(weigh(count_classes(text)) for text in texts))


def errors(chosen: list[Row]) -> list[float]:
    return [abs(row.ratio - 1) for row in chosen]


@pytest.mark.parametrize(
    ("kind", "least", "median", "most"), [("in", 1, 0.06, 0.18), ("in", 100, 0.04, 0.08), ("out", 30, 0.05, 0.13)]
)
def test_estimates_are_near_what_was_reported_where_nothing_was_fitted(
    kind: str, least: int, median: float, most: float
) -> None:
    chosen = [
        row
        for row in rows()
        if row.kind == kind and row.family == FITTED and row.held_out and not row.tools and row.reported >= least
    ]
    assert len(chosen) >= 50
    assert percentile(errors(chosen), 0.5) < median
    assert percentile(errors(chosen), 0.9) < most


def test_a_sentence_in_twenty_languages_is_estimated_within_two_fifths() -> None:
    chosen = [row for row in rows() if row.kind == "text" and row.family == FITTED]
    assert len(chosen) == 20
    assert max(errors(chosen)) < 0.4
    assert percentile(errors(chosen), 0.5) < 0.12


@pytest.mark.parametrize("tools", [False, True])
def test_after_reports_the_estimates_of_all_vendors_are_near(tools: bool) -> None:
    sequences: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows():
        if row.kind == "in" and bool(row.tools) is tools and row.reported >= 500:
            sequences.setdefault((row.source, row.vendor, row.model), []).append(row)
    found: list[float] = []
    for each in sequences.values():
        calibration = Calibration()
        for place, row in enumerate(each):
            if place:
                found.append(abs(predicted(calibration, round(row.estimated)) / row.reported - 1))
            calibration.observe(MODEL, round(row.estimated), row.reported)
    assert len(found) >= 50
    assert percentile(found, 0.5) < 0.05
    assert percentile(found, 0.9) < 0.22
