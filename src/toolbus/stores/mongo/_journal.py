"""The journal in MongoDB: a document for each request, and one for each step, which counts if the request leads to it.

A request's document has the end of its journal: the next position, the last hash, and the id of the last step. Each
step's document has the id of the step before it. So a step is written by one update of the request's document, with
epoch and position as its condition; a step's document that no request leads to counts as not written. The documents of
all waiting steps are inserted together, and then their requests are updated together. Knows documents and their order,
and nothing about threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pymongo.operations import UpdateOne

from ...errors import LeaseLost, StoreError, TurnLost
from ...storage import StoredFact
from .._decisions import begun_already, refusal_of
from .._encoding import (
    UNREADABLE,
    Damage,
    Fetch,
    Head,
    Written,
    chain_start,
    chained,
    digests_in,
    fact_from,
    journal_damaged,
)
from ._blobs import Blobs, put_blobs
from ._connection import FREE, Document, ServerConnection, is_own_fault, moment_of, prefix_of
from ._deleting import ABSENT, COMING, request_owner
from ._inbox import mark_taken
from ._turns import mark_published, publish, publish_waiting, put_turn

# The size from which on a step's facts are stored as large values: a document may have at most 16 MiB.
_STEP_BYTES = 8 * 2**20
# The size beyond which one fact is stored as a large value.
_FACT_BYTES = 2**20
# The size from which on a step is sent separately from other steps.
_LARGE_BYTES = 2**20


@dataclass(slots=True)
class Step:
    """An entry, and the token by which its writer recognises it after a lost reply."""

    written: Written
    token: str

    @property
    def id(self) -> str:
        """The id of the step's document."""
        return f"{self.written.request_id}:{self.written.seq:08d}:{self.token}"


# ---------------------------------------------------------------------------------------------- appending


def append_all(database: ServerConnection, steps: Sequence[Step]) -> Sequence[int | StoreError]:
    """Write steps, each whole or not at all. Return for each the bytes of its request's journal now, or the error.

    Raises an error that concerns all steps, such as a server that is out of reach; the call may then be repeated with
    the same steps.
    """
    outcomes: dict[int, int | StoreError] = {}
    with database.in_time():
        for group in _rounds(steps):
            try:
                outcomes |= _append_each(database, group)
            except Exception as exc:
                if not outcomes:
                    raise
                # The steps before have been written, and keep their outcomes.
                for index in range(len(steps)):
                    error = database.translated(exc)
                    if not isinstance(error, StoreError):
                        raise
                    outcomes.setdefault(index, error)
                break
    return [outcomes[index] for index in range(len(steps))]


def _rounds(steps: Sequence[Step]) -> Iterator[list[tuple[int, Step]]]:
    """Yield the steps, with their indexes, in groups that are written together, with at most one step of each request.

    Each large step is a group by itself, after the small ones, so that a step that takes long to send does not make
    others fail.
    """
    waiting = list(enumerate(steps))
    while waiting:
        first: dict[str, tuple[int, Step]] = {}
        for index, step in waiting:
            first.setdefault(step.written.request_id, (index, step))
        small = [each for each in first.values() if each[1].written.size_bytes < _LARGE_BYTES]
        if small:
            yield small
        yield from ([each] for each in first.values() if each[1].written.size_bytes >= _LARGE_BYTES)
        chosen = {index for index, _ in first.values()}
        waiting = [each for each in waiting if each[0] not in chosen]


def _append_each(database: ServerConnection, steps: Sequence[tuple[int, Step]]) -> dict[int, int | StoreError]:
    group = _Group(database, [step for _, step in steps])
    try:
        group.write()
    except Exception as exc:
        database.heads.keep((step.written.request_id, None) for _, step in steps)
        if not is_own_fault(exc):
            raise
        if len(steps) > 1:
            # One of the steps cannot be written, and must not make the others fail.
            return {index: outcome for each in steps for index, outcome in _append_each(database, [each]).items()}
        error = database.translated(exc)
        error = error if isinstance(error, StoreError) else StoreError(f"the entry cannot be written: {exc}")
        error.__cause__ = None if error is exc else exc
        return {steps[0][0]: error}
    return {index: group.outcomes[step.id] for index, step in steps}


@dataclass(slots=True)
class _Prepared:
    """A step with the end of its journal after it, and the change of its request's document."""

    step: Step
    head: Head
    first: str
    change: Document


