"""Secrets: handlers get them, and nobody else is told: not the model, no listener, no store, no log."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from pydantic import BaseModel, Field, Secret, SecretBytes, SecretStr, field_serializer

import toolbus
from support import secret_scene as scene
from support.journaled import JournaledStore
from support.secret_scene import SecretScene, entry_bytes, leaks
from toolbus import (
    EventBus,
    Interceptor,
    Limits,
    RequestSession,
    Runtime,
    Tool,
    ToolContext,
    ToolDispatcher,
    ToolRegistry,
    tool,
)
from toolbus._logs import LOGGERS
from toolbus.errors import ConfigurationError, UnserializableResult
from toolbus.events import (
    ApprovalRequested,
    Artifact,
    Event,
    StatusChanged,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallRequested,
    encode,
)
from toolbus.messages import AssistantMessage, ToolCall, UserMessage
from toolbus.protocols import ModelReply, ModelRequest, ToolSpec
from toolbus.secrets import REFERENCE, GivenSecrets
from toolbus.secrets._log_filter import hide_in_log
from toolbus.testing import ScriptedProvider, calls, record, replay, text
from toolbus.tool_results import ToolResult, render, settled
from toolbus.toolsets.sub_request import sub_request_tool

VALUE = "swordfish-1234"


def is_reference(given: Any) -> bool:
    return REFERENCE.fullmatch(given) is not None


def references(request: ModelRequest) -> list[str]:
    return REFERENCE.findall(repr(list(request.messages)))


def heard(bus: EventBus, *kinds: type[Event]) -> list[Any]:
    events: list[Any] = []
    bus.connect(kinds or (Event,), events.append)
    return events


@tool
async def login() -> dict[str, Any]:
    """Log in."""
    return {"token": SecretStr(VALUE)}


class Taker:
    """A tool that takes a secret, and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.tool = Tool(handler=self.take)

    async def take(self, token: SecretStr, note: str = "") -> str:
        """Take a secret."""
        self.got += [token.get_secret_value(), note]
        return "taken"


class Door(BaseModel):
    door: int


# ------------------------------------------------------------------------------------------------- the canaries


async def test_no_canary_is_reported_anywhere_and_handlers_get_all_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    store = JournaledStore()
    played = SecretScene(store)
    await played.play()
    reported = played.reported()
    reported["the journal"] = entry_bytes(store.entries)
    reported["the store"] = repr(await store.history("ada")).encode()
    reported["the terminal"] = "".join(capfd.readouterr()).encode()
    assert {place: found for place, data in reported.items() if (found := leaks(data))} == {}
    got = played.delivered
    assert got["login"][0] == scene.INVENTED
    assert is_reference(got["login"][1])
    assert got["fetch"][:3] == [scene.TOKEN, scene.KEY_BYTES, f"Bearer {scene.TOKEN}"]
    assert is_reference(got["fetch"][3])
    entered = sorted(got["enter"])
    assert entered[1:] == [(scene.PIN, "ada"), (scene.PIN + 1, "made up")]
    assert entered[0][0] == 1
    assert is_reference(entered[0][1])
    assert [got[name] for name in ("flaky", "lookup", "find")] == [[scene.TOKEN] * 2, [scene.TOKEN], [scene.TOKEN]]
    assert got["change"] == [scene.TYPED]
    assert "".join(played.pieces[0]).endswith(played.texts[0])
    assert reported["events"].count(b'"text_delta"') > 40, "its text is streamed all the same"
    assert {"tool_call_retrying", "tool_call_progress", "tool_arguments_delta", "status_changed"} <= played.kinds()
    assert b"Traceback" in reported["the log"]


def test_a_leak_would_be_found() -> None:
    value = scene.TOKEN
    for data in (value, json.dumps([value]), json.dumps(json.dumps(value)), repr(value), value.encode().hex()):
        assert leaks(data.encode()) == [value]
    assert leaks(b"harmless, and Basic dXNlcjpwYXNzd29yZA==") == []


