"""Files that were damaged anyhow: what is read is what was written, or the damage is told; and nothing else goes wrong."""

# ruff: noqa: ASYNC240 -- files are written between the steps of one task

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.deadline_clock import DeadlineClock
from toolbus import Runtime, ToolContext, tool
from toolbus.errors import StoreError, ToolbusError
from toolbus.events import ApprovalRequested, Event, MessageAppended
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.storage import RequestRecord, StoredFact
from toolbus.stores.archive import verify
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, text

PAGE = 4_096
LONG = "a long text, " * 2_000

pytestmark = [pytest.mark.guarantee("G22"), pytest.mark.parametrize("anyio_backend", ["asyncio"])]


def runtime_on(store: SqliteStore, gate: anyio.Event | None = None) -> Runtime:
    @tool(idempotent=True)
    async def fetch(n: int) -> str:
        """Fetch."""
        return f"{n} {LONG}"

    @tool
    async def pay(n: int, context: ToolContext[Any]) -> str:
        """Pay."""
        if gate is not None and "wait" in context.last_user_message:
            gate.set()
            await anyio.sleep_forever()
        return "paid"

    @tool(needs_approval=True)
    async def wipe(n: int) -> str:
        """Wipe."""
        return "wiped"

    def respond(request: ModelRequest) -> Step:
        newest = [at for at, each in enumerate(request.messages) if isinstance(each, UserMessage)][-1]
        replied = sum(isinstance(each, AssistantMessage) for each in request.messages[newest:])
        return [calls(("fetch", {"n": 1})), calls(("wipe", {"n": 2}), ("pay", {"n": 3})), text("Done.")][replied]

    runtime = Runtime(
        ScriptedProvider(respond), tools=[fetch, pay, wipe], store=store, drain_seconds=0, max_result_chars=1_000
    )

    def approve(asked: ApprovalRequested) -> None:
        if "hold" not in (asked.metadata or {}):
            runtime.bus.publish(asked.decided(approved=True))

    runtime.bus.connect(ApprovalRequested, approve)
    return runtime


@dataclass
class Template:
    """A file with requests that have ended and some that have not, and all that is in it."""

    data: bytes
    facts: dict[str, Sequence[StoredFact]] = field(default_factory=dict[str, Sequence[StoredFact]])
    records: dict[str, RequestRecord] = field(default_factory=dict[str, RequestRecord])
    histories: dict[str, Sequence[Message]] = field(default_factory=dict[str, Sequence[Message]])
    unfinished: set[str] = field(default_factory=set[str])


async def template(path: Path) -> Template:
    store, gate = SqliteStore(path, durability="process"), anyio.Event()
    async with runtime_on(store, gate) as runtime:
        for prompt, conversation_id in (("one", "c"), ("two", "c"), ("three", "d")):
            assert (await runtime.run(prompt, conversation_id=conversation_id)).outcome == "completed"
        runtime.start("wait", conversation_id="c")
        await gate.wait()
        heard: list[Event] = []
        runtime.bus.connect(ApprovalRequested, heard.append)
        for number in range(2):
            runtime.start(f"held {number}", conversation_id=f"e{number}", metadata={"hold": True})
        while len(heard) < 2:  # noqa: ASYNC110 -- a receiver cannot await
            await anyio.sleep(0.005)
    made = Template(b"")
    async with aclosing(store):
        for request_id in await store.request_ids():
            made.facts[request_id] = await store.facts(request_id)
            record = await store.request(request_id)
            assert record is not None
            made.records[request_id] = record
        for conversation_id in ("c", "d"):
            made.histories[conversation_id] = await store.history(conversation_id)
        made.unfinished = {each.request_id for each in await store.unfinished()}
        assert (await verify(store)).problems == []
    assert not path.with_name(f"{path.name}-wal").exists()
    made.data = path.read_bytes()
    assert len(made.data) > 20 * PAGE
    assert (len(made.facts), len(made.unfinished)) == (6, 3)
    return made


# ------------------------------------------------------------------------------------------------- damages


def flip_bits(data: bytearray, chance: random.Random) -> str:
    places = [chance.randrange(len(data)) for _ in range(chance.choice((1, 1, 1, 3, 20)))]
    for place in places:
        data[place] ^= 1 << chance.randrange(8)
    return f"bits at {places}"


