"""The event bus: publishing, arbitration of terminal events, mailboxes, receivers and subscriptions.

An event reaches its listeners in three ways. A session's mailbox is its control path: the results of its tool calls,
and what people ask of it. Receivers are functions that are called inline. Subscriptions are async iterators over
bounded buffers, for listeners that may be slow.

Knows events and anyio. Must not know sessions, tools, models or stores: any code that publishes the right event may
answer a call.

Invariants:

1. A call is opened before anybody can answer it: the session opens all calls of a round before it announces the first.
   Otherwise a fast answer would find no open call and become a `DeadLetter`, and its request would wait for a result
   until the deadline. Executors take on only calls that are open: a request of any other call was forged or came from
   elsewhere, and could run a tool that needs approval. `adopt` is the way in for the calls of other processes.
2. The first terminal event settles a call (G07). A later one is announced as `ToolCallLate`, or dropped if the request
   wants that. A terminal event for a call that nobody opened becomes a `DeadLetter`. Two accepted results would
   contradict each other in the transcript, the journal and the listeners.
3. `publish` is synchronous: when it returns, the event is arbitrated, is in the mailbox that it is for, and was
   broadcast (except as in 4 and 7). An `await` in between would let another task settle a call that is already decided,
   or see a call that is settled without its result.
4. Every listener gets events in the order of publishing. An event that a receiver publishes is arbitrated at once, and
   delivered after the event that the receiver was called with. Otherwise some listeners would see an answer before its
   question.
5. A slow listener does not delay a session. A mailbox loses nothing and waits for no listener, and subscriptions are
   bounded. A full subscription drops or merges signals and reports that; facts are never dropped: a subscription that
   is full of facts ends with `SubscriptionOverflow`. Otherwise one stalled browser would stop all requests, or use up
   the memory. (Receivers are called inline, so they must be quick.)
6. An exception of a listener reaches no publisher and no other listener: it is logged and becomes `ReceiverFailed`.
   Only an exception for the host program, such as KeyboardInterrupt, is raised, after all listeners were called.
   Otherwise a bug in a logger could lose the result of a tool call.
7. Only the session of a running request publishes its facts, and with a journal it also broadcasts the inputs of its
   request, after the append (G31). Otherwise listeners would receive what the journal does not have, and what a
   resumed request may decide differently.
8. A bus belongs to one event loop at a time; other threads use `publish_threadsafe`. The tables of the bus have no
   locks, so a second thread would corrupt them.

Example:
    from toolbus import Runtime
    from toolbus.bus import BusStatistics, EventBus, Overflow, Subscription
    from toolbus.events import Event, ToolCallFailed
    from toolbus.testing import ScriptedProvider, text

    overflow: Overflow = "drop_oldest"  # for a reader that may miss signals, never facts
    async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
        bus: EventBus = runtime.bus
        bus.connect(ToolCallFailed, lambda event: print(event.name, event.error))  # called inline
        subscription: Subscription[Event] = bus.subscribe(capacity=100, overflow=overflow)
        async with subscription:
            await runtime.run("Hello?")
            print(subscription.receive_nowait().type)  # request_started
        statistics: BusStatistics = bus.statistics()
    print(statistics.dead_letters)  # 0
"""

from __future__ import annotations

from ._arbitration import Arbitration
from ._buffer import Overflow
from ._bus import EventBus
from ._cursor import Cursor, UnknownCursor
from ._mailbox import Mailbox
from ._subscriptions import BusStatistics, EventT, Subscription
from ._text_stream import TextFold, TextStream

__all__ = [
    "Arbitration",
    "BusStatistics",
    "Cursor",
    "EventBus",
    "EventT",
    "Mailbox",
    "Overflow",
    "Subscription",
    "TextFold",
    "TextStream",
    "UnknownCursor",
]