# ---------------------------------------------------------------------------------------------------- references


async def test_a_reference_is_the_same_for_the_same_value_and_another_in_another_conversation() -> None:
    script = [calls(("login", {}), ("login", {})), text("ok"), calls(("login", {})), text("ok")]
    async with Runtime(ScriptedProvider([*script, *script[:2]]), tools=[login]) as runtime:
        turns = [await runtime.run("go", conversation_id=name) for name in ("a", "a", "b")]
    tokens = [[call.data["token"] for call in turn.tool_calls] for turn in turns]
    assert len({*tokens[0], *tokens[1]}) == 1
    assert tokens[0] != tokens[2]
    assert all(map(is_reference, tokens[0]))


@pytest.mark.parametrize("first", ["request", "sub-request"])
async def test_a_request_and_those_below_it_have_the_same_references(first: str) -> None:
    taker = Taker()

    def finds(request: ModelRequest) -> Any:
        return calls(("login", {})) if request.round == 0 else text(f"It is {references(request)[-1]}.")

    def uses(request: ModelRequest) -> Any:
        return calls(("take", {"token": references(request)[-1]})) if request.round == 0 else text("Used.")

    def above(request: ModelRequest) -> Any:
        if request.round == 0:
            return calls(("login", {})) if first == "request" else calls(("desk", {"task": "find it"}))
        if request.round == 1:
            own = ("desk", {"task": f"use {references(request)[-1]}"})
            return calls(own if first == "request" else ("take", {"token": references(request)[-1]}))
        return text("Done.")

    below = ScriptedProvider(uses if first == "request" else finds)
    desk = sub_request_tool("desk", "Does it.", provider=below, tools=[login, taker.tool])
    async with Runtime(ScriptedProvider(above), tools=[login, taker.tool, desk]) as runtime:
        result = await runtime.run("Go.")
    assert (result.text, taker.got) == ("Done.", [VALUE, ""])


async def test_a_request_below_hides_what_the_one_above_it_knows_though_its_own_tools_take_no_secrets() -> None:
    @tool
    async def peek() -> str:
        """Look at a note."""
        return f"The note says {VALUE}."

    below = ScriptedProvider([calls(("peek", {})), text("Seen.")])
    desk = sub_request_tool("desk", "Does it.", provider=below, tools=[peek])
    script = [calls(("login", {})), calls(("desk", {"task": "read the note"})), text("Done.")]
    async with Runtime(ScriptedProvider(script), tools=[login, desk]) as runtime:
        await runtime.run("go")
    assert len(below.requests) == 2
    assert VALUE not in repr(below.requests)


async def test_a_tool_that_is_added_while_a_request_with_secrets_runs_can_be_called() -> None:
    taker = Taker()

    @tool
    async def learn(pin: SecretStr) -> str:
        """Learn to take."""
        registry.add(taker.tool)
        return f"learnt with {len(pin)} characters"

    registry = ToolRegistry([learn])
    script = [calls(("learn", {"pin": VALUE})), calls(("take", {"token": VALUE})), text("ok")]
    async with Runtime(ScriptedProvider(script), tools=registry) as runtime:
        result = await runtime.run("go")
    assert [each.reason for each in result.tool_calls] == ["", ""]
    assert taker.got == [VALUE, ""]


async def test_a_reference_of_another_conversation_is_refused_with_a_reason() -> None:
    taker = Taker()

    def use(request: ModelRequest) -> Any:
        return calls(("take", {"token": references(request)[-1]}))

    script = [calls(("login", {})), text("ok"), use, text("ok")]
    async with Runtime(ScriptedProvider(script), tools=[login, taker.tool]) as runtime:
        token = (await runtime.run("go", conversation_id="a")).tool_calls[0].data["token"]
        (call,) = (await runtime.run(token, conversation_id="b")).tool_calls
    assert (call.reason, taker.got) == ("invalid_arguments", [])
    assert f"the secret of {token} is no longer known" in call.error


