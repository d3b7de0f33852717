"""Servers behind OAuth, with an authorization server on a real socket: the parts of the SDK on both sides."""

from __future__ import annotations

import contextlib
import gzip
import logging
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from starlette.responses import JSONResponse, Response, StreamingResponse

from support.mcp_server import Caller, until
from support.oauth_server import Behind
from support.pages import ROOT, snippets_of
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallFailed
from toolbus.toolsets.mcp import McpServer, McpTools
from toolbus.toolsets.mcp._auth import Authentication
from toolbus.toolsets.mcp._auth_servers import AuthorizationServers
from toolbus.toolsets.mcp._connection import Connection
from toolbus.toolsets.mcp._transport import SignInFailed


@pytest.fixture(scope="module")
def page() -> Any:
    """The module of the page."""
    found = snippets_of(ROOT / "docs/how-to/use-mcp-servers.md")
    (snippet,) = [each for each in found if each.value == "sign_in.py"]
    module = ModuleType("sign_in")
    exec(compile(snippet.source, snippet.where, "exec"), module.__dict__)
    return module


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture
def url(behind: Behind) -> Generator[str]:
    with behind as url:
        yield url


class Waiting(list[httpx2.Request]):
    """The requests that wait for a sign-in, and the number of all that have waited for one."""

    total = 0


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    now = Waiting()
    renewed = Authentication._renewed  # pyright: ignore[reportPrivateUsage]

    async def noted(self: Authentication, request: httpx2.Request, *given: Any, **named: Any) -> Any:
        now.append(request)
        now.total += 1
        try:
            return await renewed(self, request, *given, **named)
        finally:
            now.remove(request)

    monkeypatch.setattr(Authentication, "_renewed", noted)
    return now


