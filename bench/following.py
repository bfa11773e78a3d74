"""The cost of following the log: what a member does for an entry that is pushed, beside what the coordinator itself did to make it.

    python -m bench.following [--entries N]

In one process, without sockets. The coordinator's part is its own work for a transaction: rules, apply, encode. The member's is what it does with an entry's bytes: check
and decode, apply, tell the owner, and a view. Of several rounds the best counts, and the two take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from basalt.cluster.links.links import Links
from basalt.runtime.group_commit import WriteLanes
from basalt.transactions.follow_calls import Entries
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.log.transaction_log import ENTRY, TransactionLog
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction import Join, TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import SystemClock
from basalt_engine.stores.memory import MemoryStore

ROUNDS = 5
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
    lanes = WriteLanes.of(coordinator.store, clock)
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.following", description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000, help="transactions of each kind, a round (20000)")
    asyncio.run(report(parser.parse_args().entries))


if __name__ == "__main__":
    main()
