"""What is sent of a transcript: shortened with age, cut to size, fitted into a window; the transcript itself stays whole."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.transcript_strategies import mishandled
from support.wire_oracle import check_wires
from toolbus.core.compression import Compression, Edit, Fold, HistoryItem
from toolbus.core.history import History, Memo, Shape
from toolbus.core.result_size import is_of_interest
from toolbus.core.shorten import MIN_CHARS
from toolbus.core.tokens import estimate_message, estimate_text
from toolbus.core.transcript import repair, validate
from toolbus.errors import ConfigurationError
from toolbus.messages import AssistantMessage, ImagePart, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Provider, Summary, ToolSpec
from toolbus.records import replace

SPECS = {
    "look": ToolSpec(name="look", kind="query"),
    "move": ToolSpec(name="move", kind="action"),
    "login": ToolSpec(name="login", keep_full_results=True),
    "short": ToolSpec(name="short", max_result_chars=300),
    "read_result": ToolSpec(name="read_result", control="read"),
}


def turn(number: int, *calls: tuple[str, str, str], rounds: int = 1) -> list[Message]:
    """A turn: the user, then in each round the calls (name, arguments, result), then an answer."""
    made: list[Message] = [UserMessage(content=f"question {number}", message_id=f"t{number}_u")]
    for place in range(rounds if calls else 0):
        ids = [f"t{number}_{place}_{index}" for index in range(len(calls))]
        made.append(
            AssistantMessage(
                tool_calls=tuple(
                    ToolCall(name=name, arguments=arguments, call_id=call_id)
                    for call_id, (name, arguments, _) in zip(ids, calls, strict=True)
                ),
                message_id=f"t{number}_r{place}",
            )
        )
        made += [
            ToolMessage(call_id=call_id, name=name, content=result, message_id=f"{call_id}_t")
            for call_id, (name, _, result) in zip(ids, calls, strict=True)
        ]
    made.append(AssistantMessage(text=f"answer {number}"))
    return made


def conversation(*turns: Sequence[Message]) -> list[Message]:
    return [message for each in turns for message in each]


def history_of(messages: list[Message], compression: Compression | None = None, **options: Any) -> History:
    """A history that has taken all of `messages`, whose last turn runs."""
    made = History(messages, compression or Compression(), **options)
    made.take(SPECS)
    return made


def results(sent: Sequence[Message]) -> list[str]:
    return [each.content for each in sent if isinstance(each, ToolMessage)]


def checked(sent: Sequence[Message]) -> list[Message]:
    """What is sent, which has to be valid for everybody."""
    validate(sent)
    check_wires(sent)
    return list(sent)


def test_the_size_is_that_of_all_messages() -> None:
    messages = turn(0, ("look", "{}", "x" * 90))
    history = history_of(messages)
    tokens = sum(estimate_message(each) for each in messages)
    assert (history.tokens, history.shape()) == (tokens, Shape(tokens, tokens, 0, 0))


# ------------------------------------------------------------------------------------------------------------ by age


def test_the_last_ten_turns_are_sent_whole_and_older_queries_become_a_line() -> None:
    messages = conversation(*(turn(number, ("look", "{}", f"state {number} " * 20)) for number in range(12)))
    before = copy.deepcopy(messages)
    history = history_of(messages)
    sent = results(checked(history.view()))
    assert sent[:2] == ["[older result left out, 160 characters: a newer one follows]"] * 2
    assert sent[2:] == results(messages)[2:]
    assert messages == before
    reported, again = history.what_changed(), history.what_changed()
    assert reported is not None
    assert reported.results_shortened == 2
    assert reported.after_tokens < reported.before_tokens
    assert again is None


def test_the_newest_result_of_a_query_says_that_it_is_to_be_asked_again() -> None:
    messages = conversation(turn(0, ("look", '{"a": 1}', "x" * 200)), turn(1, ("look", '{"a":2}', "y" * 200)), turn(2))
    sent = results(history_of(messages, Compression(keep_turns=1)).view())
    assert sent == ["[older result left out, 200 characters: call look again for the present state]"] * 2


def test_all_results_of_a_turn_become_lines_as_soon_as_the_next_one_begins() -> None:
    messages = conversation(turn(0, ("look", "1", "x" * 200), ("look", "2", "y" * 200)), turn(1)[:1])
    sent = results(history_of(messages, Compression(keep_turns=1)).view())
    assert sent == ["[older result left out, 200 characters: call look again for the present state]"] * 2


def test_a_query_is_the_same_whatever_the_order_of_its_arguments() -> None:
    first, second = turn(0, ("look", '{"a": 1, "b": 2}', "x" * 200)), turn(1, ("look", '{"b":2,"a":1}', "y" * 200))
    sent = results(history_of(conversation(first, second, turn(2)), Compression(keep_turns=2)).view())
    assert sent == ["[older result left out, 200 characters: a newer one follows]", "y" * 200]


def test_older_results_of_actions_keep_two_hundred_characters() -> None:
    messages = conversation(turn(0, ("move", "{}", "moved " * 100)), *(turn(number) for number in range(1, 11)))
    (sent,) = results(checked(history_of(messages).view()))
    assert len(sent) <= 200
    assert sent.startswith("moved moved")
    assert "of 600 characters are missing" in sent


def test_short_results_and_those_of_other_tools_stay_as_they_are() -> None:
    old = turn(0, ("look", "{}", "ok"), ("move", "{}", "done"), ("other", "{}", "z" * 900), ("gone", "{}", "n" * 900))
    messages = conversation(old, *(turn(number) for number in range(1, 12)))
    history = history_of(messages)
    assert list(history.view()) == messages
    assert history.what_changed() is None
    assert not history.has_shortened


def test_results_of_sensitive_tools_are_never_shortened() -> None:
    messages = conversation(turn(0, ("login", "{}", "token " * 2000)), *(turn(number) for number in range(1, 30)))
    assert results(checked(history_of(messages).view())) == ["token " * 2000]


def test_no_turn_is_shortened_for_its_age_where_that_is_not_wanted() -> None:
    messages = conversation(*(turn(number, ("look", "{}", "state " * 50)) for number in range(30)))
    assert list(history_of(messages, Compression(keep_turns=None)).view()) == messages


def test_what_is_said_to_a_request_while_it_runs_begins_no_turn() -> None:
    steered = turn(0, ("look", "{}", "state " * 50))
    steered[3:3] = [UserMessage(content="hurry", message_id="t0_s0"), AssistantMessage(text="well")]
    messages = conversation(steered, turn(1))
    assert results(history_of(messages, Compression(keep_turns=2)).view()) == ["state " * 50]


def test_pictures_of_older_queries_are_not_sent_any_more() -> None:
    messages = conversation(turn(0, ("look", "{}", "a picture of the place " * 10)), turn(1))
    result = messages[2]
    assert isinstance(result, ToolMessage)
    result = messages[2] = replace(result, parts=(ImagePart(url="data:image/png;base64,AAAA"),))
    (sent,) = (each for each in history_of(messages, Compression(keep_turns=1)).view() if isinstance(each, ToolMessage))
    assert sent.parts == ()
    assert len(result.parts) == 1


def test_of_an_older_action_that_has_shown_something_it_is_said_that_it_is_left_out() -> None:
    messages = conversation(turn(0, ("move", "{}", "moved, see here")), turn(1))
    result = messages[2]
    assert isinstance(result, ToolMessage)
    result = messages[2] = replace(result, parts=(ImagePart(url="data:image/png;base64,AAAA"),))
    sent = results(checked(history_of(messages, Compression(keep_turns=1)).view()))
    assert sent == ["moved, see here\n[What was shown with this is left out to save space.]"]


# ----------------------------------------------------------------------------------------------------------- by size


def test_a_long_result_is_cut_where_it_is_sent_and_says_how_to_read_on() -> None:
    messages = turn(0, ("other", "{}", "0123456789" * 1000))
    history = history_of(messages)
    (sent,) = results(checked(history.view()))
    assert len(sent) <= 4000
    assert 'read_result(call_id="t0_0_0", offset=' in sent
    assert history.has_shortened
    assert results(messages) == ["0123456789" * 1000]


def test_the_size_is_that_of_the_request_or_of_the_tool() -> None:
    messages = turn(0, ("other", "{}", "x" * 900), ("short", "{}", "x" * 900), ("login", "{}", "x" * 9000))
    sent = results(history_of(messages, max_result_chars=500).view())
    assert [len(each) for each in sent] == [500, 300, 9000]


def test_a_page_of_a_result_is_as_long_as_it_is() -> None:
    messages = turn(0, ("read_result", "{}", "x" * 4500))
    assert results(history_of(messages).view()) == ["x" * 4500]


def test_a_view_stays_as_it_was_while_the_history_goes_on() -> None:
    messages = conversation(*(turn(number, ("look", "{}", f"{number} " * 90)) for number in range(3)))
    history = History(messages, Compression(keep_turns=3))
    history.take(SPECS)
    earlier = history.view(SystemMessage(text="Be brief."))
    then = list(earlier)
    messages += turn(3, ("look", "{}", "new"))
    history.take(SPECS)
    assert list(earlier) == then
    assert len(history.view()) == len(messages)
    assert results(history.view())[0].startswith("[older")


@pytest.mark.parametrize(
    ("message", "interesting"),
    [
        (UserMessage(content="x" * 9000), False),
        (ToolMessage(call_id="a", name="other", content="x" * 4000), False),
        (ToolMessage(call_id="a", name="other", content="x" * 4001), True),
        (ToolMessage(call_id="a", name="look", content="x"), True),
        (ToolMessage(call_id="a", name="login", content="x" * 9000), False),
        (ToolMessage(call_id="a", name="short", content="x" * 301), True),
    ],
)
def test_a_history_is_begun_only_for_what_may_be_shortened(message: Message, *, interesting: bool) -> None:
    assert is_of_interest(message, SPECS, 4000) is interesting


# -------------------------------------------------------------------------------------------------------- the window


def test_the_oldest_turns_leave_whole_until_three_quarters_of_the_window_are_used() -> None:
    messages = conversation(*(turn(number, ("other", "{}", "word " * 100)) for number in range(40)))
    history = history_of(messages)
    assert history.fit(2000)
    sent = checked(history.view())
    assert history.tokens <= 1500
    shape = history.what_changed()
    assert shape is not None
    left = shape.turns_omitted
    assert sent[0] == SystemMessage(text=f"[{left} earlier turns of this conversation left out here.]")
    assert sent[1:] == messages[4 * left :]
    assert sum(estimate_message(each) for each in sent) == history.tokens


def test_a_window_that_is_wide_enough_changes_nothing() -> None:
    messages = conversation(*(turn(number, ("other", "{}", "word " * 100)) for number in range(4)))
    history = history_of(messages, Compression(keep_turns=1))
    assert history.fit(history.tokens)
    assert list(history.view()) == messages


def test_results_of_turns_that_are_kept_become_lines_before_the_turns_leave() -> None:
    messages = conversation(*(turn(number, *[("other", "{}", "word " * 150)] * 2) for number in range(4)))
    history = history_of(messages, Compression(keep_turns=4))
    assert history.fit(history.tokens * 0.6)
    sent = checked(history.view())
    assert len(sent) == len(messages)
    assert [len(each) < 200 for each in results(sent)] == [True] * 6 + [False] * 2


def test_without_turns_to_keep_all_but_the_current_one_leave_first() -> None:
    messages = conversation(*(turn(number, ("other", "{}", "word " * 300)) for number in range(2)))
    history = history_of(messages, Compression(keep_turns=None))
    assert history.fit(history.tokens * 0.6)
    assert checked(history.view())[1:] == messages[4:]


def test_instructions_and_notes_in_front_never_leave() -> None:
    notes: list[Message] = [SystemMessage(text="first"), SystemMessage(text="second")]
    messages = [*notes, *conversation(*(turn(number, ("other", "{}", "word " * 90)) for number in range(20)))]
    history = history_of(messages)
    assert history.fit(500)
    assert checked(history.view())[:2] == notes
    assert checked(history.view())[-1] == messages[-1]


def test_sensitive_results_stay_with_their_calls_when_their_turn_leaves() -> None:
    first = turn(0, ("other", "{}", "word " * 200), ("login", '{"user": "a"}', "the token"), ("look", "{}", "w " * 90))
    messages = conversation(first, *(turn(number, ("other", "{}", "word " * 90)) for number in range(1, 30)))
    history = history_of(messages)
    for limit in (1500, 800, 600):
        assert history.fit(limit)
        sent = checked(history.view())
        assert isinstance(sent[0], SystemMessage)
        assert sent[1] == messages[0]
        assert [call.name for call in getattr(sent[2], "tool_calls", ())] == ["login"]
        assert sent[3] == messages[3]
        assert results(sent)[0] == "the token"


def test_sensitive_results_of_turns_that_stay_are_sent_once() -> None:
    messages = conversation(
        *(turn(number, ("login", "{}", f"token {number}"), ("other", "{}", "word " * 100)) for number in range(20))
    )
    history = history_of(messages)
    assert history.fit(history.tokens * 0.7)
    sent = results(checked(history.view()))
    assert [each for each in sent if "token" in each] == [f"token {number}" for number in range(20)]


def test_nothing_is_said_of_a_turn_that_leaves_where_that_would_take_more_than_is_saved() -> None:
    messages = conversation(turn(0, ("login", "{}", "token " * 20)), turn(1, ("other", "{}", "word " * 300)))
    history = history_of(messages)
    assert history.fit(history.tokens * 0.6)
    assert checked(history.view())[:3] == messages[:3]
    assert history.shape().turns_omitted == 1


def test_the_current_turn_never_leaves_and_its_older_rounds_become_lines() -> None:
    messages = conversation(turn(0), turn(1, ("look", "{}", "word " * 150), rounds=8)[:-1])
    history = history_of(messages)
    whole = history.tokens
    assert history.fit(whole // 2)
    sent = checked(history.view())
    assert len(sent) == 1 + len(messages) - 2 or len(sent) == len(messages) - 2
    assert results(sent)[0].startswith("[left out to save space, 750 characters: read_result(")
    assert results(sent)[-1] == "word " * 150
    assert history.tokens <= whole // 2


def test_a_turn_for_which_there_is_just_room_stays_whole() -> None:
    messages = conversation(turn(0), turn(1, ("look", "{}", "word " * 150), rounds=3)[:-1])
    roomy, tight = history_of(messages), history_of(messages)
    assert roomy.fit(roomy.tokens - 1)
    assert tight.fit(roomy.tokens)
    assert roomy.shape().turns_omitted == 1
    assert list(tight.view()) == list(roomy.view())
    assert results(tight.view()) == ["word " * 150] * 3


def test_the_newest_results_shrink_when_nothing_else_is_left() -> None:
    messages = turn(0, ("look", "{}", "word " * 700), ("look", "{}", "more " * 100))[:-1]
    history = history_of(messages)
    assert history.fit(500)
    long, short = results(checked(history.view()))
    assert history.tokens <= 500
    assert 200 <= len(long) < 2500
    assert short == "more " * 100
    assert history.fit(300)
    assert history.tokens <= 300


def test_pictures_leave_for_want_of_room_though_the_line_in_their_place_is_longer_than_their_text() -> None:
    messages = turn(1, ("move", "{}", "done"), rounds=4)[:-1]
    pictures = [ImagePart(url="https://x.example/1.png")]
    messages = [replace(each, parts=tuple(pictures)) if isinstance(each, ToolMessage) else each for each in messages]
    history = history_of(messages)
    assert history.fit(1500)
    sent = [each for each in checked(list(history.view())) if isinstance(each, ToolMessage)]
    assert [len(each.parts) for each in sent] == [0, 0, 0, 1]
    line = '[left out to save space, 4 characters and what was shown with them: read_result(call_id="t1_0_0") gives the text]'
    assert sent[0].content == line


def test_a_turn_that_cannot_fit_is_reported() -> None:
    messages = turn(0, ("login", "{}", "word " * 700))[:-1]
    history = history_of(messages)
    assert not history.fit(100)
    assert results(history.view()) == ["word " * 700]


def test_a_summary_stands_for_the_turns_that_have_left() -> None:
    messages = conversation(*(turn(number, ("other", "{}", "word " * 100)) for number in range(20)))
    history = history_of(messages)
    history.limit_tokens = history.tokens * 1.1
    leaving = history.leaving()
    assert leaving == messages[: len(leaving)]
    history.leave("They talked about words.")
    sent = checked(history.view())
    turns = len(leaving) // 4
    assert sent[0] == SystemMessage(
        text=f"[{turns} earlier turns of this conversation left out here. In short:]\nThey talked about words."
    )
    assert sent[1:] == messages[len(leaving) :]
    assert history.summary == "They talked about words."
    assert history.leaving() == []


def test_all_turns_but_the_current_one_may_be_summed_up_once_there_is_a_window() -> None:
    history = history_of(messages := conversation(turn(0), turn(1)))
    for limit in (None, 0.0, -1.0):
        history.limit_tokens = limit
        assert history.leaving() == []
    for limit in (1.0, float(history.tokens)):
        history.limit_tokens = limit
        assert history.leaving() == messages[:2]


def dense(text: str) -> int:
    """A tokenizer for which some letters are many tokens."""
    return 10 * text.count("#") + len(text) // 4


@pytest.mark.parametrize(("limit", "least"), [(1200.0, 270), (20.0, 200)], ids=["it fits", "it cannot fit"])
def test_a_summary_is_cut_until_it_fits_wherever_its_tokens_are(limit: float, least: int) -> None:
    messages = conversation(*(turn(number, ("other", "{}", "word " * 100)) for number in range(20)))
    history = history_of(messages, count=dense)
    history.limit_tokens = limit
    history.leave("#" * 20 + "on and on " * 400)
    most = max(limit / 4, dense("#" * 20 + " " * (MIN_CHARS - 20)))
    assert least < dense(history.summary) <= most


def test_a_summary_takes_no_more_than_a_quarter_of_the_window() -> None:
    history = history_of(conversation(*(turn(number) for number in range(40))))
    history.limit_tokens = limit = history.tokens
    history.leave("on and on " * 400)
    note = checked(history.view())[0]
    assert "In short:]\\non and on" in str(note)
    assert 0 < estimate_text(history.summary) <= limit / 4
    assert history.leaving() == []


def test_a_summary_that_is_longer_than_what_it_sums_up_is_not_sent() -> None:
    messages = conversation(turn(0), turn(1, ("other", "{}", "word " * 300)))
    history = history_of(messages)
    history.limit_tokens = history.tokens
    history.leave("on and on " * 10)
    assert checked(history.view()) == messages[2:]


def test_a_request_that_ended_before_its_messages_were_read_keeps_the_memo_of_the_one_before() -> None:
    memo = Memo("t3_u", 6, "question 3", 3)
    assert History(turn(3), Compression(), memo=memo).memo() == memo


def test_the_next_turn_of_a_conversation_begins_where_the_last_one_did() -> None:
    messages = conversation(*(turn(number, ("other", "{}", "word " * 100)) for number in range(30)))
    history = history_of(messages)
    history.limit_tokens = 2000.0
    history.leave("Words.")
    memo = history.memo()
    assert memo is not None
    sent = list(history.view())
    messages += turn(30)
    following = history_of(messages, memo=memo)
    assert list(following.view())[: len(sent)] == sent
    assert following.summary == "Words."
    assert following.memo() == memo
    other = history_of(conversation(turn(0), turn(1)), memo=memo)
    assert len(other.view()) == 4
    assert history_of(messages).memo() is None


# --------------------------------------------------------------------------------------------------- own policies


class Masking:
    """A policy as an application may write one: it wants everything to be sent as the same text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fold(self) -> Fold:
        return self

    def add(self, seen: HistoryItem) -> Iterator[Edit]:
        for place in range(seen.position + 1):
            yield place, self.text


