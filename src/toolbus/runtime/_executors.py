"""The executors that a runtime has beside its dispatcher, and the check that some executor serves each tool's pool."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from .._option_checks import check_implements, listed
from ..bus import EventBus
from ..errors import ConfigurationError
from ..protocols import ToolSpec
from ..tools import ToolRegistry


class PoolExecutor(Protocol):
    """An executor for `Runtime(executors=[...])`: it runs the calls of the tools that are declared for its `pools`.

    `pools` must not change while the runtime runs. After a restart, the open calls of its tools are requested again
    with `ToolCallRequested.resumed`. Such a call may have run, so an executor that cannot find its answer must not run
    it unless the tool is idempotent, and ends it as `interrupted`. `ToolDispatcher` does so.

    Example:
        from toolbus import Runtime
        from toolbus.remote.nats import NatsExecutor
        from toolbus.runtime import PoolExecutor
        from toolbus.testing import ScriptedProvider

        executor: PoolExecutor = NatsExecutor("nats://broker:4222", pool="gpu")
        runtime = Runtime(ScriptedProvider([]), executors=[executor])
    """

    @property
    def pools(self) -> Collection[str]: ...

    def attach(
        self, bus: EventBus, tools: ToolRegistry, on_cancelled: Callable[[], object]
    ) -> AbstractAsyncContextManager[Any]:
        """Return a `ToolExecutor` for a runtime's bus, which the runtime enters when it starts, and leaves at its end.

        `tools` are those of the runtime. A request may have tools of its own: `bus.arbitration.view(request_id).tools`.
        When the host cancels the executor's tasks, call `on_cancelled` before the first call is answered for that
        reason, and then leave the calls of requests that are left unanswered (`RequestView.is_released`): the process
        that resumes the request decides on them.
        """
        ...


def pool_executors(given: Iterable[PoolExecutor]) -> Sequence[PoolExecutor]:
    """Return the executors that a runtime was given. Raises `ConfigurationError` for anything else."""
    advice = "pass a list of executors for pools, such as NatsExecutor(url, pool='gpu')"
    found = listed("executors", given, advice)
    for each in found:
        check_implements(each, PoolExecutor, advice)
    return found


def check_pools(tools: Mapping[str, ToolSpec], executors: Iterable[PoolExecutor]) -> None:
    """Raise `ConfigurationError` if a tool is declared for a pool that none of the executors serves."""
    served = {pool for each in executors for pool in each.pools}
    for name, spec in tools.items():
        if spec.pool and spec.pool not in served:
            known = ", ".join(map(repr, sorted(served))) or "none"
            raise ConfigurationError(
                f"tool {name!r} runs in the pool {spec.pool!r}, which no executor serves (the pools are: {known}); "
                "pass one that does: Runtime(executors=[...])"
            )
