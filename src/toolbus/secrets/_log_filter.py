"""The filter that keeps secrets out of the log: out of messages, and out of tracebacks, which become text."""

from __future__ import annotations

import logging
import traceback
import weakref
from typing import Protocol, TypeAlias

from .._logs import LOGGERS, message_of
from ._vault import Vault


class HasVault(Protocol):
    """The secrets of one request."""

    vault: Vault | None


# Logging belongs to the process, so the filter finds the secrets of a line by the request id that the line has. A
# request may have several, here by their `id`: those of its session, and those of each worker in this process. Lines
# come from threads, too, so `valuerefs` is read: a loop over the values breaks if one is added meanwhile.
_Keepers: TypeAlias = "weakref.WeakValueDictionary[int, HasVault]"
_by_request: weakref.WeakValueDictionary[str, _Keepers] = weakref.WeakValueDictionary()


def hide_in_log(request_id: str, secrets: HasVault) -> object:
    """Remove the secrets of a request from every log record of toolbus from now on.

    The filter works as long as both `secrets` and the returned object exist.
    """
    kept = _by_request.get(request_id)
    if kept is None:
        kept = _by_request[request_id] = weakref.WeakValueDictionary()
    kept[id(secrets)] = secrets
    for name in LOGGERS:
        there = logging.getLogger(name)
        if not any(isinstance(each, _SecretFilter) for each in there.filters):
            there.addFilter(_SecretFilter())
    return kept


class _SecretFilter(logging.Filter):
    """A filter that lets every record pass, without secrets. An exception is replaced by its traceback as text.

    The exception itself would still contain the secrets.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        request_id: str = getattr(record, "request_id", "")
        before = message_of(record)
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
    kept = [_by_request.get(request_id)] if request_id else [each() for each in _by_request.valuerefs()]
    keepers = [each() for some in kept if some is not None for each in some.valuerefs()]
    vaults = {id(vault): vault for each in keepers if each is not None and (vault := each.vault)}
    for vault in vaults.values():
        text = vault.shown(text)
    return text if vaults else None
