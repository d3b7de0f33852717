"""A model's plan in a few short lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.plain_text import one_line
from ...events import PlanStep
from .text import cells, cut

__all__ = ["plan_lines"]

_MARKS: Mapping[str, str] = {"pending": " ", "active": ">", "done": "x", "dropped": "-"}
_MOST_STEPS = 8  # that are shown one by one


def plan_lines(steps: Sequence[PlanStep], width: int, ellipsis: str = "…") -> list[str]:
    """`Plan: [x] Read the file  [>] Write it` where that fits into `width` columns, else a line for each step.

    Of a long plan what is behind the model is counted, and so is what lies far ahead.
    """
    shown = [f"[{_MARKS.get(step.status, ' ')}] {one_line(step.text)}" for step in steps]
    line = f"Plan: {'  '.join(shown)}"
    if cells(line) <= width:
        return [line]
    if len(shown) > _MOST_STEPS:
        behind = next((at for at, step in enumerate(steps) if step.status in ("pending", "active")), len(steps))
        behind = max(behind - 1, 0)  # the last one of them says where the model is
        head = [f"[x] {behind} steps before"] if behind > 1 else shown[:behind]
        ahead = shown[behind:]
        room = _MOST_STEPS - len(head)
        tail = [f"{ellipsis} {len(ahead) - room + 1} more steps"] if len(ahead) > room else []
        shown = [*head, *ahead[: room - len(tail)], *tail]
    return ["Plan:", *(cut(f"  {each}", width, ellipsis) for each in shown)]
