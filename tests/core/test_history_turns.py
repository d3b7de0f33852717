"""Where turns begin and end, what goes with them, and which one a conversation's next request begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support.wire_oracle import check_wires
from toolbus.core.compression import Compression, Edit, Fold, HistoryItem
from toolbus.core.history import History
from toolbus.core.transcript import validate
from toolbus.errors import ApplicationError, ConfigurationError
from toolbus.messages import AssistantMessage, ImagePart, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import ToolSpec
from toolbus.records import replace

SPECS = {"look": ToolSpec(name="look", kind="query"), "login": ToolSpec(name="login", keep_full_results=True)}
IMAGE = ImagePart(url="data:image/png;base64,AAAA")


def said(request: str, words: int = 40) -> list[Message]:
    """A turn without calls."""
    return [
        UserMessage(content="why " * words, message_id=f"{request}_u"),
        AssistantMessage(text="since " * words, message_id=f"{request}_r0"),
    ]


def called(request: str, *results: str, name: str = "look", round_number: int = 0) -> list[Message]:
    """A round of calls of one tool."""
    ids = [f"{request}_{round_number}_{index}" for index in range(len(results))]
    calls = tuple(ToolCall(name=name, call_id=each) for each in ids)
    return [
        AssistantMessage(tool_calls=calls, message_id=f"{request}_r{round_number}"),
        *(ToolMessage(call_id=each, name=name, content=text) for each, text in zip(ids, results, strict=True)),
    ]


def history_of(messages: Sequence[Message], **options: Any) -> History:
    made = History(messages, options.pop("compression", Compression()), **options)
    made.take(SPECS)
    return made


def turns_of(messages: Sequence[Message]) -> list[int]:
    """The number of each message's turn, as policies are told."""
    reported: list[int] = []

    class Telling:
        def fold(self) -> Fold:
            return self

        def add(self, seen: HistoryItem) -> list[Edit]:
            reported.append(seen.turn)
            return []

    history_of(messages, compression=Compression(policies=[Telling()]))
    return reported


def test_a_policy_reads_each_result_with_its_call_and_its_tool() -> None:
    found: list[tuple[str, str]] = []

    class Reading:
        def fold(self) -> Fold:
            return self

        def add(self, seen: HistoryItem) -> list[Edit]:
            if seen.call is not None and seen.spec is not None:
                found.append((seen.call.call_id, seen.spec.kind))
            return []

    messages = [*said("a")[:1], *called("a", "one", "two"), *called("a", "three", round_number=1)]
    history_of(messages, compression=Compression(policies=[Reading()]))
    assert found == [("a_0_0", "query"), ("a_0_1", "query"), ("a_1_0", "query")]


def fitted(history: History, limit: float) -> list[Message]:
    assert history.fit(limit)
    sent = list(history.view())
    validate(sent)
    check_wires(sent)
    return sent


# ------------------------------------------------------------------------------------------------- where turns begin


def test_what_is_said_on_the_way_is_of_the_turn_whatever_ids_the_prompt_has() -> None:
    prompt = UserMessage(content="go", message_id="mine")
    early, late = UserMessage(content="now", message_id="q_s0"), UserMessage(content="or not", message_id="q_s1")
    assert turns_of([prompt, early, *called("q", "a"), late, AssistantMessage(text="well")]) == [0] * 6


def test_what_is_said_on_the_way_is_of_the_turn_although_the_reply_before_it_was_begun_anew() -> None:
    reply, *results = called("q", "a")
    again = replace(reply, message_id="q_r0_1")
    late = UserMessage(content="or not", message_id="q_s0")
    assert turns_of([*said("p"), UserMessage(content="go", message_id="q_u"), again, *results, late]) == [
        0,
        0,
        1,
        1,
        1,
        1,
    ]


def test_ids_of_the_application_s_own_that_look_like_what_was_said_on_the_way_begin_turns() -> None:
    messages: list[Message] = []
    for number in range(3):
        messages += [UserMessage(content="go", message_id=f"thread_s{number}"), AssistantMessage(text="well")]
    assert turns_of(messages) == [0, 0, 1, 1, 2, 2]


def test_prompts_to_which_nothing_was_answered_are_turns_of_their_own_and_leave() -> None:
    messages = [UserMessage(content="are you there? " * 30, message_id=f"q{number}_u") for number in range(50)]
    assert turns_of(messages) == list(range(50))
    assert fitted(history_of(messages), 1000)[-1] == messages[-1]


def test_messages_without_ids_in_a_row_are_one_turn() -> None:
    messages = [UserMessage(content="look"), UserMessage(content="at this"), AssistantMessage(text="well")]
    assert turns_of([*messages, *messages]) == [0, 0, 0, 1, 1, 1]


