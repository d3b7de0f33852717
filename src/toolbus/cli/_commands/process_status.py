"""The command `toolbus status --url`: the health and the numbers of a running process, which it answers over HTTP.

What comes back is somebody else's text: it is bounded, checked, and cleaned before it is shown.
"""

from __future__ import annotations

import argparse
import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeAlias, cast

import orjson

from ..._option_checks import is_http_url, shown
from ...core.plain_text import clean, one_line
from ...errors import ConfigurationError
from .._terminal.screen import Screen
from .._terminal.text import cells, cut, escape_json

_SECONDS = 10.0
_MAX_BYTES = 10_000_000
_MAX_ROWS = 50
_NAME_COLUMNS = 40

_Fields: TypeAlias = Mapping[str, Any]


def show_process_status(options: argparse.Namespace, screen: Screen) -> int:
    """Run `toolbus status --url`, and return the exit status. Raises `ConfigurationError`."""
    body = _fetched(options.url)
    try:
        answer = orjson.loads(body)
        health, lines = answer["health"], [*_lines(answer["health"], answer["statistics"])]
        # This raises for an answer that is nested too deeply.
        written = orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode()
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
        raise ConfigurationError(
            f"{options.url} does not answer as create_status_app of this version of toolbus does"
        ) from exc
    if options.json:
        screen.data(escape_json(written))
    else:
        for line in lines:
            screen.data(clean(line))
    return 1 if health["reasons"] or not health["ready"] else 0


def _fetched(url: str) -> bytes:
    if not is_http_url(url):
        raise ConfigurationError(f"--url is {shown(url)}; pass an address such as http://127.0.0.1:8001")
    address = url.rstrip("/").removesuffix("/status") + "/status"
    try:
        body = _in_time(address)
    except urllib.error.HTTPError as exc:
        with exc:
            raise ConfigurationError(
                f"{address} answered {exc.code}; pass the address under which the process serves create_status_app"
            ) from exc
    except (OSError, http.client.HTTPException, ValueError) as exc:
        reason = getattr(exc, "reason", None) or exc
        raise ConfigurationError(f"nobody answers at {address}: {one_line(str(reason)) or type(exc).__name__}") from exc
    if len(body) > _MAX_BYTES:
        raise ConfigurationError(f"{address} answered with over {_MAX_BYTES:,} bytes")
    return body


def _in_time(address: str) -> bytes:
    """Return what a server answers within `_SECONDS` in all.

    The time-out of a socket is only that of a piece, and a server may send small pieces for ever.
    """
    answer: Future[bytes] = Future()

    def ask() -> None:
        # A proxy of the environment is for other networks than the one in which a process is operated.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(address, timeout=_SECONDS) as response:
                answer.set_result(response.read(_MAX_BYTES + 1))
        except Exception as exc:
            answer.set_exception(exc)

    threading.Thread(target=ask, name="toolbus status", daemon=True).start()
    try:
        return answer.result(_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"there was no whole answer in {_SECONDS:g} s") from None


def _lines(health: _Fields, found: _Fields) -> Iterator[str]:
    reasons = one_line("; ".join(health["reasons"]))
    word = ("degraded" if reasons else "ready") if health["ready"] else "not ready"
    yield f"{word}: {reasons}" if reasons else word
    phases, calls, bus = found["phases"], found["dispatcher"], found["bus"]
    failed = ", ".join(f"{cast('int', count):,} {reason}" for reason, count in sorted(found["failed"].items()))
    yield (
        f"requests: {found['running']:,} running ({phases['model']:,} ask a model, {phases['tools']:,} run tools, "
        f"{phases['people']:,} wait for people); {found['queued']:,} queued; "
        f"{found['free_capacity']:,} more would be accepted; {found['refused']:,} refused"
    )
    if failed:
        yield f"failed: {one_line(failed)}"
    yield f"questions to people: {found['pending_approvals']:,} open; {found['approvals_overdue']:,} overdue"
    overdue = f"; overdue: {one_line(', '.join(sorted(set(calls['overdue']))))}" if calls["overdue"] else ""
    yield (
        f"calls: {calls['running']:,} running; {calls['queued']:,} queued; {calls['retrying']:,} waiting for a retry; "
        f"threads {calls['threads']:,}; processes {calls['processes']:,}{overdue}"
    )
    yield (
        f"store: {found['appends']:,} steps written, {_mean(found)}; {found['append_failures']:,} refused; "
        f"{found['store_calls_pending']:,} writes to repeat; leases {found['leases']:,}"
    )
    slow = max((each["buffered"] for each in bus["subscriptions"]), default=0)
    yield (
        f"events: {bus['position']:,}; late results {bus['late_results']:,}; dead letters {bus['dead_letters']:,}; "
        f"subscriptions {len(bus['subscriptions']):,}, the slowest is {slow:,} behind"
    )
    yield from _table(("tool", "calls", "failed", "retries", "p50", "p95"), map(_of_tool, *_pairs(found["tools"])))
    yield from _table(
        ("model", "replies", "retries", "tokens in", "out", "cost"), map(_of_model, *_pairs(found["models"]))
    )


def _pairs(named: _Fields) -> tuple[list[str], list[_Fields]]:
    """Return the names and the fields of those that were used most, the most first."""
    busiest = sorted(named.items(), key=lambda each: (-each[1]["calls"], each[0]))[:_MAX_ROWS]
    return [name for name, _ in busiest], [fields for _, fields in busiest]


def _of_tool(name: str, fields: _Fields) -> tuple[str, ...]:
    failed = fields["calls"] - fields["outcomes"].get("completed", 0)
    times = [f"{fields[each]:.3g} s" for each in ("p50_seconds", "p95_seconds")]
    return name, f"{fields['calls']:,}", f"{failed:,}", f"{fields['retries']:,}", *times


def _of_model(name: str, fields: _Fields) -> tuple[str, ...]:
    usage = fields["usage"]
    tokens = [f"{cast('int', usage.get(each, 0)):,}" for each in ("input_tokens", "output_tokens")]
    return name, f"{fields['calls']:,}", f"{fields['retries']:,}", *tokens, f"{fields['cost']:.4f}"


def _mean(found: _Fields) -> str:
    return f"{1000 * found['append_seconds'] / found['appends']:.3g} ms each" if found["appends"] else "none yet"


def _table(titles: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    whole = [titles, *[(cut(one_line(name), _NAME_COLUMNS), *numbers) for name, *numbers in rows]]
    if len(whole) == 1:
        return
    widths = [max(map(cells, column)) for column in zip(*whole, strict=True)]
    for name, *numbers in whole:
        padded = [" " * (width - cells(text)) + text for text, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([name + " " * (widths[0] - cells(name)), *padded])
