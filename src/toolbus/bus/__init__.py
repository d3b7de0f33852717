"""The event bus: arbitration of terminal events, mailboxes, receivers, subscriptions.

`publish` is synchronous and never blocks. Results never travel through a slow listener's queue: the control path is a
session's mailbox, found by dictionary and lossless; receivers are called inline; subscriptions are bounded and may
drop, and say so. The bus knows events and nothing of sessions, tools or models.

Ids stay correct whoever races whom, because the bus arbitrates: a call is opened before anybody can answer it, its
first terminal event settles it, a later one becomes `ToolCallLate`, and one that nobody opened a `DeadLetter`.
"""

from __future__ import annotations

from ._arbitration import Arbitration
from ._buffer import Overflow
from ._bus import EventBus
from ._mailbox import Mailbox
from ._subscriptions import BusStatistics, EventT, Subscription
from ._text_stream import TextStream

__all__ = ["Arbitration", "BusStatistics", "EventBus", "EventT", "Mailbox", "Overflow", "Subscription", "TextStream"]
