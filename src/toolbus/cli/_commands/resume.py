"""`toolbus resume`: goes on with requests that were cut off, each with what it was begun with."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import anyio

from ...core.plain_text import clean, one_line
from ...durability import limits_in
from ...errors import ConfigurationError, ResumeMismatch, StoreDamaged, ToolbusError
from ...events import Event, RequestResumed
from ...providers import resolve
from ...request_result import RequestResult
from ...runtime import Runtime
from ...storage import RequestRecord
from ...stores._sql.find import FoundRequest
from .._approval import arrange
from .._host import Host
from .._load import is_vendor, load_provider, load_tools
from .._open_store import COMMAND, KeptStore, closing, existing, run, whose
from .._requests import status_of, tell_ending, told_apart
from .._store_place import LEASE_SECONDS, Place
from .._terminal.progress import Narrator
from .._terminal.progress_of_many import Several
from .._terminal.screen import Line, Screen
from .._terminal.text import cut
from .ask import as_json

__all__ = ["resume"]

FAILED = 1
_LOOK_SECONDS = 0.5  # between looks at a lease that is about to run out
_PROMPT_COLUMNS = 60


def resume(options: argparse.Namespace, screen: Screen, *, debug: bool) -> int:
    """Go on with what is unfinished; the exit status. Raises `ConfigurationError`, `StoreError`."""
    found = existing(options)
    if found is None:
        return _nothing(options, screen, running=0)
    store, place = found
    try:
        ready, running = run(_ready, store, screen)
    except KeyboardInterrupt:
        screen.tell("toolbus: nothing was begun; what is unfinished still is")
        return 130
    if not ready:
        return _nothing(options, screen, running)
    if options.abandon:
        return _told_of(run(_abandoned, store, ready), options, screen)
    return _Resuming(options, screen, store, place, ready, debug=debug).go_on()


def _nothing(options: argparse.Namespace, screen: Screen, running: int) -> int:
    also = f": {_count(running)} runs in another process" if running else ""
    if not options.json:
        screen.data(f"There is nothing to resume{also}.")
    return 0


def _count(number: int) -> str:
    return f"{number} request{'' if number == 1 else 's'}"


# ------------------------------------------------------------------------------------------------- looking


async def _ready(store: KeptStore, screen: Screen) -> tuple[Sequence[FoundRequest], int]:
    """The requests that can be taken now, and how many run elsewhere.

    The lease of a process that is gone runs out by itself, in a few seconds, which are waited for: so nothing is taken
    from a process that only seems to be gone.
    """
    async with closing(store):
        since: dict[str, float] = {}
        told = False
        while True:
            found = await store.requests(is_unfinished=True)
            held = [each for each in found if whose(each.record) in ("gone", "elsewhere")]
            # A lease that was renewed meanwhile has somebody who lives.
            held = [each for each in held if since.setdefault(each.record.request_id, _end(each)) == _end(each)]
            if not held:
                free = [each for each in found if whose(each.record) == "nobody"]
                return free, len(found) - len(free)
            if not told and not screen.live:
                screen.tell(
                    f"toolbus: waiting for the hold of a process that is gone to end, {LEASE_SECONDS:g} s at most"
                )
            told = True
            left = max(_end(each) for each in held) - time.time()
            detail = "until the hold of a process that is gone ends"
            screen.busy(Line(mark="work", name="Waiting", detail=detail, tail=f"{max(left, 0):.0f} s"))
            await anyio.sleep(_LOOK_SECONDS)


def _end(found: FoundRequest) -> float:
    return found.record.lease_until


async def _abandoned(store: KeptStore, ready: Sequence[FoundRequest]) -> Sequence[FoundRequest]:
    """End requests as abandoned; those that nobody else took meanwhile."""
    done: list[FoundRequest] = []
    async with closing(store):
        for each in ready:
            taken = await store.take(each.record.request_id, "toolbus resume --abandon", LEASE_SECONDS)
            if taken is not None and await store.abandon(taken.request_id, taken.epoch):
                done.append(each)
    return done


def _told_of(abandoned: Sequence[FoundRequest], options: argparse.Namespace, screen: Screen) -> int:
    for each in abandoned:
        if not options.json:
            screen.data(clean(f"{each.record.request_id}  abandoned  {one_line(each.prompt)}"))
    return 0


# ------------------------------------------------------------------------------------------------ going on


class _Resuming:
    """The requests that go on, and what is shown of them."""

    def __init__(
        self,
        options: argparse.Namespace,
        screen: Screen,
        store: KeptStore,
        place: Place,
        ready: Sequence[FoundRequest],
        *,
        debug: bool,
    ) -> None:
        self._options = options
        self._screen = screen
        self._store = store
        self._place = place
        self._debug = debug
        self._prompts = {each.record.request_id: one_line(each.prompt) for each in ready}
        self._reasons: dict[str, str] = {}  # of ours, why a request cannot go on
        self._results: list[RequestResult[Any]] = []
        self._shows_text = len(ready) == 1 and not options.json

    def go_on(self) -> int:
        """Carry them out to their ends; the exit status."""
        options, screen = self._options, self._screen
        teller: Narrator | Several
        if len(self._prompts) == 1:
            teller = Narrator(screen, show_text=self._shows_text, show_calls=not options.quiet)
        else:
            teller = Several(screen, self._prompts, show_calls=not options.quiet)

        def show(event: Event) -> None:
            if self._shows_text and isinstance(event, RequestResumed):
                self._say_which(event.request_id)
            teller(event)

        with told_apart(options, screen) as stdout:
            # The provider is each request's own.
            runtime = Runtime(resolve("extractive"), store=self._store, lease_seconds=LEASE_SECONDS)
            person = arrange(runtime, options, screen, stdout)
            with Host(runtime, screen, show, teller.tick if screen.live else None, person) as host:
                resumption = host.resume(self._options_for, self._ended)
        for problem in resumption.problems:
            self._tell_problem(problem.request, problem.error)
        return self._status(len(resumption.problems), host.signal)

    def _status(self, problems: int, signal: int | None) -> int:
        left = sum(each.resumable for each in self._results)
        if left:
            what, it = ("is", "it") if left == 1 else ("are", "them")
            typed = f"toolbus resume{self._place.options}"
            self._screen.tell(clean(f"toolbus: {_count(left)} {what} left unfinished: {typed} goes on with {it}"))
        if signal is not None:
            return 128 + signal
        went_well = not problems and all(status_of(each, None) == 0 for each in self._results)
        return 0 if went_well else FAILED

    # ---------------------------------------------------------------------------------- on the loop's thread

    def _options_for(self, request: RequestRecord) -> Mapping[str, Any]:
        try:
            return self._found_for(request)
        except ConfigurationError as exc:
            self._reasons[request.request_id] = str(exc)
            raise

    def _found_for(self, request: RequestRecord) -> Mapping[str, Any]:
        """What the request was begun with, as far as it may be had again without being named.

        Code is never run because a store says so: modules with tools and providers have to be named.
        """
        options = self._options
        command: Mapping[str, Any] = request.agreed.get(COMMAND) or {}
        name: str | None = options.provider or command.get("provider")
        if name is None:
            raise ConfigurationError(
                "it was begun by a program: name its model, and its tools: --provider NAME --tools ..."
            )
        missing = [each for each in command.get("tools", ()) if each not in options.tools]
        if options.provider is None and not is_vendor(name):
            raise ConfigurationError(f"it needs code of yours: {self._typed(name, command)}")
        if missing:
            raise ConfigurationError(f"it needs tools of yours: {self._typed(None, command)}")
        if command.get("mcp"):
            raise ConfigurationError("it needs MCP servers, which resume does not connect; --abandon ends it")
        folder = options.dir or command.get("dir") or "."
        return {
            "provider": load_provider(name)[0],
            "tools": load_tools(folder, options.tools),
            "limits": limits_in(request.agreed),  # the same, with their time anew: somebody has asked for it now
        }

    def _typed(self, provider: str | None, command: Mapping[str, Any]) -> str:
        words = [f"toolbus resume{self._place.options}"]
        if named_provider := self._options.provider or provider:
            words.append(f"--provider {quote(named_provider)}")
        named = dict.fromkeys([*self._options.tools, *command.get("tools", ())])
        return " ".join([*words, *(f"--tools {quote(each)}" for each in named)])

    def _ended(self, result: RequestResult[Any]) -> None:
        """One has ended: its answer, where it was not shown as it came."""
        screen = self._screen
        self._results.append(result)
        if result.resumable and result.outcome == "cancelled":
            return
        if result.resumable:  # its store has failed, and what was done of it is not final
            pass
        elif self._options.json:
            screen.data(as_json(result))
        elif not self._shows_text:
            if screen.said:
                screen.say("\n")
            self._say_which(result.request_id)
            screen.say(clean(result.text))
            screen.end_paragraph()
        verbose: bool = self._options.verbose
        tell_ending(result, screen, verbose=verbose, debug=self._debug, can_raise=False)

    def _say_which(self, request_id: str) -> None:
        prompt = cut(self._prompts.get(request_id, ""), _PROMPT_COLUMNS)
        self._screen.data(clean(f"request {request_id}: {prompt}"))

    def _tell_problem(self, request: RequestRecord, exc: ToolbusError) -> None:
        screen, why, what = self._screen, self._reasons.get(request.request_id), ""
        if why is not None:
            pass
        elif isinstance(exc, StoreDamaged):
            what = "; toolbus store verify looks further, toolbus resume --abandon drops it"
        elif isinstance(exc, ResumeMismatch):
            what = "; toolbus resume --abandon drops it"
        screen.tell(clean(f"toolbus: request {request.request_id} cannot go on: {one_line(why or str(exc))}{what}"))