class User:
    """Signs in, in a browser that stops at the redirect. `is_ready` holds it up, and `refuses` makes it say no."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.refuses = False
        self.is_ready = anyio.Event()
        self.is_ready.set()
        self._answer = AuthorizationCodeResult(code="")

    async def visit(self, url: str) -> None:
        self.visits.append(url)
        await self.is_ready.wait()
        if self.refuses:
            return
        async with httpx2.AsyncClient(follow_redirects=False) as browser:
            response = await browser.get(url)
        target = response.headers["location"]
        assert target.startswith("http://127.0.0.1:3030/callback?")
        given = {name: each[0] for name, each in parse_qs(urlsplit(target).query).items()}
        self._answer = AuthorizationCodeResult(**given)

    async def redirected(self) -> AuthorizationCodeResult:
        if self.refuses:
            raise PermissionError("access_denied")
        return self._answer


def auth_of(page: Any, url: str, user: User, tokens: Any = None) -> OAuthClientProvider:
    return page.auth_of(url, tokens or page.Tokens(), user.visit, user.redirected)


async def test_a_user_signs_in_once_and_the_tokens_serve_later_connections(page: Any, url: str):
    user, tokens = User(), page.Tokens()
    for _ in range(2):
        async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user, tokens))]) as mcp:
            assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert len(user.visits) == 1
    assert tokens.client.client_name == "My assistant"


async def test_certificates_are_read_once_for_a_connection_and_not_on_the_event_loop(
    page: Any, url: str, monkeypatch: pytest.MonkeyPatch
):
    readers = list[bool]()
    read = httpx2.create_ssl_context

    def noted(verify: ssl.SSLContext | bool = True, **options: Any) -> ssl.SSLContext:
        if verify is True:
            readers.append(threading.current_thread() is threading.main_thread())
        return read(verify, **options)

    monkeypatch.setattr("httpx2.create_ssl_context", noted)
    monkeypatch.setattr("httpx2._transports.default.create_ssl_context", noted)
    user = User()
    user.refuses = True
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]):
        assert readers == [False]


async def test_one_object_serves_several_connections(page: Any, url: str):
    user = User()
    server = McpServer("notes", url=url, auth=auth_of(page, url, user))
    for _ in range(2):
        async with McpTools([server]) as mcp:
            assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert len(user.visits) == 1


async def test_a_token_that_the_server_refuses_is_refreshed_within_the_call(page: Any, url: str, behind: Behind):
    user = User()
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        behind.forget()
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert (len(user.visits), behind.refreshed) == (1, 1)


async def test_a_token_that_has_expired_is_refreshed_before_the_call(page: Any, url: str, behind: Behind):
    user = User()
    auth = auth_of(page, url, user)
    async with McpTools([McpServer("notes", url=url, auth=auth)]) as mcp:
        auth.context.token_expiry_time = time.time() - 1
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert (len(user.visits), behind.refreshed) == (1, 1)


async def test_after_a_restart_a_stored_token_is_refreshed_and_nobody_is_asked(page: Any, url: str, behind: Behind):
    user, tokens = User(), page.Tokens()
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user, tokens))]):
        pass
    behind.forget()
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user, tokens))]) as mcp:
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert (len(user.visits), behind.refreshed) == (1, 1)


async def test_a_refresh_token_that_is_refused_needs_a_person_again(page: Any, url: str, behind: Behind):
    user = User()
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        behind.forget()
        behind.refresh.clear()
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert len(user.visits) == 2


async def test_a_refreshed_token_that_is_refused_too_needs_a_person_again(page: Any, url: str, behind: Behind):
    user = User()
    exchange = behind.exchange_refresh_token

    async def without_effect(client: Any, token: Any, scopes: list[str]) -> Any:
        issued = await exchange(client, token, scopes)
        behind.forget()
        return issued

    behind.exchange_refresh_token = without_effect  # pyright: ignore[reportAttributeAccessIssue]
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        behind.forget()
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert (len(user.visits), behind.refreshed) == (2, 1)


@pytest.mark.parametrize("is_known", [False, True])
async def test_an_authorization_server_with_a_fault_costs_nobody_a_sign_in(
    page: Any, url: str, behind: Behind, is_known: bool
):
    user = User()
    auth = auth_of(page, url, user)
    async with McpTools([McpServer("notes", url=url, auth=auth)]) as mcp:
        auth.context.token_expiry_time = time.time() - 1 if is_known else None
        behind.forget()
        behind.is_down = True
        failed = await Caller(mcp.registry).failed("notes__whoami")
        assert "/token answers HTTP 503 Service Unavailable; it was not carried out" in failed.error
        behind.is_down = False
        await until(lambda: mcp.status()[0].connected)
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert len(user.visits) == 1


async def test_more_scopes_are_asked_for_when_a_call_needs_them(page: Any, url: str, behind: Behind):
    user, tokens = User(), page.Tokens()
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user, tokens))]) as mcp:
        assert (await Caller(mcp.registry).completed("notes__erase")).content == "erased"
    assert (len(user.visits), behind.refreshed) == (2, 0)
    assert "write" in parse_qs(urlsplit(user.visits[1]).query)["scope"][0].split()


async def test_scopes_that_were_refused_block_no_sign_in(page: Any, url: str, behind: Behind):
    user = User()
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        user.refuses = True
        assert "the sign-in failed: access_denied" in (await Caller(mcp.registry).failed("notes__erase")).error
        user.refuses = False
        behind.forget()
        behind.refresh.clear()
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
        assert "the sign-in failed: access_denied" in (await Caller(mcp.registry).failed("notes__erase")).error
    assert len(user.visits) == 3


async def test_a_call_that_needs_a_sign_in_does_not_fail_with_the_scopes_of_another_call(
    page: Any, url: str, behind: Behind, waiting: Waiting
):
    user = User()
    auth = auth_of(page, url, user)
    async with (
        McpTools([McpServer("notes", url=url, auth=auth)]) as mcp,
        anyio.create_task_group() as group,
    ):
        user.is_ready = anyio.Event()
        redirected = user.redirected

        async def only_without_write() -> AuthorizationCodeResult:
            if "write" in user.visits[-1]:
                raise PermissionError("access_denied")
            return await redirected()

        auth.context.callback_handler = only_without_write
        group.start_soon(Caller(mcp.registry).failed, "notes__erase")
        await until(lambda: len(user.visits) == 2)
        behind.forget()
        behind.refresh.clear()
        group.start_soon(Caller(mcp.registry).completed, "notes__whoami")
        await until(lambda: len(waiting) == 2)
        user.is_ready.set()
    assert len(user.visits) == 3


async def test_a_server_that_names_other_scopes_each_time_may_not_ask_each_time(page: Any, url: str, behind: Behind):
    user = User()
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        user.refuses = True
        for number in range(8):
            behind.needed = f"write-{number}"
            await Caller(mcp.registry).failed("notes__erase")
        assert len(user.visits) == 1 + 5
        user.refuses = False
        behind.forget()
        behind.refresh.clear()
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"


async def test_a_person_is_asked_where_another_request_has_tried_the_refresh_token_first(
    page: Any, url: str, behind: Behind, monkeypatch: pytest.MonkeyPatch
):
    once, others = Authentication._flow_once, list[str]()  # pyright: ignore[reportPrivateUsage]

    async def after_another(self: Authentication, request: httpx2.Request, response: Any, refused: Any) -> str:
        if auth.context.token_expiry_time == 1.0 and not others:
            others.append(url)
            await once(self, httpx2.Request("GET", url), None, None)
        return await once(self, request, response, refused)

    user = User()
    auth = auth_of(page, url, user)
    async with McpTools([McpServer("notes", url=url, auth=auth)]) as mcp:
        monkeypatch.setattr(Authentication, "_flow_once", after_another)
        behind.forget()
        behind.refresh.clear()
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert (len(others), len(user.visits)) == (1, 2)


async def test_scopes_that_a_server_does_not_name_are_asked_for_once_and_block_no_sign_in(
    page: Any, url: str, behind: Behind
):
    user = User()
    behind.needed = ""
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        for _ in range(2):
            failed = await Caller(mcp.registry).failed("notes__erase")
            assert "the sign-in failed: the server refuses the new token" in failed.error
        assert (len(user.visits), behind.refreshed) == (2, 0)
        behind.forget()
        behind.refresh.clear()
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"


async def test_leaving_asks_for_no_new_token(page: Any, url: str, behind: Behind):
    auth = auth_of(page, url, User())
    async with McpTools([McpServer("notes", url=url, auth=auth, protocol="legacy")]):
        auth.context.token_expiry_time = time.time() - 1
    assert behind.refreshed == 0


async def test_each_request_is_authenticated_by_itself_unless_it_has_a_bearer_token():
    class Signed(httpx2.Auth):
        count = 0

        def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
            self.count += 1
            if self.count == 3:
                raise PermissionError("the key is locked")
            request.headers["authorization"] = f"Signature {self.count}"
            yield request

    async def sent(method: str) -> str:
        content = f'{{"jsonrpc":"2.0","method":"{method}"}}'.encode()
        flow = auth.async_auth_flow(httpx2.Request("POST", "http://127.0.0.1/mcp", content=content))
        async with contextlib.aclosing(flow):
            return (await anext(flow)).headers["authorization"]

    authentication = Authentication(Signed(), "http://127.0.0.1/mcp", lambda: contextlib.nullcontext(0.0), lambda: None)
    async with authentication.opened(ssl.create_default_context()) as auth:
        assert await sent("tools/list") == "Signature 1"
        assert await sent("notifications/cancelled") == "Signature 2"
        with pytest.raises(SignInFailed, match="the sign-in failed: the key is locked"):
            await sent("tools/list")


async def test_several_calls_that_need_the_same_scopes_count_as_one_refusal(page: Any, url: str, behind: Behind):
    user = User()
    exchange = behind.exchange_authorization_code

    async def without_scopes(client: Any, code: Any) -> Any:
        return await exchange(client, code.model_copy(update={"scopes": []}))

    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        behind.exchange_authorization_code = without_scopes  # pyright: ignore[reportAttributeAccessIssue]
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(Caller(mcp.registry).failed, "notes__erase")
        visits = len(user.visits)
        behind.needed = "read"
        await Caller(mcp.registry).failed("notes__erase")
    assert len(user.visits) == visits + 1


async def test_while_a_person_is_asked_for_more_scopes_other_calls_go_on(page: Any, url: str):
    user = User()
    async with (
        McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp,
        anyio.create_task_group() as group,
    ):
        user.is_ready = anyio.Event()
        group.start_soon(Caller(mcp.registry).completed, "notes__erase")
        await until(lambda: len(user.visits) == 2)
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
        user.is_ready.set()


async def test_while_a_first_person_signs_in_calls_that_need_no_token_go_on(page: Any, url: str, behind: Behind):
    user = User()
    user.is_ready = anyio.Event()
    behind.has_guests = True
    async with (
        McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp,
        anyio.create_task_group() as group,
    ):
        group.start_soon(Caller(mcp.registry).completed, "notes__erase")
        await until(lambda: len(user.visits) == 1)
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "a guest"
        user.is_ready.set()


async def test_leaving_gives_a_sign_in_up(page: Any, url: str, behind: Behind):
    user = User()
    user.is_ready = anyio.Event()
    behind.has_guests = True
    server = McpServer("notes", url=url, auth=auth_of(page, url, user))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group, McpTools([server]) as mcp:
            group.start_soon(Caller(mcp.registry).failed, "notes__erase")
            await until(lambda: len(user.visits) == 1)


async def test_a_refusal_that_cannot_be_read_fails_its_own_call_only(page: Any, url: str, behind: Behind):
    async with (
        McpTools([McpServer("notes", url=url, auth=auth_of(page, url, User()))]) as mcp,
        anyio.create_task_group() as group,
    ):
        group.start_soon(Caller(mcp.registry).completed, "notes__slow")
        await until(lambda: behind.runs == 1)
        behind.forget()
        behind.refusal = {"content-encoding": "br"}
        failed = await Caller(mcp.registry).failed("notes__whoami")
        assert "the sign-in failed: the response is compressed, which was not asked for" in failed.error
        assert not failed.outcome_unknown
        behind.refusal = {}
        behind.proceed.set()


async def test_a_call_that_runs_holds_up_no_other_call(page: Any, url: str, behind: Behind):
    """The SDK's `Auth` would: it waits for the response, which this server begins when its tool has ended."""
    async with (
        McpTools([McpServer("notes", url=url, auth=auth_of(page, url, User()))]) as mcp,
        anyio.create_task_group() as group,
    ):
        group.start_soon(Caller(mcp.registry).completed, "notes__slow")
        await until(lambda: behind.runs == 1)
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
        behind.proceed.set()


