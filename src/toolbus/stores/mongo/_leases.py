"""The records of requests in MongoDB, and their leases: each change is an update of one request's document."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from pymongo import ASCENDING, DESCENDING, ReturnDocument

from ...errors import StoreDamaged
from ...storage import RequestRecord
from .._encoding import UNREADABLE, agreed_from, digests_in, has_right_types
from ._blobs import Blobs
from ._connection import FREE, Document, ServerConnection, moment_of
from ._deleting import ABSENT, request_owner
from ._journal import agreed_in


def _record(database: ServerConnection, state: Document) -> RequestRecord | None:
    """Return the record of a request, or None if the request was deleted while it was read."""
    request_id = state["_id"]
    owner = request_owner(request_id)
    try:
        data = agreed_in(state, Blobs(database).of(owner))
        fetch = Blobs(database, ((owner, digest) for digest in digests_in(data))).of(owner)
        agreed = dict(agreed_from(data, fetch))
    except UNREADABLE as exc:
        if database.requests.find_one({"_id": request_id, "ending": {"$nin": ABSENT}}, ["_id"]) is None:
            return None
        text = f"the journal of request {request_id} is damaged: its agreed options cannot be read"
        raise StoreDamaged(text, request_id=request_id) from exc
    record = RequestRecord(
        request_id=request_id,
        conversation_id=state["conversation_id"],
        epoch=state["epoch"],
        owner=state["owner"],
        lease_until=state["lease_until"],
        started_at=state["started_at"],
        ended_at=state["ended_at"] or None,
        ending=state["ending"] or None,
        fact_count=state["next_seq"],
        size_bytes=state["size_bytes"],
        agreed=agreed,
    )
    if not has_right_types(record):
        text = f"the journal of request {request_id} is damaged: its document cannot be read"
        raise StoreDamaged(text, request_id=request_id)
    return record


def request(database: ServerConnection, request_id: str) -> RequestRecord | None:
    """See `JournalStore.request`."""
    state = database.requests.find_one({"_id": request_id})
    return None if state is None or state["ending"] in ABSENT else _record(database, state)


def requests(
    database: ServerConnection,
    conversation_id: str | None,
    prefix: str,
    is_unfinished: bool,  # noqa: FBT001 -- see `ThreadedStore`
    limit: int,
) -> Sequence[RequestRecord]:
    """See `JournalStore.requests`."""
    condition: Document = {"ending": "" if is_unfinished else {"$nin": ABSENT}}
    wanted: Document = {} if conversation_id is None else {"$eq": conversation_id}
    if prefix:
        wanted["$regex"] = f"^{re.escape(prefix)}"
    if wanted:
        condition["conversation_id"] = wanted
    return _in_order(database, condition, DESCENDING, limit)


def unfinished(database: ServerConnection, limit: int) -> Sequence[RequestRecord]:
    """See `JournalStore.unfinished`."""
    condition = {"ending": "", "lease_until": {"$lte": database.now()}}
    return _in_order(database, condition, ASCENDING, limit)


def _in_order(database: ServerConnection, condition: Document, order: int, limit: int) -> Sequence[RequestRecord]:
    """Return requests in the order in which they began, or in the opposite one.

    Only their ids are sorted: whole documents may be more than the server has memory for.
    """
    if limit <= 0:
        return []
    found = [*database.requests.find(condition, ["started_at"]).sort("started_at", order).limit(limit)]
    if not found:
        return []
    ids = [each["_id"] for each in sorted(found, key=_beginning, reverse=order == DESCENDING)]
    states = {each["_id"]: each for each in database.requests.find({"_id": {"$in": ids}})}
    listed = [_listed(database, states[each]) for each in ids if each in states]
    return [each for each in listed if each is not None]


def _beginning(state: Document) -> tuple[float, str]:
    """Return the key by which requests are sorted; a time of another type is damage."""
    started_at = state.get("started_at")
    return started_at if isinstance(started_at, (int, float)) else 0.0, state["_id"]


def _listed(database: ServerConnection, state: Document) -> RequestRecord | None:
    """Return a request's record, with only the ids if it is damaged; or None, see `_record`.

    So the other requests can be resumed; taking the damaged one raises `StoreDamaged`.
    """
    try:
        return _record(database, state)
    except (StoreDamaged, KeyError):
        return RequestRecord(request_id=state["_id"], conversation_id=state.get("conversation_id", ""))


def take(database: ServerConnection, request_id: str, owner: str, seconds: float, token: str) -> RequestRecord | None:
    """See `JournalStore.take`. `token` shows the caller whether it has the lease if the first reply was lost."""
    now = database.now()
    state = database.requests.find_one_and_update(
        {"_id": request_id, "ending": "", "lease_until": {"$lte": now}},
        {"$set": {"owner": owner, "lease_until": moment_of(now + seconds), "lease": token}, "$inc": {"epoch": 1}},
        return_document=ReturnDocument.AFTER,
    )
    if state is None:
        state = database.requests.find_one({"_id": request_id, "lease": token, "ending": ""})
    try:
        return None if state is None else _record(database, state)
    except (StoreDamaged, KeyError):
        # Nobody can resume the request, so nobody should hold its lease.
        free = {"$set": FREE}
        database.requests.update_one({"_id": request_id, "lease": token, "ending": ""}, free)
        raise


def renew(database: ServerConnection, owner: str, seconds: float) -> Collection[str]:
    """See `JournalStore.renew`."""
    if not owner:
        return ()
    until = moment_of(database.now() + seconds)
    database.requests.update_many({"owner": owner}, {"$max": {"lease_until": until}})
    return [each["_id"] for each in database.requests.find({"owner": owner}, ["_id"])]


def release(database: ServerConnection, request_id: str, epoch: int) -> bool:
    """See `JournalStore.release`."""
    change = {"$set": FREE}
    result = database.requests.update_one({"_id": request_id, "epoch": epoch, "ending": ""}, change)
    return bool(result.matched_count)


def abandon(database: ServerConnection, request_id: str, epoch: int, token: str) -> bool:
    """See `JournalStore.abandon`. `token` shows the caller whether it has done it if the first reply was lost."""
    database.heads.keep([(request_id, None)])
    change = {"ending": "abandoned", "ended_at": database.now(), "lease": token, **FREE}
    result = database.requests.update_one({"_id": request_id, "epoch": epoch, "ending": ""}, {"$set": change})
    return bool(result.matched_count) or bool(database.requests.find_one({"_id": request_id, "lease": token}))