async def test_a_value_is_checked_by_the_tools_schema_and_not_its_reference() -> None:
    seen: list[Any] = []

    def enter(pin: int, code: str) -> str:
        seen.append((pin, code))
        return "in"

    schema = {
        "type": "object",
        "properties": {
            "pin": {"type": "integer", "maximum": 9999, "writeOnly": True},
            "code": {"type": "string", "maxLength": 8, "writeOnly": True},
        },
    }
    script = [
        calls(("enter", {"pin": 4711, "code": "abcdefgh"}), ("enter", {"pin": 47110815, "code": "abcdefgh-too-long"})),
        text("ok"),
    ]
    bus = EventBus()
    events = heard(bus)
    async with Runtime(ScriptedProvider(script), tools=[Tool("enter", "", schema, enter)], bus=bus) as runtime:
        first, second = (await runtime.run("go")).tool_calls
    assert seen == [(4711, "abcdefgh")]
    assert first.arguments is not None
    assert is_reference(first.arguments["pin"])
    assert is_reference(first.arguments["code"])
    assert second.reason == "invalid_arguments"
    assert "is longer than 8 characters" in second.error
    by_itself = rb"abcdefgh|(?<![\w.])4711(?![\w.])"  # and not by chance in a time or a reference
    assert not any(re.search(by_itself, encode(event)) for event in events)


@pytest.mark.guarantee("G26")
async def test_nobody_is_asked_to_approve_a_call_with_secrets_whose_arguments_are_invalid() -> None:
    asked: list[ApprovalRequested] = []
    entered: list[str] = []

    @tool(needs_approval=True)
    async def enter(pin: Annotated[SecretStr, Field(max_length=4)], door: int) -> str:
        """Enter."""
        entered.append(pin.get_secret_value())
        return f"in by {door}"

    wrong = [{"pin": "47110815", "door": 1}, {"pin": "4711", "door": "front"}, {"pin": 4711, "door": 1}, {"door": 1}]
    script = [calls(*(("enter", each) for each in wrong)), calls(("enter", {"pin": "4711", "door": 1})), text("ok")]
    async with Runtime(ScriptedProvider(script), tools=[enter]) as runtime:

        def approve(question: ApprovalRequested) -> None:
            asked.append(question)
            runtime.bus.publish(question.decided(approved=True))

        runtime.bus.connect(ApprovalRequested, approve)
        result = await runtime.run("Let me in.", limits=Limits(max_consecutive_errors=9))
    assert [each.reason for each in result.tool_calls] == ["invalid_arguments"] * 4 + [""]
    assert [each.arguments["door"] for each in asked] == [1]
    assert entered == ["4711"]


async def test_an_output_with_secrets_is_given_whole_to_who_asked_and_to_nobody_else() -> None:
    class Account(BaseModel):
        user: str
        password: SecretStr

    account = {"user": "ada", "password": VALUE}
    bus = EventBus()
    events = heard(bus)
    script = [calls(("final_answer", account)), text(f"So:\n```json\n{json.dumps(account)}\n```")]
    async with Runtime(ScriptedProvider(script), bus=bus) as runtime:
        for _ in range(2):
            result = await runtime.run("Make one up.", output=Account)
            assert result.output.password.get_secret_value() == VALUE
            assert is_reference(json.loads(re.search(r"\{.*\}", result.text)[0])["password"])  # type: ignore[index]
    assert not any(VALUE.encode() in encode(event) for event in events)
    assert not any(isinstance(event, TextDelta) for event in events)