async def test_a_person_may_take_longer_than_the_time_to_connect(
    page: Any, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    paused = Connection._paused  # pyright: ignore[reportPrivateUsage]

    @contextlib.contextmanager
    def nearly_over(self: Connection) -> Generator[float]:
        """Begin the sign-in 0.2 s before the time to connect is over, and leave a minute for the requests after it."""
        life = self._life  # pyright: ignore[reportPrivateUsage]
        assert life is not None
        life.deadline = anyio.current_time() + 0.2
        with paused(self) as left:
            yield left
        life.deadline = anyio.current_time() + 60

    monkeypatch.setattr(Connection, "_paused", nearly_over)
    user = User()
    user.is_ready = anyio.Event()
    servers = [McpServer("notes", url=url, auth=auth_of(page, url, user))]
    async with McpTools(servers) as mcp:
        status = mcp.status()[0]
        assert (status.connected, status.reason) == (False, "the sign-in has not been completed yet")
        assert "MCP server notes is away: the sign-in has not been completed yet" in caplog.messages
        user.is_ready.set()
        await until(lambda: mcp.status()[0].connected)
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert len(user.visits) == 1


async def test_a_call_waits_for_a_person_only_so_long_and_the_sign_in_goes_on(
    page: Any, url: str, behind: Behind, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toolbus.toolsets.mcp._auth._PATIENCE_SECONDS", 0.1)
    user = User()
    servers = [McpServer("notes", url=url, auth=auth_of(page, url, user))]
    async with McpTools(servers) as mcp:
        user.is_ready = anyio.Event()
        behind.forget()
        behind.refresh.clear()
        for is_first in (True, False):
            failed = await Caller(mcp.registry).failed("notes__whoami")
            assert "the sign-in has not been completed yet; it was not carried out, so try again" in failed.error
            assert (failed.retryable, failed.outcome_unknown) == (True, False)
            if is_first:
                await Caller(mcp.registry).failed("notes__whoami", seconds=0.05)
        # A request for the list of tools is given up too. The connection is kept, since a person signs in.
        monkeypatch.setattr("toolbus.toolsets.mcp._connection._LIST_SECONDS", 0.1)
        before = waiting.total
        mcp._connections["notes"]._request_check()  # pyright: ignore[reportPrivateUsage]
        await until(lambda: waiting.total > before and not waiting)
        monkeypatch.setattr("toolbus.toolsets.mcp._connection._LIST_SECONDS", 60)
        user.is_ready.set()
        await until(lambda: bool(behind.access))
        assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
    assert len(user.visits) == 2


async def test_a_sign_in_that_failed_is_reported_and_nobody_is_asked_again_at_once(
    page: Any, url: str, monkeypatch: pytest.MonkeyPatch
):
    attempts = list[int]()

    def wait(attempt: int, _seed: str) -> float:
        attempts.append(attempt)
        return 0.01

    monkeypatch.setattr("toolbus.toolsets.mcp._connection.backoff_seconds", wait)
    user = User()
    user.refuses = True
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        assert mcp.status()[0].reason == "the sign-in failed: access_denied"
        await until(lambda: len(attempts) > 3)
        assert mcp.status()[0].reason == "the sign-in failed: access_denied"
    assert len(user.visits) == 1


async def test_after_a_while_a_person_is_asked_again(page: Any, url: str, monkeypatch: pytest.MonkeyPatch):
    def wait(_attempt: int, _seed: str) -> float:
        return 0.01

    monkeypatch.setattr("toolbus.toolsets.mcp._connection.backoff_seconds", wait)
    monkeypatch.setattr("toolbus.toolsets.mcp._auth._REST_SECONDS", 0.0)
    user = User()
    user.refuses = True
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        user.refuses = False
        await until(lambda: mcp.status()[0].connected)


async def test_when_signing_in_again_fails_running_calls_go_on_and_all_are_told_why(
    page: Any, url: str, behind: Behind
):
    user = User()
    failed = list[ToolCallFailed]()
    async with (
        McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp,
        anyio.create_task_group() as group,
    ):
        ended = list[str]()

        async def slow() -> None:
            ended.append((await Caller(mcp.registry).completed("notes__slow")).content)

        async def refused() -> None:
            failed.append(await Caller(mcp.registry).failed("notes__whoami"))

        group.start_soon(slow)
        await until(lambda: behind.runs == 1)
        user.refuses = True
        behind.forget()
        behind.refresh.clear()
        async with anyio.create_task_group() as calls:
            for _ in range(3):
                calls.start_soon(refused)
        behind.proceed.set()
        await until(lambda: bool(ended))
        await until(lambda: not mcp.status()[0].connected)
        failed.append(await Caller(mcp.registry).failed("notes__whoami"))
    assert ended == ["True"]
    assert len(user.visits) == 2
    assert all("the sign-in failed: access_denied" in each.error for each in failed), failed
    assert not any(each.outcome_unknown for each in failed)


async def test_a_server_that_refuses_each_new_token_asks_a_person_once(page: Any, url: str, behind: Behind):
    user = User()
    load = behind.load_access_token

    async def refuse(token: str) -> None:
        await load(token)

    behind.load_access_token = refuse  # pyright: ignore[reportAttributeAccessIssue]
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        assert mcp.status()[0].reason == "the sign-in failed: the server refuses the new token"
    assert len(user.visits) == 1


def without_token(given: Response) -> Response:
    return JSONResponse({"token": "secret-of-access-1", "refresh_token": "secret-of-refresh-2"})


def with_echo(given: Response) -> Response:
    return JSONResponse({"error": "invalid_grant", "access_token": "secret-of-access-1"}, status_code=400)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (without_token, "Invalid token response: access_token: Field required"),
        (with_echo, 'Token exchange failed (400): {"error":"invalid_grant","access_token":"•••"}'),
    ],
)
async def test_no_secret_is_in_a_log_an_error_or_a_status(
    page: Any,
    url: str,
    behind: Behind,
    spoil: Callable[[Response], Response],
    why: str,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    user = User()
    auth = auth_of(page, url, user)
    async with McpTools([McpServer("notes", url=url, auth=auth)]) as mcp:
        tokens = [*behind.access, *behind.refresh]
        behind.forget()
        behind.refresh.clear()
        behind.spoil = spoil
        call = Caller(mcp.registry)
        await call.failed("notes__whoami")
        await until(lambda: not mcp.status()[0].connected)
        reason = mcp.status()[0].reason
        logged = [
            logging.Formatter().format(each) for each in caplog.records if each.name.startswith(("mcp", "toolbus"))
        ]
        texts = [*logged, str(call.events), str(mcp.status()), repr(McpServer("notes", url=url, auth=auth))]
    assert reason.endswith(f"the sign-in failed: {why}")
    state = parse_qs(urlsplit(user.visits[-1]).query)["state"][0]
    for secret in (*tokens, "secret-of-access-1", "secret-of-refresh-2", "of-access-1", state):
        assert not any(secret in each for each in texts), secret


async def test_the_answer_to_another_sign_in_is_not_shown(page: Any, url: str, caplog: pytest.LogCaptureFixture):
    user = User()

    async def redirected() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code="secret-code", state="secret-state")

    user.redirected = redirected  # pyright: ignore[reportAttributeAccessIssue]
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        assert mcp.status()[0].reason == "the sign-in failed: the answer to another sign-in came back"
    assert "secret-" not in caplog.text


