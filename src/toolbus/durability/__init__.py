"""The link between a runtime and its store's journal: requests that are written, left, resumed and recalled.

A session writes its steps to the runtime's `JournalWriter`, which makes an `Entry` of each step and appends it to the
store. `UnfinishedRequests` finds the requests that another process has begun, and makes sessions that continue
them. A lease is the right to write one request; its `epoch` counts how often the lease was taken.

Knows sessions, the options of requests and the protocol of stores. Must not know the runtime, the bus, providers by
name, or which database a store uses.

Invariants:

1. Only the process that holds a request's newest lease writes the request. Each entry carries the epoch of its lease,
   and the store refuses an older epoch with `LeaseLost`, in the transaction of the write. A process that was suspended
   for longer than its lease cannot know that another one has continued its request; without the check both would write
   it, and both would run its tool calls.
2. A step that the store did not take is never reported as durable: `append` raises, or with `on_failure="warn"` returns
   None and logs a warning, and `RequestResult.journaled` is true only when the journal has the request's ending.
   Otherwise an application would rely on a result that a restart forgets.
3. What the store did not take stays in memory as one entry that begins at the first missing position, and later steps
   are added to it. The positions of a journal have no gaps: an entry that began after a gap would be refused, and the
   request could never be written again.
4. After a store call whose outcome is unknown, the request is read before anything is written, and only the missing
   facts are appended. A repeated append would be refused as if another process had taken the request.
5. When a request was left or has ended here, the writes for it are retried until the store takes them, or another
   process has the request. All leases of a process are renewed together, so the lease of a request that
   nobody runs would otherwise be renewed for as long as the process lives, and nobody could continue the request.
6. With `on_failure="stop"`, a refused step that requests tool calls is not offered to the store again when the request
   is left: its calls have not begun. In the journal they would look as if they had, and resuming would end those that
   are not idempotent as `interrupted`.
7. A store has `TIMEOUT_SECONDS` for each answer, which is less than the 5 seconds after which a result must be there
   (G21). Without the limit a store that hangs would hold every request; with a longer one the result would not say why.
8. The journal has the options of a request that are data. Functions and objects (deps, tools, an output type) are
   given again by the application, and a request that lacks something is refused with `ResumeMismatch` and its lease
   given back. Otherwise it would continue as a different request, or be blocked for the next attempt.
9. An input from the inbox stops waiting in the transaction that appends its fact. If that were two transactions, a
   crash in between would lose the input, or give it to the request twice.

Example:
    from toolbus import Runtime
    from toolbus.durability import REPLACED, OptionsFor, Resumption
    from toolbus.stores.memory import MemoryStore
    from toolbus.testing import ScriptedProvider

    options_for: OptionsFor = lambda record: {}  # more options of a request that continues
    async with Runtime(ScriptedProvider([]), store=MemoryStore(journal=True)) as runtime:
        resumption: Resumption = await runtime.resume(options=options_for)
    print(resumption.sessions, resumption.problems, resumption.held)  # () () 0
    print(REPLACED)  # replaced by a newer message
"""

from __future__ import annotations

from ._agreed_options import FUNCTION, agreed_options, limits_in, messages_from, messages_to_json, options_in
from ._inbox_reader import InboxReader, inbox_of
from ._journal_writer import REPLACED, JournalWriter, OnStoreFailure, journal_of, journal_writer_of
from ._resume import Resumption, UnfinishedRequests
from ._store_calls import call_store_in_time
from ._stored_requests import Make, OptionsFor, ReadAlong, StoredRequests

__all__ = [
    "FUNCTION",
    "REPLACED",
    "InboxReader",
    "JournalWriter",
    "Make",
    "OnStoreFailure",
    "OptionsFor",
    "ReadAlong",
    "Resumption",
    "StoredRequests",
    "UnfinishedRequests",
    "agreed_options",
    "call_store_in_time",
    "inbox_of",
    "journal_of",
    "journal_writer_of",
    "limits_in",
    "messages_from",
    "messages_to_json",
    "options_in",
]
