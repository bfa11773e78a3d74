"""Three servers that share the topics of one real HBase whose log of transactions is away for a while, refused or without an answer.

Publishing and raw readers go on at every owner. A server joins, an owner is restarted as planned, and the leader is, too; calls about transactions
are answered in time. A shard with messages of which nobody knows whether they are committed is moved from one member to another. Then all comes
back by itself, and nothing is lost, doubled or out of order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.budgets import LOG_AWAY_WAYS
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.log_workload import COPIES, NAMESPACE, ORDERS, TOPICS, Story
from tests.hbase.member_servers import Member, Members, members
from tests.hbase.server_pair import Installation
from tests.hbase.test_log_away import (
    AWAY,
    Clients,
    away_after_some_were_begun,
    check_what_is_held,
    check_what_is_there,
    clients_come_back,
)

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

SERVERS = 3


def restart(servers: Members, clients: Clients, member: Member) -> None:
    """As planned: it gives its topics to the others, and they are served there; then it comes back."""
    clients.story.servers = tuple(each.process for each in servers.those if each is not member)
    assert member.process.stop() == 0, member.process.tail()
    clients.wait_until_those_go_on()
    servers.launch(member)
    member.process.wait_until_ready()
    servers.wait_until_all_are_linked()
    for worker in clients.all:
        worker.hang_up(member.port)
    clients.story.servers = tuple(each.process for each in servers.those)


def live_without_the_log(clients: Clients, servers: Members, held: dict[str, str]) -> None:
    """One stage after each thing that happens to servers. None that began meanwhile has read the log."""
    clients.check_a_stage_without_the_log("with the servers that were there")
    check_what_is_held(clients, servers.leader().process, held)
    added = servers.add()
    servers.wait_until_all_are_linked()
    clients.story.servers = tuple(each.process for each in servers.those)
    clients.check_a_stage_without_the_log(f"with a server that joined without it, as {added.number}")
    check_what_is_held(clients, servers.leader().process, held)
    servers.move(NAMESPACE, ORDERS, added)  # from a member: what the leader has stays there, for it waits for the log
    assert servers.owner_of(NAMESPACE, ORDERS) is added
    clients.check_a_stage_without_the_log("with a topic that was moved to it")
    check_what_is_held(clients, servers.leader().process, held)
    for what in ("an owner", "the leader"):
        leader = servers.leader()
        restart(servers, clients, leader if what == "the leader" else servers.owner_of(NAMESPACE, ORDERS))
        clients.check_a_stage_without_the_log(f"after a planned restart of {what}")
        check_what_is_held(clients, servers.leader().process, held)


@pytest.mark.parametrize("away", list(AWAY.values())[:LOG_AWAY_WAYS], ids=list(AWAY)[:LOG_AWAY_WAYS])
def test_while_the_log_is_away_owners_publish_move_join_and_restart_and_then_all_goes_on(
    tmp_path: Path, guarded: Installation, away: Callable[[Installation, HoldingProxy], Any]
):
    with ExitStack() as stack:
        proxy = HoldingProxy(guarded.thrift2)  # behind the gateways of all servers
        stack.callback(proxy.close)
        behind = Installation(guarded.thrift, proxy.address, guarded.prefix)
        servers = stack.enter_context(members(tmp_path, behind, SERVERS, share=True, balance=False))
        for topic in (ORDERS, COPIES):
            servers.make(f"{TOPICS}/{topic}")
        servers.spread(NAMESPACE, [ORDERS, COPIES])
        clients = Clients(Story([each.process for each in servers.those]))
        held: dict[str, str] = {}
        with clients:
            clients.wait_until_all_work()
            with away_after_some_were_begun(away(guarded, proxy), servers.leader().process, held):
                live_without_the_log(clients, servers, held)
            clients_come_back(clients, servers.leader().process, held)
        clients.check_that_none_failed()
        check_what_is_there(clients, servers.leader().process, held)
