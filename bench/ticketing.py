"""What Kerberos towards HBase costs: gateways of one HBase that ask nobody, prove who is there, sign each byte, or encrypt it.

The store is called as a server calls it: rows of a batch written, and read back; and a connection opened, with tickets that are there. The
yardstick is the gateway that asks nobody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from basalt_engine.stores.hbase.kerberos import KerberosLogin
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.hbase.tables import layouts
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_engine.table import Put
from bench.figures import Figure
from tests.hbase.secured import ADMINISTRATOR, OWN, QUALITIES, SecuredHBase, running_secured_hbase
from tests.kdc import running_kdc

OFF = "off"
PREFIX = "bench"
BATCH_BYTES = 500 * 1024  # of 500 messages of 1 KB, which are one row
ROUNDS = 7
# What a call may cost: rows there and back, and a connection, which lasts as long as its ticket. The quietest round of each counts, for the
# gateways share the machine with all else.
SLOWER_MAX = {"auth": 1.6, "auth-int": 2.5, "auth-conf": 4.0}
CONNECT_SLOWER_MAX = 15.0


def kerberos(folder: Path, quick: bool) -> Iterator[Figure]:
    """Writing, reading and connecting, with each quality of protection."""
    times = 5 if quick else 40
    with (
        running_kdc(folder / "kdc") as kdc,
        running_secured_hbase(folder, kdc, (OFF, *QUALITIES)) as hbase,
    ):
        with Thrift2(hbase.thrift2[OWN], login=hbase.login(ADMINISTRATOR)) as gateway:
            for layout in layouts(PREFIX, 1):
                gateway.create(layout.descriptor(), layout.splits)
        took: dict[str, list[tuple[float, float, float]]] = {quality: [] for quality in hbase.thrift2}
        for round_number in range(ROUNDS + 1):
            for quality, rounds in took.items():
                measured = _measured(hbase, quality, times)
                if round_number:  # the first one warms Java up
                    rounds.append(measured)
        limits: tuple[tuple[str, dict[str, float]], ...] = (
            ("write 500 KB", SLOWER_MAX),
            ("read 500 KB", SLOWER_MAX),
            ("connect, and a first call", dict.fromkeys(QUALITIES, CONNECT_SLOWER_MAX)),
        )
        for number, (work, limit) in enumerate(limits):
            plain_ms = min(each[number] for each in took[OFF])
            for quality in QUALITIES:
                secured_ms = min(each[number] for each in took[quality])
                yield Figure(
                    f"HBase, {quality}: {work}", secured_ms, "ms", "ms without Kerberos", plain_ms, limit[quality],
                    at_most=True,
                )  # fmt: skip


def _measured(hbase: SecuredHBase, quality: str, times: int) -> tuple[float, float, float]:
    """Milliseconds of one write, one read and one connection."""
    login = hbase.login(ADMINISTRATOR, quality)
    store = HBaseStore.open(hbase.thrift2[quality], PREFIX, login=login)
    try:
        table, value = store.table("message"), os.urandom(BATCH_BYTES)
        write_ms = _median_ms(times, lambda number: table.write([Put(b"row%d" % number, {b"c": value})]))
        read_ms = _median_ms(times, lambda number: table.get(b"row%d" % number))
    finally:
        store.close()
    return write_ms, read_ms, _median_ms(times, lambda _: _connect(hbase.thrift2[quality], login))


def _connect(address: str, login: KerberosLogin | None) -> None:
    with Thrift2(address, login=login) as gateway:
        gateway.server_type()


def _median_ms(times: int, work: Callable[[int], object]) -> float:
    took = []
    for number in range(times):
        began_s = time.perf_counter()
        work(number)
        took.append((time.perf_counter() - began_s) * 1_000)
    return median(took)
