"""Approvals from another process: none is lost, and none counts twice, also while the processes of requests are killed."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import owner_child
import pytest
from owner_child import store_at

from support import forked
from toolbus.events import ApprovalDecided
from toolbus.handles import CommandStatus
from toolbus.remote import Client

APPROVALS = int(os.environ.get("TOOLBUS_APPROVALS", "40"))
FIRST_SEED = int(os.environ.get("TOOLBUS_APPROVALS_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("TOOLBUS_APPROVALS_SEEDS", "1")))
PATIENCE_SECONDS = 30 + 0.2 * APPROVALS
pytestmark = [pytest.mark.guarantee("G32"), pytest.mark.timeout(2 * PATIENCE_SECONDS + 60)]


STORES = ["sqlite", "postgres"]
SOAKED = ["mongo"] if len(SEEDS) > 1 else []  # the server with MongoDB's protocol is slow


@pytest.fixture(scope="module", autouse=True)
def servers(request: pytest.FixtureRequest) -> None:
    """Start the processes that tests share before the tests, in which they would count as left behind."""
    forked.start()
    for name in (*STORES[1:], *SOAKED):
        request.getfixturevalue(name)


@pytest.fixture
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The store of the owner and the client."""
    if request.param == "sqlite":
        yield str(tmp_path / "toolbus.db")
        return
    with request.getfixturevalue(request.param).database() as found:
        yield found if request.param == "postgres" else " ".join(found)


class Owner:
    """A process that owns requests."""

    def __init__(self, where: str, ledger: Path, *, begin: int = 0, lease_seconds: float = 1.0) -> None:
        self._process = forked.Process(owner_child.main, where, str(ledger), begin, lease_seconds)

    async def begun(self) -> list[str]:
        """The ids of the requests that it has begun, once it is ready."""
        ids: list[str] = []
        while (line := (await anyio.to_thread.run_sync(self._process.stdout.readline)).strip()) != b"ready":
            assert line, "the owner has ended"
            ids.append(line.decode())
        return ids

    def kill(self) -> None:
        self._process.close()

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)
        self._process.close()


async def approve(client: Client, request_id: str, answers: dict[str, CommandStatus]) -> None:
    handle = client.request(request_id)
    [question] = await handle.pending_approvals()
    answers[request_id] = await handle.approve(question, by="Ada")


async def decisions_in(client: Client, request_id: str) -> int:
    return len([each async for each in client.request(request_id).events(ApprovalDecided)])


def runs_in(ledger: Path) -> list[str]:
    """The keys of the calls that ran, a line each: one that was cut off by a kill runs again under its key."""
    return ledger.read_text(encoding="utf-8").splitlines()


async def assert_each_counted_once(client: Client, ids: list[str], ledger: Path) -> None:
    for request_id in ids:
        with anyio.fail_after(PATIENCE_SECONDS):
            result = await client.request(request_id).result()
        assert [each.content for each in result.tool_calls] == ["wiped 1"]
        assert await decisions_in(client, request_id) == 1
    assert len(set(runs_in(ledger))) == len(ids)


@pytest.mark.parametrize("where", STORES, indirect=True)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_approval_from_another_process_is_lost(where: str, tmp_path: Path, anyio_backend: str) -> None:
    ledger = tmp_path / "ledger"
    owner = Owner(where, ledger, begin=APPROVALS, lease_seconds=PATIENCE_SECONDS)
    answers: dict[str, CommandStatus] = {}
    try:
        ids = await owner.begun()
        async with Client(store_at(where), inbox_poll_seconds=0.05, timeout_seconds=PATIENCE_SECONDS) as client:
            async with anyio.create_task_group() as tasks:
                for request_id in ids:
                    tasks.start_soon(approve, client, request_id, answers)
            assert Counter(answers.values()) == {"done": APPROVALS}
            await assert_each_counted_once(client, ids, ledger)
    finally:
        owner.end()
    assert len(runs_in(ledger)) == APPROVALS


@pytest.mark.parametrize("where", [*STORES, *SOAKED], indirect=True)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_an_approval_is_not_lost_when_its_owner_is_killed_at_once(
    where: str, seed: int, tmp_path: Path, anyio_backend: str
) -> None:
    ledger, chance = tmp_path / "ledger", random.Random(seed)
    count = min(APPROVALS, 20)
    owner = Owner(where, ledger, begin=count)
    answers: dict[str, CommandStatus] = {}
    try:
        ids = await owner.begun()
        async with Client(store_at(where), inbox_poll_seconds=0.02, timeout_seconds=0.2) as client:
            async with anyio.create_task_group() as tasks:
                for request_id in ids:
                    tasks.start_soon(_approve_at, client, request_id, answers, chance.uniform(0, 1.5))
                for _ in range(3):
                    await anyio.sleep(chance.uniform(0.05, 0.5))
                    owner.kill()
                    owner = Owner(where, ledger)
                    await owner.begun()
            assert set(answers.values()) <= {"done", "queued"}
            await assert_each_counted_once(client, ids, ledger)
    finally:
        owner.end()


async def _approve_at(client: Client, request_id: str, answers: dict[str, Any], seconds: float) -> None:
    await anyio.sleep(seconds)
    await approve(client, request_id, answers)
