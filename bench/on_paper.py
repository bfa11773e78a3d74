"""What several servers would cost each other, calculated: `python -m bench.on_paper` prints the table of docs/operations/capacity.md.

Each cost of one call was measured, by the measurement that stands beside it; how many calls there are follows from the rules. Nothing here
was measured with so many servers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from basalt.cluster.lease import LOOKS_PER_LEASE as TRIES_PER_LEASE
from basalt.cluster.lease import RENEWALS_PER_LEASE
from basalt.cluster.members import LOOKS_PER_LEASE
from basalt_engine.stores.shards import SHARDS

LEASE_S = 6.0
SIZES = (2, 10, 100)

# Microseconds of processor time, of region server, gateway and server together: `python -m bench member-calls`. HBase on one machine.
LEASE_READ_US = 300.0
RENEWAL_US = 1_010.0  # a read, and a conditional put
MAP_READ_US = 215.0
MEMBER_SCAN_US = 330.0  # the rows of two members; each further one adds
MEMBER_ROW_US = 15.5
FENCE_HBASE_US = 590.0  # region server and gateway alone
FENCE_MS = 1.1  # that each adds to a take, which has some under way at a time
REGIONS = (50, 1_000)  # those of a new installation's tables that have shards; and of a large one

# The coordinator: its rules and log entry alone, as they are in one process; and its end of a call over a link, half of what both ends take where
# one call is under way at a time. Where 32 are, their frames leave together, and it is a third of that.
ONE_SHOT_US = 5.0
FRAME_US = 10.0
BEATS_PER_S = 4
FRAMES_PER_BEAT = 2  # it, and its answer
ONE_SHOTS_PER_MEMBER_S = 600  # what is asked: 60,000 of a hundred members
ONE_SHOTS_PER_FRAME = 3
DEAD_PARTS = 10  # one of so many members dies at once

# Following the log: `python -m bench.following`. A group of the coordinator's is one entry; it has one group under way, so there are as many a second as
# writes, each of which takes as long as `bench.lanes` has it. An entry that holds so many costs each member the share of its one-shots, and its own.
LOG_WRITE_MS = 2.0
FOLLOWED_ONE_SHOT_US = 3.6  # of 16 in an entry
FOLLOWED_ENTRY_US = 5.0  # more for one that is alone in its entry
FOLLOWED_TRANSACTION_US = 44.2  # begin, join and commit with rows
TRANSACTION_US = 28.6  # the same for the coordinator
TRANSACTIONS_PER_MEMBER_S = 60  # one of ten
# What a server does for one that a client asks for, HTTP and rows included: of one message, 8 clients, embedded. On HBase it does more, so
# following is less of it.
OWN_ONE_SHOT_US = 155.0
OWN_TRANSACTION_US = 376.0  # begin, and commit with the message
WORTH_HALF = 0.5  # of a server that one more adds: with more servers it adds less

# `python -m bench at-members`, 8 callers, on HBase: both servers' processor time, of the direct call's.
PASSED_ON = {"a publish of one message": 2.0, "a GET": 2.8, "a publish of 500": 1.5, "a poll of 2,000": 2.1}


# The part of what one costs who does it that it costs each other server.
ONE_SHOT_SHARE = FOLLOWED_ONE_SHOT_US / OWN_ONE_SHOT_US
TRANSACTION_SHARE = FOLLOWED_TRANSACTION_US / OWN_TRANSACTION_US


class Line(NamedTuple):
    """A line of the table: what is counted, and how much of it with each number of servers."""

    title: str
    values: tuple[str, ...]


def lines() -> list[Line]:
    """The table, without its head."""
    made = [
        _line("renewals of memberships a second", "{:.1f}", _renewals),
        _line("looks at all members a second", "{:,.0f}", _looks),
        _line("rows that these read a second", "{:,.0f}", lambda members: _looks(members) * members),
        _line("reads of the lease a second", "{:,.0f}", _tries),
        _line("reads of the map a second", "{:,.0f}", _looks),
        _line("all of these, in cores of HBase and servers", "{:.2f}", rows_cores),
        _line("frames of beats over links a second", "{:,.0f}", _beats),
        _line(f"one-shots a second, {ONE_SHOTS_PER_MEMBER_S} for each server", "{:,}", _one_shots),
        _line(f"the coordinator's core is busy, {ONE_SHOTS_PER_FRAME} of them in a frame", "{:.0%}", coordinator_busy),
        _line("the same, one in a frame", "{:.0%}", lambda members: coordinator_busy(members, 1)),
        _line("frames to and from the coordinator a second", "{:,.0f}", _frames),
        _line("entries of the log that each other server is pushed a second", "{:,.0f}", entries),
        _line("the coordinator's core is busy pushing them", "{:.0%}", pushing_busy),
        _line("each other server's core is busy following these one-shots", "{:.0%}", following_busy),
        _line("the same of all servers, in cores", "{:.1f}", lambda members: (members - 1) * following_busy(members)),
        _line(
            f"with {TRANSACTIONS_PER_MEMBER_S} longer transactions for each server: more of each one's core",
            "{:.0%}",
            lambda members: _transactions(members) * FOLLOWED_TRANSACTION_US / 1e6,
        ),
        _line("more of the coordinator's", "{:.0%}", lambda members: _transactions(members) * TRANSACTION_US / 1e6),
        _line(
            "one-shots alone: so many do as much as without following",
            "{:.1f}",
            partial(worth_following, cost=ONE_SHOT_SHARE),
        ),
        _line(
            "longer transactions alone: so many do as much as without following",
            "{:.1f}",
            partial(worth_following, cost=TRANSACTION_SHARE),
        ),
        _line("shards of each server", "{:,.0f}", lambda members: SHARDS / members),
    ]
    for regions in REGIONS:
        title = f"a tenth of the servers, at least one, dies: fences in {regions:,} regions"
        made.append(_line(title, "{:,}", partial(fences, regions=regions)))
        made.append(_line("seconds after which each has sent its own", "{:.1f}", partial(take_s, regions=regions)))
        made.append(
            _line("seconds of a core of HBase that they take", "{:.1f}", partial(fence_core_s, regions=regions))
        )
    made.append(_line("calls that a balancer brings to another server than the topic's", "{:.0%}", passed_share))
    for call, cost in PASSED_ON.items():
        made.append(_line(f"{call}: so many do as much as", "{:.1f}", partial(worth, cost=cost)))
    return made


def _line(title: str, form: str, value: Callable[[int], float]) -> Line:
    return Line(title, tuple(form.format(value(members)) for members in SIZES))


def _one_shots(members: int) -> int:
    return members * ONE_SHOTS_PER_MEMBER_S


def _renewals(members: int) -> float:
    return members * RENEWALS_PER_LEASE / LEASE_S


def _looks(members: int) -> float:
    return members * LOOKS_PER_LEASE / LEASE_S


def _tries(members: int) -> float:
    return members * TRIES_PER_LEASE / LEASE_S


def _beats(members: int) -> float:
    return (members - 1) * BEATS_PER_S * FRAMES_PER_BEAT


def rows_cores(members: int) -> float:
    """The cores that leases, memberships and the map keep busy, all processes together."""
    scans = _looks(members) * (MEMBER_SCAN_US + (members - 2) * MEMBER_ROW_US)
    reads = (
        _tries(members) * LEASE_READ_US + _looks(members) * MAP_READ_US
    )  # the map is read with each look at the members
    return (_renewals(members) * RENEWAL_US + scans + reads) / 1e6


def _frames(members: int, one_shots_per_frame: int = ONE_SHOTS_PER_FRAME) -> float:
    """Those with calls, which come from all but its own member; a call's answer is in its cost."""
    return (members - 1) * ONE_SHOTS_PER_MEMBER_S / one_shots_per_frame


