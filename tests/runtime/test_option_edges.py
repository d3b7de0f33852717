"""Options at their edges: interceptors that hang, forget or edit in place; people asked in sub-requests; wrong kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest

from toolbus import Denied, Interceptor, Limits, Price, Runtime, ToolContext, sub_request_tool, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError
from toolbus.events import ApprovalRequested, Event, RequestFailed, RequestStarted
from toolbus.messages import Usage, UserMessage
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()


@tool
async def search(wanted: dict[str, Any], n: int = 1) -> str:
    """Search for what is wanted."""
    return f"{wanted} {n!r}"


@tool(needs_approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    return f"{path} is gone"


def searches() -> ScriptedProvider:
    return ScriptedProvider([calls(("search", {"wanted": {"secret": "k"}, "n": 1})), text("done")])


def removes() -> ScriptedProvider:
    return ScriptedProvider(lambda request: text("gone") if request.round else calls(("remove", {"path": "x"})))


def asks_the_desk() -> ScriptedProvider:
    return ScriptedProvider(lambda request: text("ok") if request.round else calls(("desk", {"task": "go"})))


def removing_desk() -> Any:
    return sub_request_tool("desk", "Removes files.", provider=removes(), tools=[remove])


# ------------------------------------------------------------------------------------------------- on_prompt


class Hangs(Interceptor):
    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        await anyio.sleep_forever()
        return prompt


class Rewrites(Interceptor):
    """Puts a text of its own in the place of the prompt."""

    def __init__(self, said: str) -> None:
        self.said = said

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        return UserMessage(content=self.said)


class Breaks(Interceptor):
    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        raise KeyError("x")


async def test_an_on_prompt_that_hangs_is_cancelled_with_its_request() -> None:
    async with Runtime(searches(), tools=[search], interceptors=[Hangs()]) as runtime:
        session = runtime.start("hi")
        await settle()
        session.cancel("no")
        await settle()
        assert session.ended
        assert (await session.result()).outcome == "cancelled"


async def test_an_on_prompt_that_hangs_is_bounded_by_the_time_of_the_request() -> None:
    async with Runtime(searches(), tools=[search], interceptors=[Hangs()]) as runtime:
        result = await runtime.start("hi", limits=Limits(timeout_seconds=5)).result()
        assert anyio.current_time() == pytest.approx(5)
    assert (result.text, result.rounds) == ("", 0)
    assert result.outcome != "completed"


async def test_a_blank_prompt_of_an_interceptor_leaves_a_valid_transcript() -> None:
    async with Runtime(ScriptedProvider([text("ok")]), interceptors=[Rewrites(" ")]) as runtime:
        result = await runtime.start("hi").result()
    validate(result.messages)


async def test_a_new_prompt_of_an_interceptor_has_the_id_of_the_one_that_it_replaces() -> None:
    async with Runtime(ScriptedProvider([text("ok")]), interceptors=[Rewrites("other")]) as runtime:
        result = await runtime.run("hi")
    prompt = result.messages[0]
    assert isinstance(prompt, UserMessage)
    assert (prompt.content, prompt.message_id) == ("other", f"{result.request_id}_u")


async def test_an_on_prompt_that_raises_fails_a_request_that_has_started() -> None:
    heard: list[str] = []
    async with Runtime(searches(), interceptors=[Breaks()]) as runtime:
        runtime.bus.connect((RequestStarted, RequestFailed), lambda event: heard.append(event.type))
        result = await runtime.start("hi").result()
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert heard == ["request_started", "request_failed"]


# ------------------------------------------------------------------------------------------------- the others


class StrikesOut(Interceptor):
    """Edits the arguments in place, as handlers of dictionaries do."""

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        arguments["wanted"]["secret"] = "***"
        return arguments


class SaysTrue(Interceptor):
    """Gives `True` for 1: equal to Python, another value in JSON."""

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        return {**arguments, "n": True}


class DeniesAnswers(Interceptor):
    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        raise Denied("no")


async def test_an_edit_in_place_by_before_tool_counts() -> None:
    async with Runtime(searches(), tools=[search], interceptors=[StrikesOut()]) as runtime:
        (call,) = (await runtime.run("hi")).tool_calls
    assert call.arguments == {"wanted": {"secret": "***"}, "n": 1}


async def test_an_edit_to_a_value_that_python_calls_equal_counts() -> None:
    async with Runtime(searches(), tools=[search], interceptors=[SaysTrue()]) as runtime:
        (call,) = (await runtime.run("hi")).tool_calls
    assert call.reason == "invalid_arguments"


@pytest.mark.parametrize("method", ["on_prompt", "before_tool", "on_answer", "around_model"])
async def test_an_interceptor_that_forgets_to_return_is_named_in_the_error(method: str) -> None:
    async def forget(_self: Interceptor, *_: Any) -> None:
        return None

    forgetful = type("Forgetful", (Interceptor,), {method: forget})()
    async with Runtime(searches(), tools=[search], interceptors=[forgetful]) as runtime:
        result = await runtime.start("hi").result()
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert method in str(result.error)


async def test_the_tokens_of_a_denied_answer_count() -> None:
    script = ScriptedProvider([text("x", usage=Usage(input_tokens=500))])
    async with Runtime(script, interceptors=[DeniesAnswers()]) as runtime:
        result = await runtime.start("hi").result()
    assert (result.outcome, result.usage.input_tokens) == ("failed", 500)


# ------------------------------------------------------------------------------------------------- sub-requests


async def test_a_runtime_as_a_tool_knows_the_provider_names_of_its_provider_for_round() -> None:
    desk = Runtime(ScriptedProvider([text("x")]), provider_for_round=lambda _round: "extractive")
    async with Runtime(asks_the_desk(), tools=[desk.as_tool("desk", "Knows things.")]) as runtime:
        (call,) = (await runtime.run("hi")).tool_calls
    assert call.ok


async def test_an_approval_that_is_remembered_in_a_sub_request_holds_for_the_conversation() -> None:
    asked: list[ApprovalRequested] = []
    async with Runtime(asks_the_desk(), tools=[removing_desk()]) as runtime:

        def allow(question: ApprovalRequested) -> None:
            asked.append(question)
            runtime.bus.publish(question.decided(approved=True, remember=True))

        runtime.bus.connect(ApprovalRequested, allow)
        results = [await runtime.run("hi", conversation_id="c") for _ in range(2)]
    assert [call.ok for result in results for call in result.tool_calls] == [True, True]
    assert len(asked) == 1


async def test_a_person_who_is_asked_in_a_sub_request_is_hurried_by_no_clock_above_it() -> None:
    asked: list[ApprovalRequested] = []
    async with Runtime(asks_the_desk(), tools=[removing_desk()]) as runtime:
        runtime.bus.connect(ApprovalRequested, asked.append)
        session = runtime.start("hi")
        await advance(130)
        assert runtime.bus.publish(asked[0].decided(approved=True))
        result = await session.result()
    assert (result.outcome, [call.ok for call in result.tool_calls]) == ("completed", [True])


# ------------------------------------------------------------------------------------------------- wrong kinds

INTERCEPTORS = "pass a list of objects whose classes derive from toolbus.Interceptor"
PRICES = r"prices is .*; pass \{'vendor:model': Price\(input_per_million=..., output_per_million=...\)\}"
APPROVAL = (
    r"needs_approval is .*; use True, False or a function of \(spec, arguments\), not async, that returns one of them"
)
HOOK = (
    "on_approval is .*; pass an async function that takes the question and returns whether the call may run, or 'wait'"
)
LATE = "late_results is .*; it must be one of 'drop', 'event', 'next_turn'"
FOR_ROUND = "provider_for_round is .*; pass a function, not async, of the round's number, from 0"
PROVIDERS = "providers is .*; pass a list of them, or provider= for one"

INSTRUCTIONS = "instructions is .*; pass a string, or a function of the context that returns one"


async def takes_anything(*_given: object) -> bool:
    """Stand for a function of an application that is async by mistake."""
    return False


EITHER: dict[str, tuple[dict[str, Any], str]] = {
    "interceptors-one-alone": ({"interceptors": Interceptor()}, INTERCEPTORS),
    "interceptors-a-number": ({"interceptors": 3}, INTERCEPTORS),
    "interceptors-a-function": ({"interceptors": [len]}, INTERCEPTORS),
    "prices-of-numbers": ({"prices": {"x": 1}}, PRICES),
    "prices-a-number": ({"prices": 3}, PRICES),
    "prices-one-alone": ({"prices": Price(input_per_million=1, output_per_million=1)}, PRICES),
    "approval-a-word": ({"needs_approval": "yes"}, APPROVAL),
    "approval-names-of-tools": ({"needs_approval": ["remove"]}, APPROVAL),
    "approval-an-async-function": ({"needs_approval": takes_anything}, APPROVAL),
    "on-approval-another-word": ({"on_approval": "ask"}, HOOK),
    "on-approval-no-async-function": ({"on_approval": len}, HOOK),
    "late-results-another-word": ({"late_results": "x"}, LATE),
    "late-results-a-list": ({"late_results": []}, LATE),
    "note-failures-a-word": ({"note_failures": "no"}, "note_failures is .*; say True or False"),
    "include-data-a-word": ({"include_data": "no"}, "include_data is .*; say True or False"),
    "guidance-a-text": ({"guidance": "Be brief"}, "guidance is .*; say True or False"),
    "provider-for-round-a-number": ({"provider_for_round": 3}, FOR_ROUND),
    "provider-for-round-a-name": ({"provider_for_round": "openai:x"}, FOR_ROUND),
    "provider-for-round-an-async-function": ({"provider_for_round": takes_anything}, FOR_ROUND),
    "settings-a-dictionary": ({"settings": {"temperature": 1}}, "settings is .*; pass ModelSettings"),
    "instructions-a-number": ({"instructions": 3}, INSTRUCTIONS),
    "instructions-a-function-of-nothing": ({"instructions": lambda: "Be brief."}, INSTRUCTIONS),
    "metadata-a-word": ({"metadata": "x"}, "metadata is .*; pass a dictionary"),
    "providers-a-number": ({"providers": 3}, PROVIDERS),
    "providers-a-name": ({"providers": "extractive"}, PROVIDERS),
}
"""What a runtime and a request refuse alike, and what they say."""

REQUEST: dict[str, tuple[dict[str, Any], str]] = {
    "output-a-json-schema": ({"output": {"type": "object"}}, "output=.* has no JSON schema"),
    "conversation-id-a-number": ({"conversation_id": 3}, "conversation_id is .*; pass a string"),
    "providers-none": ({"providers": []}, "providers is empty; a request needs a provider"),
}
"""What a request refuses besides."""

SUBREQUEST: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "provider-a-name": ({"provider": "extractive"}, ConfigurationError, "names are for a Runtime"),
    "provider-a-number": ({"provider": 3}, ConfigurationError, r"has no respond\(request, emit\)"),
    "tools-a-word": ({"tools": "x"}, ConfigurationError, "tools is a str .*; pass a list of functions"),
    "limits-a-dictionary": ({"limits": {}}, ConfigurationError, "limits is a dict .*; pass Limits"),
    "interceptors-a-number": ({"interceptors": 3}, ConfigurationError, INTERCEPTORS),
    "an-option-that-does-not-exist": ({"nope": 1}, TypeError, "sub_request_tool 'd': there is no option nope"),
    "an-option-by-another-name": (
        {"model": 1},
        TypeError,
        r"no option model \(did you mean provider\?\); .* are provider",
    ),
}
"""What a tool that makes requests refuses when it is made."""


@pytest.mark.parametrize(("options", "reported"), EITHER.values(), ids=EITHER)
def test_a_runtime_refuses_an_option_of_a_wrong_kind_when_it_is_made(options: dict[str, Any], reported: str) -> None:
    given: dict[str, Any] = {} if "providers" in options else {"provider": ScriptedProvider([])}
    with pytest.raises(ConfigurationError, match=reported):
        Runtime(**given, **options)


@pytest.mark.parametrize(("options", "reported"), [*EITHER.values(), *REQUEST.values()], ids=[*EITHER, *REQUEST])
async def test_a_request_refuses_an_option_of_a_wrong_kind_before_it_starts(
    options: dict[str, Any], reported: str
) -> None:
    heard: list[Event] = []
    async with Runtime(ScriptedProvider([])) as runtime:
        runtime.bus.connect(Event, heard.append)
        with pytest.raises(ConfigurationError, match=reported):
            await cast("Any", runtime.run("hi", **options))
    assert heard == []


@pytest.mark.parametrize(("options", "kind", "reported"), SUBREQUEST.values(), ids=SUBREQUEST)
def test_a_tool_of_sub_requests_refuses_an_option_of_a_wrong_kind_when_it_is_made(
    options: dict[str, Any], kind: type[Exception], reported: str
) -> None:
    make = cast("Callable[..., Any]", sub_request_tool)
    with pytest.raises(kind, match=reported):
        make("d", "D", **options)


async def test_an_answer_that_is_no_json_is_reported_in_one_sentence() -> None:
    async with Runtime(ScriptedProvider(lambda _request: text("hm"))) as runtime:
        result = await runtime.start("x", output=int).result()
    assert result.reason == "invalid_output"
    assert "the answer is not valid JSON" in str(result.error)
