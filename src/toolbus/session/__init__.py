"""The request session: the actor that carries out one request (one run of the agent).

A session performs what the turn machine (`core.turn`) decides: it calls the model, opens tool calls on the bus, waits,
writes facts to the journal and publishes them. The package also reads what callers give (messages, tools, options),
shortens what is sent to the model, and makes the sessions of sub-requests, which work for a tool call.

Knows the bus, the turn machine, secrets and the status line. Must not know runtimes, dispatchers or vendors.

Invariants:

1. A session decides nothing: each fact comes from `core.turn.advance`, and each effect from `pending`. A fact that the
   session made up would be missing when the request is resumed. (Only a session that is broken, or left for another
   process, settles its open calls and closes its state itself, see `_crash`. The denial of a question that nobody can
   answer is an input like every other one, which the session publishes: see `_approval_answers`.)
2. A session is the only writer of its request's facts. Whatever others publish for the request (results, decisions,
   steering, cancellations) is put into its mailbox and becomes a fact in a step. With two writers, the journal would
   have no order.
3. With a journal, a fact is written before it is published, and before its effect begins: the inputs of others wait for
   that too (G11, G31). Otherwise a crash could leave a call that has run, or an event that listeners have acted on, and
   a resumed request would report something else. When the store fails, only the ending is published.
4. Deciding, applying and claiming on the bus are one synchronous block (`_steps`). With an `await` in it, an executor
   could settle a call that the machine has just settled, and the call would have two results (G06).
5. A session waits with one timer at a time, and reads its mailbox before it believes that a deadline has passed. Two
   timers could fire in an order that differs from the machine's; an unread result would be lost to a time-out (G04).
6. The write of a step takes at most 5 seconds (G21). A write that a cancellation cuts short is repeated before the next
   step is written, because applied facts have to be published: a step that was written and not published would leave
   listeners waiting for a call that has ended.
7. However a session ends, every open call is settled exactly once, and all that wait for the result are woken. The
   ending is the last fact that is published; a request that is left for another process publishes none. Otherwise a bug
   or a store that fails would leave executors working, or a caller waiting, for ever.
8. The result and the view hold no session. A caller who keeps a result would otherwise keep the whole session alive.

Example:
    from toolbus import Runtime
    from toolbus.session import EventsOptions, Instructions, MessagesLike, OnBusy, RequestOptions
    from toolbus.session import check_together, read_messages, read_prompt
    from toolbus.testing import ScriptedProvider, text
    from toolbus.tools import ToolContext

    def instructions(context: ToolContext) -> str:
        return f"You talk to {context.deps}."

    about: Instructions = instructions
    history: MessagesLike = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]
    busy: OnBusy = "refuse"
    options: RequestOptions = {"deps": "Ann", "instructions": about, "history": history, "on_busy": busy}
    async with Runtime(ScriptedProvider([text("You are Ann.")])) as runtime:
        session = runtime.start(read_prompt("Who am I?"), **options)
        check_together(session.snapshot().view)  # raises `ConfigurationError` for options that exclude each other
        print((await session.result()).text)  # You are Ann.
        reading: EventsOptions = {"after": "", "capacity": 100}
        async with session.events(**reading) as events:
            print((await anext(events)).type)  # request_started
    print(len(read_messages(history)))  # 2
"""

from __future__ import annotations

from ._context_window import ContextWindow
from ._handle import EventsOptions
from ._inputs import (
    Instructions,
    MessagesLike,
    ToolsLike,
    provider_list,
    read_messages,
    read_prompt,
    tool_registry,
    tool_source,
)
from ._model_request import check_together
from ._options import OnBusy, RequestOptions, SessionOptions, check_options, merged_options
from ._session import RequestSession
from ._snapshot import SessionSnapshot
from ._start import Earlier, Resumed, SessionStart
from ._view import SessionView

__all__ = [
    "ContextWindow",
    "Earlier",
    "EventsOptions",
    "Instructions",
    "MessagesLike",
    "OnBusy",
    "RequestOptions",
    "RequestSession",
    "Resumed",
    "SessionOptions",
    "SessionSnapshot",
    "SessionStart",
    "SessionView",
    "ToolsLike",
    "check_options",
    "check_together",
    "merged_options",
    "provider_list",
    "read_messages",
    "read_prompt",
    "tool_registry",
    "tool_source",
]
