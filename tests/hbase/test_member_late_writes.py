"""A publish that the network holds up until its server has been killed and another one has its topic: the regions refuse it.

Without the attribute of its shard, or its epoch, it lands, which shows that the test can fail.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from basalt_engine.keys import topic_prefix
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.table import prefix_stop
from tests.hbase.log_workload import read_to_the_end
from tests.hbase.member_servers import Member, Members, members
from tests.hbase.server_pair import BUCKETS, TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Installation, until
from tests.hbase.tables import Tables
from tests.hbase.test_member_faults import SHARE
from tests.system.server_process import Reply

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

NAMESPACE = "held"
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


def publish(server: Member, topic: str, text: str) -> Reply:
    body = json.dumps({"messages": [text]}).encode()
    return server.process.ask("POST", f"/v1/namespaces/{NAMESPACE}/topics/{topic}/publish", body, JSON)


def read(server: Member, topic: str) -> list[str]:
    return [text for _, text in read_to_the_end(server.process, f"/v1/namespaces/{NAMESPACE}/topics/{topic}")]


def rows(store: HBaseStore, topic: str) -> int:
    """Of messages of the topic, as HBase has them."""
    table, prefix = store.table("message"), topic_prefix(NAMESPACE, topic)
    spans = [bytes([bucket]) + prefix for bucket in range(BUCKETS)]
    return sum(1 for span in spans for _ in table.scan(span, prefix_stop(span)))


def owner_with(servers: Members, topic: str, environment: dict[str, str] | None) -> Member:
    """The server that has the topic and will be killed: with several owners one that does not lead."""
    if not servers.share:
        return servers.those[0]
    owner = servers.add(environment)
    servers.wait_until_all_are_linked()
    servers.move(NAMESPACE, topic, owner)
    return owner


def late_publish(installation: Installation, folder: Path, topic: str, *, stamped: bool) -> tuple[int, list[str]]:
    """The rows in HBase, and what a reader gets, once all has arrived."""
    environment = None if stamped else {"BASALT_UNSTAMPED": "1"}
    first = None if SHARE else environment
    with members(folder, installation, 2, share=SHARE, balance=False, environment=first) as servers:
        servers.make(f"/v1/namespaces/{NAMESPACE}/topics/{topic}")
        owner = owner_with(servers, topic, environment)
        assert publish(owner, topic, "in time").status == 200
        table = f"{installation.prefix}.message".encode()
        owner.gateway.hold(lambda piece: table in piece and b"put" in piece)

        def call() -> None:
            with suppress(OSError):
                publish(owner, topic, "late")

        calling = threading.Thread(target=call, daemon=True)
        calling.start()
        until(lambda: owner.gateway.held_bytes > 0, owner.process)
        owner.process.kill()
        calling.join(WAIT_SECONDS_MAX)
        next_owner = servers.owner_of(NAMESPACE, topic)
        assert next_owner is not owner
        until(
            lambda: publish(next_owner, topic, "by the next").status == 200, next_owner.process, TAKE_OVER_SECONDS_MAX
        )
        owner.gateway.let_go()
        until(lambda: not owner.gateway.unanswered, next_owner.process)
        store = Tables(installation.thrift2, installation.prefix).open()
        try:
            return rows(store, topic), read(next_owner, topic)
        finally:
            store.close()


def test_a_publish_of_a_killed_owner_that_arrives_when_another_has_the_topic_is_refused(
    guarded: Installation, tmp_path: Path
):
    assert late_publish(guarded, tmp_path, "refused", stamped=True) == (2, ["in time", "by the next"])


def test_without_its_attribute_such_a_publish_lands(guarded: Installation, tmp_path: Path):
    found, _ = late_publish(guarded, tmp_path, "lands", stamped=False)
    assert found == 3
