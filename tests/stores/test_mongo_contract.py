"""The MongoDB store keeps the contract of stores, over the wire of a server."""

from __future__ import annotations

from itertools import count

import pytest

from support.mongo_server import MongoServer
from toolbus.stores.mongo import MongoStore
from toolbus.testing import check_store, store_checks

CANCELLED = ("append-cancelled", "ending-cancelled", "remember-cancelled", "many-sessions", "closed-while-writing")


@pytest.mark.guarantee("G11", "G20")
async def test_the_mongo_store_keeps_the_contract(mongo: MongoServer, anyio_backend_name: str) -> None:
    # Nothing behind the store's threads knows of event loops, and each check costs the server's time.
    only = None if anyio_backend_name == "asyncio" else CANCELLED
    numbers = count()
    with mongo.database() as (url, name):

        def opened(database: str) -> MongoStore:
            return MongoStore(url, database, durability="process")

        report = await check_store(
            lambda: opened(f"{name}_{next(numbers)}"), reopen=lambda store: opened(store.database), only=only
        )
    assert {*report.passed} == {*(only or store_checks())}
