"""An MCP server over stdio, of the SDK, that asks back. Each tool works in both eras of the protocol.

`book` asks the user for a form, `pay` for a visit to an address, and `sum_up` asks the client's model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp.types import (
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel, Field

server = MCPServer("asking")


class Guest(BaseModel):
    name: str = Field(description="The name on the booking")
    nights: int = 2
    bed: Literal["single", "double"] = "single"
    note: str | None = None


async def who() -> Elicit[Guest]:
    return Elicit("Who is coming?", Guest)


@server.tool()
async def book(guest: Annotated[Any, Resolve(who)], hotel: str) -> str:
    """Book a stay."""
    return f"{hotel}: {guest!r}"


@server.tool()
async def pay(context: Context[Any, Any]) -> Any:
    """Pay."""
    asked = ElicitRequestURLParams(message="Please pay.", url="https://pay.example.com/1", elicitation_id="1")
    if context.request_context.protocol_version < "2026":
        return (await context.session.elicit_url(asked.message, asked.url, "1")).action
    answer = (context.input_responses or {}).get("pay")
    if isinstance(answer, ElicitResult):
        return answer.action
    return InputRequiredResult(input_requests={"pay": ElicitRequest(params=asked)})


async def summary(text: str) -> Sample:
    messages = [
        SamplingMessage(role="user", content=TextContent(text="You sum texts up.")),
        SamplingMessage(role="assistant", content=TextContent(text="Gladly.")),
        SamplingMessage(role="user", content=TextContent(text=text)),
    ]
    return Sample(messages, max_tokens=50, temperature=0.5, system_prompt="Be brief.")


@server.tool()
async def sum_up(text: str, summed: Annotated[CreateMessageResult, Resolve(summary)]) -> str:
    """Sum a text up."""
    content = summed.content
    return f"{summed.model}, {summed.stop_reason}: {content.text if isinstance(content, TextContent) else '?'}"


if __name__ == "__main__":
    server.run()
