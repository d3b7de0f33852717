"""Whole conversations of any kind through runtimes: whatever happens, what is sent is valid, fits, and loses no login."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.wire_oracle import check_wires
from toolbus import Compression, Interceptor, Limits, RequestResult, Runtime, Summarizer, Tool, ToolResult
from toolbus.core.compression import Edit, Fold, HistoryItem
from toolbus.core.tokens import estimate_message, estimate_text, estimate_tools
from toolbus.core.transcript import validate
from toolbus.errors import ContextOverflow, ProviderUnavailable
from toolbus.events import ApprovalDecided, ApprovalRequested, HistoryCompressed, ToolCallRequested
from toolbus.messages import AssistantMessage, ImagePart, Message, SystemMessage, ToolMessage, Usage, UserMessage
from toolbus.protocols import ModelReply, ModelRequest, Provider, Summary, ToolSpec
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, text

PIXEL = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
NAMES = ("look", "move", "login", "fetch", "shot")
ENDINGS = {"completed", "stopped", "failed", "cancelled"}


class Sum:
    """A summarizer that may fail, and may talk too much."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd

    async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
        validate(messages)
        if self.rnd.random() < 0.3:
            raise ProviderUnavailable("away", vendor="test")
        return Summary(text=self.rnd.choice(["", "In short. ", "\ud800 half ", "blah " * 500]) + earlier[:50])


