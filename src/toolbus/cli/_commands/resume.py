"""The command `toolbus resume`: continues interrupted requests, each with the options that it was begun with."""

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
from ...stores.sql.find import FoundRequest
from .._approval import connect_approval
from .._host import Host
from .._load import is_vendor, load_provider, load_tools
from .._main import FAILED
from .._open_store import COMMAND, CommandStore, existing, holder_of, opened_store
from .._requests import output_on_stderr, report_ending, status_of
from .._store_location import LEASE_SECONDS, StoreLocation
from .._terminal.progress import Narrator
from .._terminal.progress_of_many import NarratorOfMany
from .._terminal.screen import Line, Screen
from .._terminal.text import counted, cut
from .ask import as_json

_LOOK_SECONDS = 0.5  # between checks of a lease that is about to expire
_PROMPT_COLUMNS = 60


def resume(options: argparse.Namespace, screen: Screen) -> int:
    """Continue unfinished requests, and return the exit status. Raises `ConfigurationError` and `StoreError`."""
    found = existing(options)
    if found is None:
        return _nothing(options, screen, running=0)
    store, location = found
    try:
        ready, running = anyio.run(_ready, store, screen)
    except KeyboardInterrupt:
        screen.report("toolbus: interrupted before anything was resumed; unfinished requests stay as they were")
        return 130
    if not ready:
        return _nothing(options, screen, running)
    if options.abandon:
        return _print_abandoned(anyio.run(_abandoned, store, ready), options, screen)
    return _Resuming(options, screen, store, location, ready).run()


def _nothing(options: argparse.Namespace, screen: Screen, running: int) -> int:
    also = f": {counted(running, 'request')} {'runs' if running == 1 else 'run'} in another process" if running else ""
    if not options.json:
        screen.data(f"There is nothing to resume{also}.")
    return 0


# ------------------------------------------------------------------------------------------------- look-ups


async def _ready(store: CommandStore, screen: Screen) -> tuple[Sequence[FoundRequest], int]:
    """Return the requests that can be resumed now, and the number of those that run elsewhere.

    The lease of a process that is gone expires by itself within a few seconds. This function waits for that, so that
    nothing is taken from a process that only seems to be gone.
    """
    async with opened_store(store):
        since: dict[str, float] = {}
        already_reported = False
        while True:
            found = await store.found_requests(is_unfinished=True)
            held = [each for each in found if holder_of(each.record) in ("gone", "elsewhere")]
            # A lease that was renewed meanwhile belongs to a process that still runs.
            held = [each for each in held if since.setdefault(each.record.request_id, _end(each)) == _end(each)]
            if not held:
                free = [each for each in found if holder_of(each.record) == "nobody"]
                return free, len(found) - len(free)
            if not already_reported and not screen.live:
                screen.report(
                    f"toolbus: waiting for the lease of a process that is gone to expire, {LEASE_SECONDS:g} s at most"
                )
            already_reported = True
            left = max(_end(each) for each in held) - time.time()
            detail = "for the lease of a process that is gone to expire"
            screen.busy(Line(mark="work", name="Waiting", detail=detail, tail=f"{max(left, 0):.0f} s"))
            await anyio.sleep(_LOOK_SECONDS)


def _end(found: FoundRequest) -> float:
    return found.record.lease_until


async def _abandoned(store: CommandStore, ready: Sequence[FoundRequest]) -> Sequence[FoundRequest]:
    """End requests as abandoned, and return those that no other process took meanwhile."""
    done: list[FoundRequest] = []
    async with opened_store(store):
        for each in ready:
            try:
                taken = await store.take(each.record.request_id, "toolbus resume --abandon", LEASE_SECONDS)
            except StoreDamaged:
                taken = each.record  # Nobody can take it, and the command has to drop it nevertheless.
            if taken is not None and await store.abandon(taken.request_id, taken.epoch):
                done.append(each)
    return done


def _print_abandoned(abandoned: Sequence[FoundRequest], options: argparse.Namespace, screen: Screen) -> int:
    for each in abandoned:
        if not options.json:
            screen.data(f"{one_line(each.record.request_id)}  abandoned  {one_line(each.prompt)}")
    return 0


# ------------------------------------------------------------------------------------------------ resuming