async def test_an_answer_without_a_code_is_reported_by_its_field(page: Any, url: str):
    user = User()

    async def redirected() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(state="secret-state")  # pyright: ignore[reportCallIssue]

    user.redirected = redirected  # pyright: ignore[reportAttributeAccessIssue]
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]) as mcp:
        assert mcp.status()[0].reason == "the sign-in failed: AuthorizationCodeResult: code: Field required"


async def test_a_server_with_an_https_address_cannot_have_a_request_sent_to_an_http_address():
    """It could have an address inside a network read, and the answer is in the text of the failure."""
    servers = AuthorizationServers("https://mcp.example.com/mcp")
    async with servers.opened(ssl.create_default_context()):
        with pytest.raises(SignInFailed, match=r"http://169\.254\.169\.254/latest is not an https address"):
            await servers.ask(httpx2.Request("GET", "http://169.254.169.254/latest?secret"))


async def test_where_the_network_is_forbidden_an_authorization_server_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    def forbidden(vendor: str, url: str) -> None:
        raise ConfigurationError(f"{vendor} may not ask {url}")

    monkeypatch.setattr("toolbus.network._objection", forbidden)
    servers = AuthorizationServers("https://mcp.example.com/mcp")
    async with servers.opened(ssl.create_default_context()):
        with pytest.raises(ConfigurationError, match=r"mcp may not ask https://login\.example\.com/token$"):
            await servers.ask(httpx2.Request("POST", "https://login.example.com/token?secret"))


