"""Handles to requests in any process: `RequestHandle` watches and commands a request, wherever it runs.

A request that runs here is reached through its session. Any other is read from the store's journal, and its commands go
into the store's inbox, from which the process that holds its lease takes them. The store is queried at intervals. With
a `Relay` between the processes, events come at once, also signals, and inboxes are read at once (`_exchange`).

Knows sessions and the requests of a store. Must not know the runtime, providers, or which database a store uses.

Invariants:

1. A command is "done" only when its fact is in the journal. The same input may be sent again, to any process: its
   `event_id` identifies it, so it becomes a fact once. Otherwise a webhook that repeats its delivery would act twice.
2. A command that was sent survives the death of its sender and of the process that runs the request: it waits in the
   inbox until the next holder of the lease takes it. Otherwise an approval that was acknowledged could be lost.
3. The events of other processes go to the reader of a handle and never to a bus. On a bus they would start tools.
4. A reader that changes from a session to the store, because the request moves, misses no fact and gets none twice:
   both count the same facts (`Cursor`).
5. `authorize` is asked in the process where the caller is known, before a command is sent. The process that runs the
   request cannot know who has sent an input.
6. A relay decides nothing: commands are in the store before anybody is woken, and a reader that misses a message
   continues with the store, from its cursor. Otherwise a lost message would be a lost fact.

Example:
    from toolbus import Runtime
    from toolbus.events import Event, SteeringAdded
    from toolbus.handles import Authorize, CommandStatus, OpenRequest, OpenState, RequestEvents
    from toolbus.handles import RequestHandle, open_requests
    from toolbus.testing import ScriptedProvider, text

    def may(command: Event) -> bool:
        return isinstance(command, SteeringAdded)

    authorize: Authorize = may  # anything else raises NotAuthorized
    async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
        session = runtime.start("Hello?")
        handle: RequestHandle = runtime.request(session.request_id, authorize=authorize)
        events: RequestEvents = handle.events()
        records = await runtime.requests(is_unfinished=True)
        found: list[OpenRequest] = await open_requests(records, None, runtime.session)
        state: OpenState = found[0].state
        print((await handle.result()).text)  # Hello.
        answer: CommandStatus = await handle.steer("And in French?")
        await events.aclose()
    print(answer)  # ended
"""

from __future__ import annotations

from ._events import RequestEvents
from ._exchange import Exchange
from ._handle import TIMEOUT_SECONDS, Authorize, CommandStatus, RequestHandle, inbox_poll_seconds_of
from ._open_requests import OpenRequest, OpenState, open_requests
from ._record import record_of
from ._relay import Relay, RelayLink

__all__ = [
    "TIMEOUT_SECONDS",
    "Authorize",
    "CommandStatus",
    "Exchange",
    "OpenRequest",
    "OpenState",
    "Relay",
    "RelayLink",
    "RequestEvents",
    "RequestHandle",
    "inbox_poll_seconds_of",
    "open_requests",
    "record_of",
]
