"""After a kill: learn what became of everything that was under way, then compare all that is there with what must be."""

from __future__ import annotations

import random

import basalt
from basalt.client import Client
from basalt.client.calls.messages import Isolation
from tests.system.caller import AVRO, Caller
from tests.system.clients import NAMESPACE, TOPICS, TRANSACTIONS, told_by
from tests.system.expectations import CHURNED, STABLE, End, Expectations, How, Messages, Told, Tx, name_of
from tests.system.server_process import Reply

GOING_ON = 0.6  # of the transactions that a kill found in the middle, how many are committed after all
FORGOTTEN = 0.2  # of the one-shot transactions whose answer was lost, how many are never repeated


class Settling:
    """One restarted server, which nobody else talks to."""

    def __init__(self, port: int, expected: Expectations, chances: random.Random) -> None:
        self._port = port
        self._caller = Caller(port)
        self._expected = expected
        self._chances = chances
        self._generations = dict.fromkeys(STABLE, 0)
        self.messages = 0  # read and compared

    def run(self) -> None:
        """Settle and compare everything."""
        for topic in CHURNED:
            self._find_generation(topic)
        for settle in self._chances.sample([self._repeat_one_shots, self._resolve_transactions], 2):
            settle()
        self._caller.close()
        self._compare()

    def _ask(self, method: str, target: str, body: bytes = b"", request_id: str = "") -> Reply:
        reply = self._caller.ask(method, target, body, AVRO if body else "", request_id)
        assert reply is not None, f"{method} {target} was not answered"
        return reply

    def _find_generation(self, topic: str) -> None:
        life = self._expected.lives[topic]
        reply = self._ask("GET", f"{TOPICS}/{topic}")
        if reply.status == 404:
            assert not life.exists or life.deleting, f"topic {topic} is gone, but {life}"
            life.low = life.high + 1 if life.exists else life.low
            life.high, life.exists, life.deleting = life.low - 1, False, False
            return
        generation = int(reply.json()["properties"]["generation"])
        assert life.low <= generation <= life.high, f"topic {topic} has generation {generation}, but {life}"
        self._generations[topic] = life.low = life.high = generation
        life.exists, life.deleting = True, False

    def _repeat_one_shots(self) -> None:
        for call in self._expected.calls.values():
            if call.how is not How.ONE_SHOT or call.told is not Told.NOTHING or not call.request_id:
                continue
            if self._chances.random() >= FORGOTTEN:
                reply = self._ask("POST", TRANSACTIONS, call.body, call.request_id)
                assert reply.status in (200, 404), reply
                self._expected.answered(call, told_by(reply))
            call.request_id = ""

    def _resolve_transactions(self) -> None:
        for tx in self._expected.unresolved:
            self._resolve(tx)
        self._expected.unresolved.clear()

    def _resolve(self, tx: Tx) -> None:
        path = f"{TRANSACTIONS}/{tx.id}"
        if not tx.asked and self._chances.random() < GOING_ON:
            tx.asked, tx.request_id = "commit", f"commit-{tx.id}"
        if tx.asked == "commit":
            how = self._chances.choices(["repeat", "ask", "abort"], [6, 2, 2])[0]
            if how == "repeat":
                reply = self._ask("POST", f"{path}/commit", tx.body, tx.request_id)
                assert reply.status in (200, 409), f"{tx}: {reply}"
                if reply.status == 200:
                    self._committed(tx)
                    return
            elif how == "ask" and self._ask("GET", path).json()["state"] == "COMMITTED":
                self._committed(tx)
                return
        reply = self._ask("POST", f"{path}/abort")
        if reply.status == 409:
            assert tx.asked == "commit", f"{tx}: {reply}"
            assert self._ask("GET", path).json()["state"] == "COMMITTED", tx
            self._committed(tx)
            return
        assert reply.status == 200, f"{tx}: {reply}"
        tx.end = End.HIDDEN

    def _committed(self, tx: Tx) -> None:
        tx.end = End.COMMITTED
        for call in tx.calls:
            if call.how is How.WORK:
                self._expected.answered(call, Told.DONE)

    # Comparing.

    def _compare(self) -> None:
        with basalt.connect(f"http://127.0.0.1:{self._port}", namespace=NAMESPACE, attempts_max=1) as client:
            everything, committed = {}, {}
            for topic in (*STABLE, *(topic for topic in CHURNED if self._expected.lives[topic].exists)):
                generation = self._generations[topic]
                everything[topic] = self._read(client, topic, "uncommitted")
                committed[topic] = self._read(client, topic, "committed")
                self._expected.check(topic, generation, everything[topic], committed=False)
                self._expected.check(topic, generation, committed[topic], committed=True)
                in_all = set(everything[topic])
                assert all(message in in_all for message in committed[topic]), f"{topic}: two readers, two orders"
        self._expected.check_whole({t: {int(name.split(".")[0]) for _, name in committed[t]} for t in STABLE})
        for view in self._expected.views:
            self._expected.check_view(view, (committed if view.committed else everything)[view.topic])

    def _read(self, client: Client, topic: str, isolation: Isolation) -> Messages:
        found: Messages = []
        start: bytes | None = None
        limit = self._chances.choice((None, None, 997))
        while page := client.topic(topic).poll(start, inclusive=start is None, limit=limit, isolation=isolation):
            found += zip(page.ids(), map(name_of, map(bytes, page.payloads())), strict=True)
            start = found[-1][0]
        assert page.held_by is None, f"readers of {topic} wait for transaction {page.held_by}"
        self.messages += len(found)
        return found
