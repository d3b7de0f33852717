"""The application of `create_status_app`: probes, the numbers, and who gets them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from toolbus import Runtime, tool
from toolbus.errors import ConfigurationError
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.web import RuntimeMiddleware, create_inspector, create_status_app


@tool
async def look() -> str:
    """Look."""
    return "seen"


def make_middleware(given: Any) -> RuntimeMiddleware:
    return RuntimeMiddleware(app, runtime=given)


@pytest.mark.parametrize("make", [create_status_app, create_inspector, make_middleware])
def test_what_is_not_a_runtime_is_refused(make: Any) -> None:
    for given in ("runtime", Runtime):
        with pytest.raises(ConfigurationError, match=r"^runtime is .*; pass a Runtime$"):
            make(given)


async def app(*_given: Any) -> None:
    """Do nothing, as an ASGI application."""


@pytest.mark.anyio
async def test_a_probe_gets_200_while_requests_are_taken_and_503_otherwise() -> None:
    runtime = Runtime(ScriptedProvider([calls(("look", {})), text("ok")]), tools=[look], detailed_statistics=True)
    app = Starlette(routes=[Mount("/internal", create_status_app(runtime))])
    client = TestClient(app, base_url="http://127.0.0.1:8001", client=("127.0.0.1", 5000))

    async def get(path: str) -> tuple[int, dict[str, Any]]:
        response = await anyio.to_thread.run_sync(client.get, path)
        return response.status_code, response.json()

    assert await get("/internal/health") == (503, {"ready": False, "reasons": ["the runtime is not running"]})
    async with runtime:
        await runtime.run("a secret of mine", conversation_id="conversation-1")
        assert await get("/internal/health") == (200, {"ready": True, "reasons": []})
        status, found = await get("/internal/status")
        statistics = found["statistics"]
        assert (status, statistics["tools"]["look"]["calls"]) == (200, 1)
        assert [each["calls"] for each in statistics["models"].values()] == [2]
        assert not {"secret", "conversation-1"} & {*str(found).replace("'", " ").split()}


@pytest.mark.parametrize(
    ("base", "peer", "expected"),
    [
        ("http://127.0.0.1", "127.0.0.1", 503),
        ("http://rebound.example", "127.0.0.1", 403),
        ("http://127.0.0.1", "10.0.0.9", 403),
    ],
)
def test_only_this_machine_is_answered_unless_hosts_say_otherwise(base: str, peer: str, expected: int) -> None:
    runtime = Runtime(ScriptedProvider([]))
    client = TestClient(create_status_app(runtime), base_url=base, client=(peer, 5000))
    assert client.get("/health").status_code == expected
    opened = TestClient(create_status_app(runtime, hosts=None), base_url=base, client=(peer, 5000))
    assert opened.get("/health").status_code == 503