async def test_an_output_without_secrets_is_returned_as_it_is_beside_tools_that_take_some() -> None:
    taker = Taker()
    script = [calls(("take", {"token": VALUE})), calls(("final_answer", {"door": 7}))]
    async with Runtime(ScriptedProvider(script), tools=[taker.tool]) as runtime:
        result = await runtime.run("Which door?", output=Door)
    assert (result.output, taker.got) == (Door(door=7), [VALUE, ""])


# ------------------------------------------------------------------------------------------------- the model's reply


async def test_pieces_of_arguments_with_secrets_are_not_told_and_those_of_others_are() -> None:
    bus = EventBus()
    pieces, statuses = heard(bus, ToolArgumentsDelta), heard(bus, StatusChanged)
    taker = Taker()
    script = [calls(("take", {"token": VALUE}), ("login", {})), text("ok")]
    async with Runtime(ScriptedProvider(script), tools=[login, taker.tool], bus=bus) as runtime:
        await runtime.run("go")
    assert taker.got == [VALUE, ""]
    assert {piece.name for piece in pieces} == {"login"}
    assert [status.stage for status in statuses][:2] == ["submitted", "streaming"]


class Once(Interceptor):
    async def before_tool(self, name: str, arguments: dict[str, Any], context: Any) -> dict[str, Any]:
        assert VALUE not in repr(arguments), "an interceptor sees references"
        return {**arguments, "token": "put-there-later", "note": VALUE}


async def test_what_an_interceptor_puts_into_a_marked_field_is_hidden_as_well() -> None:
    bus = EventBus()
    events = heard(bus)
    taker = Taker()
    script = [calls(("take", {"token": VALUE})), text("ok")]
    async with Runtime(ScriptedProvider(script), tools=[taker.tool], bus=bus, interceptors=[Once()]) as runtime:
        await runtime.run("go")
    assert taker.got[0] == "put-there-later"
    assert is_reference(taker.got[1])
    assert not any(re.search(rb"swordfish|put-there", encode(event)) for event in events)


async def test_what_a_vendor_keeps_beside_a_message_goes_when_the_message_was_changed() -> None:
    class Vendor:
        vendor = "vendor"

        async def respond(self, request: ModelRequest, emit: Any) -> ModelReply:
            if request.round:
                return ModelReply(message=AssistantMessage(text="ok", vendor_data={"vendor": ["kept"]}))
            call = ToolCall(name="take", arguments=json.dumps({"token": VALUE}))
            return ModelReply(message=AssistantMessage(tool_calls=(call,), vendor_data={"vendor": [VALUE]}))

    async with Runtime(Vendor(), tools=[Taker().tool]) as runtime:
        _, asked, _, answer = (await runtime.run("go")).messages
    assert isinstance(asked, AssistantMessage)
    assert asked.vendor_data is None
    assert isinstance(answer, AssistantMessage)
    assert answer.vendor_data == {"vendor": ["kept"]}


# ---------------------------------------------------------------------------------------------- around the dispatcher


async def test_a_result_from_the_cache_has_the_references_of_who_asks() -> None:
    runs: list[int] = []
    taker = Taker()

    @tool(cache_seconds=60)
    async def open_door() -> dict[str, Any]:
        """Open a door."""
        runs.append(1)
        return {"key": SecretStr(VALUE)}

    def use(request: ModelRequest) -> Any:
        return calls(("take", {"token": references(request)[-1]}))

    script = [calls(("open_door", {})), use, text("ok")]
    async with Runtime(ScriptedProvider([*script, *script]), tools=[open_door, taker.tool]) as runtime:
        results = [await runtime.run("go") for _ in range(2)]
    assert (len(runs), taker.got) == (1, [VALUE, "", VALUE, ""])
    assert results[0].tool_calls[0].data != results[1].tool_calls[0].data