def test_a_policy_may_shorten_results_and_nothing_else() -> None:
    first = turn(0, ("look", "{}", "x" * 90), ("login", "{}", "y" * 90), ("other", "{}", "short"))
    messages = conversation(first, turn(1))
    sent = checked(history_of(messages, Compression(policies=[Masking("(masked)")])).view())
    assert results(sent) == ["(masked)", "y" * 90, "short"]
    assert [each for each in sent if not isinstance(each, ToolMessage)] == [
        each for each in messages if not isinstance(each, ToolMessage)
    ]


def test_a_policy_may_send_another_text_of_the_same_length() -> None:
    messages = conversation(turn(0, ("look", "{}", "x" * 90)), turn(1))
    assert results(history_of(messages, Compression(policies=[Masking("y" * 90)])).view()) == ["y" * 90]


def test_a_policy_has_no_hand_on_what_has_left() -> None:
    messages = conversation(*(turn(number, ("other", "{}", f"{number} " * 200)) for number in range(20)))
    history = history_of(messages, Compression(policies=[Masking("-" * 300)]))
    assert history.fit(800)
    messages += turn(20, ("other", "{}", "new " * 100))
    history.take(SPECS)
    checked(history.view())


class Late:
    """A policy that says of each result what it is to be only once the next one is there."""

    def fold(self) -> Fold:
        return self

    def __init__(self) -> None:
        self.before: int | None = None

    def add(self, seen: HistoryItem) -> Iterator[Edit]:
        if isinstance(seen.message, ToolMessage):
            if self.before is not None:
                yield self.before, f"(at {self.before})"
            self.before = seen.position


