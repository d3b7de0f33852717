"""`resume(watch=True)`: a runtime takes over what other processes leave, until it drains."""

from __future__ import annotations

import logging
import random
from typing import Any

import anyio
import pytest

from support.journaled import JournaledStore, journal_of
from support.resuming import Lab, Wall, virtual_walls
from toolbus import Runtime
from toolbus.errors import ConfigurationError, NotRunning, StoreError, StoreUnavailable
from toolbus.storage import Entry, RequestRecord
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()
pytestmark = pytest.mark.guarantee("G19")


def node(store: JournaledStore, lab: Lab, **options: Any) -> Runtime:
    model = ScriptedProvider(
        lambda request: text("Done.") if request.round else calls(("look", {"n": 1})),
    )
    return Runtime(model, tools=[lab.tool("look", 5, idempotent=True)], store=store, lease_seconds=30, **options)


async def test_a_request_that_a_draining_process_hands_over_continues_within_a_second() -> None:
    store, lab = JournaledStore(), Lab()
    async with node(store, lab) as heir:
        assert not await heir.resume(watch=True)
        async with node(store, lab, drain_seconds=0) as old:
            left = old.start("go")
            await settle()
        assert (await left.result()).resumable
        await advance(1)
        session = heir.session(left.request_id)
        assert session is not None
        assert (await session.result()).text == "Done."
    assert lab.keys() == {lab.runs[0][1]: 2}


async def test_a_request_of_a_process_that_died_continues_when_its_lease_has_run_out(wall: Wall) -> None:
    store, lab = JournaledStore(), Lab()
    async with node(store, lab, drain_seconds=0) as old:
        left = old.start("go")
        await settle()
    taken = await journal_of(store).take(left.request_id, "one that dies", 30)
    assert taken is not None
    async with node(store, lab) as heir:
        await heir.resume(watch=True)
        await advance(29)
        assert heir.session(left.request_id) is None
        await advance(2)
        session = heir.session(left.request_id)
        assert session is not None
        assert (await session.result()).text == "Done."


async def test_one_that_drains_takes_over_nothing_more() -> None:
    store, lab = JournaledStore(), Lab()
    async with node(store, lab, drain_seconds=0) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        await settle()
        assert await runtime.drain() == 1
        await advance(10)
        assert runtime.session(session.request_id) is None
        with pytest.raises(NotRunning):
            await runtime.resume(watch=True)
    assert [each.request_id for each in await journal_of(store).unfinished(limit=10)] == [session.request_id]


async def test_it_takes_no_more_than_it_may_hold() -> None:
    store, lab = JournaledStore(), Lab()
    async with node(store, lab, drain_seconds=0) as old:
        sessions = [old.start("go") for _ in range(5)]
        await settle()
    async with node(store, lab, max_sessions=1, max_queued=1) as heir:
        await heir.resume(watch=True, limit=1)
        await advance(1)
        mine = [heir.session(each.request_id) for each in sessions]
        assert [each is not None for each in mine].count(True) == 2
        await advance(60)
        assert await journal_of(store).unfinished(limit=10) == []


async def test_the_oldest_requests_are_tried_and_no_more_than_the_limit_also_if_they_cannot_continue() -> None:
    store, lab, tried, listed = JournaledStore(), Lab(), list[str](), list[int]()
    async with node(store, lab, drain_seconds=0) as old:
        for _ in range(8):
            old.start("go")
            await settle()
    journal, unfinished = journal_of(store), journal_of(store).unfinished
    ids = [each.request_id for each in await unfinished(limit=8)]

    async def counted(limit: int) -> Any:
        listed.append(limit)
        return await unfinished(limit=limit)

    def options(record: RequestRecord) -> dict[str, Any]:
        tried.append(record.request_id)
        if record.request_id in ids[:3]:
            raise ConfigurationError("its user has gone")
        return {}

    setattr(journal, "unfinished", counted)  # noqa: B010 -- a method of one object
    async with node(store, lab, drain_seconds=0) as heir:
        found = await heir.resume(limit=2, options=options)
        assert (len(found), [each.request.request_id for each in found.problems]) == (0, ids[:2])
        assert (tried, listed) == (ids[:2], [2])
        tried.clear()
        found = await heir.resume(limit=5, options=options)
        assert ([each.request_id for each in found], len(found.problems), found.held) == (ids[3:5], 3, 0)
        assert tried == ids[:5]
    async with node(store, lab, max_sessions=1, max_queued=1, drain_seconds=0) as heir:
        await heir.resume(watch=True, options=options, limit=1)
        await advance(20)  # Those that cannot continue do not hide the others.
        assert {*tried} == {*ids}