class Masking:
    """A policy that wants anything, anywhere."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd

    def fold(self) -> Fold:
        return self

    def add(self, seen: HistoryItem) -> list[Edit]:
        if self.rnd.random() < 0.7:
            return []
        return [(seen.position + self.rnd.randint(-9, 3), self.rnd.choice(["", "-", "masked " * 30, "\ud800"]))]


class Adding(Interceptor):
    """An application that says a word more to the model."""

    async def around_model(self, request: ModelRequest, context: Any, ask: Any) -> ModelReply:
        return await ask(request)


class Conversation:
    """One run: what the model, the tools and people do is by `rnd`; what is sent is checked on the way."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.window: int | None = rnd.choice([None, 300, 600, 1200, 3000, 8000, 100_000])
        self.count: Any = rnd.choice([None, None, None, len, lambda said: len(said) // 9])
        self.compression = Compression(
            keep_turns=rnd.choice([None, 1, 2, 10]),
            max_context_tokens=self.window,
            summarizer=rnd.choice([None, Sum(rnd), Summarizer()]) if self.window else None,
            tokenizer=self.count,
            policies=rnd.choice([(), (), (Masking(rnd),)]),
        )
        self.views: list[tuple[Sequence[Message], list[Message]]] = []
        self.requested: list[ToolCallRequested] = []
        self.most = rnd.choice([200, 500, 4000])
        self.tools = [self.tool(name) for name in NAMES]
        self.runtimes: list[Runtime] = []
        self.shares = rnd.random() < 0.5  # reports what it counts
        self.reported: list[HistoryCompressed] = []

    def tool(self, name: str) -> Tool:
        kinds: dict[str, Any] = {
            "look": {"kind": "query"},
            "shot": {"kind": "query"},
            "move": {"kind": "action"},
            "login": {"keep_full_results": True},
        }

        async def handler(**_arguments: Any) -> Any:
            rnd = self.rnd
            if rnd.random() < 0.15:
                raise ValueError("broken " * rnd.choice([1, 100]))
            length = rnd.choice([0, 1, 30, 200, 2000])
            said = rnd.choice(["word ", '{"a": [1, 2, 3]} ', "ü€ ", "[[", "x"]) * length
            if name == "login":
                return f"token {rnd.random()} " + said[:200]
            if name == "shot":
                return ToolResult(message=said[:40] or "shot", parts=[PIXEL])
            return said

        schema: dict[str, Any] = {"type": "object", "properties": {"n": {}}}
        return Tool(name, "", schema, handler, validate=lambda _arguments: None, **kinds.get(name, {}))

    # ------------------------------------------------------------------------------------------------ the model

    def model(self, request: ModelRequest, vendor: str) -> Any:
        rnd = self.rnd
        if "You keep the memory" in str(request.messages[0]):
            return text(rnd.choice(["", "It went well.", "on and on " * 200]))
        self.check(request, vendor)
        session = next(found for each in self.runtimes if (found := each.session(request.request_id)))
        does = rnd.random()
        if does < 0.05:
            session.cancel("enough")
        elif does < 0.15:
            session.steer("faster " * rnd.choice([1, 50]))
        elif does < 0.2 and self.requested:
            late = rnd.choice(self.requested)
            self.runtimes[0].bus.publish(late.completed("late " * 30))
        does = rnd.random()
        if does < 0.08:
            raise ContextOverflow("too long", vendor="test", limit_tokens=rnd.choice([None, 0, 500, 2000, 10**6]))
        if does < 0.1:
            raise ProviderUnavailable("away", vendor="test")
        usage = Usage()
        if self.shares:
            usage = Usage(input_tokens=int(1.4 * sum(map(estimate_message, request.messages))) + 60)
        if does < 0.2:
            return text("", usage=usage)
        if does < 0.7:
            return calls(*(self.wanted(request) for _ in range(rnd.randint(1, 4))), usage=usage)
        return text("well " * rnd.choice([1, 20, 200]), usage=usage)

    def wanted(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        name = self.rnd.choice([*NAMES, "read_result", "gone"])
        if name != "read_result":
            return name, {"n": self.rnd.randint(0, 2)}
        there = [each.call_id for each in request.messages if isinstance(each, ToolMessage)]
        return name, {"call_id": self.rnd.choice([*there, "?"]), "offset": self.rnd.choice([0, 100])}

    def check(self, request: ModelRequest, vendor: str) -> None:
        messages = list(request.messages)
        self.views.append((request.messages, messages))
        validate(messages)
        check_wires(messages)
        session = next(found for each in self.runtimes if (found := each.session(request.request_id)))
        whole = list(session.messages)
        logins = [each for each in whole if isinstance(each, ToolMessage) and each.name == "login"]
        sent_logins = [each for each in messages if isinstance(each, ToolMessage) and each.name == "login"]
        assert sent_logins == logins
        prompt = max(place for place, each in enumerate(whole) if each.message_id.endswith("_u"))
        present: list[Message] = [each for each in whole[prompt:] if not isinstance(each, ToolMessage)]
        while prompt and whole[prompt - 1].message_id.startswith("n"):  # what came late
            prompt -= 1
            present.append(whole[prompt])
        assert [each for each in present if each not in messages] == []
        count = self.count or estimate_text
        sent = sum(estimate_message(each, count) for each in messages)
        system = [each for each in messages if each.message_id.endswith("_i")]
        assert sent <= sum(estimate_message(each, count) for each in [*system, *whole])
        if self.window is not None:
            learned = session.snapshot().view.window.calibration
            assert learned is not None
            about = sent + estimate_tools(request.tools, count)
            calibrated = learned.overhead(vendor) + learned.factor(vendor) * about
            assert calibrated <= self.window + 1, f"{calibrated} of {self.window}: {sent} and {about - sent}"

    # ------------------------------------------------------------------------------------------- the conversation

    async def run(self) -> None:
        rnd = self.rnd
        store = MemoryStore()
        first = ScriptedProvider(lambda request: self.model(request, "first:"), vendor="first")
        second = ScriptedProvider(lambda request: self.model(request, "second:"), vendor="second")

        def for_round(number: int) -> Provider | None:
            return second if number % 2 else None

        def some(_spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
            return arguments.get("n") == 1

        ids = ["a", "b"]
        kept: dict[str, list[Message]] = {each: [] for each in ids}
        options: dict[str, Any] = {
            "compression": self.compression,
            "max_result_chars": self.most,
            "late_results": "next_turn",
            "instructions": rnd.choice([None, "Be brief.", "Be long. " * 30]),
            "note_failures": rnd.random() < 0.5,
            "interceptors": rnd.choice([[], [Adding()]]),
            "providers": rnd.choice([[first], [first, second]]),
            "provider_for_round": rnd.choice([None, for_round]),
            "needs_approval": rnd.choice([None, some]),
        }
        async with (
            Runtime(tools=self.tools, store=store, **options) as one,
            Runtime(tools=self.tools, store=store, **options) as other,
        ):
            self.runtimes = [one, other]
            for each in self.runtimes:
                each.bus.connect(ToolCallRequested, self.requested.append)  # type: ignore[arg-type]
                each.bus.connect(ApprovalRequested, self.decider(each))
                each.bus.connect(HistoryCompressed, self.reported.append)  # type: ignore[arg-type]
            for turn in range(rnd.randint(1, 14)):
                conversation_id = rnd.choice(ids)
                more: dict[str, Any] = {}
                if not kept[conversation_id] and rnd.random() < 0.5:
                    more["history"] = kept[conversation_id] = self.plain()
                limits = Limits(
                    max_rounds=rnd.randint(1, 6),
                    on_limit=rnd.choice(["answer", "stop"]),
                    max_consecutive_errors=rnd.choice([1, 5]),
                )
                runtime = rnd.choice(self.runtimes)
                more["output"] = rnd.choice([None, None, list[int]])
                prompt = f"question {turn} " * rnd.choice([1, 1, 60])
                result = await runtime.start(prompt, conversation_id=conversation_id, limits=limits, **more).result()
                self.check_result(result, kept[conversation_id])
                kept[conversation_id] = result.messages
                stored = list(await store.history(conversation_id))
                assert stored == result.messages
        for view, then in self.views:
            assert list(view) == then
        for reported in self.reported:
            assert reported.after_tokens <= reported.before_tokens

    def decider(self, runtime: Runtime) -> Any:
        def decide(event: ApprovalRequested) -> None:
            approved = self.rnd.random() < 0.7
            runtime.bus.publish(ApprovalDecided(request_id=event.request_id, call_id=event.call_id, approved=approved))

        return decide

    def check_result(self, result: RequestResult[Any], before: list[Message]) -> None:
        if isinstance(broken := result.error and result.error.__cause__, AssertionError):
            raise broken
        assert result.outcome in ENDINGS
        assert result.messages[: result.history_count] == before
        assert result.reason not in {"error", "application_error"}, result.error
        validate(result.messages)
        for each in result.new_messages:
            if isinstance(each, ToolMessage):
                record = next(call for call in result.tool_calls if call.call_id == each.call_id)
                assert not record.ok or record.content == each.content

    def plain(self) -> list[Message]:
        made: list[Message] = []
        for number in range(self.rnd.randint(1, 8)):
            made.append(UserMessage(content=f"earlier {number} " * self.rnd.choice([1, 40])))
            if self.rnd.random() < 0.2:
                continue
            if self.rnd.random() < 0.2:
                made.append(SystemMessage(text="a note " * 5))
            made.append(AssistantMessage(text="I said. " * self.rnd.choice([1, 40])))
        return made


@pytest.mark.guarantee("G08")
@given(rnd=st.randoms(use_true_random=False))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_whatever_happens_in_a_conversation_what_is_sent_is_valid_and_fits(rnd: random.Random) -> None:
    asyncio.run(Conversation(rnd).run())