async def test_a_page_in_place_of_an_answer_is_reported_in_one_line(
    page: Any, url: str, behind: Behind, caplog: pytest.LogCaptureFixture
):
    behind.spoil = lambda _: Response("<html>\n<body>\n  no such page\n", status_code=404)
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, User()))]) as mcp:
        reason = mcp.status()[0].reason
    assert reason.endswith("the sign-in failed: Token exchange failed (404): <html> <body> no such page")
    assert f"MCP server notes is away: {reason}" in caplog.messages


async def test_a_large_answer_of_an_authorization_server_is_not_read(page: Any, url: str, behind: Behind):
    behind.spoil = lambda _: Response(b" " * 70_000)
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, User()))]) as mcp:
        assert mcp.status()[0].reason.endswith("/token has more than 65536 bytes")


async def test_a_compressed_answer_of_an_authorization_server_is_refused(page: Any, url: str, behind: Behind):
    behind.spoil = lambda _: Response(gzip.compress(b" " * 10**6), headers={"content-encoding": "gzip"})
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, User()))]) as mcp:
        assert mcp.status()[0].reason.endswith("/token answers with the content encoding gzip, which was not asked for")


async def test_compressed_metadata_of_an_authorization_server_is_not_decompressed(monkeypatch: pytest.MonkeyPatch):
    """The SDK looks for metadata at several addresses, each of which may answer with a page for people."""
    packed = gzip.compress(b" " * 10**6)

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(404, headers={"content-encoding": "gzip"}, stream=httpx2.ByteStream(packed))

    client = partial(httpx2.AsyncClient, transport=httpx2.MockTransport(answer))
    monkeypatch.setattr("toolbus.toolsets.mcp._auth_servers.httpx2.AsyncClient", client)
    servers = AuthorizationServers("http://127.0.0.1/mcp")
    async with servers.opened(ssl.create_default_context()):
        whole = await servers.ask(httpx2.Request("GET", "http://127.0.0.1/.well-known/oauth"))
    assert (whole.status_code, whole.content) == (404, packed)


