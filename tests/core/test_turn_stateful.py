"""The turn machine against everything that may happen, in any order, and what has to hold after each step.

A journal is replayed after every step, through JSON, by `apply` alone: this is how a request is resumed.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from turn_driver import TOOLS, Turn, call, completed, failed, of, replied

from toolbus.core.limits import Limits
from toolbus.core.state import Phase
from toolbus.core.transcript import repair, validate
from toolbus.core.turn import AwaitCalls, CallModel, Elapsed, Finish, ModelFailed, apply, pending
from toolbus.events import (
    CancelRequested,
    MessageAppended,
    ModelResponded,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RoundStarted,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
    decode,
    encode,
)
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage

ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
HISTORIES: list[list[Message]] = [
    [],
    [SystemMessage(text="Be brief.")],
    [
        UserMessage(content="earlier"),
        AssistantMessage(tool_calls=(ToolCall(name="clock", call_id="call_0"),)),
        ToolMessage(call_id="call_0", name="clock", content="noon"),
        AssistantMessage(text="noon"),
    ],
]

limits = st.builds(
    Limits,
    max_rounds=st.integers(1, 4),
    max_calls_per_round=st.integers(1, 4),
    max_tool_calls=st.integers(1, 8),
    max_consecutive_errors=st.integers(1, 4),
    max_repeats=st.integers(1, 3),
    timeout_seconds=st.sampled_from([5.0, 120.0, 0.3]),
    tool_timeout_seconds=st.sampled_from([2.0, 30.0, 0.1]),
    model_timeout_seconds=st.sampled_from([3, 60.0, 0.7]),
    max_input_tokens=st.sampled_from([5, 1_000_000]),
    max_output_tokens=st.sampled_from([5, 1_000_000]),
    on_limit=st.sampled_from(["answer", "stop"]),
)
tool_calls = st.builds(
    call,
    st.sampled_from(["clock", "clock", "weather", "nothing", "to\ud800rn"]),
    st.sampled_from(
        ["{}", "", '{"city":"Rome"}', '{"city": 1}', "{", '{"n": 0.1}', '{"a": "\ud800"}', '{"a":1,"a":1}']
    ),
    st.sampled_from(["", "x", "call_0"]),
)
texts = st.sampled_from(["", " ", "noon", "ü \ud83d"])  # what models write is cleaned; what people say comes clean
sentences = st.sampled_from(["", "\n", "In Rome.", "ü"])
usages = st.builds(Usage, input_tokens=st.integers(0, 3), output_tokens=st.integers(0, 3))
seconds = st.sampled_from([0.0, 0.05, 0.1, 1.0, 2.9, 31.0])


class AnyTurn(RuleBasedStateMachine):
    """A request to which anything may happen at any time."""

    @initialize(
        limits=limits,
        history=st.sampled_from(HISTORIES),
        steered=st.lists(sentences, max_size=2),
        now=st.sampled_from([0.0, 0.1, 1_795_304_537.7287965]),
    )
    def start(self, limits: Limits, history: list[Message], steered: list[str], now: float) -> None:
        self.turn = Turn(limits, history=history, steered=steered, now=now)

    # ------------------------------------------------------------------------------------- what may happen

    @rule(text=texts, calls=st.lists(tool_calls, max_size=5), usage=usages, forgotten=st.booleans())
    def reply(self, text: str, calls: list[ToolCall], usage: Usage, forgotten: bool) -> None:
        self.turn.offer({} if forgotten else TOOLS)
        offered = isinstance(command := self.turn.command, CallModel) and command.offer_tools
        facts = self.turn.step(replied(text, *calls, usage=usage))
        if not offered:
            assert of(ToolCallRequested, facts) == []

    @precondition(lambda self: self.turn.state.open_calls)
    @rule(data=st.data(), duplicated=st.booleans(), failing=st.booleans())
    def settle(self, data: st.DataObject, duplicated: bool, failing: bool) -> None:
        open_calls = sorted(self.turn.state.open_calls)
        chosen = data.draw(st.permutations(open_calls).map(lambda ids: ids[: 1 + len(ids) // 2]))
        inputs = [failed(each) if failing else completed(each, content=each) for each in chosen]
        again = [completed(each, content="second") for each in chosen] if duplicated else []
        facts = self.turn.step(*inputs, *again)
        assert [each for each in facts if each in again] == []

    @rule(call_id=st.sampled_from(["r_0_0", "r_0_1", "r_1_0", "r_9_9", "q_0_0", ""]))
    def settle_whatever(self, call_id: str) -> None:
        known = call_id in self.turn.state.open_calls
        assert bool(self.turn.step(failed(call_id))) is known

    @rule(after=seconds)
    def let_time_pass(self, after: float) -> None:
        self.turn.now += after

    @rule()
    def elapse(self) -> None:
        self.turn.step(Elapsed())

    @precondition(lambda self: self.turn.state.phase is not Phase.ENDED)
    @rule()
    def elapse_at_the_deadline(self) -> None:
        facts = self.turn.elapse()
        assert facts, "a deadline that fires has to mean something, or the session would wait for it again at once"

    @rule(code=st.sampled_from(["provider_unavailable", "provider_rejected"]))
    def break_model(self, code: str) -> None:
        self.turn.step(ModelFailed(code, "no"))

    @rule(said=st.lists(sentences, min_size=1, max_size=3))
    def steer(self, said: list[str]) -> None:
        self.turn.steer(*said)

    @rule(with_results=st.booleans())
    def cancel(self, with_results: bool) -> None:
        done = [completed(each) for each in self.turn.state.open_calls] if with_results else []
        ended = self.turn.state.phase is Phase.ENDED
        facts = self.turn.step(*done, CancelRequested(request_id="r", reason="enough"))
        assert ended or isinstance(facts[-1], RequestCancelled)
        assert [each for each in facts if isinstance(each, ToolCallCompleted)] == done

    # ------------------------------------------------------------------------------------- what has to hold

    @invariant()
    def every_call_is_settled_once_and_none_is_left_when_its_round_is_over(self) -> None:
        facts, state = self.turn.facts, self.turn.state
        asked = [each.call_id for fact in of(ModelResponded, facts) for each in calls_of(fact.message)]
        ends = Counter(each.call_id for each in facts if isinstance(each, (ToolCallCompleted, ToolCallFailed)))
        assert len(set(asked)) == len(asked)
        assert set(ends) <= set(asked)
        assert set(ends.values()) <= {1}
        assert set(asked) - set(ends) == set(state.open_calls)
        assert not state.open_calls or state.phase is Phase.TOOLS
        requests = [each.call_id for each in of(ToolCallRequested, facts)]
        assert len(set(requests)) == len(requests)
        assert set(state.open_calls) <= set(requests)

    @invariant()
    def the_transcript_is_valid_whenever_nothing_is_open(self) -> None:
        state = self.turn.state
        if state.phase is not Phase.TOOLS:
            validate(state.messages, "anthropic")
            validate(state.messages, "openai")
        mended = repair(state.messages)
        validate(mended)
        assert mended[: len(state.messages)] == state.messages

    @invariant()
    def results_stand_in_call_order_as_they_were_settled(self) -> None:
        outcomes = {
            each.call_id: each for each in self.turn.facts if isinstance(each, (ToolCallCompleted, ToolCallFailed))
        }
        for message in self.turn.state.messages[len(self.turn.history) :]:
            if isinstance(message, ToolMessage):
                outcome = outcomes[message.call_id]
                assert message.is_error is isinstance(outcome, ToolCallFailed)
                assert isinstance(outcome, ToolCallFailed) or message.content == outcome.content

    @invariant()
    def a_replay_of_the_journal_gives_the_same_state_and_command(self) -> None:
        state = self.turn.fresh()
        for fact in self.turn.facts:
            apply(state, decode(encode(fact)))
        assert state == self.turn.state
        assert pending(state) == self.turn.command

    @invariant()
    def limits_are_kept(self) -> None:
        facts, limits = self.turn.facts, self.turn.limits
        requested = of(ToolCallRequested, facts)
        assert len(requested) <= limits.max_tool_calls
        assert all(
            number <= limits.max_calls_per_round for number in Counter(each.round for each in requested).values()
        )
        assert all(0 < each.deadline <= limits.tool_timeout_seconds for each in requested)
        began = facts[0].at
        assert all(each.at + each.deadline <= began + limits.timeout_seconds + 1e-6 for each in requested)
        rounds = of(RoundStarted, facts)
        assert [each.round for each in rounds] == list(range(len(rounds)))
        assert sum(each.tools_offered for each in rounds) <= limits.max_rounds
        assert [each.tools_offered for each in rounds] == sorted((each.tools_offered for each in rounds), reverse=True)
        assert sum(not each.tools_offered for each in rounds) <= (limits.on_limit == "answer")

    @invariant()
    def there_is_one_ending_and_it_is_the_last_fact(self) -> None:
        endings = [each for each in self.turn.facts if isinstance(each, ENDINGS)]
        ended = self.turn.state.phase is Phase.ENDED
        assert endings == ([self.turn.facts[-1]] if ended else [])
        assert isinstance(self.turn.command, Finish) is ended
        if endings:
            assert endings[0].usage == self.turn.state.usage

    @invariant()
    def a_deadline_is_always_set_and_not_later_than_the_requests(self) -> None:
        command = self.turn.command
        if isinstance(command, (CallModel, AwaitCalls)):
            assert math.isfinite(command.deadline)
            assert command.deadline <= self.turn.state.deadline + 1e-6

    @invariant()
    def what_people_say_joins_the_transcript_at_most_once_and_in_order(self) -> None:
        said = [each.text for each in of(SteeringAdded, self.turn.facts)]
        joined = [
            each.message.content
            for each in of(MessageAppended, self.turn.facts)
            if isinstance(each.message, UserMessage) and each.message.message_id != "r_u"
        ]
        assert joined == said[: len(joined)]

    def teardown(self) -> None:
        """However busy the model is, and with nobody to answer its calls, the request comes to its end."""
        if not hasattr(self, "turn"):
            return
        limits = self.turn.limits
        rounds = limits.max_rounds + limits.max_tool_calls + limits.max_consecutive_errors + 2
        for number in range(2 * rounds * limits.max_tool_calls):
            command = self.turn.command
            if isinstance(command, Finish):
                return
            if isinstance(command, CallModel):
                self.turn.call(call("clock", f'{{"step": {number}}}'))
            else:
                self.turn.step(completed(next(iter(command.calls))))
        raise AssertionError("the request does not end")


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    assert isinstance(message, AssistantMessage)
    return message.tool_calls


@pytest.mark.guarantee("G06", "G07", "G08", "G09", "G10")
class TestAnyTurn(AnyTurn.TestCase):
    settings = settings(
        max_examples=150, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
