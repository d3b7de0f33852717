"""A loop without a bus, to test the provider alone: respond, run the tools, append, respond again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from toolbus.errors import ToolbusError
from toolbus.messages import AssistantMessage, Message, ToolMessage, UserMessage
from toolbus.protocols import Delta, ModelReply, ModelRequest
from toolbus.providers.extractive import ExtractiveProvider
from toolbus.records import replace
from toolbus.tool_results import failure_content, render
from toolbus.tools import Tool
from toolbus.toolsets.workspace import workspace_tools

_HEADING = r"\*\*`(.+):\d+`\*\*"
_QUOTED = r" *(\d+)(?:  (.*))?$"


@dataclass
class Conversation:
    """What was said, what was called in each round, and every piece that was emitted."""

    tools: list[Tool]
    messages: list[Message] = field(default_factory=list[Message])
    rounds: list[list[str]] = field(default_factory=list[list[str]])
    pieces: list[Delta] = field(default_factory=list[Delta])
    answer: str = ""

    async def ask(self, question: str) -> str:
        self.messages.append(UserMessage(content=question))
        self.rounds = []
        provider = ExtractiveProvider()
        for number in range(10):
            self.pieces = []
            reply = await respond(provider, self.messages, self.tools, number, self.pieces)
            if not reply.message.tool_calls:
                self.messages.append(reply.message)
                self.answer = reply.message.text
                return self.answer
            self._run(reply.message, number)
        raise AssertionError("the provider never answered")

    def _run(self, message: AssistantMessage, number: int) -> None:
        place = len(self.messages)
        named = [replace(call, call_id=f"{place}.{i}") for i, call in enumerate(message.tool_calls)]
        self.messages.append(replace(message, tool_calls=tuple(named)))
        self.rounds.append([call.name for call in named])
        by_name = {tool.name: tool for tool in self.tools}
        for call in named:
            try:
                content, failed = (
                    render(by_name[call.name].prepare(orjson.loads(call.arguments), None)()).content,
                    False,
                )
            except ToolbusError as exc:
                content, failed = failure_content("error", str(exc)), True
            self.messages.append(ToolMessage(call_id=call.call_id, name=call.name, content=content, is_error=failed))

    def quoted(self) -> list[tuple[str, int, str]]:
        found: list[tuple[str, int, str]] = []
        path = ""
        for line in self.answer.splitlines():
            if heading := re.fullmatch(_HEADING, line):
                path = heading[1]
            elif quoted := re.match(_QUOTED, line):
                found.append((path, int(quoted[1]), quoted[2] or ""))
        return found

    def quotes(self, file: str, pattern: str) -> bool:
        return any(path.endswith(file) and re.search(pattern, text) for path, _, text in self.quoted())


async def respond(
    provider: ExtractiveProvider,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    number: int = 0,
    pieces: list[Delta] | None = None,
) -> ModelReply:
    taken: list[Delta] = [] if pieces is None else pieces
    return await provider.respond(
        ModelRequest(messages=messages, tools=[tool.spec for tool in tools], round=number), taken.append
    )


def conversation_over(root: Path) -> Conversation:
    return Conversation(workspace_tools(root))
