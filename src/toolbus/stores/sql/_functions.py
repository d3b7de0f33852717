"""The functions that a `DatabaseStore` runs in its threads and that every kind of database has: see `ThreadedStore`."""

from ._inbox import park, receipt, send_all, settle, waiting
from ._order import renew_turn, return_turn
from ._read import conversations, facts, history, request, requests, statistics, unfinished
from ._upkeep import release, renew

__all__ = [
    "conversations",
    "facts",
    "history",
    "park",
    "receipt",
    "release",
    "renew",
    "renew_turn",
    "request",
    "requests",
    "return_turn",
    "send_all",
    "settle",
    "statistics",
    "unfinished",
    "waiting",
]
