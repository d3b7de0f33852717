"""Processes that share a store's requests: two that go on with the same two hundred, and one that is stopped for too long.

    forked.Process(lease_child.main, {"scene": "fight", "store": "sqlite", "place": FOLDER, "requests": 200})
    forked.Process(lease_child.main, {"scene": "stopped", "store": "postgres", "url": URL, "place": FOLDER})

Prints what was seen as one object of JSON; the test judges it. See `kill_child.py`, whose manner this follows: this
process has all that is needed, and forks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import psycopg  # pyright: ignore[reportUnusedImport] # noqa: F401 -- imported before the first fork
from kill_child import Ledger

from toolbus import RequestSession, Runtime, ToolContext, tool
from toolbus.events import Event, RequestCancelled, RequestCompleted, RequestFailed, RequestResumed, ToolCallRequested
from toolbus.messages import AssistantMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, text

LEASE_SECONDS = 0.3
PATIENCE_SECONDS = 30.0
_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)


class Scene:
    """What the processes share: a store, and a ledger of what each has started and heard."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.path = Path(config["place"]) / "ledger"
        self.who = "main"

    def store(self) -> Any:
        if self.config["store"] == "sqlite":
            return SqliteStore(Path(self.config["place"]) / "shared.db", durability="process")
        from toolbus.stores.postgres import PostgresStore

        return PostgresStore(self.config["url"], durability="process")

    def note(self, *values: Any) -> None:
        Ledger(self.path).write(self.who, *values)

    def noted(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def runtime(self, seconds: float, *, lease_seconds: float = LEASE_SECONDS) -> Runtime:
        def respond(request: ModelRequest) -> Step:
            replies = sum(isinstance(each, AssistantMessage) for each in request.messages)
            return [calls(("look", {"n": 1})), calls(("pay", {"n": 2})), text("Done.")][replies]

        async def work(context: ToolContext[Any]) -> str:
            self.note("started", context.name, context.idempotency_key)
            await anyio.sleep(seconds)
            return "done"

        @tool(idempotent=True)
        async def look(n: int, context: ToolContext[Any]) -> str:
            """Look."""
            return await work(context)

        @tool
        async def pay(n: int, context: ToolContext[Any]) -> str:
            """Pay."""
            return await work(context)

        runtime = Runtime(
            ScriptedProvider(respond, record=False),
            tools=[look, pay],
            store=self.store(),
            lease_seconds=lease_seconds,
            drain_seconds=0,
        )
        runtime.bus.connect(_ENDINGS, self.heard)
        return runtime

    def heard(self, event: Event) -> None:
        self.note("ending", event.type, event.request_id)

    def fork(self, who: str, what: Callable[[], Coroutine[Any, Any, None]]) -> int:
        pid = os.fork()
        if pid:
            return pid
        self.who, code = who, 1
        try:
            anyio.run(what)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_true():
            assert time.monotonic() < deadline, self.noted()
            time.sleep(0.005)

    async def resume_all(self) -> None:
        """Go on with what is free until nothing is unfinished."""
        mine: list[RequestSession] = []
        # A busy machine must not take a lease from who holds it, where nobody is to lose one.
        seconds = 30 if self.config["scene"] == "fight" else LEASE_SECONDS
        runtime = self.runtime(0.001, lease_seconds=seconds)
        with anyio.fail_after(PATIENCE_SECONDS):
            async with runtime:
                journal = runtime.store.journal
                assert journal is not None
                while (await journal.statistics()).unfinished:
                    resumption = await runtime.resume(limit=20)
                    assert not resumption.problems, resumption.problems
                    mine += resumption.sessions
                    await anyio.sleep(0.005)
                for session in mine:
                    result = await session.result()
                    self.note("result", session.request_id, result.outcome, result.resumable)


# ---------------------------------------------------------------------------------------------------- the fight


async def _begin(scene: Scene, count: int) -> None:
    """Requests that are left where a call of theirs runs."""
    async with scene.runtime(60, lease_seconds=30) as runtime:
        sessions = [runtime.start("Go.") for _ in range(count)]
        started = 0
        while started < count:
            await anyio.sleep(0.01)
            started = sum(each[1] == "started" for each in scene.noted())
        del sessions


def fight(scene: Scene) -> dict[str, Any]:
    anyio.run(_begin, scene, scene.config["requests"])
    scene.path.unlink()
    pids = [scene.fork(who, scene.resume_all) for who in ("one", "other")]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return {"codes": codes, "noted": scene.noted(), "facts": anyio.run(_facts, scene)}


# ------------------------------------------------------------------------------------------------- the stopped one


async def _run_and_tell(scene: Scene) -> None:
    """Requests of a process that is stopped while their calls run, half of them for ever as they think."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with scene.runtime(0.2) as runtime:
            sessions = [runtime.start("Go.") for _ in range(5)]
            for session in sessions:
                result = await session.result()
                scene.note("result", session.request_id, result.outcome, result.resumable)


def stopped(scene: Scene) -> dict[str, Any]:
    stale = scene.fork("stale", lambda: _run_and_tell(scene))
    scene.wait_until(lambda: sum(each[1:3] == ["started", "look"] for each in scene.noted()) == 5)
    os.kill(stale, signal.SIGSTOP)
    before = scene.noted()
    fresh = scene.fork("fresh", scene.resume_all)
    code = os.waitstatus_to_exitcode(os.waitpid(fresh, 0)[1])
    facts = anyio.run(_facts, scene)
    between = len(scene.noted())
    os.kill(stale, signal.SIGCONT)
    stale_code = os.waitstatus_to_exitcode(os.waitpid(stale, 0)[1])
    after = anyio.run(_facts, scene)
    noted = scene.noted()
    return {
        "codes": [code, stale_code],
        "before": before,
        "meanwhile": noted[len(before) : between],
        "afterwards": noted[between:],
        "facts": facts,
        "is_unchanged": facts == after,
    }


async def _facts(scene: Scene) -> dict[str, list[str]]:
    """Of each request the types of its facts; calls with their keys."""
    store = scene.store()
    found: dict[str, list[str]] = {}
    rows: list[Any] = await store._read(_ids)
    for (request_id,) in rows:
        facts = [each.fact for each in await store.facts(request_id)]
        found[request_id] = [
            f"{fact.type} {fact.name}" if isinstance(fact, ToolCallRequested) else fact.type for fact in facts
        ]
        assert all(isinstance(fact, RequestResumed) or fact.request_id == request_id for fact in facts)
    await store.aclose()
    return found


def _ids(database: Any) -> Any:
    return database.rows("SELECT request_id FROM requests")


def main(config: dict[str, Any]) -> None:
    scene = Scene(config)
    seen = {"fight": fight, "stopped": stopped}[config["scene"]](scene)
    sys.stdout.write(json.dumps(seen))
