"""Replay: run each session of a recording again, by itself, with the recorded replies of its model and ends of calls.

A sub-request is replayed like any other request; the request above it gets the recorded result of its call.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...core.compression import Compression
from ...core.limits import Limits
from ...core.turn import TurnState
from ...durability import FUNCTION, limits_in, options_in
from ...errors import ToolbusError
from ...events import Event, MessageAppended, ModelRetrying, RequestFailed, RequestStarted
from ...messages import UserMessage
from ...protocols import ModelRequest
from ...request_result import RequestResult
from ...session import ContextWindow, Earlier, Instructions, RequestSession, SessionStart, ToolsLike
from ._agreement import history_in
from ._format import RecordedRequest, Recording, RecordingError, read_lines
from ._stage import RecordedBudget, RecordedModel, RecordedTools, RecordedWindow, ReplayBus, Stage
from ._stand_ins import Facts, Guard, RecordedOutput


@dataclass(slots=True)
class ReplayReport:
    """A replay that made the same facts. `facts` is their number.

    `results` are those of the requests, in the order in which the requests began; None for a request that was recorded
    in part. `asked` holds the model requests of each request, in order, with the application's own `instructions` and
    `tools`, if `replay` was given them.
    """

    path: Path
    facts: int
    results: list[RequestResult[Any] | None]
    asked: list[list[ModelRequest]]


@dataclass(slots=True, kw_only=True)
class _Overrides:
    """The options that the application gives instead of the recorded ones. Sub-requests keep the recorded ones."""

    tools: ToolsLike | None = None
    limits: Limits | None = None
    instructions: Instructions | None = None
    output: Any = None
    compression: Compression | None = None


async def replay(
    recording: str | Path | Recording,
    *,
    tools: ToolsLike | None = None,
    limits: Limits | None = None,
    instructions: Instructions | None = None,
    output: Any = None,
    compression: Compression | None = None,
    ignore: str | Collection[str] = (),
    partial: bool = False,
) -> ReplayReport:
    """Run the recorded requests again, without model, tools, people and time, and compare every fact.

    The model's replies, the ends of calls and the inputs of people are the recorded ones, in the recorded order. All
    else is computed again: which calls run, are refused, time out or wait for a person, which messages join the
    transcript, and how the request ends. `tools`, `limits`, `instructions`, `output` and `compression` are the
    application's current ones and replace the recorded ones; handlers never run. `ignore` names fields that may differ,
    in all facts ("at") or in those of one type ("tool_call_requested.timeout_seconds"); with `limits`,
    `timeout_seconds` is ignored anyway. `partial` accepts a recording that is cut off, and compares the facts that it
    has.

    Needs no network and takes no time, on any event loop. Raises `ReplayDifference`, an `AssertionError`, at the first
    fact that differs, and `RecordingError` for a file that is damaged or cut off.
    """
    read = recording if isinstance(recording, Recording) else read_lines(Path(recording), partial=partial)
    own = _Overrides(tools=tools, limits=limits, instructions=instructions, output=output, compression=compression)
    ignored = {ignore} if isinstance(ignore, str) else set(ignore)
    if limits is not None:
        ignored.add("timeout_seconds")
    replayed = ReplayReport(read.path, 0, [], [])
    for request in read.requests:
        if not request.facts:
            continue
        result, asked = await _replay_request(read.path, request, own, ignored)
        replayed.facts += len(request.facts)
        replayed.results.append(result if request.is_whole else None)
        replayed.asked.append(asked)
    if read.damage is not None:
        raise read.damage
    return replayed


async def _replay_request(
    path: Path, request: RecordedRequest, own: _Overrides, ignore: Collection[str]
) -> tuple[RequestResult[Any], list[ModelRequest]]:
    try:
        facts = Facts(request)
        stage = Stage(path, request, facts, ignore)
        session = _session(stage, facts, own)
    except (ToolbusError, AttributeError, TypeError, KeyError, ValueError) as exc:
        raise RecordingError(path, request.line, f"the request cannot be started again: {exc}") from exc
    result = await session.run()
    stage.check_end()
    if request.is_whole and result.error is not None and not isinstance(request.facts[-1], RequestFailed):
        raise result.error  # the session broke
    return result, stage.asked


def _session(stage: Stage, facts: Facts, own: _Overrides) -> RequestSession:
    request = stage.request
    agreed, started = request.agreed, cast("RequestStarted", request.facts[0])
    given = _Overrides() if request.is_sub_request else own
    stage.guard = _guard(request, facts)
    options = _options(stage, facts, given)
    history, prompt = history_in(agreed), _prompt(request)
    stage.bus = ReplayBus(stage)

    async def prepare() -> Earlier:
        stage.publish()  # inputs of people from before the request began
        return Earlier(messages=history if prompt is not None else [], notes=stage.notes)

    def window(state: TurnState) -> ContextWindow:
        stage.state = state
        return RecordedWindow(stage) if given.compression is None else ContextWindow(state, cast("Any", options))

    newest = max((fact.provider_index for fact in request.facts if isinstance(fact, ModelRetrying)), default=0)
    session = RequestSession(
        stage.bus,
        [RecordedModel(stage)] * (1 + newest),
        history if prompt is None else [prompt],
        tools=RecordedTools(stage) if given.tools is None else given.tools,
        conversation_id=started.conversation_id,
        request_id=request.request_id,
        journal=stage,
        output=given.output,
        start=SessionStart(
            parent=(started.parent_request_id, started.parent_call_id) if started.parent_request_id else None,
            prepare=prepare,
            granted=dict(agreed.get("granted") or {}),
            window=window,
        ),
        **options,
    )
    if given.output is None and agreed.get("output"):
        stage.state.output = RecordedOutput(agreed["output"], facts)
    return session


def _options(stage: Stage, facts: Facts, given: _Overrides) -> dict[str, Any]:
    """Return the given options and otherwise the recorded ones, with functions that repeat what was decided."""
    agreed = stage.request.agreed
    options = options_in(agreed)
    # An instrumentation may have added to the metadata that was agreed.
    options["metadata"] = stage.request.facts[0].metadata
    options["limits"] = given.limits or limits_in(agreed)
    options["budget"] = RecordedBudget(stage)
    approval = agreed.get("needs_approval")
    options["needs_approval"] = facts.policy if approval == FUNCTION else approval
    if given.instructions is not None:
        options["instructions"] = given.instructions
    if given.compression is not None:
        options["compression"] = given.compression
    if stage.guard is not None:
        options["interceptors"] = [stage.guard]
    return options


def _prompt(request: RecordedRequest) -> UserMessage | None:
    """Return the user's prompt; None for a request that continued from its history."""
    started = cast("RequestStarted", request.facts[0])
    if not started.parent_id:
        return None
    for fact in request.facts[1:]:
        message = fact.message if isinstance(fact, MessageAppended) else None
        if isinstance(message, UserMessage) and message.message_id == started.parent_id:
            return message
        if message is None:
            break
    # The prompt was refused, or no interceptor has seen it: then the recording does not have its text.
    return UserMessage(content=started.prompt or "(not kept)", message_id=started.parent_id)


def _guard(request: RecordedRequest, facts: Facts) -> Guard | None:
    if not request.agreed.get("interceptors"):
        return None
    started = cast("RequestStarted", request.facts[0])
    second: Event | None = request.facts[1] if len(request.facts) > 1 else None
    refused = second if isinstance(second, RequestFailed) else None
    return Guard(facts, refused=refused, never_seen=bool(started.parent_id) and not started.prompt and refused is None)
