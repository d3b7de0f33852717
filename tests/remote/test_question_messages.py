"""The messages between a handler that asks and the process that answers, without a broker, in virtual time."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import orjson
import pytest

from toolbus.errors import ConfigurationError, DecodeError, InvalidArguments, LimitReached, NotRunning
from toolbus.events import Spent, ToolCallRequested
from toolbus.messages import Usage
from toolbus.remote import _questions as questions
from toolbus.remote._bodies import MAX_BYTES, Reference
from toolbus.remote._payloads import LargeBodies
from toolbus.remote._transport import Damaged, Key, Unavailable
from toolbus.testing import advance, settle, virtual_backends

anyio_backend = virtual_backends()

KEY = ("r", "c")
REQUESTED = ToolCallRequested(
    request_id="r", call_id="c", name="work", arguments={}, round=0, timeout_seconds=90.0, idempotency_key="k"
)
PAYLOAD = {"request": "r", "call": "c", "digest": "a" * 64, "bytes": 9, "parts": 1}


class Shelf:
    """Payloads with the bytes of `body`. Keeping or loading one raises `trouble`, if it is set."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.body = b""

    async def keep(self, key: Key, body: bytes) -> Reference:
        if self.trouble is not None:
            raise self.trouble
        self.body = body
        return Reference(*key, "a" * 64, len(body), 1)

    async def load(self, reference: Reference) -> bytes:
        assert reference.key == KEY
        if self.trouble is not None:
            raise self.trouble
        return self.body

    async def drop(self, key: Key, digest: str = "") -> None: ...


class Desk:
    """The questions of a process, the view of its request, and the messages to its workers."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.shelf = Shelf()
        self.spent: list[Spent] = []
        self.kept: list[Key] = []
        self.outcome: Exception | None = None
        self.view: Any = SimpleNamespace(
            is_stopping=False, is_released=False, metadata={}, instrumentation=(), child=self._child
        )
        self.answering = questions.Answering(
            group,
            LargeBodies(self.shelf),
            lambda: 10_000,
            self._tell,
            view_of=lambda key: self.view if key == KEY else None,
            spent=lambda _key, spent: self.spent.append(spent),
            keeps=self.kept.append,
        )

    def _child(self, *_arguments: Any, **_options: Any) -> Any:
        async def run() -> None:
            if self.outcome is not None:
                raise self.outcome
            await anyio.sleep_forever()

        return SimpleNamespace(run=run, spent=Spent(usage=Usage(output_tokens=7)))

    async def _tell(self, worker: str, line: bytes) -> None:
        self.said.append((worker, orjson.loads(line[1:])))

    async def send(self, do: str = "ask", **changes: Any) -> list[str]:
        """Send a message, and return the kinds of the messages that the process sends for it."""
        before = len(self.said)
        content = {"prompt": {"role": "user", "content": "Why?"}}
        message = {"do": do, "id": "1", "request": "r", "call": "c", "worker": "w", "content": content, **changes}
        self.answering.hear(b"?" + orjson.dumps(message))
        await settle()
        return [each["do"] for _, each in self.said[before:]]


@asynccontextmanager
async def desk() -> AsyncGenerator[Desk]:
    async with anyio.create_task_group() as group:
        yield Desk(group)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("why", ["no call", "stopping", "released", "payload of another call"])
async def test_a_question_that_cannot_be_asked_now_is_unknown(why: str) -> None:
    async with desk() as here:
        here.view.is_stopping, here.view.is_released = why == "stopping", why == "released"
        changes: dict[str, Any] = {"call": "d"} if why == "no call" else {}
        if why == "payload of another call":
            changes = {"payload": {**PAYLOAD, "call": "d"}}
        assert await here.send(**changes) == ["unknown"]
        assert await here.send("stay", id="2") == ["unknown"]
        assert await here.send("stop", id="2") == []


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [
        (LimitReached("it has used up its limits"), "limit_reached", "it has used up its limits"),
        (ConfigurationError("no model"), "configuration_error", "no model"),
        (RuntimeError("a bug"), None, "the question could not be answered"),
    ],
)
async def test_a_question_that_fails_says_why_and_the_next_one_is_answered(
    outcome: Exception, code: str | None, error: str
) -> None:
    async with desk() as here:
        here.outcome = outcome
        assert await here.send() == ["runs", "failed"]
        assert (here.said[-1][1].get("code"), here.said[-1][1]["error"]) == (code, error)
        assert here.spent == [Spent(usage=Usage(output_tokens=7))]
        assert await here.send() == ["failed"], "it is said again, and not asked again"
        here.outcome = None
        assert await here.send(id="2") == ["runs"]


@pytest.mark.parametrize("trouble", [Unavailable("away"), Damaged("half of it"), None])
async def test_a_question_whose_payload_cannot_be_read_is_lost(trouble: Exception | None) -> None:
    async with desk() as here:
        here.shelf.trouble, here.shelf.body = trouble, b"{"
        assert await here.send(payload=PAYLOAD) == ["runs", "failed"]
        assert here.said[-1][1]["code"] == ("decode_error" if trouble is None else "not_running")
        assert here.kept == [KEY]


def test_without_the_library_for_schemas_only_the_worker_checks_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    checking = questions._SchemaOutput(schema)
    with pytest.raises(InvalidArguments, match=r"\$\.count"):
        checking.spec.validate({"count": "three"})
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    output = questions._SchemaOutput(schema)
    output.spec.validate({"count": "three"})
    assert output.spec.parameters == schema
    wrong: Any = ["three"]
    with pytest.raises(InvalidArguments):
        output.spec.validate(wrong)


async def test_a_question_ends_when_its_worker_is_silent_for_fifteen_seconds() -> None:
    async with desk() as here:
        assert await here.send() == ["runs"]
        for seconds in (14.9, 14.9):
            await advance(seconds)
            here.answering.look()
            assert await here.send("stay") == ["runs"]
        await advance(15.1)
        here.answering.look()
        assert here.spent == [Spent(usage=Usage(output_tokens=7))]
        assert await here.send("stay") == ["unknown"]


@pytest.mark.parametrize(
    "line",
    [
        b"?",
        b"?{",
        b"?[]",
        b'?{"do":"ask"}',
        b'?{"do":"sing","id":"1"}',
        pytest.param(b"?" + b'{"x":' * 9_999, id="deep"),
    ],
)
async def test_a_malformed_message_is_refused_on_both_sides(line: bytes) -> None:
    async with desk() as here:
        for hear in (here.answering.hear, Asker().asking.hear):
            with pytest.raises(DecodeError, match="a message about a question"):
                hear(line)
        with pytest.raises(DecodeError, match="the name of its worker is too long"):
            await here.send(worker="w" * 65)
        assert await here.send(worker="w" * 64) == ["runs"]


async def test_a_message_about_a_question_of_another_call_changes_nothing() -> None:
    async with desk() as here:
        assert await here.send() == ["runs"]
        assert await here.send("stop", call="d") == []
        assert await here.send("stay", call="d") == ["unknown"]
        assert await here.send("stay") == ["runs"]


# ------------------------------------------------------------------------------------------------- on the worker


class Asker:
    """A handler that asks, and the lines that its worker has sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.shelf = Shelf()
        self.max_bytes = 10_000
        self.asking = questions.Asking("w", self._tell, LargeBodies(self.shelf), lambda: self.max_bytes, ())
        self.found: list[Exception] = []

    def _tell(self, node: str, line: bytes) -> None:
        assert node == "n"
        self.sent.append(orjson.loads(line[1:]))

    async def ask(self, **options: Any) -> None:
        try:
            await self.asking.question(REQUESTED, lambda: "n", lambda record: record, None, "Why?", options).run()
        except (LimitReached, NotRunning, ConfigurationError) as exc:
            self.found.append(exc)

    def hear(self, do: str, **fields: Any) -> None:
        message = {"do": do, "id": self.sent[0]["id"], **fields}
        self.asking.hear(b"?" + orjson.dumps(message))

    @property
    def kinds(self) -> list[str]:
        return [each["do"] for each in self.sent]


