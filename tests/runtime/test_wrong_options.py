"""Options that are held wrong: the error comes at once, names the option, and says what to give instead."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from toolbus import (
    EventBus,
    Interceptor,
    Limits,
    ModelSettings,
    Price,
    RequestSession,
    Runtime,
    Tool,
    ToolContext,
    ToolDispatcher,
    ToolRegistry,
    tool,
)
from toolbus.errors import ConfigurationError, NotRunning
from toolbus.events import ApprovalRequested
from toolbus.messages import UserMessage
from toolbus.remote.nats import NatsExecutor, ToolWorker
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends

anyio_backend = virtual_backends()


@tool
async def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"sunny in {city}"


class Fine(Interceptor):
    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        return prompt


def shout(prompt: str) -> str:
    return prompt.upper()


EITHER: list[tuple[dict[str, Any], str]] = [
    ({"interceptors": [shout]}, "pass a list of objects whose classes derive from toolbus.Interceptor"),
    ({"interceptors": [Fine(), Fine]}, "pass a list of objects whose classes derive from toolbus.Interceptor"),
    ({"limits": {}}, r"limits is a dict .*; pass Limits, for example Limits\(max_rounds=3\)"),
    ({"limits": 3}, r"pass Limits, for example Limits\(max_rounds=3\)"),
    ({"on_busy": "later"}, "on_busy is .*; it must be one of 'queue', 'refuse', 'replace'"),
    ({"on_busy": True}, "on_busy is .*; it must be one of 'queue', 'refuse', 'replace'"),
    ({"provider": 3}, "3 is not a provider: pass 'openai:MODEL'"),
    ({"provider": "nonsense:x"}, "there is no provider 'nonsense:x': pass 'openai:MODEL'"),
    ({"providers": ["nonsense:x"]}, "there is no provider 'nonsense:x': pass 'openai:MODEL'"),
    ({"provider": "extractive", "providers": ["extractive"]}, "pass provider=, or providers="),
    ({"tools": get_weather}, r"a single one; pass a list: tools=\[get_weather\]"),
    ({"tools": "get_weather"}, "tools is a str .*; pass a list of functions"),
]
"""What a runtime and a request refuse alike."""

REQUEST: list[tuple[dict[str, Any], str]] = [
    ({"output": object()}, "output=.* has no JSON schema"),
    ({"output": 3}, "output=3 has no JSON schema"),
    ({"output": "Weather"}, "output='Weather' has no JSON schema"),
    ({"output": type("Handle", (), {})}, "output=.* has no JSON schema"),
    ({"output": Callable[[], int]}, "output=.* has no JSON schema"),
    ({"history": "hello"}, "history is a str .*; pass a list of messages"),
]


def shown(value: Any) -> str:
    return next(iter(cast("dict[str, Any]", value))) if isinstance(value, dict) else ""


@pytest.mark.parametrize(("options", "reported"), [*EITHER, *REQUEST], ids=shown)
async def test_a_request_with_an_option_of_a_wrong_kind_is_refused_before_it_starts(
    options: dict[str, Any], reported: str
) -> None:
    heard: list[Any] = []
    async with Runtime(ScriptedProvider(lambda _request: text("ok"))) as runtime:
        from toolbus.events import Event

        runtime.bus.connect(Event, heard.append)
        for begin in (runtime.start, runtime.run):
            with pytest.raises(ConfigurationError, match=reported):
                await cast("Any", begin("hi", conversation_id="c", **options))
        assert (heard, runtime.bus.statistics().mailboxes) == ([], 0)
        assert (await runtime.run("hi", conversation_id="c", on_busy="refuse")).history_count == 0


@pytest.mark.parametrize(
    ("options", "reported"), [each for each in EITHER if set(each[0]) != {"interceptors"}], ids=shown
)
def test_a_runtime_with_an_option_of_a_wrong_kind_is_refused_when_it_is_made(
    options: dict[str, Any], reported: str
) -> None:
    given: dict[str, Any] = {"provider": ScriptedProvider([]), **options}
    if "providers" in options and "provider" not in options:
        del given["provider"]
    with pytest.raises(ConfigurationError, match=reported):
        Runtime(**given)


@pytest.mark.parametrize("option", ["tool", "system_prompt", "max_rounds", "narator"])
async def test_an_option_that_does_not_exist_is_refused_with_a_list_of_those_that_do(option: str) -> None:
    unknown: dict[str, Any] = {option: 1}
    reported = f"there is no option {option} \\(did you mean .*\\); the options are .*tools.*late_results"
    with pytest.raises(TypeError, match=f"Runtime: {reported}"):
        Runtime(ScriptedProvider([]), **unknown)
    async with Runtime(ScriptedProvider([])) as runtime:
        reported = f"a request: there is no option {option}.*; the options are .*late_results.*on_busy"
        with pytest.raises(TypeError, match=reported):
            runtime.start("hi", **unknown)
        with pytest.raises(TypeError, match=reported):
            await runtime.run("hi", **unknown)


def test_an_option_with_a_slip_in_its_name_is_told_the_one_that_is_alike() -> None:
    slips: list[tuple[Callable[..., Any], str]] = [
        (lambda: Runtime(ScriptedProvider([]), **cast("Any", {"tols": []})), "tools"),
        (lambda: Runtime(ScriptedProvider([]), **cast("Any", {"instuctions": "x"})), "instructions"),
        (lambda: tool(**cast("Any", {"timeout": 3}))(shout), "timeout_seconds"),
    ]
    for slip, meant in slips:
        with pytest.raises(TypeError, match=f" \\(did you mean {meant}\\?\\); the "):
            slip()


IN_A_RUNTIME = {
    "model": "provider",
    "system_prompt": "instructions",
    "timeout": "limits=Limits(timeout_seconds=...)",
    "max_turns": "limits=Limits(max_rounds=...)",
    "retry": "limits=Limits(max_model_attempts=...)",
    "temperature": "settings=ModelSettings(temperature=...)",
}
ELSEWHERE = {
    tool: {"timeout": "timeout_seconds", "retry": "retries", "max_retries": "retries"},
    Limits: {
        "timeout": "timeout_seconds",
        "retry": "max_model_attempts",
        "max_turns": "max_rounds",
        "max_round": "max_rounds",
    },
    ModelSettings: {"max_tokens": "max_output_tokens", "reasoning": "reasoning_effort"},
    Price: {"input_price_million": "input_per_million"},
}


@pytest.mark.parametrize(("option", "meant"), IN_A_RUNTIME.items())
async def test_a_name_of_another_library_is_answered_with_the_option_that_is_meant(option: str, meant: str) -> None:
    given: dict[str, Any] = {option: "5"}
    provider = ScriptedProvider([])
    async with Runtime(provider) as runtime:
        for begin in (
            lambda: Runtime(**given),
            lambda: RequestSession(EventBus(), provider, "hi", **given),
            lambda: runtime.start("hi", **given),
        ):
            with pytest.raises(
                TypeError, match=f"there is no option {option} \\(did you mean {re.escape(meant)}\\?\\); the "
            ):
                begin()


@pytest.mark.parametrize(
    ("make", "option", "meant"), [(make, *pair) for make, names in ELSEWHERE.items() for pair in names.items()]
)
def test_a_tool_limits_settings_and_prices_answer_with_their_own_names(
    make: Callable[..., Any], option: str, meant: str
) -> None:
    with pytest.raises(TypeError, match=f"there is no option {option} \\(did you mean {meant}\\?\\); the "):
        (make(**{option: 5})(shout) if make is tool else make(**{option: 5}))


def test_limits_keep_their_signature_and_their_errors_for_all_else() -> None:
    assert inspect.signature(Limits).parameters["max_rounds"].default == Limits().max_rounds
    with pytest.raises(TypeError, match=r"^Limits: an int \(3\) has no name; write Limits\(max_rounds=\.\.\.\)$"):
        Limits(*[3])
    assert dataclasses.replace(Limits(max_rounds=4), max_repeats=2).max_rounds == 4


def test_a_runtime_that_is_entered_without_async_says_how_it_is_entered() -> None:
    with pytest.raises(NotRunning, match=r"`async with Runtime\(...\) as runtime:`.*run_sync"):  # noqa: SIM117
        with cast("Any", Runtime(ScriptedProvider([]))):
            pass


@pytest.mark.parametrize("slip", ["runtime.run_sync('hi')", "await runtime.run('hi')"])
async def test_in_a_notebook_the_error_shows_two_lines_that_work(slip: str) -> None:
    cell: dict[str, Any] = {"runtime": Runtime(ScriptedProvider(lambda _request: text("ok")))}

    async def enter(code: str) -> None:
        made = eval(compile(code, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), cell)
        if made is not None:
            await made

    with pytest.raises(NotRunning) as refused:
        await enter(slip)
    _, lines = str(refused.value).split("\n\n")
    await enter(textwrap.dedent(lines))
    assert cell["result"].text == "ok"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"store": "app.db"}, r"store is a str \('app.db'\); pass a Store, such as SqliteStore\('toolbus.db'\)"),
        ({"store": MemoryStore}, "store is the class MemoryStore; pass a Store"),
        ({"store": Mock(spec=["journal", "history"])}, "a Mock .* is not a Store: it lacks remember, conversations, "),
        ({"store": Mock(spec=MemoryStore, journal=Mock(spec=["append"]))}, "is not a JournalStore: it lacks facts, "),
        ({"max_sessions": "3"}, "max_sessions is '3'; it must be a whole number of at least 1"),
        ({"max_queued": -1}, "max_queued is -1; it must be a whole number of at least 0"),
        ({"max_threads": "3"}, "max_threads is '3'; it must be a whole number of at least 1"),
        ({"grace_seconds": None}, "grace_seconds is None; it must be a finite number of at least 0"),
        ({"drain_seconds": "3"}, "drain_seconds is '3'; it must be a finite number of at least 0"),
        ({"keep_ended_seconds": -1}, "keep_ended_seconds is -1; it must be a finite number of at least 0"),
        ({"lease_seconds": None}, "lease_seconds is None; it must be a finite number above 0"),
        ({"bus": {}}, "bus is {}; pass an EventBus"),
        ({"executors": {"gpu": 7}}, r"executors is a dict \({'gpu': 7}\); pass a list of executors for pools, such as"),
        ({"executors": Mock(spec=["pools", "attach"])}, "executors is a Mock .*; pass a list of executors"),
        ({"executors": None}, r"executors is a NoneType \(None\); pass a list of executors"),
        ({"executors": [7]}, r"an int \(7\) is not a PoolExecutor: it lacks pools, attach; pass a list of executors"),
        ({"executors": [NatsExecutor]}, "the class NatsExecutor is not a PoolExecutor: make an instance of it; pass"),
        (
            {"store": MemoryStore(journal=True), "relay": "nats://x"},
            r"a str \('nats://x'\) is not a Relay: it lacks .*; pass",
        ),
        ({"provider": [text("Hi.")]}, r"is not a provider: pass .*; for a script, ScriptedProvider\(\[...\]\)"),
    ],
    ids=shown,
)
def test_a_runtime_refuses_what_its_own_options_cannot_be(options: dict[str, Any], reported: str) -> None:
    given: dict[str, Any] = {"provider": ScriptedProvider([]), **options}
    with pytest.raises(ConfigurationError, match=reported):
        Runtime(**given)


@pytest.mark.parametrize("given", [None, 3, "shout", shout], ids=shown)
def test_what_is_not_a_list_is_refused_as_tools_and_as_pools(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"tools is .*; pass a list"):
        ToolRegistry(given)
    with pytest.raises(ConfigurationError, match=r"tools is .*; pass a list"):
        ToolWorker("nats://127.0.0.1", given, pool="gpu")
    with pytest.raises(ConfigurationError, match=r"pools is .*; pass a list of names of pools"):
        ToolDispatcher(EventBus(), pools=given)


def test_the_options_of_the_dispatcher_have_the_same_defaults_in_a_runtime() -> None:
    names = ("max_concurrency", "max_threads", "max_processes", "grace_seconds")
    own, dispatchers = (inspect.signature(kind).parameters for kind in (Runtime, ToolDispatcher))
    assert [own[name].default for name in names] == [dispatchers[name].default for name in names]


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"timeout_seconds": "3"}, "tool 'shout': timeout_seconds is '3'; it must be a finite number above 0"),
        ({"max_concurrency": "3"}, "tool 'shout': max_concurrency is '3'; it must be a whole number of at least 1"),
        ({"retries": "3"}, "tool 'shout': retries is '3'; it must be 0 to 10"),
    ],
    ids=shown,
)
def test_a_tool_refuses_numbers_that_are_none(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(ConfigurationError, match=reported):
        tool(**options)(shout)


def test_a_tool_refuses_a_schema_that_is_text() -> None:
    with pytest.raises(ConfigurationError, match="tool 'shout': its schema is a str; pass a dictionary"):
        Tool("shout", "Shout.", cast("Any", '{"type": "object"}'), shout)


@pytest.mark.parametrize("given", [("shout", {"prompt": "hi"}), (("shout",),), (("shout", 3),), ({"shout": {}},)])
def test_a_scripted_call_that_is_no_pair_is_refused_with_the_form_that_it_has(given: tuple[Any, ...]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"is not a call: pass pairs .*calls\(\('get_weather', {'city': 'Paris'}\)\)"
    ):
        calls(*given)


async def test_steering_and_cancelling_with_what_is_no_text_are_refused_and_the_request_goes_on() -> None:
    async with Runtime(ScriptedProvider([text("ok")])) as runtime:
        session = runtime.start("hi")
        with pytest.raises(ConfigurationError, match=r"text is ' '; pass a string that is not empty"):
            session.steer(" ")
        with pytest.raises(ConfigurationError, match=r"text is ''; pass a string that is not empty"):
            await runtime.request(session.request_id).steer("")
        with pytest.raises(ConfigurationError, match=r"text is 3; pass a string"):
            session.steer(cast("Any", 3))
        with pytest.raises(ConfigurationError, match=r"reason is None; pass a string"):
            session.cancel(cast("Any", None))
        assert (await session.result()).text == "ok"
        for steer in (session.steer, runtime.request(session.request_id).steer):  # whatever the request does by now
            with pytest.raises(ConfigurationError, match=r"text is None; pass a string"):
                steered: Any = steer(cast("Any", None))
                await steered


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"by": None}, r"by is None; pass a string"),
        ({"reason": 5}, r"reason is 5; pass a string"),
        ({"approved": "no"}, "approved is 'no'; say True or False"),
        ({"remember": None}, "remember is None; say True or False"),
        ({"arguments": [1]}, r"arguments is \[1\]; pass a dictionary, or None to leave them as they are"),
        ({"arguments": {"to": {1}}}, r"arguments are not JSON: Type is not JSON serializable: set, at to"),
    ],
)
def test_a_decision_that_no_journal_could_read_again_is_refused_when_it_is_made(
    given: dict[str, Any], reported: str
) -> None:
    question = ApprovalRequested(call_id="c", name="pay", arguments={}, timeout_seconds=60.0)
    with pytest.raises(ConfigurationError, match=reported):
        question.decided(**cast("Any", {"approved": True, **given}))


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"on_limit": "ask"}, "on_limit is 'ask'; it must be 'answer' or 'stop'"),
        ({"on_failure": "stop"}, "on_failure is 'stop'; it must be 'collect' or 'fail_fast'"),
        ({"stop_on": {"timeouts"}}, "stop_on has 'timeouts'; a call fails for one of: .*timeout"),
        ({"stop_on": 3}, "stop_on is 3; it must be a set of reasons"),
        ({"max_cost": 0}, "max_cost is 0; it must be a finite number above 0"),
        ({"max_cost": "5 euros"}, "max_cost is '5 euros'; it must be a number"),
        ({"max_rounds": 2.5}, "max_rounds is 2.5; it must be a whole number"),
        ({"approval_timeout_seconds": -1}, "approval_timeout_seconds is -1; it must be a finite number above 0"),
    ],
    ids=shown,
)
def test_limits_of_a_wrong_kind_say_what_they_must_be(given: dict[str, Any], reported: str) -> None:
    with pytest.raises(ConfigurationError, match=reported):
        Limits(**given)


@pytest.mark.parametrize("price", [-1, "2", float("nan"), True, None])
def test_a_price_that_is_no_amount_is_refused(price: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"input_per_million is .*; it must be a number, 0 or more"):
        Price(input_per_million=price, output_per_million=1)


@pytest.mark.parametrize(
    ("option", "given", "advice"),
    [
        ("temperature", "hot", "it must be a finite number of at least 0"),
        ("temperature", float("nan"), "it must be a finite number of at least 0"),
        ("max_output_tokens", 0, "it must be a whole number of at least 1"),
        ("max_output_tokens", 5.0, "it must be a whole number of at least 1"),
        ("reasoning_effort", 3, "pass a string that is not empty"),
        ("tool_choice", "", "pass a string that is not empty"),
        ("tool_choice", shout, "pass a string that is not empty"),
        ("parallel_tool_calls", "no", "say True or False"),
        ("extra_body", [("seed", 1)], "pass a dictionary"),
    ],
)
def test_settings_of_another_kind_are_refused_when_they_are_made(option: str, given: Any, advice: str) -> None:
    # The vendor answered with an error 400, after the request had begun.
    settings: dict[str, Any] = {option: given}
    with pytest.raises(ConfigurationError, match=f"{option} is .*; {advice}"):
        ModelSettings(**settings)
