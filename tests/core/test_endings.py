"""The sentences for people on how a request ended: one for each limit and each error code, without an identifier."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import get_args

import pytest

from toolbus import Limits, errors
from toolbus.core.endings import explain
from toolbus.errors import ToolbusError
from toolbus.events import FailureReason, RequestCancelled, RequestCompleted, RequestFailed

# These bound calls or waits; a request that reaches them goes on, or fails with a code.
NO_ENDING = {
    "max_calls_per_round",
    "max_model_attempts",
    "max_output_repairs",
    "tool_timeout_seconds",
    "background_timeout_seconds",
    "model_timeout_seconds",
    "approval_timeout_seconds",
    "stream_idle_seconds",
    "on_limit",
}
LIMITS = [each.name for each in fields(Limits) if each.name not in NO_ENDING] + ["budget.max_cost", "budget.max_tokens"]
CODES = sorted(
    {each.code for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, ToolbusError)}
)
INTERNAL = "I could not finish because of an internal error."


def stopped(reason: str) -> str:
    return explain(RequestCompleted(outcome="stopped", reason=reason, limit=reason.partition("=")[0]))


def is_for_people(sentence: str) -> bool:
    """Return whether the text is one sentence, and names nothing that only developers know."""
    return re.fullmatch(r"(I|This|The) [^_=.{}]+\.", sentence) is not None


@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_has_a_sentence_for_people(limit: str) -> None:
    values = {"on_failure": ["fail_fast"], "stop_on": get_args(FailureReason)}.get(limit, ["1", "7"])
    for value in values:
        sentence = stopped(f"{limit}={value}")
        assert is_for_people(sentence)
        assert sentence != "I stopped."


@pytest.mark.parametrize("code", CODES)
def test_each_error_code_has_a_sentence_for_people(code: str) -> None:
    assert is_for_people(
        explain(RequestFailed(reason=code, error="Traceback_of=x: KeyError" if code != "denied" else ""))
    )


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("max_rounds=10", "I stopped after 10 steps without finishing."),
        ("max_rounds=1", "I stopped after 1 step without finishing."),
        ("max_consecutive_errors=3", "I stopped because my tools failed 3 times in a row."),
        ("timeout_seconds=0.5", "I stopped because it took longer than 0.5 seconds."),
        ("stop_on=unknown_tool", "I stopped because a tool failed."),
        ("limit_of_a_later_version=1", "I stopped."),
    ],
)
def test_a_limit_is_named_with_its_value_where_people_can_make_something_of_it(reason: str, sentence: str) -> None:
    assert stopped(reason) == sentence


def test_an_error_without_a_sentence_of_its_own_is_internal() -> None:
    assert explain(RequestFailed(reason="error", error="KeyError: 'x'")) == INTERNAL
    assert explain(RequestFailed(reason="a_code_of_mine", error="")) == INTERNAL


def test_words_that_were_written_for_people_are_shown_on_one_line() -> None:
    gave_up = RequestCompleted(outcome="stopped", reason="there is\n\x1b[31mno key.")
    assert explain(gave_up) == "I could not finish: there is no key."
    assert (
        explain(RequestFailed(reason="denied", error="no medical advice")) == "This is not allowed: no medical advice."
    )
    assert explain(RequestFailed(reason="denied", error="")) == "This is not allowed."
    assert explain(RequestCancelled(reason="you pressed Escape")) == "The request was cancelled: you pressed Escape."
    assert len(explain(RequestCancelled(reason="word " * 1_000))) < 350


def test_a_model_that_names_a_limit_as_its_reason_is_quoted() -> None:
    assert explain(RequestCompleted(outcome="stopped", reason="max_rounds=10")) == "I could not finish: max_rounds=10."


def test_a_whole_answer_needs_no_sentence() -> None:
    assert explain(RequestCompleted(text="Done.")) == ""


@pytest.mark.parametrize(("length", "quoted"), [(300, "x" * 300), (301, "x" * 299 + "…")])
def test_long_words_of_a_person_are_cut(length: int, quoted: str) -> None:
    assert explain(RequestCancelled(reason="x" * length)) == f"The request was cancelled: {quoted}."
