"""The page of fixed bounds and times says what the code does: readers rely on each number."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path

import pytest

from support.blocking import BLOCKING_SECONDS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "bounds.md"
_UNITS = {
    "": 1, "%": 0.01, "ms": 0.001, "s": 1, "min": 60, "h": 3_600, "days": 86_400, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip
WRITTEN = {
    "providers._shared.clients.CONNECT_SECONDS": "time to connect to the server of a model",
    "core.backoff._FIRST_SECONDS": "longest pause before a model is asked for the second time",
    "core.backoff._MAX_SECONDS": "longest pause before any further attempt",
    "protocols.MAX_REPLY_CALLS": "calls in one reply",
    "providers._shared.reply_parts.MAX_REPLY_PARTS": "blocks or items of all kinds in one reply",
    "providers._shared.reply_reader._DRAIN_SECONDS": "wait for the end of a response whose reply has ended",
    "providers._shared.reply_reader._CLOSE_SECONDS": "wait for the connection of a response to close",
    "providers._shared.reply_reader._SLICE_BYTES": "part of a response that is read without a pause",
    "core.arguments.MAX_DEPTH": "levels of nesting in arguments",
    "core.arguments.MAX_CHARS": "characters of arguments",
    "core.arguments.MAX_VALUES": "values in arguments",
    "schemas._allowance.INLINE_NS": "time that the check of arguments or of an answer may take, by an upper estimate",
    "core.turn._decide._DIRECT_NS": "the same time for a tool's result that is itself the answer",
    "tool_results.MAX_RESULT_BYTES": "JSON of a result",
    "schemas._json_text.MAX_VALUES": "values in a JSON text of a reply or a result",
    "dispatcher._cache._MAX_RESULTS": "results that are kept for tools with `cache_seconds`",
    "dispatcher._cache._MAX_BYTES": "size of all results that are kept for tools with `cache_seconds`",
    "dispatcher._thread_run._BLOCKING_SECONDS": "time without an `await` after which the log names the handler",
    "dispatcher._processes._MAX_STARTS": "attempts to start a process for a call",
    "dispatcher._processes._MAX_START_SECONDS": "time to start a process for a call",
    "session._view._MAX_DEPTH": "levels of sub-requests",
    "toolsets.sub_request._PASS_ON_SECONDS": "time of a call of `sub_request_tool` after the end of its sub-request",
    "core.history._LOW_WATER": "part of the window that is used after turns were left out",
    "core.history._SUMMARY_LOW_WATER": "part of the window that is used after a summary",
    "core.history._NEAR": "part of the window above which a summary is asked for",
    "core.history._SUMMARY_SHARE": "part of the window that a summary may take",
    "session._context_window._SUMMARY_TIME": "part of the time of a model call that a summary may take",
    "session._context_window._REFUSED_SHARE": "part of a refused request that is sent next, if the vendor states no limit",
    "session._context_window._MAX_SHARE": "largest part of a refused request that is sent next, if the vendor states its limit",
    "session._context_window._LIMIT_SHARE": "part of a vendor's stated limit that is used after a refusal",
    "storage.WRITE_SECONDS": "time after which a fault of a store is reported",
    "durability._journal_writer._RESULT_SECONDS": "time after which a result is there, even if the store fails",
    "storage.TIMEOUT_SECONDS": "time in which any store has to answer",
    "stores._thread.TIMEOUT_SECONDS": "time for a job of SQLite or PostgreSQL",
    "durability._store_calls._RETRY_SECONDS": "pause before a store that is away is asked again",
    "durability._journal_writer._REFUSED_SECONDS": "time after which a step that the store refuses each time is given up",
    "durability._journal_writer._TURN_SECONDS": "first pause before another attempt to begin a turn of a conversation",
    "durability._journal_writer._MAX_TURN_SECONDS": "longest pause before another attempt to begin a turn of a conversation",
    "durability._journal_writer._RENEWALS": "renewals of a lease in its time",
    "durability._journal_writer._WARN_AT": "part of `max_facts` or `max_journal_bytes` at which the log warns",
    "durability._resume._WATCH_SECONDS": "longest pause between two looks for requests to resume",
    "durability._resume._TRY_AGAIN_SECONDS": "pause before a request that could not be resumed is tried again",
    "storage.MAX_WAITING_INPUTS": "inputs of others that wait for one request",
    "handles._handle._MAX_BYTES": "size of one input of others",
    "stores._thread._EXIT_SECONDS": "time that an exiting interpreter waits for each store",
    "runtime._ended._MAX_REQUESTS": "requests that have ended and are kept in memory",
    "runtime._ended._MAX_BYTES": "size of all requests that have ended and are kept in memory",
    "runtime._conversations._MAX_FOLDED_BYTES": "size of all histories that are kept shortened in memory",
    "runtime._conversations._MAX_LATE_RESULTS": "late results that wait for the next turn of one conversation",
    "runtime._admission._MAX_WAIT_SECONDS": "longest wait that `Overloaded.retry_after_seconds` states",
    "handles._handle.TIMEOUT_SECONDS": "time in which a command to another process has to become a fact",
    "handles._exchange.BEAT_SECONDS": "time between two messages of a reader that still reads",
    "handles._exchange.SILENCE_SECONDS": "silence after which a reader and its process give each other up",
    "handles._exchange.MAX_STREAMS": "readers in other processes that one process serves",
    "handles._exchange._BUFFER_BYTES": "size of the events that wait for one reader",
    "remote._nats_connection._CONNECT_SECONDS": "time to connect to the broker",
    "remote._nats_connection._ANSWER_SECONDS": "time for an answer of the broker",
    "remote._executor._ANSWER_SECONDS": "time for an answer of the broker",
    "remote._nats_connection._RECONNECT_SECONDS": "pause before the broker is connected to, or asked, again",
    "remote._executor._RETRY_SECONDS": "pause before the broker is connected to, or asked, again",
    "remote._worker._RETRY_SECONDS": "pause before the broker is connected to, or asked, again",
    "remote._bodies.MAX_BYTES": "size of the arguments, the transcript or the result of a call",
    "remote._payloads._MAX_CONCURRENT": "payloads in parts that one process reads and writes at the same time",
    "remote._nats_parts._MAX_BYTES": "size of the stream of these payloads, if toolbus makes it",
    "remote._nats_connection.KEPT_SECONDS": "time for which an answer is kept that no session deletes",
    "remote._executor._LOST_SECONDS": "time before its deadline at which a call fails that the broker did not take",
    "remote._executor._LOOK_SECONDS": "pause between two looks for answers that were lost",
    "remote._executor._LEAVE_SECONDS": "time in which workers are asked to stop when an executor is left",
    "remote._worker._RENEWALS": "renewals of a worker's lease on a call in its time",
    "remote.nats._FETCH_SECONDS": "time for which a worker asks the broker for calls at once",
    "remote.nats._GIVE_BACK_SECONDS": "time before a call that a worker gives back is delivered again",
    "remote.nats._SIGNAL_SECONDS": "time for which progress and other signals are collected",
    "remote.nats._MAX_WAITING_BYTES": "size of the signals that wait for the broker",
    "remote._questions.BEAT_SECONDS": "time between two messages of a worker that waits for an answer",
    "remote._questions.SILENCE_SECONDS": "silence after which a worker and its session give a question up",
    "toolsets.mcp._transport._CONNECT_SECONDS": "time to connect over HTTP, and for each write",
    "toolsets.mcp._connection._LIST_SECONDS": "time for a ping, and for the list of tools",
    "toolsets.mcp._connection._LISTEN_SECONDS": "time in which a server confirms that it will report changes of its tools",
    "toolsets.mcp._connection._REST_SECONDS": "least time between two reads of the list of tools",
    "toolsets.mcp._connection._STEADY_SECONDS": "age from which a lost connection is made again after the first pause",
    "toolsets.mcp._connection._LEAVE_SECONDS": "time for leaving a lost connection",
    "toolsets.mcp._transport._ONE_WAY_SECONDS": "time for the answer to a one-way message, and to the end of a session",
    "toolsets.mcp._tools._CLOSE_SECONDS": "time for closing",
    "toolsets.mcp._transport._OUTPUT_SECONDS": "wait for the last output of a program that has ended",
    "toolsets.mcp._auth._PATIENCE_SECONDS": "time for which a call waits for a person to sign in",
    "toolsets.mcp._auth._REST_SECONDS": "time after a failed sign-in before a person is asked for the same again",
    "toolsets.mcp._auth._MAX_REFUSALS": "failed sign-ins in that time after which a person is not asked for other scopes either",
    "toolsets.mcp._auth._MAX_ROUNDS": "sign-ins for one request to a server",
    "toolsets.mcp._auth_servers._MAX_BYTES": "answer of an authorization server",
    "toolsets.mcp._questions._MAX_BYTES": "question of a server to a person",
    "toolsets.mcp._repair.MAX_TOOLS": "tools of a server",
    "toolsets.mcp._repair._MAX_DEFINITION_BYTES": "definition of a tool",
    "toolsets.mcp._lists._MAX_PAGES": "pages of a list of tools",
    "toolsets.mcp._http_bounds._MIN_RETRY_MS": "shortest pause before the rest of a stream is asked for",
    "toolsets.mcp._http_bounds._MAX_RETRY_MS": "longest pause before the rest of a stream is asked for",
    "secrets._text_mask.MIN_SECRET_CHARS": "characters of the shortest value that is searched for",
    "secrets._text_mask._MIN_CODE_CHARS": "characters of the shortest value in base64 that is searched for",
    "secrets._text_mask._MAX_LEVELS": "levels of JSON in texts of JSON that are searched",
    "secrets._text_mask._MAX_TEXTS": "texts of one value that are read as JSON",
    "secrets._text_mask._MAX_VALUES": "values in the JSON texts of one value",
    "tool_results._MAX_SECRETS": "secrets in one result",
    "tool_results._MAX_SECRET_BYTES": "bytes of the secrets in one result",
    "web._bodies._BODY_SECONDS": "time in which the body of a chat page's request has to arrive",
    "web._guard.MAX_BODY_BYTES": "body of a request to the inspector",
    "web._guard._BODY_SECONDS": "time in which the body of a request to the inspector has to arrive",
    "web._responses._ANSWER_SECONDS": "time in which the answers of a page take effect before it is asked once more",
    "web._responses._STORE_SECONDS": "pause before a page's stream reads again from a store that is away",
    "web._responses._LAST_FRAMES_SECONDS": "time for a client to read the last piece of a stream that the server ends",
    "web.inspector._app._FRAME_SECONDS": "least time between two frames of the inspector",
    "web.inspector._app._PROBLEM_SECONDS": "longest pause between two frames of the inspector",
    "web.inspector._event_log.MAX_REQUESTS": "requests whose events the inspector keeps",
    "web.inspector._event_log.MAX_BYTES": "size of all events that the inspector keeps",
    "web.inspector._actions._MAX_EXPORTED_BYTES": "size of a recording that the inspector exports",
    "cli._store_location.LEASE_SECONDS": "lease on a request",
    "cli._commands.resume._LOOK_SECONDS": "time between two looks at a lease that is about to expire",
    "cli._commands.serve._LEAVE_SECONDS": "time for open pages when `toolbus serve` or `toolbus inspect` ends",
    "cli._commands.inspect._LEAVE_SECONDS": "time for open pages when `toolbus serve` or `toolbus inspect` ends",
    "cli._commands.serve._DRAIN_SECONDS": "time for running requests when `toolbus serve` ends",
    "cli._THREAD_SECONDS": "time for the threads of handlers when a command ends",
    "cli._host._FRAME_SECONDS": "time between two pictures of the live lines",
    "cli._commands.worker._FRAME_SECONDS": "time between two pictures of the live line of `toolbus worker`",
}
"""The constants, and the rows of the page that state them."""


def rows() -> dict[str, str]:
    """The values on the page, by what they are."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {what: value for what, value, _ in cells if what not in {"what", "---"}}


def number_of(value: str) -> float:
    """A number with its unit, as the page writes it."""
    found = re.fullmatch(r"([\d,.]+) ?(\D*)", value)
    assert found is not None, value
    return float(found[1].replace(",", "")) * _UNITS[found[2]]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_page_states_the_bound_or_the_time_that_applies(name: str) -> None:
    module, _, constant = f"toolbus.{name}".rpartition(".")
    value: float = getattr(importlib.import_module(module), constant)
    if value == math.inf:  # as in all other tests
        value = BLOCKING_SECONDS
    a_second = {"NS": 1e9, "MS": 1e3}.get(name.rpartition("_")[2], 1)
    assert number_of(rows()[WRITTEN[name]]) == pytest.approx(value / a_second)


def test_each_row_of_the_page_is_compared_with_the_code() -> None:
    assert rows().keys() == {*WRITTEN.values()}