async def asked(answer: Callable[[Asker], object]) -> tuple[Asker, Exception]:
    """Ask a question that is answered after a second, and return the asker and its error."""
    asker = Asker()
    async with anyio.create_task_group() as group:
        group.start_soon(asker.ask)
        await advance(1)
        answer(asker)
    [found] = asker.found
    return asker, found


@pytest.mark.parametrize(
    ("do", "fields", "kind", "words"),
    [
        ("unknown", {}, NotRunning, "does not wait for this call any more"),
        ("failed", {"code": "limit_reached", "error": "too much"}, LimitReached, "too much"),
        ("failed", {"code": "not_running", "error": "it closes"}, NotRunning, "it closes"),
        ("failed", {"code": "decode_error", "error": "odd"}, ConfigurationError, "odd"),
        ("done", {"content": {"odd": 1}}, NotRunning, "was lost"),
    ],
)
async def test_a_question_without_a_usable_answer_is_an_error_of_the_handler(
    do: str, fields: dict[str, Any], kind: type[Exception], words: str
) -> None:
    asker, found = await asked(lambda asker: asker.hear(do, **fields))
    assert type(found) is kind
    assert words in str(found)
    assert asker.kinds == ["ask", "stop"]


@pytest.mark.parametrize("trouble", [Unavailable("away"), Damaged("half of it"), None])
async def test_an_answer_whose_payload_cannot_be_read_is_lost(trouble: Exception | None) -> None:
    def answer(asker: Asker) -> None:
        asker.shelf.trouble, asker.shelf.body = trouble, b"1" * (MAX_BYTES + 1)
        asker.hear("done", payload=PAYLOAD)

    _, found = await asked(answer)
    assert isinstance(found, NotRunning)
    assert ("larger than" if trouble is None else str(trouble)) in str(found)


async def test_a_question_that_is_too_large_is_an_error_of_the_handler() -> None:
    asker = Asker()
    asker.max_bytes = 2_048
    await asker.ask(instructions="x" * (MAX_BYTES + 1))
    [found] = asker.found
    assert isinstance(found, LimitReached)
    assert str(found).startswith("a question to the model, or its answer, is larger than")
    assert asker.sent == []


async def test_a_handler_says_that_it_waits_and_gives_up_a_process_that_is_silent() -> None:
    asker = Asker()
    async with anyio.create_task_group() as group:
        group.start_soon(asker.ask)
        await advance(2.1)
        assert asker.kinds == ["ask", "ask"], "nobody has said yet that the question came"
        asker.hear("runs")
        await advance(4)
        assert asker.kinds == ["ask", "ask", "stay", "stay"]
        began = anyio.current_time()
    [found] = asker.found
    assert isinstance(found, NotRunning)
    assert "does not answer" in str(found)
    assert asker.kinds[-1] == "stop"
    assert 11 <= anyio.current_time() - began <= 13


async def test_a_message_about_no_question_is_passed_over() -> None:
    asker = Asker()
    asker.asking.hear(b"?" + msgspec.json.encode({"do": "done", "id": "x"}))
    assert asker.sent == []