class _Resuming:
    """The requests that are being resumed, and the display of their progress."""

    def __init__(
        self,
        options: argparse.Namespace,
        screen: Screen,
        store: CommandStore,
        location: StoreLocation,
        ready: Sequence[FoundRequest],
    ) -> None:
        self._options = options
        self._screen = screen
        self._store = store
        self._location = location
        self._prompts = {each.record.request_id: one_line(each.prompt) for each in ready}
        # For each request that the command itself refuses to resume: the reason.
        self._reasons: dict[str, str] = {}
        self._results: list[RequestResult[Any]] = []
        self._shows_text = len(ready) == 1 and not options.json

    def run(self) -> int:
        """Run the requests to their ends, and return the exit status."""
        options, screen = self._options, self._screen
        narrator: Narrator | NarratorOfMany
        if len(self._prompts) == 1:
            narrator = Narrator(screen, show_text=self._shows_text, show_calls=not options.quiet)
        else:
            narrator = NarratorOfMany(screen, self._prompts, show_calls=not options.quiet)

        def show(event: Event) -> None:
            if self._shows_text and isinstance(event, RequestResumed):
                self._print_request(event.request_id)
            narrator(event)

        with output_on_stderr(options, screen) as stdout:
            # This provider is never asked: each request brings its own.
            runtime = Runtime(resolve("extractive"), store=self._store, lease_seconds=LEASE_SECONDS)
            person = connect_approval(runtime, options, screen, stdout)
            with Host(runtime, screen, show, narrator.tick if screen.live else None, person) as host:
                resumption = host.resume(self._options_for, self._ended)
        for problem in resumption.problems:
            self._report_problem(problem.request, problem.error)
        return self._status(len(resumption.problems), host.signal)

    def _status(self, problems: int, signal: int | None) -> int:
        left = sum(each.resumable for each in self._results)
        if left:
            what, it = ("is", "it") if left == 1 else ("are", "them")
            typed = f"toolbus resume{self._location.options}"
            self._screen.report(
                clean(f"toolbus: {counted(left, 'request')} {what} left unfinished: {typed} continues {it}")
            )
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
        """Return the options of `Runtime.resume` for a request, restored from its command line as far as is safe.

        Code is never run because a store says so: the user has to name modules with tools and providers again.
        """
        options = self._options
        command: Mapping[str, Any] = request.agreed.get(COMMAND) or {}
        name: str | None = options.provider or command.get("provider")
        if name is None:
            raise ConfigurationError(
                "it was begun by another program: name its model and its tools: --provider NAME --tools ..."
            )
        missing = [each for each in command.get("tools", ()) if each not in options.tools]
        if options.provider is None and not is_vendor(name):
            raise ConfigurationError(f"it needs your own code: {self._typed(name, command)}")
        if missing:
            raise ConfigurationError(f"it needs your own tools: {self._typed(None, command)}")
        if command.get("mcp"):
            raise ConfigurationError("it needs MCP servers, which resume does not connect; --abandon ends it")
        folder = options.dir or command.get("dir") or "."
        provider, name, _ = load_provider(name)
        return {
            "provider": provider,
            "tools": load_tools(folder, options.tools),
            # The limits are the same, and their time starts anew, because somebody has asked for the request now.
            "limits": limits_in(request.agreed),
        }

    def _typed(self, provider: str | None, command: Mapping[str, Any]) -> str:
        words = [f"toolbus resume{self._location.options}"]
        if named_provider := self._options.provider or provider:
            words.append(f"--provider {quote(named_provider)}")
        named = dict.fromkeys([*self._options.tools, *command.get("tools", ())])
        return " ".join([*words, *(f"--tools {quote(each)}" for each in named)])

    def _ended(self, result: RequestResult[Any]) -> None:
        """Show the answer of a request that has ended, unless it was shown while it streamed."""
        screen = self._screen
        self._results.append(result)
        if result.resumable and result.outcome == "cancelled":
            return
        if result.resumable:
            # The request's store has failed, so its result is not final.
            pass
        elif self._options.json:
            screen.data(as_json(result))
        elif not self._shows_text:
            if screen.said:
                screen.say("\n")
            self._print_request(result.request_id)
            screen.answer(clean(result.text))
            screen.end_answer()
            screen.end_paragraph()
        report_ending(result, screen, self._options, can_raise=False)

    def _print_request(self, request_id: str) -> None:
        prompt = cut(self._prompts.get(request_id, ""), _PROMPT_COLUMNS)
        self._screen.data(one_line(f"request {request_id}: {prompt}"))

    def _report_problem(self, request: RequestRecord, exc: ToolbusError) -> None:
        screen, why, what = self._screen, self._reasons.get(request.request_id), ""
        if why is not None:
            pass
        elif isinstance(exc, StoreDamaged):
            what = "; toolbus store verify checks the whole store, toolbus resume --abandon drops it"
        elif isinstance(exc, ResumeMismatch):
            what = "; toolbus resume --abandon drops it"
        screen.report(one_line(f"toolbus: request {request.request_id} cannot be resumed: {why or exc}{what}"))
