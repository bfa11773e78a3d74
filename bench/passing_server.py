"""A server that leads, or one that does not and passes calls on to it, without HBase: `python -m bench.passing_server leader|standby …`.

The leader works on RocksDB and has its lease in memory; the standby has a copy of that lease, which a thread renews as the leader would. All else is the
product: of what a call costs both, nothing is missing but the store that they would share.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import itertools
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec
import uvloop

from basalt.cluster.lease import LEASE, Candidate, LeaseRecord
from basalt.errors import UnavailableError
from basalt.server.failover import FailoverServer
from basalt.server.listening import listen_address
from basalt.server.process import GC_THRESHOLDS, SWITCH_INTERVAL_S, _http_server, keep_large_buffers, listen
from basalt.server.wiring import RunningServices, Shared, open_services, open_store
from basalt.settings import Settings
from basalt.settings.cluster import ClusterSettings
from basalt.settings.tree import LogSettings
from basalt_engine.clock import SystemClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import FACTS, InstallationFacts, SystemTable
from basalt_engine.table import Store

LEASE_MS = 6_000
HANDLES_OF_ROWS = 2  # that a server opens first, on its lease and on its membership
RENEWAL_S = 1.5
SECRET = "5ec2e7" * 10  # of a server that is measured, on loopback
FACTS_OF_BOTH = InstallationFacts(2, 0, "bench")
TRIES = 100
SETTINGS = Settings(log=LogSettings(level="warning"), cluster=ClusterSettings(share=False))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.passing_server", description=__doc__)
    parser.add_argument("role", choices=("leader", "standby"))
    parser.add_argument("place", help="the data directory of a leader; of a standby, the port of its leader")
    parser.add_argument("--port-file", type=Path, required=True)
    arguments = parser.parse_args()
    keep_large_buffers()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(_serve(arguments.role == "leader", arguments.place, arguments.port_file))


async def _serve(leads: bool, place: str, port_file: Path) -> None:
    clock, leases = SystemClock(), MemoryStore(atomic=False)
    listener, link_listener = _neighbours()
    port = listener.getsockname()[1]
    candidate = Candidate("bench", f"http://127.0.0.1:{port}", f"run-{port}", LEASE_MS, SECRET, _link_of(port))
    FACTS.write(SystemTable(leases.another().table(SystemTable.name)), FACTS_OF_BOTH)
    opened = itertools.count()

    def open_one() -> Store:
        return leases.another() if next(opened) < HANDLES_OF_ROWS else open_store(SETTINGS, Path(place))

    async def open_all(store: Store, epoch: int, shared: Shared | None) -> RunningServices:
        return await open_services(SETTINGS, Path(place), store=store, clock=clock, epoch=epoch, shared=shared)

    server = FailoverServer(clock, candidate, open_store=open_one, open_services=open_all, settings=SETTINGS)
    if not leads:
        threading.Thread(target=functools.partial(_renew, leases.another(), place), daemon=True).start()
        while leases.table(SystemTable.name).get(b"lease:leader") is None:
            await asyncio.sleep(0.01)
    server.leadership.start()
    server.membership.start()
    await server.links.start(link_listener)
    running = asyncio.create_task(server.run())
    while (server._serving is None) if leads else (server.links.to_leader is None):
        await asyncio.sleep(0.01)
    http = _http_server(server, server.stop_waiting, lambda: _tell(port_file, port), None)
    await http.serve(sockets=[listener])
    running.cancel()
    await asyncio.wait([running])
    await server.close()


def _neighbours() -> tuple[socket.socket, socket.socket]:
    """Sockets for calls and for links, which listen at a port and the next one."""
    for _ in range(TRIES):
        first = listen(listen_address(SETTINGS), 0)
        try:
            return first, listen(listen_address(SETTINGS), first.getsockname()[1] + 1)
        except UnavailableError:
            first.close()
    raise RuntimeError("no two ports beside each other are free")


def _link_of(port: int) -> str:
    return f"127.0.0.1:{port + 1}"


def _renew(store: MemoryStore, port: str) -> None:
    """Renew the lease of the leader at this port, as that would."""
    system, stored = SystemTable(store.table(SystemTable.name)), None
    record = LeaseRecord(
        "bench", f"http://127.0.0.1:{port}", 1, 0, f"run-{port}", LEASE_MS, SECRET, link=_link_of(int(port))
    )
    for number in itertools.count(1):
        body = LEASE.encode(msgspec.structs.replace(record, expire_ms=number))
        assert system.replace(LEASE.kind, LEASE.name, stored, body)
        stored = body
        time.sleep(RENEWAL_S)


def _tell(port_file: Path, port: int) -> None:
    partial = port_file.with_suffix(".partial")
    partial.write_text(f"{port}\n")
    partial.replace(port_file)


if __name__ == "__main__":
    main()
