"""Measure what durability costs: toolbus on SQLite, bare sqlite3, and LangGraph's SQLite checkpointer.

    python -m benchmarks.durability [--requests 1000] [--repeats 3] [--durability process power] [--no-peer] [--json]

The work: one request is 3 rounds of 2 tool calls, then a text, by a model that answers at once (that of `work.py`),
with 1, 100 and 1,000 sessions at once. Each has four figures, all from one run, in requests per second of wall time:

- whole: requests of a `Runtime` with a `SqliteStore`, everything included;
- store: the entries of those requests, appended again to a new `SqliteStore` by the same number of tasks;
- bare: the statements that "store" has sent to SQLite, sent again by a loop around `sqlite3`, in the same
  transactions: the same rows in the same batches, and nothing else;
- langgraph: the same work in a graph of a model and a `ToolNode` with `AsyncSqliteSaver`, which writes a checkpoint for
  each step, in a process of its own with an environment of its own (made at the first run; needs a package registry).

`--durability power` syncs each commit to the disk (LangGraph: `durability="sync"` and SQLite's `synchronous=FULL`);
`process` leaves that to the operating system (`synchronous=NORMAL`). Goals: "bare" is at most 1.5 times as fast as
"store", and "whole" at least 10 times as fast as "langgraph".
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from toolbus import Limits, Runtime, tool
from toolbus.storage import Durability, Entry, JournalStore
from toolbus.stores.sqlite import SqliteStore

from .against_peers import python_of
from .work import Model, lookup

SESSIONS = (1, 100, 1_000)
SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}
Statement = tuple[str, Any, bool]


async def in_parallel(work: Callable[[], Any], count: int, width: int) -> float:
    """Run `work` so often, `width` at once, and return the seconds that this takes."""
    left = iter(range(count))

    async def one_after_the_other() -> None:
        for _ in left:
            await work()

    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(width):
            group.start_soon(one_after_the_other)
    return time.perf_counter() - started


# --------------------------------------------------------------------------------------------------- whole


class Noting:
    """A store whose journal also records the entries in memory."""

    def __init__(self, store: SqliteStore) -> None:
        self.entries: list[Entry] = []
        append = store.append

        async def noted(entry: Entry) -> int:
            self.entries.append(entry)
            return await append(entry)

        store.append = noted  # type: ignore[method-assign]


async def whole(folder: Path, durability: Durability, requests: int, width: int) -> tuple[float, list[Entry], float]:
    """Requests per second, the entries that they have written, and the number of entries per commit."""
    store = SqliteStore(folder / "whole.db", durability=durability)
    noting = Noting(store)
    limits = Limits(timeout_seconds=600, model_timeout_seconds=600, tool_timeout_seconds=600)
    async with Runtime(Model(), tools=[tool(lookup)], store=store, limits=limits, max_queued=width) as runtime:

        async def one() -> None:
            result = await runtime.run("go")
            if not (result.ok and result.journaled):
                raise RuntimeError(f"{result.outcome}: {result.reason} {result.error}")

        await one()
        noting.entries.clear()
        before = await store.statistics()
        seconds = await in_parallel(one, requests, width)
        after = await store.statistics()
    return requests / seconds, noting.entries, (after.appends - before.appends) / (after.commits - before.commits)


# --------------------------------------------------------------------------------------------- store and bare


async def store_by_itself(journal: JournalStore, entries: Sequence[Entry], width: int) -> float:
    """Append entries, in order within a request, for `width` requests at once; return the seconds that this takes."""
    by_request: dict[str, list[Entry]] = {}
    for entry in entries:
        by_request.setdefault(entry.request_id, []).append(entry)
    requests = iter(list(by_request.values()))

    async def one() -> None:
        for entry in next(requests):
            await journal.append(entry)

    return await in_parallel(one, len(by_request), width)


class Traced(sqlite3.Connection):
    """A connection that records its statements. Only one connection does: that of the store's writer."""

    statements: list[Statement] = []  # noqa: RUF012 -- there is one run at a time

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        self.statements.append((statement, values, False))
        return super().execute(statement, values)

    def executemany(self, statement: str, values: Any) -> sqlite3.Cursor:
        rows = list(values)
        self.statements.append((statement, rows, True))
        return super().executemany(statement, rows)


async def statements_of(folder: Path, durability: Durability, entries: Sequence[Entry], width: int) -> list[Statement]:
    """The statements that SQLite receives for these entries."""
    connect = sqlite3.connect
    Traced.statements = []
    try:
        sqlite3.connect = lambda *args, **options: connect(*args, **{**options, "factory": Traced})  # type: ignore[assignment]
        store = SqliteStore(folder / "traced.db", durability=durability)
        await store.open()
        Traced.statements.clear()
        await store_by_itself(store, entries, width)
    finally:
        sqlite3.connect = connect
    traced, Traced.statements = Traced.statements, []
    await store.aclose()
    return traced


