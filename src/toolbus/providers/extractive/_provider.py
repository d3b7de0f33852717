"""The provider, which answers a transcript with the next calls or the answer. It keeps no state; `_plan` decides."""

from __future__ import annotations

import anyio.lowlevel
import orjson

from ...messages import AssistantMessage, ToolCall
from ...protocols import ArgumentsPiece, Emit, ModelReply, ModelRequest, TextPiece
from ._answer import missing_tools_answer, nothing_found_answer, nothing_to_look_for_answer, quoted_answer
from ._constants import constant_passages, constants_in
from ._passages import best_passages
from ._plan import READ_TOOL, SEARCH_TOOL, Call, next_calls, weigher_of
from ._question import Question, read_question
from ._transcript import Turn, read_turn

# The arguments that the provider uses. A tool of the same name without these parameters is a different tool.
_NEEDED = {SEARCH_TOOL: {"query", "mode", "max_results"}, READ_TOOL: {"path", "start", "end"}}


class ExtractiveProvider:
    """A provider that answers questions about files by quoting them, without a language model.

    It needs the tools of `toolbus.toolsets.workspace`; without them its answer says so. A question about files takes
    two to four rounds of calls. Text is emitted line by line. The provider never raises a `ProviderError`, since it
    depends on no server.

    Example:
        from toolbus import Runtime
        from toolbus.providers.extractive import ExtractiveProvider

        async with Runtime(ExtractiveProvider()) as runtime:  # as Runtime("extractive"): needs no key and no network
            print((await runtime.run("Hello?")).outcome)  # completed
    """

    @property
    def vendor(self) -> str:
        """The vendor's name on events."""
        return "extractive"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Return the next calls, or the answer, from the messages and the offered tools only. Has a checkpoint."""
        await anyio.lowlevel.checkpoint()
        turn = read_turn(request.messages, SEARCH_TOOL, READ_TOOL)
        question = read_question(turn.question, turn.earlier)
        if turn.searches and not any(search.locations for search in turn.searches if search.round == 1):
            question = question.widened()
        offered = {spec.name: set(spec.parameters.get("properties", ())) for spec in request.tools}
        missing = [name for name, needed in _NEEDED.items() if not needed <= offered.get(name, set())]
        may_call = not missing and request.settings.tool_choice != "none"
        if may_call and (calls := next_calls(question, turn)):
            return self._calling(calls, emit)
        return await self._answering(_answer(question, turn, missing), emit)

    def _calling(self, calls: list[Call], emit: Emit) -> ModelReply:
        made: list[ToolCall] = []
        for index, (name, arguments) in enumerate(calls):
            text = orjson.dumps(arguments).decode()
            emit(ArgumentsPiece(index, name, text))
            made.append(ToolCall(name=name, arguments=text, provider_call_id=f"call_{index}"))
        return ModelReply(
            message=AssistantMessage(tool_calls=tuple(made)), finish_reason="tool_calls", vendor=self.vendor
        )

    async def _answering(self, text: str, emit: Emit) -> ModelReply:
        for piece in text.splitlines(keepends=True):
            emit(TextPiece(piece))
            await anyio.lowlevel.checkpoint()
        return ModelReply(message=AssistantMessage(text=text), finish_reason="stop", vendor=self.vendor)


def _answer(question: Question, turn: Turn, missing: list[str]) -> str:
    if not question.terms:
        return nothing_to_look_for_answer()
    weigher = weigher_of(question, turn)
    if passages := best_passages(weigher, turn.lines):
        named = constant_passages(constants_in(question, passages), passages, turn)
        return quoted_answer(weigher, [passages[0], *named, *passages[1:]], turn)
    if not turn.rounds:
        return missing_tools_answer(missing or list(_NEEDED))
    return nothing_found_answer(question, turn)
