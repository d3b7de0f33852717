"""Instrumentation over a runtime: entered where the work is done, nested as the work is, and unable to break it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import SecretStr

from support.journaled import JournaledStore
from toolbus import EventBus, Interceptor, RequestSession, Runtime, ToolContext, ToolDispatcher, tool
from toolbus.errors import ConfigurationError, ProviderUnavailable
from toolbus.events import RequestStarted, ToolCallRequested
from toolbus.instrumentation import Instrumentation, ModelEnded, RequestEnded, ToolEnded
from toolbus.interceptors import Ask
from toolbus.messages import UserMessage
from toolbus.protocols import ModelReply, ModelRequest, Provider, RequestView
from toolbus.records import replace
from toolbus.secrets import MASK
from toolbus.testing import ScriptedProvider, calls, error, hang, record, replay, settle, text, virtual_backends
from toolbus.toolsets.sub_request import sub_request_tool

anyio_backend = virtual_backends()

PATH: ContextVar[str] = ContextVar("PATH", default="")


class Tracks(Instrumentation):
    """Writes down every entry and every end under the path of the work around it, which it makes current."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.threads: dict[str, int] = {}

    @contextlib.contextmanager
    def _inside(self, name: str) -> Generator[Any]:
        token = PATH.set(path := f"{PATH.get()}/{name}")
        self.written.append(path)
        self.threads[path] = threading.get_ident()
        outcomes: list[Any] = []
        try:
            yield outcomes.append
        except BaseException as exc:
            self.written.append(f"{path} raised {type(exc).__name__}")
            raise
        else:
            self.written.append(f"{path} gave {self.words(*outcomes)}")
        finally:
            PATH.reset(token)

    def words(self, outcome: Any = None) -> str:
        return str(getattr(outcome, "text", None) or getattr(outcome, "content", None) or type(outcome).__name__)

    def request(self, view: RequestView) -> contextlib.AbstractContextManager[RequestEnded | None]:
        return self._inside("request")

    def model(self, request: ModelRequest, provider: Provider) -> contextlib.AbstractContextManager[ModelEnded | None]:
        return self._inside(f"{provider.vendor}{request.round}")

    def tool(self, requested: ToolCallRequested) -> contextlib.AbstractContextManager[ToolEnded | None]:
        return self._inside(requested.name)


@tool
async def where() -> str:
    """The path that is current in an async handler."""
    return PATH.get()


@tool
def where_in_thread() -> str:
    """The path that is current in a handler's thread."""
    return f"{PATH.get()} in {threading.get_ident()}"


def scripted(*steps: Any) -> ScriptedProvider:
    return ScriptedProvider(list(steps), vendor="model")


async def test_a_request_its_model_calls_and_its_tools_are_entered_where_they_run_and_get_their_outcome():
    tracks = Tracks()
    provider = scripted(calls(("where", {}), text="Looking."), text("done"))
    async with Runtime(provider, tools=[where], instrumentation=[tracks]) as runtime:
        PATH.set("/caller")
        result = await runtime.run("go")
    assert result.tool_calls[0].content == "/caller/request/where"
    assert tracks.written == [
        "/caller/request",
        "/caller/request/model0",
        "/caller/request/model0 gave ModelReply",
        "/caller/request/where",
        "/caller/request/where gave /caller/request/where",
        "/caller/request/model1",
        "/caller/request/model1 gave ModelReply",
        "/caller/request gave done",
    ]


async def test_parallel_tools_are_beside_each_other_each_in_a_context_of_its_own():
    begun, tracks = anyio.Event(), Tracks()

    @tool
    async def first() -> str:
        """Wait for the second."""
        await begun.wait()
        return PATH.get()

    @tool
    async def second() -> str:
        """Let the first one go."""
        begun.set()
        await anyio.lowlevel.checkpoint()
        return PATH.get()

    provider = scripted(calls(("first", {}), ("second", {})), text("done"))
    async with Runtime(provider, tools=[first, second], instrumentation=[tracks]) as runtime:
        result = await runtime.run("go")
    assert [each.content for each in result.tool_calls] == ["/request/first", "/request/second"]
    assert PATH.get() == ""


async def test_each_attempt_of_a_model_and_of_a_tool_is_entered_anew():
    tracks, attempts = Tracks(), list[str]()

    @tool(retries=1)
    async def flaky() -> str:
        """Fail once."""
        attempts.append(PATH.get())
        if len(attempts) == 1:
            raise ConnectionError
        return "now"

    provider = scripted(error(ProviderUnavailable("busy", retryable=True)), calls(("flaky", {})), text("done"))
    async with Runtime(provider, tools=[flaky], instrumentation=[tracks]) as runtime:
        await runtime.run("go")
    assert attempts == ["/request/flaky"] * 2
    assert tracks.written == [
        "/request",
        "/request/model0",
        "/request/model0 raised ProviderUnavailable",
        "/request/model0",
        "/request/model0 gave ModelReply",
        "/request/flaky",
        "/request/flaky raised ConnectionError",
        "/request/flaky",
        "/request/flaky gave now",
        "/request/model1",
        "/request/model1 gave ModelReply",
        "/request gave done",
    ]


