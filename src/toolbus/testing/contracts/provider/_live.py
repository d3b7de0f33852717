"""The part of the contract that can be checked against a real service: `check_live_provider`."""

from __future__ import annotations

from ....errors import ProviderError
from ....messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from ....protocols import Delta, ModelReply, ModelRequest, ModelSettings, Provider, TextPiece, ToolSpec
from ....records import replace
from .._checks import ContractReport, Ledger

_CODE = "7319"  # no model guesses it
_LOOK_UP = ToolSpec(
    name="look_up_code",
    description="Looks the secret code of a city up.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city's name"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
_SETTINGS = ModelSettings(max_output_tokens=4096)  # enough for models that reason first
_SYSTEM = SystemMessage(text="Use the tools you are given. Call them in parallel where you can. Answer briefly.")


async def check_live_provider(provider: Provider) -> ContractReport:
    """Check a provider against the service that it talks to: a text, a tool's round trip, parallel calls, usage.

    Asks five times, for a few hundred tokens in all. A model that does not call tools, or not two at once, fails. The
    provider stays open. Raises `ContractBroken` as `check_provider` does, also for errors of the service.

    Example:
        from toolbus.providers.openai import OpenAIProvider
        from toolbus.testing.contracts.provider import ContractBroken, ContractReport, Failure, check_live_provider

        async def test_the_real_service() -> None:  # needs a key, and costs a few cents
            try:
                report: ContractReport = await check_live_provider(OpenAIProvider("gpt-5-mini"))
                print(report.passed, report.skipped)
            except ContractBroken as broken:
                failures: list[Failure] = [*broken.failures]
                print([failure.check for failure in failures])
                raise
    """
    live = _Live(provider)
    for name, run in (
        ("live-text", live.text),
        ("live-tool-round-trip", live.round_trip),
        ("live-parallel-calls", live.parallel_calls),
    ):
        live.name, before = name, len(live.failures)
        try:
            await run()
        except ProviderError as exc:
            live.fail("the service", "answers", f"{type(exc).__name__}: {exc}")
        if len(live.failures) == before:
            live.passed.append(name)
    return live.report("provider")


class _Live(Ledger):
    def __init__(self, provider: Provider) -> None:
        super().__init__()
        self._provider = provider
        self._deltas: list[Delta] = []

    async def _ask(self, messages: list[Message], *tools: ToolSpec) -> ModelReply:
        self._deltas = []
        request = ModelRequest(messages=messages, tools=tools, settings=_SETTINGS)
        return await self._provider.respond(request, self._deltas.append)

    async def text(self) -> None:
        """Check a text, its pieces, its usage and its finish reason."""
        reply = await self._ask([UserMessage(content="Say hello in one short sentence.")])
        said = reply.message.text
        self.require("the text", "some words", said, ok=bool(said.strip()))
        pieces = "".join(each.text for each in self._deltas if isinstance(each, TextPiece))
        self.require("the pieces emitted, joined", repr(said), pieces, ok=pieces in {said, ""})
        self.expect("the finish_reason", "stop", reply.finish_reason)
        counted = reply.usage
        self.require("the usage", "tokens in and out", counted, ok=min(counted.input_tokens, counted.output_tokens) > 0)
        names = (reply.vendor, reply.model)
        self.require("vendor and model", "names", names, ok=all(names))

    async def round_trip(self) -> None:
        """Check a call, its result, and an answer from it; the vendor may want opaque parts of the first reply back."""
        messages: list[Message] = [_SYSTEM, UserMessage(content="What is the secret code of Zürich?")]
        reply = await self._ask(messages, _LOOK_UP)
        calls = [call.name for call in reply.message.tool_calls]
        self.require("the calls", "look_up_code", calls, ok="look_up_code" in calls)
        if not calls:
            return
        self.expect("the finish_reason", "tool_calls", reply.finish_reason)
        answer = await self._ask([*messages, *_answered(reply.message)], _LOOK_UP)
        self.require("the answer", f"with {_CODE} in it", answer.message.text, ok=_CODE in answer.message.text)

    async def parallel_calls(self) -> None:
        """Check two calls in one reply, and an answer from both results."""
        asked = UserMessage(content="What are the secret codes of Paris and of Rome? Look both up at once.")
        reply = await self._ask([_SYSTEM, asked], _LOOK_UP)
        arguments = [call.arguments for call in reply.message.tool_calls]
        self.require("the calls of one reply", "two, for Paris and Rome", arguments, ok=len(arguments) == 2)
        if len(arguments) == 2:
            both = "Paris" in "".join(arguments) and "Rome" in "".join(arguments)
            self.require("the cities", "Paris and Rome", arguments, ok=both)
            answer = await self._ask([_SYSTEM, asked, *_answered(reply.message)], _LOOK_UP)
            self.require("the answer", "some words", answer.message.text, ok=bool(answer.message.text.strip()))


def _answered(message: AssistantMessage) -> list[Message]:
    calls = tuple(replace(call, call_id=f"live_{position}") for position, call in enumerate(message.tool_calls))
    results = [
        ToolMessage(call_id=call.call_id, name=call.name, content=f'{{"ok":true,"data":"{int(_CODE) + position}"}}')
        for position, call in enumerate(calls)
    ]
    return [replace(message, tool_calls=calls), *results]
