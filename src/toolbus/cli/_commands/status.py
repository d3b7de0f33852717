"""The command `toolbus status`: shows the requests of a store that are unfinished, who holds them, and what waits."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import anyio
import orjson

from ...core.approval import OpenQuestions
from ...core.plain_text import one_line
from ...events import Event, RequestResumed
from ...stores.sql.find import FoundRequest
from .._open_store import CommandStore, ago, existing, holder_of, opened_store
from .._terminal.screen import Screen
from .._terminal.text import cut, escape_json, padded

_PROMPT_COLUMNS = 50


def show_status(options: argparse.Namespace, screen: Screen) -> int:
    """Run `toolbus status`, and return the exit status. Raises `ConfigurationError` and `StoreError`."""
    found = existing(options)
    listed = [] if found is None else anyio.run(_unfinished, found[0])
    held, parked = (sum(map(bool, [each[name] for each in listed])) for name in ("holder", "parked"))
    counts = {
        "unfinished": len(listed),
        "held": held,
        "parked": parked,
        "free": len(listed) - held - parked,
        "pending_approvals": sum(len(each["pending_approvals"]) for each in listed),
    }
    if options.json:
        whole = {**counts, "requests": listed}
        screen.data(escape_json(orjson.dumps(whole, option=orjson.OPT_INDENT_2).decode()))
        return 0
    screen.data(
        "unfinished requests: {unfinished}; held: {held}; parked: {parked}; free: {free}; "
        "questions: {pending_approvals}".format(**counts)
    )
    for each, row in zip(listed, padded([_row(each) for each in listed]), strict=True):
        screen.data("  ".join(row).rstrip())
        for question in each["pending_approvals"]:
            screen.data(f"  waits for a decision: {one_line(question['name'])}, asked {ago(question['asked_at'])}")
        if each["resumptions"] > 1:
            screen.data(f"  resumed {each['resumptions']:,} times")
        if each["damage"]:
            screen.data(f"  damaged: {one_line(each['damage'])}")
    return 0


async def _unfinished(store: CommandStore) -> list[dict[str, Any]]:
    """Return the unfinished requests, as `--json` lists them."""
    listed: list[dict[str, Any]] = []
    async with opened_store(store):
        for each in await store.found_requests(is_unfinished=True):
            journal = await store.salvage(each.record.request_id)
            damage = None if journal.damage is None else str(journal.damage)
            listed.append(_fields(each, [stored.fact for stored in journal.facts], damage))
    return listed


def _fields(found: FoundRequest, facts: Sequence[Event], damage: str | None) -> dict[str, Any]:
    """Return a request. No process takes a parked one before somebody answers, or its next deadline passes."""
    record, questions = found.record, OpenQuestions()
    for fact in facts:
        questions.feed(fact)
    holder = None if holder_of(record) == "nobody" else record.owner
    lease_seconds = max(0.0, record.lease_until - time.time())
    return {
        "request_id": record.request_id,
        "conversation_id": record.conversation_id,
        "started_at": record.started_at,
        "fact_count": record.fact_count,
        "size_bytes": record.size_bytes,
        "holder": holder,
        "parked": not record.owner and lease_seconds > 0,
        "lease_seconds": round(lease_seconds, 1) if holder else 0.0,
        "pending_approvals": [{"call_id": each.call_id, "name": each.name, "asked_at": each.at} for each in questions],
        "resumptions": sum(isinstance(fact, RequestResumed) for fact in facts),  # how often it was taken over
        "damage": damage,
        "prompt": found.prompt,
    }


def _row(each: dict[str, Any]) -> Sequence[str]:
    holder = "parked" if each["parked"] else "free"
    if each["holder"]:
        holder = f"held by {each['holder'].rpartition(':')[0]}"
    prompt = cut(one_line(each["prompt"]), _PROMPT_COLUMNS)
    return [one_line(text) for text in (each["request_id"], ago(each["started_at"]), holder, prompt)]
