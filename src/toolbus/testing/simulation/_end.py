"""The checks at the end of a world: of each result, of each process, and of the disk's contents.

The module knows the events that the checks of a process have seen, and the pure core.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...core.result_notes import TICKET, background_note_id
from ...core.turn import TurnState, apply
from ...errors import ProtocolViolation
from ...events import RequestEnding, TerminalEvent, ToolCallCompleted
from ...messages import AssistantMessage, ToolMessage
from ...records import json_bytes
from ...request_result import RequestResult
from ._accounts import Request
from ._findings import Broken
from ._guard import EDITED
from ._process import Process
from ._tools import EXTERNAL
from ._watch import ASKED, Watch, is_store_failure
from ._world import Verdict, World


def check_process(process: Process, warned: set[str]) -> None:
    """Check that a process that was not killed has left nothing behind, and has reported each ending.

    `warned` are the requests for which a log warning said that they continue without their journal.
    """
    watch = process.watch
    heard = [event for _, event in watch.heard]
    same = [id(each) for each in process.order] == [id(each) for each in heard]
    watch.check("G03", same, "listeners saw two orders")
    left = process.bus.statistics()
    watch.check("G10", not left.mailboxes, f"{left.mailboxes} mailboxes are left")
    watch.check("G06", not left.open_calls, f"{left.open_calls} calls are left open")
    watch.check("G02", not left.subscriptions, f"{left.subscriptions} are left")
    resumable = {result.request_id for result, _ in process.results if result.resumable}
    for each in watch.requests.values():
        holds = each.ending is not None or each.request_id in resumable or not process.handle.is_ours(each.request_id)
        watch.check("G10", holds, f"{each.request_id} has no ending")
    for request_id in process.handle.given_up:
        holds = request_id in warned or watch.slack_seconds > 0  # the session's deadline passed during the pause
        watch.check("G11", holds, f"{request_id} continues without its journal, and no log line says so")
    for result, request in process.results:
        _check_result(process, result, request)


def _check_result(process: Process, result: RequestResult[Any], request: Request | None) -> None:
    """Check a result against the events of its request until then, and against the journal."""
    watch = process.watch
    watch.valid(result.messages, f"{result.request_id} leaves")
    watch.hides((*result.messages, result.text, result.reason, str(result.error)), "a result has")
    turn = result.new_messages
    asked = [call.call_id for each in turn if isinstance(each, AssistantMessage) for call in each.tool_calls]
    answered = [each.call_id for each in turn if isinstance(each, ToolMessage)]
    watch.check("G06", asked == answered, f"the turn of {result.request_id} asks {asked} and answers {answered}")
    if request is None:
        return
    if request.wants_output:
        _check_output(watch, request, result)
    contents = {each.call_id: each for each in turn if isinstance(each, ToolMessage)}
    for call_id, call in request.calls.items():
        if isinstance(call.terminal, ToolCallCompleted):
            kept = contents.get(call_id)
            is_kept = kept is not None and kept.content == call.terminal.content
            if kept is not None and call.is_background and kept.content == TICKET:
                # A request that is left, or breaks, gets its notes where it continues.
                breaks = result.resumable or (request.ending is not None and is_store_failure(request.ending))
                is_kept = breaks or background_note_id(call_id) in {each.message_id for each in turn}
            watch.check(
                "G09",
                is_kept,
                f"the result of {call_id} is not in the transcript of {result.request_id}",
            )
    has_failed = watch.journal is not None and watch.journal.has_failed(result.request_id)
    if result.resumable or (has_failed and not result.journaled):
        return
    watch.check("G10", request.ending is not None, f"the ending of {result.request_id} was not published")
    watch.check("G06", asked == list(request.calls), f"the replies of {result.request_id} call {list(request.calls)}")
    _replay(watch, request, result)


def _check_output(watch: Watch, request: Request, result: RequestResult[Any]) -> None:
    """Check that a structured output is what the model's newest reply says, and that repairs were bounded."""
    request_id, limit = request.request_id, request.limits.max_output_repairs
    repairs = sum(each.message_id.startswith(f"{request_id}_o") for each in result.new_messages)
    is_given_up = result.reason == "invalid_output"
    watch.check("G35", repairs <= limit, f"{request_id} is asked to repair its output {repairs} times of {limit}")
    watch.check("G35", repairs == limit or not is_given_up, f"{request_id} gives up after {repairs} repairs of {limit}")
    if result.outcome != "completed" and result.output is None:
        return
    newest = [each for each in result.new_messages if isinstance(each, AssistantMessage)][-1]
    said = [newest.text, *(each.arguments for each in newest.tool_calls)]
    if newest.message_id == f"{request_id}_answer":  # An interceptor may edit a result's text and leave its data.
        ends = [call.terminal for call in request.calls.values()]
        said += [json_bytes(each.data).decode() for each in ends if isinstance(each, ToolCallCompleted)]
    given = result.output.n if isinstance(result.output, Verdict) else None
    # The data of a tool that has answered has one more field.
    is_said = given == EDITED or any(f'"n":{given}{end}' in each for each in said for end in "},")
    watch.check("G35", is_said, f"{request_id} ends with the output {result.output}, and the model has said {said}")


