"""An MCP server behind OAuth, with its authorization server, on a socket of this machine. The SDK's own; one user."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from .mcp_http import Served

__all__ = ["Behind"]


class Behind(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """`with Behind() as served:` serves a tool `whoami` to whoever has signed in. `forget` makes access tokens expire.

    `refreshed` counts the refresh tokens that were used. `spoil` is called with each response to a request for a token:
    it may return another one; while the server `is_down`, they are refused. A call of `erase` needs the scope `needed`;
    if that is empty, it is always refused. While it `has_guests`, everything else needs no token. `refusal` has headers
    of the status 401.
    """

    def __init__(self) -> None:
        self.refreshed = 0
        self.runs = 0
        self.proceed = threading.Event()
        self.is_down = False
        self.has_guests = False
        self.needed = "write"
        self.refusal: dict[str, str] = {}
        self.spoil: Callable[[Response], Response] = lambda response: response
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._served = Served(self._app, self.port)

    def __enter__(self) -> str:
        self._served.start()
        return self._served.url

    def __exit__(self, *exc_info: object) -> None:
        self._served.stop()

    def forget(self) -> None:
        self.access.clear()

    def _app(self) -> Starlette:
        app = self._make().streamable_http_app(json_response=True)

        async def special(request: Request, call_next: Any) -> Response:
            body = await request.body()
            token = self.access.get(request.headers.get("authorization", "").removeprefix("Bearer "))
            if b'"erase"' in body and token is not None and self.needed not in token.scopes:
                scope = f', scope="{self.needed}"' if self.needed else ""
                needs = f'Bearer error="insufficient_scope"{scope}, resource_metadata="{self._about}"'
                return Response(status_code=403, headers={"www-authenticate": needs})
            if self.has_guests and token is None and b'"erase"' not in body:
                known: dict[str, Any] = {"resource": f"http://127.0.0.1:{self.port}/mcp", "subject": "a guest"}
                self.access["guest"] = AccessToken(token="guest", client_id="none", scopes=[], **known)
                request.scope["headers"].append((b"authorization", b"Bearer guest"))
            if self.is_down and request.url.path == "/token":
                return Response(status_code=503)
            response: Response = await call_next(request)
            if response.status_code == 401:
                response.headers.update(self.refusal)
            return self.spoil(response) if request.url.path == "/token" else response

        app.add_middleware(BaseHTTPMiddleware, dispatch=special)
        return app

    @property
    def _about(self) -> str:
        return f"http://127.0.0.1:{self.port}/.well-known/oauth-protected-resource/mcp"

    def _make(self) -> MCPServer:
        url = AnyHttpUrl(f"http://127.0.0.1:{self.port}")
        settings = AuthSettings(
            issuer_url=url,
            resource_server_url=AnyHttpUrl(f"{url}mcp"),
            validate_token_resource=True,
            client_registration_options=ClientRegistrationOptions(enabled=True),
        )
        server = MCPServer("notes", auth_server_provider=self, auth=settings)

        @server.tool()
        def whoami() -> str:  # pyright: ignore[reportUnusedFunction]
            """Say who is signed in."""
            token = get_access_token()
            return "nobody" if token is None else str(token.subject)

        @server.tool()
        def erase() -> str:  # pyright: ignore[reportUnusedFunction]
            """Erase all notes."""
            return "erased"

        @server.tool()
        async def slow() -> str:  # pyright: ignore[reportUnusedFunction]
            """Wait until the test proceeds."""
            self.runs += 1
            return str(await anyio.to_thread.run_sync(self.proceed.wait, 10))

        return server

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[str(client_info.client_id)] = client_info.model_copy(update={"scope": "read write"})

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """Let the user in without a question, as after a password."""
        code = secrets.token_urlsafe(32)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=float("inf"),
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(str(client.client_id), authorization_code.resource, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.refreshed += 1
        return self._issue(str(client.client_id), refresh_token.resource, refresh_token.scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    def _issue(self, client_id: str, resource: str | None, scopes: list[str]) -> OAuthToken:
        access, refresh = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        known: dict[str, Any] = {"client_id": client_id, "scopes": scopes, "resource": resource, "subject": "Ada"}
        self.access[access] = AccessToken(token=access, **known)
        self.refresh[refresh] = RefreshToken(token=refresh, **known)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3_600, scope=" ".join(scopes) or None)
