"""Interceptors over a runtime: the application's functions around prompts, models, calls and answers, and guardrails."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import anyio
import pytest

from toolbus import Denied, EventBus, Interceptor, Limits, RequestResult, Runtime, ToolContext, tool
from toolbus.core.transcript import validate
from toolbus.errors import ApplicationError, ConfigurationError, ProviderUnavailable
from toolbus.events import (
    ApprovalRequested,
    Event,
    ModelResponded,
    RequestStarted,
    TextDelta,
    ToolCallLate,
    ToolCallRequested,
)
from toolbus.interceptors import Ask
from toolbus.messages import AssistantMessage, Message, Usage, UserMessage
from toolbus.protocols import ModelReply, ModelRequest
from toolbus.records import replace
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, error, hang, settle, text, virtual_backends
from toolbus.tool_results import RenderedResult

anyio_backend = virtual_backends()

PARIS = ("get_weather", {"city": "Paris"})
ROME = ("get_weather", {"city": "Rome"})
OSLO = ("get_weather", {"city": "Oslo"})


@tool
async def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"sunny in {city}"


class Diary(Interceptor):
    """Writes down under its name what comes by, and changes nothing."""

    def __init__(self, name: str, written: list[str]) -> None:
        self.name = name
        self.written = written

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        self.written.append(f"{self.name} prompt")
        return prompt

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        self.written.append(f"{self.name} asks")
        reply = await ask(request)
        self.written.append(f"{self.name} replied")
        return reply

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        self.written.append(f"{self.name} tool {arguments['city']}")
        return arguments

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        self.written.append(f"{self.name} answer")
        return text


class NoSecrets(Interceptor):
    """A guardrail on what goes in: prompts with a password are turned away, card numbers are struck out."""

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        said = prompt.text
        if "password" in said:
            raise Denied("passwords do not belong here")
        return UserMessage(content=said.replace("4111", "****"))


class OnlyIn(Interceptor):
    """Calls for other cities are denied."""

    def __init__(self, *cities: str) -> None:
        self.cities = cities

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        if arguments.get("city") not in self.cities:
            raise Denied(f"{arguments.get('city')} is not in this contract")
        return arguments


def said_in(messages: Sequence[Message]) -> list[str]:
    return [each.text for each in messages if isinstance(each, UserMessage)]


# ------------------------------------------------------------------------------------------------- order


async def test_the_first_interceptor_is_the_outermost_around_the_model_and_first_elsewhere() -> None:
    written: list[str] = []
    script = ScriptedProvider([calls(PARIS, ROME), text("Sunny.")])
    async with Runtime(script, tools=[get_weather], interceptors=[Diary("a", written), Diary("b", written)]) as runtime:
        assert (await runtime.run("Where?")).text == "Sunny."
    asked = ["a asks", "b asks", "b replied", "a replied"]
    in_order = ["a tool Paris", "b tool Paris", "a tool Rome", "b tool Rome"]
    assert written == ["a prompt", "b prompt", *asked, *in_order, *asked, "a answer", "b answer"]


async def test_interceptors_of_a_request_stand_in_the_place_of_the_runtimes_own() -> None:
    written: list[str] = []
    async with Runtime(ScriptedProvider([text("a"), text("b")]), interceptors=[Diary("ours", written)]) as runtime:
        await runtime.run("one", interceptors=[Diary("theirs", written)])
        assert {line.partition(" ")[0] for line in written} == {"theirs"}
        written.clear()
        await runtime.run("two", interceptors=[])
        assert written == []


async def test_an_interceptor_knows_the_request_and_what_the_application_gave_it() -> None:
    known: list[tuple[Any, ...]] = []

    class Curious(Interceptor):
        async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
            known.append((context.request_id, context.conversation_id, context.deps, context.metadata))
            return context.last_user_message

    async with Runtime(ScriptedProvider([text("x")]), interceptors=[Curious()], deps="desk") as runtime:
        result = await runtime.run("Who asks?", metadata={"user": "ada"}, conversation_id="c")
    assert known == [(result.request_id, "c", "desk", {"user": "ada"})]
    assert result.text == "Who asks?"


# ------------------------------------------------------------------------------------------------- the prompt


async def test_a_prompt_is_kept_and_asked_as_the_interceptor_left_it() -> None:
    script = ScriptedProvider([text("Noted."), text("I cannot know.")])
    async with Runtime(script, interceptors=[NoSecrets()]) as runtime:
        first = await runtime.run("Card 4111")
        second = await runtime.run("Which card?", conversation_id=first.conversation_id)
    assert said_in(script.requests[0].messages) == ["Card ****"]
    assert said_in(second.messages) == ["Card ****", "Which card?"]


async def test_of_a_denied_prompt_nothing_stays_and_the_conversation_goes_on() -> None:
    script = ScriptedProvider([text("Hello."), text("Still here.")])
    async with Runtime(script, interceptors=[NoSecrets()]) as runtime:
        first = await runtime.run("Hello")
        denied = await runtime.start("My password is swordfish", conversation_id=first.conversation_id).result()
        after = await runtime.run("Are you there?", conversation_id=first.conversation_id)
    assert (denied.outcome, denied.reason, denied.text) == ("failed", "denied", "")
    assert isinstance(denied.error, Denied)
    assert str(denied.error) == "passwords do not belong here"
    assert denied.messages == first.messages
    assert denied.rounds == 0
    assert said_in(after.messages) == ["Hello", "Are you there?"]
    assert "swordfish" not in repr(script.requests)
    validate(after.messages)


async def test_a_denied_first_prompt_leaves_a_conversation_that_has_not_begun() -> None:
    script = ScriptedProvider([text("Hello.")])
    async with Runtime(script, interceptors=[NoSecrets()]) as runtime:
        denied = await runtime.start("My password is swordfish", conversation_id="c").result()
        after = await runtime.run("Hello", conversation_id="c")
    assert denied.messages == []
    assert (after.history_count, said_in(after.messages)) == (0, ["Hello"])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([NoSecrets(), OnlyIn()], [""]),
        ([OnlyIn(), NoSecrets()], [""]),
        ([OnlyIn()], ["Card 4111"]),
        ([], ["Card 4111"]),
    ],
    ids=["first", "last", "another", "none"],
)
async def test_a_prompt_that_was_not_screened_before_its_request_ended_is_not_kept(
    given: list[Interceptor], kept: list[str]
) -> None:
    begun: list[RequestStarted] = []
    script = ScriptedProvider([text("Hello.", delays=5)])
    async with Runtime(script, max_sessions=1, interceptors=given) as runtime:
        runtime.bus.connect(RequestStarted, begun.append)
        runtime.start("Hello")
        with anyio.move_on_after(1):
            await runtime.run("Card 4111")
    assert [each.prompt for each in begun[1:]] == kept


async def test_a_prompt_is_not_kept_of_a_request_that_is_cancelled_while_one_of_its_interceptors_screens_it() -> None:
    class Waits(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
            await anyio.sleep_forever()
            return prompt

    for given in ([Waits(), OnlyIn()], [OnlyIn(), Waits()]):
        async with Runtime(ScriptedProvider([]), interceptors=given) as runtime:
            session = runtime.start("Card 4111")
            await settle()
            session.cancel()
            result = await session.result()
        assert (result.outcome, result.messages) == ("cancelled", [])


async def test_a_denial_is_raised() -> None:
    async with Runtime(ScriptedProvider([]), interceptors=[NoSecrets()]) as runtime:
        with pytest.raises(Denied, match="do not belong here"):
            await runtime.run("My password is swordfish")


async def test_a_denial_without_words_has_some_all_the_same() -> None:
    class Mute(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
            raise Denied

    heard: list[Event] = []
    async with Runtime(ScriptedProvider([])) as runtime:
        runtime.bus.connect(Event, heard.append)
        result = await runtime.start("x", interceptors=[Mute()]).result()
    assert (result.outcome, result.reason) == ("failed", "denied")
    assert getattr(heard[-1], "error", "") == "the prompt was denied"


# ------------------------------------------------------------------------------------------------- the model


class Translator(Interceptor):
    """Asks in capitals and answers in lower case."""

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        louder: list[Message] = [
            UserMessage(content=each.text.upper(), message_id=each.message_id)
            if isinstance(each, UserMessage)
            else each
            for each in request.messages
        ]
        reply = await ask(replace(request, messages=louder))
        return replace(reply, message=replace(reply.message, text=reply.message.text.lower()))


async def test_an_edited_request_reaches_the_model_alone_and_an_edited_reply_the_transcript() -> None:
    script = ScriptedProvider([text("QUIET.")])
    async with Runtime(script, interceptors=[Translator()]) as runtime:
        result = await runtime.run("loud?")
    assert said_in(script.requests[0].messages) == ["LOUD?"]
    assert said_in(result.messages) == ["loud?"]
    assert (result.text, result.messages[-1]) == ("quiet.", replace(as_reply(result.messages[-1]), text="quiet."))


def as_reply(message: Message) -> AssistantMessage:
    assert isinstance(message, AssistantMessage)
    return message


async def test_a_model_that_is_asked_again_is_asked_through_the_interceptors_again() -> None:
    written: list[str] = []
    away = error(ProviderUnavailable("busy", vendor="x", status=503, retryable=True))
    script = ScriptedProvider([away, text(""), text("There.")])
    async with Runtime(script, interceptors=[Diary("a", written), Translator()]) as runtime:
        result = await runtime.run("anybody?")
    assert result.text == "there."
    assert [said_in(request.messages) for request in script.requests] == [["ANYBODY?"]] * 3
    # Of the empty reply there was a text, if an empty one; of the failure nothing came back.
    assert written == ["a prompt", "a asks", "a asks", "a replied", "a answer", "a asks", "a replied", "a answer"]


async def test_an_interceptor_may_answer_in_the_place_of_the_model() -> None:
    class FromMemory(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            return ModelReply(message=AssistantMessage(text="As I said: 42."))

    async with Runtime(script := ScriptedProvider([]), interceptors=[FromMemory()]) as runtime:
        assert (await runtime.run("And?")).text == "As I said: 42."
    assert script.requests == []


@pytest.mark.parametrize("own", ["", "own"])
async def test_a_reply_that_an_interceptor_makes_itself_is_of_the_model_that_it_asked_unless_it_names_another(
    own: str,
) -> None:
    class Rewriter(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            await ask(request)
            return ModelReply(message=AssistantMessage(text="So."), vendor=own and "my", model=own)

    usage = Usage(input_tokens=7)
    script = ScriptedProvider([text("Well.", usage=usage)])
    replies: list[ModelResponded] = []
    async with Runtime(script, interceptors=[Rewriter()]) as runtime:
        runtime.bus.connect(ModelResponded, replies.append)
        await runtime.run("And?")
    [reply] = replies
    assert (reply.message.text, reply.usage) == ("So.", usage)
    assert (reply.vendor, reply.model) == (("my", "own") if own else ("scripted", "script"))


async def test_an_interceptor_that_denies_a_model_call_ends_the_request_with_its_words() -> None:
    class Office(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            if request.round:
                raise Denied("one round is enough today")
            return await ask(request)

    async with Runtime(
        ScriptedProvider([calls(PARIS), text("?")]), tools=[get_weather], interceptors=[Office()]
    ) as runtime:
        result = await runtime.start("Where?").result()
    assert (result.outcome, result.reason, str(result.error)) == ("failed", "denied", "one round is enough today")
    assert [call.ok for call in result.tool_calls] == [True]
    validate(result.messages)


class InTaskGroups(Interceptor):
    """Denies what has the word for a method in it, from a task group within a task group, as parallel checks do."""

    async def _check(self, method: str, said: object) -> None:
        async def check() -> None:
            if method in str(said):
                raise Denied(f"no {method}")

        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.sleep, 0)
            inner.start_soon(check)

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        await self._check("prompt", prompt.text)
        return prompt

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        await self._check("model", said_in(request.messages))
        replies: list[ModelReply] = []

        async def keep() -> None:
            replies.append(await ask(request))

        async with anyio.create_task_group() as group:
            group.start_soon(keep)
        return replies[0]

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        await self._check("tool", arguments)
        return arguments

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        await self._check("answer", text)
        return text


async def test_an_exception_from_a_task_group_of_an_interceptor_counts_like_any_other() -> None:
    model = ScriptedProvider(
        [
            error(ProviderUnavailable("down", retryable=True)),  # is asked again, although a task group has wrapped it
            calls(("get_weather", {"city": "the city of tools"})),
            text("My answer."),
        ]
    )
    async with Runtime(model, tools=[get_weather], interceptors=[InTaskGroups()]) as runtime:
        results = [await runtime.start(said).result() for said in ("a prompt", "a model", "anything")]
    assert [(each.reason, str(each.error)) for each in results] == [
        ("denied", "no prompt"),
        ("denied", "no model"),
        ("denied", "no answer"),
    ]
    (call,) = results[-1].tool_calls
    assert (call.reason, call.error) == ("denied", "no tool")


async def test_an_interceptor_around_the_model_keeps_to_the_models_time() -> None:
    class Dawdler(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            await anyio.sleep(3_600)
            return await ask(request)

    limits = Limits(model_timeout_seconds=5, timeout_seconds=8, max_model_attempts=1)
    async with Runtime(ScriptedProvider([]), interceptors=[Dawdler()], limits=limits) as runtime:
        began = anyio.current_time()
        result = await runtime.start("now?").result()
        assert anyio.current_time() - began == pytest.approx(5)
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert "interceptors did not return in time (model_timeout_seconds=5)" in str(result.error)


async def test_an_interceptor_that_hangs_after_it_has_given_the_model_up_is_named_as_well() -> None:
    class GivesUp(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            with anyio.move_on_after(1):
                return await ask(request)
            await anyio.sleep_forever()
            raise AssertionError

    limits = Limits(model_timeout_seconds=5, max_model_attempts=1)
    async with Runtime(ScriptedProvider([hang()]), interceptors=[GivesUp()], limits=limits) as runtime:
        result = await runtime.start("?").result()
    assert result.reason == "application_error"


@pytest.mark.parametrize("method", ["before_tool", "on_answer"])
async def test_an_interceptor_that_hangs_after_the_reply_is_not_taken_for_a_silent_model(method: str) -> None:
    async def hangs(*_: Any) -> None:
        await anyio.sleep_forever()

    usage = Usage(input_tokens=900, output_tokens=20)
    reply = calls(PARIS, usage=usage) if method == "before_tool" else text("Sunny.", usage=usage)
    script, guard = ScriptedProvider([reply]), type("Hangs", (Interceptor,), {method: hangs})()
    async with Runtime(script, tools=[get_weather], interceptors=[guard]) as runtime:
        result = await runtime.start("Where?").result()
    assert (result.reason, result.usage, len(script.requests)) == ("application_error", usage, 1)
    assert "interceptors did not return in time (stream_idle_seconds=120)" in str(result.error)


async def test_a_silent_model_is_not_taken_for_an_interceptor_that_hangs() -> None:
    limits = Limits(max_model_attempts=1)
    async with Runtime(ScriptedProvider([hang()]), interceptors=[Diary("a", [])], limits=limits) as runtime:
        assert (await runtime.start("now?").result()).reason == "provider_timeout"


# ------------------------------------------------------------------------------------------------- calls


async def test_edited_arguments_are_what_runs_and_what_stands_in_the_transcript() -> None:
    class Elsewhere(Interceptor):
        async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
            return {**arguments, "city": "Rome"} if arguments["city"] == "Paris" else arguments

    script = ScriptedProvider([calls(PARIS, OSLO), text("Sunny.")])
    async with Runtime(script, tools=[get_weather], interceptors=[Elsewhere()]) as runtime:
        result = await runtime.run("Where?")
    assert [call.content for call in result.tool_calls] == ["sunny in Rome", "sunny in Oslo"]
    reply = as_reply(result.messages[1])
    assert [call.arguments for call in reply.tool_calls] == ['{"city":"Rome"}', '{"city":"Oslo"}']
    assert [call.provider_call_id for call in reply.tool_calls] == ["call_0", "call_1"]
    validate(result.messages)


async def test_edited_arguments_are_validated_like_the_models_own() -> None:
    class Clumsy(Interceptor):
        async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
            return {"town": arguments["city"]}

    script = ScriptedProvider([calls(PARIS), text("Sorry.")])
    async with Runtime(script, tools=[get_weather], interceptors=[Clumsy()]) as runtime:
        (call,) = (await runtime.run("Where?")).tool_calls
    assert call.reason == "invalid_arguments"
    assert "$.city" in call.error


async def test_a_denied_call_fails_with_the_reason_and_its_siblings_run() -> None:
    script = ScriptedProvider([calls(PARIS, ROME), text("Only Rome.")])
    requested: list[ToolCallRequested] = []
    async with Runtime(script, tools=[get_weather], interceptors=[OnlyIn("Rome")]) as runtime:
        runtime.bus.connect(ToolCallRequested, requested.append)
        result = await runtime.run("Where?")
    assert [(call.reason, call.content) for call in result.tool_calls] == [("denied", ""), ("", "sunny in Rome")]
    assert result.tool_calls[0].error == "Paris is not in this contract"
    assert [event.arguments["city"] for event in requested] == ["Rome"]
    assert "not in this contract" in repr(script.requests[1].messages)
    validate(result.messages)


async def test_a_denied_call_stays_as_the_interceptors_before_the_denial_left_it() -> None:
    class HidesCities(Interceptor):
        async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
            return {"city": "[city]"}

    script = ScriptedProvider([calls(PARIS), text("Sorry.")])
    async with Runtime(script, tools=[get_weather], interceptors=[HidesCities(), OnlyIn("Rome")]) as runtime:
        result = await runtime.run("Where?")
    assert result.tool_calls[0].reason == "denied"
    assert "Paris" not in repr(result.messages)


async def test_edited_arguments_that_are_not_json_are_named() -> None:
    class Sets(Interceptor):
        async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
            return {"city": {"Paris"}}

    async with Runtime(ScriptedProvider([calls(PARIS)]), tools=[get_weather], interceptors=[Sets()]) as runtime:
        result = await runtime.start("Where?").result()
    assert result.reason == "application_error"
    assert "before_tool gave arguments of get_weather that are not JSON" in str(result.error)


async def test_a_denied_call_is_never_put_to_a_person_and_an_edited_one_as_it_will_run() -> None:
    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return f"deleted {path}"

    class Fence(Interceptor):
        async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
            if arguments["path"].startswith("/"):
                raise Denied("only below the project")
            return {"path": f"project/{arguments['path']}"}

    script = ScriptedProvider([calls(("delete", {"path": "/etc"}), ("delete", {"path": "notes"})), text("Done.")])
    asked: list[ApprovalRequested] = []

    async with Runtime(script, tools=[delete], interceptors=[Fence()]) as runtime:

        def approve(event: ApprovalRequested) -> None:
            asked.append(event)
            runtime.bus.publish(event.decided(approved=True))

        runtime.bus.connect(ApprovalRequested, approve)
        result = await runtime.run("Clean up")
    assert [event.arguments for event in asked] == [{"path": "project/notes"}]
    assert [(call.reason, call.content) for call in result.tool_calls] == [
        ("denied", ""),
        ("", "deleted project/notes"),
    ]


async def test_calls_of_unknown_tools_come_by_and_those_without_an_object_do_not() -> None:
    seen: list[str] = []

    class Watch(Interceptor):
        async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
            seen.append(name)
            return arguments

    script = ScriptedProvider([calls(("nope", {}), ("get_weather", "{"), ("get_weather", "[1]")), text("Hm.")])
    async with Runtime(script, tools=[get_weather], interceptors=[Watch()]) as runtime:
        result = await runtime.run("Where?")
    assert seen == ["nope"]
    assert [call.reason for call in result.tool_calls] == ["unknown_tool", "invalid_arguments", "invalid_arguments"]


# ------------------------------------------------------------------------------------------------- the answer


class Polite(Interceptor):
    """A guardrail on what goes out."""

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        if "secret" in text:
            raise Denied("the answer had a secret in it")
        return text.replace("damn", "very")


async def test_an_answer_joins_the_transcript_as_the_interceptor_left_it() -> None:
    script = ScriptedProvider([calls(PARIS, text="damn, let me look"), text("A damn fine day.")])
    async with Runtime(script, tools=[get_weather], interceptors=[Polite()]) as runtime:
        result = await runtime.run("Where?")
    assert result.text == "A very fine day."
    assert as_reply(result.messages[-1]).text == "A very fine day."
    assert as_reply(result.messages[1]).text == "damn, let me look"  # what is said beside calls is no answer


async def test_a_denied_answer_is_not_kept_and_the_conversation_goes_on() -> None:
    script = ScriptedProvider([text("The secret is 7."), text("Fine.")])
    async with Runtime(script, interceptors=[Polite()]) as runtime:
        denied = await runtime.start("Tell!", conversation_id="c").result()
        after = await runtime.run("How are you?", conversation_id="c")
    assert (denied.outcome, denied.reason, denied.text) == ("failed", "denied", "")
    assert "secret" not in repr(denied.messages)
    assert said_in(after.messages) == ["Tell!", "How are you?"]
    assert after.text == "Fine."
    validate(after.messages)


async def test_an_answer_that_an_interceptor_empties_is_its_mistake_and_not_the_models() -> None:
    class Eraser(Interceptor):
        async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
            return " "

    script = ScriptedProvider([text("Sunny.")])
    async with Runtime(script, interceptors=[Eraser()]) as runtime:
        result = await runtime.start("Where?").result()
    assert (result.reason, str(result.error)) == (
        "application_error",
        "on_answer gave an empty text; raise Denied to refuse an answer",
    )


class Nothing(Interceptor):
    pass


class OnlyLooks(Diary):
    """Says that it does not edit."""

    edits_replies = False


@pytest.mark.parametrize(
    ("interceptors", "pieces"),
    [
        ([], ["One ", "two ", "three."]),
        ([Nothing(), NoSecrets(), OnlyIn()], ["One ", "two ", "three."]),
        ([OnlyLooks("a", []), OnlyLooks("b", [])], ["One ", "two ", "three."]),
        ([Diary("a", [])], ["One two three."]),
        ([OnlyLooks("a", []), Diary("b", [])], ["One two three."]),
        ([Polite()], ["One two three."]),
        ([Translator()], ["one two three."]),
    ],
    ids=["none", "of prompts and calls", "that do not edit", "that may edit", "both", "of answers", "around the model"],
)
async def test_a_reply_streams_unless_it_may_still_be_edited(
    interceptors: list[Interceptor], pieces: list[str]
) -> None:
    script = ScriptedProvider([text("One two three.", ["One ", "two ", "three."])])
    deltas: list[TextDelta] = []
    bus = EventBus()
    bus.connect(TextDelta, deltas.append)
    async with Runtime(script, interceptors=interceptors, bus=bus) as runtime:
        session = runtime.start("Count")
        assert "".join([piece async for piece in session.text()]) == "".join(pieces)
    assert [event.text for event in deltas] == (pieces if len(pieces) > 1 else [])


class Unfaithful(Interceptor):
    """Says that it does not edit, and does what that rules out."""

    edits_replies = False

    def __init__(self, how: str) -> None:
        self.how = how

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        if self.how == "answers itself":
            return ModelReply(message=AssistantMessage(text="From my memory."))
        try:
            reply = await ask(request)
        except ProviderUnavailable:
            if self.how == "answers after a failure":
                return ModelReply(message=AssistantMessage(text="Sorry."))
            return await ask(request)
        if self.how == "asks twice":
            return await ask(request)
        if self.how == "edits the reply":
            return replace(reply, message=AssistantMessage(text="Four."))
        return reply

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        if self.how == "denies":
            raise Denied("no counting")
        return "Four." if self.how == "edits the answer" else text


@pytest.mark.parametrize(
    ("how", "method"),
    [
        ("edits the reply", "around_model"),
        ("edits the answer", "on_answer"),
        ("asks twice", "around_model"),
        ("asks after a failure", "around_model"),
        ("answers after a failure", "around_model"),
    ],
)
async def test_an_interceptor_that_edits_although_it_says_it_does_not_fails_the_request(how: str, method: str) -> None:
    steps = [error(ProviderUnavailable("away", vendor="scripted"))] if "failure" in how else []
    script = ScriptedProvider([*steps, text("One."), text("Two.")])
    async with Runtime(script, interceptors=[Unfaithful(how)]) as runtime:
        result = await runtime.start("Count").result()
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert str(result.error) == (
        f"Unfaithful.{method} has changed the reply or asked twice; edits_replies = False rules both out"
    )
    assert (result.text, [each.role for each in result.messages]) == ("", ["user"])


async def test_an_interceptor_that_does_not_edit_may_deny_and_may_answer_instead_of_the_model() -> None:
    async with Runtime(ScriptedProvider([text("One."), text("Two.")])) as runtime:
        denied = await runtime.start("Count", interceptors=[Unfaithful("denies")]).result()
        own = await runtime.run("Count", interceptors=[Unfaithful("answers itself")])
    assert (denied.outcome, denied.reason, str(denied.error)) == ("failed", "denied", "no counting")
    assert (denied.text, [each.role for each in denied.messages]) == ("", ["user"])  # although it was streamed
    assert (own.outcome, own.text) == ("completed", "From my memory.")


async def test_a_stream_that_nobody_hears_still_keeps_its_model_from_the_idle_limit() -> None:
    class Slow:
        vendor = "slow"

        async def respond(self, request: ModelRequest, emit: Any) -> ModelReply:
            from toolbus.protocols import TextPiece

            for _ in range(5):
                await anyio.sleep(8)
                emit(TextPiece("."))
            return ModelReply(message=AssistantMessage(text="....."))

    limits = Limits(stream_idle_seconds=10, max_model_attempts=1)
    async with Runtime(Slow(), interceptors=[Polite()], limits=limits) as runtime:
        assert (await runtime.run("Slowly")).text == "....."


# ------------------------------------------------------------------------------------------------- failing


class Broken(Interceptor):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _at(self, where: str) -> None:
        if where == self.where:
            raise KeyError("oh")

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        self._at("on_prompt")
        return prompt

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        self._at("around_model")
        return await ask(request)

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        self._at("before_tool")
        return arguments

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        self._at("on_answer")
        return text


@pytest.mark.parametrize("where", ["on_prompt", "around_model", "before_tool", "on_answer"])
async def test_an_interceptor_that_raises_ends_its_own_request_alone(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def script(request: ModelRequest) -> Any:
        return text("Sunny.") if request.round else calls(PARIS)

    async with Runtime(ScriptedProvider(script), tools=[get_weather]) as runtime:
        broken, fine = runtime.start("Where?", interceptors=[Broken(where)]), runtime.start("Where?")
        result: RequestResult[Any] = await broken.result()
        assert (await fine.result()).text == "Sunny."
        follow_up = await runtime.run("And now?", conversation_id=result.conversation_id)
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert isinstance(result.error, ApplicationError)
    assert isinstance(result.error.__cause__, KeyError)
    line = "on_prompt failed" if where == "on_prompt" else "the model could not be asked"
    assert f"request {result.request_id}: {line}" in caplog.messages
    assert follow_up.ok
    if result.messages:
        validate(result.messages)


async def test_an_interceptor_that_gives_no_result_back_fails_the_call_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Forgetful(Interceptor):
        async def after_tool(self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]) -> Any:
            """Look, and forget to return."""

    script = ScriptedProvider([calls(PARIS), text("It failed."), calls(OSLO), text("Sunny.")])
    async with Runtime(script, tools=[get_weather]) as runtime:
        failed = await runtime.run("Where?", interceptors=[Forgetful()])
        worked = await runtime.run("And now?")
    assert [(each.reason, each.error) for each in failed.tool_calls] == [
        ("error", "The tool failed with an internal error.")
    ]
    assert "Forgetful.after_tool returned a NoneType; it has to return a RenderedResult" in caplog.text
    assert (failed.text, worked.text, worked.tool_calls[0].ok) == ("It failed.", "Sunny.", True)


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_result_is_screened_by_the_one_interceptor_of_several_that_screens_results(is_first: bool) -> None:
    class Shout(Interceptor):
        async def after_tool(
            self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
        ) -> RenderedResult:
            return replace(result, content=result.content.upper())

    given = [Shout(), NoSecrets()] if is_first else [NoSecrets(), Shout()]
    async with Runtime(ScriptedProvider([calls(PARIS), text("Sunny.")]), tools=[get_weather]) as runtime:
        result = await runtime.run("Where?", interceptors=given)
    assert [each.content for each in result.tool_calls] == ["SUNNY IN PARIS"]


async def test_a_late_result_is_screened_once() -> None:
    screened: list[str] = []
    late: list[str] = []

    class Seen(Interceptor):
        async def after_tool(
            self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
        ) -> RenderedResult:
            screened.append(result.content)
            return replace(result, content=f"screened {result.content}")

    @tool(timeout_seconds=1)
    async def stubborn() -> str:
        """Take five seconds, whatever happens."""
        with anyio.CancelScope(shield=True):
            await anyio.sleep(5)
        return "report"

    script = ScriptedProvider([calls(("stubborn", {})), text("It takes too long.")])
    async with Runtime(script, tools=[stubborn], interceptors=[Seen()]) as runtime:
        runtime.bus.connect(ToolCallLate, lambda event: late.append(event.content))
        assert (await runtime.run("Go.")).text == "It takes too long."
        await advance(10)
    assert (screened, late) == (["report"], ["screened report"])


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ({"data": {"price": Decimal(1)}}, "returned data that is not JSON: Type is not JSON serializable"),
        ({"content": 7}, "returned content of type int; it has to be a text"),
    ],
)
async def test_an_edited_result_that_no_event_can_carry_fails_its_call_and_not_the_journal(
    edit: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Editing(Interceptor):
        async def after_tool(
            self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
        ) -> RenderedResult:
            """Edit."""
            return replace(result, **edit)

    script = ScriptedProvider([calls(PARIS), text("It failed.")])
    async with Runtime(script, tools=[get_weather], store=MemoryStore(journal=True)) as runtime:
        result = await runtime.run("Where?", interceptors=[Editing()])
    assert result.text == "It failed."
    assert [each.error for each in result.tool_calls] == ["The tool failed with an internal error."]
    assert f"Editing.after_tool {problem}" in caplog.text


async def test_an_interceptor_that_waits_can_be_cancelled_with_its_request() -> None:
    began = anyio.Event()

    class Waits(Interceptor):
        async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
            began.set()
            await anyio.sleep_forever()
            return arguments

    script = ScriptedProvider([calls(PARIS)])
    async with Runtime(script, tools=[get_weather], interceptors=[Waits()]) as runtime:
        session = runtime.start("Where?")
        await began.wait()
        await advance(1)
        session.cancel("enough")
        await settle()
        assert session.ended
        result = await session.result()
    assert (result.outcome, result.reason) == ("cancelled", "enough")
    assert result.tool_calls == []


async def test_a_guardrail_on_the_prompt_that_hangs_ends_the_request_by_an_error_that_names_it() -> None:
    class Hangs(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
            await anyio.sleep_forever()
            return prompt

    script = ScriptedProvider([])
    async with Runtime(script, interceptors=[Hangs()], limits=Limits(timeout_seconds=30)) as runtime:
        result = await runtime.start("Where?").result()
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert "on_prompt did not return in timeout_seconds=30" in str(result.error)
    assert script.requests == []


# ------------------------------------------------------------------------------------------------- wrong methods


def test_a_method_that_is_not_async_is_refused_where_its_class_is_written() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^Guard.on_prompt is not async; write `async def on_prompt`; if a decor"
    ):

        class Guard(Interceptor):  # pyright: ignore[reportUnusedClass]
            def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> Any:
                return prompt


def test_a_method_that_nothing_would_call_is_refused_where_its_class_is_written() -> None:
    # A guardrail with a misspelt name was never called, and nothing said so.
    methods = "on_prompt, around_model, before_tool, after_tool, on_answer"
    with pytest.raises(ConfigurationError, match=f"^Guard.on_promt is not a method of Interceptor.*; the .* {methods}"):

        class Guard(Interceptor):  # pyright: ignore[reportUnusedClass]
            async def on_promt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
                raise Denied("no")


def test_a_method_in_a_decorator_that_passes_on_more_is_not_refused() -> None:
    def with_word(method: Any) -> Any:
        @functools.wraps(method)
        async def wrapper(self: Any, text: str, context: ToolContext[Any]) -> str:
            return await method(self, text, context, "word")

        return wrapper

    class Guard(Interceptor):
        @with_word
        async def on_answer(self, text: str, context: ToolContext[Any], word: str) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return text + word

    assert Guard()


def test_a_method_with_other_parameters_is_refused_where_its_class_is_written() -> None:
    written = (
        r"^Guard.before_tool has other parameters; write `async def before_tool\(self, name, arguments, context\)`$"
    )
    with pytest.raises(ConfigurationError, match=written):

        class Guard(Interceptor):  # pyright: ignore[reportUnusedClass]
            async def before_tool(self, context: Any, call: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
                return call


def test_an_interceptor_may_have_methods_of_its_own() -> None:
    class Guard(Interceptor):
        async def check(self, prompt: UserMessage) -> None: ...

        def on_event(self, event: Event) -> None: ...

    assert isinstance(Guard(), Interceptor)
