"""Which calls a person has to approve, and what an approval is for. Pure."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import orjson

from ..events import ApprovalDecided
from ..protocols import ToolSpec

__all__ = ["ApprovalPolicy", "bound", "definition_of", "needs_approval"]

ApprovalPolicy: TypeAlias = bool | Callable[[ToolSpec, Mapping[str, Any]], bool]
"""Which calls of a request have to be approved: all, none, or those for which a function of the tool and the call's
validated arguments says so. It stands in the place of the tools' own marks, and may ask them: `spec.approval`."""


_digests: dict[int, tuple[ToolSpec, str]] = {}  # a memory of this function alone: each call of a tool asks for one
_MOST_DIGESTS = 4_096


def definition_of(spec: ToolSpec) -> str:
    """A digest of what a person was told of the tool, and calls are checked by: its name, description and schema."""
    known = _digests.get(id(spec))
    if known is not None and known[0] is spec:
        return known[1]
    told = orjson.dumps([spec.name, spec.description, spec.parameters], default=dict, option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(told).hexdigest()[:32]
    if len(_digests) >= _MOST_DIGESTS:
        _digests.clear()
    _digests[id(spec)] = (spec, digest)
    return digest


def needs_approval(policy: ApprovalPolicy | None, spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    """Whether the call has to wait for a person. A policy or rule that raises means yes: nothing may slip through."""
    try:
        if policy is not None:
            return policy if isinstance(policy, bool) else bool(policy(spec, arguments))
        rule = spec.approval
        return rule if isinstance(rule, bool) else bool(rule(arguments))
    except Exception:  # the application's code, in the middle of a decision
        return True


def bound(decided: ApprovalDecided) -> ApprovalDecided:
    """The decision with edits of its own, as JSON has them: whoever has made them may change theirs afterwards.

    Edits that are not JSON stay as they are; they are refused when the call is decided on.
    """
    if decided.arguments is not None:
        with contextlib.suppress(TypeError):
            return replace(decided, arguments=orjson.loads(orjson.dumps(decided.arguments)))
    return decided
