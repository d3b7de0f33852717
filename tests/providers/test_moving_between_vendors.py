"""One application, moved from vendor to vendor: whole requests, over each vendor's wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolbus import Runtime, tool
from toolbus.protocols import Provider
from toolbus.providers import AnthropicProvider, OllamaProvider, OpenAIProvider
from toolbus.testing import WireServer, text
from toolbus.testing.wire import WireCall, WireReply

KEY = "sk-not-a-real-key"

MAKERS: Mapping[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIProvider("stub", api_key=KEY, base_url=url),
    "responses": lambda url: OpenAIProvider("stub", api="responses", api_key=KEY, base_url=url),
    "anthropic": lambda url: AnthropicProvider("stub", api_key=KEY, base_url=url),
    "ollama": lambda url: OllamaProvider("stub", host=url),
}


@asynccontextmanager
async def provider_over(server: WireServer) -> AsyncIterator[Provider]:
    provider: Any = MAKERS[server.dialect.name](server.base_url)
    try:
        yield provider
    finally:
        await provider.aclose()


# ------------------------------------------------------------------------------------------ replies that were cut off


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("dialect", MAKERS)
async def test_a_call_that_was_cut_off_before_its_arguments_does_not_run_with_its_defaults(dialect: str) -> None:
    deleted: list[str] = []

    @tool
    def delete(path: str = "/") -> str:
        """Delete a path."""
        deleted.append(path)
        return "gone"

    cut = WireReply(calls=(WireCall(name="delete", arguments=""),), finish_reason="length")
    whole = WireReply(calls=(WireCall(name="delete", arguments="", call_id="call_1"),))
    with WireServer([cut, whole, text("Done.")], dialect=dialect) as server:
        async with provider_over(server) as provider, Runtime(provider, tools=[delete]) as runtime:
            result = await runtime.run("Delete what is in the bin.")
        assert [call.ok for call in result.tool_calls] == [False, True]
        assert "cut off" in result.tool_calls[0].error
        assert deleted == ["/"], "of the whole reply, where no arguments are no arguments"
        assert [server.read(number).problems for number in range(3)] == [(), (), ()]
