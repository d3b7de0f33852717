"""Tells where a request stands: its events, folded by `core.narration`, go out as `StatusChanged` where that is wanted.

Belongs to a session and knows its bus, no model and no dispatcher. Status is for people: nothing depends on it, and it
may be missed.
"""

from __future__ import annotations

from ._narrator import Narrator
from ._publisher import StatusTeller
from ._stages import ANALYZING, ASKING_AGAIN, Status, display_name, round_status

__all__ = ["ANALYZING", "ASKING_AGAIN", "Narrator", "Status", "StatusTeller", "display_name", "round_status"]
