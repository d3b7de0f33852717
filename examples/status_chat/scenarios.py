"""The scenarios: their questions, and a script that plays the model.

`play` answers as a model would, from the messages that it is sent, with the results of its tools. `word` is the quick
model that writes the status line's sentences. Both work with a `ScriptedProvider` and with the stub of a server.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolbus.messages import AssistantMessage, Message, ToolMessage, UserMessage
from toolbus.protocols import ToolSpec
from toolbus.providers.scripted import Step
from toolbus.testing import calls, hang, text

__all__ = ["SCENARIOS", "Scenario", "play", "word"]


class Asked(Protocol):
    """The request that a script reads: a `ModelRequest`, or a `WireRequest` that came over a socket."""

    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def tools(self) -> Sequence[ToolSpec]: ...


@dataclass(frozen=True)
class Turn:
    """The turn so far, as the model sees it: the number of its replies, and the results of its calls."""

    round: int
    results: Sequence[str]
    may_call: bool

    def data(self, index: int) -> Any:
        """A result that is JSON."""
        return json.loads(self.results[index])


@dataclass(frozen=True)
class Scenario:
    """A question, what it shows, how it ends, and the script that plays the model."""

    name: str
    shows: str
    question: str
    outcome: str
    model: Callable[[Turn], Step]
    timeout_seconds: float = 600.0


# ------------------------------------------------------------------------------------------------- the models


def _single(turn: Turn) -> Step:
    if not turn.results:
        return calls(("lookup_user", {"user_id": 123}))
    return text(f"User 123 is {turn.data(0)['name']}, who has the {turn.data(0)['plan']} plan.")


def _sequential(turn: Turn) -> Step:
    match turn.round:
        case 0:
            return calls(("lookup_user", {"user_id": 123}))
        case 1:
            return calls(("file_read", {"name": "plans.toml"}), text="I will look at what her plan includes.")
        case 2:
            included = tomllib.loads(turn.results[1])[turn.data(0)["plan"]]["storage"]
            return calls(("calculator", {"expression": f"{included} - {turn.data(0)['storage_used']}"}))
        case 3:
            return calls(("calculator", {"expression": f"{turn.results[2]} / 12.5"}))
        case _:
            left, months = turn.results[2:]
            return text(f"She has {left} GB left. At 12.5 GB a month that is enough for {float(months):g} months.")


def _recovery(turn: Turn) -> Step:
    match turn.round:
        case 0:  # two calls at once, because neither needs the other's result
            return calls(("lookup_user", {"user_id": 123}), ("file_read", {"name": "setings.toml"}))
        case 1:
            there = re.findall(r"\w+\.toml", turn.results[1])  # the error lists the files after the wrong name
            return calls(("file_read", {"name": next(name for name in there[1:] if name.startswith("set"))}))
        case _:
            theme = tomllib.loads(turn.results[2])["appearance"]["theme"]
            return text(f"{turn.data(0)['name']}'s theme is {theme}.")


def _max_rounds(turn: Turn) -> Step:
    if turn.may_call:
        return calls(("lookup_user", {"user_id": turn.round + 1}))
    return text(f"None of the first {len(turn.results)} users drinks tea. I did not get to the others.")


def _errors(turn: Turn) -> Step:
    if turn.may_call:
        return calls(("file_read", {"name": f"invoice-{turn.round + 1}.pdf"}))
    return text("I found no invoice: no file that I tried is there.")


def _timeout(_turn: Turn) -> Step:
    return calls(("search_archive", {"words": "anniversary"}), text="That may be in the archive.")


def _no_tools(_turn: Turn) -> Step:
    return text("Paris.")


def _give_up(_turn: Turn) -> Step:
    return calls(("give_up", {"reason": "none of my tools can send messages"}))


def _unknown_tool(_turn: Turn) -> Step:
    return calls(("web_search", {"query": "weather in Paris"}))


def _free(question: str, turn: Turn) -> Step:
    """Answer anything that is typed in the chat: this script recognises users, files and sums."""
    if turn.results:
        return text(f"This is what I found: {' '.join(turn.results)}")
    if user := re.search(r"user (\d+)", question, re.IGNORECASE):
        return calls(("lookup_user", {"user_id": int(user[1])}))
    if file := re.search(r"[\w-]+\.\w*[a-z]\w*", question):
        return calls(("file_read", {"name": file[0]}))
    if total := re.search(r"[\d(][\d\s.()+*/-]*[\d)]", question):
        return calls(("calculator", {"expression": total[0]}))
    return text("I am a stub, and I know users (user 7), files (settings.toml) and sums (2 + 3 * 4).")


# ------------------------------------------------------------------------------------------------- the scenarios

SCENARIOS = {
    each.name: each
    for each in (
        Scenario("single", "one call, then the answer", "Who is user 123?", "completed", _single),
        Scenario(
            "sequential",
            "four calls, each of which uses the result before it",
            "For how many months has user 123 storage left, at 12.5 GB a month?",
            "completed",
            _sequential,
        ),
        Scenario(
            "recovery",
            "a tool fails, and the model tries another way",
            "Which theme has user 123?",
            "completed",
            _recovery,
        ),
        Scenario(
            "max-iterations", "a model that would never stop", "Look for a user who drinks tea.", "stopped", _max_rounds
        ),
        Scenario("errors", "three failures in a row", "What does the newest invoice say?", "stopped", _errors),
        Scenario(
            "timeout",
            "a tool that takes for ever, and a request with 3 seconds instead of 10 minutes",
            "When is our anniversary?",
            "stopped",
            _timeout,
            timeout_seconds=3.0,
        ),
        Scenario("no-tools", "an answer without tools", "What is the capital of France?", "completed", _no_tools),
        Scenario("give-up", "a model that says it cannot", "Tell Ada that her plan ends today.", "stopped", _give_up),
        Scenario("unknown-tool", "a tool that is not there", "How is the weather in Paris?", "stopped", _unknown_tool),
    )
}
_MODELS = {each.question: each.model for each in SCENARIOS.values()}


def play(asked: Asked) -> Step:
    """The next reply of the model."""
    start, message = max((at, each) for at, each in enumerate(asked.messages) if isinstance(each, UserMessage))
    question, since = message.text, asked.messages[start + 1 :]
    turn = Turn(
        round=sum(isinstance(each, AssistantMessage) for each in since),
        results=[each.content for each in since if isinstance(each, ToolMessage)],
        may_call=bool(asked.tools),
    )
    model = _MODELS.get(question)
    return _free(question, turn) if model is None else model(turn)


def word(asked: Asked) -> Step:
    """The quick model's sentence about a call. For files it comes too late, so "Using File Read..." stays."""
    prompt = "".join(each.text for each in asked.messages if isinstance(each, UserMessage))
    if "Tool: Lookup User" in prompt:
        return text("Looking up the user in the database")
    if "Tool: Search Archive" in prompt:
        return text("Searching the tape archive for old messages")
    return hang()
