"""Tool calls that run on other machines, and requests that do: `toolbus.remote.nats`, and `Client`.

`Client` reaches requests through the store that their runtimes use: see `toolbus.handles`. The rest of the package is
about calls, which `toolbus.remote.nats` carries over NATS JetStream.

Beside the sessions, `_executor` sends the calls of a pool and publishes what comes back. On the other machine,
`_worker` is a bus and its own dispatcher, and the bridge from the transport to them. `_questions` carries what a
handler asks the model of its session. `_transport` is the seam between these and a broker.

Knows the bus, tools and the dispatcher; only `Client` knows sessions and stores. Must not know models: whether a call
is requested again after a restart is decided by the session.

Invariants:

1. The first answer of a call wins in the broker, over all workers, and on the bus it is arbitrated once more. Without
   the first, two sessions that take a request over one after the other could continue with different answers.
2. An answer is kept before the lease of its call is given up, and is deleted only after the session has appended it:
   at the end of the request. Without this, an answer would be lost with the process that holds it.
3. All that is kept of a request's calls is deleted in one order: first the calls, and then their marks and answers.
   Without this, a worker that is lost between the two would have a call delivered, and run, once more. A worker gives
   the lease up before it sends the answer on, so of a request whose calls were sent once, and whose answers all came
   from their workers, no call is left, and only answers are deleted. What was settled elsewhere is deleted after its
   terminal event is published: a process that another one has replaced would delete what that one waits for.
4. A call of a tool that is not idempotent is begun by one delivery only: it leaves a mark which only the first one
   can leave, and then looks whether the call is still there. Another delivery ends the call as `interrupted`. Without
   this, a worker that was stopped past its lease and continues would run what another worker has run. A delivery knows
   its own mark, and asks again if the broker has not acknowledged it. Otherwise, such a call would never run.
5. Only what a worker has adopted from its pool runs there, and only if the call's ids are those of its subject and the
   tool's definition is the one by which the call was checked. Otherwise a forged or an outdated call would run.
6. What does not fit into one message is kept before the message that refers to it is sent, and it is taken only with
   the size and the digest that the message says. Parts belong to their request, which deletes them at its end, and
   whose age does if nobody else does. Otherwise a worker that dies half-way would leave them for ever.
7. Remaining seconds are sent, and no wall clock is: the clocks of two machines differ. Only the session
   keeps the deadline: a worker has no timer, and cannot pause a call.
8. A question is answered only where its call is open, by a sub-request within the limits of the call's request and
   without tools, once for each id. Otherwise a worker could spend, or do, more than a handler beside the session.
"""

from __future__ import annotations

from ._client import Client

__all__ = ["Client"]
