"""The provider: from the transcript to the next calls or the answer. Keeps no state; see `_plan` for the decisions."""

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

__all__ = ["ExtractiveProvider"]

# What it passes as arguments; a tool of the same name that takes others is another tool.
_NEEDED = {SEARCH_TOOL: {"query", "mode", "max_results"}, READ_TOOL: {"path", "start", "end"}}


class ExtractiveProvider:
    """Answers questions about files by quoting them, with no language model.

    Works with the tools of `toolbus.toolsets.workspace`; without them it says so in its answer. A question about files
    takes two to four rounds of calls. Text is emitted line by line. Never raises a `ProviderError`: nothing is out
    there that could fail.
    """

    @property
    def vendor(self) -> str:
        """The name on events."""
        return "extractive"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """The next calls, or the answer, from the messages alone. A checkpoint."""
        await anyio.lowlevel.checkpoint()
        turn = read_turn(request.messages, SEARCH_TOOL, READ_TOOL)
        question = read_question(turn.question, turn.earlier)
        if turn.searches and not any(search.places for search in turn.searches if search.round == 1):
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