async def test_a_model_that_a_tool_returns_has_references_at_every_depth() -> None:
    class Account(BaseModel):
        user: str
        keys: list[SecretStr]
        place: tuple[int, int] = (2, 3)

        @field_serializer("place", when_used="json")
        def _place_in_json(self, place: tuple[int, int]) -> dict[str, int]:
            return dict(zip("xy", place, strict=True))

    @tool
    async def open_account() -> Account:
        """Open an account."""
        return Account(user="ada", keys=[SecretStr(VALUE)])

    def use(request: ModelRequest) -> Any:
        return calls(("take", {"token": references(request)[-1]}))

    taker = Taker()
    provider = ScriptedProvider([calls(("open_account", {})), use, text("ok")])
    async with Runtime(provider, tools=[open_account, taker.tool]) as runtime:
        opened, _ = (await runtime.run("go")).tool_calls
    assert taker.got == [VALUE, ""]
    assert opened.data["place"] == {"x": 2, "y": 3}


async def test_a_result_without_a_request_in_this_process_has_a_mask() -> None:
    bus = EventBus()
    completed = heard(bus, ToolCallCompleted)
    async with ToolDispatcher(bus, ToolRegistry([login])):
        mailbox = bus.arbitration.open_mailbox("far")
        bus.arbitration.open_calls(mailbox, ["1"])
        request = ToolCallRequested(
            request_id="far", call_id="1", name="login", arguments={}, round=0, timeout_seconds=5, idempotency_key="1"
        )
        bus.publish(request)
        with anyio.fail_after(30):
            await mailbox.wait()
        bus.arbitration.close_mailbox(mailbox)
    assert completed[0].data == {"token": "•••"}


@pytest.mark.usefixtures("toolbus_clock")
async def test_a_result_that_comes_after_its_request_is_reported_without_secrets() -> None:
    bus = EventBus()
    late = heard(bus, ToolCallLate)
    go_on = anyio.Event()

    @tool(timeout_seconds=0.01)
    async def slow() -> str:
        """Take its time, whoever cancels it."""
        with anyio.CancelScope(shield=True):
            await go_on.wait()
        raise ValueError(VALUE)

    async with Runtime(ScriptedProvider([calls(("slow", {})), text("ok")]), tools=[slow], bus=bus) as runtime:
        result = await runtime.run("go", secrets=[VALUE])
        assert result.tool_calls[0].reason == "timeout"
        go_on.set()
        with anyio.fail_after(30):
            while not late:
                await anyio.lowlevel.checkpoint()
    assert VALUE not in repr(late)


async def test_whoever_answers_on_the_bus_is_heard_without_secrets() -> None:
    bus = EventBus()
    events = heard(bus)

    def answer(event: ToolCallRequested) -> None:
        bus.publish(event.completed(f"it is {VALUE}", data={VALUE: [VALUE]}))

    bus.connect(ToolCallRequested, answer)
    spec = ToolSpec(name="ask", external=True)
    script = ScriptedProvider([calls(("ask", {})), text("ok")])
    session = RequestSession(
        bus, script, [UserMessage(content=f"earlier {VALUE}"), UserMessage(content="go")], tools=[spec], secrets=[VALUE]
    )
    session.steer(f"and {VALUE}")
    result = await session.run()
    assert VALUE not in repr(result)
    assert not any(VALUE.encode() in encode(event) for event in events)


@tool
async def delegate(context: ToolContext[None]) -> str:
    """Let a sub-request log in."""
    script = ScriptedProvider([calls(("login", {})), text("Done.")])
    return (await context.ask("Log in.", provider=script, tools=[login])).text


@pytest.mark.parametrize(
    "first", [("login", {}), ("delegate", {}), ("take", {"token": VALUE})], ids=["login", "delegate", "take"]
)
async def test_a_secret_that_comes_in_the_middle_of_a_request_is_hidden_in_what_others_publish(
    first: tuple[str, dict[str, Any]],
) -> None:
    bus = EventBus()
    events = heard(bus)

    def answer(event: ToolCallRequested) -> None:
        if event.name == "ask":
            bus.publish(event.completed(f"it is {VALUE}"))

    bus.connect(ToolCallRequested, answer)
    ask: Tool = Tool("ask", "Ask elsewhere.", {"type": "object"}, external=True, validate=lambda _given: None)
    script = ScriptedProvider([calls(first), calls(("ask", {})), text("ok")])
    async with Runtime(script, tools=[login, delegate, ask, Taker().tool], bus=bus) as runtime:
        result = await runtime.run("go")
    assert is_reference(result.tool_calls[1].content.removeprefix("it is "))
    assert not any(VALUE.encode() in encode(event) for event in events)


