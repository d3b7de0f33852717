"""The scripted player, instead of a model. Like a model, it knows only what it is sent.

It mines until the hold is full, sells at a port, refuels when the tank is too empty, and logs in when it has no session
or its session is no longer known. It makes mistakes, and reads the errors. It takes typed words as orders.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from toolbus.errors import ProviderError
from toolbus.messages import SystemMessage, ToolMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.secrets import REFERENCE
from toolbus.testing import calls, error, text

__all__ = ["MISHAP_TURN", "play"]

MISHAP_TURN = 6
"""The autoplay turn in which the model fails once, to show that this ends the turn and nothing else."""

_MINING_DAYS = 3  # the days on which it mines in one turn
_ORDERS = {"status": "get_status", "map": "get_map", "mine": "mine", "refuel": "refuel"}


@dataclass
class _Turn:
    """The content of a request: all results that are `known`, and the `results` of this turn since the newest login."""

    prompt: str
    known: list[ToolMessage]
    results: list[ToolMessage]
    session: str

    def newest(self, *tools: str) -> ToolMessage | None:
        return next((each for each in reversed(self.results) if _tool(each) in tools), None)

    def call(self, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        return f"game__{tool}", {**arguments, "session": self.session}


def play(request: ModelRequest) -> Step:
    """The next reply."""
    turn = _read(request)
    last = turn.known[-1] if turn.known else None
    if not turn.session or (last is not None and last.is_error and re.search("session|secret", last.content)):
        about = "".join(each.text for each in request.messages if isinstance(each, SystemMessage))
        pilot, password = re.findall(r"pilot (\S+),", about)[0], REFERENCE.findall(about)[0]
        return calls(("game__login", {"pilot": pilot, "password": password}))
    if autoplay := re.match(r"Turn (\d+)", turn.prompt):
        if int(autoplay[1]) == MISHAP_TURN and turn.newest("get_status"):
            return error(ProviderError("the model's server has answered 400 (this script plans it for this turn)"))
        return _continue(turn, is_new=not any(_tool(each) == "mine" for each in turn.known))
    return _obey(turn)


def _read(request: ModelRequest) -> _Turn:
    asked = max(place for place, each in enumerate(request.messages) if isinstance(each, UserMessage))
    prompt = request.messages[asked]
    assert isinstance(prompt, UserMessage)
    results = [each for each in request.messages if isinstance(each, ToolMessage)]
    logins = [each for each in results if _tool(each) == "login" and not each.is_error]
    session: str = json.loads(logins[-1].content)["session"] if logins else ""
    of_turn: list[ToolMessage] = []
    for each in request.messages[asked:]:
        if isinstance(each, ToolMessage):
            of_turn = [] if _tool(each) == "login" else [*of_turn, each]
    return _Turn(prompt.text, results, of_turn, session)


def _tool(result: ToolMessage) -> str:
    return result.name.removeprefix("game__")


def _continue(turn: _Turn, *, is_new: bool) -> Step:
    """The next step of the round trip: fly to a belt, mine, fly back to a port, sell."""
    status, chart = turn.newest("get_status"), turn.newest("get_map")
    if status is None or chart is None or status.is_error or chart.is_error:
        return calls(turn.call("get_status"), turn.call("get_map"))
    ship, places = json.loads(status.content), json.loads(chart.content)
    last = turn.newest("travel", "mine", "sell", "refuel")
    if last is None:
        if ship["is_port"] and ship["cargo"]:
            return calls(*[turn.call("sell", ore=ore, units=units) for ore, units in ship["cargo"].items()])
        return _away(turn, ship, places) if ship["is_port"] and not is_new else calls(turn.call("mine"))
    said = last.content.split(" Flight log")[0].split(" Drill log")[0].split(" Receipt")[0]
    match _tool(last), last.is_error:
        case "mine", False if len(turn.results) < _MINING_DAYS + 2:
            return calls(turn.call("mine"))
        case "mine", True:
            return _away(turn, ship, places)
        case "travel", True:
            return calls(turn.call("refuel"))
        case "refuel", False:
            return _away(turn, ship, places)
        case _:
            return text(said)


def _away(turn: _Turn, ship: dict[str, Any], chart: dict[str, Any]) -> Step:
    """Fly to a port that pays well if there is anything to sell, otherwise to a belt, which changes from day to day."""
    if ship["cargo"]:
        worth = {each["port"]: sum(each["pays"][ore] for ore in ship["cargo"]) for each in chart["ports"]}
        return calls(turn.call("travel", to=max(worth, key=lambda name: worth[name])))
    belts = chart["belts"]
    return calls(turn.call("travel", to=belts[ship["day"] % len(belts)]["belt"]))


def _obey(turn: _Turn) -> Step:
    """Carry out a typed order."""
    word, _, rest = turn.prompt.strip().partition(" ")
    if word == "loop":  # this plays a model that is stuck
        return calls(turn.call(("get_status", "get_map")[len(turn.results) % 2]))
    if turn.results:
        last = turn.results[-1]
        return text(f"That did not work: {json.loads(last.content)['error']}" if last.is_error else last.content)
    if word == "travel":
        return calls(turn.call("travel", to=rest))
    if word == "sell" and len(rest.split()) == 2 and rest.split()[1].isdecimal():
        return calls(turn.call("sell", ore=rest.split()[0], units=int(rest.split()[1])))
    if word in _ORDERS:
        return calls(turn.call(_ORDERS[word]))
    return text("I am a script, and know: status, map, mine, refuel, travel PLACE, sell ORE UNITS, loop.")
