"""The functions that a `DatabaseStore` runs in its threads and that every kind of database has: see `ThreadedStore`."""

from .inbox import park, receipt, send_all, settle, waiting
from .order import renew_turn, return_turn
from .read import conversations, facts, history, request, requests, statistics, unfinished
from .upkeep import release, renew

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
