"""People who command and read requests through handles: in a process with a runtime, or at a desk without a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from ...bus import EventBus
from ...core.result_notes import late_note_id
from ...errors import BusError, StoreError, UnknownRequest
from ...events import Event, TerminalEvent, ToolCallRequested
from ...handles import CommandStatus, RequestHandle
from ...records import replace
from ...remote import Client
from ._chance import Chance
from ._disk import IS_READER
from ._findings import Broken
from ._inbox import InboxHandle, is_of_sub_request
from ._watch import Watch, is_store_failure

if TYPE_CHECKING:
    import anyio.abc

    from ._world import World

_KINDS = {"steer": 2.0, "cancel": 1.0, "decide": 4.0, "answer": 4.0}


@dataclass(slots=True, frozen=True)
class Command:
    """A command that was given through a handle, and the answer to it."""

    given: Event
    answer: CommandStatus

    async def check(self, world: World, watch: Watch) -> None:
        """Check at the end that the answer was true: a command that is done or queued is a fact exactly once."""
        given, disk = self.given, world.disk
        what = f"{given.type} {given.event_id} of {given.request_id}, answered {self.answer}"
        times = sum(each.event_id == given.event_id for each in disk.facts(given.request_id))
        if given.request_id in disk.given_up:
            return  # without its store, a request promises nothing
        watch.check("G32", times <= 1, f"{what}, is a fact twice")
        if self.answer == "ended":
            watch.check("G32", not times, f"{what}, is a fact")
        elif self.answer == "done":
            watch.check("G32", times or is_of_sub_request(given, disk.facts(given.request_id)), f"{what}, is lost")
        elif self.answer == "queued" and not times:
            is_known = await self._is_known(world)
            watch.check("G32", is_known, f"{what}, is lost")

    async def _is_known(self, world: World) -> bool:
        """Return whether there is a permitted reason why a queued command is not a fact."""
        given, disk = self.given, world.disk
        if given.request_id in disk.archive.deleted:
            return True
        receipt = await disk.inbox.receipt(given.request_id, given.event_id)
        if receipt.state in ("refused", "ended"):
            return True
        if isinstance(given, TerminalEvent):
            record = await disk.journal.request(given.request_id)
            history = await disk.memory.history(record.conversation_id) if record else ()
            return late_note_id(given.call_id) in {each.message_id for each in history}
        return receipt.state == "taken" and is_of_sub_request(given, disk.facts(given.request_id))


class People:
    """People with handles. `request` makes a handle; `where` names the process, for their chances."""

    def __init__(
        self, world: World, group: anyio.abc.TaskGroup, watch: Watch, request: Callable[..., RequestHandle], where: str
    ) -> None:
        self._world = world
        self._group = group
        self._watch = watch
        self._request = request
        self._where = where

    def plan(self, request_id: str) -> None:
        """Plan what is done with a request that begins or is resumed."""
        chance = self._world.chance(f"people {self._where} {request_id}")
        kinds = {chance.weighted(_KINDS) for _ in range(chance.pick([0, 0, 1, 2]))}
        for kind in sorted(kinds if self._where == "at the desk" else kinds - {"answer"}):
            self._group.start_soon(self._command, request_id, kind, chance)
        if chance.says(0.3):
            self._group.start_soon(self._read, request_id)

    async def _command(self, request_id: str, kind: str, chance: Chance) -> None:
        IS_READER.set(True)
        world, given = self._world, list[Event]()
        await anyio.sleep_until(world.moment(chance, chance.pick([0.3, world.model_seconds, world.tool_seconds])))

        def authorize(event: Event) -> bool:
            # A sub-request's question is answered through the request above it, which has the inbox.
            given.append(replace(event, request_id=request_id))
            return True

        handle = self._request(request_id, authorize=authorize)
        try:
            if kind == "steer":
                self._note(given, await handle.steer("faster"))
            elif kind == "cancel":
                self._note(given, await handle.cancel("enough"))
            elif kind == "decide":
                for question in await handle.pending_approvals():
                    decide = handle.approve if chance.says(0.7) else handle.deny
                    self._note(given, await decide(question))
            else:
                for call_id in [each for each in world.answers if each.startswith(f"{request_id}_")]:
                    for _, answer in world.answers[call_id]:
                        self._note(given, await handle.inject(answer))
        except (BusError, UnknownRequest, StoreError):
            world.faults["command without an answer"] += 1

    def _note(self, given: list[Event], answer: CommandStatus) -> None:
        if self._watch.is_over:
            return  # The process was killed, so nobody got the answer.
        self._world.faults[f"command {answer}"] += 1
        command = Command(given[-1], answer)
        self._world.commands.append(command)
        disk, newest = self._world.disk, command.given
        if answer == "done" and newest.request_id not in disk.given_up:
            facts = disk.facts(newest.request_id)
            is_written = any(each.event_id == newest.event_id for each in facts) or is_of_sub_request(newest, facts)
            self._watch.note("G32", is_written, f"{newest.type} {newest.event_id} is done, and not in the journal")

    async def _read(self, request_id: str) -> None:
        """Read a request to its end, and check that all facts were read, each once and in order."""
        IS_READER.set(True)
        world, read, is_whole = self._world, list[str](), True
        events = self._request(request_id).events()
        while True:
            try:
                async for event in events:
                    is_whole = is_whole and not is_store_failure(event)  # It may be continued elsewhere.
                    if event.is_fact and not event.is_derived:
                        read.append(event.event_id)
                break
            except UnknownRequest:  # It has begun without its store.
                is_gone = request_id in world.disk.archive.deleted or not world.disk.facts(request_id)
                self._watch.note("G32", is_gone, f"{request_id} is not found")
                return
            except StoreError:
                await anyio.sleep(1)
        facts = world.disk.facts(request_id)
        # Calls that may not begin any more are written and not published where the request runs, nor over a relay.
        unpublished = {each.event_id for each in facts if isinstance(each, ToolCallRequested)} - set(read)
        is_stored = self._where == "at the desk" and world.relay is None
        written = [each.event_id for each in facts if is_stored or each.event_id not in unpublished]
        is_whole = is_whole and request_id not in world.disk.archive.deleted
        if is_whole and request_id not in world.disk.given_up and request_id in world.disk.endings:
            self._watch.note("G31", read == written, f"a reader of {request_id} has read {read}, not {written}")
            world.faults["read to the end"] += 1


class Desk:
    """A process without a model. It lives as long as the world, and its people see each request in the journal."""

    number = -1
    on_store_failure = "stop"

    def __init__(self, world: World, epoch: float, stop: Callable[[Broken], object]) -> None:
        self._world = world
        self.watch = Watch(EventBus(), epoch, stop)
        self._handle = InboxHandle(world.disk, self)
        self._is_closed = False

    async def run(self) -> None:
        """Run until the world has ended."""
        disk, planned = self._world.disk, 0
        relay = self._world.relay
        poll = 0.5 if relay is None else None
        async with (
            Client(self._handle, relay=relay, inbox_poll_seconds=poll) as client,
            anyio.create_task_group() as group,
        ):
            people = People(self._world, group, self.watch, client.request, "at the desk")
            while not self._is_closed:
                await disk.news.wait()
                for request_id in disk.begun()[planned:]:
                    planned += 1
                    people.plan(request_id)

    def close(self) -> None:
        """End once all people at the desk have done what they had planned."""
        self._is_closed = True
        self._world.disk.news.set()
