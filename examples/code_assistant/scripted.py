"""A script that replaces the model when there is no key: it asks for code, and answers from what it is sent.

No language model takes part, and the answers say so.
"""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any

from toolbus.core.tokens import estimate_message, estimate_text
from toolbus.messages import ToolMessage, Usage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.records import replace
from toolbus.testing import ScriptedProvider, calls, text

__all__ = ["scripted_model"]

_NAME = re.compile(r"`([^`]+)`|\b(\w+_\w+|[A-Z][a-z]+[A-Z]\w*)\b")  # `quoted`, with_underscore, CamelCase
_MAX_NAMES = 2
_NO_MODEL = "(Put together by a script; no language model took part. --provider NAME asks one.)"


def scripted_model(piece_seconds: float = 0.02) -> ScriptedProvider:
    """The scripted provider, which streams its answer in pieces, `piece_seconds` apart."""

    def step(request: ModelRequest) -> Any:
        asked = max(place for place, each in enumerate(request.messages) if isinstance(each, UserMessage))
        results = [each for each in request.messages[asked:] if isinstance(each, ToolMessage)]
        usage = Usage(input_tokens=sum(map(estimate_message, request.messages)), output_tokens=20)
        if not results:
            question = request.messages[asked]
            assert isinstance(question, UserMessage)
            return calls(*_wanted(question.text), usage=usage)
        answer = _answer([json.loads(each.content) for each in results])
        return text(answer, 40, delays=piece_seconds, usage=replace(usage, output_tokens=estimate_text(answer)))

    return ScriptedProvider(step, record=False)


def _wanted(question: str) -> list[tuple[str, dict[str, Any]]]:
    """A call for the whole question, and one for each name in it, all in one reply."""
    names = dict.fromkeys(quoted or plain for quoted, plain in _NAME.findall(question))
    wanted: list[dict[str, Any]] = [{"token_budget": 2_000}]
    wanted += [{"token_budget": 1_000, "hint": name} for name in list(names)[:_MAX_NAMES]]
    return [("request_code_context", arguments) for arguments in wanted]


def _answer(results: list[dict[str, Any]]) -> str:
    errors = [each["error"] for each in results if not each["ok"]]
    # The calls for names come last, and their results are more relevant than those for the whole question.
    found = {each["id"]: each for result in reversed(results) if result["ok"] for each in result["results"]}
    if not found:
        why = f"The search failed: {errors[0]}." if errors else "Nothing in the sources fits these words."
        return f"I cannot answer that. {why}\n\n{_NO_MODEL}"
    best, *others = found.values()
    see = ", ".join(each["id"] for each in others[:3])
    also = f"\n\nSee also {see}." if see else ""
    return f"Look at {best['id']}:\n\n{_excerpt(best['text'])}{also}\n\n{_NO_MODEL}"


def _excerpt(source: str, lines: int = 12) -> str:
    shown = textwrap.dedent(source).splitlines()
    more = ["    ..."] if len(shown) > lines else []
    return "\n".join([*(f"    {line}" for line in shown[:lines]), *more])