async def bare(folder: Path, durability: Durability, statements: Sequence[Statement]) -> float:
    """Send SQLite the same statements, in a file with the same tables; return the seconds that this takes."""
    path = folder / f"bare{time.perf_counter_ns()}.db"
    store = SqliteStore(path, durability=durability)  # this makes the tables
    await store.open()
    await store.aclose()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.create_function("toolbus_now", 0, time.time)
    connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[durability]}")
    started = time.perf_counter()
    for statement, values, many in statements:
        if many:
            connection.executemany(statement, values)
        else:
            connection.execute(statement, values)
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


# ------------------------------------------------------------------------------------------------------ peer

PEER_CODE = '''
import asyncio, json, sys, time
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

path, synchronous, requests, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

@tool
async def lookup(city: str, n: int) -> dict:
    """Look a city up."""
    return {"ok": True, "city": city, "n": n}

async def model(state):
    done = sum(isinstance(each, AIMessage) for each in state["messages"])
    if done == 3:
        return {"messages": [AIMessage(content="done")]}
    calls = [{"id": f"{done}_{i}", "name": "lookup", "args": {"city": "Paris", "n": i}} for i in range(2)]
    return {"messages": [AIMessage(content="", tool_calls=calls)]}

async def main():
    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([lookup]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        await saver.setup()
        await saver.conn.execute(f"PRAGMA synchronous={synchronous}")
        app = graph.compile(checkpointer=saver)
        numbers = iter(range(requests))
        async def worker():
            for number in numbers:
                config = {"configurable": {"thread_id": f"t{number}"}}
                result = await app.ainvoke({"messages": [("user", "go")]}, config, durability="sync")
                assert result["messages"][-1].content == "done"
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(width):
                group.create_task(worker())
        print(json.dumps(requests / (time.perf_counter() - started)))

asyncio.run(main())
'''


def langgraph(python: str, folder: Path, durability: Durability, requests: int, width: int) -> float:
    """Requests per second."""
    path = folder / f"langgraph{time.perf_counter_ns()}.db"
    given = [str(path), SYNCHRONOUS[durability], str(requests), str(width)]
    done = subprocess.run([python, "-c", PEER_CODE, *given], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout))


# ------------------------------------------------------------------------------------------------- measuring


async def compare(durability: Durability, width: int, requests: int, repeats: int, python: str) -> dict[str, float]:
    rows: dict[str, list[float]] = {}

    def note(**figures: float) -> None:
        for name, figure in figures.items():
            rows.setdefault(name, []).append(figure)

    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="toolbus-") as made:
            folder = Path(made)
            rate, entries, share = await whole(folder, durability, requests, width)
            store = SqliteStore(folder / "store.db", durability=durability)
            await store.open()
            by_itself = await store_by_itself(store, entries, width)
            await store.aclose()
            statements = await statements_of(folder, durability, entries, width)
            again = await bare(folder, durability, statements)
            note(whole=rate, appends_a_commit=share, store=requests / by_itself, bare=requests / again)
            note(store_to_bare=by_itself / again)
            if python:
                few = max(width, requests // 20)
                peer = langgraph(python, folder, durability, few, width)
                note(langgraph=peer, whole_to_langgraph=rate / peer)
    return {name: statistics.median(figures) for name, figures in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000, help="requests in each run")
    parser.add_argument("--repeats", type=int, default=3, help="the number of runs; medians are reported")
    parser.add_argument("--durability", nargs="+", default=["process", "power"], choices=["process", "power"])
    parser.add_argument("--sessions", type=int, nargs="+", default=list(SESSIONS), help="sessions at once")
    parser.add_argument("--no-peer", action="store_true", help="leave LangGraph out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    python = "" if options.no_peer else str(python_of("langgraph"))
    rows: dict[str, dict[str, float]] = {}
    for durability in options.durability:
        for width in options.sessions:
            count = max(options.requests, width)
            rows[f"{durability}, {width}"] = anyio.run(compare, durability, width, count, options.repeats, python)
    if options.json:
        print(json.dumps(rows))
        return
    print("requests a second (medians)")
    print(f"{'durability, sessions':22s} {'whole':>8s} {'store':>8s} {'bare':>8s} {'store/bare':>11s} "
          f"{'appends/commit':>15s} {'langgraph':>10s} {'times':>6s}")  # fmt: skip
    for name, row in rows.items():
        peer = f"{row['langgraph']:10.0f} {row['whole_to_langgraph']:6.1f}" if "langgraph" in row else ""
        print(
            f"{name:22s} {row['whole']:8.0f} {row['store']:8.0f} {row['bare']:8.0f} {row['store_to_bare']:11.2f} "
            f"{row['appends_a_commit']:15.1f} {peer}"
        )


if __name__ == "__main__":
    main()
