"""Results that are kept and shared: hits, equal calls under way, and every way in which their leader may end."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from dispatch_desk import Desk

from toolbus import EventBus, Runtime, ToolDispatcher, ToolError, ToolRegistry, ToolResult, ToolRetry, tool
from toolbus.dispatcher import _cache
from toolbus.errors import ConfigurationError
from toolbus.events import Artifact, Event, ToolCallCompleted, ToolCallFailed, ToolCallRequested, ToolCallStarted
from toolbus.messages import ImagePart
from toolbus.testing import ScriptedProvider, advance, assert_idle, calls, settle, text, virtual_backends
from toolbus.tools import Tool, ToolContext

anyio_backend = virtual_backends()
pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")

PLOT = ImagePart.from_bytes(b"plot", "image/png")


class Source:
    """A tool whose runs wait until each is let go with what it returns or raises. Its answer names its run."""

    def __init__(self, **options: Any) -> None:
        self.begun: list[str] = []
        self.stopped: list[int] = []
        self._ends: dict[int, tuple[anyio.Event, list[Any]]] = {}
        self.grace: anyio.Event | None = None

        async def fetch(word: str) -> Any:
            run = len(self.begun)
            self.begun.append(word)
            gate, answer = self._end(run)
            try:
                await gate.wait()
            except BaseException:
                self.stopped.append(run)
                if self.grace is not None:
                    with anyio.CancelScope(shield=True):
                        await self.grace.wait()
                    return f"late run {run}"
                raise
            if answer and isinstance(answer[0], BaseException):
                raise answer[0]
            return answer[0] if answer else f"run {run}"

        settings: dict[str, Any] = {"cache_seconds": 60, **options}
        self.tool: Tool = Tool("fetch", handler=fetch, **settings)

    def _end(self, run: int) -> tuple[anyio.Event, list[Any]]:
        return self._ends.setdefault(run, (anyio.Event(), []))

    def let_go(self, run: int, *answer: Any) -> None:
        gate, kept = self._end(run)
        kept.extend(answer)
        gate.set()


def contents(desk: Desk, *call_ids: str) -> list[str]:
    """How the calls ended, as far as they did."""
    return [
        each.content if isinstance(each, ToolCallCompleted) else f"{each.reason}: {each.error}"
        for call_id in call_ids
        for each in desk.endings(call_id)
    ]


# ------------------------------------------------------------------------------------------------- kept results


async def test_a_kept_result_answers_an_equal_call_at_once_and_starts_nothing():
    source, desk = Source(max_concurrency=1), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])) as dispatcher:
        desk.ask("fetch", "c0", word="a")
        await advance(3)
        source.let_go(0)
        first = await desk.completed("c0")
        desk.ask("fetch", "busy", word="b")
        await settle()
        desk.ask("fetch", "c1", word="a")
        (hit,) = desk.endings("c1")
        assert isinstance(hit, ToolCallCompleted)
        assert (hit.content, hit.duration_seconds) == ("run 0", 0.0), "though all its tool's places are taken"
        assert (hit.call_id, hit.name, hit.metadata) == ("c1", "fetch", {"tenant": "t"})
        assert first.duration_seconds == pytest.approx(3)
        assert [each.call_id for each in desk.seen(ToolCallStarted)] == ["c0", "busy"]
        statistics = dispatcher.statistics()
        assert (statistics.cached, statistics.cache_hits, statistics.running) == (1, 1, 1)
    assert source.begun == ["a", "b"]


async def test_results_are_kept_for_so_long_over_all_requests():
    source, bus = Source(cache_seconds=10), EventBus()
    one, other = Desk(bus, request_id="one"), Desk(bus, request_id="other")
    async with ToolDispatcher(bus, ToolRegistry([source.tool])):
        source.let_go(0)
        one.ask("fetch", "c", word="a")
        await one.completed("c")
        await advance(9.9)
        other.ask("fetch", "c", word="a")
        assert len(source.begun) == 1
        await advance(0.1)
        source.let_go(1)
        one.ask("fetch", "d", word="a")
        assert (await one.completed("d")).content == "run 1"


async def test_equal_means_the_same_tool_and_the_same_json():
    @tool(cache_seconds=60)
    async def echo(a: Any, b: Any = None) -> str:
        """Echo."""
        ran.append((a, b))
        return "x"

    ran: list[Any] = []
    desk = Desk()
    other = Tool("other", handler=echo.handler, cache_seconds=60)
    async with ToolDispatcher(desk.bus, ToolRegistry([echo, other])):
        asked: list[tuple[str, dict[str, Any]]] = [
            ("echo", {"a": {"x": 1, "y": [1, 2]}, "b": 2}),
            ("echo", {"b": 2, "a": {"y": [1, 2], "x": 1}}),
            ("echo", {"a": {"x": 1, "y": [2, 1]}, "b": 2}),
            ("echo", {"a": 1}),
            ("echo", {"a": 1.0}),
            ("echo", {"a": "1"}),
            ("echo", {"a": True}),
            ("other", {"a": 1}),
        ]
        for number, (name, arguments) in enumerate(asked):
            desk.ask(name, str(number), **arguments)
            await desk.completed(str(number))
    assert len(ran) == len(asked) - 1, "keys in another order alone are the same"


async def test_a_tool_that_was_replaced_has_no_results_of_the_old_one():
    old, new, desk = Source(), Source(), Desk()
    registry = ToolRegistry([old.tool])
    async with ToolDispatcher(desk.bus, registry):
        old.let_go(0, "old")
        desk.ask("fetch", "c0", word="a")
        await desk.completed("c0")
        registry.replace(new.tool)
        new.let_go(0, "new")
        desk.ask("fetch", "c1", word="a")
        assert (await desk.completed("c1")).content == "new"


async def test_a_whole_result_is_kept_and_each_call_has_its_own_copy_of_it():
    artifact = Artifact(name="a", content="b")
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        result = ToolResult(message="ok", data={"rows": [1]}, artifacts=[artifact], affected=["x"], parts=[PLOT])
        source.let_go(0, result)
        desk.ask("fetch", "c0", word="a")
        desk.ask("fetch", "c1", word="a")
        await desk.completed("c1")
        desk.ask("fetch", "c2", word="a")
        events = [await desk.completed(each) for each in ("c0", "c1", "c2")]
    for each in events:
        assert each.data == {"rows": [1]}, "what somebody did to another one's does not show"
        each.data["rows"].append(2)
        assert (each.artifacts, each.affected) == ((artifact,), ("x",))
        assert each.content == '{"ok":true,"message":"ok","affected":1,"data":{"rows":[1]}}'
        assert each.parts == (PLOT,)
    assert len({id(each.artifacts[0]) for each in events}) == 3
    assert len({id(each.parts[0]) for each in events}) == 3


async def test_at_most_a_thousand_results_are_kept_and_the_one_unused_for_longest_goes_first():
    ran: list[int] = []

    @tool(cache_seconds=3600)
    async def square(number: int) -> int:
        """Square."""
        ran.append(number)
        return number**2

    desk = Desk()

    async def ask(number: int, call_id: str) -> None:
        desk.ask("square", call_id, number=number)
        await settle()
        assert contents(desk, call_id) == [str(number**2)]
        desk.events.clear()

    async with ToolDispatcher(desk.bus, ToolRegistry([square])) as dispatcher:
        for number in range(1000):
            await ask(number, str(number))
        await ask(0, "used")
        await ask(1000, "one more")
        assert dispatcher.statistics().cached == 1000
        ran.clear()
        await ask(0, "kept")
        assert ran == []
        await ask(1, "gone")
        assert ran == [1]


async def test_kept_results_are_bounded_in_bytes_and_the_newest_one_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_cache, "_MAX_BYTES", 10_000)

    @tool(cache_seconds=60)
    async def page(size: int) -> ToolResult:
        """Page."""
        return ToolResult(message="", data="x" * size, artifacts=[Artifact(name="whole", content="y" * size)])

    desk, counts = Desk(), list[int]()
    async with ToolDispatcher(desk.bus, ToolRegistry([page])) as dispatcher:
        for size in (1_500, 1_501, 1_500, 1_502, 20_000, 1_503, 1_504, 1_505):
            if len(counts) == 2:
                await advance(61)  # So the third call replaces the first result.
            desk.ask("page", f"{size}-{len(counts)}", size=size)
            await settle()
            counts.append(dispatcher.statistics().cached)
    assert counts == [1, 2, 2, 2, 1, 1, 2, 2]


async def test_the_arguments_of_kept_results_are_not_kept():
    """A model writes them, and the bound on bytes does not count them."""

    @tool(cache_seconds=60)
    async def size(text: str) -> int:
        """Return the size of a text."""
        return len(text)

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([size])) as dispatcher:
        desk.ask("size", text="x" * 100_000)
        assert (await desk.completed()).content == "100000"
        await settle()
        (key,) = dispatcher._cache._results  # pyright: ignore[reportPrivateUsage]
        assert len(key[1]) == 32


async def test_a_tool_of_one_request_is_not_kept_alive_by_its_results():
    def made() -> Tool:
        async def fetch() -> str:
            return "x"

        return Tool("fetch", handler=fetch, cache_seconds=60)

    desk = Desk()
    registry = ToolRegistry([made()])
    kept = weakref.ref(next(iter(registry)))
    async with ToolDispatcher(desk.bus, registry) as dispatcher:
        desk.ask("fetch")
        await desk.completed()
        await settle()
        registry.remove("fetch")
        gc.collect()
        assert kept() is None
        assert dispatcher.statistics().cached == 1


async def test_arguments_that_cannot_be_told_apart_are_not_shared():
    ran: list[int] = []

    @tool(cache_seconds=60)
    async def big(number: Any) -> str:
        """Take any number."""
        ran.append(number)
        return "x"

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([big])):
        for call_id in ("c0", "c1"):
            desk.ask("big", call_id, number=2**70)
        assert [(await desk.failed(each)).reason for each in ("c0", "c1")] == ["invalid_arguments"] * 2


async def test_without_cache_seconds_nothing_is_shared():
    source, desk = Source(cache_seconds=None), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])) as dispatcher:
        for run in range(2):
            desk.ask("fetch", str(run), word="a")
            source.let_go(run)
        assert [(await desk.completed(str(run))).content for run in range(2)] == ["run 0", "run 1"]
        assert dispatcher.statistics().cached == 0


# ------------------------------------------------------------------------------------------------- calls under way


async def test_equal_calls_wait_for_the_one_that_runs_take_no_place_and_share_its_result_in_order():
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool]), max_concurrency=1) as dispatcher:
        desk.ask("fetch", "c0", word="a")
        await advance(2)
        for number in range(1, 4):
            desk.ask("fetch", f"c{number}", word="a")
        await advance(3)
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.queued) == (1, 0)
        source.let_go(0)
        await settle()
        ended = [each for each in desk.events if isinstance(each, ToolCallCompleted)]
        assert [(each.call_id, each.content) for each in ended] == [(f"c{number}", "run 0") for number in range(4)]
        assert [each.duration_seconds for each in ended] == [pytest.approx(each) for each in (5, 3, 3, 3)]
        assert [each.call_id for each in desk.seen(ToolCallStarted)] == ["c0"]
        assert dispatcher.statistics().cache_hits == 3
    assert source.begun == ["a"]


@pytest.mark.parametrize(
    ("failure", "reported"),
    [
        (ToolError("closed today"), "error: closed today"),
        (ToolRetry("ask again"), "error: ask again"),
        (ValueError("secret"), "error: The tool failed with an internal error."),
        (SystemExit(1), "error: The tool failed with an internal error."),
        (object(), "error: "),
    ],
    ids=["words", "hint", "bug", "exit", "unwritable"],
)
async def test_a_failure_is_shared_and_not_kept(failure: Any, reported: str):
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])) as dispatcher:
        for number in range(3):
            desk.ask("fetch", f"c{number}", word="a")
        source.let_go(0, failure)
        await settle()
        assert all(each.startswith(reported) for each in contents(desk, "c0", "c1", "c2"))
        assert len(contents(desk, "c0", "c1", "c2")) == 3
        assert (dispatcher.statistics().cached, dispatcher.statistics().cache_hits) == (0, 0)
        source.let_go(1)
        desk.ask("fetch", "c3", word="a")
        assert (await desk.completed("c3")).content == "run 1"


async def test_arguments_that_do_not_fit_fail_all_who_sent_them():
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        for call_id in ("c0", "c1"):
            desk.ask("fetch", call_id, word=3)
        assert [(await desk.failed(each)).reason for each in ("c0", "c1")] == ["invalid_arguments"] * 2


async def test_the_leaders_retries_are_everybodys():
    source, desk = Source(retries=1), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        for call_id in ("c0", "c1"):
            desk.ask("fetch", call_id, word="a")
        source.let_go(0, ValueError())
        source.let_go(1)
        await advance(5)
        assert contents(desk, "c0", "c1") == ["run 1", "run 1"]


@pytest.mark.guarantee("G09")
@pytest.mark.parametrize("reason", ["timeout", "cancelled"])
async def test_when_the_leader_is_settled_by_its_request_the_next_in_line_runs(reason: str):
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool]), max_concurrency=1) as dispatcher:
        for number in range(3):
            desk.ask("fetch", f"c{number}", word="a")
        await settle()
        desk.settle("c0", reason=reason)
        await settle()
        assert (source.begun, source.stopped) == (["a", "a"], [0])
        assert contents(desk, "c1", "c2") == [], "they are not the ones that ran out of time"
        desk.settle("c1", reason=reason)
        await settle()
        source.let_go(2)
        assert (await desk.completed("c2")).content == "run 2"
        await settle()
        assert (dispatcher.statistics().running, dispatcher.statistics().cached) == (0, 1)
    assert desk.bus.statistics().late_results == 0
    assert [each.call_id for each in desk.seen(ToolCallStarted)] == ["c0", "c1", "c2"]


async def test_a_listener_to_a_shared_result_may_settle_another_call_that_waits_for_it():
    source, desk = Source(), Desk()
    desk.bus.connect(ToolCallCompleted, lambda event: event.call_id == "c1" and desk.settle("c2"))
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        for number in range(4):
            desk.ask("fetch", f"c{number}", word="a")
        await settle()
        source.let_go(0)
        await settle()
        assert contents(desk, "c0", "c1", "c3") == ["run 0"] * 3
        assert (await desk.failed("c2")).reason == "timeout"
    assert desk.bus.statistics().late_results == 0


async def test_a_leader_that_is_settled_before_it_began_is_followed_by_the_next_in_line():
    source, desk = Source(max_concurrency=1), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])) as dispatcher:
        desk.ask("fetch", "other", word="b")
        for number in range(3):
            desk.ask("fetch", f"c{number}", word="a")
        await settle()
        assert dispatcher.statistics().queued == 1
        desk.settle("c0")
        assert dispatcher.statistics().queued == 1
        source.let_go(0)
        source.let_go(1)
        await settle()
        assert contents(desk, "c1", "c2") == ["run 1", "run 1"]
    assert source.begun == ["b", "a"]


async def test_a_leader_that_is_settled_between_its_admission_and_its_worker_is_followed_by_the_next_in_line():
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        desk.ask("fetch", "c0", word="a")
        desk.ask("fetch", "c1", word="a")
        desk.settle("c0")
        source.let_go(0)
        assert (await desk.completed("c1")).content == "run 0"
    assert source.begun == ["a"]


async def test_what_the_old_leader_says_late_is_neither_shared_nor_kept():
    source, desk = Source(), Desk()
    source.grace = anyio.Event()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])) as dispatcher:
        desk.ask("fetch", "c0", word="a")
        desk.ask("fetch", "c1", word="a")
        await settle()
        desk.settle("c0")
        source.grace.set()
        await settle()
        assert desk.bus.statistics().late_results == 1
        assert (contents(desk, "c1"), dispatcher.statistics().cached) == ([], 0)
        source.let_go(1)
        assert (await desk.completed("c1")).content == "run 1"


@pytest.mark.parametrize("leaves", ["c1", "c2"])
async def test_a_follower_that_is_settled_leaves_the_line_and_never_runs(leaves: str):
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])) as dispatcher:
        for number in range(3):
            desk.ask("fetch", f"c{number}", word="a")
        await settle()
        desk.settle(leaves)
        assert dispatcher.statistics().overdue == ()
        source.let_go(0)
        await settle()
        stays = "c2" if leaves == "c1" else "c1"
        assert contents(desk, "c0", stays) == ["run 0", "run 0"]
        assert len(desk.endings(leaves)) == 1
        desk.ask("fetch", "next", word="a")
        assert contents(desk, "next") == ["run 0"]
    assert (source.begun, desk.bus.statistics().late_results) == (["a"], 0)


async def test_when_all_have_left_the_next_call_runs_on_its_own():
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        for number in range(2):
            desk.ask("fetch", f"c{number}", word="a")
        await settle()
        desk.settle("c1")
        desk.settle("c0")
        await settle()
        source.let_go(1)
        desk.ask("fetch", "c2", word="a")
        assert (await desk.completed("c2")).content == "run 1"


@pytest.mark.parametrize("succeeds", [True, False])
async def test_who_asks_or_leaves_while_the_others_are_told_is_served_as_well(succeeds: bool):
    """A receiver that reacts to the leader's ending inline, before the others have theirs."""
    source, desk = Source(), Desk()

    def react(event: Event) -> None:
        if isinstance(event, (ToolCallCompleted, ToolCallFailed)) and event.call_id == "c0":
            desk.settle("c1", reason="cancelled")
            desk.ask("fetch", "new", word="a")

    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        for number in range(3):
            desk.ask("fetch", f"c{number}", word="a")
        desk.bus.connect((ToolCallCompleted, ToolCallFailed), react)
        source.let_go(0, *([] if succeeds else [ToolError("no")]))
        source.let_go(1, "again")
        await settle()
        shared = "run 0" if succeeds else "error: no"
        assert contents(desk, "c0", "c1", "c2") == [shared, "cancelled: late", shared]
        assert contents(desk, "new") == ["run 0" if succeeds else "again"]
    assert desk.bus.statistics().late_results == 0