def test_steering_of_a_request_without_a_prompt_begins_no_turn() -> None:
    messages = [*said("q"), *said("p")[:1], *called("p", "a"), UserMessage(content="and?", message_id="x_s0")]
    history = history_of(messages, request_id="x")
    assert history.fit(1) is False
    assert list(history.view()) == [SystemMessage(text="[1 earlier turn of this conversation left out here.]"), *messages[2:]]  # fmt: skip


def test_notes_in_front_of_a_prompt_stay_with_it() -> None:
    late = [SystemMessage(text="A call has ended since.", message_id=f"n{number}") for number in range(2)]
    messages = [*said("q", 200), *late, *said("p", 20)]
    assert fitted(history_of(messages), 150)[-4:] == messages[2:]


def test_a_note_behind_a_prompt_without_an_answer_stays_with_the_next_one() -> None:
    note = SystemMessage(text="A call has ended since.", message_id="n0")
    messages = [UserMessage(content="why " * 200, message_id="q_u"), note, *said("p", 20)]
    assert fitted(history_of(messages), 150)[-3:] == messages[1:]


def test_a_note_on_failures_leaves_with_its_round() -> None:
    note = SystemMessage(text="look failed", message_id="q_0_n")
    messages = [*said("q", 200)[:1], *called("q", "x " * 90), note, *said("p", 20)]
    assert note not in fitted(history_of(messages), 150)


def test_a_sensitive_result_of_a_turn_with_notes_stands_behind_its_prompt() -> None:
    note = SystemMessage(text="A call has ended since.", message_id="n1")
    turn = [note, *said("p", 20)[:1], *called("p", "the token", name="login"), AssistantMessage(text="in")]
    messages = [*said("q", 200), *turn, *said("r", 300)]
    sent = fitted(history_of(messages), 750)
    assert sent[1:4] == messages[3:6]
    assert note not in sent


# ----------------------------------------------------------------------------------------------- what shrinks, and when


@pytest.mark.parametrize(
    "behind",
    [SystemMessage(text="look failed", message_id="q_1_n"), UserMessage(content="faster", message_id="q_s0")],
    ids=["a note", "steering"],
)
def test_results_that_the_model_has_not_seen_yet_shrink_and_do_not_go(behind: Message) -> None:
    results = called("q", "word " * 900, round_number=1)
    messages = [*said("q", 2)[:1], *called("q", "old " * 300), *results, behind]
    sent = fitted(history_of(messages), 600)
    old, new = (each.content for each in sent if isinstance(each, ToolMessage))
    assert old.startswith("[left out to save space")
    assert new.startswith("word word")
    assert len(new) > 1000


def test_images_of_the_newest_round_go_when_nothing_else_is_left_to_go() -> None:
    messages = [*said("q", 2)[:1], *called("q", "a page", "")]
    messages[2:] = [replace(each, parts=(IMAGE, IMAGE)) for each in messages[2:]]
    history = history_of(messages)
    assert len([part for each in fitted(history, 3000) if isinstance(each, ToolMessage) for part in each.parts]) == 2
    words = [each.content for each in fitted(history, 300) if isinstance(each, ToolMessage)]
    assert words == [f"{text}[What was shown with this is left out to save space.]" for text in ("a page\n", "")]


def test_pages_that_were_read_grow_old_like_other_queries() -> None:
    messages = [*said("q", 2)[:1], *called("q", "page " * 90, name="read_result"), *said("p")]
    sent = history_of(messages, compression=Compression(keep_turns=1)).view()
    assert next(each.content for each in sent if isinstance(each, ToolMessage)).startswith("[older result left out")


def test_what_is_told_of_shortened_results_is_of_those_that_are_sent() -> None:
    messages: list[Message] = []
    for number in range(20):
        messages += [*said(f"q{number}")[:1], *called(f"q{number}", "x " * 200), AssistantMessage(text="so")]
    history = history_of(messages, compression=Compression(keep_turns=5))
    assert (reported := history.what_changed()) is not None
    assert reported.results_shortened == 15
    fitted(history, 2000)
    assert (reported := history.what_changed()) is not None
    lines = [each for each in history.view() if isinstance(each, ToolMessage) and each.content.startswith("[")]
    assert reported.results_shortened == len(lines) < 15
    assert history.has_shortened


