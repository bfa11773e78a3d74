"""Two to four real servers on one real HBase with the coprocessor, load of every kind through any of them, and what can happen to servers.

Killed, paused past the lease, cut off from each other or from HBase, moved, and restarted in turn: nothing that was acknowledged is lost, nothing
is there twice, torn or out of order, no reader goes back, and the Python client meets no error.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.budgets import MEMBER_LIVES
from tests.hbase.log_workload import COPIES, NAMESPACE, ORDERS
from tests.hbase.member_load import Load
from tests.hbase.member_servers import Member, Members, members, pause
from tests.hbase.server_pair import LEASE_MS, Installation

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

SHARE = True
PAST_THE_LEASE_S = 1.5 * LEASE_MS / 1_000
CUT_S, LONG_CUT_S = 10.0, 35.0  # less than the 30 s after which the leader ends a member without a link, and more
MOVES = 12


class Life(NamedTuple):
    """What happens to a few servers, one after the other."""

    count: int
    faults: tuple[tuple[str, str], ...]  # each with whom it meets: the leader, an owner that does not lead, or both

    def __str__(self) -> str:
        return f"{self.count} servers, " + ", ".join(
            f"{what} of {whom}" if whom else what for what, whom in self.faults
        )


def kill(servers: Members, load: Load, victims: list[Member]) -> None:
    """Without a word; the others go on, and then another process takes its place."""
    for each in victims:
        each.process.kill()
    _go_on_without(servers, load, victims)
    for each in victims:
        servers.launch(each)
        each.process.wait_until_ready()


def stand_still(servers: Members, load: Load, victims: list[Member]) -> None:
    """For longer than a lease. When it wakes it has calls, writes and a lease that are over."""
    for each in victims:
        each.signal(signal.SIGSTOP)
    pause(PAST_THE_LEASE_S)
    _go_on_without(servers, load, victims)
    for each in victims:
        each.signal(signal.SIGCONT)


def cut_links(servers: Members, load: Load, victims: list[Member]) -> None:
    """From all other servers, and not from HBase: for less than is needed to end it."""
    _cut(servers, victims, CUT_S)


def cut_links_for_long(servers: Members, load: Load, victims: list[Member]) -> None:
    """The leader ends it; or, where it is the leader, it gives the lead up."""
    _cut(servers, victims, LONG_CUT_S)


def cut_gateway(servers: Members, load: Load, victims: list[Member]) -> None:
    """From HBase, and not from the others. What it sent arrives late."""
    for each in victims:
        each.gateway.hold()
    pause(PAST_THE_LEASE_S)
    _go_on_without(servers, load, victims)
    for each in victims:
        each.gateway.let_go()


def move(servers: Members, load: Load, victims: list[Member]) -> None:
    """Both topics, from server to server."""
    for number in range(MOVES):
        to = servers.those[number % len(servers.those)] if servers.share else servers.leader()
        servers.move(NAMESPACE, (ORDERS, COPIES)[number % 2], to)


def restart_in_turn(servers: Members, load: Load, victims: list[Member]) -> None:
    """As a new version is put in place."""
    for each in servers.those:
        assert each.process.stop() == 0, each.process.tail()
        servers.launch(each)
        each.process.wait_until_ready()
        servers.wait_until_all_are_linked()


FAULTS: dict[str, Callable[[Members, Load, list[Member]], None]] = {
    "kill": kill, "pause": stand_still, "link cut": cut_links, "gateway cut": cut_gateway, "long link cut": cut_links_for_long,
    "moves": move, "restarts in turn": restart_in_turn,
}  # fmt: skip
ANSWERED = {
    "kill",
    "moves",
    "restarts in turn",
}  # in these a call is answered, or its connection ends: a client meets no error
LEADER, OWNER, BOTH = "the leader", "an owner", "both"

# The first ones are a test, and all are a soak.
LIVES = [
    Life(3, (("kill", OWNER), ("pause", LEADER), ("moves", ""))),
    Life(2, (("pause", OWNER), ("kill", LEADER), ("restarts in turn", ""))),
    Life(3, (("link cut", OWNER), ("gateway cut", OWNER))),
    *(
        Life(count, ((what, whom),))
        for count, what, whom in product((3, 2, 4), list(FAULTS)[:5], (LEADER, OWNER, BOTH))
    ),
    *(Life(count, ((what, ""),) * 3) for count, what in product((2, 4), ("moves", "restarts in turn"))),
]


def _cut(servers: Members, victims: list[Member], seconds: float) -> None:
    """One server at a time; a pair that is cut off from all others is not what is meant."""
    for each in victims:
        servers.cut_links(each)
        pause(seconds)
        servers.switchboard.join()


def _go_on_without(servers: Members, load: Load, victims: list[Member]) -> None:
    """Clients of the others work, while these are away."""
    left = [each for each in servers.those if each not in victims]
    if left:
        load.story.servers = tuple(each.process for each in left)
        load.wait_until_all_work()
        load.story.servers = tuple(each.process for each in servers.those)


def victims_of(servers: Members, whom: str) -> list[Member]:
    leader = servers.leader()
    owner = servers.owner_of(NAMESPACE, ORDERS)
    if owner is leader:  # it owns all, or got this topic when its owner died
        owner = next(each for each in servers.those if each is not leader)
        servers.spread(NAMESPACE, [ORDERS, COPIES])
        owner = servers.owner_of(NAMESPACE, ORDERS) if servers.share else owner
    return {LEADER: [leader], OWNER: [owner], BOTH: [leader, owner], "": []}[whom]


@pytest.mark.parametrize("life", LIVES[:MEMBER_LIVES], ids=str)
def test_whatever_happens_to_servers_under_load_nothing_is_lost_doubled_torn_or_out_of_order(
    guarded: Installation, tmp_path: Path, life: Life
):
    may_hang = not {what for what, _ in life.faults} <= ANSWERED
    with (
        members(tmp_path, guarded, life.count, share=SHARE) as servers,
        Load(servers, tmp_path, may_hang=may_hang) as load,
    ):
        load.wait_until_all_work()
        for what, whom in life.faults:
            FAULTS[what](servers, load, victims_of(servers, whom))
            servers.wait_until_all_are_linked()
            load.wait_until_all_work()
        load.finish()