def test_a_policy_that_edits_after_turns_have_left_edits_the_result_that_it_means() -> None:
    messages: list[Message] = []
    history = History(messages, Compression(policies=[Late()]))
    left = 0
    for number in range(12):
        messages += turn(number, ("other", "{}", f"result {number} " * 60))
        history.take(SPECS)
        history.fit(500)
        sent = checked(history.view())
        shape = history.what_changed()
        left = left if shape is None else shape.turns_omitted
        kept = [f"(at {4 * each + 2})" for each in range(left, number)]
        assert results(sent) == [*kept, f"result {number} " * 60]
    assert left > 3


class Nobody:
    async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
        raise AssertionError(earlier)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"keep_turns": 0}, "keep_turns is 0; it must be a whole number of at least 1, or None"),
        ({"keep_turns": 1.5}, "keep_turns is 1.5"),
        ({"max_action_chars": None}, "max_action_chars is None"),
        ({"max_context_tokens": 10}, "max_context_tokens is 10; it must be a whole number of at least 256"),
        ({"max_context_tokens": True}, "max_context_tokens is True"),
        ({"tokenizer": 3}, "tokenizer is 3; pass a function"),
        ({"summarizer": Nobody()}, "summarizer needs max_context_tokens=: it is asked when that window is nearly full"),
        ({"summarizer": 3, "max_context_tokens": 1000}, "summarizer is 3; pass an object such as toolbus.Summarizer"),
        (
            {"summarizer": Nobody, "max_context_tokens": 1000},
            r"summarizer is <class .*>; pass an object such as toolbus.Summarizer",
        ),
        ({"policies": [Masking]}, r"policies has <class .*>; pass objects with a method fold\(\)"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Compression(**options)


def test_a_tokenizer_counts_in_the_place_of_the_estimate() -> None:
    history = history_of(turn(0, ("other", "{}", "x" * 500)), count=len)
    assert history.tokens > 500


# ---------------------------------------------------------------------------------------------------------- for all

KINDS = [ToolSpec(name=name, kind=kind) for name in ("clock", "weather") for kind in ("", "query", "action")]  # type: ignore[arg-type]


@pytest.mark.guarantee("G08")
@given(
    history=mishandled(),
    kinds=st.lists(st.sampled_from(KINDS), max_size=2),
    sensitive=st.sampled_from(["", "clock", "weather"]),
    keep_turns=st.integers(1, 3),
    limits=st.lists(st.integers(1, 3000), max_size=3),
)
def test_what_is_sent_of_a_valid_history_is_valid_and_never_more(
    history: list[Message], kinds: list[ToolSpec], sensitive: str, keep_turns: int, limits: list[int]
) -> None:
    messages = repair(history)
    specs = {each.name: each for each in kinds}
    if sensitive:
        specs[sensitive] = ToolSpec(name=sensitive, keep_full_results=True)
    before = copy.deepcopy(messages)
    shaped = History(messages, Compression(keep_turns=keep_turns), max_result_chars=250)
    shaped.take(specs)
    kept = [each for each in messages if isinstance(each, ToolMessage) and each.name == sensitive]
    for limit in [None, *limits]:
        if limit is not None:
            fits = shaped.fit(limit)
            assert fits is (shaped.tokens <= limit)
        sent = list(shaped.view())
        validate(sent)
        assert shaped.tokens == sum(map(estimate_message, sent)) <= sum(map(estimate_message, messages))
        assert [each for each in sent if isinstance(each, ToolMessage) and each.name == sensitive] == kept
        assert [each for each in messages if isinstance(each, UserMessage)][-1:] == [
            each for each in sent if isinstance(each, UserMessage)
        ][-1:]
    assert messages == before


# ---------------------------------------------------------------------------------------------------- exact limits


def test_no_more_is_left_out_or_shortened_than_the_limit_needs() -> None:
    """Turn by turn, then what is older than the newest round, and one token over the limit is too much."""
    messages = conversation(
        turn(0, ("look", "{}", "x" * 400)),
        turn(1, ("move", "{}", "y" * 400)),
        turn(2, ("move", "1", "z" * 900), rounds=2)[:-1],
    )
    reached = [2_459, 2_382, 2_062, 1_927, 1_107]
    for size, next_size in pairwise(reached):
        for limit, expected in ((size, size), (size - 1, next_size)):
            history = history_of(messages, Compression(keep_turns=2), count=len)
            assert history.fit(limit)
            assert history.tokens == expected


def test_a_summary_is_asked_for_above_85_percent_of_the_window_and_may_take_a_quarter_of_it() -> None:
    messages = conversation(turn(0), turn(1))
    messages[0] = replace(messages[0], content="q" * (850 - history_of(messages, count=len).tokens + 10))
    for limit, is_near in ((1_000, False), (999, True)):
        history = history_of(messages, count=len)
        assert history.tokens == 850
        history.limit_tokens = limit
        assert bool(history.leaving()) is is_near
    for chars, is_whole in ((250, True), (251, False)):
        history = history_of(messages, count=len)
        history.limit_tokens = 1_000
        history.leave("s" * chars)
        assert (history.summary == "s" * chars) is is_whole


@pytest.mark.parametrize(("spare", "is_noted"), [(0, True), (-1, False)])
def test_a_note_on_left_out_turns_may_take_as_much_as_they_did(spare: int, is_noted: bool) -> None:
    note = "[1 earlier turn of this conversation left out here.]"
    messages = conversation(turn(0), turn(1))
    first = sum(estimate_message(each, len) for each in messages[:2])
    messages[0] = replace(
        messages[0], content="q" * (estimate_message(SystemMessage(text=note), len) - first + 10 + spare)
    )
    history = history_of(messages, Compression(keep_turns=1), count=len)
    history.fit(history.tokens - 1)
    assert [each.text for each in history.view() if isinstance(each, SystemMessage)] == [note] * is_noted


def test_older_results_become_lines_until_three_quarters_of_the_limit_are_reached() -> None:
    calls = ("look", "1", "x" * 400), ("move", "2", "y" * 400)
    line = '[left out to save space, 400 characters: read_result(call_id="t0_0_0") gives it]'
    messages = conversation(turn(0, *calls), turn(1))
    rest = history_of(messages, count=len).tokens - 400 + len(line)
    messages[-2] = replace(messages[-2], content="q" * (900 - rest + 10))
    for limit, shortened in ((1_200, 1), (1_199, 2)):
        history = history_of(messages, Compression(keep_turns=2), count=len)
        assert history.fit(limit)
        assert sum("left out" in each for each in results(history.view())) == shortened


def test_the_newest_results_are_cut_only_until_they_fit_the_longest_first() -> None:
    parts = (ImagePart(url="u"),)
    messages = turn(0, ("look", "1", "x" * 900), ("look", "2", "y" * 600))[:-1]
    messages[-2] = replace(messages[-2], parts=parts)
    limit = history_of(messages, count=len).tokens
    for chars in (900, 855, 855):
        history = history_of(messages, count=len)
        assert history.fit(limit)
        first, second = [each for each in history.view() if isinstance(each, ToolMessage)]
        assert (len(first.content) <= chars, len(first.content) > chars - 10) == (True, True)
        assert (first.parts, second.content) == (parts, "y" * 600)
        limit = min(history.tokens, limit - 1)
