"""The guard, called as a server calls it: what may come in, and which headers go out."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from toolbus.errors import ConfigurationError
from toolbus.testing import virtual_backends
from toolbus.web._guard import Guard, content_policy, read_body

anyio_backend = virtual_backends()
TOKEN = "0123456789abcdef"


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(await read_body(request, max_bytes=100))


APP = Starlette(routes=[Route("/", echo, methods=["GET", "POST"]), Route("/api/do", echo, methods=["GET", "POST"])])
GUARDED = Guard(APP, token=TOKEN, open_paths={"/"})


async def ask(
    app: Any,
    path: str = "/api/do",
    *,
    method: str = "GET",
    client: tuple[str, int] | None = ("127.0.0.1", 5),
    pieces: tuple[bytes, ...] = (b"",),
    **headers: str,
) -> tuple[int, dict[str, str], str]:
    given = {"host": "127.0.0.1:8000", "authorization": f"Bearer {TOKEN}", **headers}
    sent: list[Any] = []

    comes = [
        {"type": "http.request", "body": each, "more_body": at + 1 < len(pieces)} for at, each in enumerate(pieces)
    ]

    async def receive() -> Any:
        return comes.pop(0) if comes else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items() if value],
        "client": client,
        "scheme": "http",
        "server": ("127.0.0.1", 8000),
    }
    await app(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:]).decode()


async def status(app: Any = GUARDED, **how: Any) -> int:
    return (await ask(app, **how))[0]


async def test_a_request_of_the_same_page_passes():
    for host in ("127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "[::1]"):
        assert await status(host=host, origin=f"http://{host}", sec_fetch_site="same-origin") == 200
    assert await status(client=None) == 200
    assert await status(client=("::ffff:127.0.0.1", 1)) == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x_forwarded_for": "127.0.0.1, ::1"}, 200),
        ({"x_forwarded_for": "127.0.0.1, 203.0.113.7"}, 403),
        ({"x_forwarded_for": "203.0.113.7:4711"}, 403),
        ({"x_real_ip": "203.0.113.7"}, 403),
        ({"forwarded": "for=203.0.113.7"}, 403),
    ],
)
async def test_a_client_of_a_proxy_on_this_machine_is_not_on_it(headers: dict[str, str], code: int):
    assert await status(**headers) == code
    assert await status(Guard(APP, hosts=["127.0.0.1"]), **headers) == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost:80:80"])
async def test_a_foreign_host_is_refused(host: str):
    found, headers, text = await ask(GUARDED, host=host)
    assert found == 403
    assert "Host" in text
    assert "content-security-policy" in headers


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://localhost:3000",
        "https://127.0.0.1:8000.evil.example",
        "http://",
        "http://[",
        "127.0.0.1:8000",
    ],
)
async def test_a_foreign_origin_is_refused(origin: str):
    assert await status(origin=origin) == 403


async def test_a_browser_that_reports_another_site_is_refused_unless_somebody_follows_a_link():
    for site in ("cross-site", "same-site"):
        assert await status(sec_fetch_site=site, sec_fetch_mode="no-cors") == 403
        assert await status(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe") == 403
        assert await status(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") == 200


async def test_other_hosts_can_be_allowed():
    app = Guard(APP, hosts=["chat.example.com"])
    how: dict[str, Any] = {"host": "chat.example.com", "client": ("203.0.113.5", 80)}
    assert await status(app, origin="https://chat.example.com", **how) == 200
    assert await status(app, origin="https://www.example.org", **how) == 403
    assert await status(app, host="localhost") == 403
    assert await status(Guard(APP, hosts=None), host="any.example") == 200
    for nobody in ("null", "http://"):
        assert await status(Guard(APP, hosts=None), host="", origin=nobody) == 403
    with pytest.raises(ConfigurationError, match="hosts is a list"):
        Guard(APP, hosts="chat.example.com")


async def test_a_client_on_another_machine_is_refused_whatever_host_it_claims():
    assert await status(client=("203.0.113.5", 80)) == 403
    assert await status(client=("2001:db8::1", 80)) == 403


async def test_without_the_token_only_open_paths_are_served():
    for given in ("", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"Bearer {'ä' * 16}"):
        found, headers, _ = await ask(GUARDED, authorization=given)
        assert (found, headers["www-authenticate"]) == (401, "Bearer")
        assert await status(path="/", authorization=given) == 200
        assert await status(path="/elsewhere", authorization=given) == 401
    assert await status(authorization=f"bearer {TOKEN}") == 200


async def test_the_token_also_guards_a_mounted_application():
    mounted = Starlette(routes=[Mount("/inspector", GUARDED)])
    assert await status(mounted, path="/inspector/api/do", authorization="") == 401
    assert await status(mounted, path="/inspector/api/do") == 200
    assert await status(mounted, path="/inspector/", authorization="") == 200


@pytest.mark.parametrize("token", ["short", "0123456789 abcdef", "0123456789abcdé_", "0123456789\nabcdef"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(token: str):
    with pytest.raises(ConfigurationError, match="at least 16 ASCII characters"):
        Guard(APP, token=token)


async def test_a_long_body_is_refused_declared_or_not():
    assert await status(Guard(APP, max_body_bytes=10), method="POST", content_length="11") == 413
    assert await status(Guard(APP, max_body_bytes=10), method="POST", content_length="10") == 200
    assert await status(Guard(APP, max_body_bytes=0)) == 200
    assert await status(method="POST", content_length="9" * 5_000) == 413  # Python reads at most 4,300 digits
    assert await status(method="POST", content_length="-1") == 400
    assert await status(method="POST", pieces=(b"x" * 60, b"x" * 60)) == 413
    assert await ask(GUARDED, method="POST", pieces=(b"x" * 60, b"y" * 40)) == (
        200,
        (await ask(GUARDED, method="POST", pieces=(b"x" * 100,)))[1],
        "x" * 60 + "y" * 40,
    )


async def test_each_response_keeps_the_page_out_of_frames_caches_and_other_origins():
    for app in (GUARDED, Guard(APP, policy="default-src 'self'")):
        _, headers, _ = await ask(app)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
    assert (await ask(GUARDED))[1]["content-security-policy"] == content_policy()
    assert "unsafe" not in content_policy()
    assert (await ask(Guard(APP, policy="default-src 'self'")))[1]["content-security-policy"] == "default-src 'self'"


async def test_a_web_socket_is_closed_once_it_asks_to_be_opened():
    passed: list[str] = []

    async def receive() -> Any:
        passed.append("received")
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        passed.append(f"{message['type']} {message['code']}")

    await GUARDED({"type": "websocket", "headers": [], "path": "/"}, receive, send)
    assert passed == ["received", "websocket.close 1008"]


async def test_what_a_server_says_of_its_own_life_passes():
    passed: list[Any] = []

    async def app(*connection: Any) -> None:
        passed.append(connection)

    connection: Any = ({"type": "lifespan"}, None, None)
    await Guard(app, token=TOKEN)(*connection)
    assert passed == [connection]
