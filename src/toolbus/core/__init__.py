"""The decisions of toolbus, as pure code: it decides what has to be done, and other packages do it.

Knows messages, events, errors, schemas and the data in `protocols`. Must not know the bus, sessions, dispatchers,
providers' adapters or stores. `turn` is the machine that decides what a request does next; `transcript` checks and
repairs message lists; `history` and `compression` choose what is sent to the model; `arguments` and `output` read what
models write; `limits` holds the numbers at which a request stops. There are no names in the package itself: import them
from its modules.

Invariants:

1. Time and ids are parameters. No module reads a clock; `now` is seconds on the clock of the caller. Replaying a
   journal has to give the state that the live run had, and tests have to run in virtual time. A clock in here would
   make a replayed request decide differently from the one that was recorded.
2. Nothing is random. Values that should vary, such as the waits between retries, are derived from a seed. With real
   randomness, equal inputs would give unequal facts, and a recorded request could not be compared with a new run.
3. There is no I/O, no event loop and no thread. A decision is complete when the function returns, so that the session
   can decide, apply and claim calls on the bus without an `await` in between. An `await` would let another task change
   the state in the middle of a decision.
4. The application's functions that core calls (approval policies, compression policies, tokenizers, validators) must be
   quick and deterministic as well. An exception from a policy or a validator is caught where it is called: it makes the
   call wait for approval, refuses the call, or becomes an `ApplicationError`. A bug in an application must not leave a
   request without an ending.
5. The state shares no mutable data with listeners: it keeps its own copies of the arguments that events carry
   (`arguments.own_arguments`). Otherwise a listener that changes an event would change what the request decides.
"""
