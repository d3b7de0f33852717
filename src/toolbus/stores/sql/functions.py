"""The functions that a `DatabaseStore` runs in its threads and that every kind of database has: see `Engine`."""

from .read import conversations, facts, history, request, requests, statistics, unfinished
from .upkeep import release, renew

__all__ = ["conversations", "facts", "history", "release", "renew", "request", "requests", "statistics", "unfinished"]
