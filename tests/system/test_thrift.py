"""Tephra's clients and a server process that is killed, started again and stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TFramedTransport, TSocket, TTransportException

from basalt.thrift.wire import types
from tests.ports import reserved_port
from tests.system.group_calls import GROUP, Billing
from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system


@contextmanager
def connected(port: int) -> Iterator[Any]:
    transport = TFramedTransport(TSocket("127.0.0.1", port, socket_timeout=60_000))
    transport.open()
    try:
        yield TClient(types.TTransactionServer, TBinaryProtocol(transport))
    finally:
        transport.close()


@pytest.fixture
def port() -> Iterator[int]:
    """The same one in each life of the server."""
    with reserved_port() as port:
        yield port


def test_what_a_client_was_told_holds_after_a_kill_and_a_stop_hangs_up_on_it(tmp_path: Path, port: int):
    server = ServerProcess(tmp_path)
    server.start("--set", f"thrift.port={port}")
    try:
        with connected(port) as client:
            open_one, committed, other = client.startShort(), client.startShort(), client.startShort()
            client.canCommitOrThrow(open_one.id, {b"row"})
            client.canCommitOrThrow(committed.id, {b"elsewhere"})
            client.commitOrThrow(committed.id, committed.id)
            client.invalidateTx(other.id)
            server.kill()
        server.start("--set", f"thrift.port={port}")
        with connected(port) as client:
            after = client.startShort()
            assert after.id > other.id
            assert (after.inProgress, after.invalids) == ([open_one.id], [other.id])
            client.commitOrThrow(committed.id, committed.id)  # as a client does that lost the answer
            with pytest.raises(types.TTransactionNotInProgressException, match="told its change set before"):
                client.commitOrThrow(open_one.id, open_one.id)
            client.canCommitOrThrow(open_one.id, {b"row"})
            client.commitOrThrow(open_one.id, open_one.id)
            assert client.canCommitTx(after, {b"row"}).value is False, "its change set is kept, too"
            assert server.stop() == 0
            with pytest.raises((TTransportException, OSError)):
                client.status()
    finally:
        server.stop()


def test_a_kill_between_can_commit_and_commit_never_lets_a_commit_through_unchecked(tmp_path: Path, port: int):
    server = ServerProcess(tmp_path)
    server.start("--set", f"thrift.port={port}")
    try:
        with connected(port) as client:
            first, second, clean, abandoned, doomed = (client.startShortClientId("app") for _ in range(5))
            for tx in (first, second, abandoned):
                client.canCommitOrThrow(tx.id, {b"row"})
            server.kill()
        server.start("--set", f"thrift.port={port}")
        with connected(port) as client:
            # What Tephra's client does then: it rolls back what it wrote, and aborts.
            with pytest.raises(types.TTransactionNotInProgressException):
                client.commitOrThrow(abandoned.id, abandoned.id)
            client.abortTx(abandoned)
            # Of one that had told nothing nobody can know that, so it must say so.
            with pytest.raises(types.TTransactionNotInProgressException):
                client.commitTx(clean)
            assert client.canCommitTx(clean, set()).value is True
            assert client.commitTx(clean).value is True
            client.canCommitOrThrow(first.id, {b"row"})
            client.commitOrThrow(first.id, first.id)
            for tx in (second, doomed):  # the winner's set is in the log now: it is found, before and after a kill
                with pytest.raises(types.TTransactionConflictException):
                    client.canCommitOrThrow(tx.id, {b"row"})
            server.kill()
        server.start("--set", f"thrift.port={port}")
        with connected(port) as client:
            for tx in (second, doomed):
                with pytest.raises(types.TTransactionConflictException):
                    client.commitOrThrow(tx.id, tx.id)
                client.abortTx(tx)
            client.commitOrThrow(first.id, first.id)
            assert (client.startShort().inProgress, client.invalidTxSize()) == ([], 0)
        assert server.stop() == 0
    finally:
        server.stop()


def test_a_transaction_of_tephra_acknowledges_with_its_commit_and_gives_back_with_its_abort(tmp_path: Path, port: int):
    """Over HTTP it acknowledges, over Thrift it ends; so it does after a kill in between."""
    server = ServerProcess(tmp_path)
    server.start("--set", f"thrift.port={port}")
    try:
        server.ask_json("PUT", ORDERS)
        billing = Billing(server)
        billing.make(4)
        (first, *_), (second, *_), (third, *_) = (billing.claim("?limit=1") for _ in range(3))
        with connected(port) as client:
            committed, aborted, invalid = client.startShort(), client.startShort(), client.startShort()
            for claim, tx in ((first, committed), (second, aborted), (third, invalid)):
                billing.acknowledge(claims=[claim], transaction=str(tx.id))
        server.kill()
        server.start("--set", f"thrift.port={port}")
        with connected(port) as client:
            client.canCommitOrThrow(committed.id, set())
            client.commitOrThrow(committed.id, committed.id)
            client.abortTx(aborted)
            client.invalidateTx(invalid.id)
        found = server.ask_json("GET", f"{GROUP}/messages")["messages"]
        assert [each["attempts"] for each in found] == [1, 1, 0], found
        assert [billing.claim("?limit=1")[1] for _ in range(3)] == [["m1"], ["m2"], ["m3"]]
    finally:
        server.stop()