def test_a_summary_is_made_without_the_sensitive_results_which_stay() -> None:
    secret = [*said("q", 2)[:1], *called("q", "the token", name="login"), AssistantMessage(text="in")]
    messages = [*secret, *said("p", 200), *said("r", 2)]
    history = history_of(messages)
    history.limit_tokens = history.tokens
    leaving = history.leaving()
    validate(leaving)
    assert [each.content for each in leaving if isinstance(each, ToolMessage)] == ["[This result is kept as it is.]"]
    assert [each for each in leaving if not isinstance(each, ToolMessage)] == [
        each for each in messages[: len(leaving)] if not isinstance(each, ToolMessage)
    ]
    history.leave("They logged in.")
    assert [each.content for each in history.view() if isinstance(each, ToolMessage)] == ["the token"]


# ------------------------------------------------------------------------------------------------ from turn to turn


def talk(turns: int, *, ids: bool) -> list[Message]:
    messages = [message for number in range(turns) for message in said(f"q{number}")]
    for number, each in enumerate(messages):
        numbered = replace(each, content=f"{number} {each.content}") if isinstance(each, UserMessage) else each
        messages[number] = numbered if ids else replace(numbered, message_id="")
    return messages


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
def test_a_conversation_is_known_again_with_ids_and_without(ids: bool) -> None:
    messages = talk(30, ids=ids)
    history = history_of(messages)
    history.limit_tokens = 1000
    history.leave("They asked why.")
    sent, memo = list(history.view()), history.memo()
    messages += said("next")
    following = history_of(messages, memo=memo)
    assert list(following.view()) == [*sent, *messages[-2:]]
    assert following.memo() == memo


def test_a_history_without_ids_that_is_another_one_is_not_taken_for_the_first() -> None:
    history = history_of(talk(30, ids=False))
    history.limit_tokens = 1000
    history.leave("They asked why.")
    other = [*talk(30, ids=False)[4:], *said("next")]
    assert list(history_of(other, memo=history.memo()).view()) == other


def test_a_conversation_whose_store_lost_its_beginning_goes_on_with_the_same_turn_and_note() -> None:
    messages = talk(30, ids=True)
    history = history_of(messages)
    history.limit_tokens = 1000
    history.leave("They asked why.")
    sent, memo = list(history.view()), history.memo()
    following = history_of(messages[20:], memo=memo)
    assert list(following.view()) == sent
    assert following.memo() is not None
    gone = history_of(messages[58:], memo=memo)
    assert list(gone.view()) == messages[58:]


def test_a_prompt_without_an_answer_is_known_again() -> None:
    messages = [*talk(20, ids=True), UserMessage(content="?", message_id="a_u"), UserMessage(content="!", message_id="b_u")]  # fmt: skip
    history = history_of(messages)
    assert not history.fit(1)
    assert list(history.view())[-1] == messages[-1]
    memo = history.memo()
    assert memo is not None
    assert (memo.first_id, memo.turns_omitted) == ("b_u", 21)
    assert len(history_of([*messages, *said("c")], memo=memo).view()) == 4


# ------------------------------------------------------------------------------------------------- policies that fail


class Policy:
    def __init__(self, *edits: Any) -> None:
        self.edits = edits

    def fold(self) -> Fold:
        if not self.edits:
            raise LookupError("no rules")
        return self

    def add(self, seen: HistoryItem) -> Any:
        for each in self.edits:
            if isinstance(each, Exception):
                raise each
        return self.edits


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ([ValueError("oh")], "Policy failed: add: ValueError: oh"),
        ([3], "Policy failed: add: TypeError"),
        ([(0,)], "Policy failed: add: ValueError: not enough values"),
        ([("a", "b")], "Policy failed: add: ValueError: invalid literal"),
        ([(0, None)], "Policy failed: add: AttributeError"),
        ([], "Policy failed: fold: LookupError: no rules"),
    ],
)
def test_a_policy_that_fails_or_makes_no_sense_is_named(edits: list[Any], problem: str) -> None:
    with pytest.raises(ApplicationError, match=problem):
        history_of(said("q"), compression=Compression(policies=[Policy(*edits)]))


def test_what_a_policy_says_of_other_places_and_in_broken_text_does_no_harm() -> None:
    places = (-5, -1, 0, 1, 3, 10**9)
    messages = [*said("q", 2)[:1], *called("q", "word " * 90), *said("p")]
    history = history_of(messages, compression=Compression(policies=[Policy(*((each, "\ud800") for each in places))]))
    validate(history.view())
    assert [each.content for each in history.view() if isinstance(each, ToolMessage)] == ["word " * 90]
    history = history_of(messages, compression=Compression(policies=[Policy((2, "\ud800"))]))
    assert [each.content for each in history.view() if isinstance(each, ToolMessage)] == ["?"]


@pytest.mark.parametrize(
    "options", [{"policies": None}, {"policies": 3}, {"policies": "mask"}, {"max_action_chars": 199}]
)
def test_more_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Compression(**options)
