"""The assistant's tools: users in a database, files in a folder, sums, and an archive that takes for ever.

Their data comes with the request, as its `deps`. They know nothing of status lines, and raise `ToolError` with texts
that help a model to correct its call.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import anyio
from pydantic import Field

from toolbus import ToolContext, ToolError, tool

__all__ = ["TOOLS", "Backend"]

HERE = Path(__file__).parent


def _users() -> dict[int, dict[str, Any]]:
    names = ["Grace Hopper", "Alan Turing", "Edsger Dijkstra", "Barbara Liskov", "Tony Hoare", "Donald Knuth"]
    names += ["Niklaus Wirth", "Frances Allen", "John Backus", "Kathleen Booth", "Ken Thompson", "Dennis Ritchie"]
    users: dict[int, dict[str, Any]] = {
        number: {"name": name, "plan": "basic", "storage_used": 3 * number, "drinks": "coffee"}
        for number, name in enumerate(names, 1)
    }
    return {**users, 123: {"name": "Ada Lovelace", "plan": "studio", "storage_used": 162.5, "drinks": "tea"}}


@dataclass(frozen=True)
class Backend:
    """The data of the tools. `seconds` is the time that the database and the disk take."""

    seconds: float = 0.5
    files: Path = HERE / "files"
    users: dict[int, dict[str, Any]] = field(default_factory=_users)


# The next two tools have no sentence of their own (`@tool(status=...)`): a quick model writes one for each call.
@tool(idempotent=True)
async def lookup_user(user_id: int, context: ToolContext[Backend]) -> dict[str, Any]:
    """Look up a user's name, plan, used storage (in gigabytes) and favourite drink in the database."""
    backend = context.deps
    await anyio.sleep(backend.seconds)
    if user_id not in backend.users:
        raise ToolError(f"there is no user {user_id}")
    return backend.users[user_id]


@tool(idempotent=True)
async def file_read(name: str, context: ToolContext[Backend]) -> str:
    """Read a configuration file by its name, such as settings.toml."""
    backend = context.deps
    await anyio.sleep(backend.seconds)
    files = {path.name: path for path in sorted(backend.files.iterdir())}  # so no path can leave the folder
    if name not in files:
        raise ToolError(f"there is no file {name!r}; there are {', '.join(files)}")
    return files[name].read_text(encoding="utf-8")


@tool(status="Working out {expression}", idempotent=True)
async def calculator(expression: Annotated[str, Field(max_length=200)]) -> float:
    """Work out a sum of numbers with + - * / and brackets."""
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError) as exc:
        raise ToolError(f"{expression!r} cannot be worked out: {exc}") from exc
    return value


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left) / _value(right)
        case _:
            raise ValueError("it has more than numbers, + - * / and brackets")


@tool(timeout_seconds=3_600)  # the archive may take an hour, but the request may not
async def search_archive(words: str) -> str:
    """Search the tape archive of old messages. Slow."""
    await anyio.sleep(3_000)
    return f"nothing about {words}"


TOOLS = [lookup_user, file_read, calculator, search_archive]
