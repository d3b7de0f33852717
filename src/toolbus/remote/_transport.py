"""The interface of a transport, which carries tool calls to other machines.

A transport has two ends: a `SessionLink` in the sessions' process, and a `WorkerLink` on the machine that runs the
tools. This module knows events only as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

from ._bodies import Reference

Key: TypeAlias = tuple[str, str]
"""The id of a call's request, and the call's own id."""

Begun: TypeAlias = Literal["mine", "taken", "settled"]
"""The answer to a worker that wants to begin a call: it may, another delivery has begun the call, or it is settled."""


class Unavailable(Exception):
    """The broker does not answer now. Whatever was asked may be asked again."""


class NotTaken(Unavailable):
    """The broker has certainly not taken a message."""


class Full(NotTaken):
    """The broker has no space for a message."""


class Damaged(Exception):
    """A payload is gone, or it is not the one that was kept."""


Then: TypeAlias = "Callable[[bool | Unavailable], None]"
"""A function that is called once, when the broker has acknowledged a message or is known not to have taken it. Its
argument is True if the message is the first one of its call, False for a later one, or the error. It must not wait."""


class Payloads(Protocol):
    """The calls and answers that are too large for one message, which the broker keeps beside the messages."""

    async def keep(self, key: Key, body: bytes) -> Reference:
        """Keep a payload of a call until `drop` or `forget`, or for days. Raises `Unavailable`, or `Full`."""
        ...

    async def load(self, reference: Reference) -> bytes:
        """Return a payload. Raises `Unavailable`, and `Damaged`, also for more bytes than the reference says."""
        ...

    async def drop(self, key: Key, digest: str = "") -> None:
        """Delete one payload of a call, by default all of them. Raises `Unavailable`."""
        ...


class SessionLink(Protocol):
    """The end of a transport in the sessions' process.

    `max_bytes` bounds one message. The transport calls `heard(body)` for each answer and signal that it brings
    for this node, and `reconnected()` after a time in which it may have brought none.
    """

    @property
    def max_bytes(self) -> int: ...
    @property
    def payloads(self) -> Payloads: ...
    def listen(self, heard: Callable[[bytes], None], reconnected: Callable[[], None]) -> None: ...

    def carries(self, key: Key) -> bool:
        """Return whether the ids of a call are short enough. If not, no other method may be called with them."""
        ...

    async def send(
        self, key: Key, body: bytes, remaining_seconds: float, then: Then, *, seconds: float, again: bool
    ) -> None:
        """Write a call, which the broker keeps until a worker has answered it. A call that is kept is not kept twice.

        `then` is called within `seconds`. `again` says that the call may have been kept, and even answered, before.
        """
        ...

    async def find(self, key: Key) -> bytes | None:
        """Return the answer of a call, if there is one."""
        ...

    @property
    def known_since(self) -> float:
        """The time since which the broker keeps calls, as far as is known now: see `kept_since`."""
        ...

    async def kept_since(self) -> float:
        """Return the time since which the broker keeps calls, in seconds since the epoch; it has none from before.

        Raises `Unavailable`.
        """
        ...

    async def tell(self, worker: str, body: bytes) -> None:
        """Send a message to a worker, which may be lost. Raises `Unavailable`."""
        ...

    async def stop(self, key: Key, *, never_again: bool) -> None:
        """Tell the worker that a call was settled elsewhere, and delete all that is kept of the call.

        With `never_again`, the broker keeps that the call has begun: another process may still send it.
        """
        ...

    async def forget(self, request_id: str, *, calls_too: bool, payloads_too: bool, never_again: bool) -> None:
        """Delete all that is kept of a request's calls: first the calls, if some may be left, then the rest.

        With `never_again`, the broker keeps which calls have begun: another process may still send them.
        """
        ...


class Delivery(Protocol):
    """One delivery of a call to a worker, with a lease. A call whose lease has ended is delivered again.

    `key` is from the subject of the message: only the broker's permissions decide who may send to it. `node` is the
    name of the process to answer. `remaining_seconds` is the time until the call's deadline, as it was when the call
    was sent. `attempt` counts the deliveries of this call from 1; `is_again` is true if the call was delivered or sent
    before, so that it may have an answer. All methods raise `Unavailable`.
    """

    @property
    def key(self) -> Key: ...
    @property
    def body(self) -> bytes: ...
    @property
    def node(self) -> str: ...
    @property
    def remaining_seconds(self) -> float: ...
    @property
    def attempt(self) -> int: ...
    @property
    def is_again(self) -> bool: ...
    async def renew(self) -> None:
        """Start the time of the lease again."""
        ...

    async def done(self) -> None:
        """Give up the lease of a call that has an answer, or needs none: it is not delivered again."""
        ...

    async def give_back(self) -> None:
        """Give up the lease of a call that cannot run here: it is delivered again, maybe to another worker."""
        ...

    async def begin(self) -> Begun:
        """Begin a call that must not run twice: of all deliveries of a call, only one gets "mine".

        Raises `Unavailable`: then the same delivery may ask again, and gets "mine" if it has begun the call already.
        """
        ...


class WorkerLink(Protocol):
    """The end of a transport on a worker. `find`, `fetch` and `rest` raise `Unavailable`.

    `stopped(key)` is called for each call that was settled elsewhere, and `heard(body)` for each message to this
    worker, whose `name` no other worker has. `lease_seconds` is the time after which a call that was not renewed is
    delivered again.
    """

    @property
    def max_bytes(self) -> int: ...
    @property
    def payloads(self) -> Payloads: ...
    @property
    def lease_seconds(self) -> float: ...
    @property
    def name(self) -> str: ...
    def listen(self, stopped: Callable[[Key], None], heard: Callable[[bytes], None]) -> None: ...

    async def fetch(self, limit: int) -> Sequence[Delivery]:
        """Wait for calls, and return between none and `limit` of them."""
        ...

    async def rest(self) -> Sequence[Delivery]:
        """Ask for no more calls, and return those that are on their way from an earlier `fetch`."""
        ...

    async def find(self, key: Key) -> bytes | None:
        """Return the answer of a call, if there is one."""
        ...

    async def answer(self, key: Key, body: bytes, then: Then) -> None:
        """Write the answer of a call, to be kept. Only the first one counts, over all workers."""
        ...

    def tell(self, node: str, body: bytes, *, may_be_lost: bool) -> None:
        """Send an answer or a signal to the node that asks, without keeping it, after everything sent to it before.

        It goes with the next `flush`, or within milliseconds. What `may_be_lost` is dropped if too much waits.
        """
        ...

    async def flush(self) -> None:
        """Write the answers and signals that wait."""
        ...
