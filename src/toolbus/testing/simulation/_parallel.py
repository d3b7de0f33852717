"""Seeds on several cores. Each process runs its seeds one after the other; the lowest seed that fails is raised."""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Any

from ._findings import SeedReport, SimulationFailed
from ._run import run_seed

_SHARE = 50  # seeds that a process gets at once: enough to be worth the hand-over, few enough to end soon

_Failure = tuple[int, str, str, str]


def run_in_processes(
    seeds: Iterable[int], jobs: int, seconds: float | None, *, keep_going: bool = False
) -> Iterator[SeedReport | SimulationFailed]:
    """Yield the report of each seed, in no order, from `jobs` processes.

    After `seconds` no new seeds are started, except one for each share that a process has already been given.

    Raises `SimulationFailed` for the lowest seed among those that have failed by then; with `keep_going`, yields it.
    """
    ends = math.inf if seconds is None else time.monotonic() + seconds  # All processes of a machine have this clock.
    left = iter(seeds)
    failures: list[_Failure] = []
    # The processes are not forked: a fork of a process with threads or event loops would copy half of them.
    with ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_the_others
    ) as pool:
        running: set[Future[list[SeedReport | _Failure]]] = set()
        while True:
            in_time = time.monotonic() < ends
            while in_time and not failures and len(running) < 2 * jobs and (share := list(islice(left, _SHARE))):
                with _without_interrupts():  # submit() may start a process
                    running.add(pool.submit(_run_share, share, ends, keep_going=keep_going))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for found in itertools.chain.from_iterable(each.result() for each in done):
                if not isinstance(found, tuple):
                    yield found
                elif keep_going:
                    yield SimulationFailed(*found)
                else:
                    failures.append(found)
    if failures:
        raise SimulationFailed(*min(failures))


@contextlib.contextmanager
def _without_interrupts() -> Generator[None]:
    """Delay Ctrl-C inside the block; in a process that is started inside, until `_end_with_the_others`."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_the_others() -> None:
    """Let this process end without a traceback on Ctrl-C, and when its parent ends.

    The processes of a pool do not learn that their parent was killed: they would wait for work for ever.
    """
    threading.Thread(target=_end_after, args=(multiprocessing.parent_process(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _run_share(seeds: list[int], ends: float, *, keep_going: bool) -> list[SeedReport | _Failure]:
    """Run the seeds until the clock shows `ends`. At least one runs, because a process may be slow to start."""
    found: list[SeedReport | _Failure] = []
    for seed in seeds:
        try:
            found.append(run_seed(seed))
        except SimulationFailed as exc:  # sent as data, because an exception's cause may not be picklable
            found.append((exc.seed, exc.guarantee, exc.problem, exc.timeline))
            if not keep_going:
                break
        if time.monotonic() >= ends:
            break
    return found
