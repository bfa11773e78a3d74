"""The Thrift face in a real ZooKeeper, the one that HBase brings: found by Tephra's own client, and gone when it should be."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

from basalt.thrift.discovery import FOLDER, Registration, node_data, node_path
from basalt.thrift.metrics import ThriftMetrics
from deploy.hbase.standalone import Gateways
from tests.system.server_process import ServerProcess
from tests.tephra_client.runtime import java_command

pytestmark = [
    pytest.mark.tephra,
    pytest.mark.hbase,
    pytest.mark.jvm,
    pytest.mark.filterwarnings("ignore:No chroot path exists"),  # it is made with the node
]

WAIT_S = 60.0
RUN_SECONDS_MAX = 120


@pytest.fixture
def ensemble(hbase_gateways: Gateways) -> str:
    """A folder of its own in the real ZooKeeper, which nobody has made yet."""
    if not hbase_gateways.zookeeper_port:
        pytest.skip("the named gateways do not say where their ZooKeeper is")
    return f"127.0.0.1:{hbase_gateways.zookeeper_port}/test-{uuid.uuid4().hex}"


@contextmanager
def looking(ensemble: str) -> Iterator[KazooClient]:
    """Another client of that ZooKeeper."""
    client = KazooClient(hosts=ensemble, handler=SequentialThreadingHandler())
    client.start(timeout=WAIT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def registered(ensemble: str, port: int = 15_165) -> Iterator[tuple[Registration, ThriftMetrics]]:
    """A face at this port, as soon as ZooKeeper has it."""
    figures = ThriftMetrics()
    registration = Registration(ensemble, "mq.example", port, figures)
    registration.start()
    try:
        until(lambda: figures.registered is True)
        yield registration, figures
    finally:
        registration.stop()


def until(holds: Callable[[], bool]) -> None:
    stop_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < stop_s, "it did not come to be"
        time.sleep(0.02)


def test_tephras_client_finds_the_server_through_zookeeper_alone(ensemble: str, tmp_path: Path):
    server = ServerProcess(tmp_path)
    server.start("--set", "thrift.port=0", "--set", f"thrift.zookeeper={ensemble}")
    try:
        with looking(ensemble) as client:
            until(lambda: client.exists(FOLDER) is not None and client.get_children(FOLDER) != [])
            done = subprocess.run(
                java_command("Discovering", ensemble),
                capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
            committed = int(done.stdout.split()[-1])
            assert server.ask_json("GET", f"/v1/transactions/{committed}")["state"] == "COMMITTED"
            assert "basalt_thrift_registered 1.0" in server.ask("GET", "/metrics").body.decode()
            assert server.stop() == 0
            assert client.get_children(FOLDER) == [], "a server that stops is found no longer"
    finally:
        server.kill()


def test_two_servers_are_there_side_by_side_and_each_takes_its_own_node_along(ensemble: str):
    with looking(ensemble) as client, registered(ensemble, 1) as (first, figures), registered(ensemble, 2):
        ports = [json.loads(client.get(f"{FOLDER}/{name}")[0])["port"] for name in client.get_children(FOLDER)]
        assert sorted(ports) == [1, 2]
        first.stop()
        assert not figures.registered
        assert client.get_children(FOLDER) == [node_path("mq.example", 2).rpartition("/")[2]]


def test_a_node_that_zookeeper_dropped_with_its_owner_is_made_again(ensemble: str):
    with looking(ensemble) as client, registered(ensemble) as (registration, figures):
        path = node_path("mq.example", 15_165)
        lost_owner = client.get(path)[1].ephemeralOwner
        with_its_identity = KazooClient(hosts=ensemble, client_id=registration._client.client_id)
        with_its_identity.start(timeout=WAIT_S)
        with_its_identity.stop()  # ends it for both: what a partition longer than the time-out does
        with_its_identity.close()
        until(lambda: client.exists(path) is not None and client.get(path)[1].ephemeralOwner != lost_owner)
        until(lambda: figures.registered is True)


def test_what_a_former_process_left_at_this_address_is_replaced(ensemble: str):
    with looking(ensemble) as client:
        path = node_path("mq.example", 15_165)
        client.ensure_path("/")
        client.create(path, b"from before", ephemeral=True, makepath=True)
        with registered(ensemble):
            data, stat = client.get(path)
            assert data == node_data("mq.example", 15_165)
            assert stat.ephemeralOwner != client.client_id[0]
        assert client.exists(path) is None