def _replay(watch: Watch, request: Request, result: RequestResult[Any]) -> None:
    """Check that the facts, applied again, give the same transcript, usage and ending.

    An input of a person is published when it is made, and becomes a fact when the session takes it, as in the journal.
    """
    facts = request.facts if watch.journal is None else watch.journal.disk.facts(request.request_id) or request.facts
    if facts is request.facts and any(isinstance(fact, ASKED) for fact in facts):
        return
    if request.started is None:
        return  # a preparation failed, so the request did not begin
    state = TurnState(
        request.request_id,
        limits=request.limits,
        messages=list(result.messages[: result.history_count]),
        providers=9,
    )
    try:
        for fact in facts:
            apply(state, fact)
    except ProtocolViolation as exc:
        raise Broken("G01", f"the facts of {request.request_id} cannot be replayed: {exc}") from exc
    same = state.messages == result.messages and state.usage == result.usage
    same = same and state.cost == result.cost
    same = same and (state.ending is request.ending or request.ending not in facts)
    watch.check("G01", same, f"the facts of {request.request_id}, applied again, give another turn")


def check_results(process: Process) -> None:
    """Check that the results that a process reported still hold at the end, even if it was killed afterwards.

    No process may end a request in another way after a result said that it has ended and is not resumable.
    """
    watch, disk = process.watch, process.world.disk
    for result, _ in process.results:
        request_id, ending = result.request_id, disk.endings.get(result.request_id)
        watch.check("G19", not (result.journaled and result.resumable), f"{request_id} has ended, and is resumable")
        if watch.journal is None or result.resumable:
            continue
        ends = (result.outcome,) if result.journaled else (result.outcome, "abandoned", None)
        # The journal has no ending of a request that continued without it, or whose conversation was deleted.
        is_unknown = not result.journaled and request_id in process.handle.given_up | disk.archive.deleted
        holds = is_unknown or ending in ends
        watch.check("G19", holds, f"{request_id} ended {result.outcome}, and the journal says {ending}")
        known = result.journaled or process.handle.has_failed(request_id) or not disk.facts(request_id)
        watch.check("G11", known, f"{request_id} is not in the journal, and no fault explains it")


async def check_disk(world: World, watch: Watch) -> None:
    """Check that each request has one ending and one outcome of each call, and that each turn was remembered once."""
    disk = world.disk
    for request_id in disk.begun():
        watch.check("G19", request_id in disk.endings, f"{request_id} has not ended")
        facts = disk.facts(request_id)
        endings = [each for each in facts if isinstance(each, RequestEnding)]
        ends = 0 if disk.endings[request_id] == "abandoned" else 1
        watch.check("G19", len(endings) == ends, f"{request_id} has {len(endings)} endings")
        watch.check("G19", not ends or facts[-1] is endings[0], f"{request_id} continues after its ending")
        outcomes = Counter(each.call_id for each in facts if isinstance(each, TerminalEvent))
        twice = [call_id for call_id, times in outcomes.items() if times > 1]
        watch.check("G19", not twice, f"{request_id} has two outcomes of {twice}")
        for each in facts:
            if isinstance(each, ToolCallCompleted) and each.name in EXTERNAL:
                given = [answer.event_id for _, answer in world.answers.get(each.call_id, ())]
                watch.check("G19", each.event_id in given, f"{each.call_id} has an answer that nobody gave")
    for number in range(1, world.conversations + 1):
        kept = await disk.memory.history(f"c{number}")
        twice = [each for each, times in Counter(one.message_id for one in kept).items() if each and times > 1]
        watch.check("G19", not twice, f"conversation c{number} has {twice} twice")