async def test_closing_answers_the_whole_line_once():
    source, desk = Source(max_concurrency=1), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        for word in ("a", "b"):  # the second one's leader waits for a place
            for number in range(3):
                desk.ask("fetch", f"{word}{number}", word=word)
        await settle()
    for word in ("a", "b"):
        assert (
            contents(desk, *(f"{word}{number}" for number in range(3))) == ["cancelled: The dispatcher was closed."] * 3
        )
    assert (source.begun, desk.bus.statistics().late_results) == (["a"], 0)
    desk.leave()
    await assert_idle(desk.bus)


async def test_a_thread_that_is_given_up_is_followed_by_another_one():
    begun: list[int] = []
    go = threading.Event()

    def block(word: str) -> str:
        begun.append(len(begun))
        if len(begun) == 1:
            assert go.wait(60)
        return f"{word} {len(begun)}"

    desk = Desk()
    made = Tool("block", handler=block, cache_seconds=60)
    try:
        async with ToolDispatcher(desk.bus, ToolRegistry([made])):
            desk.ask("block", "c0", word="a")
            desk.ask("block", "c1", word="a")
            while not begun:
                await anyio.lowlevel.checkpoint()
            desk.settle("c0")
            assert (await desk.completed("c1")).content == "a 2"
    finally:
        go.set()


