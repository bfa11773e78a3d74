"""Money moved between rows of a table, each move told by a message, while the real server is killed again and again.

Whoever looks, at whatever moment, sees balances that are just what the messages say.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

import basalt
from basalt.client import Client
from basalt.errors import BasaltError, CorruptionError, InternalError, ProtocolError, TransactionConflictError
from tests.ports import reserved_port
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.system, pytest.mark.slow]

ACCOUNTS = [f"account {number}" for number in range(4)]
OPENING = 100
KILLS = 4
SECONDS_BETWEEN = 1.0
MOVES_BETWEEN, LOOKS_BETWEEN = 3, 2  # at least
HANG_SECONDS = 180.0
NEVER = (CorruptionError, InternalError, ProtocolError)  # whatever a kill does, it does not do this


class Bank:
    """The accounts, and threads that use them until they are told to stop."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stopping = threading.Event()
        self.moved = 0
        self.conflicts = 0
        self.looked = 0
        self.faults: list[str] = []

    def again_and_again(self, work: Callable[[Client, random.Random], None], seed: int) -> threading.Thread:
        def run() -> None:
            chance = random.Random(seed)
            with basalt.connect(self.url, timeout_ms=5_000) as client:
                while not self.stopping.is_set() and not self.faults:
                    try:
                        work(client, chance)
                    except TransactionConflictError:
                        self.conflicts += 1
                    except NEVER as error:
                        self.faults.append(repr(error))
                    except BasaltError:
                        time.sleep(0.02)  # it was killed, or is being started
                    except AssertionError as error:
                        self.faults.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def go_on(self) -> None:
        """For a while, in which there are some moves and some looks."""
        moved, looked, stop_s = self.moved + MOVES_BETWEEN, self.looked + LOOKS_BETWEEN, time.monotonic() + HANG_SECONDS
        self.stopping.wait(SECONDS_BETWEEN)
        while not self.faults and (self.moved < moved or self.looked < looked):
            assert time.monotonic() < stop_s, f"nobody goes on: {self.moved} moves, {self.looked} looks"
            time.sleep(0.01)

    def move(self, client: Client, chance: random.Random) -> None:
        """Move some money, and say so; sometimes change one's mind when part of it was sent already."""
        one, other = chance.sample(ACCOUNTS, 2)
        with client.transaction(timeout_ms=2_000) as tx:
            table = tx.table("accounts")
            balances = {name: int(table.get(name)[b"balance"]) for name in (one, other)}
            amount = chance.randint(1, 9)
            table.put(one, {"balance": str(balances[one] - amount)})
            if chance.random() < 0.2:
                tx.checkpoint()
            table.put(other, {"balance": str(balances[other] + amount)})
            tx.publish("moves", f"{one}>{other}>{amount}")
            if chance.random() < 0.1:
                tx.checkpoint()
                tx.abort()
                return
        self.moved += 1

    def look(self, client: Client, _chance: random.Random) -> None:
        """In one snapshot: the balances, and what the messages say of them."""
        with client.transaction() as tx:
            seen = {row.row.decode(): int(row.cells[b"balance"]) for row in tx.table("accounts").scan()}
            told = balances_after(message.text for message in tx.read("moves"))
        assert seen == told, f"the table says {seen}, the messages say {told}"
        self.looked += 1


def balances_after(moves: Iterator[str]) -> Mapping[str, int]:
    """What the accounts hold after these moves."""
    balances = dict.fromkeys(ACCOUNTS, OPENING)
    for move in moves:
        one, other, amount = move.split(">")
        balances[one] -= int(amount)
        balances[other] += int(amount)
    return balances


def test_balances_are_what_the_messages_say_through_any_number_of_kills(tmp_path: Path):
    server = ServerProcess(tmp_path)
    often = ("--set", "jobs.retention.interval_ms=1000")
    with reserved_port() as port:
        server.launch(*often, port=port)
        server.wait_until_ready()
        kill_and_move(server, often)
        assert server.stop() == 0


def kill_and_move(server: ServerProcess, often: tuple[str, ...]) -> None:
    bank = Bank(server.url)
    with basalt.connect(server.url) as client:
        client.tables.create("accounts")
        client.topics.create("moves")
        with client.transaction() as tx:
            for name in ACCOUNTS:
                tx.table("accounts").put(name, {"balance": str(OPENING)})
    threads = [bank.again_and_again(bank.move, seed) for seed in range(3)] + [bank.again_and_again(bank.look, 9)]
    try:
        for _ in range(KILLS):
            bank.go_on()
            server.kill()
            server.launch(*often, port=server.port)
            server.wait_until_ready()
        bank.go_on()
    finally:
        bank.stopping.set()
        for thread in threads:
            thread.join(HANG_SECONDS)
    assert bank.faults == []
    with basalt.connect(server.url) as client:
        bank.look(client, random.Random())
        with suppress(TransactionConflictError):
            bank.move(client, random.Random(77))
        bank.look(client, random.Random())
    assert bank.moved > 10, bank.moved
    assert bank.looked > 5, bank.looked
