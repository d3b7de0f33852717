"""One server's connection, held by one task: it connects, checks that the server still answers, and reconnects.

A client of the SDK can be used once, has to be left in the task that entered it, and may cancel the code inside when it
breaks. So only this task enters clients: calls borrow the connected one, and fail when it is lost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from pydantic import ValidationError

from ...core.backoff import backoff_seconds
from ...errors import ToolError
from ...failures import Failure, ReportedFailure
from ...tool_results import clean
from ...tools import ToolContext
from ._asked_back import RUNNING, RunningCall, agreed_to_visit, answering
from ._lists import all_tools, is_older
from ._repair import Repair, broken
from ._server_errors import (
    CLOSED,
    NOT_SIGNED_IN,
    TOO_MANY,
    has_no_answer,
    is_away,
    is_for_later,
    is_not_done,
    is_not_found,
    is_of_tool,
    is_refused,
    is_session_gone,
    is_silence,
    is_unsent,
    is_unusable,
    reason_of,
    said,
    with_data,
)
from ._servers import McpServer
from ._transport import CUT, FAILED, HTTP, NOT_YET, UNSENT, HttpStatus, LastOutput, client_for

if TYPE_CHECKING:
    import mcp
    from mcp import types

    from ._auth import Authentication

_logger = logging.getLogger("toolbus.mcp")
# The age at which a connection counts as stable: if it is lost later, the next attempt follows soon.
_STEADY_SECONDS = 10.0
# The time for a ping or for the list of tools, once connected.
_LIST_SECONDS = 10.0
# The time for a server to confirm that it will report changes. Otherwise the regular checks find them.
_LISTEN_SECONDS = 5.0
# The time for leaving a connection that was lost.
_LEAVE_SECONDS = 10.0
# The least time between two reads of the list.
_REST_SECONDS = 0.25


class Connection:
    """The connection to one server. `listed` is called on the event loop with its tools each time they were read.

    Before that, `left_out` is called for each definition that breaks the protocol, with the tool's name and the reason.
    """

    def __init__(
        self,
        server: McpServer,
        listed: Callable[[list[types.Tool]], Awaitable[None]],
        left_out: Callable[[str, str], None],
        *,
        connect_seconds: float,
        ping_seconds: float,
    ) -> None:
        self.server = server
        # Set when the first attempt has succeeded or failed.
        self.tried = anyio.Event()
        self.why = "it is not connected yet"
        self.protocol = ""
        self._listed = listed
        self._left_out = left_out
        self._connect_seconds = connect_seconds
        self._ping_seconds = ping_seconds
        self._live: _Live | None = None
        self._logged_reason = ""
        self._life: anyio.CancelScope | None = None
        self._since = anyio.current_time()
        self._wake = anyio.Event()
        self._closing = False
        self._era: str = server.protocol
        self._ask_people = answering(server.name, server.on_elicitation, self._calls)
        self._authentication: Authentication | None = None
        if server.auth is not None and server.url is not None:
            from ._auth import Authentication  # noqa: PLC0415 -- an extra

            self._authentication = Authentication(server.auth, server.url, self._paused, self._on_long_sign_in)

    @property
    def is_connected(self) -> bool:
        """True if calls are possible now."""
        return self._live is not None

    def seconds(self) -> float:
        """Return the time in seconds since the server was connected or lost."""
        return anyio.current_time() - self._since

    def close(self) -> None:
        """Ask the task to end."""
        self._closing = True
        self._wake.set()
        if self._live is None and self._life is not None:
            self._life.cancel()

    # -------------------------------------------------------------------------------------------------- the task

    async def run(self) -> None:
        """Hold the connection until `close`. Errors of the server are not raised, but reported by `status`."""
        failures = 0
        while not self._closing:
            output = LastOutput(self.server.name)
            # The time when this attempt succeeded; infinite until it does.
            self._connected_at = math.inf
            try:
                await self._hold(output)
            except Exception as exc:
                # The server, a transport of the application or the SDK may raise anything.
                why = reason_of(exc)
                if self._connected_at == math.inf:
                    # Some programs of the older protocol end when the first message belongs to the newer one.
                    may_be_older = self._era == "auto" and why == CLOSED
                    self._era = "legacy" if may_be_older else self.server.protocol
                    if may_be_older:
                        continue
                self._lose(why, output)
            self.tried.set()
            if self._closing:
                return
            steady = anyio.current_time() - self._connected_at >= _STEADY_SECONDS
            failures = 1 if steady else failures + 1
            self._begin_anew()
            await self._wait(backoff_seconds(failures, f"{self.server.name} {failures}"))

    def _begin_anew(self) -> None:
        """Reset the state that describes an earlier connection."""
        self._changed = self._ended = False
        # Whether an answer suggests that the server does not know this connection any more.
        self._suspect = False
        # Whether a check has failed while calls were running, so that it has to be made again after them.
        self._check_after_calls = False
        self._note_heard()

    async def _hold(self, output: LastOutput) -> None:
        """Stay connected until `close` is called. Raises when the connection is lost."""
        self._begin_anew()
        HTTP.set(HttpStatus())
        callbacks = {
            "elicitation_callback": self._ask_people,
            "sampling_callback": answering(self.server.name, self.server.on_sampling, self._calls),
        }
        self._repair = Repair(self._left_out)
        client = client_for(
            self.server,
            self._era,
            output,
            self._note_heard,
            self._on_message,
            self._on_end,
            self._repair,
            self._authentication,
            **callbacks,
        )
        lost: Exception = TimeoutError(f"it did not answer within {self._connect_seconds:g} s")
        with anyio.CancelScope(deadline=anyio.current_time() + self._connect_seconds) as self._life:
            async with client:
                # The SDK would check results on the event loop without a bound on the time; `check_answer` checks them.
                client.session.validate_tool_result = _leave_unchecked
                try:
                    await self._serve(client, self._life)
                except Exception as exc:
                    # Leaving the connection takes some time, and calls report this reason meanwhile.
                    lost, self.why = exc, reason_of(exc)
                    self._life.deadline = min(self._life.deadline, anyio.current_time() + _LEAVE_SECONDS)
                    raise
                finally:
                    self._drop()
        if self._life.cancelled_caught and not self._closing:
            raise lost

    async def _serve(self, client: mcp.Client, life: anyio.CancelScope) -> None:
        async with anyio.create_task_group() as group:
            # Listening starts before the list is read, so that no change is missed.
            with anyio.move_on_after(_LISTEN_SECONDS):
                await group.start(self._listen, client)
            tools = await all_tools(client, self._repair)
            life.deadline = math.inf
            self.protocol = client.protocol_version
            await self._listed(tools)
            self._live, self.why, self._logged_reason = _Live(client), "", ""
            self._since = self._connected_at = anyio.current_time()
            _logger.info("MCP server %s is connected, with %s tools", self.server.name, len(tools))
            self.tried.set()
            await self._watch(client)
            group.cancel_scope.cancel()

    async def _watch(self, client: mcp.Client) -> None:
        """Until `close`, read the list when it has changed, and check that the server answers when no call runs."""
        while True:
            await self._wait(self._ping_seconds)
            if self._closing:
                return
            if self._ended:
                raise ConnectionError("the server has ended the connection")
            changed, suspect = self._changed, self._suspect
            self._changed = self._suspect = False
            if not (changed or suspect) and self._is_busy():
                continue
            rest = _REST_SECONDS if changed else 0.0
            try:
                with anyio.fail_after(_LIST_SECONDS):
                    await self._check(client, changed=changed)
                    self._note_heard()
            except (TimeoutError, _Cut) as exc:
                # Each request over HTTP may have a connection of its own, so calls may still be answered.
                if not self._is_busy():
                    silence = TimeoutError(f"it did not answer within {_LIST_SECONDS:g} s")
                    raise (exc.error if isinstance(exc, _Cut) else silence) from None
                self._changed, self._check_after_calls = changed, True
            except _Limited:
                self._changed, rest = changed, self._ping_seconds
            if rest:
                await self._rest(rest)

    def _is_busy(self) -> bool:
        """Return whether the server may be too busy with calls, or with a sign-in, to answer anything else.

        Calls have deadlines, so a busy server gets time to answer. It no longer counts as busy if it sent nothing
        during two consecutive calls that were cancelled, and all running calls began after the second of them.
        """
        if self._authentication is not None and self._authentication.is_signing_in:
            return True
        return any(each.began <= self._unanswered for each in self._calls())

    def _calls(self) -> Collection[RunningCall]:
        return self._live.calls if self._live is not None else ()

    def _note_heard(self) -> None:
        """Note that the server has sent something."""
        # The end of a first call without an answer, and the beginning of one after it.
        self._silent_from = self._unanswered = math.inf

    async def _check(self, client: mcp.Client, *, changed: bool) -> None:
        """Read the list of tools; with the older protocol send a ping instead, unless the list has changed.

        Raises `_Limited` if the server answers that it wants to be asked later, `_Cut` if only this check has failed.
        """
        import mcp  # noqa: PLC0415 -- an extra

        status = HttpStatus()
        token = HTTP.set(status)
        try:
            if changed or not is_older(client):
                await self._listed(await all_tools(client, self._repair))
            else:
                await client.session.send_ping()
        except mcp.MCPError as exc:
            if status.code == TOO_MANY:
                raise _Limited from exc
            is_cut = exc.message.startswith((CUT, UNSENT, FAILED))
            if is_cut or (is_away(exc) and status.code in NOT_SIGNED_IN):
                raise _Cut(exc) from exc
            if is_away(exc) or (is_not_found(exc) and not is_older(client)):
                raise
            # Any other error is an answer of the server, so calls may still work.
            if changed:
                _logger.debug("MCP server %s does not list its tools: %s", self.server.name, exc)
                raise _Limited from exc
        finally:
            HTTP.reset(token)
            # Without this, a request that was given up would wait for a sign-in.
            status.end()

    async def _listen(self, client: mcp.Client, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Listen for changes with the newer protocol; with the older one they come as messages.

        The task has started when changes are received, or when it is known that none will be.
        """
        HTTP.set(HttpStatus())
        attempts = 0
        while True:
            began = anyio.current_time()
            has_stream = await self._listen_once(client, None if attempts else task_status)
            if not has_stream:
                return
            attempts = 1 if anyio.current_time() - began >= _STEADY_SECONDS else attempts + 1
            await anyio.sleep(backoff_seconds(attempts, f"{self.server.name} {attempts}"))
            # A change may have been missed while the stream was closed.
            self._note_change()

    async def _listen_once(self, client: mcp.Client, task_status: anyio.abc.TaskStatus[None] | None) -> bool:
        """Listen until the stream of changes ends; return False if the server has no such stream."""
        import mcp  # noqa: PLC0415 -- an extra

        waiting = task_status
        capabilities = client.server_capabilities.tools
        try:
            if is_older(client) or (capabilities is not None and not capabilities.list_changed):
                return False
            async with client.listen(tools_list_changed=True) as changes:
                if waiting is not None:
                    waiting.started()
                    waiting = None
                async for _ in changes:
                    self._note_change()
        except mcp.MCPError as exc:
            if exc.message.startswith((CUT, UNSENT)):
                return True
            # The regular checks find changes too.
            _logger.debug("MCP server %s does not report changes: %s", self.server.name, exc)
            return False
        except RuntimeError:
            # The stream was cut, for example by a proxy.
            _logger.debug("MCP server %s: the stream of changes has ended", self.server.name, exc_info=True)
        finally:
            if waiting is not None:
                waiting.started()
        return True

    async def _wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until there is something to do."""
        self._wake = anyio.Event()
        if not (self._closing or self._ended or self._changed or self._suspect):
            with anyio.move_on_after(seconds):
                await self._wake.wait()

    async def _rest(self, seconds: float) -> None:
        """Wait for `seconds` before the list is read again, however often the server reports a change."""
        with anyio.move_on_after(seconds):
            while not (self._closing or self._ended):
                self._wake = anyio.Event()
                await self._wake.wait()

    def _on_message(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._note_change()

    def _note_change(self) -> None:
        self._changed = True
        self._wake.set()

    def _request_check(self) -> None:
        """Make the task check soon whether the server still knows this connection."""
        self._suspect = True
        self._wake.set()

    def _on_end(self) -> None:
        self._ended = True
        self._wake.set()

    @contextmanager
    def _paused(self) -> Generator[float]:
        """Stop the clock of an attempt to connect during a sign-in. Yields the seconds that were left."""
        life = self._life
        if life is None or self._live is not None:
            yield math.inf
            return
        left, life.deadline = life.deadline - anyio.current_time(), math.inf
        self.why = NOT_YET
        try:
            yield left
        finally:
            life.deadline = anyio.current_time() + left

    def _on_long_sign_in(self) -> None:
        """Stop waiting for the first attempt, which continues."""
        _logger.warning("MCP server %s is away: %s", self.server.name, NOT_YET)
        self.tried.set()

    def _drop(self) -> None:
        """Mark the connection as lost, and cancel the running calls, which get no answer."""
        live, self._live = self._live, None
        self._since = anyio.current_time()
        self.why = self.why or ("it is closing" if self._closing else "the connection was lost")
        for each in live.calls if live is not None else ():
            each.scope.cancel()

    def _lose(self, why: str, output: LastOutput) -> None:
        lines = str(output)
        # The server's text may be a whole page, and the log gets one line.
        self.why = " ".join(clean(f"{why}; it said: {lines}" if lines else why).split())[:2_000]
        if not self._closing:
            # A warning is logged once for each outage and reason, not for each attempt.
            known, self._logged_reason = self._logged_reason == why, why
            level = logging.DEBUG if known else logging.WARNING
            _logger.log(level, "MCP server %s is away: %s", self.server.name, self.why)

    # --------------------------------------------------------------------------------------------------- calls

    @property
    def asks_by_itself(self) -> bool:
        """True if the server may ask back without saying for which call. Then only one call at a time should run."""
        return self.protocol < "2026" and (self.server.on_elicitation or self.server.on_sampling) is not None

    async def call(
        self, tool: str, arguments: dict[str, Any], context: ToolContext[Any], *, read_only: bool
    ) -> types.CallToolResult:
        """Send a call to the server, and return its answer. If the caller is cancelled, the server is notified.

        Raises `ToolError` for a protocol error from the server, and `ReportedFailure` if there is no usable answer.
        """
        live = self._live
        if live is None:
            raise ReportedFailure(Failure("error", self._away(), retryable=True), self.why)
        running = RunningCall(context)
        live.calls.add(running)
        token = RUNNING.set(running)
        try:
            with running.scope:
                return await self._answer(live, tool, arguments, context, read_only=read_only)
        except anyio.get_cancelled_exc_class():
            if running.began >= self._silent_from:
                self._unanswered = min(self._unanswered, running.began)
            self._silent_from = min(self._silent_from, anyio.current_time())
            raise
        finally:
            RUNNING.reset(token)
            live.calls.discard(running)
            if self._check_after_calls and not live.calls:
                self._check_after_calls = False
                self._request_check()
            for question in running.questions:
                question.cancel()
        raise self._lost(read_only=read_only)

    async def _answer(
        self,
        live: _Live,
        tool: str,
        arguments: dict[str, Any],
        context: ToolContext[Any],
        *,
        read_only: bool,
    ) -> types.CallToolResult:
        import mcp  # noqa: PLC0415 -- an extra

        async def report(progress: float, total: float | None, message: str | None) -> None:
            await context.progress(message or "", done=progress, total=total)

        name = self.server.name
        status = HttpStatus()
        token = HTTP.set(status)
        try:
            try:
                return await live.client.call_tool(tool, arguments, progress_callback=report)
            except mcp.MCPError as exc:
                if not await agreed_to_visit(self._ask_people, exc):
                    raise
            return await live.client.call_tool(tool, arguments, progress_callback=report)
        except mcp.MCPError as exc:
            raise self._failed(exc, status, live, read_only=read_only) from exc
        except ValidationError as exc:
            error = f"The answer of the MCP server {name!r} is not the result of a tool: {broken(exc)}"
            raise _maybe_done(error, str(exc), read_only=read_only) from exc
        except RuntimeError as exc:
            # The SDK raises it if the server asks back too often.
            # After a semicolon, the SDK gives advice to programmers.
            reason = str(exc).partition(";")[0]
            error = f"The MCP server {name!r} gave no answer to {tool!r} that can be used: {reason}"
            raise _maybe_done(clean(error)[:2_000], str(exc), read_only=read_only) from exc
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            raise self._lost(read_only=read_only) from exc
        finally:
            HTTP.reset(token)
            status.end()

    def _failed(self, exc: mcp.MCPError, status: HttpStatus, live: _Live, *, read_only: bool) -> Exception:
        """Return the failure of a call that the server, or the SDK for it, has answered with an error."""
        why = said(exc, status)
        if is_not_done(exc, status):
            later = is_for_later(exc, status)
            if not later:
                self._request_check()
            error = clean(f"The MCP server {self.server.name!r} refused the call: {why}")[:2_000]
            error += f"; it was not carried out{', so try again later, or do without' if later else ''}."
            return ReportedFailure(Failure("error", error, retryable=later), why)
        if has_no_answer(exc):
            self._request_check()
        if is_unsent(exc, status):
            return ReportedFailure(Failure("error", self._away(why), retryable=True), why)
        if is_silence(exc, status) or self._live is not live:
            return self._lost(read_only=read_only, why=why)
        if is_session_gone(exc):
            self._on_end()
            return ReportedFailure(Failure("error", self._away(why), retryable=True), why)
        if is_of_tool(exc, status):
            return _maybe_done(with_data(exc), why, read_only=read_only)
        if is_unusable(exc):
            again = read_only and is_refused(exc)
            if is_refused(exc):
                self._request_check()
            error = clean(f"The MCP server {self.server.name!r} gave no answer that can be used: {why}")
            error = error[:2_000] + ("; it changes nothing, so try again." if again else "")
            return _maybe_done(error, why, read_only=read_only, retryable=again)
        return ToolError(with_data(exc))

    def _away(self, why: str = "") -> str:
        seconds = f"for {self.seconds():.0f} s" if self._live is None else "just now"
        return (
            f"The MCP server {self.server.name!r} has been away {seconds}: {why or self.why}. "
            "The call was not carried out; try again later, or do without."
        )

    def _lost(self, *, read_only: bool, why: str = "") -> ReportedFailure:
        why = self.why or why or "the connection was lost"
        after = "it changes nothing, so try again" if read_only else "whether it was carried out is not known"
        error = clean(f"The MCP server {self.server.name!r} went away during the call ({why}); {after}.")
        return _maybe_done(error, why, read_only=read_only, retryable=read_only)


def _maybe_done(error: str, why: str, *, read_only: bool, retryable: bool = False) -> ReportedFailure:
    """Return the failure of a call that the server may have carried out. Only a read-only one has changed nothing."""
    return ReportedFailure(Failure("error", error, retryable=retryable, unknown=not read_only), why)


class _Cut(Exception):
    """A check got no answer, or is not allowed any more; calls may be answered."""

    def __init__(self, error: mcp.MCPError) -> None:
        super().__init__(error.message)
        self.error = error


class _Limited(Exception):
    """The server answers, but refuses a check, for example because of too many requests."""


@dataclass(slots=True, eq=False)
class _Live:
    """A client that is entered, and its running calls."""

    client: mcp.Client
    calls: set[RunningCall] = field(default_factory=set[RunningCall])


async def _leave_unchecked(name: str, result: types.CallToolResult) -> None:
    """Replace the SDK's check of results, and do nothing: see `check_answer`."""
