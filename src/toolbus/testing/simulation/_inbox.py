"""The connections between processes of a simulated world: an inbox in the store, and a relay that loses messages."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from ...events import (
    ApprovalDecided,
    CancelRequested,
    Event,
    RequestEnding,
    ToolCallCompleted,
    ToolCallFailed,
    decode,
    encode,
)
from ...storage import Inbox, InboxReceipt, SettledState
from ._disk import Disk, Handle
from ._tools import PROCESS

if TYPE_CHECKING:
    from ._people import Desk
    from ._process import Process
    from ._world import World


class InboxHandle(Handle):
    """A handle that is an `Inbox`, too, with faults."""

    def __init__(self, disk: Disk, process: Process | Desk) -> None:
        super().__init__(disk, cast("Process", process))  # A desk begins no request, and writes none.

    @property
    def _inbox(self) -> Inbox:
        return self.disk.inbox

    async def send(self, event: Event) -> InboxReceipt:
        self.disk.sent[event.event_id] = event
        return await self._ask(lambda: self._inbox.send(event))

    async def receipt(self, request_id: str, event_id: str) -> InboxReceipt:
        return await self._ask(lambda: self._inbox.receipt(request_id, event_id))

    async def waiting(
        self, owner: str, *, request_id: str = "", without: Collection[str] = (), limit: int = 100
    ) -> Sequence[Event]:
        """Implement `Inbox`, with faults. The events have been encoded and decoded, as in a database."""
        found = await self._ask(lambda: self._inbox.waiting(owner, request_id=request_id, without=without, limit=limit))
        return [decode(encode(each)) for each in found]

    async def settle(self, request_id: str, event_id: str, state: SettledState, reason: str = "") -> None:
        async def settle() -> None:
            given = self.disk.sent[event_id]
            if state == "refused" and not (reason or self._continues):
                why = explains(given, self.disk.facts(request_id)) or request_id in self.disk.endings
                self._process.watch.note("G32", why, f"{event_id} is refused, and {request_id} may still need it")
            await self._inbox.settle(request_id, event_id, state, reason)

        await self._ask(settle)

    async def park(self, request_id: str, epoch: int, seconds: float) -> bool:
        self.disk.faults["parked"] += 1
        return await self._ask(lambda: self._inbox.park(request_id, epoch, seconds))


class LossyRelay:
    """See `Relay`. Only a running process receives a message, in its own context. A killed one sends nothing."""

    max_bytes = 4_000

    def __init__(self, world: World) -> None:
        self._chance = world.chance("relay")
        self._faults = world.faults
        self._heard: dict[str, tuple[contextvars.Context, Callable[[bytes], None]]] = {}

    @asynccontextmanager
    async def connected(self, address: str, heard: Callable[[bytes], None]) -> AsyncGenerator[LossyRelay]:
        self._heard[address] = contextvars.copy_context(), heard
        yield self  # A process that has left or was killed ignores what it still receives.

    async def send(self, address: str, body: bytes) -> None:
        context, heard = self._heard.get(address, (None, None))
        is_sent = not _is_dead(contextvars.copy_context())
        if context is None or heard is None or not is_sent or _is_dead(context):
            return
        if self._chance.says(0.2):
            self._faults["message lost"] += 1
            return
        asyncio.get_running_loop().call_soon(heard, body, context=context)


def _is_dead(context: contextvars.Context) -> bool:
    process = context.get(PROCESS)
    return process is not None and process.is_dead


def is_of_sub_request(given: Event, facts: Sequence[Event]) -> bool:
    """Return whether a decision is on a question of a sub-request, which has no journal."""
    asked = {getattr(each, "call_id", "") for each in facts}
    return isinstance(given, ApprovalDecided) and given.call_id not in asked


def explains(given: Event, facts: Sequence[Event]) -> bool:
    """Return whether the facts of a request show that it has no use for an input any more."""
    if any(isinstance(each, (RequestEnding, CancelRequested)) for each in facts) or is_of_sub_request(given, facts):
        return True
    if isinstance(given, (ApprovalDecided, ToolCallCompleted, ToolCallFailed)):
        kinds = (ToolCallCompleted, ToolCallFailed, ApprovalDecided)[: 3 if isinstance(given, ApprovalDecided) else 2]
        return any(isinstance(each, kinds) and each.call_id == given.call_id for each in facts)
    return False
