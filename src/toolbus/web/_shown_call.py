"""The state of a tool call on a page, and of each text that is shown in pieces. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.arguments import encodable
from ..events import ApprovalRequested


class PieceWise:
    """A text that is shown in pieces: its id, what was shown of it, and whether the rest has to wait for the whole."""

    __slots__ = ("_pieces", "holds", "shown_id")

    def __init__(self, shown_id: str, *, holds: bool = False) -> None:
        self.shown_id = shown_id
        self.holds = holds
        self._pieces: list[str] = []

    def takes(self, piece: str) -> bool:
        """Note a piece, and return whether it may be shown now.

        After a gap, or half of a surrogate pair, all that follows waits for the whole text.
        """
        self.holds = self.holds or encodable(piece) != piece
        if not self.holds:
            self._pieces.append(piece)
        return not self.holds

    def rest(self, whole: str) -> str | None:
        """Return the part of the whole text that was not shown; None if the text shown is not its beginning."""
        shown = "".join(self._pieces)
        return whole[len(shown) :] if whole.startswith(shown) else None


@dataclass(slots=True, eq=False)
class ShownCall:
    """One tool call as the page has it. `shown_id` is its `call_id`, with `~2` and so on after a void beginning.

    `asks_for` is the call whose sub-request asks for this one. A page knows such a call only by its question.
    """

    call_id: str
    shown_id: str
    name: str
    pieces: PieceWise = field(init=False)
    # Then "whole"; at last "asked", "called" (of the page), "paused" (a sub-request asks) or "running".
    state: str = "arriving"
    approval_id: str = ""
    asks_for: str = ""
    in_background: bool = False
    is_open: bool = False  # whether its whole arguments were shown
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    text: str = ""  # the whole arguments, as the model wrote them
    question: ApprovalRequested | None = None

    def __post_init__(self) -> None:
        self.pieces = PieceWise(self.shown_id)