class _Group:
    """Steps of different requests that are written together."""

    def __init__(self, database: ServerConnection, steps: Sequence[Step]) -> None:
        self._database = database
        self._steps = steps
        self.outcomes: dict[str, int | StoreError] = {}

    def write(self) -> None:
        """Write the steps. Raises an error that concerns all of them."""
        database = self._database
        heads = self._heads()
        documents: list[Document] = []
        prepared: list[_Prepared] = []
        now = database.now()
        for step in self._steps:
            head = heads[step.id]
            if step.id in self.outcomes:
                continue
            if isinstance(head, StoreError):
                self.outcomes[step.id] = head
                continue
            before, last, first = head
            document, after = _document_of(database, step, before, last)
            documents.append(document)
            prepared.append(_Prepared(step, after, first, _change(database, step, after, first, now)))
        database.insert(database.steps, documents)
        mark_taken(database, _takers(prepared))  # The updates below replace the ids that the last steps have taken.
        effects = database.bulk(database.requests, [_operation(each) for each in prepared])
        if effects != len(prepared):
            prepared = self._written(prepared)
        self._note(prepared)

    def _heads(self) -> dict[str, tuple[Head, str, str] | StoreError]:
        """Return the end of each journal and the ids of its last and first step, or the reason why it is refused."""
        known = self._database.heads
        heads: dict[str, tuple[Head, str, str] | StoreError] = {}
        unknown: dict[str, Step] = {}
        for step in self._steps:
            entry = step.written
            head = known.get(entry.request_id)
            if entry.begun is not None:
                start = chain_start(entry.request_id, entry.conversation_id, entry.begun.agreed)
                heads[step.id] = (Head(entry.epoch, 0, 0, start), "", step.id)
            elif head is not None and head[0].epoch == entry.epoch and head[0].seq == entry.seq:
                heads[step.id] = head
            else:
                unknown[entry.request_id] = step
        if unknown:
            found = self._found(unknown)
            for request_id, step in unknown.items():
                heads[step.id] = _head_in(found.get(request_id), step)
                # The step may have been written already, if the first reply was lost.
                if _has_step(self._database, found.get(request_id), step):
                    self._note_written_before(found[request_id], step)
        return heads

    def _found(self, ids: Iterable[str]) -> dict[str, Document]:
        """Return the documents of those requests that have begun."""
        condition = {"_id": {"$in": [*ids]}, "ending": {"$ne": COMING}}
        return {each["_id"]: each for each in self._database.requests.find(condition)}

    def _note_written_before(self, state: Document, step: Step) -> None:
        self.outcomes[step.id] = int(state["size_bytes"])
        if step.written.ending is not None:
            publish_waiting(self._database, step.written.conversation_id)

    def _written(self, prepared: Sequence[_Prepared]) -> list[_Prepared]:
        """Return the written steps, if not all are or the first reply was lost; note why the others are not."""
        found = self._found(each.step.written.request_id for each in prepared)
        done: list[_Prepared] = []
        for each in prepared:
            step, entry = each.step, each.step.written
            state = found.get(entry.request_id)
            if _has_step(self._database, state, step):
                done.append(each)
                continue
            if entry.begun is not None:
                refusal = TurnLost(entry.request_id) if state is None else begun_already(entry.request_id)
                self.outcomes[step.id] = refusal
            else:
                head = _head_in(state, step)
                unclear = StoreError(f"request {entry.request_id} cannot be written, for an unknown reason")
                self.outcomes[step.id] = head if isinstance(head, StoreError) else unclear
        return done

    def _note(self, done: Sequence[_Prepared]) -> None:
        """Remember the new ends of the journals, and add the turns of ended requests to their conversations."""
        database = self._database
        dropped = [(each.written.request_id, None) for each in self._steps]
        running = [
            (each.step.written.request_id, (each.head, each.step.id, each.first))
            for each in done
            if not each.change["ending"]
        ]
        database.heads.keep([*dropped, *running])
        for each in done:
            self.outcomes[each.step.id] = each.head.size_bytes
        with database.ignoring_errors():  # The requests' own documents say already what they have taken.
            mark_taken(database, _takers(done))
        ended = [each for each in done if "turn" in each.change]
        if ended:
            with database.ignoring_errors():  # The endings are written already.
                publish(database, [(each.step.written.conversation_id, each.change["turn"]) for each in ended])
                mark_published(database, [each.step.written.request_id for each in ended])


