"""The functions that a `MongoStore` runs in its threads. Importing this module imports the driver."""

from ._connection import Names, Server, ServerConnection
from ._conversations import conversations, history
from ._inbox import park, receipt, send_all, settle, waiting
from ._journal import Step, append_all, facts
from ._leases import abandon, release, renew, request, requests, take, unfinished
from ._order import drop_old_turns, renew_turn, return_turn, take_turn
from ._turns import remember
from ._upkeep import forget, prune_conversations, prune_requests, statistics

__all__ = [
    "Names",
    "Server",
    "ServerConnection",
    "Step",
    "abandon",
    "append_all",
    "conversations",
    "drop_old_turns",
    "facts",
    "forget",
    "history",
    "park",
    "prune_conversations",
    "prune_requests",
    "receipt",
    "release",
    "remember",
    "renew",
    "renew_turn",
    "request",
    "requests",
    "return_turn",
    "send_all",
    "settle",
    "statistics",
    "take",
    "take_turn",
    "unfinished",
    "waiting",
]
