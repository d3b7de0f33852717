"""The payloads of one process: few at a time, and within their bounds, whatever they are for."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolbus.errors import DecodeError
from toolbus.events import ToolCallRequested, encode
from toolbus.messages import UserMessage
from toolbus.records import replace
from toolbus.remote import _questions as questions
from toolbus.remote._bodies import MAX_BYTES, Reference, call_body, large_call, read_call, reference_in
from toolbus.remote._payloads import LargeBodies, TooLarge
from toolbus.remote._transport import Full, Key
from toolbus.schemas import MAX_VALUES
from toolbus.testing import virtual_backends

pytestmark = pytest.mark.guarantee("G12")
anyio_backend = virtual_backends()

KEY = ("r", "c")
REQUESTED = ToolCallRequested(
    request_id="r", call_id="c", name="x", arguments={"a": 1}, round=0, timeout_seconds=9.0, idempotency_key="k"
)


class Shelf:
    """Payloads in memory. Each use takes a second."""

    def __init__(self, body: bytes = b"") -> None:
        self.body = body
        self.is_full = False
        self.uses, self.most_uses = 0, 0

    async def _use(self) -> None:
        self.uses += 1
        self.most_uses = max(self.most_uses, self.uses)
        await anyio.sleep(1)
        self.uses -= 1

    async def keep(self, key: Key, body: bytes) -> Reference:
        await self._use()
        if self.is_full:
            raise Full("no space")
        self.body = body
        return Reference(*key, "0" * 64, len(body), 1)

    async def load(self, reference: Reference) -> bytes:
        await self._use()
        return self.body

    async def drop(self, key: Key, digest: str = "") -> None: ...


async def test_four_are_kept_or_loaded_at_a_time_and_a_body_is_made_in_its_turn() -> None:
    shelf, made = Shelf(b"1"), 0
    large = LargeBodies(shelf)

    def make() -> bytes:
        nonlocal made
        made += 1
        return b"1"

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(large.keep, KEY, make)
            group.start_soon(large.load, Reference(*KEY, "0" * 64, 1, 1), int)
        await anyio.wait_all_tasks_blocked()
        assert made <= 4
    assert (made, shelf.most_uses, anyio.current_time()) == (10, 4, 5)


async def test_what_is_not_wanted_any_more_is_not_kept() -> None:
    shelf = Shelf()
    assert await LargeBodies(shelf).keep(KEY, lambda: None) is None
    assert shelf.most_uses == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"1" * (MAX_BYTES + 1), "larger than 8,388,608 bytes"), (b"[" + b"1," * MAX_VALUES + b"1]", "100,000 values")],
    ids=["bytes", "values"],
)
async def test_what_breaks_a_bound_is_neither_kept_nor_read(body: bytes, why: str) -> None:
    shelf, read = Shelf(body), list[bytes]()
    large = LargeBodies(shelf)
    with pytest.raises(TooLarge, match=why):
        await large.keep(KEY, lambda: body)
    assert shelf.most_uses == 0
    with pytest.raises(TooLarge, match=why):
        await large.load(Reference(*KEY, "0" * 64, 1, 1), read.append)
    assert read == []


async def test_a_full_broker_is_a_bound_too(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    shelf.is_full = True
    with pytest.raises(TooLarge, match="free space of the broker"):
        await LargeBodies(shelf).keep(KEY, lambda: b"1")
    assert "a payload of call c was not kept: no space" in caplog.text


def test_a_question_with_an_impossible_payload_is_refused() -> None:
    line = questions._QuestionMessage(  # pyright: ignore[reportPrivateUsage]
        do="ask", id="q", request="r", call="c", worker="w", payload=Reference(*KEY, "0" * 64, MAX_BYTES + 1, 1)
    ).line
    with pytest.raises(DecodeError, match="not one to at most"):
        questions._read(line)  # pyright: ignore[reportPrivateUsage]


def reference(**changes: Any) -> Reference:
    given: dict[str, Any] = {"request": "r", "call": "c", "digest": "0" * 64, "bytes": 9, "parts": 2, **changes}
    return Reference(**given)


@pytest.mark.parametrize("changes", [{}, {"parts": 9}, {"parts": 1}, {"bytes": MAX_BYTES}, {"digest": "aF" * 32}])
def test_a_reference_comes_back_from_its_line(changes: Any) -> None:
    given = reference(**changes)
    assert reference_in(given.line) == given
    assert read_call(large_call(REQUESTED, given)) == (replace(REQUESTED, arguments={}), (), given)


@pytest.mark.parametrize(
    "changes",
    [{"parts": 0}, {"parts": 10}, {"bytes": MAX_BYTES + 1}, {"digest": "0" * 63}, {"digest": "." * 64}],
    ids=str,
)
def test_a_reference_with_impossible_values_is_refused(changes: Any) -> None:
    with pytest.raises(DecodeError, match="is not one to at most 8,388,608 bytes"):
        reference_in(reference(**changes).line)
    with pytest.raises(DecodeError, match="the reference to a payload: not JSON"):
        reference_in(reference(**changes).line[:-1])


def test_a_reference_that_is_nested_too_deep_is_refused_and_ends_no_worker() -> None:
    with pytest.raises(DecodeError, match="the reference to a payload: it is nested too deep"):
        read_call(encode(REQUESTED) + b"\n@" + b'{"x":' * 1_000_000)


def test_a_call_comes_back_with_its_transcript_and_without_a_reference() -> None:
    messages = [UserMessage(content="Go.")]
    assert read_call(call_body(REQUESTED, messages)) == (REQUESTED, messages, None)
    assert read_call(call_body(REQUESTED, None)) == (REQUESTED, (), None)
    assert reference_in(encode(REQUESTED)) is None