async def asked(
    monkeypatch: pytest.MonkeyPatch, answer: httpx2.Response | Exception, request: httpx2.Request
) -> tuple[AuthorizationServers, httpx2.Response | SignInFailed]:
    """Send a request to an authorization server with this answer; return what came of it."""

    def handle(given: httpx2.Request) -> httpx2.Response:
        assert set(given.extensions["timeout"].values()) == {None}
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer.status_code, headers=answer.headers, stream=httpx2.ByteStream(answer.content))

    client = partial(httpx2.AsyncClient, transport=httpx2.MockTransport(handle))
    monkeypatch.setattr("toolbus.toolsets.mcp._auth_servers.httpx2.AsyncClient", client)
    servers = AuthorizationServers("http://127.0.0.1/mcp")
    async with servers.opened(ssl.create_default_context()):
        try:
            return servers, await servers.ask(request)
        except SignInFailed as exc:
            return servers, exc


@pytest.mark.parametrize(
    ("answer", "method", "why", "is_away"),
    [
        (httpx2.Response(400), "POST", "", False),
        (httpx2.Response(429), "POST", "HTTP 429", True),
        (httpx2.Response(500), "POST", "HTTP 500", True),
        (httpx2.Response(500), "GET", "", True),
        (httpx2.ConnectError("refused"), "GET", "cannot be reached: refused", True),
    ],
)
async def test_an_authorization_server_is_away_if_it_gives_no_answer_or_has_a_fault(
    monkeypatch: pytest.MonkeyPatch, answer: httpx2.Response | Exception, method: str, why: str, is_away: bool
):
    servers, ended = await asked(monkeypatch, answer, httpx2.Request(method, "http://127.0.0.1/token"))
    assert servers.is_away == is_away
    assert isinstance(ended, SignInFailed) == bool(why)
    assert why in str(ended)