# ------------------------------------------------------------------------------------------------- the edges


@pytest.mark.parametrize("wrong", [["abc"], VALUE, [1], [SecretStr("x")]], ids=repr)
def test_secrets_that_are_none_are_refused_without_being_shown(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="pass a list of strings or SecretStr, each of at least 4") as refused:
        Runtime(ScriptedProvider([]), secrets=wrong)
    assert VALUE not in str(refused.value)


def test_each_secret_of_a_result_has_its_own_mark_also_beside_text_that_json_cannot_carry() -> None:
    kept = Artifact(name="a", content=SecretStr("in an artifact"))  # pyright: ignore[reportArgumentType]
    data = {"odd": "\ud800", "value": SecretStr("in the data"), "others": [SecretStr("in a list"), 7, None]}
    result = ToolResult(
        message=SecretStr("in the message"), data=data, artifacts=[kept], affected=[SecretStr("changed")]
    )  # pyright: ignore[reportArgumentType]
    reported = settled(render(result), lambda value: f"<{value}>")
    assert (reported.message, reported.affected) == ("<in the message>", ("<changed>",))
    assert reported.data["value"] == "<in the data>"
    assert reported.data["others"] == ["<in a list>", 7, None]
    assert reported.artifacts[0].content == "<in an artifact>"
    assert json.loads(reported.content)["message"] == "<in the message>"
    assert not reported.secrets


class Key(BaseModel):
    key: SecretBytes = SecretBytes(b"\xff")


@pytest.mark.parametrize(
    "value",
    [
        Key().key,
        [Key().key],
        Key(),
        ["\ud800", Key()],
        ToolResult(data=Key()),
        ToolResult(message=Key().key),  # pyright: ignore[reportArgumentType]
    ],
    ids=["bare", "in a list", "in a model", "beside half a character", "as data", "as message"],
)
def test_a_secret_of_a_result_that_is_no_text_is_refused_in_one_sentence(value: Any) -> None:
    with pytest.raises(UnserializableResult) as refused:
        render(value)
    assert str(refused.value) == (
        "the tool returned a SecretBytes that is not UTF-8 text; return a SecretStr of base64 text"
    )


def test_a_secret_integer_that_python_does_not_write_is_refused_in_one_sentence() -> None:
    assert render({"n": Secret[int](10**4_299)}).secrets == (10**4_299,)
    for value in (Secret[int](10**4_300), {"n": Secret[list[int]]([10**4_300])}):
        with pytest.raises(
            UnserializableResult, match=r"^the tool returned a secret integer of over 4,300 digits; return"
        ):
            render(value)


async def test_a_request_without_secrets_keeps_none() -> None:
    made: list[Any] = []

    @tool
    async def look(city: str) -> dict[str, Any]:
        """Look."""
        made.extend(runtime.session(each).snapshot().view.secrets.vault for each in list(runtime._requests.sessions))  # type: ignore[union-attr]
        return {"city": city}

    async with Runtime(ScriptedProvider([calls(("look", {"city": "Paris"})), text("ok")]), tools=[look]) as runtime:
        await runtime.run("go")
    assert made == [None]


