"""Log lines for applications that configure no logging of their own: `configure()`, and a formatter for JSON lines.

toolbus writes to loggers under `toolbus`, and configures nothing by itself. Every line is listed in the reference page
"Log lines". Knows the standard library's `logging` and orjson.

Example:
    import logging

    from toolbus.logs import JsonFormatter, configure

    configure(level="INFO", json=True)  # for programs without their own configuration

    handler = logging.StreamHandler()  # in a configuration of yours
    handler.setFormatter(JsonFormatter())
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from ._logs import message_of
from ._option_checks import check, one_of
from .errors import ConfigurationError

__all__ = ["JsonFormatter", "configure"]

_FIELDS = ("request_id", "conversation_id", "call_id", "event_id", "metadata")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
# Other line breaks, and changes of the direction of writing, make a line look like another one.
_MISLEADING = [0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_ESCAPED_IN_JSON = {code: f"\\u{code:04x}" for code in [*range(127, 160), *_MISLEADING]}
# A line break or an escape sequence in the text of a tool's error must not look like a separate line.
_ESCAPED = {**_ESCAPED_IN_JSON, **{code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}}


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object without line breaks, for any handler.

    Its fields are `time` (UTC, ISO 8601, milliseconds), `level`, `logger`, `message`, and, where the line has them,
    `request_id`, `conversation_id`, `call_id`, `event_id`, `metadata` and `exception` (the traceback). What has no JSON
    form is written as its `repr`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": message_of(record),
        }
        line |= {name: value for name in _FIELDS if (value := getattr(record, name, None))}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # A filter, such as the one that removes secrets, has replaced the exception by its text.
            line["exception"] = record.exc_text
        try:
            written = orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # Half of a surrogate pair, a cycle, or an integer of more than 64 bits.
            return orjson.dumps({name: ascii(value) for name, value in line.items()}).decode()
        return written.translate(_ESCAPED_IN_JSON)


def configure(*, level: str = "INFO", json: bool = False, stream: TextIO | None = None) -> logging.Handler:
    """Write the lines of toolbus from `level` on to `stream`, by default standard error; with `json` as JSON lines.

    `level` is "DEBUG", "INFO", "WARNING" or "ERROR". The lines do not reach the handlers of the root logger as well. A
    second call replaces what the first has set. Returns the handler, so that an application can add a filter or another
    formatter. Raises `ConfigurationError`. An application that configures `logging` itself needs none of this, except
    perhaps `JsonFormatter`.
    """
    check("level", level, one_of(*_LEVELS))
    if stream is not None and not hasattr(stream, "write"):
        raise ConfigurationError(f"stream is of type {type(stream).__name__}; pass an open text file")
    root = logging.getLogger("toolbus")
    for old in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(old)
    handler = _Handler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if json else _LineFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
    return handler


class _Handler(logging.StreamHandler[TextIO]):
    """The handler of `configure`, which its next call replaces."""


class _LineFormatter(logging.Formatter):
    """Formats a record as one line of text, and a traceback on indented lines after it: none looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text without control characters."""
        return "\n  ".join(line.translate(_ESCAPED) for line in super().format(record).split("\n"))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- named by `logging`
        record.message = record.message.translate(_ESCAPED)
        return super().formatMessage(record)