async def test_two_requests_that_ask_the_same_at_once_run_the_tool_once():
    ran: list[str] = []

    @tool(cache_seconds=60)
    async def look_up(word: str) -> str:
        """Look a word up."""
        ran.append(word)
        await anyio.sleep(1)
        return f"{word}: a word"

    script = [calls(("look_up", {"word": "a"}), ("look_up", {"word": "a"})), text("Done.")]
    results: list[Any] = []

    async def run(runtime: Runtime) -> None:
        results.append(await runtime.run("Go.", provider=ScriptedProvider(list(script))))

    async with Runtime(ScriptedProvider([]), tools=[look_up]) as runtime:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(run, runtime)
        assert runtime.dispatcher.statistics().cache_hits == 3
    assert ran == ["a"]
    assert [each.content for result in results for each in result.tool_calls] == ["a: a word"] * 4


async def test_a_call_that_another_executor_has_taken_is_left_to_it():
    source, desk = Source(), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        source.let_go(0)
        desk.ask("fetch", "c0", word="a")
        await desk.completed("c0")
        desk.bus.arbitration.open_calls(desk.mailbox, ["c1"])
        assert desk.bus.arbitration.watch("r", "c1", lambda: None)
        desk.bus.publish(desk.request("fetch", "c1", word="a"))
        assert desk.endings("c1") == []
        assert desk.seen(ToolCallRequested)[-1].call_id == "c1"


# ------------------------------------------------------------------------------------------------- refusals


async def with_context(context: ToolContext[None]) -> None:
    raise AssertionError(context)


def test_a_result_that_depends_on_more_than_arguments_is_not_to_be_kept():
    with pytest.raises(ConfigurationError, match="only on their arguments; do without the ToolContext"):
        Tool(handler=with_context, cache_seconds=60)


def test_an_external_tool_is_cached_where_it_runs():
    with pytest.raises(ConfigurationError, match="this one is external: cache where it runs"):
        Tool("it", "Of it.", {}, external=True, cache_seconds=60)


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_a_time_that_is_none_is_refused(seconds: float):
    with pytest.raises(ConfigurationError, match="cache_seconds is"):
        Source(cache_seconds=seconds)


async def test_a_summary_that_would_end_the_process_ends_no_call_that_shares_the_result():
    def end(_data: Any) -> str:
        raise SystemExit(1)

    source, desk = Source(summarize=end), Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([source.tool])):
        desk.ask("fetch", "c0", word="a")
        desk.ask("fetch", "c1", word="a")
        source.let_go(0, {"rows": 2})
        for call_id in ("c0", "c1"):
            assert (await desk.completed(call_id)).content == '{"rows":2}'
