"""The tool dispatcher: an executor that runs the tool calls of agents in this process and publishes their results.

It receives `ToolCallRequested` from the bus, runs the tool's handler in a reused worker task, in a thread or in a
process, and publishes a `ToolCallCompleted` or `ToolCallFailed`. `_schedule` decides which call may run now, `_workers`
has the tasks, `_reports` builds the events, `_cache` shares results, and `_overdue` counts handlers that do not end.

Knows the bus, tools, interceptors and secrets. Must not know sessions, models, providers or stores: it sees a request
only through its `RequestView`.

Invariants:

1. One executor claims each call. The dispatcher runs a call only if `EventBus.arbitration.watch` returned True, and it
   asks while it receives the event, without an `await` in between. The bus refuses a call that another executor has
   claimed, that is settled, or that no session has opened. Otherwise two executors could run a tool twice, or a forged
   event could run it.
2. Each call that the dispatcher has claimed gets exactly one terminal event. The dispatcher publishes it whatever the
   handler raises, unless the call is settled elsewhere first, or is stopped because its request is left to another
   process (`RequestView.is_released`), which publishes the event then. Without it, the session would wait until the
   deadline. A result that comes after the call was settled is published as well, and the bus turns it into
   `ToolCallLate` or drops it.
3. The session has the only deadline: the earlier of the call's deadline and the request's. When it passes, the session
   settles the call. Between a result and the deadline, the terminal event that reaches the bus first
   wins. The dispatcher has no timer for it and only reads it, so as not to begin a wait between attempts that would
   outlive it. With two timers, the session and the dispatcher could disagree on how a call has ended.
4. The handler of a call that is settled elsewhere is stopped. A call in a queue is removed, an async handler is
   cancelled, a process is killed. A thread cannot be killed: it is given up, and counts as overdue until it ends. If
   other calls share its result, the next one of them runs. No handler begins once its call is settled or its request
   stops (`RequestView.is_stopping`). Otherwise a cancelled request could still have effects, and calls that nobody
   waits for would hold up others.
5. A call holds slots in all of its gates or in none, and gives each back once, when its handler has ended. A thread
   that was given up keeps the slots of its thread and of its tool until it ends. A handler that waits for a child
   request gives its slots back meanwhile. Each slot that is given back goes to the longest waiting call that fits. A
   slot that is lost would lower `max_concurrency` for good; slots held while waiting for a child request could block
   the child's calls for ever.

Example:
    from toolbus import EventBus, RequestSession, ToolDispatcher, tool
    from toolbus.dispatcher import DispatcherStatistics
    from toolbus.testing import ScriptedProvider, calls, text

    @tool
    def add(a: int, b: int) -> int:
        return a + b

    bus = EventBus()
    model = ScriptedProvider([calls(("add", {"a": 2, "b": 3})), text("It is 5.")])
    async with ToolDispatcher(bus, [add]) as dispatcher:  # Runtime does this for you
        session = RequestSession(bus, model, "What is 2 + 3?", tools=[add])
        print((await session.run()).text)  # It is 5.
        statistics: DispatcherStatistics = dispatcher.statistics()
    print(statistics.running)  # 0
"""

from __future__ import annotations

from ._dispatcher import DispatcherStatistics, ToolDispatcher

__all__ = ["DispatcherStatistics", "ToolDispatcher"]
