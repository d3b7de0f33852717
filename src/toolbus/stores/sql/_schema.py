"""The tables of a store in a database, and their migrations from older formats.

They are written once for all dialects: `{blob}`, `{whole}` (a 64-bit integer), `{real}` and `{text}` stand for the
column types of the dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...errors import UnsupportedStoreFormat
from ._database import Database

_TABLES = """
CREATE TABLE requests (
    request_id {text} NOT NULL PRIMARY KEY,
    conversation_id {text} NOT NULL,
    epoch {whole} NOT NULL,
    owner {text} NOT NULL,
    lease_until {real} NOT NULL,
    started_at {real} NOT NULL,
    ended_at {real},
    ending {text},
    next_seq {whole} NOT NULL,
    size_bytes {whole} NOT NULL,
    hash {blob} NOT NULL
);
CREATE INDEX requests_of_conversations ON requests (conversation_id);
CREATE INDEX requests_unfinished ON requests (started_at) WHERE ending IS NULL;
CREATE INDEX requests_free ON requests (lease_until) WHERE ending IS NULL AND owner = '';
CREATE INDEX requests_held ON requests (owner, lease_until) WHERE owner <> '';
CREATE INDEX requests_ended ON requests (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE owners (
    owner {text} NOT NULL PRIMARY KEY,
    lease_until {real} NOT NULL
);
CREATE INDEX owners_out ON owners (lease_until);
CREATE TABLE turns (
    conversation_id {text} NOT NULL PRIMARY KEY,
    request_id {text} NOT NULL,
    owner {text} NOT NULL,
    lease_until {real} NOT NULL
);
CREATE TABLE agreements (
    request_id {text} NOT NULL PRIMARY KEY,
    data {blob} NOT NULL
);
CREATE TABLE facts (
    request_id {text} NOT NULL,
    seq {whole} NOT NULL,
    step_end {whole} NOT NULL,
    type {text} NOT NULL,
    data {blob} NOT NULL,
    hash {blob} NOT NULL,
    PRIMARY KEY (request_id, seq)
);
CREATE TABLE conversations (
    conversation_id {text} NOT NULL PRIMARY KEY,
    title {text} NOT NULL,
    started_at {real} NOT NULL,
    updated_at {real} NOT NULL,
    first_position {whole} NOT NULL,
    messages {whole} NOT NULL,
    size_bytes {whole} NOT NULL,
    hash {blob} NOT NULL
);
CREATE INDEX conversations_updated ON conversations (updated_at);
CREATE TABLE messages (
    conversation_id {text} NOT NULL,
    position {whole} NOT NULL,
    request_id {text} NOT NULL,
    data {blob} NOT NULL,
    hash {blob} NOT NULL,
    text {text},
    text_blob {blob},
    PRIMARY KEY (conversation_id, position)
);
CREATE TABLE blobs (
    digest {blob} NOT NULL PRIMARY KEY,
    data {blob} NOT NULL
);
CREATE TABLE blob_uses (
    owner {text} NOT NULL,
    digest {blob} NOT NULL,
    PRIMARY KEY (owner, digest)
);
CREATE INDEX blob_uses_by_digest ON blob_uses (digest);
CREATE TABLE inbox (
    request_id {text} NOT NULL,
    event_id {text} NOT NULL,
    position {whole} NOT NULL,
    data {blob} NOT NULL,
    state {text} NOT NULL,
    reason {text} NOT NULL,
    PRIMARY KEY (request_id, event_id)
);
CREATE INDEX inbox_waiting ON inbox (request_id, position) WHERE state = 'waiting';
CREATE TABLE deleted (
    kind {text} NOT NULL,
    id {text} NOT NULL,
    below {whole} NOT NULL,
    size_bytes {whole} NOT NULL,
    PRIMARY KEY (kind, id)
);
"""


def _first(database: Database, types: Mapping[str, str]) -> None:
    for statement in _TABLES.format_map(types).split(";"):
        if statement.strip():
            database.run(statement)


_STEPS: list[Callable[[Database, Mapping[str, str]], None]] = [_first]
"""The migrations: number n leads from format n to n + 1. Do not change one that was released: add another one."""

FORMAT = len(_STEPS)
"""The number of the format that this version writes."""


def bring_up_to_date(database: Database, types: Mapping[str, str], found: int, where: str) -> int:
    """Migrate the tables, within a transaction, from the format `found` (0 for an empty database) to the newest.

    Returns the newest format. Raises `UnsupportedStoreFormat` if `found` is newer than that; `where` names the database
    in its text.
    """
    if found > len(_STEPS):
        raise UnsupportedStoreFormat(
            f"{where} was written by a newer toolbus, in format {found}; this version knows formats up to "
            f"{len(_STEPS)}: upgrade toolbus"
        )
    for step in _STEPS[found:]:
        step(database, types)
    return len(_STEPS)