async def test_the_sessions_are_in_the_order_in_which_they_began_in_whatever_order_they_were_taken() -> None:
    store, lab = JournaledStore(), Lab()
    async with node(store, lab, drain_seconds=0) as old:
        left: list[str] = []
        for _ in range(3):
            left.append(old.start("go").request_id)
            await advance(1)
    journal, unfinished = journal_of(store), journal_of(store).unfinished

    async def in_another_order(limit: int) -> Any:
        first, *others = await unfinished(limit=limit)
        return [*others, first]  # As if other processes took the same requests.

    setattr(journal, "unfinished", in_another_order)  # noqa: B010 -- a method of one object
    async with node(store, lab, drain_seconds=0) as heir:
        assert [each.request_id for each in await heir.resume()] == left


@pytest.mark.parametrize(
    ("gone", "asked"),
    [({*range(8)}, [0, 1, 2]), ({0, 1}, [0, 1, 2, 3, 4, 6, 5]), ({0, 2, 3}, [0, 1, 2, 3, 7, 6, 5, 4])],
)
async def test_after_three_requests_that_others_have_taken_the_list_is_read_anew_and_tried_in_a_random_order(
    gone: set[int], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lab, tried = JournaledStore(), Lab(), list[int]()
    async with node(store, lab, drain_seconds=0) as old:
        for _ in range(8):
            old.start("go")
            await settle()
    journal, take = journal_of(store), journal_of(store).take
    ids = [each.request_id for each in await journal.unfinished(limit=8)]

    async def late(request_id: str, owner: str, lease_seconds: float) -> Any:
        tried.append(ids.index(request_id))
        if tried[-1] in gone:
            await take(request_id, "another process", lease_seconds)
        return await take(request_id, owner, lease_seconds)

    def shuffle(_chance: random.Random, records: list[Any]) -> None:
        records.reverse()

    setattr(journal, "take", late)  # noqa: B010 -- a method of one object
    async with node(store, lab, drain_seconds=0) as heir:
        monkeypatch.setattr(random.Random, "shuffle", shuffle)
        found = await heir.resume(limit=5)
        assert tried == asked
        assert (len(found), found.held) == (len({*asked} - gone), len({*asked} & gone))


async def test_a_request_whose_store_fails_at_once_is_tried_once_by_one_call() -> None:
    store, lab = JournaledStore(), Lab()
    async with node(store, lab, drain_seconds=0) as old:
        left = [old.start("go") for _ in range(2)]
        await settle()
    journal, unfinished = journal_of(store), journal_of(store).unfinished

    async def full(_entry: Entry) -> None:
        raise StoreError("there is no room")

    async def slowly(limit: int) -> Any:
        await anyio.sleep(1)  # In this time those that were continued fail, and are free again.
        return await unfinished(limit=limit)

    store.before = full
    setattr(journal, "unfinished", slowly)  # noqa: B010 -- a method of one object
    async with node(store, lab) as heir:
        found = await heir.resume()
        assert [each.request_id for each in found] == [each.request_id for each in left]
        assert {(await each.result()).resumable for each in found} == {True}


async def test_a_request_that_cannot_continue_is_reported_once_and_tried_each_minute_and_delays_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, lab, given = JournaledStore(), Lab(), list[str]()
    async with node(store, lab, drain_seconds=0) as old:
        first = old.start("go")
        await settle()
    broken = first.request_id

    def options(record: RequestRecord) -> dict[str, Any]:
        given.append(record.request_id)
        if record.request_id == broken and len(given) < 4:
            raise ConfigurationError("its user has gone")
        return {}

    async with node(store, lab) as heir:
        assert len((await heir.resume(watch=True, options=options)).problems) == 1
        async with node(store, lab, drain_seconds=0) as old:
            second = old.start("go")
            await settle()
        await advance(10)
        assert given == [broken, second.request_id]
        await advance(53)
        assert given == [broken, second.request_id, broken]
        said = [each for each in caplog.records if "cannot continue" in each.message]
        assert [each.message for each in said if each.levelname == "WARNING"] == [
            f"request {broken} cannot continue: its user has gone"
        ]
        await advance(63)
        continued = heir.session(broken)
        assert continued is not None
        assert (await continued.result()).text == "Done."


@pytest.mark.parametrize(("given", "kind"), [({"bogus": 1}, TypeError), (KeyError("user"), KeyError)])
async def test_a_bug_in_options_harms_no_other_request_and_is_logged_with_its_traceback(
    given: Any, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def options(_record: RequestRecord) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    store, lab = JournaledStore(), Lab()
    async with node(store, lab) as heir:
        await heir.resume(watch=True, options=options)
        async with node(store, lab, drain_seconds=0) as old:
            old.start("go")
            await settle()
        await advance(10)
        assert (await heir.run("hello")).text == "Done."
    said = [each for each in caplog.records if "cannot continue" in each.message]
    assert [(each.levelname, each.exc_info and each.exc_info[0]) for each in said] == [("ERROR", kind)]


async def test_a_store_that_is_away_is_logged_once_and_tried_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    store, lab, is_away = JournaledStore(), Lab(), False
    unfinished = journal_of(store).unfinished

    async def found(limit: int) -> Any:
        if is_away:
            raise StoreUnavailable("no answer")
        return await unfinished(limit=limit)

    setattr(journal_of(store), "unfinished", found)  # noqa: B010 -- a method of one object
    caplog.set_level(logging.INFO)
    async with node(store, lab) as heir:
        await heir.resume(watch=True)
        async with node(store, lab, drain_seconds=0) as old:
            left = old.start("go")
            await settle()
            is_away = True
        await advance(30)
        assert heir.session(left.request_id) is None
        assert heir.health().reasons == ("the store fails",)
        is_away = False
        await advance(1)
        assert heir.session(left.request_id) is not None
        assert heir.health().reasons == ()
    logged = [each.message for each in caplog.records if "taken over" in each.message]
    assert logged == [
        "the store failed, and requests are taken over once it answers: no answer",
        "the store answers again, and requests are taken over",
    ]


async def test_a_process_that_has_no_room_meanwhile_still_sees_that_the_store_is_away_and_when_it_is_not() -> None:
    store = JournaledStore()
    unfinished = journal_of(store).unfinished

    async def away(limit: int) -> Any:
        raise StoreUnavailable("no answer")

    async with node(store, Lab(), max_sessions=1, max_queued=0) as heir:
        await heir.resume(watch=True)
        setattr(journal_of(store), "unfinished", away)  # noqa: B010 -- a method of one object
        await advance(2)
        heir.start("go")
        assert heir.statistics().free_capacity == 0
        await advance(2)
        assert heir.statistics().store_unavailable
        setattr(journal_of(store), "unfinished", unfinished)  # noqa: B010
        await advance(2)
        assert heir.statistics().free_capacity == 0
        assert not heir.statistics().store_unavailable


async def test_a_runtime_that_is_entered_again_does_not_watch_and_knows_of_no_outage() -> None:
    async def away(limit: int) -> Any:
        raise StoreUnavailable("no answer")

    store = JournaledStore()
    heir = node(store, Lab())
    async with heir:
        await heir.resume(watch=True)
        setattr(journal_of(store), "unfinished", away)  # noqa: B010 -- a method of one object
        await advance(3)
        assert heir.health().reasons == ("the store fails",)
    async with heir:
        assert heir.health().reasons == ()


async def test_a_later_watch_replaces_the_options_of_the_earlier_one() -> None:
    store, lab, asked = JournaledStore(), Lab(), list[str]()
    async with node(store, lab) as heir:
        for name in ("first", "second"):
            await heir.resume(watch=True, options=lambda _, name=name: asked.append(name) or {})
        async with node(store, lab, drain_seconds=0) as old:
            old.start("go")
            await settle()
        await advance(5)
        with anyio.fail_after(20):
            await advance(10)
    assert asked == ["second"]


async def test_a_runtime_that_began_to_close_while_it_looked_for_requests_watches_for_none() -> None:
    store, lab = JournaledStore(), Lab()
    journal: Any = store.journal
    unfinished = journal.unfinished

    async def slowly(**options: Any) -> Any:
        await anyio.sleep(1)
        return await unfinished(**options)

    journal.unfinished = slowly
    with anyio.fail_after(60):
        async with node(store, lab) as runtime, anyio.create_task_group() as group:
            group.start_soon(runtime.drain)
            with pytest.raises(NotRunning, match="is closing"):
                await runtime.resume(watch=True)


@pytest.mark.parametrize("fails", ["take", "unfinished"])
async def test_a_store_that_fails_during_a_resumption_is_not_asked_for_the_rest(fails: str) -> None:
    store, lab = JournaledStore(), Lab()
    async with node(store, lab, drain_seconds=0) as old:
        left = [old.start("go") for _ in range(4)]
        await settle()
    journal, asked = journal_of(store), list[str]()
    works = getattr(journal, fails)

    async def works_once(*args: Any, **options: Any) -> Any:
        asked.append(fails)
        if len(asked) > 1:
            raise StoreUnavailable("away")
        return await works(*args, **options)

    setattr(journal, fails, works_once)
    async with node(store, lab) as heir:
        found = await heir.resume()
        assert len({each.request_id for each in found} & {each.request_id for each in left}) == len(found)
        assert len(found) == (1 if fails == "take" else 4)
        assert [str(each.error) for each in found.problems] == ["away"] * (fails == "take")
        assert len(asked) == 2