def coordinator_busy(members: int, one_shots_per_frame: int = ONE_SHOTS_PER_FRAME) -> float:
    """The part of one core that the coordinator needs for decisions and frames."""
    frames = _frames(members, one_shots_per_frame) + _beats(members) / FRAMES_PER_BEAT
    return (_one_shots(members) * ONE_SHOT_US + frames * FRAME_US) / 1e6


def _transactions(members: int) -> int:
    return members * TRANSACTIONS_PER_MEMBER_S


def entries(members: int) -> float:
    """The entries of the log a second: one for each write of it while there are one-shots enough, and no more than there are one-shots."""
    return min(1_000 / LOG_WRITE_MS, _one_shots(members))


def pushing_busy(members: int) -> float:
    """The part of one core that the coordinator needs to push the log to all others: a frame for each entry and server."""
    return (members - 1) * entries(members) * FRAME_US / 1e6


def following_busy(members: int) -> float:
    """The part of one core that each other server needs to take and apply what it is pushed."""
    return (entries(members) * (FRAME_US + FOLLOWED_ENTRY_US) + _one_shots(members) * FOLLOWED_ONE_SHOT_US) / 1e6


def worth_following(members: int, cost: float) -> float:
    """The servers that would do the same work if none followed what others do, where following one takes this part of doing it."""
    return members / (1 + (members - 1) * cost)


def pays_up_to(cost: float) -> int:
    """The most servers of which the last one still added half of what a server alone does."""
    members = 1
    while worth_following(members + 1, cost) - worth_following(members, cost) >= WORTH_HALF:
        members += 1
    return members


def fences(members: int, regions: int) -> int:
    """The fences of a take of what a tenth of the members had: one to each region from each member that gets any of it."""
    dead = max(1, members // DEAD_PARTS)
    takers = min(members - dead, SHARDS * dead // members)
    return takers * regions


def take_s(_members: int, regions: int) -> float:
    """How long one member fences, beside the others: it sends one to each region, however many shards it got."""
    return regions * FENCE_MS / 1_000


def fence_core_s(members: int, regions: int) -> float:
    """The seconds of one core that these cost HBase: region servers and gateways, all together."""
    return fences(members, regions) * FENCE_HBASE_US / 1e6


def passed_share(members: int) -> float:
    """The part of all calls that come to another server than their topic's, where a balancer spreads them."""
    return (members - 1) / members


def worth(members: int, cost: float) -> float:
    """The servers that would do the same work if each call came to its topic's own server."""
    share = passed_share(members)
    return members / (1 - share + share * cost)


def table() -> str:
    """The table as the page has it."""
    head = f"| calculated | {' | '.join(f'{members} servers' for members in SIZES)} |"
    rule = "|---" * (len(SIZES) + 1) + "|"
    return "\n".join((head, rule, *(f"| {line.title} | {' | '.join(line.values)} |" for line in lines())))


def pays() -> str:
    """Up to how many servers more of them pay, in a sentence."""
    return (
        f"The last server adds half a server's work or more up to {pays_up_to(ONE_SHOT_SHARE)} servers that do nothing but one-shots, and up to"
        f" {pays_up_to(TRANSACTION_SHARE)} that do nothing but longer transactions."
    )


if __name__ == "__main__":
    print(table())
    print(pays())
