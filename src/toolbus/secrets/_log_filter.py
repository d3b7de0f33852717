"""The filter that keeps secrets out of the log: out of messages, and out of tracebacks, which become text."""

from __future__ import annotations

import logging
import traceback
import weakref
from typing import Protocol

from .._logs import LOGGERS
from ._vault import Vault


class HasVault(Protocol):
    """The secrets of one request."""

    vault: Vault | None


# Logging belongs to the process, so the filter finds the secrets of a line by the request id that the line has.
_by_request: weakref.WeakValueDictionary[str, HasVault] = weakref.WeakValueDictionary()


def hide_in_log(request_id: str, secrets: HasVault) -> None:
    """Remove the secrets of a request from every log record of toolbus from now on, for as long as they exist."""
    _by_request[request_id] = secrets
    for name in LOGGERS:
        there = logging.getLogger(name)
        if not any(isinstance(each, _SecretFilter) for each in there.filters):
            there.addFilter(_SecretFilter())


class _SecretFilter(logging.Filter):
    """A filter that lets every record pass, without secrets. An exception is replaced by its traceback as text.

    The exception itself would still contain the secrets.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        request_id: str = getattr(record, "request_id", "")
        before = record.getMessage()
        after = _without_secrets(request_id, before)
        if after is None:
            return True
        if after != before:
            record.msg, record.args = after, ()
        if record.exc_info and record.exc_info[1] is not None:
            text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
            record.exc_text, record.exc_info = _without_secrets(request_id, text), None
        if record.stack_info:
            record.stack_info = _without_secrets(request_id, record.stack_info)
        return True


def _without_secrets(request_id: str, text: str) -> str | None:
    """Return a log line without the secrets of its request, or of all requests if it names no request.

    Returns None if there is nothing to hide; otherwise the text, changed or not.
    """
    if request_id:
        mine = _by_request.get(request_id)
        keepers = [] if mine is None else [mine]
    else:
        keepers = list(_by_request.values())
    vaults = {id(vault): vault for each in keepers if (vault := each.vault)}
    for vault in vaults.values():
        text = vault.shown(text)
    return text if vaults else None
