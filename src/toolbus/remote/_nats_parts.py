"""The payloads of calls in their own stream, in parts that fit into messages: see `Payloads`.

    stream <prefix>_parts  <prefix>.part.<pool>.<request>.<call>.<digest>.<number>

The digest is that of the whole payload, so that one which is written twice is kept once.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ._bodies import Reference
from ._nats_connection import KEPT_SECONDS, Broker, Connection
from ._transport import Damaged, Key, Unavailable

_MAX_BYTES = 2**30
"""The bound of the stream, unless somebody has made it with another one."""


class Parts:
    """The payloads of one pool. The stream is made with the first payload."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker, self._connection = broker, connection
        self._is_made = False

    async def keep(self, key: Key, body: bytes) -> Reference:
        limit = self._connection.max_bytes()
        digest, at = hashlib.sha256(), range(0, len(body), limit)
        for start in at:
            digest.update(body[start : start + limit])
        reference = Reference(*key, digest.hexdigest(), len(body), len(at))
        await self._make()
        subject = self._subject(key, reference.digest)
        try:
            for number, start in enumerate(at):
                # One at a time: others use the broker and the connection in between.
                await self._connection.publish(f"{subject}.{number}", body[start : start + limit])
        except Unavailable:
            # The server may have lost the stream.
            self._is_made = False
            raise
        return reference

    async def load(self, reference: Reference) -> bytes:
        digest, body = hashlib.sha256(), bytearray()
        subject = self._subject(reference.key, reference.digest)
        for number in range(reference.parts):
            part = await self._connection.last(self._broker.parts, f"{subject}.{number}")
            if not part:
                raise Damaged(f"part {number + 1} of {reference.parts} is gone")
            digest.update(part)
            body += part
            if len(body) > reference.bytes:
                break
        if len(body) != reference.bytes or digest.hexdigest() != reference.digest:
            raise Damaged("its bytes were changed")
        return bytes(body)

    async def drop(self, key: Key, digest: str = "") -> None:
        await self._connection.purge(self._broker.parts, f"{self._subject(key, digest) if digest else self._of(key)}.>")

    async def drop_all(self, request_id: str) -> None:
        """Delete the payloads of a request."""
        await self._connection.purge(self._broker.parts, self._broker.subjects("part", request_id) + ".>")

    async def _make(self) -> None:
        if not self._is_made:
            api: Any = self._broker.nats.js.api
            await self._connection.add_stream(
                api.StreamConfig(
                    name=self._broker.parts,
                    subjects=[f"{self._broker.prefix}.part.>"],
                    max_bytes=_MAX_BYTES,
                    max_msgs_per_subject=1,
                    discard=api.DiscardPolicy.NEW,
                    discard_new_per_subject=True,
                    max_age=KEPT_SECONDS,
                )
            )
            self._is_made = True

    def _of(self, key: Key) -> str:
        return self._broker.subject("part", key)

    def _subject(self, key: Key, digest: str) -> str:
        return f"{self._of(key)}.{digest}"
