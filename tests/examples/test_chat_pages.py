"""The chat pages of the FastAPI example, in a real Chromium: see `browse_chat_pages`."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from fastapi_app import create_app
from fastapi_app.app import TOOLS
from support import browser
from support.environments import importing_from
from support.http_serving import serving
from toolbus import Runtime
from toolbus.providers.scripted import ScriptedProvider, calls, hang, text
from toolbus.request_result import RequestResult

TESTS = Path(__file__).parents[1]
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
ANSWERS = itertools.count(1)
"""The number of the next answer to the question that is asked again, so that the pages' steps can tell them apart."""
SCRIPTS: dict[str, list[Any]] = {
    "send": [
        calls(
            ("send_message", {"to": "Ann", "text": "It works."}),
            ("send_message", {"to": "Bob", "text": HOSTILE}),
            text="I will send two messages.",
            reasoning="Both of them have to know it.",
        ),
        text("One of two was sent."),
    ],
    "what": [calls(("local_time", {}), text="Let me look. "), lambda: text(f"It is that late: {next(ANSWERS)}.")],
    "wait": [hang(after=text("I am beginning"))],
    "hostile": [text(f"{HOSTILE} That was hostile.")],
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _unpacked() -> None:
    """Outside of the tests, whose calls have deadlines."""
    browser.unpacked()


def answer(request: Any) -> Any:
    prompts = [each.text for each in request.messages if each.role == "user"]
    step = SCRIPTS[prompts[-1].split()[0]][request.round]
    return step() if callable(step) else step


@pytest.mark.anyio
async def test_both_pages_ask_decide_answer_stop_and_come_back(tmp_path: Path) -> None:
    folder = Path(os.environ.get("TOOLBUS_SCREENSHOTS", tmp_path))
    runtime = Runtime(ScriptedProvider(answer), tools=TOOLS, on_approval="wait", drain_seconds=0)
    results: list[RequestResult[Any]] = []
    async with serving(create_app(runtime)) as server:
        address = str(server.client.base_url).rstrip("/")
        program = [sys.executable, str(Path(__file__).with_name("browse_chat_pages.py")), address, str(folder)]
        done = await anyio.run_process(program, check=False, env=importing_from(TESTS))
        assert done.returncode == 0, done.stderr.decode()[-3_000:]
        for each in reversed(await runtime.requests()):
            results.append(await runtime.request(each.request_id).result())
    found = json.loads(done.stdout)
    for page in found.values():
        assert page["errors"] == []
        assert page["hosts"] == [urlsplit(address).netloc]
        assert page["made"] == 0
        assert HOSTILE in page["shown"]
    sent = [each for each in results if each.tool_calls and each.tool_calls[0].name == "send_message"]
    assert [[call.ok for call in each.tool_calls] for each in sent] == [[True, False], [True, False], [False, False]]
    timed = [each for each in results if each.tool_calls and each.tool_calls[0].name == "local_time"]
    assert len(timed) == 3  # one of them was asked again
    assert all("zone" in str(each.tool_calls[0].data or each.tool_calls[0].content) for each in timed)
    assert [each.outcome for each in results].count("cancelled") == 2
    prompt: Any = results[0].new_messages[0]
    assert prompt.content[0].url.startswith("data:image/png;base64,")
