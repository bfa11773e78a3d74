"""What clients do to a server that is about to be killed, each in a thread of its own, until it answers no more."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable

from basalt.api.bodies.messages import ConsumeRequest, PublishRequest, Work, WorkPublish
from basalt.api.codecs import avro
from tests.control.api.codecs import client_codecs
from tests.system.caller import AVRO, Caller
from tests.system.expectations import (
    CHURNED,
    STABLE,
    Call,
    End,
    Expectations,
    How,
    Told,
    Tx,
    View,
    name_of,
    payload,
)
from tests.system.server_process import Reply

NAMESPACE = "kill"
TOPICS = f"/v1/namespaces/{NAMESPACE}/topics"
TRANSACTIONS = "/v1/transactions"
LARGE_BYTES = 20_000  # RocksDB keeps such a value in a blob file
ABANDONED_MS = 300
KEYS = [base64.b64encode(f"key {number}".encode()).decode() for number in range(4)]


class ServerDiedError(Exception):
    """The server answers no more."""


class Client:
    """One thread's view of the server. `wrong` gets what no answer may ever be."""

    def __init__(self, port: int, expected: Expectations, chances: random.Random, wrong: list[str]) -> None:
        self.caller = Caller(port)
        self.expected = expected
        self.chances = chances
        self.wrong = wrong

    def run(self, step: Callable[[], None]) -> None:
        """Repeat a step until the server dies."""
        try:
            while True:
                step()
        except ServerDiedError:
            return
        except BaseException as error:  # raised where the threads are joined
            self.wrong.append(f"{step}: {error!r}")
        finally:
            self.caller.close()

    # Sending.

    def _send(
        self, target: str, body: bytes = b"", content_type: str = "", call: Call | None = None, request_id: str = ""
    ) -> Reply:
        reply = self.caller.ask("POST", target, body, content_type, request_id)
        if call is not None:
            self._note(call, reply)
        if reply is None:
            raise ServerDiedError
        return reply

    def _note(self, call: Call, reply: Reply | None) -> None:
        told = told_by(reply)
        self.expected.answered(call, told)
        if told is Told.NOTHING and reply is not None:
            self.wrong.append(f"{call}: {reply}")
        if told is Told.DONE and any(call.low[topic] > call.high[topic] for topic in call.low):
            self.wrong.append(f"{call}: taken by a topic that did not exist")

    def _payloads(self, call: Call, topic: str) -> list[bytes]:
        large = self.chances.random() < 0.02
        size = LARGE_BYTES if large else self.chances.randrange(40)
        return [payload(call.number, topic, index, size) for index in range(call.counts[topic])]

    def _work(self, call: Call) -> bytes:
        return avro.encode_work(
            Work(publish=[WorkPublish(NAMESPACE, topic, self._payloads(call, topic)) for topic in call.counts])
        )

    def _publish(self, topic: str, count: int, how: How, tx: Tx | None = None) -> Reply:
        call = self.expected.call({topic: count}, how, tx)
        pointer = None if tx is None else tx.write_pointer
        body = avro.encode_publish_request(PublishRequest(pointer, self._payloads(call, topic)))
        verb = "store" if how is How.STORED else "publish"
        return self._send(f"{TOPICS}/{topic}/{verb}", body, AVRO, call)

    # Steps.

    def publish(self) -> None:
        """One message, or a batch."""
        count = 1 if self.chances.random() < 0.8 else self.chances.randrange(2, 200)
        self._publish(self.chances.choice((*STABLE, *STABLE, *CHURNED)), count, How.PLAIN)

    def one_shot(self) -> None:
        """One request for several topics, under an id by which it can be repeated."""
        topics = self.chances.sample(STABLE, self.chances.randint(1, 3))
        if self.chances.random() < 0.2:
            topics.append(self.chances.choice(CHURNED))
        call = self.expected.call({topic: self.chances.randrange(1, 4) for topic in topics}, How.ONE_SHOT)
        call.request_id, call.body = f"one-shot-{call.number}", self._work(call)
        reply = self._send(TRANSACTIONS, call.body, AVRO, call, call.request_id)
        if (
            reply.status == 200 and self.chances.random() < 0.2
        ):  # its answer was lost on the way, as far as the client knows
            again = self._send(TRANSACTIONS, call.body, AVRO, None, call.request_id)
            if again.json() != reply.json():
                self.wrong.append(f"{call}: {again} after {reply}")

    def transact(self) -> None:
        """One transaction, ended in one of the ways there are."""
        choice = self.chances.random()
        abandoned = choice < 0.1
        asked = {"externalWrites": self.chances.random() < 0.2, "snapshot": False}
        if abandoned:
            asked["timeoutMs"] = ABANDONED_MS
        begun = self._send(TRANSACTIONS, json.dumps(asked).encode(), "application/json").json()
        tx = Tx(begun["id"], begun["writePointer"])
        self.expected.transactions.append(tx)
        self.expected.unresolved.append(tx)
        if self.chances.random() < 0.2:
            body = json.dumps({"changes": self.chances.sample(KEYS, 2)}).encode()
            if self._send(f"{TRANSACTIONS}/{tx.id}/changes", body, "application/json").status == 409:
                choice = 0.2
        for _ in range(self.chances.randrange(4)):
            self._write_under(tx)
        if abandoned:
            return
        if choice < 0.3:
            tx.asked = "abort"
            self._end(tx, self._send(f"{TRANSACTIONS}/{tx.id}/abort"))
        else:
            self._commit(tx)

    def _write_under(self, tx: Tx) -> None:
        topic, choice = self.chances.choice(STABLE), self.chances.random()
        if choice < 0.6:
            self._publish(topic, self.chances.randrange(1, 5), How.STORED, tx)
        elif choice < 0.75:
            self._publish(topic, self.chances.randrange(1, 3), How.EARLY, tx)
        elif choice < 0.9:
            tx.references.add(topic)
            self._send(
                f"{TOPICS}/{topic}/publish", avro.encode_publish_request(PublishRequest(tx.write_pointer, [])), AVRO
            )
        else:
            reply = self._send(f"{TRANSACTIONS}/{tx.id}/checkpoint")
            if reply.status == 200:
                tx.write_pointer = reply.json()["writePointer"]

    def _commit(self, tx: Tx) -> None:
        tx.request_id = f"commit-{tx.id}"
        call = None
        if self.chances.random() < 0.6:
            call = self.expected.call(dict.fromkeys(self.chances.sample(STABLE, 2), 1), How.WORK, tx)
            tx.body = self._work(call)
        tx.asked = "commit"
        reply = self._send(f"{TRANSACTIONS}/{tx.id}/commit", tx.body, AVRO, call, tx.request_id)
        if (
            reply.status == 409
        ):  # it timed out, or lost a conflict; what it published early holds readers until it is aborted
            tx.asked = "abort"
            reply = self._send(f"{TRANSACTIONS}/{tx.id}/abort")
        self._end(tx, reply)

    def _end(self, tx: Tx, reply: Reply) -> None:
        if reply.status != 200:
            self.wrong.append(f"{tx}: {reply}")
        tx.end = End.COMMITTED if tx.asked == "commit" else End.HIDDEN
        self.expected.unresolved.remove(tx)

    def churn(self) -> None:
        """Delete a topic, or create it again; the one client that does so."""
        gone = [topic for topic in CHURNED if not self.expected.lives[topic].exists]
        topic = self.chances.choice(gone or CHURNED)
        life = self.expected.lives[topic]
        if life.exists:
            life.deleting = True
            self._reach("DELETE", topic)
            life.low, life.exists, life.deleting = life.high + 1, False, False
        else:
            life.high = life.low
            generation = self._reach("PUT", topic).json()["properties"]["generation"]
            if int(generation) != life.high:
                self.wrong.append(f"topic {topic} has generation {generation}, not {life.high}")
            life.exists = True
        for _ in range(self.chances.randrange(10) if life.exists else 1):
            self._publish(topic, self.chances.randrange(1, 5), How.PLAIN)

    def _reach(self, method: str, topic: str) -> Reply:
        reply = self.caller.ask(method, f"{TOPICS}/{topic}")
        if reply is None:
            raise ServerDiedError
        assert reply.status == 200, reply
        return reply

    def follow(self, view: View) -> None:
        """Read on from where this reader was, before or after any number of kills."""
        limit = self.chances.choice((1, 7, 500))
        body = avro.encode_consume_request(ConsumeRequest(view.cursor, view.cursor is None, limit))
        query = f"isolation={'committed' if view.committed else 'uncommitted'}&waitMs=20"
        reply = self._send(f"{TOPICS}/{view.topic}/poll?{query}", body, AVRO)
        assert reply.status == 200, reply
        view.seen += [
            (bytes(one.id), name_of(bytes(one.payload))) for one in client_codecs.decode_avro_messages(reply.body)
        ]
        if "basalt-next" in reply.headers:
            view.cursor = bytes.fromhex(reply.headers["basalt-next"])

    def compare_topics(self, since_ms: int) -> None:
        """In one snapshot a transaction shows in all topics or in none, and one that was committed before it shows."""
        known = [tx for tx in list(self.expected.transactions) if tx.end is End.COMMITTED]
        begun = self._send(TRANSACTIONS, b'{"snapshot": false}', "application/json").json()
        shown = {topic: self._numbers(topic, begun["id"], since_ms) for topic in STABLE}
        self._send(f"{TRANSACTIONS}/{begun['id']}/abort")
        if None not in shown.values():
            self._check_shown(shown, known, since_ms)

    def _numbers(self, topic: str, snapshot: str, since_ms: int) -> set[int] | None:
        """The calls whose messages a transaction sees; None when it has to wait for another one."""
        found: set[int] = set()
        start: bytes | int = since_ms
        while True:
            body = avro.encode_consume_request(ConsumeRequest(start, isinstance(start, int)))
            reply = self._send(f"{TOPICS}/{topic}/poll?transaction={snapshot}", body, AVRO)
            assert reply.status == 200, reply
            if "basalt-held-by" in reply.headers:
                return None
            messages = client_codecs.decode_avro_messages(reply.body)
            if not messages:
                return found
            found |= {int(name_of(bytes(one.payload)).split(".")[0]) for one in messages}
            start = bytes(messages[-1].id)

    def _check_shown(self, shown: dict[str, set[int]], known: list[Tx], since_ms: int) -> None:
        for tx in list(self.expected.transactions):
            seen = [
                call.number in shown[topic]
                for call in tx.calls
                if call.told is Told.DONE or call.how is How.WORK
                for topic in call.counts
            ]
            if tx.began_ms > since_ms and seen:  # begun since the polls' start, so all of it is behind that
                assert all(seen) or not any(seen), f"{tx} is torn in one snapshot: {seen}"
                assert all(seen) or tx not in known, f"{tx} was committed before the snapshot, which lacks it"


def told_by(reply: Reply | None) -> Told:
    """What an answer says about a call that carries messages."""
    if reply is None:
        return Told.NOTHING
    if reply.status < 300:
        return Told.DONE
    refused = reply.status < 500 or reply.json()["code"] in ("busy", "stopping", "store_unavailable", "unavailable")
    return Told.REFUSED if refused else Told.NOTHING
