"""Declares the settings of servers that share a store: the election of the one that leads, and who has which topics. A part of `tree`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from basalt.settings.kinds import (
    MINUTE_MS,
    SECOND_MS,
    Address,
    Choice,
    Duration,
    FilePath,
    Flag,
    Secret,
    Url,
    Whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    """The election of the one server that leads; read only when store.kind is hbase."""

    lease_ms: Annotated[
        int, Duration("how long a leader that is gone goes on leading in the eyes of the others", SECOND_MS, MINUTE_MS)
    ] = 6 * SECOND_MS
    url: Annotated[
        str | None, Url("where clients of the other servers find this one; off: from --host, or its name, and the port")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The servers that share a store; read only when store.kind is hbase."""

    share: Annotated[
        bool,
        Flag(
            "all servers serve topics, each those that the leader gives it; false: the leader serves all, and others stand by"
        ),
    ] = True
    weight: Annotated[
        int,
        Whole("how much this server is to have of all topics, in hundredths of what an ordinary one has", 1, 10_000),
    ] = 100
    leader_share: Annotated[
        int,
        Whole(
            "how much a leader has beside others, in hundredths of its full share, for it decides all transactions",
            1,
            100,
        ),
    ] = 50
    balance: Annotated[
        Literal["auto", "off"],
        Choice("whether the leader evens out by itself which server has how many topics", ("auto", "off")),
    ] = "auto"
    release_ms: Annotated[
        int,
        Duration(
            "how long a server may take to end what it does with topics that move; then they stay", 100, MINUTE_MS
        ),
    ] = 5 * SECOND_MS
    pass_on: Annotated[
        bool, Flag("a server that does not lead passes calls on to the one that does; false: it says who leads")
    ] = True
    # Less than the leader takes from one address (http.connections_per_address_max), for each has a connection of its own there.
    passed_on_max: Annotated[
        int, Whole("most calls passed on at a time, waiting polls among them; others are told who leads", 1, 1_000_000)
    ] = 400
    reads: Annotated[bool, Flag("a server that does not lead reads ranges itself, by the leader's permit")] = True
    place_ms: Annotated[
        int, Duration("how long a commit's messages may take to be written; then it is rolled back", 100, MINUTE_MS)
    ] = 2 * SECOND_MS
    ca: Annotated[
        str | None, FilePath("file of the CAs, in PEM, that vouch for the other servers; off: those of this machine")
    ] = None
    servers_min: Annotated[
        int,
        Whole(
            "servers that are to be live; with fewer an alert fires. 1: nobody stands by, and that is intended", 1, 128
        ),
    ] = 2
    listen: Annotated[
        str | None, Address("where this server takes links of the others; off: the host of --host, at any free port")
    ] = None
    secret: Annotated[
        str | None,
        Secret("secret by which the servers know each other on their links; needed where those leave this machine"),
    ] = None
