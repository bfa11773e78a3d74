"""Two real servers on one real HBase: ranges are read by the one that does not lead, the same as by the leader, also while that is killed."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, serves, until
from tests.system.server_process import ServerProcess

pyarrow = pytest.importorskip("pyarrow")

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

JSON = {"Content-Type": "application/json", "Accept": "application/json"}
TOPIC = "/v1/namespaces/read/topics/elsewhere"
BATCH = 50
KILL_AFTER = 20  # batches


def publish(server: ServerProcess, first: int, **more: object) -> int:
    body = {"messages": [f"{first + each}" for each in range(BATCH)], **more}
    return server.ask("POST", f"{TOPIC}/publish", json.dumps(body).encode(), JSON).status


def test_a_reader_of_ranges_gets_everything_once_and_in_order_while_the_leader_is_killed(
    two: tuple[ServerProcess, ServerProcess],
):
    leader, standby = two
    standby.ask_json("PUT", TOPIC)
    aborted = leader.ask_json("POST", "/v1/transactions", {})["writePointer"]
    assert publish(leader, -1_000, transactionWritePointer=aborted) == 200
    leader.ask_json("POST", f"/v1/transactions/{aborted}/invalidate", {})
    told: list[int] = []  # the first number of each batch that is there
    maybe: set[int] = set()
    stop, pause = threading.Event(), threading.Event()

    def write() -> None:
        for first in itertools.count(0, BATCH):
            if stop.is_set():
                return
            while (status := publish(standby, first)) == 503 and not stop.is_set():
                maybe.add(first)
                pause.wait(0.05)
            if status == 200:
                told.append(first)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    read: list[int] = []
    after: str | None = None

    def read_on() -> None:
        """Read up to the stable end of this moment, as Spark's source does."""
        nonlocal after
        reply = standby.ask("GET", f"{TOPIC}/stable-end")
        if reply.status != 200 or reply.json()["id"] is None:
            return
        through, at = reply.json()["id"], after
        while at is None or at < through:
            where = f"{TOPIC}/range?through={through}&columns=value&bytesMax=2000" + (f"&after={at}" if at else "")
            answer = standby.ask("GET", where)
            if answer.status == 503:
                pause.wait(0.05)
                continue
            assert answer.status == 200, answer.body
            table = pyarrow.ipc.open_stream(answer.body).read_all()
            read.extend(int(bytes(value).decode()) for value in table.column("value").to_pylist())
            at = answer.headers.get("basalt-next", through)
            after = at

    while len(told) < KILL_AFTER:
        read_on()
    direct, here = (server.ask("GET", f"{TOPIC}/range?through={after}").body for server in (leader, standby))
    assert here == direct
    figures = standby.ask("GET", "/metrics").body.decode()
    assert float(figures.split('basalt_cluster_ranges_permitted_total{outcome="read"} ')[1].split()[0]) > 0
    leader.kill()
    until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
    before = len(told)
    until(lambda: len(told) > before + KILL_AFTER, standby)
    stop.set()
    writer.join(WAIT_SECONDS_MAX)

    def all_was_read() -> bool:
        read_on()
        return told[-1] in read

    until(all_was_read, standby)
    firsts = [number for number in read if number % BATCH == 0]
    assert min(read) >= 0, "what was rolled back was read"
    # A batch whose answer was lost may be there twice, for it was sent again: all others once.
    assert [first for first in firsts if first not in maybe] == [first for first in told if first not in maybe]
    assert set(told) <= set(firsts) <= set(told) | maybe
    assert len(read) == BATCH * len(firsts)
