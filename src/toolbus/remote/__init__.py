"""Tool calls on other machines (`toolbus.remote.nats`), and requests in other processes (`Client`).

`Client` reaches requests through the store that their runtimes use: see `toolbus.handles`. The rest of the package is
about calls, which `toolbus.remote.nats` sends over NATS JetStream.

In the process of the sessions, `_executor` sends the calls of a pool and publishes the answers. On the other machine,
`_worker` has its own bus and dispatcher, and connects them to the transport. `_questions` transports what a handler
asks the model of its session. `_transport` is the interface between these modules and a broker.

Knows the bus, tools and the dispatcher; only `Client` knows sessions and stores. Must not know models: whether a call
is requested again after a restart is decided by the session.

Invariants:

1. The broker keeps only the first answer to a call, from whichever worker, and the bus arbitrates it once more. Without
   the broker's choice, two sessions that take a request over one after the other could continue with different answers.
2. An answer is kept before the lease of its call is given up, and is deleted only after the session has appended it:
   at the end of the request. Without this, an answer would be lost with the process that holds it.
3. All that is kept of a request's calls is deleted in one order: first the calls, and then their marks and answers.
   Without this, a call whose worker is lost between the two deletions would be delivered, and run, once more. A worker
   gives up the lease before it sends the answer on. So if each call of a request was sent once and answered by its
   worker, no call is left, and only answers are deleted. A call that was settled elsewhere is deleted after its
   terminal event is published. Otherwise a process that was replaced would delete what its successor waits for.
4. Only one delivery begins a call of a tool that is not idempotent: it writes a mark, which only the first delivery can
   write, and then checks that the call is still there. Another delivery ends the call as `interrupted`. Without this, a
   worker that was suspended for longer than its lease would run a call that another worker has run. A delivery knows
   its own mark, and asks again if the broker has not acknowledged it. Otherwise, such a call would never run.
5. A worker runs a call only if it comes from the worker's pool, if its ids are those of its subject, and if the tool's
   definition is the one by which the call was checked. Otherwise a forged or an outdated call would run.
6. A body that does not fit into one message is kept before the message that refers to it is sent, and is accepted only
   with the size and the digest in that message. Its parts belong to a request: they are deleted when the request ends,
   or else when they are too old. Otherwise a worker that dies half-way would leave them for ever.
7. Messages have the remaining seconds, and no time of day, because the clocks of two machines differ. Only the session
   keeps the deadline: a worker has no timer, and cannot pause a call.
8. A question is answered only in the process where its call is open, by a sub-request within the limits of the call's
   request and without tools, once for each id. Otherwise a worker could spend, or do, more than a handler in the
   session's process.
"""

from __future__ import annotations

from ._client import Client

__all__ = ["Client"]
