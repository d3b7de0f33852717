"""The MongoDB store keeps the contract of stores, over the wire of a server."""

from __future__ import annotations

from itertools import count

import pytest

from support.mongo_server import MongoServer
from toolbus.stores.mongo import MongoStore
from toolbus.stores.sqlite import Durability
from toolbus.testing import check_store, store_checks

BIG = {"large-messages", "large-facts", "reads-cancelled", "odd-ids"}  # which another event loop does not change


async def check_mongo(server: MongoServer, durability: Durability, without: set[str]) -> None:
    numbers = count()
    with server.database() as (url, name):

        def opened(database: str) -> MongoStore:
            return MongoStore(url, database, durability=durability)

        report = await check_store(
            lambda: opened(f"{name}_{next(numbers)}"), reopen=lambda store: opened(store.database), without=without
        )
    assert report.passed == tuple(each for each in store_checks() if each not in without)


@pytest.mark.guarantee("G11", "G20")
async def test_the_mongo_store_keeps_the_contract(mongo: MongoServer, anyio_backend_name: str) -> None:
    await check_mongo(mongo, "process", set() if anyio_backend_name == "asyncio" else BIG)