async def test_a_sub_request_inherits_the_instrumentation_and_is_inside_of_its_tool():
    tracks = Tracks()
    research = sub_request_tool("research", "r", provider=scripted(calls(("where", {})), text("found")), tools=[where])
    provider = scripted(calls(("research", {"task": "t"})), text("done"))
    async with Runtime(provider, tools=[research], instrumentation=[tracks]) as runtime:
        await runtime.run("go")
    inside = [each for each in tracks.written if each.startswith("/request/research/")]
    assert inside == [
        "/request/research/request",
        "/request/research/request/model0",
        "/request/research/request/model0 gave ModelReply",
        "/request/research/request/where",
        "/request/research/request/where gave /request/research/request/where",
        "/request/research/request/model1",
        "/request/research/request/model1 gave ModelReply",
        "/request/research/request gave found",
    ]


async def test_a_sync_handler_is_entered_in_its_thread():
    tracks = Tracks()
    provider = scripted(calls(("where_in_thread", {})), text("done"))
    async with Runtime(provider, tools=[where_in_thread], instrumentation=[tracks]) as runtime:
        result = await runtime.run("go")
    path = "/request/where_in_thread"
    assert result.tool_calls[0].content == f"{path} in {tracks.threads[path]}"
    assert tracks.threads[path] != threading.get_ident()


async def test_a_bare_session_takes_the_option_too():
    tracks, bus = Tracks(), EventBus()
    session = RequestSession(
        bus, scripted(calls(("where", {})), text("done")), "go", tools=[where], instrumentation=[tracks]
    )
    async with ToolDispatcher(bus):
        await session.run()
    assert tracks.written[-1] == "/request gave done"


async def test_several_are_left_in_the_opposite_order_of_their_entry():
    written: list[str] = []

    class Named(Instrumentation):
        def __init__(self, name: str) -> None:
            self.name = name

        @contextlib.contextmanager
        def request(self, view: RequestView) -> Generator[None]:
            written.append(f"into {self.name}")
            yield
            written.append(f"out of {self.name}")

    async with Runtime(scripted(text("done")), instrumentation=[Named("a"), Named("b")]) as runtime:
        await runtime.run("go")
    assert written == ["into a", "into b", "out of b", "out of a"]


