"""The attempts of tool calls inside of the instrumentation of their request.

Must not know the bus. An attempt without instrumentation does not come here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..instrumentation import Work
from ..secrets import MASK, secrets_of
from ..tool_results import RenderedResult, render, settled
from ._processes import run_in_process

if TYPE_CHECKING:
    from ._schedule import Job


def observed(job: Job, call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that calls the handler inside of the instrumentation, in the same task or thread.

    It returns the handler's value, or that value rendered if anybody listens: a value may not be read twice.
    """
    if job.tool.is_async:

        async def in_task() -> Any:
            with _work(job) as work:
                return _heard(job, work, await call())

        return in_task

    def in_thread() -> Any:
        with _work(job) as work:
            return _heard(job, work, call())

    return in_thread


async def observed_in_process(job: Job, arguments: Mapping[str, Any]) -> RenderedResult:
    """Run the handler in a process, inside of the instrumentation here, and of what it carries to that process."""
    with _work(job) as work:
        return _heard(job, work, await run_in_process(job.tool, arguments, work.elsewhere()))


def _work(job: Job) -> Work:
    return Work("tool", () if job.view is None else job.view.instrumentation, job.request)


def _heard(job: Job, work: Work, value: Any) -> Any:
    """Give the result to whoever listens, without secrets. A sync function's awaitable is not a result yet."""
    if not work.is_heard or inspect.isawaitable(value):
        return value
    try:
        rendered = value if type(value) is RenderedResult else render(value)
    except Exception:
        # The dispatcher renders the value again, and reports why it cannot.
        return value
    # The marks are masked here, as the vault must not be changed in a thread.
    work.ended(secrets_of(job.view).mask(settled(rendered, lambda _value: MASK)))
    return rendered