async def test_a_redirect_of_an_authorization_server_is_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch):
    answer = httpx2.Response(302, headers={"location": "/elsewhere"})
    _, ended = await asked(monkeypatch, answer, httpx2.Request("GET", "http://127.0.0.1/about"))
    assert isinstance(ended, httpx2.Response)
    assert ended.next_request is not None
    assert str(ended.next_request.url) == "http://127.0.0.1/elsewhere"


async def test_secrets_that_were_sent_or_received_are_not_in_a_reason(monkeypatch: pytest.MonkeyPatch):
    names = ("client_assertion", "code", "password", "client_secret", "refresh_token", "code_verifier")
    given = {**{name: f"sent-as-{name}" for name in names}, "token_type": "Bearer", "grant_type": "password"}
    answer = httpx2.Response(200, json={"access_token": "received", "token_type": "Bearer", "secret": 3})
    servers, _ = await asked(monkeypatch, answer, httpx2.Request("POST", "http://127.0.0.1/token", data=given))
    said = f"Bearer {' '.join(given[name] for name in names)} received" + "." * 1_000
    reason = servers.reason_of(ValueError(said))
    assert reason.startswith("Bearer ")
    assert not any(each in reason for each in ("sent-as", "received"))
    assert len(reason) == 500


async def test_an_authorization_server_that_sends_its_answer_in_drops_is_given_up(
    page: Any, url: str, behind: Behind, monkeypatch: pytest.MonkeyPatch
):
    class Visitor(User):
        async def visit(self, url: str) -> None:
            await super().visit(url)
            # Only the request for the token is left.
            monkeypatch.setattr("toolbus.toolsets.mcp._auth_servers._ASK_SECONDS", 0.3)

    async def drops() -> AsyncGenerator[bytes]:
        while True:
            yield b" "
            await anyio.sleep(0.01)

    behind.spoil = lambda _: StreamingResponse(drops())
    with anyio.fail_after(60):
        async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, Visitor()))]) as mcp:
            assert mcp.status()[0].reason.endswith("/token does not answer within 0.3 s")


