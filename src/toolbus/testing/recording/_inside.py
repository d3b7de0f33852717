"""The one place of this package that reaches into a session: for what its facts and its public side do not tell."""

from __future__ import annotations

from ...core.turn import TurnState
from ...session import RequestSession, Sending

__all__ = ["send_by", "state_of"]


def state_of(session: RequestSession) -> TurnState:
    """The turn's state: read-only but for what nobody has decided on yet."""
    return session._state  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def send_by(session: RequestSession, sending: Sending) -> None:
    """Have what is sent of the history decided by `sending`. Before the session runs."""
    session.sending = session._asker.sending = sending  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
