"""Secrets that the application names: they work again after a restart, and a reference says nothing of its value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from support.journaled import JournaledStore
from support.secret_scene import entry_bytes
from toolbus import Compression, Interceptor, Runtime, Summarizer, Tool, tool
from toolbus.errors import ConfigurationError, ProviderRejected, ToolError
from toolbus.events import Event, ToolCallCompleted, ToolCallLate, ToolCallRequested, encode
from toolbus.messages import AssistantMessage, ToolMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.remote import Client
from toolbus.secrets import REFERENCE, NamedSecret, Vault
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, error, hang, settle, text, virtual_backends
from toolbus.tool_results import render

anyio_backend = virtual_backends()

VALUE, OTHER = "hunter2-hunter2", "swordfish-1234"
USED: list[str] = []


@pytest.fixture(autouse=True)
def used() -> None:
    USED.clear()


@tool(idempotent=True)
async def login(password: SecretStr) -> str:
    """Log in."""
    USED.append(password.get_secret_value())
    return "ok"


def logs_in(place: int = 0) -> Any:
    """A model that uses a reference from what it was sent, and then tells what it has read of that."""

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            return text(last.content)
        found = REFERENCE.findall(repr(list(request.messages)))
        return calls(("login", {"password": found[place]}))

    return ScriptedProvider(reply)


async def left(store: Any, prompt: str = "go", **options: Any) -> None:
    """A process begins a request, and is gone."""
    with anyio.CancelScope() as host:
        async with Runtime(ScriptedProvider([hang()]), tools=[login], store=store, **options) as runtime:
            runtime.start(prompt, conversation_id="c")
            await settle()
            host.cancel()
            await anyio.sleep_forever()


async def resumed(store: Any, provider: Any, **options: Any) -> str:
    async with Runtime(provider, tools=[login], store=store, **options) as runtime:
        (result,) = [await each.result() for each in await runtime.resume()]
    return result.text


# ------------------------------------------------------------------------------------------------ in instructions


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("secrets", [[VALUE], [SecretStr(VALUE)], [("mail", VALUE)], [("mail", SecretStr(VALUE))]])
async def test_a_secret_in_instructions_works_in_a_request_that_goes_on(secrets: Sequence[NamedSecret]) -> None:
    store = JournaledStore()
    options: dict[str, Any] = {"instructions": f"The password is {VALUE}.", "secrets": secrets}
    await left(store, **options)
    await left_again(store, **options)
    assert await resumed(store, logs_in(), **options) == "ok"
    assert USED == [VALUE]
    assert VALUE.encode() not in entry_bytes(store.entries)


async def left_again(store: Any, **options: Any) -> None:
    """A second process goes on with it, and is gone as well."""
    with anyio.CancelScope() as host:
        async with Runtime(ScriptedProvider([hang()]), tools=[login], store=store, **options) as runtime:
            assert len(await runtime.resume()) == 1
            await settle()
            host.cancel()
            await anyio.sleep_forever()


async def test_of_several_secrets_in_instructions_each_is_known_by_its_place_whatever_their_order() -> None:
    store, instructions = JournaledStore(), f"For mail {VALUE}, for the bank {OTHER}."
    await left(store, instructions=instructions, secrets=[VALUE, OTHER])
    assert await resumed(store, logs_in(1), instructions=instructions, secrets=[OTHER, VALUE]) == "ok"
    assert USED == [OTHER]


async def test_where_the_instructions_are_others_now_a_secret_is_not_guessed() -> None:
    store = JournaledStore()
    await left(store, instructions=f"The password is {VALUE}.", secrets=[VALUE])
    reported = await resumed(store, logs_in(), instructions=f"The bank's password is {OTHER}.", secrets=[OTHER])
    assert "is no longer known" in reported
    assert USED == []


async def test_instructions_that_a_request_was_given_are_given_again_by_options() -> None:
    store, instructions = JournaledStore(), f"The password is {VALUE}."
    with anyio.CancelScope() as host:
        async with Runtime(ScriptedProvider([hang()]), tools=[login], store=store) as runtime:
            runtime.start("go", instructions=instructions, secrets=[VALUE])
            await settle()
            host.cancel()
            await anyio.sleep_forever()
    async with Runtime(logs_in(), tools=[login], store=store) as runtime:
        again = await runtime.resume(options=lambda _request: {"instructions": instructions, "secrets": [VALUE]})
        assert [(await each.result()).text for each in again] == ["ok"]
    assert USED == [VALUE]


async def left_in_a_call(store: Any, **options: Any) -> None:
    """A process begins a request whose call of `login` is asked about or runs, and is gone."""
    with anyio.CancelScope() as host:
        async with Runtime(logs_in(), store=store, on_approval="wait", **options) as runtime:
            runtime.start("go", conversation_id="c")
            await settle()
            host.cancel()
            await anyio.sleep_forever()


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("given", ["", OTHER])
async def test_a_call_that_is_approved_after_a_restart_gets_the_value_of_its_secret(given: str) -> None:
    store, secrets = JournaledStore(), [("mail", VALUE)]
    options: dict[str, Any] = {"instructions": f"The password is {VALUE}.", "secrets": secrets, "needs_approval": True}
    await left_in_a_call(store, tools=[login], **options)
    async with Runtime(logs_in(), tools=[login], store=store, on_approval="wait", **options) as runtime:
        (session,) = await runtime.resume()
        await session.accepted()
        (question,) = session.pending_approvals
        assert session.approve(question, arguments={"password": given} if given else None)
        assert (await session.result()).text == "ok"
    assert USED[0] == (given or VALUE)
    assert USED[0].encode() not in entry_bytes(store.entries)


@pytest.mark.guarantee("G19")
async def test_a_call_that_runs_again_after_a_restart_gets_the_value_of_its_secret() -> None:
    @tool(idempotent=True)
    async def login(password: SecretStr) -> str:
        """Log in."""
        USED.append(password.get_secret_value())
        if len(USED) == 1:
            await anyio.sleep_forever()
        return "ok"

    store = JournaledStore()
    options: dict[str, Any] = {"instructions": f"The password is {VALUE}.", "secrets": [("mail", VALUE)]}
    await left_in_a_call(store, tools=[login], **options)
    async with Runtime(logs_in(), tools=[login], store=store, **options) as runtime:
        assert [(await each.result()).text for each in await runtime.resume()] == ["ok"]
    assert USED == [VALUE, VALUE]


async def test_a_call_is_refused_that_is_approved_after_its_secret_is_no_longer_known() -> None:
    store = JournaledStore()
    await left_in_a_call(store, tools=[login], instructions=f"It is {VALUE}.", secrets=[VALUE], needs_approval=True)
    async with Runtime(logs_in(), tools=[login], store=store, on_approval="wait") as runtime:
        (session,) = await runtime.resume(options=lambda _request: {"instructions": "It is secret."})
        await session.accepted()
        (question,) = session.pending_approvals
        assert session.approve(question)
        (call,) = (await session.result()).tool_calls
    assert call.reason == "invalid_arguments"
    assert "is no longer known" in (call.error or "")
    assert USED == []


# ------------------------------------------------------------------------------------------------ in a given history


@pytest.mark.guarantee("G19")
async def test_a_history_and_metadata_that_the_application_gives_are_sent_and_reported_without_its_secrets() -> None:
    provider = ScriptedProvider([text("ok")])
    reported: list[bytes] = []
    history = [UserMessage(content=f"It is {VALUE}."), AssistantMessage(text=f"So {VALUE}.")]
    async with Runtime(provider) as runtime:
        runtime.bus.connect(Event, lambda event: reported.append(encode(event)))
        result = await runtime.run("go", history=history, metadata={"key": VALUE}, secrets=[VALUE])
    assert VALUE not in repr([list(each.messages) for each in provider.requests])
    assert VALUE not in repr(result.messages)
    assert not [each for each in reported if VALUE.encode() in each]


# ------------------------------------------------------------------------------------------------ in summaries


@pytest.mark.guarantee("G19")
async def test_a_secret_in_a_summary_of_what_has_left_is_hidden_from_the_model() -> None:
    provider = ScriptedProvider(lambda _request: text("answer " * 100))
    summarizer = Summarizer(ScriptedProvider(lambda _request: text(f"The password is {VALUE}.")))
    compression = Compression(max_context_tokens=1000, summarizer=summarizer)
    async with Runtime(provider, compression=compression, secrets=[("mail", VALUE)]) as runtime:
        for number in range(6):
            assert (await runtime.run(f"question {number} " * 20, conversation_id="c")).ok
    sent = repr([list(each.messages) for each in provider.requests])
    assert "The password is secret:" in sent
    assert VALUE not in sent


# ------------------------------------------------------------------------------------------------ with a name


async def test_a_secret_with_a_name_works_in_a_prompt_that_is_older_than_the_process() -> None:
    store = JournaledStore()
    await left(store, f"My password is {VALUE}.", secrets=[("mail", VALUE)])
    assert await resumed(store, logs_in(), secrets=[("bank", OTHER), ("mail", VALUE)]) == "ok"
    assert USED == [VALUE]


async def test_a_secret_with_a_name_works_in_later_turns_and_leads_to_the_value_that_it_has_now() -> None:
    store = JournaledStore()
    for value in (VALUE, VALUE, OTHER):  # each turn in a process of its own; the last one behind a change of password
        async with Runtime(logs_in(), tools=[login], store=store, secrets=[("mail", value)]) as runtime:
            prompt = f"My password is {VALUE}." if not USED else "Once more."
            assert (await runtime.run(prompt, conversation_id="c")).text == "ok"
    assert USED == [VALUE, VALUE, OTHER]
    assert VALUE not in repr(await store.history("c"))


async def test_a_request_s_value_goes_before_the_runtime_s_under_the_same_name_and_both_are_hidden() -> None:
    model = logs_in()
    async with Runtime(model, tools=[login], secrets=[("mail", VALUE)]) as runtime:
        for _ in range(2):  # also in the vault that the conversation has by then
            prompt = f"Not {VALUE} any more, but {OTHER}."
            result = await runtime.run(prompt, conversation_id="c", secrets=[("mail", OTHER)])
            assert VALUE not in repr(result.messages)
            assert OTHER not in repr(result.messages)
    assert USED == [OTHER, OTHER]


@pytest.mark.guarantee("G36")
@pytest.mark.parametrize("named", [VALUE, SecretStr(VALUE), ("mail", VALUE)], ids=["text", "secret", "pair"])
@pytest.mark.parametrize("earlier", [[], [OTHER]], ids=["the first secret", "one more secret"])
async def test_a_secret_that_only_a_later_turn_names_is_in_nothing_that_is_sent_stored_or_published(
    named: NamedSecret, earlier: list[NamedSecret]
) -> None:
    sent: list[str] = []

    def reply(request: ModelRequest) -> Step:
        sent.append(repr(request))
        last = request.messages[-1]
        if isinstance(last, ToolMessage) or VALUE not in prompt:
            return text("Done.")
        return calls(("login", {"password": REFERENCE.findall(repr(list(request.messages)))[-1]}))

    store, reported = JournaledStore(), list[bytes]()
    async with Runtime(ScriptedProvider(reply), tools=[login], store=store) as runtime:
        runtime.bus.connect(Event, lambda event: reported.append(encode(event)))
        for prompt, secrets in ((f"{OTHER} is old.", earlier), (f"It is {VALUE} now.", [named]), ("And now?", [])):
            result = await runtime.run(prompt, conversation_id="c", secrets=secrets)
            assert VALUE not in repr(result.messages)
    assert USED == [VALUE]
    assert len(sent) == 4
    assert not [each for each in sent if VALUE in each]
    assert not [each for each in reported if VALUE.encode() in each]
    assert VALUE.encode() not in entry_bytes(store.entries)
    assert VALUE not in repr(await store.history("c"))


@pytest.mark.guarantee("G36")
async def test_an_interceptor_of_results_sees_references() -> None:
    seen: list[str] = []

    class Guard(Interceptor):
        async def after_tool(self, call: Any, result: Any, context: Any) -> Any:
            del call, context
            seen.append(f"{result.content} {result.data}")
            return result

    @tool
    async def look() -> dict[str, str]:
        """Look."""
        return {"found": f"{VALUE} is here"}

    model = ScriptedProvider([calls(("look", {})), text("Done.")])
    async with Runtime(model, tools=[look], secrets=[VALUE], interceptors=[Guard()]) as runtime:
        await runtime.run("go")
    assert len(seen) == 1
    assert VALUE not in seen[0]
    assert REFERENCE.search(seen[0])


@pytest.mark.guarantee("G36")
async def test_a_secret_in_a_result_that_an_interceptor_makes_is_replaced_by_a_reference() -> None:
    class Login(Interceptor):
        async def after_tool(self, call: Any, result: Any, context: Any) -> Any:
            del call, result, context
            return render({"token": SecretStr(VALUE)})

    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    model, completed = ScriptedProvider([calls(("look", {})), text("Done.")]), list[ToolCallCompleted]()
    async with Runtime(model, tools=[look], interceptors=[Login()]) as runtime:
        runtime.bus.connect(ToolCallCompleted, completed.append)
        await runtime.run("go")
    (answer,) = completed
    assert REFERENCE.fullmatch(answer.data["token"])
    assert answer.content == json.dumps(answer.data, separators=(",", ":"))


@pytest.mark.guarantee("G33", "G36")
@pytest.mark.parametrize("knows", [True, False], ids=["knows the secret", "does not know it"])
async def test_a_late_answer_is_in_nothing_that_the_next_turn_sends_whoever_has_given_it(knows: bool) -> None:
    store, asked = MemoryStore(journal=True), list[ToolCallRequested]()
    afar = Tool("afar", "Ask.", {"type": "object"}, external=True, background=True, validate=lambda _arguments: None)
    model = ScriptedProvider([calls(("afar", {})), text("It is under way."), text("Done.")])
    async with Runtime(model, tools=[afar], store=store, secrets=[("mail", VALUE)]) as runtime:
        runtime.bus.connect(ToolCallRequested, asked.append)
        session = runtime.start("go", conversation_id="c")
        await settle()
        session.cancel()
        await session.result()
        async with Client(store) as client:
            handle = (runtime if knows else client).request(session.request_id)
            assert await handle.inject(asked[0].completed(f"It is {VALUE}.")) == "queued"
            assert (VALUE in repr(await store.history("c"))) is not knows
            result = await runtime.run("And?", conversation_id="c")
    assert "It is secret:" in repr([*model.requests[-1].messages])
    assert VALUE not in repr([*model.requests[-1].messages])
    assert VALUE not in repr(result.messages)


@pytest.mark.guarantee("G36")
@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_handler_says_after_the_end_of_its_request_has_no_secrets(fails: bool) -> None:
    go, late = anyio.Event(), list[ToolCallLate]()

    @tool(timeout_seconds=1)
    async def stubborn() -> str:
        """Work on, whatever happens."""
        with anyio.CancelScope(shield=True):
            await go.wait()
        if fails:
            raise ToolError(f"It is {VALUE}.")
        return f"It is {VALUE}."

    model = ScriptedProvider([calls(("stubborn", {})), text("Done.")])
    async with Runtime(model, tools=[stubborn], secrets=[VALUE]) as runtime:
        runtime.bus.connect(ToolCallLate, late.append)
        await runtime.run("go")
        go.set()
        await settle()
    (reported,) = late
    assert REFERENCE.search(reported.error if fails else reported.content)
    assert VALUE not in repr(reported)


@pytest.mark.parametrize(
    "given", [[("", VALUE)], [("mail", "abc")], [("mail", VALUE, VALUE)], [(VALUE,)], [(1, VALUE)]]
)
async def test_pairs_that_are_none_are_refused_without_telling_them(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="in a pair after a name") as refused:
        Runtime(ScriptedProvider([]), secrets=given)
    assert VALUE not in str(refused.value)


# ------------------------------------------------------------------------------------------------ references


def reference(vault: Vault, value: str) -> str:
    return REFERENCE.findall(vault.shown(f"a {value} b"))[0]


def test_a_reference_of_a_name_depends_on_the_name_and_the_conversation_and_on_nothing_else() -> None:
    one, again = Vault([("mail", VALUE)], "c"), Vault([("mail", OTHER)], "c")
    assert reference(one, VALUE) == reference(again, OTHER), "so that it says nothing of the value"
    others = [Vault([("bank", VALUE)], "c"), Vault([("mail", VALUE)], "d"), Vault([VALUE], "c"), Vault([VALUE], "c")]
    assert len({reference(one, VALUE), *(reference(each, VALUE) for each in others)}) == 5


def test_the_same_value_has_the_reference_of_its_name_however_it_comes() -> None:
    vault = Vault([("mail", VALUE)], "c")
    assert vault.hide(VALUE) == reference(vault, VALUE)
    kept = Vault((), "c")
    before = kept.hide(VALUE)
    kept.take_names(vault)
    assert (kept.value_of(before), kept.hide(VALUE)) == (VALUE, reference(vault, VALUE))


def test_texts_are_recognised_only_where_all_else_in_them_is_the_same() -> None:
    old = Vault([VALUE, OTHER])
    written = old.shown(f"mail {VALUE}, bank {OTHER}")
    mail, bank = REFERENCE.findall(written)
    for text_now in (f"mail {VALUE}", f"mail {VALUE}, tank {OTHER}", f"{VALUE}{OTHER}", f"mail {VALUE}, bank of mine"):
        vault = Vault([VALUE, OTHER])
        vault.recognise(text_now, written)
        assert (vault.value_of(mail), vault.value_of(bank)) == (None, None)
    vault = Vault([OTHER, VALUE])
    vault.recognise(f"mail {VALUE}, bank {OTHER}", written)
    assert (vault.value_of(mail), vault.value_of(bank)) == (VALUE, OTHER)
    assert vault.shown(VALUE) == mail, "one value has one reference"


async def test_an_error_of_a_provider_that_repeats_a_secret_is_masked_for_the_application_too() -> None:
    refused = error(ProviderRejected(f"the key {VALUE} is wrong"))
    async with Runtime(ScriptedProvider([refused]), secrets=[VALUE]) as runtime:
        result = await runtime.start("Hello?").result()
    assert VALUE not in f"{result.error!r} {result.timeline()}"
    assert REFERENCE.search(str(result.error))


# ------------------------------------------------------------------------------------- in commands that a store keeps


@pytest.mark.parametrize("is_here", [True, False])
async def test_a_command_that_waits_in_the_store_has_no_secrets(is_here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(needs_approval=True)
    async def pay(to: str = "") -> str:
        """Pay somebody."""
        return f"paid {to}"

    ask = Tool("ask", "Ask.", {"type": "object"}, external=True)
    store, kept = MemoryStore(journal=True), list[Event]()
    journal: Any = store.journal
    send = journal.send

    async def noted(event: Event) -> Any:
        kept.append(event)
        return await send(event)

    monkeypatch.setattr(journal, "send", noted)
    given: dict[str, Any] = {"tools": [ask, pay], "store": store, "secrets": [("mail", VALUE), OTHER]}
    model = ScriptedProvider([calls(("ask", {}), ("pay", {})), hang()])
    async with (
        Runtime(model, on_approval="wait", **given) as runtime,
        Runtime(ScriptedProvider([]), on_approval="wait", **given) as elsewhere,
    ):
        session = runtime.start("go", conversation_id="c")
        await settle()
        handle = (runtime if is_here else elsewhere).request(session.request_id)
        (question,) = await handle.pending_approvals()
        asked = next(each for each in session.snapshot().facts if isinstance(each, ToolCallRequested))
        await handle.approve(question, arguments={"to": VALUE}, reason=OTHER)
        await handle.inject(asked.completed(f"with {VALUE}", data={"a": [OTHER]}))
        await settle()  # Now the model is asked, and never answers.
        await handle.steer(f"Use {VALUE} and {OTHER}.")
    written = b"\n".join(map(encode, kept)).decode()
    assert [each.type for each in kept][-1] == "steering_added"
    assert len(kept) == (1 if is_here else 3)
    assert VALUE not in written
    assert OTHER not in written
    assert Vault([("mail", VALUE)], "c").shown(VALUE) in written, "the process of the request knows what it stands for"