async def test_a_service_has_no_person_and_a_token_from_elsewhere_no_library(page: Any, url: str, behind: Behind):
    class Fresh(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
            request.headers["Authorization"] = f"Bearer {next(iter(behind.access), 'none')}"
            yield request

    user = User()
    async with McpTools([McpServer("notes", url=url, auth=auth_of(page, url, user))]):
        async with McpTools([McpServer("notes", url=url, auth=Fresh())]) as mcp:
            assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
        behind.forget()
        async with McpTools([McpServer("notes", url=url, auth=Fresh())]) as mcp:
            assert mcp.status()[0].reason == "HTTP 401 Unauthorized"
    assert issubclass(ClientCredentialsOAuthProvider, httpx2.Auth)


async def test_without_signing_in_the_server_is_away_and_says_why(url: str):
    with anyio.fail_after(60):
        async with McpTools([McpServer("notes", url=url)]) as mcp:
            (status,) = mcp.status()
    assert not status.connected
    assert "HTTP 401" in status.reason


def test_what_is_no_auth_is_refused_and_not_shown():
    for given in ("secret-token", object()):
        with pytest.raises(ConfigurationError, match="pass an OAuthClientProvider") as caught:
            McpServer("notes", url="http://127.0.0.1/mcp", auth=given)  # pyright: ignore[reportArgumentType]
        assert "secret-token" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="headers and auth can be given only with a url"):
        McpServer("notes", command="notes", auth=httpx2.BasicAuth("ada", "secret"))
