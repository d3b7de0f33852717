"""What an MCP server asks back: people answer its questions over the bus, and the model its prompts. In both eras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from mcp import MCPError, types

from support.asking_mcp_program import server as asking
from support.mcp_server import ERAS, Caller, Era, FakeMcp, definition, said
from toolbus import Budget, Limits, RequestResult, Runtime, ToolContext, ToolError, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError, ProviderUnavailable
from toolbus.events import ApprovalDecided, ApprovalRequested, ToolCallCompleted, ToolCallFailed
from toolbus.messages import Usage
from toolbus.testing import ScriptedProvider, advance, calls, error, settle, text, virtual_backends
from toolbus.toolsets.mcp import McpServer, McpTools, ask_model, ask_people

anyio_backend = virtual_backends()
eras = pytest.mark.parametrize("era", ERAS)
BOOK = ("asking__book", {"hotel": "Inn"})
PAY: tuple[str, dict[str, Any]] = ("asking__pay", {})
SUM_UP = ("asking__sum_up", {"text": "A long text."})
Decide = Callable[[ApprovalRequested], ApprovalDecided]


def here(era: Era, **options: Any) -> McpServer:
    """The server in this process."""
    return McpServer("asking", connect=lambda: asking, protocol=era, needs_approval=False, **options)


def routed(era: Era) -> McpServer:
    return here(era, on_elicitation=ask_people, on_sampling=ask_model)


def named(question: ApprovalRequested) -> ApprovalDecided:
    """Approve, with a name where one is asked for."""
    answer: dict[str, Any] | None = question.arguments.get("answer")
    edited = None if answer is None else {**question.arguments, "answer": {**answer, "name": "Ada"}}
    return question.decided(approved=True, arguments=edited)


class People:
    """Whoever decides, and what they were asked."""

    def __init__(self, decide: Decide | None = named) -> None:
        self.decide = decide
        self.asked: list[ApprovalRequested] = []

    async def run(self, server: McpServer, *steps: Any, **options: Any) -> RequestResult[Any]:
        """Run a request of these steps with the tools of `server`."""
        async with McpTools([server]) as mcp, Runtime(ScriptedProvider(steps), tools=mcp.registry) as runtime:

            def hear(question: ApprovalRequested) -> None:
                self.asked.append(question)
                if self.decide is not None:
                    runtime.bus.publish(self.decide(question))

            runtime.bus.connect(ApprovalRequested, hear)
            result = await runtime.run("Go.", **options)
            validate(result.messages)
            return result

    async def outcomes(self, server: McpServer, *calls_: Any, **options: Any) -> list[str]:
        """Run a request of these calls, and return what the model reads of each."""
        result = await self.run(server, calls(*calls_), text("Done."), **options)
        return [each.content or each.error for each in result.tool_calls]


@eras
async def test_calls_of_one_reply_that_ask_are_answered_each(era: Era) -> None:
    assert await People().outcomes(routed(era), BOOK, PAY, BOOK) == [
        "Inn: Guest(name='Ada', nights=2, bed='single', note=None)",
        "accept",
        "Inn: Guest(name='Ada', nights=2, bed='single', note=None)",
    ]


@eras
async def test_what_people_deny_is_declined_and_an_answer_that_does_not_fit_is_no_answer(era: Era) -> None:
    def deny(question: ApprovalRequested) -> ApprovalDecided:
        return question.decided(approved=False)

    def as_it_is(question: ApprovalRequested) -> ApprovalDecided:
        return question.decided(approved=True)

    book, pay, sum_up = await People(deny).outcomes(routed(era), BOOK, PAY, SUM_UP)
    assert "elicitation was decline" in book
    assert pay == "decline"
    assert "The user has refused to ask the model." in sum_up
    (book,) = await People(as_it_is).outcomes(routed(era), BOOK)
    assert "cancel" in book  # it lacks the name


@pytest.mark.parametrize(
    "edited",
    [
        *({"answer": each, "messages": each} for each in (None, "yes", 7)),
        *({"answer": [], "messages": [each]} for each in ("Hi", {}, {"role": "user"}, {"role": 1, "content": "Hi"})),
        {"answer": [], "system_prompt": None},
    ],
)
async def test_what_a_person_edits_into_another_form_is_no_answer_and_no_fault_of_ours(
    edited: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def edit(question: ApprovalRequested) -> ApprovalDecided:
        fitting = {name: each for name, each in edited.items() if name in question.arguments}
        return question.decided(approved=True, arguments={**question.arguments, **fitting})

    book, sum_up = await People(edit).outcomes(routed("2026-07-28"), BOOK, SUM_UP)
    assert "cancel" in book
    assert "were edited into another form" in sum_up
    assert not [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


@eras
async def test_a_policy_that_approves_everything_does_not_answer_questions(era: Era) -> None:
    people = People()
    await people.outcomes(routed(era), PAY, needs_approval=False)
    assert [each.name for each in people.asked] == ["mcp_question"]


@eras
async def test_questions_are_for_the_application_s_own_function_and_among_those_that_wait(era: Era) -> None:
    waiting: list[str] = []

    async def decide(question: ApprovalRequested) -> ApprovalDecided:
        waiting.extend(f"{each.name} for {each.arguments['tool']}" for each in runtime.pending_approvals())
        return named(question)

    provider = ScriptedProvider([calls(BOOK), text("Done.")])
    async with McpTools([routed(era)]) as mcp, Runtime(provider, tools=mcp.registry, on_approval=decide) as runtime:
        completed: list[ToolCallCompleted] = []
        runtime.bus.connect(ToolCallCompleted, completed.append)
        result = await runtime.run("Go.")
    assert (completed[0].name, completed[0].content) == ("mcp_question", "answered")
    assert result.tool_calls[0].content == "Inn: Guest(name='Ada', nights=2, bed='single', note=None)"
    assert waiting == ["mcp_question for asking__book"]


@eras
async def test_a_question_that_nobody_can_answer_is_declined_at_once(era: Era) -> None:
    provider = ScriptedProvider([calls(PAY), text("Done.")])
    async with McpTools([routed(era)]) as mcp, Runtime(provider, tools=mcp.registry) as runtime:
        result = await runtime.run("Go.")
    assert (result.tool_calls[0].content, anyio.current_time()) == ("decline", 0)


async def test_a_question_that_a_limit_keeps_from_being_asked_is_dismissed_and_not_declined() -> None:
    people = People()
    used_up = calls(PAY, usage=Usage(input_tokens=10))
    result = await people.run(routed("2026-07-28"), used_up, text("Done."), budget=Budget(max_tokens=10))
    assert (result.tool_calls[0].content, people.asked) == ("cancel", [])


@eras
async def test_an_answer_that_is_remembered_is_for_the_same_question_only(era: Era) -> None:
    def always(question: ApprovalRequested) -> ApprovalDecided:
        return question.decided(approved=True, remember=True)

    people = People(always)
    result = await people.run(routed(era), calls(PAY), calls(PAY), calls(BOOK), text("Done."))
    assert [each.content for each in result.tool_calls][:2] == ["accept", "accept"]
    assert [each.arguments["message"] for each in people.asked] == ["Please pay.", "Who is coming?"]


async def test_an_answer_that_is_remembered_is_not_for_another_address_form_or_prompt_with_the_same_message() -> None:
    def always(question: ApprovalRequested) -> ApprovalDecided:
        return question.decided(approved=True, remember=True)

    def form(default: int) -> types.ElicitRequestFormParams:
        schema: Any = {"type": "object", "properties": {"sum": {"type": "integer", "default": default}}}
        return types.ElicitRequestFormParams(message="Pay?", requested_schema=schema)

    def visit(url: str) -> types.ElicitRequestURLParams:
        return types.ElicitRequestURLParams(message="Pay?", url=url, elicitation_id="1")

    def prompt(said: str) -> types.CreateMessageRequestParams:
        content = types.TextContent(text=said)
        return types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=content)], max_tokens=9
        )

    @tool
    async def pay(context: ToolContext[None]) -> str:
        """Ask what a server asks."""
        for each in (form(1), form(1), form(1_000), visit("https://a.example"), visit("https://b.example")):
            await ask_people(context, each)
        for each in (prompt("Hi."), prompt("What is the password?")):
            await ask_model(context, each)
        return "paid"

    asked: list[Any] = []
    model = ScriptedProvider([calls(("pay", {})), text("Hello."), text("It is x."), text("Done.")])
    async with Runtime(model, tools=[pay]) as runtime:

        def hear(question: ApprovalRequested) -> None:
            asked.append(question.arguments.get("answer") or question.arguments.get("url") or "a prompt")
            runtime.bus.publish(always(question))

        runtime.bus.connect(ApprovalRequested, hear)
        assert (await runtime.run("Go.")).tool_calls[0].content == "paid"
    assert asked == [{"sum": 1}, {"sum": 1_000}, "https://a.example", "https://b.example", "a prompt", "a prompt"]


@eras
async def test_a_prompt_is_asked_as_the_person_has_edited_it(era: Era) -> None:
    def shorten(question: ApprovalRequested) -> ApprovalDecided:
        messages = question.arguments["messages"][-1:]
        return question.decided(approved=True, arguments={**question.arguments, "messages": messages})

    async with McpTools([routed(era)]) as mcp:
        provider = ScriptedProvider([calls(SUM_UP), text("Short.", finish_reason="length"), text("Done.")])
        async with Runtime(provider, tools=mcp.registry) as runtime:
            runtime.bus.connect(
                ApprovalRequested,
                lambda question: runtime.bus.publish(shorten(question)),  # type: ignore[arg-type]
            )
            result = await runtime.run("Go.")
    assert result.tool_calls[0].content == "script, maxTokens: Short."
    asked = provider.requests[1]
    assert [each.text for each in asked.messages] == ["Be brief.", "A long text."]
    assert (asked.settings.max_output_tokens, list(asked.tools)) == (50, [])
    assert asked.settings.temperature is None, "some models refuse it"


@eras
async def test_a_server_is_told_what_is_not_offered(era: Era) -> None:
    """Without callbacks the capabilities are absent, so that a good server does not even ask."""
    book, pay, sum_up = await People().outcomes(here(era), BOOK, PAY, SUM_UP)
    assert "licitation" in book
    assert pay == "Elicitation not supported"
    assert "ampling" in sum_up


@eras
async def test_the_application_may_answer_itself(era: Era, caplog: pytest.LogCaptureFixture) -> None:
    known: list[Any] = []

    async def answer(context: ToolContext[Any], params: types.ElicitRequestParams) -> types.ElicitResult:
        known.append((context.name, context.deps, params.message))
        if context.deps == "raise":
            raise KeyError("hidden")
        if context.deps == "refuse":
            raise ToolError("not at this hour")
        return types.ElicitResult(action="accept", content={"name": context.deps})

    said_, refused, failed = [
        (await People().outcomes(here(era, on_elicitation=answer), BOOK, deps=deps))[0]
        for deps in ("Eve", "refuse", "raise")
    ]
    assert said_ == "Inn: Guest(name='Eve', nights=2, bed='single', note=None)"
    assert "not at this hour" in refused
    assert "the client failed to answer" in failed
    assert "hidden" not in failed
    assert "MCP server asking was not answered" in caplog.text
    assert known == [("asking__book", deps, "Who is coming?") for deps in ("Eve", "refuse", "raise")]


# ---------------------------------------------------------------------------------------------- how long it takes


@eras
async def test_the_call_has_its_time_while_a_person_decides(era: Era) -> None:
    async with McpTools([routed(era)]) as mcp:
        limits = Limits(tool_timeout_seconds=10, timeout_seconds=30)
        provider = ScriptedProvider([calls(PAY), text("Done.")])
        async with Runtime(provider, tools=mcp.registry, limits=limits) as runtime:
            questions: list[ApprovalRequested] = []
            runtime.bus.connect(ApprovalRequested, questions.append)
            session = runtime.start("Go.")
            await advance(600)
            runtime.bus.publish(named(questions[0]))
            result = await session.result()
    assert result.tool_calls[0].content == "accept"


@eras
async def test_a_question_that_nobody_answers_is_declined(era: Era) -> None:
    async with McpTools([routed(era)]) as mcp:
        limits = Limits(approval_timeout_seconds=60)
        async with Runtime(ScriptedProvider([calls(PAY), text("Done.")]), tools=mcp.registry, limits=limits) as runtime:
            runtime.bus.connect(ApprovalRequested, lambda _question: None)
            session = runtime.start("Go.")
            await advance(61)
            result = await session.result()
    assert result.tool_calls[0].content == "decline"


@eras
@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
async def test_a_callback_ends_with_its_call(era: Era, reason: str) -> None:
    happened: list[str] = []

    async def slow(context: ToolContext[Any], params: types.ElicitRequestParams) -> types.ElicitResult:
        happened.append("asked")
        try:
            await anyio.sleep_forever()
        finally:
            happened.append("over")
        raise AssertionError

    async with McpTools([here(era, on_elicitation=slow)]) as mcp:
        limits = Limits(tool_timeout_seconds=10)
        async with Runtime(ScriptedProvider([calls(PAY), text("Done.")]), tools=mcp.registry, limits=limits) as runtime:
            session = runtime.start("Go.")
            await settle()
            assert happened == ["asked"]
            if reason == "cancelled":
                session.cancel("enough")
            else:
                await advance(11)
            result = await session.result()
            await settle()
            assert happened == ["asked", "over"]
    assert result.tool_calls[0].reason == reason


@eras
async def test_people_are_told_that_a_question_is_over_when_its_call_is_cancelled(era: Era) -> None:
    ended: list[ToolCallFailed] = []
    provider = ScriptedProvider([calls(PAY), text("Done.")])
    async with McpTools([routed(era)]) as mcp, Runtime(provider, tools=mcp.registry) as runtime:
        runtime.bus.connect(ToolCallFailed, ended.append)
        runtime.bus.connect(ApprovalRequested, lambda _question: None)
        session = runtime.start("Go.")
        await settle()
        session.cancel("enough")
        await session.result()
        await settle()
    assert {each.name for each in ended} == {"asking__pay", "mcp_question"}


# ---------------------------------------------------------------------------------------------- what is refused


def asks(params: Any) -> FakeMcp:
    """A server whose tool asks back with these parameters, and answers with what came."""

    async def answer(context: Any, call: types.CallToolRequestParams) -> Any:
        if call.input_responses:
            return said(repr(call.input_responses["it"]))
        kind = types.ElicitRequest if hasattr(params, "message") else types.CreateMessageRequest
        return types.InputRequiredResult(input_requests={"it": kind(params=params)})

    return FakeMcp([definition("do", read_only_hint=True)], answer)


def prompt(*messages: types.SamplingMessage) -> types.CreateMessageRequestParams:
    return types.CreateMessageRequestParams(messages=list(messages), max_tokens=5)


TEXT = types.TextContent(text="Hello")
OF_THE_MODEL = types.SamplingMessage(role="assistant", content=TEXT)
IMAGE = types.ImageContent(data="AAAA", mime_type="image/png")
PICTURE = types.SamplingMessage(role="user", content=IMAGE)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (types.ElicitRequestURLParams(message="x" * 70_000, url="https://a.example"), "more than 65536 bytes"),
        (prompt(PICTURE), "more than text"),
        (prompt(types.SamplingMessage(role="user", content=[TEXT, IMAGE])), "more than text"),
        (prompt(OF_THE_MODEL), "not one of the user"),
        (prompt(), "not one of the user"),
        (types.CreateMessageRequestParams(messages=[], max_tokens=0), "max_tokens is 0; it has to be at least 1"),
    ],
    ids=["too large", "a picture", "text and a picture", "of the model", "nothing", "no tokens"],
)
async def test_a_question_that_cannot_be_put_fails_the_call_with_the_reason(params: Any, problem: str) -> None:
    server = asks(params).named("a", "2026-07-28", on_elicitation=ask_people, on_sampling=ask_model)
    (read,) = await People().outcomes(server, ("a__do", {}))
    assert problem in read


async def test_a_field_of_a_form_may_have_any_value() -> None:
    form = {"type": "object", "properties": {"a": True}}
    people = People()
    server = asks(types.ElicitRequestFormParams(message="Which?", requested_schema=form))
    await people.outcomes(server.named("a", "2026-07-28", on_elicitation=ask_people), ("a__do", {}))
    assert [each.arguments["answer"] for each in people.asked] == [{"a": None}]


async def test_a_server_that_asks_outside_of_a_call_is_refused() -> None:
    server = asks(prompt())
    async with McpTools([server.named("a", "legacy", on_elicitation=ask_people)]):
        with pytest.raises(MCPError, match="does not say which call it is about, and 0 calls run"):
            await server.session.elicit_form("Who are you?", {"type": "object", "properties": {}})


VISITS = {"elicitations": [{"mode": "url", "elicitationId": "e", "url": "https://x.example/", "message": "Sign in."}]}


@pytest.mark.parametrize(
    ("data", "approved", "questions", "result"),
    [
        (VISITS, True, 1, "done"),
        (VISITS, False, 1, "sign in first"),
        ({"elicitations": [3]}, True, 0, "sign in first"),
        (["x"], True, 0, "sign in first"),
    ],
)
async def test_an_error_that_asks_for_a_visit_is_a_question_after_which_the_call_is_sent_again(
    data: Any, approved: bool, questions: int, result: str
) -> None:
    called = 0

    async def answer(_context: Any, _params: Any) -> Any:
        nonlocal called
        called += 1
        if called == 1:
            raise MCPError(types.URL_ELICITATION_REQUIRED, "sign in first", data)
        return said("done")

    people = People(lambda question: question.decided(approved=approved))
    server = FakeMcp([definition("do", destructive_hint=False)], answer).named("s", "legacy", on_elicitation=ask_people)
    (outcome,) = await people.outcomes(server, ("s__do", {}))
    assert outcome.startswith(result)
    assert [each.arguments["url"] for each in people.asked] == ["https://x.example/"] * questions


async def test_an_error_that_asks_for_a_visit_is_read_by_the_model_where_nobody_can_be_asked() -> None:
    async def answer(_context: Any, _params: Any) -> Any:
        raise MCPError(types.URL_ELICITATION_REQUIRED, "sign in first", VISITS)

    async with McpTools([FakeMcp([definition("do")], answer).named("s", "legacy")]) as mcp:
        assert (await Caller(mcp.registry).failed("s__do")).error.startswith("sign in first")


@pytest.mark.parametrize(
    ("asked", "error"), [(15, ""), (21, "Server returned InputRequiredResult for more than 20 rounds")]
)
async def test_a_server_may_ask_back_as_often_as_the_bound(
    asked: int, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolbus.toolsets.mcp._transport._MAX_ROUNDS", 20)
    rounds = 0

    async def answer(_context: Any, _params: Any) -> Any:
        nonlocal rounds
        rounds += 1
        return said("done") if rounds > asked else types.InputRequiredResult(request_state=str(rounds))

    async with McpTools([FakeMcp([definition("do")], answer).named("s", "2026-07-28")]) as mcp:
        ended = await Caller(mcp.registry)("s__do")
    assert getattr(ended, "error", "").rpartition("used: ")[2] == error


async def test_a_model_that_gives_no_answer_is_reported_to_the_server() -> None:
    server = asks(prompt(types.SamplingMessage(role="user", content=TEXT)))
    result = await People().run(
        server.named("a", "2026-07-28", on_sampling=ask_model),
        calls(("a__do", {})),
        error(ProviderUnavailable("away", vendor="script")),
        text("Done."),
        limits=Limits(max_model_attempts=1),
    )
    assert "the model gave no answer: failed" in result.tool_calls[0].error


@pytest.mark.parametrize("option", ["on_elicitation", "on_sampling"])
@pytest.mark.parametrize("given", ["ask", lambda: None])
def test_a_callback_that_cannot_be_called_is_refused(option: str, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} is .*pass an async function"):
        McpServer("a", url="https://a.example/mcp", **{option: given})
