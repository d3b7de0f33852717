"""The turn machine against everything that may happen, in any order, and what has to hold after each step.

A journal is replayed after every step, through JSON, by `apply` alone: this is how a request is resumed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from turn_driver import Turn, call, completed, decided, failed, of, paused, replied, resumed
from turn_rules import (
    check_answers_by_tools,
    check_approvals,
    check_background,
    check_budget,
    check_interrupted,
    check_nothing_begins_after_the_end,
    check_order,
    check_overflows,
    check_pauses,
    check_repeats,
    paused_seconds,
    plan_of,
    refused_in,
    tickets_of,
)
from turn_strategies import (
    DIRECT,
    HISTORIES,
    OFFERS,
    OWN_TOOLS,
    SEQUENTIAL,
    City,
    agreed,
    arguments,
    cut_offs,
    denials,
    edits,
    limits,
    replies,
    seconds,
    sentences,
    shapes,
    spents,
    summaries,
    texts,
    usages,
)

from toolbus.core.approval import ApprovalPolicy, definition_of, needs_approval
from toolbus.core.history import Shape
from toolbus.core.limits import Limits
from toolbus.core.output import OutputType
from toolbus.core.shorten import page
from toolbus.core.transcript import repair, validate
from toolbus.core.turn import (
    AwaitCalls,
    CallModel,
    CallStatus,
    Elapsed,
    Finish,
    HistoryShaped,
    Input,
    ModelFailed,
    ModelReplied,
    Phase,
    apply,
    pending,
)
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RoundStarted,
    Spent,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
    decode,
    encode,
)
from toolbus.messages import AssistantMessage, Message, ToolCall, ToolMessage, Usage, UserMessage
from toolbus.protocols import FinishReason, Summary, ToolSpec
from toolbus.records import replace

ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
PIECES = st.lists(st.sampled_from(["half", " ", "\ud83d"]), max_size=2)


def has_to_ask(policy: ApprovalPolicy | None, spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    """A policy that raises must not let a call run unapproved."""
    try:
        return needs_approval(policy, spec, arguments)
    except ZeroDivisionError:
        return True


def newest_results(messages: Sequence[Message]) -> dict[str, str]:
    """The results by the ids of their calls, ours and the providers', which come again: the newest reply's counts."""
    found: dict[str, str] = {}
    contents: dict[str, str] = {}
    for message in reversed(messages):  # the results of a reply stand behind it
        if isinstance(message, ToolMessage):
            contents[message.call_id] = message.content
        elif isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                for named in (call.call_id, call.provider_call_id):
                    if named and call.call_id in contents:
                        found.setdefault(named, contents[call.call_id])
            contents = {}
    return found


class AnyTurn(RuleBasedStateMachine):
    """A request to which anything may happen at any time."""

    @initialize(
        limits=limits,
        agreed=agreed,
        history=st.sampled_from(HISTORIES),
        steered=st.lists(sentences, max_size=2),
        now=st.sampled_from([0.0, 0.1, 1_795_304_537.7287965]),
        calm=st.integers(0, 3),
    )
    def start(
        self, limits: Limits, agreed: dict[str, Any], history: list[Message], steered: list[str], now: float, calm: int
    ) -> None:
        """`calm` is how many rounds pass before anything happens that ends most requests."""
        self.calm = calm
        self.output: OutputType[Any] | None = agreed["output"]
        self.limits = limits
        self.agreed = agreed
        self.begin(history, steered, now)

    def begin(self, history: list[Message], steered: list[str], now: float) -> None:
        tools = self.with_output(OWN_TOOLS)
        self.turn = Turn(self.limits, history=history, steered=steered, now=now, tools=tools, **self.agreed)
        self.granted: dict[str, bool] = {}

    def with_output(self, tools: Mapping[str, ToolSpec]) -> Mapping[str, ToolSpec]:
        return tools if self.output is None else {**tools, "final_answer": self.output.spec}

    def step(self, *inputs: Input) -> list[Any]:
        """A step of the machine; then what it says of approvals is held against the tools as they are now."""
        turn = self.turn
        facts = turn.step(*inputs)
        asked = {each.call_id: each for each in of(ApprovalRequested, turn.facts)}
        for fact in facts:
            if isinstance(fact, ApprovalDecided) and fact.remember:
                definitions = [
                    each.definition
                    for each in of(ApprovalRequested, turn.facts[: turn.facts.index(fact)])
                    if each.call_id == fact.call_id
                ]
                self.granted[definitions[-1]] = fact.approved
            elif isinstance(fact, (ToolCallRequested, ApprovalRequested)):
                spec = turn.tools[fact.name]
                remembered = self.granted.get(definition_of(spec))
                if isinstance(fact, ApprovalRequested):
                    assert fact.definition == definition_of(spec)
                    first = fact is next(
                        each for each in of(ApprovalRequested, turn.facts) if each.call_id == fact.call_id
                    )
                    assert not first or (
                        remembered is None and has_to_ask(turn.state.needs_approval, spec, fact.arguments)
                    )
                elif fact.call_id in asked:
                    assert asked[fact.call_id].definition == definition_of(spec)
                else:
                    assert remembered or not has_to_ask(turn.state.needs_approval, spec, fact.arguments)
                    assert remembered is not False
        return facts

    # ------------------------------------------------------------------------------------- what may happen

    @property
    def rough(self) -> bool:
        return self.turn.state.round >= self.calm

    @property
    def asked(self) -> list[str]:
        """The calls that a person is asked about."""
        return sorted(key for key, each in self.turn.state.open_calls.items() if each.status is CallStatus.WAITING)

    @property
    def paused(self) -> list[str]:
        """The calls that run, and stand still."""
        return sorted(key for key, each in self.turn.state.open_calls.items() if each.remaining_seconds is not None)

    @precondition(lambda self: self.turn.state.phase is Phase.MODEL)
    @rule(text=texts, calls=replies, usage=usages, offer=st.sampled_from(OFFERS), denied=denials)
    def reply(
        self, text: str, calls: list[ToolCall], usage: Usage, offer: Mapping[str, ToolSpec], denied: dict[int, str]
    ) -> None:
        command = self.turn.command
        assert isinstance(command, CallModel)
        self.turn.offer(self.with_output(offer))
        reply = replied(text, *calls, usage=usage).reply
        facts = self.step(ModelReplied(reply, {place: why for place, why in denied.items() if place < len(calls)}))
        if not command.offer_tools:
            assert of(ToolCallRequested, facts) == []
            assert of(ApprovalRequested, facts) == []

    def _go_on(self, data: st.DataObject) -> None:
        """What is pending is done, or the conversation goes on with another turn."""
        state = self.turn.state
        if state.phase is Phase.MODEL:
            self.reply(*(data.draw(each) for each in (texts, replies, usages, st.sampled_from(OFFERS), denials)))  # type: ignore[arg-type]
        elif self.asked and data.draw(st.booleans()):
            self.decide(data, *(data.draw(each) for each in (st.booleans(), edits, st.booleans(), seconds)))  # type: ignore[arg-type]
        elif state.open_calls:
            self.settle(data, False, data.draw(st.sampled_from(["", "", "", "error"])), data.draw(spents))
        else:
            self.begin(state.messages, [], self.turn.now)

    # Hypothesis leaves rules out of whole examples: this one is there by three names, so that something goes on.

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self._go_on(data)

    @rule(data=st.data())
    def go_on_again(self, data: st.DataObject) -> None:
        self._go_on(data)

    @rule(data=st.data())
    def go_on_once_more(self, data: st.DataObject) -> None:
        self._go_on(data)

    @precondition(lambda self: self.turn.state.phase is Phase.MODEL)
    @rule(names=st.lists(st.sampled_from(sorted(DIRECT)), min_size=1, max_size=2), usage=usages)
    def reply_with_calls_whose_results_are_the_answer(self, names: list[str], usage: Usage) -> None:
        self.reply("", [call(name) for name in names], usage, OWN_TOOLS, {})

    @precondition(lambda self: self.turn.state.phase is Phase.MODEL)
    @rule(data=st.data(), names=st.lists(st.sampled_from(sorted({*SEQUENTIAL, "pay"})), min_size=2, max_size=5))
    def reply_with_calls_that_have_to_wait(self, data: st.DataObject, names: list[str]) -> None:
        self.reply("", [call(name, data.draw(arguments)) for name in names], Usage(), OWN_TOOLS, {})

    @precondition(lambda self: self.turn.state.phase is Phase.MODEL)
    @rule(pieces=PIECES, reasoning=PIECES)
    def stream(self, pieces: list[str], reasoning: list[str]) -> None:
        """Pieces come; whatever happens next, they are in the transcript only if the request ends by it."""
        self.turn.state.streamed = pieces, reasoning

    @precondition(lambda self: self.turn.state.phase is Phase.MODEL)
    @rule(text=texts, written=cut_offs, finish=st.sampled_from(["length", "content_filter"]))
    def reply_that_is_cut_off(self, text: str, written: list[str], finish: FinishReason) -> None:
        """An object that is closed is whole, wherever the reply ended; of anything else nothing runs."""
        reply = replied(text, *(call("clock", each) for each in written)).reply
        facts = self.step(ModelReplied(replace(reply, finish_reason=finish)))
        whole = [place for place, each in enumerate(written) if each.endswith("}")]
        ran = [int(each.call_id.rpartition("_")[2]) for each in of(ToolCallRequested, facts)]
        assert set(ran) <= set(whole)
        waiting = {call_id for call_id, each in self.turn.state.open_calls.items() if not each.is_background}
        assert not ran or not waiting - {each.call_id for each in of(ToolCallRequested, facts)}

    @precondition(lambda self: self.turn.state.phase is Phase.MODEL)
    @rule(data=st.data(), offset=st.sampled_from([0, 1, 3, 10**9]))
    def read_on(self, data: st.DataObject, offset: int) -> None:
        """The machine answers it from the transcript as it is now, or says what there is; nobody is asked to run it."""
        state = self.turn.state
        results = newest_results(state.messages)
        chosen = data.draw(st.sampled_from([*results, "r_9_9"]))
        self.turn.offer(self.with_output(OWN_TOOLS))
        facts = self.step(replied("", call("read_result", json.dumps({"call_id": chosen, "offset": offset}))))
        assert of(ToolCallRequested, facts) == []
        assert of(ApprovalRequested, facts) == []
        for each in of(ToolCallCompleted, facts):
            assert each.content == page(results[chosen], offset, self.turn.state.max_result_chars)

    @precondition(lambda self: self.turn.state.phase is not Phase.MODEL)
    @rule(text=texts)
    def reply_when_nobody_asks(self, text: str) -> None:
        assert of(ModelResponded, self.step(replied(text))) == []

    @precondition(lambda self: self.turn.state.waiting)
    @rule(offer=st.sampled_from(OFFERS))
    def change_the_tools(self, offer: Mapping[str, ToolSpec]) -> None:
        self.turn.offer(self.with_output(offer))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), approved=st.booleans(), edit=edits, remember=st.booleans(), after=seconds)
    def decide(
        self, data: st.DataObject, approved: bool, edit: dict[str, Any] | None, remember: bool, after: float
    ) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.asked), min_size=1, max_size=3))  # one perhaps twice
        self.turn.now += after
        facts = self.step(*(decided(each, approved, arguments=edit, remember=remember) for each in chosen))
        assert {each.call_id for each in of(ApprovalDecided, facts)} == set(chosen)

    @rule(call_id=st.sampled_from(["r_0_0", "r_0_1", "r_0_2", "r_1_0", "r_9_9", ""]), approved=st.booleans())
    def decide_whatever(self, call_id: str, approved: bool) -> None:
        each = self.turn.state.open_calls.get(call_id)
        waits = each is not None and each.status is CallStatus.WAITING
        decision = decided(call_id, approved)
        assert (decision in self.step(decision)) is waits

    @precondition(lambda self: self.turn.state.open_calls)
    @rule(data=st.data(), goes_on=st.booleans(), at=st.sampled_from([0.0, 1e9, 9e12]), after=seconds)
    def pause_or_resume(self, data: st.DataObject, goes_on: bool, at: float, after: float) -> None:
        """Any call that is open, perhaps in vain, and by whatever clock."""
        state = self.turn.state
        chosen = data.draw(st.sampled_from(sorted(state.open_calls)))
        runs = state.open_calls[chosen].status is CallStatus.REQUESTED
        means_something = chosen in self.paused if goes_on else runs and chosen not in self.paused
        self.turn.now += after
        facts = self.step((resumed if goes_on else paused)(chosen, at=at))
        assert [each.call_id for each in of(ToolCallResumed if goes_on else ToolCallPaused, facts)] == (
            [chosen] if means_something else []
        )

    @precondition(lambda self: not self.turn.state.open_calls)
    @rule(call_id=st.sampled_from(["r_0_0", "r_0_1", "r_9_9", ""]))
    def pause_whatever(self, call_id: str) -> None:
        assert self.step(paused(call_id), resumed(call_id)) == []

    @precondition(lambda self: self.turn.state.open_calls)
    @rule(
        data=st.data(),
        duplicated=st.booleans(),
        reason=st.sampled_from(["", "", "error", "timeout", "limit"]),
        spent=spents,
    )
    def settle(self, data: st.DataObject, duplicated: bool, reason: str, spent: Spent | None) -> None:
        """Also calls that wait or are held: anybody may publish a result."""
        open_calls = sorted(self.turn.state.open_calls)
        chosen = data.draw(st.permutations(open_calls).map(lambda ids: ids[: 1 + len(ids) // 2]))
        fields: dict[str, Any] = {"at": self.turn.now, "spent": spent}
        inputs = [
            failed(each, reason=reason, limit="theirs=1", **fields)
            if reason
            else completed(each, content=each, **fields)
            for each in chosen
        ]
        again = [completed(each, content="second") for each in chosen] if duplicated else []
        facts = self.step(*inputs, *again)
        assert [each for each in facts if each in again] == []

    @precondition(lambda self: self.turn.state.open_calls)
    @rule(seconds=seconds)
    def let_the_round_end_well(self, seconds: float) -> None:
        """Everything is approved and completed, in call order."""
        self.turn.now += seconds
        while (calls := self.turn.state.open_calls) and self.turn.state.phase is Phase.TOOLS:
            key, each = next(iter(calls.items()))
            waits = each.status is CallStatus.WAITING
            self.step(decided(key) if waits else completed(key, at=self.turn.now))

    @rule(call_id=st.sampled_from(["r_0_0", "r_0_1", "r_1_0", "r_9_9", "q_0_0", ""]))
    def settle_whatever(self, call_id: str) -> None:
        known = call_id in self.turn.state.open_calls
        result = failed(call_id, at=self.turn.now)
        assert (result in self.step(result)) is known

    @rule(after=seconds)
    def let_time_pass(self, after: float) -> None:
        self.turn.now += after

    @precondition(lambda self: self.rough)
    @rule()
    def elapse(self) -> None:
        self.step(Elapsed())

    @precondition(
        lambda self: (
            self.turn.state.phase in (Phase.TOOLS, Phase.READY) or (self.rough and self.turn.state.phase is Phase.MODEL)
        )
    )
    @rule()
    def elapse_at_the_deadline(self) -> None:
        self.turn.now = max(self.turn.now, self.turn.waiting.deadline)
        facts = self.step(Elapsed())
        assert facts, "a deadline that fires has to mean something, or the session would wait for it again at once"

    @precondition(lambda self: self.rough)
    @rule(code=st.sampled_from(["provider_unavailable", "provider_rejected"]))
    def break_model(self, code: str) -> None:
        self.step(ModelFailed(code, "no", retryable=code == "provider_unavailable"))

    @precondition(lambda self: self.rough or not refused_in(self.turn.facts))
    @rule(retryable=st.sampled_from([True, True, True, False]))
    def send_too_much(self, retryable: bool) -> None:
        before = self.turn.state
        asked, provider = before.phase is Phase.MODEL, before.provider
        retryable = retryable or not self.rough
        refused = provider in refused_in(self.turn.facts)
        facts = self.step(ModelFailed("context_overflow", "too long", retryable=retryable))
        again = of(ModelRetrying, facts)
        assert not again or (asked and retryable)
        if asked and retryable and not refused and self.turn.now < before.deadline:
            assert [each.provider_index for each in again] == [provider]

    @precondition(lambda self: self.turn.state.phase is not Phase.NEW)
    @rule(shape=shapes, summary=st.none() | summaries)
    def shorten(self, shape: Shape, summary: Summary | None) -> None:
        asked = self.turn.state.phase is Phase.MODEL
        facts = self.step(HistoryShaped(shape, summary))
        assert len(of(HistoryCompressed, facts)) == asked
        assert not of(RoundStarted, facts)
        if summary is None:
            assert len(facts) == asked
        elif asked:
            state, limits = self.turn.state, self.limits
            spent, cost = check_budget(self.turn.facts, limits)
            unknown = limits.max_cost is not None and facts[0].cost is None and summary != Summary(text=summary.text)
            too_much = spent.input_tokens > limits.max_input_tokens or spent.output_tokens > limits.max_output_tokens
            too_much = too_much or (limits.max_cost is not None and cost > limits.max_cost)
            assert (state.ending is not None) is (too_much or unknown)

    @precondition(lambda self: self.rough or not self.turn.state.steering)
    @rule(said=st.lists(sentences, min_size=1, max_size=3))
    def steer(self, said: list[str]) -> None:
        self.turn.steer(*said)

    @precondition(lambda self: self.rough)
    @rule(with_results=st.booleans(), with_decisions=st.booleans())
    def cancel(self, with_results: bool, with_decisions: bool) -> None:
        calls = self.turn.state.open_calls
        done = [completed(each, at=self.turn.now) for each in calls] if with_results else []
        late = [decided(each) for each in calls] if with_decisions else []
        ended = self.turn.state.phase is Phase.ENDED
        facts = self.step(*done, CancelRequested(request_id="r", reason="enough"), *late)
        assert ended or isinstance(facts[-1], RequestCancelled)
        assert of(ToolCallRequested, facts) == []
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
        background = {key for key, each in state.open_calls.items() if each.is_background}
        tickets = {key for key, each in state.open_calls.items() if each.has_ticket}
        assert len(background) == state.background
        assert tickets <= background
        assert state.phase is Phase.TOOLS or set(state.open_calls) == tickets
        assert state.phase is not Phase.ENDED or not state.open_calls
        assert state.phase is not Phase.READY or isinstance(state.messages[-1], AssistantMessage)
        requests = [each.call_id for each in of(ToolCallRequested, facts)]
        assert len(set(requests)) == len(requests)
        assert {key for key, each in state.open_calls.items() if each.status is CallStatus.REQUESTED} <= set(requests)
        assert state.unjudged == sum(each.status is CallStatus.OPEN for each in state.open_calls.values())
        paused = [each for each in self.paused if not state.open_calls[each].is_background]
        assert state.waiting == len(self.asked) + len(paused) + state.is_idle

    @invariant()
    def the_transcript_is_valid_whenever_nothing_is_open(self) -> None:
        state = self.turn.state
        if state.phase is not Phase.TOOLS:
            validate(state.messages, "anthropic")
            validate(state.messages, "openai")
        repaired = repair(state.messages)
        validate(repaired)
        assert repaired[: len(state.messages)] == state.messages

    @invariant()
    def results_stand_in_call_order_as_they_were_settled(self) -> None:
        outcomes = {
            each.call_id: each for each in self.turn.facts if isinstance(each, (ToolCallCompleted, ToolCallFailed))
        }
        tickets = tickets_of(self.turn.facts)
        for message in self.turn.state.messages[len(self.turn.history) :]:
            if isinstance(message, ToolMessage) and message.call_id in tickets:
                assert not message.is_error
                assert message.content.startswith("The call runs in the background.")
            elif isinstance(message, ToolMessage):
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
    def the_facts_keep_their_rules(self) -> None:
        facts, turn = self.turn.facts, self.turn
        check_approvals(facts)
        check_order(facts, SEQUENTIAL)
        check_pauses(facts)
        check_nothing_begins_after_the_end(facts, turn.limits)
        check_repeats(facts, turn.limits)
        check_interrupted(facts)
        check_background(facts)
        check_answers_by_tools(facts, DIRECT)
        check_overflows(facts, turn.state.providers)
        usage, cost = check_budget(facts, turn.limits)
        assert turn.state.usage == usage
        assert math.isclose(turn.state.cost, cost)
        assert turn.state.plan == plan_of(facts)
        assert turn.state.granted == self.granted

    @invariant()
    def the_requests_clock_stands_still_while_something_waits(self) -> None:
        facts, state = self.turn.facts, self.turn.state
        stood_still, waits = paused_seconds(facts, self.turn.limits)
        assert waits is bool(state.waiting)
        until = facts[0].at + self.turn.limits.timeout_seconds + stood_still
        assert math.isclose(state.deadline, until, abs_tol=1e-5)

    @invariant()
    def an_answer_of_a_type_is_of_it(self) -> None:
        ending = self.turn.state.ending
        if isinstance(ending, RequestCompleted) and self.output is not None:
            assert ending.output is not None or ending.outcome == "stopped"
            if ending.output is not None:
                assert isinstance(self.output.load(ending.output), (City, list))

    @invariant()
    def limits_are_kept(self) -> None:
        facts, limits = self.turn.facts, self.turn.limits
        requested = of(ToolCallRequested, facts)
        assert len(requested) <= limits.max_tool_calls
        assert all(
            number <= limits.max_calls_per_round for number in Counter(each.round for each in requested).values()
        )
        waited_for = [each for each in requested if not each.background]
        assert all(0 < each.timeout_seconds <= limits.tool_timeout_seconds for each in waited_for)
        for each in requested:
            if each.background:
                assert each.timeout_seconds == (5.0 if each.name == "film" else limits.background_timeout_seconds)
        began = facts[0].at
        for each in waited_for:
            before = facts[: facts.index(each) + 1]
            stood_still, waits = paused_seconds(before, limits)
            assert waits or each.at + each.timeout_seconds <= began + limits.timeout_seconds + stood_still + 1e-5
        rounds = of(RoundStarted, facts)
        assert [each.round for each in rounds] == list(range(len(rounds)))
        # While the request waits for background calls, each message of a person has as many rounds as a new turn.
        turns = 1 + self.turn.state.steered
        assert sum(each.tools_offered for each in rounds) <= limits.max_rounds * turns
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
            assert self.turn.state.waiting or command.deadline <= self.turn.state.deadline + 1e-6

    @invariant()
    def what_people_say_joins_the_transcript_at_most_once_and_in_order(self) -> None:
        said = [each.text for each in of(SteeringAdded, self.turn.facts)]
        joined = [
            each.message.content
            for each in of(MessageAppended, self.turn.facts)
            if isinstance(each.message, UserMessage) and each.message.message_id.startswith("r_s")
        ]
        assert joined == said[: len(joined)]

    def teardown(self) -> None:
        """However busy the model is, and with nobody to answer its calls, the request comes to its end."""
        if not hasattr(self, "turn"):
            return
        limits = self.turn.limits
        rounds = (
            limits.max_rounds + limits.max_tool_calls + limits.max_consecutive_errors + limits.max_output_repairs + 2
        )
        for number in range(2 * rounds * limits.max_tool_calls):
            command = self.turn.command
            if isinstance(command, Finish):
                return
            if isinstance(command, CallModel):
                self.turn.call(call("clock", f'{{"step": {number}}}'))
            else:
                running = [key for key, each in command.calls.items() if each.status is CallStatus.REQUESTED]
                if running:
                    self.turn.step(completed(running[0], at=self.turn.now))
                else:
                    self.turn.elapse()  # nobody decides
        raise AssertionError("the request does not end")


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    assert isinstance(message, AssistantMessage)
    return message.tool_calls


@pytest.mark.guarantee("G06", "G07", "G08", "G09", "G10")
class TestAnyTurn(AnyTurn.TestCase):
    settings = settings(
        max_examples=80,
        stateful_step_count=25,
        suppress_health_check=[HealthCheck.too_slow],
    )