def _takers(prepared: Sequence[_Prepared]) -> list[str]:
    """Return the requests whose steps take inputs."""
    return [each.step.written.request_id for each in prepared if each.step.written.received]


def _head_in(state: Mapping[str, Any] | None, step: Step) -> tuple[Head, str, str] | StoreError:
    """Return the end of a request's journal from its document, or the error if the step cannot be written there."""
    entry = step.written
    if state is None or state["ending"] in ABSENT:
        return LeaseLost(entry.request_id, entry.epoch)
    refusal = refusal_of(entry, epoch=state["epoch"], ending=state["ending"], next_seq=state["next_seq"])
    if refusal is not None:
        return refusal
    head = Head(state["epoch"], state["next_seq"], state["size_bytes"], bytes.fromhex(state["hash"]))
    return head, state["last"], state["first"]


def _has_step(database: ServerConnection, state: Mapping[str, Any] | None, step: Step) -> bool:
    """Return whether a step is in a request's journal, which may have grown since."""
    if state is None or state["next_seq"] <= step.written.seq:
        return False
    if state["last"] == step.id:
        return True
    documents = _documents(database, step.written.request_id, step.written.seq)
    return step.id in _linked(documents, state["last"], step.written.seq)


def _document_of(database: ServerConnection, step: Step, head: Head, before: str) -> tuple[Document, Head]:
    """Return a step's document, and the end of its request's journal after it. Stores its large values."""
    entry, last = step.written, head.hash
    seq, step_end = entry.seq, entry.seq + len(entry.rows) - 1
    blobs = dict(entry.blobs)
    limit = _FACT_BYTES if sum(len(data) for _, data in entry.rows) < _STEP_BYTES else 0
    rows: list[Document] = []
    for kind, data in entry.rows:
        last = chained(last, seq, step_end, data)
        row: Document = {"type": kind, "hash": last.hex()}
        if len(data) > limit:
            digest = sha256(data).digest()
            blobs[digest] = data
            row["blob"] = digest.hex()
        else:
            row["data"] = data.decode()
        rows.append(row)
        seq += 1
    if blobs:
        put_blobs(database, request_owner(entry.request_id), blobs)
    document: Document = {
        "_id": step.id,
        "request_id": entry.request_id,
        "seq": entry.seq,
        "step_end": step_end,
        "epoch": entry.epoch,
        "before": before,
        "base": head.hash.hex(),
        "facts": rows,
    }
    return document, Head(entry.epoch, seq, head.size_bytes + entry.size_bytes, last)


def _change(database: ServerConnection, step: Step, head: Head, first: str, now: float) -> Document:
    """Return the change of a request's document by a step. Stores the large values of its turn and agreed options."""
    entry = step.written
    change: Document = {
        "next_seq": head.seq,
        "size_bytes": head.size_bytes,
        "hash": head.hash.hex(),
        "last": step.id,
        "ending": entry.ending or "",
    }
    if entry.ending is not None:
        change |= {"ended_at": now, **FREE}
        if entry.turn is not None:
            change |= {"turn": put_turn(database, entry.turn, first), "has_turn": True}
    if entry.received:
        change["taken"] = [*entry.received]
    if entry.begun is None:
        return change
    begun: Document = {
        "conversation_id": entry.conversation_id,
        "first": step.id,
        "epoch": entry.epoch,
        "owner": entry.begun.owner,
        "lease_until": moment_of(now + entry.begun.lease_seconds),
        "lease": "",
        "started_at": now,
        "ended_at": 0.0,
    }
    agreed = entry.begun.agreed
    if len(agreed) > _FACT_BYTES:
        digest = sha256(agreed).digest()
        put_blobs(database, request_owner(entry.request_id), {digest: agreed})
        begun["agreed_blob"] = digest.hex()
    else:
        begun["agreed"] = agreed.decode()
    return begun | change


def _operation(prepared: _Prepared) -> UpdateOne:
    entry = prepared.step.written
    if entry.begun is not None:
        has_turn, slot = entry.begun.has_turn, {"_id": entry.request_id, "ending": COMING}
        begun = {"$set": prepared.change, "$unset": {"coming_by": ""}}
        return UpdateOne({**slot, "coming_by": entry.begun.owner} if has_turn else slot, begun, upsert=not has_turn)
    guard = {"_id": entry.request_id, "epoch": entry.epoch, "next_seq": entry.seq, "ending": ""}
    return UpdateOne(guard, {"$set": prepared.change})


# ------------------------------------------------------------------------------------------------- facts


