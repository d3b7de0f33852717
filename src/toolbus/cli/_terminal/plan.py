"""A model's plan in a few short lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.plain_text import one_line
from ...events import PlanStep
from .text import cells, cut

__all__ = ["plan_lines"]

_MARKS: Mapping[str, str] = {"pending": " ", "active": ">", "done": "x", "dropped": "-"}
_MOST_STEPS = 8  # lines for steps, including the counts of those that are not shown


def plan_lines(steps: Sequence[PlanStep], width: int, ellipsis: str = "…") -> list[str]:
    """Return `Plan: [x] Read the file  [>] Write it` where that fits into `width` columns, else a line for each step.

    In a long plan, finished steps and steps far ahead are counted instead of shown.
    """
    shown = [f"[{_MARKS.get(step.status, ' ')}] {one_line(step.text)}" for step in steps]
    line = f"Plan: {'  '.join(shown)}"
    if cells(line) <= width:
        return [line]
    if len(shown) > _MOST_STEPS:
        finished = next((at for at, step in enumerate(steps) if step.status in ("pending", "active")), len(steps))
        # The last finished step is shown, because it says how far the model has come.
        finished = max(finished - 1, 0)
        head = [f"[x] {finished} steps before"] if finished > 1 else shown[:finished]
        ahead = shown[finished:]
        lines_left = _MOST_STEPS - len(head)
        tail = [f"{ellipsis} {len(ahead) - lines_left + 1} more steps"] if len(ahead) > lines_left else []
        shown = [*head, *ahead[: lines_left - len(tail)], *tail]
    return ["Plan:", *(cut(f"  {each}", width, ellipsis) for each in shown)]
