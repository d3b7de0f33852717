"""The decisions that are the same in every store: whether a step may be written, and the receipt of an input. Pure."""

from __future__ import annotations

from typing import Any

from ..errors import LeaseLost, StoreError
from ..storage import Entry, InboxReceipt
from ._encoding import Written


def begun_already(request_id: str) -> StoreError:
    """Return the error for the first step of a request that the journal has."""
    return StoreError(f"request {request_id} is in the journal already")


def refusal_of(step: Entry | Written, *, epoch: int, ending: str | None, next_seq: int) -> StoreError | None:
    """Return the error for a step that a journal with this end does not take; None if it takes the step."""
    if ending and epoch == step.epoch:
        return StoreError(f"request {step.request_id} has ended already")
    if (epoch, next_seq) != (step.epoch, step.seq):
        return LeaseLost(step.request_id, step.epoch)
    return None


def receipt_of(state: Any, reason: str = "", *, ending: str | None, is_held: bool) -> InboxReceipt:
    """Return the receipt of an input of a request. `state` is "unknown" for an input that was not sent."""
    if state in {"taken", "refused"}:
        return InboxReceipt(state=state, reason=reason)
    if ending:
        return InboxReceipt(state="ended")
    return InboxReceipt(state=state, is_held=is_held and state == "waiting")
