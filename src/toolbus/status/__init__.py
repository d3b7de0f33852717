"""The status line of a request: a stage and a sentence for people, published as `StatusChanged` if anybody listens.

`StatusPublisher` belongs to a session and follows its facts; `Narrator` lets a fast model describe what a call does.

Knows the bus, events, the turn's state and tool definitions; only `Narrator` knows a provider. Must not know sessions,
runtimes or dispatchers.

Invariants:

1. Nothing depends on the status: it is a signal, and may be missed. If a narrator is slow, fails or is cut short, the
   template's sentence stays. Otherwise a sentence for people could fail, or delay, a tool call.
2. While nobody listens, no status is kept and no sentence is made. For a later listener, the status is computed from
   the turn's state (`events_so_far`), with the same result; only earlier progress of tools is missing. Otherwise each
   request would pay for a status that nobody reads.
3. A step's status is published after the step's facts, at most once a step, and before the request's ending. Otherwise
   the last status would not reach subscriptions, which close with the ending.
4. A sentence is one line of at most 200 characters, without control characters and without what looks like a secret,
   because tools, models and users choose parts of it. Otherwise a tool's argument could put a key on a screen.

Example:
    from toolbus.events import RoundStarted
    from toolbus.status import Narrator, Status, display_name, round_status
    from toolbus.testing import ScriptedProvider, text

    print(display_name("get_order"))  # Get Order
    status: Status = round_status(RoundStarted(round=0, message_count=1))
    print(status)  # ('submitted', 'Analyzing request...')
    narrator = Narrator(ScriptedProvider([text("Looking for the order")]))  # Runtime(..., narrator=narrator)
"""

from __future__ import annotations

from ._model_sentences import Narrator
from ._publisher import StatusPublisher
from ._sentences import ANALYZING, ASKING_AGAIN, FORMULATING, Status, display_name, round_status

__all__ = [
    "ANALYZING",
    "ASKING_AGAIN",
    "FORMULATING",
    "Narrator",
    "Status",
    "StatusPublisher",
    "display_name",
    "round_status",
]
