"""The cost of following the log: what a member does for an entry that is pushed, beside what the coordinator itself did to make it.

    python -m bench.following [--entries N]

In one process. The coordinator's part is its own work for a transaction: rules, apply, encode. The member's is what it does with an entry's bytes: check
and decode, apply, tell the owner, and a view. Of several rounds the best counts, and the two take turns. The last line is what it takes to push an entry over a link on the
loopback and to hear that it was taken, both ends together, without applying it.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import uvloop

from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Accept, Acceptor, Dial, Hello
from basalt.cluster.links.link import Handlers, Link, opened
from basalt.cluster.links.links import Links
from basalt.runtime.write_lanes import WriteLanes
from basalt.server.wiring import BUCKETS_EMBEDDED
from basalt.transactions.follow_calls import ENTRIES, Entries, Taken
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.log.transaction_log import ENTRY, TransactionLog
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction import Join, TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import SystemClock
from basalt_engine.stores.memory import MemoryStore

ROUNDS = 5
TIMEOUT_S = 60.0
TOPIC = Join(b"bench:orders:", 1, 1_700_000_000_000)
LIMITS = TransactionLimits()


class Measured(NamedTuple):
    """Microseconds of one transaction."""

    coordinator_us: float
    member_us: float


class Coordinator:
    """Makes transactions, and the entries of the log that say so."""

    def __init__(self) -> None:
        self.store = MemoryStore(atomic=False)
        self.state = TransactionProposals(LIMITS)
        self.log = TransactionLog(self.store.table("transaction_log"), LIMITS)
        self.entries: list[bytes] = []
        self.now_ms = 1_700_000_000_000

    def apply(self, made: Sequence[Edit]) -> list[Edit]:
        for edit in made:
            self.state.apply(edit)
        return list(made)

    def log_them(self, made: Sequence[Edit]) -> None:
        self.entries.append(self.log.encode_next(made).columns[ENTRY])
        self.state.view()

    def one_shots(self, together: int) -> None:
        """So many one-shot transactions of a loan, in one entry."""
        self.now_ms += 1
        made: list[Edit] = []
        for _ in range(together):
            loan = next(iter(self.state.loans), None)
            if loan is None:
                made += self.apply(self.state.loans.lend("m", self.state.last_pointer, self.now_ms).edits)
                loan = next(iter(self.state.loans))
            made += self.apply(self.state.committed_one_shot(loan.undecided, self.now_ms, "", None, ""))
        self.log_them(made)

    def transaction(self, _together: int) -> None:
        """Begin, join, the intent, and the outcome: an entry each."""
        self.now_ms += 1
        begun = self.state.begin(self.now_ms)
        self.log_them(self.apply(begun.edits))
        transaction_id = begun.transaction_id
        self.log_them(self.apply(self.state.join(transaction_id, TOPIC, self.now_ms).edits))
        self.log_them(self.apply(self.state.commit(transaction_id, self.now_ms, inline=False).edits))
        self.log_them(self.apply(self.state.finish(transaction_id, self.now_ms).edits))


async def measure(make: Callable[[Coordinator, int], None], count: int, together: int) -> Measured:
    """So many transactions, made and followed."""
    coordinator = Coordinator()
    began_s = time.process_time()
    for _ in range(count // together):
        make(coordinator, together)
    made_s = time.process_time() - began_s
    clock = SystemClock()
    lanes = WriteLanes.of(coordinator.store, clock, BUCKETS_EMBEDDED)
    log = TransactionLog(coordinator.store.table("transaction_log"), LIMITS)
    member = FollowedTransactions(coordinator.store, clock, lanes, log, cast("Links", None))
    member._adopt(TransactionProposals(LIMITS))
    began_s = time.process_time()
    for number, entry in enumerate(coordinator.entries):
        member._pushed("leader", Entries(number, (entry,)))
        member.current()
    followed_s = time.process_time() - began_s
    assert member.state.edits_applied == coordinator.state.edits_applied
    made = count // together * together
    return Measured(1e6 * made_s / made, 1e6 * followed_s / made)


async def report(count: int) -> None:
    """Print both costs, and how they compare."""
    kinds: list[tuple[str, Callable[[Coordinator, int], None], int]] = [
        ("a one-shot, alone in its entry", Coordinator.one_shots, 1),
        ("a one-shot, 16 in an entry", Coordinator.one_shots, 16),
        ("begin, join and commit with rows", Coordinator.transaction, 1),
    ]
    for name, make, together in kinds:
        rounds = [await measure(make, count, together) for _ in range(ROUNDS)]
        coordinator_us, member_us = min(each.coordinator_us for each in rounds), min(each.member_us for each in rounds)
        print(
            f"{name}: {coordinator_us:.1f} µs for the coordinator, {member_us:.1f} for each member,"
            f" {member_us / coordinator_us:.2f} of that"
        )
    pushes = [await pushed_us(count) for _ in range(ROUNDS)]
    print(f"to push an entry to a member: {min(pushes):.1f} µs, both ends together")


async def pushed_us(count: int) -> float:
    """Push so many entries to one member that does nothing with them."""
    loop, secret, handlers, taken = asyncio.get_running_loop(), secrets.token_bytes(32), Handlers(), Handlers()
    taken.add(ENTRIES, lambda _, entries: Taken(entries.first))
    accepted: list[Link] = []

    def accept() -> Link:
        own = Acceptor(secret, "bench", "leader", 1, 1)
        accepted.append(Link(Accept(secrets.token_bytes(NONCE_BYTES), "bench"), handlers, lambda: own))
        return accepted[0]

    server = await loop.create_server(accept, "127.0.0.1", 0)
    hello = Hello(VERSION, "bench", "member", "leader", 1, LEADER, secrets.token_bytes(NONCE_BYTES))
    link = Link(Dial(secret, hello, "bench"), taken)
    await loop.create_connection(lambda: link, *server.sockets[0].getsockname())
    assert await opened(link, TIMEOUT_S)
    assert await opened(accepted[0], TIMEOUT_S)
    entry, left, done = bytes(42), count, loop.create_future()

    def taken_one(_: asyncio.Future[Taken]) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set_result(None)

    began_s = time.process_time()
    for number in range(count):  # one a turn, as groups come
        accepted[0].send(ENTRIES, Entries(number, (entry,)), 1_000 * TIMEOUT_S, taken_one)
        await asyncio.sleep(0)
    await done
    took_s = time.process_time() - began_s
    link.close("done")
    server.close()
    return 1e6 * took_s / count


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.following", description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000, help="transactions of each kind, a round (20000)")
    uvloop.run(report(parser.parse_args().entries))


if __name__ == "__main__":
    main()
