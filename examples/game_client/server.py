"""The game: a small space trader as an MCP server over stdio. The client starts it like any other MCP server.

The galaxy is made from `--seed`, the pilots' ships are saved in the file `--save`, and the password is in the
variable GAME_PASSWORD. The server is independent of toolbus.

python server.py --seed 7 --save galaxy.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import secrets
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field, SecretStr

HOLD, TANK, FUEL_PRICE = 20, 40, 2
PORTS = ("Harbour", "Lantern", "Quay", "Old Dock")
BELTS = {"Rust Belt": "iron", "Shallows": "ice", "Glint": "gold", "Veil": "helium", "Crumbs": "nickel"}
QUERY = ToolAnnotations(read_only_hint=True)
ACTION = ToolAnnotations(read_only_hint=False, destructive_hint=False)
Session = Annotated[SecretStr, Field(description="The session that login returned.")]  # "format": "password"


class Welcome(BaseModel):
    """The result of a login. The session is marked like `Session`, but not a SecretStr, which would send asterisks."""

    session: Annotated[str, Field(json_schema_extra={"format": "password"})]
    welcome: str
    rules: str


@dataclass
class Ship:
    """The state of a pilot and of the ship."""

    at: str = PORTS[0]
    day: int = 0
    credits: int = 50
    fuel: int = TANK
    cargo: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def free(self) -> int:
        return HOLD - sum(self.cargo.values())


class Game:
    """The rules of the game. Equal seeds and equal moves give equal games."""

    def __init__(self, seed: int, password: str, save: Path | None = None) -> None:
        self._seed, self._password, self._save = seed, password, save
        chance = random.Random(seed)
        self.places = {name: (chance.randrange(20), chance.randrange(20)) for name in (*PORTS, *BELTS)}
        self.prices = {port: {ore: chance.randrange(4, 20) for ore in BELTS.values()} for port in PORTS}
        kept: dict[str, Any] = json.loads(save.read_text()) if save is not None and save.exists() else {}
        self.ships = {pilot: Ship(**ship) for pilot, ship in kept.items()}
        self._sessions: dict[str, str] = {}  # these are not saved, so that pilots log in again after a restart

    def login(self, pilot: str, password: SecretStr) -> Welcome:
        """Log in. Returns the session that all other tools need."""
        if not secrets.compare_digest(password.get_secret_value(), self._password):
            raise ToolError("the password is wrong")
        session = secrets.token_hex(16)
        self._sessions[session] = pilot
        self.ships.setdefault(pilot, Ship())
        rules = f"A hold takes {HOLD} units, a tank {TANK} fuel. Mine at belts, sell and refuel at ports. " * 3
        return Welcome(session=session, welcome=f"Welcome aboard, {pilot}.", rules=rules.strip())

    def get_status(self, session: Session) -> dict[str, Any]:
        """Show the ship's location, its cargo, and the money."""
        ship = self._ship(session)
        return {**asdict(ship), "free": ship.free, "is_port": ship.at in PORTS, "tank": TANK}

    def get_map(self, session: Session) -> dict[str, Any]:
        """List all ports and belts: their distances, what can be mined there, and what they pay for ore."""
        ship = self._ship(session)
        ports = [
            {"port": name, "distance": self._distance(ship.at, name), "pays": prices}
            for name, prices in self.prices.items()
        ]
        belts = [{"belt": name, "distance": self._distance(ship.at, name), "ore": ore} for name, ore in BELTS.items()]
        return {"ports": ports, "belts": belts}

    def travel(self, to: str, session: Session) -> str:
        """Fly to a port or a belt. This uses one unit of fuel for each unit of distance."""
        ship = self._ship(session)
        if to not in self.places:
            raise ToolError(f"there is no {to!r}; get_map lists all ports and belts")
        distance = self._distance(ship.at, to)
        home = min(self._distance(to, port) for port in PORTS)
        if ship.fuel < distance + home:
            raise ToolError(
                f"not enough fuel for {to}, {distance} away and {home} from a port: there is {ship.fuel}; refuel first"
            )
        log = "; ".join(f"mark {mark}: course held, {ship.fuel - mark} fuel" for mark in range(1, distance + 1))
        ship.at, ship.fuel, ship.day = to, ship.fuel - distance, ship.day + 1
        return self._kept(f"Arrived at {to} on day {ship.day}. Flight log: {log}.")

    def mine(self, session: Session) -> str:
        """Mine for a day, at a belt."""
        ship = self._ship(session)
        ore = BELTS.get(ship.at)
        if ore is None:
            raise ToolError(f"there is nothing to mine at {ship.at}; belts are {', '.join(BELTS)}")
        if not ship.free:
            raise ToolError(f"the hold is full: {HOLD} units; sell them at a port")
        units = min(ship.free, random.Random(f"{self._seed} {ship.at} {ship.day}").randrange(4, 10))
        ship.cargo[ore] = ship.cargo.get(ore, 0) + units
        ship.day += 1
        log = "; ".join(f"drill {number}: rock cracked, sorted and stowed" for number in range(1, units + 1))
        return self._kept(f"Mined {units} {ore}; {ship.free} more will fit. Drill log: {log}.")

    def sell(self, ore: str, units: Annotated[int, Field(gt=0)], session: Session) -> str:
        """Sell ore, at a port."""
        ship = self._ship(session)
        if ship.at not in PORTS:
            raise ToolError(f"nobody buys at {ship.at}; ports are {', '.join(PORTS)}")
        if ship.cargo.get(ore, 0) < units:
            raise ToolError(f"there is no such cargo: the hold has {ship.cargo.get(ore, 0)} {ore}")
        price = self.prices[ship.at][ore]
        ship.cargo[ore] -= units
        ship.cargo = {name: left for name, left in ship.cargo.items() if left}
        ship.credits += units * price
        receipt = "; ".join(f"unit {number}: weighed, assayed, {price} credits" for number in range(1, units + 1))
        return self._kept(f"Sold {units} {ore} for {units * price}; you have {ship.credits}. Receipt: {receipt}.")

    def refuel(self, session: Session) -> str:
        """Fill the tank at a port, as far as the money lasts."""
        ship = self._ship(session)
        if ship.at not in PORTS:
            raise ToolError(f"there is no fuel at {ship.at}; ports are {', '.join(PORTS)}")
        units = min(TANK - ship.fuel, ship.credits // FUEL_PRICE)
        ship.fuel, ship.credits = ship.fuel + units, ship.credits - units * FUEL_PRICE
        return self._kept(f"Bought {units} fuel; the tank has {ship.fuel}, and you have {ship.credits} credits.")

    def _ship(self, session: SecretStr) -> Ship:
        pilot = self._sessions.get(session.get_secret_value())
        if pilot is None:
            raise ToolError("this session does not exist; log in first")
        return self.ships[pilot]

    def _distance(self, here: str, there: str) -> int:
        return math.ceil(math.dist(self.places[here], self.places[there]))

    def _kept(self, text: str) -> str:
        if self._save is not None:
            new = self._save.with_name(f"{self._save.name}.new")
            new.write_text(json.dumps({pilot: asdict(ship) for pilot, ship in self.ships.items()}))
            new.replace(self._save)  # the file is replaced whole, or not at all
        return text


def server_for(game: Game) -> MCPServer:
    """The game's tools, with hints for clients: which tools only read, and which act."""
    server = MCPServer("game")
    server.tool(annotations=ACTION)(game.login)
    for query in (game.get_status, game.get_map):
        server.tool(annotations=QUERY)(query)
    for action in (game.travel, game.mine, game.sell, game.refuel):
        server.tool(annotations=ACTION)(action)
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--save", type=Path, required=True)
    given = parser.parse_args()
    try:
        game = Game(given.seed, os.environ["GAME_PASSWORD"], given.save)
    except (ValueError, TypeError):
        sys.exit(f"{given.save} is not a saved game; delete it to begin a new one")
    server_for(game).run("stdio")
