"""The command `toolbus status`: shows the requests of a store that are unfinished, who holds them, and what waits."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import orjson

from ...core.approval import OpenQuestions
from ...core.plain_text import one_line
from ...events import ApprovalRequested, RequestResumed
from ...storage import RequestRecord
from .._open_store import CommandStore, ago, existing, holder_of, opened_store
from .._terminal.screen import Screen
from .._terminal.text import cut, escape_json, padded

_PROMPT_COLUMNS = 50


@dataclass(slots=True, frozen=True)
class _Unfinished:
    """One unfinished request. `holder` is empty if nobody has it. `waiting` are the questions that nobody answered.

    `resumptions` counts how often a process has taken it over, and `damage` says why its journal cannot be read.
    """

    record: RequestRecord
    prompt: str
    holder: str
    waiting: Sequence[ApprovalRequested]
    resumptions: int
    damage: str

    @property
    def is_parked(self) -> bool:
        """True if no process takes the request before somebody answers, or its next deadline passes."""
        return not self.record.owner and self.record.lease_until > time.time()

    def as_json(self) -> dict[str, Any]:
        record = self.record
        return {
            "request_id": record.request_id,
            "conversation_id": record.conversation_id,
            "started_at": record.started_at,
            "fact_count": record.fact_count,
            "size_bytes": record.size_bytes,
            "holder": self.holder or None,
            "parked": self.is_parked,
            "lease_seconds": round(max(0.0, record.lease_until - time.time()), 1) if self.holder else 0.0,
            "pending_approvals": [
                {"call_id": each.call_id, "name": each.name, "asked_at": each.at} for each in self.waiting
            ],
            "resumptions": self.resumptions,
            "damage": self.damage or None,
            "prompt": self.prompt,
        }


def show_status(options: argparse.Namespace, screen: Screen) -> int:
    """Run `toolbus status`, and return the exit status. Raises `ConfigurationError` and `StoreError`."""
    found = existing(options)
    return _print([], options, screen) if found is None else anyio.run(_status, found[0], options, screen)


async def _status(store: CommandStore, options: argparse.Namespace, screen: Screen) -> int:
    async with opened_store(store):
        listed: list[_Unfinished] = []
        for each in await store.found_requests(is_unfinished=True):
            record = each.record
            journal = await store.salvage(record.request_id)
            holder = record.owner if holder_of(record) != "nobody" else ""
            damage = "" if journal.damage is None else str(journal.damage)
            questions = OpenQuestions()
            for stored in journal.facts:
                questions.feed(stored.fact)
            resumptions = sum(isinstance(stored.fact, RequestResumed) for stored in journal.facts)
            listed.append(_Unfinished(record, each.prompt, holder, tuple(questions), resumptions, damage))
    return _print(listed, options, screen)


def _print(listed: Sequence[_Unfinished], options: argparse.Namespace, screen: Screen) -> int:
    held = sum(bool(each.holder) for each in listed)
    counts = {
        "unfinished": len(listed),
        "held": held,
        "parked": (parked := sum(each.is_parked for each in listed)),
        "free": len(listed) - held - parked,
        "pending_approvals": sum(len(each.waiting) for each in listed),
    }
    if options.json:
        whole = {**counts, "requests": [each.as_json() for each in listed]}
        screen.data(escape_json(orjson.dumps(whole, option=orjson.OPT_INDENT_2).decode()))
        return 0
    screen.data(
        "unfinished requests: {unfinished}; held: {held}; parked: {parked}; free: {free}; "
        "questions: {pending_approvals}".format(**counts)
    )
    for each, row in zip(listed, padded([_row(each) for each in listed]), strict=True):
        screen.data("  ".join(row).rstrip())
        for question in each.waiting:
            screen.data(f"  waits for a decision: {one_line(question.name)}, asked {ago(question.at)}")
        if each.resumptions > 1:
            screen.data(f"  resumed {each.resumptions:,} times")
        if each.damage:
            screen.data(f"  damaged: {one_line(each.damage)}")
    return 0


def _row(each: _Unfinished) -> Sequence[str]:
    record = each.record
    holder = f"held by {each.holder.rpartition(':')[0]}" if each.holder else "parked" if each.is_parked else "free"
    texts = record.request_id, ago(record.started_at), holder, cut(one_line(each.prompt), _PROMPT_COLUMNS)
    return [one_line(text) for text in texts]
