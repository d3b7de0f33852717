"""The only module of this package that reads private parts of a session, which neither facts nor its API contain."""

from __future__ import annotations

from ...core.turn import TurnState
from ...session import RequestSession, Sending

__all__ = ["send_by", "state_of"]


def state_of(session: RequestSession) -> TurnState:
    """Return the state of the turn. Only read it, except for fields that no part of the session has set yet."""
    return session._state  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def send_by(session: RequestSession, sending: Sending) -> None:
    """Let `sending` choose the messages that are sent to the model. Call it before the session runs."""
    session.sending = session._asker.sending = sending  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
