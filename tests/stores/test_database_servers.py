"""The servers under the stores' tests: they start, keep what was committed, can be halted, and outlive nobody.

The tests of the MongoDB server hold what of MongoDB it keeps; `support/mongo_server.py` tells what it does not.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from pymongo import MongoClient, ReturnDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError
from pymongo.operations import InsertOne, UpdateOne

from support.mongo_server import MongoServer
from support.postgres_server import PostgresServer

TESTS = Path(__file__).parents[1]
SSL_REQUEST = bytes.fromhex("0000000804d2162f")  # the first packet of a connection; the answer is one letter
ENDS_WITHOUT_A_WORD = """
import sys
from support import {module}
server = {module}.shared()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


def family_of(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


# ------------------------------------------------------------------------------------------------- PostgreSQL


def test_each_database_is_empty_and_goes_with_its_block(postgres: PostgresServer):
    with postgres.database() as first, postgres.database() as second:
        with psycopg.connect(first) as connection:
            connection.execute("CREATE TABLE only_here (x int)")
        with psycopg.connect(second) as connection:
            assert connection.execute("SELECT to_regclass('only_here')").fetchone() == (None,)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(first)


def test_a_commit_waits_for_the_disk(postgres_url: str):
    with psycopg.connect(postgres_url) as connection:
        settings = [connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "synchronous_commit")]
    assert settings == [("on",), ("on",)]


def test_what_was_committed_is_there_after_a_kill_and_what_was_not_is_gone(postgres: PostgresServer, postgres_url: str):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (x int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO kept VALUES (2)")
        family = family_of(postgres.pid)
        postgres.kill()
        assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    postgres.start()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT x FROM kept").fetchall() == [(1,)]


def test_a_halted_server_answers_when_it_is_resumed(postgres: PostgresServer):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.05)
        with postgres.halted():
            connection.connect(str(postgres.folder / ".s.PGSQL.5432"))
            connection.sendall(SSL_REQUEST)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        connection.settimeout(10)
        assert connection.recv(1) == b"N"


def test_a_database_that_is_left_behind_killed_is_brought_back(postgres: PostgresServer):
    with postgres.database():
        postgres.kill()
    with psycopg.connect(postgres.url()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


# ------------------------------------------------------------------------------------------------- MongoDB


def test_unique_keys_hold_on_insert_update_and_upsert(mongo_database: tuple[str, str]):
    url, name = mongo_database
    with MongoClient[dict[str, Any]](url) as client:
        entries = client[name]["entries"]
        entries.create_index([("request", 1), ("seq", 1)], unique=True)
        entries.insert_many([{"request": "r", "seq": 1}, {"request": "r", "seq": 2}])
        with pytest.raises(DuplicateKeyError) as refused:
            entries.insert_one({"request": "r", "seq": 1})
        assert refused.value.code == 11000
        with pytest.raises(DuplicateKeyError):
            entries.update_one({"request": "r", "seq": 2}, {"$set": {"seq": 1}})
        with pytest.raises(DuplicateKeyError):
            entries.update_one({"request": "r", "seq": 1, "missing": 1}, {"$set": {"x": 1}}, upsert=True)
        assert [each["seq"] for each in entries.find({"request": "r"}).sort("seq", -1)] == [2, 1]


def test_find_one_and_update_compares_and_sets(mongo_database: tuple[str, str]):
    url, name = mongo_database
    with MongoClient[dict[str, Any]](url) as client:
        leases = client[name]["leases"]
        leases.insert_one({"_id": "r", "version": 1})
        won = leases.find_one_and_update(
            {"_id": "r", "version": 1},
            {"$set": {"owner": "a"}, "$inc": {"version": 1}},
            return_document=ReturnDocument.AFTER,
        )
        lost = leases.find_one_and_update({"_id": "r", "version": 1}, {"$set": {"owner": "b"}})
    assert won == {"_id": "r", "version": 2, "owner": "a"}
    assert lost is None


def test_an_ordered_bulk_write_stops_at_the_first_error(mongo_database: tuple[str, str]):
    url, name = mongo_database
    with MongoClient[dict[str, Any]](url) as client:
        entries = client[name]["entries"]
        steps = [InsertOne({"_id": "1"}), UpdateOne({"_id": "1"}, {"$set": {"x": 1}}), InsertOne({"_id": "1"})]
        with pytest.raises(BulkWriteError) as stopped:
            entries.bulk_write([*steps, InsertOne({"_id": "2"})])
        assert [(each["index"], each["code"]) for each in stopped.value.details["writeErrors"]] == [(2, 11000)]
        assert list(entries.find()) == [{"_id": "1", "x": 1}]


def test_what_was_written_is_there_after_a_kill(mongo: MongoServer, mongo_database: tuple[str, str]):
    url, name = mongo_database
    with MongoClient[dict[str, Any]](url) as client:
        client[name]["kept"].insert_one({"_id": "1"})
        mongo.kill()
        with pytest.raises(PyMongoError):
            client.admin.command("ping", serverSelectionTimeoutMS=1)
        mongo.start()
        assert list(client[name]["kept"].find()) == [{"_id": "1"}]


def test_a_halted_server_lets_a_call_time_out(mongo: MongoServer, mongo_database: tuple[str, str]):
    url, name = mongo_database
    with MongoClient[dict[str, Any]](url, timeoutMS=100) as client:
        with mongo.halted(), pytest.raises(PyMongoError) as raised:
            client[name]["kept"].find_one()
        assert raised.value.timeout


# ------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("module", ["postgres_server", "mongo_server"])
def test_nothing_is_left_of_a_server_whose_test_process_is_killed(module: str):
    program = ENDS_WITHOUT_A_WORD.format(module=module)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tester:
        assert tester.stdout is not None
        pid, folder = tester.stdout.readline().split()
        guard = psutil.Process(int(pid)).parent()
        assert guard is not None
        left = [guard, *family_of(int(pid))]
        tester.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(left, timeout=60)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
    assert not Path(folder).exists()