async def test_a_model_call_is_inside_of_the_interceptors_and_once_for_each_of_their_attempts():
    class Twice(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            await ask(request)
            return await ask(request)

    tracks = Tracks()
    async with Runtime(scripted(text("a"), text("b")), interceptors=[Twice()], instrumentation=[tracks]) as runtime:
        await runtime.run("go")
    assert tracks.written.count("/request/model0") == 2


async def test_a_model_call_is_entered_with_the_messages_that_an_interceptor_has_put_there():
    class Replaces(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            return await ask(replace(request, messages=[UserMessage(content="come")]))

    entered: list[str] = []

    class Listens(Instrumentation):
        @contextlib.contextmanager
        def model(self, request: ModelRequest, provider: Provider) -> Generator[None]:
            entered.extend(each.text for each in request.messages)
            yield

    async with Runtime(scripted(text("a")), interceptors=[Replaces()], instrumentation=[Listens()]) as runtime:
        await runtime.run("go")
    assert entered == ["come"]


async def test_work_that_is_cancelled_is_left_with_the_cancellation_and_the_request_with_its_result():
    tracks = Tracks()
    async with Runtime(scripted(hang()), instrumentation=[tracks]) as runtime:
        session = runtime.start("go")
        await settle()
        session.cancel("enough")
        await session.result()
    cancelled = anyio.get_cancelled_exc_class().__name__
    assert tracks.written[-2:] == [f"/request/model0 raised {cancelled}", "/request gave RequestResult"]


async def test_outcomes_have_no_secrets():
    heard: list[str] = []

    class Listens(Instrumentation):
        @contextlib.contextmanager
        def model(self, request: ModelRequest, provider: Provider) -> Generator[ModelEnded]:
            heard.extend(each.text for each in request.messages)
            yield lambda reply: heard.append(reply.message.text)

        @contextlib.contextmanager
        def tool(self, requested: ToolCallRequested) -> Generator[ToolEnded]:
            heard.append(str(requested.arguments))
            yield lambda rendered: heard.append(rendered.content)

    @tool
    async def login(name: str) -> dict[str, Any]:
        """Log in."""
        return {"name": name, "token": SecretStr("hunter2000")}

    provider = scripted(calls(("login", {"name": "tiger-1234"})), text("It is tiger-1234."))

    class Adds(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            return await ask(replace(request, messages=[UserMessage(content="tiger-1234"), *request.messages[1:]]))

    given: Any = {"secrets": ["tiger-1234"], "instrumentation": [Listens()], "interceptors": [Adds()]}
    async with Runtime(provider, tools=[login], **given) as runtime:
        await runtime.run("My password is tiger-1234")
    words = "\n".join(heard)
    assert "tiger" not in words
    assert "hunter" not in words
    assert MASK in words
    assert len(heard) >= 6


async def test_what_is_carried_is_metadata_of_each_event_and_handed_to_the_request_that_continues(
    monkeypatch: pytest.MonkeyPatch,
):
    class Carries(Instrumentation):
        def __init__(self, text: str) -> None:
            self.text = text
            self.original_metadata: list[Mapping[str, Any] | None] = []

        def request(self, view: RequestView) -> contextlib.AbstractContextManager[None]:
            self.original_metadata.append(view.original_metadata)
            return contextlib.nullcontext()

        def carried(self) -> Mapping[str, str]:
            return {"trace": self.text}

    store, first, second = JournaledStore(), Carries("1"), Carries("2")
    heard: list[Mapping[str, Any] | None] = []
    async with Runtime(scripted(hang()), store=store, metadata={"user": "u"}, instrumentation=[first]) as runtime:
        runtime.bus.connect(RequestStarted, lambda event: heard.append(event.metadata))
        runtime.start("go")
        await settle()
        await runtime.drain(timeout_seconds=0)
    async with Runtime(scripted(text("done")), store=store, instrumentation=[second]) as runtime:
        (session,) = await runtime.resume()
        await session.result()
    assert heard == [{"user": "u", "trace": "1"}]
    assert (first.original_metadata, second.original_metadata) == ([None], [{"user": "u", "trace": "1"}])


class Broken(Tracks):
    """Raises at the given moment of everything."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment

    @contextlib.contextmanager
    def _inside(self, name: str) -> Generator[Any]:
        if self.moment == "enter":
            raise RuntimeError("broken")

        def ended(_outcome: Any) -> None:
            if self.moment == "ended":
                raise SystemExit("broken")

        with contextlib.suppress(*([BaseException] if self.moment == "swallow" else [])):  # what it does is refused
            try:
                yield ended
            finally:
                if self.moment == "exit":
                    raise RuntimeError("broken")

    def request(self, view: RequestView) -> contextlib.AbstractContextManager[RequestEnded | None]:
        if self.moment == "call":
            raise RuntimeError("broken")
        return super().request(view)

    def carried(self) -> Mapping[str, str]:
        if self.moment == "carried":
            raise RuntimeError("broken")
        return {}


@tool
async def fails() -> str:
    """Fail."""
    raise LookupError


@pytest.mark.parametrize("moment", ["call", "enter", "ended", "exit", "swallow", "carried"])
async def test_one_that_raises_or_swallows_changes_nothing_and_is_reported_once(
    moment: str, caplog: pytest.LogCaptureFixture
):
    tracks = Tracks()
    provider = scripted(calls(("where", {}), ("fails", {}), ("where_in_thread", {})), text("done"))
    tools = [where, fails, where_in_thread]
    with caplog.at_level(logging.ERROR, "toolbus.instrumentation"):
        async with Runtime(provider, tools=tools, instrumentation=[Broken(moment), tracks]) as runtime:
            result = await runtime.run("go")
    assert result.outcome == "completed"
    assert [each.ok for each in result.tool_calls] == [True, False, True]
    assert tracks.written[-1] == "/request gave done"
    reported = [each.getMessage() for each in caplog.records if each.name == "toolbus.instrumentation"]
    assert reported == ([] if moment == "swallow" else ["Broken failed; it is not reported again"])


def test_where_nothing_is_continued_the_handler_is_surrounded_by_nothing():
    with Instrumentation.continued({"trace": "1"}):
        pass


@pytest.mark.parametrize("given", [Tracks(), [object()], "tracks"])
def test_something_else_is_refused(given: Any):
    with pytest.raises(ConfigurationError, match="instrumentation"):
        Runtime(scripted(text("done")), instrumentation=given)


async def test_a_recording_with_what_was_carried_replays(tmp_path: Path):
    class Carries(Instrumentation):
        def carried(self) -> Mapping[str, str]:
            return {"trace": "1"}

    research = sub_request_tool("research", "r", provider=scripted(calls(("where", {})), text("found")), tools=[where])
    provider = scripted(calls(("research", {"task": "t"})), text("done"))
    async with Runtime(provider, tools=[research], metadata={"user": "u"}, instrumentation=[Carries()]) as runtime:
        with record(tmp_path / "r.jsonl", runtime) as recorder:
            await runtime.run("go")
    assert (await replay(tmp_path / "r.jsonl")).facts == recorder.facts > 0
