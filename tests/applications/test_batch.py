"""A small application, written with the public documentation: 50 questions, five at a time, under one budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from toolbus import Budget, Limits, Runtime
from toolbus.errors import ProviderUnavailable
from toolbus.messages import AssistantMessage, Usage
from toolbus.protocols import Emit, ModelReply, ModelRequest, Provider
from toolbus.testing import virtual_backends

anyio_backend = virtual_backends()

QUESTIONS = [f"Question {number}?" for number in range(50)]


# --------------------------------------------------------------------------------------------- the application


@dataclass
class Batch:
    """The answers, and the questions that have none, each with the reason."""

    answers: dict[str, str] = field(default_factory=dict[str, str])
    left: dict[str, str] = field(default_factory=dict[str, str])


async def answer_all(model: Provider | str, questions: Sequence[str], budget: Budget) -> Batch:
    """Answer the questions, five at a time, as far as the budget goes."""
    batch = Batch()
    async with Runtime(model, max_sessions=5, budget=budget, limits=Limits(max_model_attempts=1)) as runtime:
        sessions = [runtime.start(question) for question in questions]
        for question, session in zip(questions, sessions, strict=True):
            result = await session.result()
            if result.ok:
                batch.answers[question] = result.text
            else:
                batch.left[question] = result.limit or result.reason
    return batch


# -------------------------------------------------------------------------------------------------- the tests


class Office:
    """A model that takes a second and 100 tokens for an answer, and is closed for some questions."""

    vendor = "office"

    def __init__(self, *closed_for: str) -> None:
        self.closed_for = closed_for
        self.asked = self.at_once = self.most_at_once = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        question = request.messages[-1].text
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await anyio.sleep(1)
        finally:
            self.at_once -= 1
        if question in self.closed_for:
            raise ProviderUnavailable("closed", vendor="office")
        usage = Usage(input_tokens=80, output_tokens=20)
        return ModelReply(message=AssistantMessage(text=f"Re: {question}"), usage=usage)


async def test_fifty_questions_are_answered_five_at_a_time() -> None:
    office, budget = Office(), Budget(max_tokens=1_000_000)
    began = anyio.current_time()
    batch = await answer_all(office, QUESTIONS, budget)
    assert batch.answers == {question: f"Re: {question}" for question in QUESTIONS}
    assert (office.most_at_once, anyio.current_time() - began) == (5, 10)
    assert (batch.left, budget.tokens) == ({}, 5_000)


async def test_the_budget_ends_the_batch_and_says_what_is_left_for_the_next_one() -> None:
    office, budget = Office(), Budget(max_tokens=2_050)
    batch = await answer_all(office, QUESTIONS, budget)
    assert list(batch.answers) == QUESTIONS[: len(batch.answers)]
    assert list(batch.left) == QUESTIONS[len(batch.answers) :]
    assert set(batch.left.values()) == {"budget.max_tokens"}
    assert 2_050 <= budget.tokens <= 2_050 + 5 * 100  # by one call of each request that runs
    assert office.asked == len(batch.answers)  # nothing is asked that nobody pays for
    rest = await answer_all(office, [*batch.left], Budget(max_tokens=1_000_000))
    assert sorted([*batch.answers, *rest.answers]) == sorted(QUESTIONS)


async def test_a_question_that_fails_costs_none_of_the_others() -> None:
    batch = await answer_all(Office(QUESTIONS[7], QUESTIONS[8]), QUESTIONS, Budget(max_tokens=1_000_000))
    assert batch.left == {QUESTIONS[7]: "provider_unavailable", QUESTIONS[8]: "provider_unavailable"}
    assert len(batch.answers) == 48
