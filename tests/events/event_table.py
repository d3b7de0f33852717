"""Makes the table of docs/reference/events.md from the classes. Run as a program, it writes the page anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from toolbus.events import EVENT_TYPES, Event, json_schema
from toolbus.records import Record, defaults_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
BEGIN, END = "<!-- events: made by tests/events/event_table.py -->", "<!-- end of events -->"
SCHEMA = json_schema()["$defs"]
SHARED = set(Event.__struct_fields__)


def table() -> str:
    """Facts, then signals: each with its type on the wire, what it means, and its own fields."""
    parts: list[str] = []
    for title, is_fact in (("Facts", True), ("Signals", False)):
        parts.append(f"## {title}\n")
        parts += [_section(kind) for kind in EVENT_TYPES if kind.is_fact is is_fact]
    return "\n".join(parts)


def _section(kind: type[Event]) -> str:
    own = [name for name in kind.__struct_fields__ if name not in SHARED]
    rows = "".join(f"| `{name}` | {_type(kind, name)} | {_default(kind, name)} |\n" for name in own)
    head = f"### {kind.__name__}\n\n`{kind.type}`. {_meaning(kind)}\n"
    return f"{head}\n| field | JSON | default |\n| --- | --- | --- |\n{rows}"


def _meaning(kind: type[Event]) -> str:
    return re.sub(r"\s+", " ", kind.__doc__ or "").strip()


def _type(kind: type[Event], name: str) -> str:
    return _words(SCHEMA[kind.__name__]["properties"][name])


def _words(schema: dict[str, Any]) -> str:
    """A JSON schema, in a few words."""
    if "$ref" in schema:
        return f"{schema['$ref'].rpartition('/')[2]}"
    if "discriminator" in schema:
        return "Message"
    if "anyOf" in schema:
        return " or ".join(_words(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_words(schema['items'])}"
    return str(schema.get("type", "any"))


def _default(kind: type[Event], name: str) -> str:
    defaults = defaults_of(kind)
    if name not in defaults:
        return "required"
    default = defaults[name]
    if isinstance(default, Record):
        return f"`{type(default).__name__}()`"
    written = {"": '""', (): "[]", None: "null", True: "true", False: "false"} if _is_plain(default) else {}
    return f"`{written.get(default, default)}`"


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, bool, tuple))


def page(text: str) -> str:
    """The page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
