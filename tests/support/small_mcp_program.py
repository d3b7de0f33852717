"""A small MCP server over stdio, of the older protocol, without the SDK, so that it starts at once.

Its tools: `pid`, `environment`, `arguments`, `hang` (never answers), `die` (exits at once). `half`, `nothing` and
`deep` answer with values that the SDK cannot read: half of a surrogate pair, a result that is null, and lists nested
300 deep. `many` answers with 200,000 values, and `endless` with a line of 300,000 bytes that does not end. With `--fail`, it prints an error and exits before any answer, and with
`--strict` it does so if the first message is not `initialize`. With `--chatty`, it prints a greeting in
Latin-1 to stdout, where answers belong, and a log line before each answer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

UNREADABLE: dict[str, Any] = {
    "half": {"content": [{"type": "text", "text": "\ud83d"}]},
    "nothing": None,
    "many": {"content": [], "structuredContent": {"values": [0] * 200_000}},
    "deep": {"content": [], "structuredContent": {"lists": json.loads("[" * 300 + "]" * 300)}},
}
TOOLS = ("pid", "environment", "arguments", "hang", "die", "endless", *UNREADABLE)


def answer(method: str, params: dict[str, Any]) -> Any:
    if method == "initialize":
        about = {"name": "small", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [{"name": each, "inputSchema": {"type": "object"}} for each in TOOLS]}
    if method == "tools/call":
        name = params["name"]
        if name == "die":
            os._exit(3)
        if name == "endless":
            os.write(1, b"x" * 300_000)
            return {}
        said = {"pid": os.getpid(), "environment": dict(os.environ), "arguments": [str(Path.cwd()), *sys.argv[1:]]}[
            name
        ]
        return {"content": [{"type": "text", "text": json.dumps(said)}]}
    return None


def main() -> None:
    if "--fail" in sys.argv:
        sys.exit("the key is wrong\nget another one")
    if "--chatty" in sys.argv:
        os.write(1, "Le café est ouvert\n".encode("latin-1"))
    is_strict = "--strict" in sys.argv
    for line in sys.stdin:
        message = json.loads(line)
        if is_strict and message["method"] != "initialize":
            sys.exit("expected initialize")
        is_strict = False
        if "id" not in message or message.get("params", {}).get("name") == "hang":
            continue
        if message.get("params", {}).get("name") in UNREADABLE:
            tell(message, {"result": UNREADABLE[message["params"]["name"]]})
            continue
        result = answer(message["method"], message.get("params", {}))
        reported = {"error": {"code": -32601, "message": "what?"}} if result is None else {"result": result}
        tell(message, reported)


def tell(message: dict[str, Any], reported: dict[str, Any]) -> None:
    if "--chatty" in sys.argv:
        sys.stdout.write(json.dumps({"level": 50, "id": message["id"], "error": "none"}) + "\n")
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reported}) + "\n")
    sys.stdout.flush()


main()
