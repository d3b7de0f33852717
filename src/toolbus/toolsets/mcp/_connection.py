"""One server's connection, held by one task: it connects, looks whether the server lives, and connects anew.

A client of the SDK is for one use, has to be left in the task that entered it, and may cancel what is inside when it
breaks. So nobody else holds one: calls borrow the one that lives, and are told when it is lost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from ...core.backoff import backoff_seconds
from ...errors import ToolError
from ...failures import Failure, ReportedFailure, leaves_of
from ...tool_results import clean
from ...tools import ToolContext
from ._servers import McpServer
from ._transport import LastWords, client_for

if TYPE_CHECKING:
    import mcp
    from mcp import types

__all__ = ["Connection"]

_logger = logging.getLogger("toolbus.mcp")
_STEADY_SECONDS = 10.0  # a connection that lived so long was a good one: the next attempt comes soon
_LIST_SECONDS = 10.0  # for a ping or for the list of tools, once connected
_LISTEN_SECONDS = 5.0  # for a server to say that it will tell of changes; without, they are seen when it is looked
_REST_SECONDS = 0.25  # between two readings of the list
_MOST_PAGES = 100
_MOST_TOOLS = 1_000


class Connection:
    """Of one server. `listed` is told of its tools, on the loop, each time that they were read.

    Of each definition that breaks the protocol `left_out` is told before: its name, and why.
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
        self.tried = anyio.Event()  # whether the first attempt has come to its end, either way
        self.why = "it is not connected yet"
        self.protocol = ""
        self._listed = listed
        self._left_out = left_out
        self._connect_seconds = connect_seconds
        self._ping_seconds = ping_seconds
        self._live: _Live | None = None
        self._told = ""
        self._life: anyio.CancelScope | None = None
        self._since = 0.0
        self._connected_at = math.inf  # of the newest attempt; never, as long as it has not come so far
        self._wake = anyio.Event()
        self._closing = False
        self._changed = False
        self._ended = False
        self._suspect = False  # whether an answer was such that the server may have forgotten this connection

    @property
    def is_connected(self) -> bool:
        """Whether calls are possible now."""
        return self._live is not None

    def seconds(self) -> float:
        """For how long it has been connected or away."""
        return anyio.current_time() - self._since

    def close(self) -> None:
        """Ask the task to end."""
        self._closing = True
        self._wake.set()
        if self._live is None and self._life is not None:
            self._life.cancel()

    # -------------------------------------------------------------------------------------------------- the task

    async def run(self) -> None:
        """Hold the connection until `close`. Raises nothing of the server's."""
        self._since = anyio.current_time()
        failures = 0
        while not self._closing:
            words = LastWords(self.server.name)
            self._connected_at = math.inf
            try:
                await self._hold(words)
            except Exception as exc:  # whatever a server, a transport of the application's or the SDK may raise
                self._lose(_reason(exc), words)
            self.tried.set()
            if self._closing:
                return
            steady = anyio.current_time() - self._connected_at >= _STEADY_SECONDS
            failures = 1 if steady else failures + 1
            self._changed = self._ended = self._suspect = False
            await self._wait(backoff_seconds(failures, f"{self.server.name} {failures}"))

    async def _hold(self, words: LastWords) -> None:
        """Be connected until the connection is lost (raises) or `close` is called."""
        self._changed = self._ended = self._suspect = False
        client = client_for(self.server, words, self._on_message, self._on_end, self._left_out)
        with anyio.CancelScope(deadline=anyio.current_time() + self._connect_seconds) as self._life:
            async with client:
                # The SDK would check results on the event loop, with no bound on the time. They are checked here.
                client.session.validate_tool_result = _leave_unchecked
                try:
                    await self._serve(client, self._life)
                except Exception as exc:
                    self.why = _reason(exc)  # to be told while the connection is being left, which takes its time
                    raise
                finally:
                    self._drop()
        if self._life.cancelled_caught and not self._closing:
            raise TimeoutError(f"it did not answer within {self._connect_seconds:g} s")

    async def _serve(self, client: mcp.Client, life: anyio.CancelScope) -> None:
        async with anyio.create_task_group() as group:
            with anyio.move_on_after(_LISTEN_SECONDS):  # before the list is read, so that no change is missed
                await group.start(self._listen, client)
            tools = await _all_tools(client)
            life.deadline = math.inf
            await self._listed(tools)
            self._live, self.why, self._told = _Live(client), "", ""
            self._since = self._connected_at = anyio.current_time()
            self.protocol = client.protocol_version
            _logger.info("MCP server %s is connected, with %s tools", self.server.name, len(tools))
            self.tried.set()
            await self._watch(client)
            group.cancel_scope.cancel()

    async def _watch(self, client: mcp.Client) -> None:
        """Until `close`: read the list when it has changed, and look whether the server answers when all is quiet."""
        while True:
            await self._wait(self._ping_seconds)
            if self._closing:
                return
            if self._ended:
                raise ConnectionError("the server has ended the connection")
            changed, suspect = self._changed, self._suspect
            self._changed = self._suspect = False
            if not (changed or suspect) and self._live is not None and self._live.scopes:
                continue  # it may be too busy to answer; calls have deadlines
            try:
                with anyio.fail_after(_LIST_SECONDS):
                    await self._look(client, changed=changed)
            except TimeoutError:
                if self._live is None or not self._live.scopes:
                    raise TimeoutError(f"it did not answer within {_LIST_SECONDS:g} s") from None
                self._changed = changed
            if changed:
                await self._rest()

    async def _look(self, client: mcp.Client, *, changed: bool) -> None:
        """Read the list of tools; on the older protocol, which has a ping, that is for when it has changed."""
        import mcp  # noqa: PLC0415 -- an extra

        if changed or not _is_older(client):
            await self._listed(await _all_tools(client))
            return
        try:
            await client.session.send_ping()
        except mcp.MCPError as exc:
            if exc.code == -32000 or exc.message in (*_SESSION_GONE, _REFUSED):  # anything else is an answer
                raise

    async def _listen(self, client: mcp.Client, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Hear of changes on the newer protocol; on the older one they come as messages.

        It has started once a change would be heard, or none will be.
        """
        attempts = 0
        while True:
            began = anyio.current_time()
            goes_on = await self._listen_once(client, None if attempts else task_status)
            if not goes_on:
                return
            attempts = 1 if anyio.current_time() - began >= _STEADY_SECONDS else attempts + 1
            await anyio.sleep(backoff_seconds(attempts, f"{self.server.name} {attempts}"))
            self._note_change()  # whatever was told meanwhile

    async def _listen_once(self, client: mcp.Client, task_status: anyio.abc.TaskStatus[None] | None) -> bool:
        """Until the stream of changes ends; False where there is none to be."""
        import mcp  # noqa: PLC0415 -- an extra

        waiting = task_status
        capabilities = client.server_capabilities.tools
        try:
            if _is_older(client) or (capabilities is not None and not capabilities.list_changed):
                return False
            async with client.listen(tools_list_changed=True) as changes:
                if waiting is not None:
                    waiting.started()
                    waiting = None
                async for _ in changes:
                    self._note_change()
        except mcp.MCPError as exc:  # changes are seen all the same, when it is looked
            _logger.debug("MCP server %s tells no changes: %s", self.server.name, exc)
            return False
        except RuntimeError:  # the stream was cut, as proxies do
            _logger.debug("MCP server %s: the stream of changes has ended", self.server.name, exc_info=True)
        finally:
            if waiting is not None:
                waiting.started()
        return True

    async def _wait(self, seconds: float) -> None:
        """For so long, or until there is something to do."""
        self._wake = anyio.Event()
        if not (self._closing or self._ended or self._changed or self._suspect):
            with anyio.move_on_after(seconds):
                await self._wake.wait()

    async def _rest(self) -> None:
        """Read the list no more for a moment, however often the server says that it has changed."""
        with anyio.move_on_after(_REST_SECONDS):
            while not (self._closing or self._ended):
                self._wake = anyio.Event()
                await self._wake.wait()

    def _on_message(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._note_change()

    def _note_change(self) -> None:
        self._changed = True
        self._wake.set()

    def _suspect_it(self) -> None:
        """Have the task look soon whether the server still knows this connection."""
        self._suspect = True
        self._wake.set()

    def _on_end(self) -> None:
        self._ended = True
        self._wake.set()

    def _drop(self) -> None:
        """Calls that are under way learn that they get no answer."""
        live, self._live = self._live, None
        self._since = anyio.current_time()
        self.why = self.why or ("it is closing" if self._closing else "the connection was lost")
        for scope in live.scopes if live is not None else ():
            scope.cancel()

    def _lose(self, why: str, words: LastWords) -> None:
        said = str(words)
        self.why = clean(f"{why}; it said: {said}" if said else why)[:2_000]
        if not self._closing:
            known, self._told = self._told == why, why  # told once for each outage and reason, not for each attempt
            level = logging.DEBUG if known else logging.WARNING
            _logger.log(level, "MCP server %s is away: %s", self.server.name, self.why)

    # --------------------------------------------------------------------------------------------------- calls

    async def call(
        self, tool: str, arguments: dict[str, Any], context: ToolContext[Any] | None, *, read_only: bool
    ) -> types.CallToolResult:
        """Have the server carry a call out, and give its answer. Cancelled, it tells the server.

        Raises `ToolError` for an error of the protocol, and `ReportedFailure` where there is no answer of its.
        """
        live = self._live
        if live is None:
            raise ReportedFailure(Failure("error", self._away(), retryable=True), self.why)
        scope = anyio.CancelScope()
        live.scopes.add(scope)
        try:
            with scope:
                return await self._answer(live, tool, arguments, context, read_only=read_only)
        finally:
            live.scopes.discard(scope)
        raise self._lost(read_only=read_only)

    async def _answer(
        self,
        live: _Live,
        tool: str,
        arguments: dict[str, Any],
        context: ToolContext[Any] | None,
        *,
        read_only: bool,
    ) -> types.CallToolResult:
        import mcp  # noqa: PLC0415 -- an extra
        from pydantic import ValidationError  # noqa: PLC0415 -- beside the SDK's

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            if context is not None:
                await context.progress(message or "", done=progress, total=total)

        unknown = not read_only
        name = self.server.name
        try:
            return await live.client.call_tool(tool, arguments, progress_callback=tell)
        except mcp.MCPError as exc:
            if exc.code == -32000 or self._live is not live:  # the SDK's own: no answer came
                self._suspect_it()  # so also speak servers that have been restarted, to whom they knew before
                raise self._lost(read_only=read_only, why=exc.message) from exc
            if exc.code in _NOT_FOUND and exc.message in _SESSION_GONE:
                self._on_end()  # it was restarted, and knows nothing of this connection
                raise ReportedFailure(Failure("error", self._away(exc.message), retryable=True), exc.message) from exc
            if exc.code in _NOT_SAID or (exc.code == -32600 and exc.message.startswith(_NO_RESULT)):
                again = read_only and exc.message == _REFUSED
                if exc.message == _REFUSED:  # and so do others
                    self._suspect_it()
                error = f"The MCP server {name!r} gave no answer that can be used: {exc.message}"
                error = clean(error)[:2_000] + ("; it changes nothing, so try again." if again else "")
                raise ReportedFailure(Failure("error", error, retryable=again, unknown=unknown), exc.message) from exc
            raise ToolError(clean(exc.message)[:2_000]) from exc
        except ValidationError as exc:
            error = f"The MCP server {name!r} answered with what is no result of a tool."
            raise ReportedFailure(Failure("error", error, unknown=unknown), str(exc)) from exc
        except RuntimeError as exc:  # the SDK's, for too many questions
            error = f"The MCP server {name!r} gave no answer to {tool!r} that can be used: {exc}"
            raise ReportedFailure(Failure("error", clean(error)[:2_000], unknown=unknown), str(exc)) from exc
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            raise self._lost(read_only=read_only) from exc

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
        return ReportedFailure(Failure("error", error, retryable=read_only, unknown=not read_only), why)


_NOT_SAID = (-32700, -32603)  # an answer that cannot be read, also for its size, and an internal error
_REFUSED = "Server returned an error response"  # the SDK's words for all other statuses of HTTP from 400 on
_NO_RESULT = ("server answered a request with 202", "Unexpected content type")  # the SDK's words, of HTTP's successes
_NOT_FOUND = (-32600, -32001)  # of a session: the SDK's, and that of servers in TypeScript
_SESSION_GONE = ("Session terminated", "Session not found")  # the SDK's words for HTTP's 404, and its servers'


class _Live:
    """A client that is entered, and the calls that are under way on it."""

    __slots__ = ("client", "scopes")

    def __init__(self, client: mcp.Client) -> None:
        self.client = client
        self.scopes: set[anyio.CancelScope] = set()


async def _leave_unchecked(name: str, result: types.CallToolResult) -> None:
    """In the place of the SDK's check: see `check_answer`."""


def _is_older(client: mcp.Client) -> bool:
    """Whether it speaks a protocol from before 2026, with sessions, pings and messages that nobody asked for."""
    return client.protocol_version < "2026"


async def _all_tools(client: mcp.Client) -> list[types.Tool]:
    """All pages of the list. Raises `ValueError` where it does not end."""
    if client.server_capabilities.tools is None and _is_older(client):
        return []
    found: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:  # some servers send an empty text where there is no next page
            return found
        if len(found) > _MOST_TOOLS:
            break
    raise ValueError(f"it lists more than {_MOST_TOOLS} tools, or on more than {_MOST_PAGES} pages")


def _reason(exc: Exception) -> str:
    """Why a connection failed, in words: of a group, its first exception that says something."""
    leaves = list(leaves_of(exc))
    first = next((each for each in leaves if isinstance(each, Exception) and str(each)), leaves[0])
    if isinstance(first, FileNotFoundError) and first.filename:
        return f"there is no {first.filename}"
    return str(first) or type(first).__name__
