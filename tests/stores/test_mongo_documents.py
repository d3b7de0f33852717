"""Conversations in MongoDB as other applications see them: what they write is read, and what toolbus writes they read.

The ticket assistant's documents and its two ways of reading them are those of its own description.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, cast
from uuid import uuid4

import orjson
import pytest
from bson import Decimal128, ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection

from support.mongo_server import MongoServer
from support.transcript_strategies import histories
from toolbus import Runtime
from toolbus.core.transcript import validate
from toolbus.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage, to_openai
from toolbus.stores._encoding import turn_of
from toolbus.stores.mongo import MessageFields, MongoStore, _connection, _documents
from toolbus.stores.mongo._connection import Names, Server, ServerConnection
from toolbus.stores.mongo._conversations import _messages, _pattern, _with_calls, conversations, history
from toolbus.stores.mongo._documents import _is_harmless, documents_of, sort_key_of
from toolbus.stores.mongo._turns import remember
from toolbus.testing import ScriptedProvider, text

NAMES = Names("sessionId", "sender", "content", "messageType", "timestamp", "data", "messages", "toolbus_")
NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)
CALL = {"toolCallId": "call1", "toolName": "get_tickets", "args": {"project": "X"}}
RESULT = {"toolCallId": "call1", "toolName": "get_tickets", "result": [{"id": "T1", "summary": "Ticket 1"}]}


def said(sender: Any, content: Any, minute: int = 0, **more: Any) -> dict[str, Any]:
    """A document as the ticket assistant writes it."""
    at = NOON + timedelta(minutes=minute)
    return {"_id": ObjectId(), "sessionId": "s", "sender": sender, "content": content, "timestamp": at, **more}


def read(*documents: dict[str, Any]) -> list[Message]:
    """The messages of documents, in the order in which they are given."""

    class Offline:
        names = NAMES

    return _messages(cast("ServerConnection", Offline()), documents)


def outline(messages: list[Message]) -> list[tuple[str, Any]]:
    """Roles and texts; of calls their names and ids."""
    return [
        ("calls", [(call.name, call.call_id) for call in each.tool_calls])
        if isinstance(each, AssistantMessage) and each.tool_calls
        else (each.role, each.content if isinstance(each, (UserMessage, ToolMessage)) else each.text)
        for each in messages
    ]


# --------------------------------------------------------------------------------------- what others have written


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_ticket_assistants_documents_become_the_history_that_it_asks_for(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    url, name = mongo_database
    session = ObjectId()
    final = "Here is ticket T1: Ticket 1 summary..."
    documents = [
        said("user", "Now show me tickets for project Y.", 2, messageType="text"),
        said("assistant", final, 1, messageType="tool_calls", data={"toolCalls": [CALL], "toolResults": [RESULT]}),
        said("user", "Show me tickets for project X.", 0, messageType="text", __v=0, userId=ObjectId()),
        said("system", "The session has begun.", 0),
    ]
    with MongoClient[dict[str, Any]](url) as client:
        client[name]["messages"].insert_many([{**each, "sessionId": session} for each in documents])
    store = MongoStore(url, name)
    try:
        found = await store.history(str(session))
        [listed] = await store.conversations(search="TICKET 1 summ")
        assert await store.conversations(search="Ticket 2") == []
    finally:
        await store.aclose()
    validate(found)
    assert to_openai(found) == [
        {"role": "user", "content": "Show me tickets for project X."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call1", "type": "function", "function": {"name": "get_tickets", "arguments": '{"project":"X"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call1", "content": '[{"id":"T1","summary":"Ticket 1"}]'},
        {"role": "assistant", "content": final},
        {"role": "user", "content": "Now show me tickets for project Y."},
    ]
    assert (listed.conversation_id, listed.title, listed.message_count) == (str(session), documents[2]["content"], 4)
    assert (listed.started_at, listed.updated_at) == (NOON.timestamp(), NOON.timestamp() + 120)


def test_calls_results_and_the_answer_may_be_documents_of_their_own() -> None:
    found = read(
        said("user", "Tickets?"),
        said("assistant", "I look.", data={"toolCalls": [CALL]}, messageType="tool_calls"),
        said("tool", None, data={"toolResults": [RESULT]}, messageType="tool_results"),
        said("assistant", "T1.", data={}, messageType="text"),
    )
    validate(found)
    result = '[{"id":"T1","summary":"Ticket 1"}]'
    assert outline(found) == [
        ("user", "Tickets?"),
        ("calls", [("get_tickets", "call1")]),
        ("tool", result),
        ("assistant", "T1."),
    ]
    assert cast("AssistantMessage", found[1]).text == "I look."


def called(*ids: str, **more: Any) -> dict[str, Any]:
    return {"toolCalls": [{**CALL, "toolCallId": each} for each in ids], **more}


def results(*given: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"toolCallId": call_id, "toolName": "get_tickets", "result": result} for call_id, result in given]


@pytest.mark.parametrize(
    ("data", "content", "expected"),
    [
        # results in another order, of every type of JSON
        (
            called("a", "b", "c", toolResults=results(("c", None), ("b", 0.5), ("a", "text"))),
            "Done.",
            [("calls", "abc"), ("tool", "text"), ("tool", "0.5"), ("tool", "null"), ("assistant", "Done.")],
        ),
        # one is missing
        (
            called("a", "b", toolResults=results(("b", True))),
            None,
            [("calls", "ab"), ("tool", "interrupted"), ("tool", "true")],
        ),
        # nobody knows of the call
        ({"toolResults": results(("z", {"x": []}))}, "Hm.", [("calls", "z"), ("tool", '{"x":[]}'), ("assistant", "Hm.")]),
        # no result at all: the text came before the calls
        (called("a"), "I look.", [("calls", "a"), ("tool", "interrupted")]),
        # results without ids go by name
        (called("a", toolResults=[{"toolName": "get_tickets", "result": "by name"}]), "", [("calls", "a"), ("tool", "by name")]),
        # what is no result is passed over
        (called("a", toolResults=[None, {}, 7, *results(("a", "text"))]), "", [("calls", "a"), ("tool", "text")]),
        # nothing that could be told
        ({"toolCalls": [None, 3, {}, {"toolCallId": "x"}], "toolResults": "none"}, "", []),
        ({"toolCalls": []}, "Only text.", [("assistant", "Only text.")]),
        ("no data", {"text": "in an object"}, [("assistant", "in an object")]),
        (None, [{"type": "text", "text": "in"}, {"type": "text", "text": "parts"}], [("assistant", "in\nparts")]),
        (None, [{"text": "seen"}, {"url": "a"}], [("assistant", '[{"text":"seen"},{"url":"a"}]')]),
        (None, 42, [("assistant", "42")]),
    ],
)  # fmt: skip
def test_documents_of_odd_shapes_become_what_they_say(data: Any, content: Any, expected: list[tuple[str, str]]) -> None:
    found = read(said("user", "Tickets?"), said("assistant", content, data=data), said("user", "And?"))
    validate(found)
    came = [
        (role, "".join(call_id for _, call_id in text)) if role == "calls" else (role, text)
        for role, text in outline(found)[1:-1]
    ]
    assert [(role, "interrupted" if '"interrupted"' in text else text) for role, text in came] == expected


def test_a_result_is_an_error_where_its_document_says_so_and_nowhere_else() -> None:
    given = [
        {**each, **more}
        for each, more in zip(
            results(("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")),
            ({"isError": True}, {"isError": False}, {}, {"isError": "yes"}),
            strict=True,
        )
    ]
    found = read(said("user", "?"), said("assistant", None, data=called("a", "b", "c", "d", toolResults=given)))
    assert [each.is_error for each in found if isinstance(each, ToolMessage)] == [True, False, False, False]


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of this process is not that of the server."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("zone", [UTC, None], ids=["aware", "naive"])
def test_the_servers_clock_is_read_every_half_minute_and_never_goes_back(
    zone: Any, monkeypatch: pytest.MonkeyPatch, tokyo: None
) -> None:
    clock, asked = [1_000.0], list[float]()

    class Client:
        """A server whose clock is `ahead` seconds ahead, and that takes `trip` seconds to answer."""

        ahead, trip = 5_000.0, 0.2
        slow = [0.0, 0.4]  # of the first answers, what is added on the way back

        @property
        def admin(self) -> Any:
            return self

        def command(self, _name: str) -> dict[str, Any]:
            asked.append(clock[0])
            local = datetime.fromtimestamp(clock[0] + self.trip / 2 + self.ahead, UTC).replace(tzinfo=zone)
            clock[0] += self.trip + (self.slow.pop() if self.slow else 0.0)
            return {"localTime": local}

    monkeypatch.setattr(_connection, "monotonic", lambda: clock[0])
    server, client = Server("", "", "", NAMES, syncs=False, timeout_seconds=1.0), Client()
    now: Any = server.now
    assert now(client) == 6_001.0  # by the answer that took the shortest time
    clock[0] = 1_030.0
    assert now(client) == 6_030.0
    assert asked == pytest.approx([1_000.0, 1_000.6, 1_000.8])
    client.ahead, client.trip = 5_001.0, 0.3  # it takes too long to be exact
    clock[0] = 1_031.0
    assert now(client) == 6_031.3
    client.trip = 0.2
    assert now(client) == 6_032.5
    assert asked[3:] == [1_031.0, 1_031.3]
    client.ahead = 4_000.0
    clock[0] = 1_099.0
    assert now(client) == 6_032.5


def test_a_result_that_no_call_is_left_for_gets_a_call() -> None:
    call = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="1"),))
    results = [ToolMessage(call_id="1", name="f", content=each) for each in ("a", "b")]
    assert outline(_with_calls([call, *results])) == [
        ("calls", [("f", "1")]),
        ("tool", "a"),
        ("calls", [("f", "1")]),
        ("tool", "b"),
    ]


def test_results_that_are_too_long_together_are_cut_for_other_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_documents, "_SEEN_CHARS", 3_500)
    names = ("a", "b", "c")
    asked = AssistantMessage(tool_calls=tuple(ToolCall(name="f", call_id=each) for each in names))
    answers = [ToolMessage(call_id=each, name="f", content=each * 1_700) for each in names]
    [(document, _, _)] = documents_of(NAMES, "s", [asked, *answers], turn="t", at_milliseconds=0)
    assert [each["result"] for each in document["data"]["toolResults"]] == [
        "a" * 1_700,
        "b" * 1_700,
        "c" * 1_000 + " ... (1700 characters; toolbus has the whole text)",
    ]


def test_values_are_stored_as_values_up_to_the_characters_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    value = '{"all":"' + "x" * 90 + '"}'
    monkeypatch.setattr(_documents, "_PARSED_CHARS", 2 * len(value))
    asked = AssistantMessage(tool_calls=tuple(ToolCall(name="f", call_id=each, arguments=value) for each in "abc"))
    [(document, _, _)] = documents_of(NAMES, "s", [asked], turn="t", at_milliseconds=0)
    assert [each["args"] for each in document["data"]["toolCalls"]] == [orjson.loads(value)] * 2 + [value]


def test_names_are_cut_like_other_texts_and_short_texts_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_documents, "_SEEN_CHARS", 3_500)
    asked = AssistantMessage(tool_calls=tuple(ToolCall(name=each * 3_000, call_id=each) for each in "fg"))
    [(document, _, _)] = documents_of(NAMES, "s", [asked], turn="t", at_milliseconds=0)
    first, second = document["data"]["toolCalls"]
    assert first == {"toolCallId": "f", "toolName": "f" * 3_000, "args": {}}
    cut = "g" * 1_000 + " ... (3000 characters; toolbus has the whole text)"
    assert second == {"toolCallId": "g", "toolName": cut, "args": {}}


def test_values_are_stored_as_they_are_up_to_fifty_levels() -> None:
    value: Any = "deep"
    for level in range(52):
        assert _is_harmless(value) == (level <= 50), level
        value = [value] if level % 2 else {"a": value}


def test_values_that_json_has_not_are_reported_in_words() -> None:
    own_id, at = ObjectId(), NOON
    value = {"id": own_id, "at": at, "far": DatetimeMS(2**60), "price": Decimal128("1.50"), "data": b"\0\1"}
    found = read(said("user", "?"), said("assistant", None, data=called("a", toolResults=results(("a", value)))))
    reported = json.loads(cast("ToolMessage", found[-1]).content)
    assert (reported["id"], reported["price"], reported["far"], reported["data"]) == (
        str(own_id),
        "1.50",
        2**60,
        "0001",
    )
    assert datetime.fromisoformat(reported["at"]) == at


def test_only_the_user_the_assistant_and_tools_are_heard() -> None:
    others = [said(sender, "Do as I say.") for sender in ("system", "moderator", None, 7, "User", "")]
    assert outline(read(said("user", "Hi."), *others, said("assistant", "Hello."))) == [
        ("user", "Hi."),
        ("assistant", "Hello."),
    ]


def test_documents_are_sorted_by_their_time_however_it_is_written_and_then_by_their_id() -> None:
    early = ObjectId.from_datetime(NOON - timedelta(hours=3))
    times: list[Any] = ["no time", NOON - timedelta(hours=1), NOON.replace(tzinfo=None), NOON.timestamp() * 1_000 + 1]
    times += ["2025-06-01T12:00:00.002Z", DatetimeMS(int(NOON.timestamp() * 1_000) + 3), True, float("nan")]
    given_documents = [said("user", f"{number}") for number, _ in enumerate(times)]
    given_documents = [{**each, "timestamp": at} for each, at in zip(given_documents, times, strict=True)]
    given_documents += [{"_id": early, "sender": "user", "content": "an old id", "sessionId": "s"}]
    given_documents += [{**given_documents[2], "_id": ObjectId(b"\xff" * 12), "content": "the same time"}]
    found = sorted(given_documents, key=lambda each: sort_key_of(NAMES, each))
    assert [each["content"] for each in found][3:] == ["an old id", "1", "2", "the same time", "3", "4", "5"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.just(ObjectId(b"x" * 12)),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(["text", "toolName", "x"]), each, max_size=3),
    max_leaves=4,
)  # fmt: skip
ids = st.sampled_from(["a", "b", "", 3]) | st.none()
items = json_values | st.fixed_dictionaries(
    {},
    optional={"toolCallId": ids, "toolName": st.sampled_from(["t", "u"]), "args": json_values, "result": json_values},
)
datas = json_values | st.fixed_dictionaries(
    {}, optional={"toolCalls": st.lists(items, max_size=3), "toolResults": st.lists(items, max_size=3) | json_values}
)
documents = st.fixed_dictionaries(
    {"_id": st.uuids().map(lambda each: ObjectId(each.bytes[:12]))},
    optional={
        "sender": st.sampled_from(["user", "assistant", "assistant", "tool", "system", "bot"]) | json_values,
        "content": st.text(max_size=5) | json_values,
        "data": datas,
        "timestamp": json_values | st.just(NOON),
    },
)


@given(st.lists(documents, max_size=8))
def test_whatever_others_have_written_a_valid_transcript_comes_out(given_documents: list[dict[str, Any]]) -> None:
    found = read(*given_documents)
    if given_documents:
        validate(found)


# ----------------------------------------------------------------------------------------- what toolbus writes


@pytest.fixture(scope="module")
def connection(mongo: MongoServer) -> Iterator[ServerConnection]:
    with mongo.database() as (url, name):
        server = Server(url, "the server", name, NAMES, syncs=False, timeout_seconds=30.0)
        made = ServerConnection(server, monotonic() + 30)
        yield made
        made.close()


def until_later(connection: ServerConnection) -> ServerConnection:
    connection.deadline = monotonic() + 30
    return connection


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(histories, min_size=1, max_size=3))
def test_all_messages_come_back_as_they_were(connection: ServerConnection, turns: list[list[Message]]) -> None:
    conversation_id = uuid4().hex
    for number, each in enumerate(turns):
        remember(until_later(connection), turn_of(conversation_id, each), f"{conversation_id} {number}")
    assert history(connection, conversation_id) == [message for each in turns for message in each]


def test_numbers_and_names_that_documents_have_not_come_back_as_they_were(connection: ServerConnection) -> None:
    numbers = "[0.1, 1e300, -0.0, 100.0, 9007199254740993, 9223372036854775807, 9223372036854775808, 1E2]"
    texts = [
        numbers,
        f'{{"a.b": {numbers}}}',
        '{"": 1}',
        "[" * 60 + "]" * 60,
        '"\\u0000"',
        "{}",
        "",
        '{"a": 1, "a": 2}',
    ]
    calls = tuple(ToolCall(name="t", arguments=text, call_id=f"c{n}") for n, text in enumerate(texts))
    reported = [ToolMessage(call_id=f"c{n}", name="t", content=text) for n, text in enumerate(texts)]
    messages: list[Message] = [UserMessage(content="?"), AssistantMessage(tool_calls=calls), *reported]
    remember(until_later(connection), turn_of("numbers", messages), "numbers")
    assert history(connection, "numbers") == messages


TURN: list[Message] = [
    UserMessage(content="Show me tickets for project X."),
    AssistantMessage(
        tool_calls=(
            ToolCall(name="get_tickets", arguments='{"project":"X"}', call_id="call1"),
            ToolCall(name="odd", arguments='{"$where":1}', call_id="call2"),
            ToolCall(name="odd", arguments="not JSON", call_id="call3"),
        ),
        reasoning="They want X.",
        vendor_data={"v": 1},
    ),
    ToolMessage(call_id="call1", name="get_tickets", content='[{"id":"T1"}]'),
    ToolMessage(call_id="call2", name="odd", content="no such thing", is_error=True),
    ToolMessage(call_id="call3", name="odd", content="x" * 3_000_000),
    AssistantMessage(text="Here is ticket T1."),
]


def written(connection: ServerConnection, conversation_id: str) -> list[dict[str, Any]]:
    remember(until_later(connection), turn_of(conversation_id, TURN), f"turn of {conversation_id}")
    found = connection.messages.find({"sessionId": conversation_id})
    return sorted(found, key=lambda each: (each["timestamp"], each["_id"]))


def test_the_ticket_assistant_reads_what_toolbus_writes(connection: ServerConnection) -> None:
    found = written(connection, "as it reads")
    # Its own reading: only texts of the two.
    plain = [each for each in found if each["sender"] in ("user", "assistant") and isinstance(each["content"], str)]
    assert [(each["sender"], each["content"]) for each in plain] == [
        ("user", "Show me tickets for project X."),
        ("assistant", "Here is ticket T1."),
    ]
    # Ids of documents have their times, as the ids that the server's drivers make.
    assert [each["_id"].generation_time for each in found] == [
        each["timestamp"].replace(microsecond=0) for each in found
    ]
    # The reading that it recommends: calls and their results stand in one document.
    [asking] = [each for each in found if "toolCalls" in each["data"]]
    assert (asking["sender"], asking["content"], asking["messageType"]) == ("assistant", None, "tool_calls")
    assert asking["data"]["toolCalls"] == [
        {"toolCallId": "call1", "toolName": "get_tickets", "args": {"project": "X"}},
        {"toolCallId": "call2", "toolName": "odd", "args": '{"$where":1}'},
        {"toolCallId": "call3", "toolName": "odd", "args": "not JSON"},
    ]
    first, second, third = asking["data"]["toolResults"]
    assert first == {"toolCallId": "call1", "toolName": "get_tickets", "result": [{"id": "T1"}]}
    assert second == {"toolCallId": "call2", "toolName": "odd", "result": "no such thing", "isError": True}
    assert "3000000 characters" in third["result"]
    assert history(connection, "as it reads") == TURN


def test_a_text_past_the_end_of_its_conversation_is_not_found(connection: ServerConnection) -> None:
    word = uuid4().hex
    remember(until_later(connection), turn_of(word, [UserMessage(content=word), AssistantMessage(text="Yes.")]), word)
    assert [each.conversation_id for each in conversations(connection, word, "", 1)] == [word]
    # A turn whose writer died before it was whole has such documents.
    connection.messages.update_one({"sessionId": word, "content": word}, {"$set": {"data.toolbus.position": 2}})
    assert conversations(connection, word, "", 1) == []


@pytest.mark.parametrize("change", [{"position": 99}, {"generation": "of a deleted one"}])
def test_messages_that_are_not_in_their_conversation_are_not_in_its_history(
    connection: ServerConnection, change: dict[str, Any]
) -> None:
    own, word = written(connection, f"whole {change}"), uuid4().hex
    left = {**own[0], "_id": ObjectId(), "content": word}
    left["data"] = {"toolbus": {**own[0]["data"]["toolbus"], "turn": word, **change}}
    connection.messages.insert_one(left)
    assert history(connection, f"whole {change}") == TURN


def test_what_another_application_edits_or_deletes_counts(connection: ServerConnection) -> None:
    own = written(connection, "edited")
    messages: Collection[dict[str, Any]] = connection.messages
    edit = {"$set": {"data.toolResults": [{"toolCallId": "call1", "toolName": "get_tickets", "result": "withheld"}]}}
    messages.update_one({"_id": own[1]["_id"]}, edit)
    found = [*history(connection, "edited")]
    validate(found)
    assert outline(found)[1:3] == [("calls", [("get_tickets", "call1"), ("odd", "call2"), ("odd", "call3")]), ("tool", "withheld")]  # fmt: skip
    assert found[-1] == TURN[-1]
    messages.delete_one({"_id": own[1]["_id"]})
    assert history(connection, "edited") == [TURN[0], TURN[-1]]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_both_may_write_in_one_conversation(mongo_database: tuple[str, str], anyio_backend: str) -> None:
    url, name = mongo_database
    session = str(ObjectId())
    store = MongoStore(url, name, fields=MessageFields(session="chat", content="body"))
    try:
        with MongoClient[dict[str, Any]](url) as client:
            theirs = client[name]["messages"]

            def says(sender: str, text: str, **more: Any) -> None:
                theirs.insert_one(
                    {"chat": ObjectId(session), "sender": sender, "body": text, "timestamp": now(), **more}
                )

            says("user", "One?")
            says("assistant", "First.")
            await store.remember(session, [UserMessage(content="Two?"), AssistantMessage(text="Second.")])
            says("user", "Three?")
            assert {each["chat"] for each in theirs.find()} == {ObjectId(session)}
        texts = [text for _, text in outline([*await store.history(session)])]
        assert texts == ["One?", "First.", "Two?", "Second.", "Three?"]
        [listed] = await store.conversations(search="two")
        assert (listed.conversation_id, listed.message_count, listed.title) == (session, 5, "Two?")
        pruned = await store.prune(before=listed.updated_at + 60, conversations=True)
        assert pruned.conversations == 0
        assert await store.forget(session)
        assert await store.history(session) == []
        assert await store.conversations() == []
    finally:
        await store.aclose()


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_sessions_with_numbers_are_listed_by_ids_that_find_them_and_go_on_with_the_same_numbers(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    url, name = mongo_database
    sessions: list[Any] = [7, 1_732_710_000_000.0, 2.5, True, b"bytes", {"a": 1}, None]
    store = MongoStore(url, name)
    try:
        with MongoClient[dict[str, Any]](url) as client:
            theirs = client[name]["messages"]
            theirs.insert_many(
                [{**said("user", f"Word {at}", at), "sessionId": each} for at, each in enumerate(sessions)]
            )
            found = [each.conversation_id for each in await store.conversations()]
            assert found == ["1732710000000", "7"]
            assert [each.conversation_id for each in await store.conversations(search="WORD")] == found
            for conversation_id, session in zip(found, (sessions[1], sessions[0]), strict=True):
                await store.remember(conversation_id, TURN)
                assert len(await store.history(conversation_id)) == len(TURN) + 1
                assert theirs.count_documents({"sessionId": session}) > 1
                assert theirs.count_documents({"sessionId": conversation_id}) == 0
                assert await store.forget(conversation_id)
            assert theirs.count_documents({}) == 5
    finally:
        await store.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_request_goes_on_where_the_ticket_assistant_left_off(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    url, name = mongo_database
    asked = said("user", "Show me tickets for project X.", messageType="text")
    answered = said("assistant", "T1.", 1, data={"toolCalls": [CALL], "toolResults": [RESULT]})
    with MongoClient[dict[str, Any]](url) as client:
        client[name]["messages"].insert_many([asked, answered])
    script = ScriptedProvider([text("There are none.")])
    async with Runtime(script, store=MongoStore(url, name)) as runtime:
        result = await runtime.run("And for project Y?", conversation_id="s")
    assert result.text == "There are none."
    assert [each.role for each in script.requests[0].messages] == ["user", "assistant", "tool", "assistant", "user"]
    with MongoClient[dict[str, Any]](url) as client:
        texts = [each["content"] for each in client[name]["messages"].find({"sessionId": "s"}).sort("timestamp", 1)]
    assert texts == ["Show me tickets for project X.", "T1.", "And for project Y?", "There are none."]


@pytest.mark.parametrize("each", [*map(chr, range(128)), "é", "ß"])
def test_a_search_finds_each_character_and_only_letters_of_ascii_in_any_case(each: str) -> None:
    found = re.compile(_pattern(each)).fullmatch
    among = {*map(chr, range(128)), "é", "É", "ß"}
    assert {other for other in among if found(other)} == ({each.lower(), each.upper()} if each.isascii() else {each})
