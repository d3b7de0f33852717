"""The runtime: the composition root. It owns the task group, the bus, the dispatcher, the store and admission.

`Runtime` takes requests (runs of an agent), admits them, carries each out in a session, and adds its turn to its
conversation. The parts are made and closed here, and know each other only through protocols and the bus.

It is the only package that makes providers and stores by name. It must not know how a request decides (the turn
machine), how a tool is run (the dispatcher), or what is written when (sessions and durability).

Invariants:

1. A request begins only with a ticket. At most `max_sessions` requests run and `max_queued` wait; another one is
   refused with `Overloaded` before its session is made. Without the bound a burst of requests would use up memory and
   time until every request misses its deadlines.
2. A ticket is given back exactly once, however its request ends, and only after the turn was added to its conversation
   (or the store has failed). A lost ticket would occupy a slot for ever, and draining would never end. A ticket that is
   given back twice would admit one request too many. A ticket that is given back early would let the conversation's
   next turn begin without the messages of this one.
3. One turn at a time runs in a conversation; others wait in the order in which they were started, or are refused with
   `ConversationBusy`. Two turns at once would read the same history, and each would miss what the other adds. With a
   journal, a turn waits for those of other runtimes too, after it has its slot. A turn that replaces others cancels
   them, and then waits like any other turn. If it began before they have ended, it would lack what they add.
4. A slot that becomes free is handed to the request that has waited longest. If it were only set free, a request that
   starts at that moment could take it, and one that waits could wait forever.
5. Draining begins with refusing new requests. Running ones get `drain_seconds`; then they are cancelled, or with a
   journal left for `resume`. If requests were still admitted, draining might never end.
6. The parts are closed in this order: requests, lease renewal, listeners, narrator and dispatcher, pending store calls,
   the store, providers. Requests write their endings while they are closed, so the store outlives them; a lease that is
   not renewed while its request is drained could be taken by another process, which would run the same calls. (After an
   exception nothing is drained: requests and lease renewal are cancelled together.)
7. When the host cancels all tasks, requests with a journal are left before the first of their calls is answered. An
   answer would become the result of the call in the journal, and the resumed request would not run the call again.
8. A runtime belongs to the thread and event loop in which it was entered. Its parts have no locks, so a request from
   another thread would corrupt them.
9. Each piece of memory beside the store is bounded, in conversations (remembered approvals, secrets, late results) or
   in bytes (shortened histories); the oldest is dropped. Otherwise a server's memory would grow with each conversation
   that it has ever had.
"""

from __future__ import annotations

from ..session import RequestOptions
from ._executors import PoolExecutor
from ._runtime import Runtime
from ._statistics import RuntimeHealth, RuntimeStatistics
from ._tally import ModelStatistics, ToolStatistics

__all__ = [
    "ModelStatistics",
    "PoolExecutor",
    "RequestOptions",
    "Runtime",
    "RuntimeHealth",
    "RuntimeStatistics",
    "ToolStatistics",
]
