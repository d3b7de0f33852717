"""The approval of tool calls by a person (human in the loop): the calls that need one, and what it covers. Pure.

Example:
    from toolbus import Tool
    from toolbus.core.approval import (
        ApprovalHook, ApprovalPolicy, OnApproval, OpenQuestions, bound, definition_of, needs_approval, question_of,
    )
    from toolbus.events import ApprovalDecided, ApprovalRequested

    def refund(order: int, amount: float) -> str:
        return "refunded"

    spec = Tool(handler=refund).spec
    policy: ApprovalPolicy = lambda tool, arguments: arguments["amount"] > 100
    print(needs_approval(policy, spec, {"order": 7, "amount": 500}))  # True

    async def decide(question: ApprovalRequested) -> bool:  # for Runtime(on_approval=decide)
        return question.arguments["amount"] < 1_000

    hook: ApprovalHook = decide
    on_approval: OnApproval = hook
    decision = bound(ApprovalDecided(call_id="c1", approved=True, definition=definition_of(spec)))
    question = question_of(ApprovalRequested(call_id="c1", name="refund", arguments={}, timeout_seconds=60.0))
    questions = OpenQuestions()
    questions.feed(question)
    print([each.name for each in questions])  # ['refund']
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import orjson

from .._option_checks import shown
from ..errors import BusError
from ..events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    RequestEnding,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from ..protocols import ToolSpec
from ..records import replace

__all__ = [
    "ApprovalHook",
    "ApprovalPolicy",
    "OnApproval",
    "OpenQuestions",
    "bound",
    "definition_of",
    "needs_approval",
    "question_of",
]

ApprovalPolicy: TypeAlias = bool | Callable[[ToolSpec, Mapping[str, Any]], bool]
"""The calls of a request that have to be approved: all (True), none (False), or those for which a function says so.

The function gets the tool and the call's validated arguments. A policy replaces the tools' own settings, and may read
them as `spec.needs_approval`.
"""

ApprovalHook: TypeAlias = Callable[[ApprovalRequested], Awaitable[ApprovalDecided | bool]]
"""An async function that decides on a call: it returns whether the call may run, or `question.decided(...)`."""

OnApproval: TypeAlias = ApprovalHook | Literal["wait"]
"""The answer to questions: a function that decides, or "wait" for an application that decides in its own time."""

# Every call of a tool needs the digest of its tool. Only `definition_of` uses this cache; it is keyed by `id(spec)`.
_digests: dict[int, tuple[ToolSpec, str]] = {}
_MAX_DIGESTS = 4_096


_ABOUT_QUESTIONS = (
    ApprovalRequested,
    ApprovalDecided,
    ToolCallPaused,
    ToolCallResumed,
    ToolCallRequested,
    ToolCallCompleted,
    ToolCallFailed,
)


class OpenQuestions:
    """The questions of a request that nobody has answered, made by `feed` from its facts.

    Iterating gives them in the order of asking, also those of the requests below, which are in `ToolCallPaused`.
    """

    def __init__(self) -> None:
        # By request and call, with the call of this request that waits for the answer.
        self._found: dict[tuple[str, str], tuple[str, ApprovalRequested]] = {}

    def __iter__(self) -> Iterator[ApprovalRequested]:
        return iter([question for _, question in self._found.values()])

    def feed(self, fact: Event) -> None:
        """Take the next fact of the request."""
        if isinstance(fact, RequestEnding):
            self._found.clear()
        elif isinstance(fact, _ABOUT_QUESTIONS):
            self._found = {key: each for key, each in self._found.items() if each[0] != fact.call_id}
            asked = fact.pending_approvals if isinstance(fact, ToolCallPaused) else (fact,)
            for each in asked:
                if isinstance(each, ApprovalRequested):
                    self._found[each.request_id, each.call_id] = fact.call_id, each


def definition_of(spec: ToolSpec) -> str:
    """Return a digest of a tool: what a person was shown, what calls are checked by, and where and how often they run.

    Without the last of these, a call that had been requested could run once more in the pool that its tool has now.
    """
    known = _digests.get(id(spec))
    if known is not None and known[0] is spec:
        return known[1]
    runs = [spec.external, spec.pool, spec.idempotent]
    defined = [spec.name, spec.description, spec.parameters, *(runs if any(runs) else ())]
    digest = hashlib.sha256(orjson.dumps(defined, default=dict, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
    if len(_digests) >= _MAX_DIGESTS:
        _digests.clear()
    _digests[id(spec)] = (spec, digest)
    return digest


def needs_approval(policy: ApprovalPolicy | None, spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    """Return whether the call has to wait for a person. Raises what the policy or the tool's rule raises."""
    if policy is not None:
        return policy if isinstance(policy, bool) else bool(policy(spec, arguments))
    rule = spec.needs_approval
    return rule if isinstance(rule, bool) else bool(rule(arguments))


def bound(decided: ApprovalDecided) -> ApprovalDecided:
    """Return the decision with its own copy of the edited arguments, since the caller may change them afterwards.

    The copy is what JSON makes of them. Arguments that are not JSON are kept; they are refused when the call is decided
    on.
    """
    if decided.arguments is not None:
        with contextlib.suppress(TypeError):
            return replace(decided, arguments=orjson.loads(orjson.dumps(decided.arguments)))
    return decided


def question_of(given: object) -> ApprovalRequested:
    """Return the question that a person decides on. Raises `BusError` for anything else, such as the id of its call."""
    if isinstance(given, ApprovalRequested):
        return given
    raise BusError(f"{shown(given)} is not a question; pass one of pending_approvals, or the ApprovalRequested event")