def facts(database: ServerConnection, request_id: str, start: int) -> Sequence[StoredFact]:
    """See `JournalStore.facts`."""
    state = database.requests.find_one({"_id": request_id})
    if state is None or state["ending"] in ABSENT or start >= state["next_seq"] > 0:
        return []
    try:
        return _read(database, state, start)
    except Damage as exc:
        again = database.requests.find_one({"_id": request_id})
        if again is None or again["ending"] in ABSENT:
            # The request was deleted while it was read.
            return []
        raise journal_damaged(request_id, exc.seq, str(exc)) from exc.__cause__


def _documents(database: ServerConnection, request_id: str, start: int) -> dict[str, Document]:
    """Return the documents of steps from position `start` on, also those that the request does not lead to."""
    condition = {"_id": prefix_of(request_id), "request_id": request_id, "step_end": {"$gte": start}}
    return {each["_id"]: each for each in database.steps.find(condition)}


def _linked(documents: Mapping[str, Document], last: str, start: int) -> list[str]:
    """Return the ids of the steps that lead to `last`, newest first, back to position `start` or a missing step."""
    found: list[str] = []
    while last and (document := documents.get(last)) is not None and document["step_end"] >= start:
        found.append(last)
        last = document["before"]
    return found


def _read(database: ServerConnection, state: Document, start: int) -> list[StoredFact]:
    request_id, end = state["_id"], state["next_seq"]
    documents = _documents(database, request_id, start)
    linked = _linked(documents, state["last"], start)
    steps = [documents[each] for each in reversed(linked)]
    if not steps or steps[0]["seq"] > start:
        missing = steps[0]["seq"] if steps else end
        raise Damage(_first_missing(documents.values(), start, missing), "the fact is missing")
    owner = request_owner(request_id)
    fetch = Blobs(database, ((owner, digest) for each in steps for digest in _digests(each))).of(owner)
    last = bytes.fromhex(steps[0]["base"]) if steps[0]["seq"] else _start(state, fetch)
    seq = steps[0]["seq"]
    found: list[StoredFact] = []
    for step in steps:
        if step["seq"] != seq or step["step_end"] != seq + len(step["facts"]) - 1:
            raise Damage(seq, "the step is not what was written")
        for row in step["facts"]:
            last, fact = _fact(request_id, row, fetch, last, seq, step["step_end"])
            if seq >= start:
                found.append(fact)
            seq += 1
    if seq != end or last.hex() != state["hash"]:
        raise Damage(min(seq, end), f"there are {seq} facts, and {end} were written")
    return found


def _first_missing(documents: Iterable[Document], start: int, end: int) -> int:
    """Return the first position from `start` on that is in no step which ends before `end`."""
    seq = start
    for each in sorted(documents, key=lambda each: each["seq"]):
        if each["seq"] <= seq <= each["step_end"] < end:
            seq = each["step_end"] + 1
    return seq


def _start(state: Mapping[str, Any], fetch: Fetch) -> bytes:
    try:
        return chain_start(state["_id"], state["conversation_id"], agreed_in(state, fetch))
    except KeyError as exc:
        raise Damage(0, "the request's agreed options are missing") from exc


def agreed_in(state: Mapping[str, Any], fetch: Fetch) -> bytes:
    """Return the agreed options of a request as they were written."""
    return fetch(bytes.fromhex(state["agreed_blob"])) if "agreed_blob" in state else state["agreed"].encode()


def _digests(step: Document) -> Iterable[bytes]:
    for row in step["facts"]:
        try:
            yield from [bytes.fromhex(row["blob"])] if "blob" in row else digests_in(row["data"].encode())
        except UNREADABLE:
            # The damage is reported when the fact is read.
            continue


def _fact(
    request_id: str, row: Document, fetch: Fetch, before: bytes, seq: int, step_end: int
) -> tuple[bytes, StoredFact]:
    try:
        data = fetch(bytes.fromhex(row["blob"])) if "blob" in row else row["data"].encode()
        last = chained(before, seq, step_end, data)
        if last.hex() != row["hash"]:
            raise Damage(seq, "the fact, or the one before it, is not what was written")
        fact = fact_from(data, fetch, f"fact {seq} of request {request_id}")
    except UNREADABLE as exc:
        raise Damage(seq, str(exc.args[0]) if exc.args else "it cannot be read") from exc
    return last, StoredFact(seq=seq, step_end=step_end, fact=fact)
