"""Recordings of requests that nobody has recorded: made afterwards, from a journal or from a session's facts.

The module knows the file format, sessions and the records of stores. It reads no store itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, cast

from ..._version import __version__
from ...durability import messages_to_json
from ...events import Event, RequestStarted
from ...messages import Message
from ...protocols import ToolSpec
from ...secrets import hide
from ...session import SessionView
from ...storage import RequestRecord, StoredFact
from ._agreement import agreement_of, specs_of
from ._format import AGREED, CHANGED, END, FORMAT, FORMAT_VERSION, HEADER, RELEASED, RecordedRequest, line_of, values_of


def recorded_from_journal(
    record: RequestRecord,
    stored: Sequence[StoredFact],
    history: Sequence[Message] = (),
    tools: Sequence[ToolSpec] = (),
) -> RecordedRequest:
    """Return a request as its journal has it. `history` are the messages of its conversation's earlier turns.

    No journal has tools: without the `tools` of the request, `replay` needs those of the application.
    """
    agreed: dict[str, Any] = {
        **record.agreed,
        "request_id": record.request_id,
        "conversation_id": record.conversation_id,
    }
    facts = [each.fact for each in stored]
    if kept := int(record.agreed.get("history_stored", 0)):
        agreed["history"] = messages_to_json(list(history)[:kept])
    if tools:
        agreed["tools"] = specs_of([each for each in tools if each.control != "output"])
    steps: list[int] = []
    begins = 0
    for each in stored:
        steps.append(begins)
        if each.seq == each.step_end:
            begins = each.seq + 1
    return RecordedRequest(record.request_id, agreed, 0, facts=facts, steps=steps)


def recorded_from_session(view: SessionView, facts: Sequence[Event]) -> RecordedRequest:
    """Return a request without a journal, from its facts in order.

    Which inputs the session took in one step is not known afterwards, and is assumed to have been one each. In most
    requests it was, and a replay shows whether the assumption holds.
    """
    started = cast("RequestStarted", facts[0])
    agreed = agreement_of(view, started.history_count)
    return RecordedRequest(view.request_id, agreed, 0, facts=list(facts), steps=list(range(len(facts))))


def recording_of(requests: Sequence[RecordedRequest]) -> bytes:
    """Return the file of a recording. Texts that look like secrets are hidden, alike everywhere."""
    lines = [line_of({"type": HEADER, "format": FORMAT, "version": FORMAT_VERSION, "toolbus": __version__})]
    for request in requests:
        agreed = {name: value for name, value in request.agreed.items() if name != "type"}
        lines.append(line_of(hide({"type": AGREED, **agreed})))
        changes = dict(request.changes)
        for position, (fact, step) in enumerate(zip(request.facts, request.steps, strict=True)):
            if position in changes:
                lines.append(line_of({**changes[position], "type": CHANGED}))
            lines.append(line_of({**hide(values_of(fact)), "step": step}))
        if not request.is_whole:
            lines.append(line_of({"type": RELEASED, "request_id": request.request_id, "facts": len(request.facts)}))
    digest = hashlib.sha256(b"".join(each + b"\n" for each in lines))
    lines.append(line_of({"type": END, "lines": len(lines), "sha256": digest.hexdigest()}))
    return b"".join(each + b"\n" for each in lines)
