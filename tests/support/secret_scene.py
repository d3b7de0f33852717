"""A conversation of two turns with secrets from every source, and everything that leaves it, as bytes.

Play it with any store. Then `told()` and the store's files must contain no `leaks`, and `delivered` is what handlers
received. The values contain characters that JSON, URLs, HTML and `repr` escape.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import orjson
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from toolbus import EventBus, Interceptor, Runtime, Tool, ToolContext, ToolError, ToolResult, tool
from toolbus.events import ApprovalRequested, Artifact, Event, ToolCallStarted, encode
from toolbus.messages import ToolMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.secrets import REFERENCE
from toolbus.storage import Store
from toolbus.testing import ScriptedProvider, calls, text

TOKEN = 'tok"CANARY\\1/7f3a+é<&'  # a login returns it
SESSION = "CANARY-2-session-91c2"  # it is inside the result of the login
KEY_BYTES = "CANARY-3-bytes 55d1"
INVENTED = "CANARY-4 Pa$$'word"  # the model invents it
TYPED = "CANARY-5-typed-by-a-person"
PROMPTED = "CANARY-6-in-the-prompt ü"  # the application names it for one request
CONFIGURED = "CANARY-7-of-the-runtime"  # the application names it for all requests
PIN = 4815162342  # this secret is a number
WORKED = "CANARY-8-from-a-process"
OF_A_CHILD = "CANARY-9-from-a-sub-request"
CANARIES = (TOKEN, SESSION, KEY_BYTES, INVENTED, TYPED, PROMPTED, CONFIGURED, str(PIN), WORKED, OF_A_CHILD)

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{8,}")


def leaks(data: bytes) -> list[str]:
    """The secrets that `data` reveals: plain, escaped, or encoded, at any offset of an encoded text."""
    read = [data, data.replace(b'\\"', b'"').replace(b"\\\\", b"\\"), unquote_to_bytes(data.replace(b"+", b" "))]
    read.append(html.unescape(data.decode("utf-8", "replace")).encode())
    for run in _BASE64.findall(data):
        whole = run.translate(bytes.maketrans(b"-_", b"+/"))
        read += [base64.b64decode(whole[start:][: (len(whole) - start) // 4 * 4]) for start in range(4)]
    found: list[str] = []
    for canary in CANARIES:
        once = [json.dumps(canary)[1:-1], json.dumps(canary, ensure_ascii=False)[1:-1]]
        forms = [canary, *once, *(json.dumps(each)[1:-1] for each in once), repr(canary)[1:-1], quote(canary)]
        wanted = [form.encode() for form in forms]
        if any(form in each for form in wanted for each in read) or canary.encode().hex().encode() in data.lower():
            found.append(canary)
    return found


@dataclass
class Cookie:
    name: str
    value: SecretStr


class Login(BaseModel):
    """The result of a login: secrets at several depths."""

    token: SecretStr
    cookies: list[Cookie]
    key: SecretBytes
    pin: Secret[int]
    hint: str


class Credentials(BaseModel):
    user: str
    token: SecretStr
    more: dict[str, list[SecretStr]] = {}


@tool(isolation="process")
def work(token: SecretStr) -> dict[str, Any]:
    """Work in another process, on the unmasked value."""
    return {"length": len(token.get_secret_value()), "made": SecretStr(WORKED), "again": f"<{WORKED}>"}


class SecretScene:
    """The scene. `play` it once; then `told()` is the output by destination, and `delivered` the values by tool."""

    def __init__(self, store: Store | None = None) -> None:
        self.delivered: dict[str, list[Any]] = {}
        self.texts: list[str] = []
        self.pieces: list[list[str]] = []
        self._heard: list[Event] = []
        self._encoded: list[bytes] = []
        self._logged: list[str] = []
        self._seen: list[str] = []
        self._tries = 0
        self.bus = EventBus()
        self.bus.connect(Event, lambda event: self._encoded.append(encode(event)))
        self.bus.connect(Event, self._heard.append)
        self.bus.connect(ApprovalRequested, self._approve)
        self.bus.connect(ToolCallStarted, self._steer)
        self.runtime = Runtime(
            self._model(),
            tools=[*self._tools(), work],
            bus=self.bus,
            store=store,
            secrets=[CONFIGURED],
            instructions=f"The key is {CONFIGURED}.",
            metadata={"tenant": CONFIGURED},
        )

    # --------------------------------------------------------------------------------------------- the tools

    def _got(self, name: str, *values: Any) -> None:
        self.delivered.setdefault(name, []).extend(values)

    def _tools(self) -> list[Tool]:
        got = self._got

        @tool
        async def login(user: str, password: SecretStr, note: str, context: ToolContext[None]) -> ToolResult:
            """Log in."""
            got("login", password.get_secret_value(), note)
            await context.progress(f"with {password.get_secret_value()}")
            data = Login(
                token=SecretStr(TOKEN),
                cookies=[Cookie("session", SecretStr(SESSION))],
                key=SecretBytes(KEY_BYTES.encode()),
                pin=Secret(PIN),
                hint=f"the pin is {PIN}, and Basic {base64.b64encode(f'{user}:{TOKEN}'.encode()).decode()}",
            )
            kept = Artifact(name="session.json", content=json.dumps({"token": TOKEN, "pin": PIN}))
            return ToolResult(message=f"welcome; {quote(TOKEN)}", data=data, artifacts=[kept], affected=[SESSION])

        @tool
        def fetch(credentials: Credentials, headers: dict[str, SecretStr], query: str) -> str:
            """Fetch something, in a thread."""
            got("fetch", credentials.token.get_secret_value(), credentials.more["all"][0].get_secret_value())
            got("fetch", headers["Authorization"].get_secret_value(), query)
            return f"fetched with {credentials.token.get_secret_value()!r} for {query}"

        @tool(retries=1)
        async def flaky(token: SecretStr) -> str:
            """Fail with an error and a cause."""
            got("flaky", token.get_secret_value())
            raise RuntimeError(f"{token.get_secret_value()} was refused") from ValueError(token.get_secret_value())

        @tool
        async def refuse(token: SecretStr) -> str:
            """Refuse."""
            raise ToolError(f"not {token.get_secret_value()}, in hexadecimal {token.get_secret_value().encode().hex()}")

        @tool(needs_approval=True)
        async def change(password: SecretStr) -> SecretStr:
            """Change the password, if a person agrees."""
            got("change", password.get_secret_value())
            return password

        @tool(cache_seconds=60)
        async def lookup(token: SecretStr) -> dict[str, Any]:
            """Look something up, once."""
            got("lookup", token.get_secret_value())
            return {"owner": SecretStr(SESSION)}

        @tool
        async def find(token: SecretStr) -> SecretStr:
            """Find, for a sub-request."""
            got("find", token.get_secret_value())
            return SecretStr(OF_A_CHILD)

        @tool
        async def delegate(token: SecretStr, context: ToolContext[None]) -> str:
            """Let a sub-request with its own model do it."""

            def tell(request: ModelRequest) -> Step:
                return text(f"It is {_references(request)[-1]}, not {OF_A_CHILD}.", 50)

            script = [calls(("find", {"token": token.get_secret_value()})), tell]
            result = await context.ask(
                f"Use {token.get_secret_value()}.", provider=ScriptedProvider(script), tools=[find]
            )
            return result.text

        def enter(pin: int, name: str) -> str:
            got("enter", (pin, name))
            return "in"

        schema = {
            "type": "object",
            "properties": {"pin": {"type": "integer", "writeOnly": True}, "name": {"type": "string"}},
        }
        ready = Tool("enter", "Enter a pin.", schema, enter)
        return [login, fetch, flaky, refuse, change, lookup, delegate, ready]

    # ------------------------------------------------------------------------------------------- the people

    def _approve(self, question: ApprovalRequested) -> None:
        self._got("seen by a person", json.dumps(question.arguments))
        self.bus.publish(question.decided(approved=True, arguments={"password": TYPED}, reason=f"use {TOKEN}"))

    def _steer(self, event: ToolCallStarted) -> None:
        if event.name == "refuse" and (session := self.runtime.session(event.request_id)) is not None:
            session.steer(f"and think of {TOKEN} and {PROMPTED}")

    # -------------------------------------------------------------------------------------------- the model

    def _model(self) -> ScriptedProvider:
        def step(make: Step | Callable[[ModelRequest], Step]) -> Callable[[ModelRequest], Step]:
            def asked(request: ModelRequest) -> Step:
                self._seen.append(repr(list(request.messages)))
                return make(request) if callable(make) else make

            return asked

        said = f"I have {PROMPTED}, {TOKEN} and {TOKEN[:9]}... no more."
        arguments = {"user": "ada", "password": INVENTED, "note": PROMPTED}
        return ScriptedProvider(
            [
                step(calls(("login", arguments), text=f"With {PROMPTED}.", reasoning=f"it is {PROMPTED}")),
                step(self._use),
                step(text(said, list(said))),
                step(self._use_again),
                step(text(f"Done with {TOKEN} and {WORKED}.", 40)),
            ]
        )

    def _use(self, request: ModelRequest) -> Step:
        token, _, _, pin = (_data(request)[name] for name in ("token", "cookies", "key", "pin"))
        credentials = {"user": "ada", "token": token, "more": {"all": [_data(request)["key"]]}}
        return calls(
            ("fetch", {"credentials": credentials, "headers": {"Authorization": f"Bearer {token}"}, "query": token}),
            ("enter", {"pin": pin, "name": "ada"}),
            ("enter", {"pin": PIN + 1, "name": "made up"}),
            ("work", {"token": token}),
            ("login", '{"user": "ada", "password": "' + INVENTED),  # the arguments are cut off
            ("login", {"user": "ada", "pasword": INVENTED, "note": ""}),
            ("enter", '{"pin": 1, "name": "' + "".join(f"\\u{ord(each):04x}" for each in SESSION) + '"}'),
        )

    def _use_again(self, request: ModelRequest) -> Step:
        token = next(_data(request, place)["token"] for place in range(len(request.messages)) if _data(request, place))
        return calls(
            *[(name, {"token": token}) for name in ("flaky", "refuse", "lookup", "lookup", "delegate")],
            ("change", {"password": token}),
            ("refuse", {"token": "secret:0123456789abcdef"}),
            (TOKEN, {}),
        )

    # ------------------------------------------------------------------------------------------------ playing

    async def play(self) -> None:
        """Play both turns."""
        logger = logging.getLogger("toolbus")
        handler, level = _Handler(self._logged), logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            async with self.runtime as runtime:
                for prompt, secrets in ((f"I am ada: {PROMPTED}", [SecretStr(PROMPTED)]), (f"Again, {TOKEN}", None)):
                    session = runtime.start(
                        prompt, conversation_id="ada", secrets=secrets, interceptors=[Interceptor()]
                    )
                    pieces = [piece async for piece in session.text()]
                    result = await session.result()
                    assert result.ok, result.timeline()
                    self.texts.append(result.text)
                    self.pieces.append(pieces)
                    self._seen += ["".join(pieces), repr(result), result.timeline(), str(result.artifacts)]
                    self._seen += [
                        f"{each.arguments} {each.content} {each.data} {each.error}" for each in result.tool_calls
                    ]
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    def reported(self) -> dict[str, bytes]:
        """All output: events, the log, and what callers and the model received."""
        return {
            "events": b"\n".join(self._encoded),
            "the log": "\n".join(self._logged).encode(),
            "callers and the model": "\n".join(self._seen).encode(),
        }

    def kinds(self) -> set[str]:
        """The types of the published events."""
        return {event.type for event in self._heard}


class _Handler(logging.Handler):
    """A log handler that writes everything in a record, with tracebacks."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._lines += [self.format(record), repr(record.__dict__)]


def entry_bytes(entries: list[Any]) -> bytes:
    """The entries of a journal, as bytes."""
    return b"\n".join(orjson.dumps(each, default=str) for each in entries)


def _data(request: ModelRequest, place: int = -1) -> dict[str, Any]:
    message = request.messages[place]
    if not isinstance(message, ToolMessage) or not message.content.startswith("{"):
        return {}
    return json.loads(message.content).get("data") or {}


def _references(request: ModelRequest) -> list[str]:
    return REFERENCE.findall(repr(list(request.messages)))