def cut_off(data: bytearray, chance: random.Random) -> str:
    size = chance.randrange(PAGE, len(data))  # an empty file is a new one
    size = chance.choice((size, size // PAGE * PAGE))
    del data[size:]
    return f"cut to {size} bytes"


def swap_pages(data: bytearray, chance: random.Random) -> str:
    one, other = chance.sample(range(len(data) // PAGE), 2)
    first, second = data[one * PAGE : (one + 1) * PAGE], data[other * PAGE : (other + 1) * PAGE]
    data[one * PAGE : (one + 1) * PAGE], data[other * PAGE : (other + 1) * PAGE] = second, first
    return f"pages {one} and {other} swapped"


def copy_page(data: bytearray, chance: random.Random) -> str:
    one, other = chance.sample(range(len(data) // PAGE), 2)
    data[one * PAGE : (one + 1) * PAGE] = data[other * PAGE : (other + 1) * PAGE]
    return f"page {other} written over {one}"


def clear(data: bytearray, chance: random.Random) -> str:
    place, size = chance.randrange(len(data)), chance.choice((1, 16, 512, PAGE))
    data[place : place + size] = bytes(len(data[place : place + size]))
    return f"{size} bytes at {place} cleared"


ROWS = (
    "UPDATE facts SET data = CAST(replace(CAST(data AS TEXT), 'e', 'f') AS BLOB) WHERE rowid = {row}",
    "UPDATE facts SET data = x'00' WHERE rowid = {row}",
    "UPDATE facts SET data = 'no bytes' WHERE rowid = {row}",
    "UPDATE facts SET seq = seq + 100 WHERE rowid = {row}",
    "UPDATE facts SET seq = 'text' WHERE rowid = {row}",
    "UPDATE facts SET step_end = step_end + 1 WHERE rowid = {row}",
    "UPDATE facts SET hash = zeroblob(32) WHERE rowid = {row}",
    "UPDATE facts SET request_id = 'somebody' WHERE rowid = {row}",
    "DELETE FROM facts WHERE rowid = {row}",
    "UPDATE facts SET (data, hash) = (SELECT data, hash FROM facts WHERE rowid = {other}) WHERE rowid = {row}",
    "UPDATE requests SET next_seq = next_seq - 1 WHERE rowid = {request}",
    "UPDATE requests SET ending = CASE WHEN ending IS NULL THEN 'completed' END WHERE rowid = {request}",
    "UPDATE requests SET ending = 'nonsense' WHERE rowid = {request}",
    "UPDATE requests SET conversation_id = 'd' WHERE rowid = {request}",
    "UPDATE requests SET epoch = 'text' WHERE rowid = {request}",
    "DELETE FROM requests WHERE rowid = {request}",
    "UPDATE agreements SET data = CAST('[]' AS BLOB) WHERE rowid = {request}",
    "UPDATE agreements SET data = x'ff' WHERE rowid = {request}",
    "DELETE FROM agreements WHERE rowid = {request}",
    "UPDATE messages SET data = x'00' WHERE rowid = {message}",
    "UPDATE messages SET position = position + 50 WHERE rowid = {message}",
    "UPDATE conversations SET messages = messages + 1",
    "DELETE FROM conversations",
    "UPDATE blobs SET data = x'00'",
    "DELETE FROM blobs",
)
CASES = 4 * len(ROWS)
"""Each change of rows is made once, and bytes are damaged three times as often."""


def change_rows(path: Path, number: int, chance: random.Random) -> str:
    row, other = chance.sample(range(1, 60), 2)
    places = {"row": row, "other": other, "request": 1 + chance.randrange(6), "message": 1 + chance.randrange(21)}
    statement = ROWS[number].format(**places)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        assert database.execute(statement).rowcount, f"it changes no row: {statement}"
    return statement


BYTES: tuple[Callable[[bytearray, random.Random], str], ...] = (
    flip_bits,
    flip_bits,
    flip_bits,
    cut_off,
    swap_pages,
    copy_page,
    clear,
)


def damage(path: Path, made: Template, number: int) -> str:
    """Write a damaged copy; what was done to it."""
    chance = random.Random(number)
    if number % 4 == 0:
        path.write_bytes(made.data)
        return change_rows(path, number // 4, chance)
    data = bytearray(made.data)
    reported = BYTES[number % len(BYTES)](data, chance)
    path.write_bytes(data)
    return reported


# --------------------------------------------------------------------------------------------------- looking


class Look:
    """What can be seen of a damaged file. `reported` is the damage that was reported, `wrong` what was given wrongly."""

    def __init__(self, made: Template) -> None:
        self.made = made
        self.reported: list[StoreError] = []
        self.wrong: list[str] = []
        self.differs: list[str] = []  # what no reading of a transcript would notice
        self.endings: list[str] = []  # requests whose record has another ending: whoever asks for one is told

    async def at(self, path: Path) -> None:
        store = SqliteStore(path, durability="process")
        async with aclosing(store):
            await self._reported(store.open)
            for request_id, facts in self.made.facts.items():
                await self._request(store, request_id, facts)
            for conversation_id, history in self.made.histories.items():
                given = await self._reported(lambda each=conversation_id: store.history(each))
                if given is not None and [*given] != [*history]:
                    self.wrong.append(f"the history of {conversation_id}")
            unfinished = await self._reported(store.unfinished)
            free = None if unfinished is None else {each.request_id for each in unfinished}
            if free is not None and not free ^ self.made.unfinished <= {*self.endings}:
                self.differs.append("which requests are unfinished")
            await self._reported(store.conversations)
            await self._reported(store.statistics)
            verified = await self._reported(lambda: verify(store))
            self.is_silent = verified is not None and not verified.problems
            for each in () if verified is None else verified.problems:
                assert isinstance(each, StoreError)
        await self._resume(path)

    async def _reported(self, what: Callable[[], Any]) -> Any:
        """What it gives; None where it reports damage. Anything else is a mistake of the store's."""
        try:
            return await what()
        except StoreError as exc:
            self.reported.append(exc)
            return None

    async def _request(self, store: SqliteStore, request_id: str, facts: Sequence[StoredFact]) -> None:
        given = await self._reported(lambda: store.facts(request_id))
        if given is not None and [*given] != [*facts]:
            self.wrong.append(f"the facts of {request_id}: {len(given)} of {len(facts)}")
        salvaged = await self._reported(lambda: store.salvage(request_id))
        if salvaged is not None and [*salvaged.facts] != [*facts[: len(salvaged.facts)]]:
            self.wrong.append(f"the salvaged facts of {request_id}")
        if given is None and salvaged is not None and salvaged.damage is None:
            self.wrong.append(f"the damage of {request_id}")
        record = await self._reported(lambda: store.request(request_id))
        known = self.made.records[request_id]
        if record is not None and (record.conversation_id, record.agreed, record.epoch) != (
            known.conversation_id,
            known.agreed,
            known.epoch,
        ):
            self.differs.append(f"the record of {request_id}")
        if record is not None and record.ending != known.ending:
            self.endings.append(request_id)

    async def _resume(self, path: Path) -> None:
        """Resume the requests in a process that ends, and check that each continues from what was written."""
        store = SqliteStore(path, durability="process", timeout_seconds=1)
        results: list[Any] = []
        try:
            async with runtime_on(store) as runtime:
                resumption = await runtime.resume()
                for problem in resumption.problems:
                    assert isinstance(problem.error, ToolbusError)
                for request_id in self.endings:
                    with pytest.raises(ToolbusError):
                        assert await runtime.recall(request_id) is None
                        raise StoreError("it is taken for an unfinished one, which resume has looked at")
                for session in resumption:
                    if "hold" not in (session.metadata or {}):
                        results.append(await session.result())
        except StoreError as exc:
            self.reported.append(exc)
        finally:
            await store.aclose()
        for result in results:
            if result.outcome == "failed":
                assert isinstance(result.error, StoreError), result.error
                continue
            facts = self.made.facts.get(result.request_id)
            if facts is None or result.request_id not in self.made.unfinished:
                self.wrong.append(f"{result.request_id} went on")
                continue
            messages = [each.fact.message for each in facts if isinstance(each.fact, MessageAppended)]
            if result.new_messages[: len(messages)] != messages:
                self.wrong.append(f"{result.request_id} went on from something else")


@pytest.mark.repeats("a hundred files")
async def test_of_a_hundred_damaged_files_none_gives_what_was_not_written(
    tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeadlineClock(monkeypatch)  # It stands still: only the waits for a lock take time.
    made = await template(tmp_path / "template.db")
    reported = silent = 0
    problems: list[str] = []
    for number in range(CASES):
        path = tmp_path / f"{number}.db"
        what = damage(path, made, number)
        look = Look(made)
        try:
            with anyio.fail_after(60):
                await look.at(path)
        except Exception as exc:
            exc.add_note(f"case {number}: {what}")
            raise
        problems += [f"case {number} ({what}): {each}" for each in look.wrong]
        if look.is_silent:
            silent += 1
            problems += [f"case {number} ({what}): nobody reports {each}" for each in look.differs]
            problems += [f"case {number} ({what}): verify is silent on {each}" for each in look.reported]
        reported += bool(look.reported)
        for each in tmp_path.glob(f"{number}.db*"):
            each.unlink()
    assert not problems, "\n".join(problems)
    assert reported > CASES / 2
    assert silent < CASES / 2
