"""An interceptor of a simulated world: it takes its time, and edits or denies prompts, requests, calls and results."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from ...core.output import FINAL_ANSWER
from ...errors import Denied
from ...events import ToolCallCompleted, ToolCallRequested
from ...interceptors import Ask, Interceptor
from ...messages import SystemMessage, UserMessage
from ...protocols import ModelReply, ModelRequest
from ...records import replace
from ...tool_results import RenderedResult
from ...tools import ToolContext
from ._chance import Chance
from ._tools import PROCESS, REMOTE
from ._watch import OUTSIDE, Watch

if TYPE_CHECKING:
    from ._world import World

T = TypeVar("T")

EDITED = 5
"""The number in arguments that were edited."""

_DENIES = 0.04
_SECONDS = 0.3


class Guard(Interceptor):
    """See `Interceptor`. Its decisions depend on the request and on how often it was asked in it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: Counter[str] = Counter()
        self._passed: dict[str, set[str]] = {}  # by call: what was returned as its result
        self.edits_replies = world.chance("guard").says(0.5)

    async def _chance(self, context: ToolContext[Any], given: object) -> Chance:
        """Return the chance for one decision, after the time that it takes, unless the decision is to deny.

        `given` is what the decision is about: it has no secret.
        """
        PROCESS.get().watch.hides(given, "an interceptor sees")
        request_id = context.request_id
        self._asked[request_id] += 1
        chance = self._world.chance(f"guard {request_id} {self._asked[request_id]}")
        if chance.says(0.2):
            await anyio.sleep(chance.below(_SECONDS))
        if chance.says(_DENIES):
            self._world.faults["denied by a guard"] += 1
            raise Denied(f"not here {self._world.secret}")
        return chance

    def _edits(self, chance: Chance, given: T, edited: T) -> T:
        if not chance.says(0.2):
            return given
        self._world.faults["edited by a guard"] += 1
        return edited

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        return self._edits(await self._chance(context, ()), prompt, replace(prompt, content="please"))

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        chance = await self._chance(context, request.messages)
        noted = replace(request, messages=(*request.messages, SystemMessage(text="Be careful.")))
        return await ask(self._edits(chance, request, noted))

    async def before_tool(
        self,
        name: str,  # noqa: ARG002 -- all tools are alike
        arguments: dict[str, Any],
        context: ToolContext[Any],
    ) -> dict[str, Any]:
        return self._edits(await self._chance(context, arguments), arguments, {**arguments, "n": EDITED})

    async def after_tool(
        self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
    ) -> RenderedResult:
        edited = self._edits(await self._chance(context, result), result, replace(result, content="looked at"))
        self._passed.setdefault(call.call_id, set()).add(edited.content)
        return edited

    def check(self, watch: Watch, event: ToolCallCompleted) -> None:
        """Check that the result of a tool is published as it was returned here, unless somebody elsewhere answered."""
        is_other = event.content.startswith(OUTSIDE) or event.name == FINAL_ANSWER or event.name in REMOTE
        is_passed = is_other or event.content in self._passed.get(event.call_id, ())
        watch.note("G08", is_passed, f"the result of {event.call_id} has passed no interceptor")

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        chance = await self._chance(context, text)
        return self._edits(chance, text, f"{text}!") if self.edits_replies else text