@pytest.mark.parametrize("names_request", [True, False])
async def test_log_lines_are_written_without_secrets_in_any_part_of_them(
    names_request: bool, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("toolbus.session")

    @tool
    async def use(token: SecretStr, context: ToolContext[None]) -> str:
        """Use a secret."""
        extra = {"request_id": context.request_id} if names_request else {}
        logger.warning("plain", extra=extra)
        logger.warning("the token is %s", "swordfish-1234", extra=extra, stack_info=True)
        logger.warning("%d tokens", "swordfish-1234", extra=extra)
        try:
            raise ValueError(token.get_secret_value())
        except ValueError:
            logger.exception("it failed", extra=extra)
        return "used"

    script = [calls(("use", {"token": VALUE})), text("ok")]
    async with Runtime(ScriptedProvider(script), tools=[use]) as runtime:
        await runtime.run("go")
    logger.warning("of another", extra={"request_id": "of another"})
    assert caplog.messages[-1] == "of another"
    plain, said, wrong, failed = [each for each in caplog.records if each.funcName == "use"]
    assert plain.getMessage() == "plain"
    assert is_reference(said.getMessage().removeprefix("the token is "))
    assert 'logger.warning("the token is %s", "secret:' in str(said.stack_info)
    assert wrong.getMessage().startswith("'%d tokens' with ('secret:")
    assert "ValueError: secret:" in str(failed.exc_text)
    assert VALUE not in caplog.text


@pytest.mark.parametrize("extra", [{"request_id": "r"}, {}])
def test_a_line_may_be_logged_in_a_thread_while_requests_get_secrets(extra: dict[str, str]) -> None:
    kept: list[Any] = []

    class Keeper:
        @property
        def vault(self) -> None:
            for request_id in ("r", f"another {len(kept)}"):
                keeper: Any = GivenSecrets([], request_id, "c")
                kept.append(keeper)

    for _ in range(2):
        keeper: Any = Keeper()
        kept.append((keeper, hide_in_log("r", keeper)))
    logging.getLogger("toolbus.session").warning("plain", extra=extra)
    assert len(kept) == 6


def test_every_logger_of_toolbus_is_known_to_the_filter() -> None:
    source = Path(toolbus.__file__).parent
    found = {
        name
        for path in source.rglob("*.py")
        if not path.is_relative_to(source / "cli") and path.name != "logs.py"
        for name in re.findall(r'getLogger\("(toolbus[.\w]*)"\)', path.read_text(encoding="utf-8"))
    }
    assert found == set(LOGGERS)


@pytest.mark.parametrize("where", ["on_prompt", "around_model"])
async def test_a_failure_is_reported_without_secrets_whoever_words_it(where: str) -> None:
    async def fail(*_arguments: Any) -> Any:
        raise ValueError(f"not {VALUE}")

    bus = EventBus()
    events = heard(bus)
    nosy = type("Nosy", (Interceptor,), {where: fail})()
    async with Runtime(ScriptedProvider([]), bus=bus, secrets=[VALUE], interceptors=[nosy]) as runtime:
        result = await runtime.start("go").result()
    assert result.outcome == "failed"
    assert VALUE not in str(result.error)
    assert VALUE not in result.timeline()
    assert not any(VALUE.encode() in encode(event) or isinstance(event, ToolCallFailed) for event in events)


@pytest.mark.parametrize("mask", [False, True])
async def test_a_recording_of_secrets_replays_though_nobody_knows_them_any_more(tmp_path: Path, mask: bool) -> None:
    def use(request: ModelRequest) -> Any:
        return calls(("take", {"token": references(request)[-1]}), ("take", {"token": "made-up", "note": "n"}))

    script = ScriptedProvider([calls(("login", {})), use, text("ok")])
    path = tmp_path / "secrets.jsonl"
    async with Runtime(script, tools=[login, Taker().tool]) as runtime:
        with record(path, runtime, mask=mask):
            await runtime.run("go")
    assert not re.search(rb"swordfish|made-up", path.read_bytes())
    (result,) = (await replay(path)).results
    assert result is not None
    assert result.text == "ok"
