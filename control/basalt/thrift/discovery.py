"""Tells clients of Apache Tephra where the Thrift face is, by way of ZooKeeper, where they can look for it.

The layout is that of Tephra's own service, which registers through Apache Twill: under `/discoverable/transaction` each
server has an ephemeral node, named by a hash of its address, whose data is JSON with the host name and the port. Described in
docs/reference/thrift.md, "Through ZooKeeper".
"""

from __future__ import annotations

import hashlib
import logging
import threading

import msgspec
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from basalt.thrift.metrics import ThriftMetrics

SERVICE = "transaction"  # data.tx.discovery.service.name of Tephra's clients, unless they set it
FOLDER = f"/discoverable/{SERVICE}"
SESSION_S = 10.0  # clients may be sent to a server that died until then
RETRY_MS_MAX = 10_000  # between two tries to reach an ensemble that does not answer
REGISTER_TRIES = 3  # a node of a former process of ours may have to go first
STOP_S_MAX = 2.0  # an ensemble that is gone must not hold up a server that stops

log = logging.getLogger("basalt.tephra")


class _Discoverable(msgspec.Struct):
    """The JSON by which Twill's discovery announces a service: clients of Tephra read it."""

    service: str
    hostname: str
    port: int
    payload: tuple[int, ...] = ()


def node_path(host: str, port: int) -> str:
    """The node of a server; nothing reads the name, but each address has one of its own."""
    return f"{FOLDER}/{hashlib.md5(f'{host}:{port}'.encode(), usedforsecurity=False).hexdigest()}"


def node_data(host: str, port: int) -> bytes:
    """The content of the node, from which clients learn host and port."""
    return msgspec.json.encode(_Discoverable(SERVICE, host, port))


class Registration:
    """One server's node, from `start` to `stop`: made again whenever ZooKeeper has dropped it, tried for as long as it takes.

    All of it happens on threads of the ZooKeeper client: a server starts and serves also while the ensemble is away.
    """

    def __init__(self, ensemble: str, host: str, port: int, metrics: ThriftMetrics) -> None:
        self._path, self._data = node_path(host, port), node_data(host, port)
        self._where = f"{ensemble} as {host}:{port}"
        self._metrics = metrics
        self._metrics.registered = False
        self._registering = threading.Lock()
        retry = {"max_tries": -1, "max_delay": RETRY_MS_MAX / 1_000}
        self._client = KazooClient(hosts=ensemble, timeout=SESSION_S, connection_retry=retry, command_retry=retry)
        self._client.add_listener(self._changed)

    def start(self) -> None:
        self._client.start_async()

    def stop(self) -> None:
        """Be found no longer. Blocks, but not for long: where ZooKeeper is away it drops the node by itself."""
        self._metrics.registered = False
        self._client.remove_listener(self._changed)
        try:
            if self._client.connected:
                self._client.delete_async(self._path).get(timeout=STOP_S_MAX)
        except (KazooException, KazooTimeoutError) as error:
            log.info("%s stays in ZooKeeper until its session ends: %s", self._path, error or type(error).__name__)
        self._client.stop()
        self._client.close()

    def _changed(self, state: str) -> None:
        """Called by the ZooKeeper client, whose thread must not be kept."""
        if state == KazooState.CONNECTED:
            self._client.handler.spawn(self._register)
            return
        self._metrics.registered = False
        log.warning("ZooKeeper at %s: %s", self._where, state.lower())

    def _register(self) -> None:
        with self._registering:
            try:
                for _ in range(REGISTER_TRIES):
                    if self._create():
                        self._metrics.registered = True
                        log.info("the Thrift transaction service is registered in ZooKeeper, %s", self._where)
                        return
            except KazooException as error:
                log.warning("could not register at ZooKeeper %s: %s", self._where, error or type(error).__name__)

    def _create(self) -> bool:
        """Create the ephemeral node; True when it is there and belongs to this client's session."""
        try:
            self._client.create(self._path, self._data, ephemeral=True, makepath=True)
        except NodeExistsError:
            return self._is_ours()
        return True

    def _is_ours(self) -> bool:
        """Otherwise a former process with this address left it: the address is ours now, so its node goes."""
        try:
            data, stat = self._client.get(self._path)
            session, _ = self._client.client_id
            if stat.ephemeralOwner == session and data == self._data:
                return True
            self._client.delete(self._path)
        except NoNodeError:
            pass  # it has just gone by itself
        return False
