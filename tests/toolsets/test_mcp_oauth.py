"""The page's example of a server behind OAuth, against an authorization server on a real socket."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from mcp.client.auth import AuthorizationCodeResult

from support.mcp_server import Caller
from support.oauth_server import Behind
from support.pages import ROOT, snippets_of
from toolbus.toolsets.mcp import McpServer, McpTools

# The SDK does not close the generator of a stream of events that it has read enough of; trio complains.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator object:pytest.PytestUnraisableExceptionWarning"
)


def example() -> Any:
    """The page's module."""
    page = snippets_of(ROOT / "docs/how-to/use-mcp-servers.md")
    (snippet,) = [each for each in page if each.value == "sign_in.py"]
    module = ModuleType("sign_in")
    exec(compile(snippet.source, snippet.where, "exec"), module.__dict__)
    return module


class User:
    """Signs in, in a browser that stops at the redirect."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        self._answer = AuthorizationCodeResult(code="")

    async def visit(self, url: str) -> None:
        self.visits.append(url)
        async with httpx2.AsyncClient(follow_redirects=False) as browser:
            response = await browser.get(url)
        target = response.headers["location"]
        assert target.startswith("http://127.0.0.1:3030/callback?")
        self._answer = AuthorizationCodeResult(
            **{name: each[0] for name, each in parse_qs(urlsplit(target).query).items()}
        )

    async def redirected(self) -> AuthorizationCodeResult:
        return self._answer


async def test_a_user_signs_in_once_and_the_tokens_serve_later_connections() -> None:
    module, user, behind = example(), User(), Behind()
    with behind as url:
        tokens = module.Tokens()
        server = McpServer("notes", connect=module.signed_in(url, tokens, user.visit, user.redirected))
        for _ in range(2):
            async with McpTools([server]) as mcp:
                assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"
        assert len(user.visits) == 1
        assert tokens.client.client_name == "My assistant"


async def test_a_token_that_is_not_valid_any_more_is_replaced_within_the_call() -> None:
    module, user, behind = example(), User(), Behind()
    with behind as url:
        server = McpServer("notes", connect=module.signed_in(url, module.Tokens(), user.visit, user.redirected))
        async with McpTools([server]) as mcp:
            behind.forget()
            assert (await Caller(mcp.registry).completed("notes__whoami")).content == "Ada"


async def test_without_signing_in_the_server_is_away_and_says_why() -> None:
    with Behind() as url:
        with anyio.fail_after(10):
            async with McpTools([McpServer("notes", url=url)]) as mcp:
                (status,) = mcp.status()
    assert not status.connected
    assert "HTTP 401" in status.reason
