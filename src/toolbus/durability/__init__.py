"""The face of `toolbus.durability`."""

from __future__ import annotations

from ._agreement import FUNCTION, agreed_by, limits_in, messages_from, messages_to_json, options_in
from ._journal_writer import Keeper, OnStoreFailure, keeper_of
from ._resume import OptionsFor, Resumption, Unfinished
from ._store_calls import answered

__all__ = [
    "FUNCTION",
    "Keeper",
    "OnStoreFailure",
    "OptionsFor",
    "Resumption",
    "Unfinished",
    "agreed_by",
    "answered",
    "keeper_of",
    "limits_in",
    "messages_from",
    "messages_to_json",
    "options_in",
]
