"""Load of every kind on several servers, through any of them, and what must be true of it whatever happens to the servers.

`Load` has all clients; `finish` ends what is open and checks. Topics: ORDERS and COPIES are written together by one-shots, transactions, sessions
and table writers, so that owners of both have a part; INPUTS is what consumer groups hand on.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import basalt
from tests.hbase import member_checks as checks
from tests.hbase.log_workload import (
    COPIES,
    DONE,
    NAMESPACE,
    NOTHING,
    OPEN_MS,
    ORDERS,
    TOPICS,
    TRANSACTIONS,
    UNKNOWN,
    OneShots,
    PlainPublisher,
    Reader,
    Story,
    TransactionWorker,
    Worker,
    everything,
    outcome_of,
)
from tests.hbase.member_servers import Members
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, until
from tests.hbase.test_groups_on_two_servers import members as group_members
from tests.hbase.test_two_servers import NAMESPACE as CLIENT_NAMESPACE
from tests.hbase.test_two_servers import Publisher, check
from tests.system import group_worker
from tests.system.group_worker import outputs_of
from tests.system.server_process import Reply, ServerProcess

CLIENT_TOPIC = "load"
INPUTS = "inputs"
GROUPS = (("together", "shared", "transaction"), ("by-key", "keyed", "process"))
KEYS = 5
TABLE = f"/v1/namespaces/{NAMESPACE}/tables/accounts"
ABORTED_ONE_IN = 4
ANSWER_SECONDS_MAX = 8.0  # of a raw caller: a server that stands still, or is cut off, keeps it no longer
PATIENT_MS = int(3_000 * TAKE_OVER_SECONDS_MAX)  # of a real client: it waits out any fault
WORKS_CALLS = 4  # answers of 200 that tell that a client's kind of call works again
OF_EACH_CALL = ('"basalt.access"', '"basalt.transactions"')
LINES = 30  # of each server's log, in a failure
ENDED = {"COMMITTED", "ABORTED", "INVALID"}
MORE_CODES = {"transaction_not_found", "transaction_conflict"}


class StoringTransactions(TransactionWorker):
    """Publishes to one topic under the write pointer, stores in the other one, and commits; one in some it aborts."""

    def __init__(self, story: Story, name: str) -> None:
        super().__init__(story, name)
        self.aborted: set[str] = set()

    def step(self) -> None:
        begun = self.begin()
        if begun is None:
            return
        transaction, pointer, text = begun
        body = {"transactionWritePointer": pointer, "messages": [text]}
        wanted = self.begun % ABORTED_ONE_IN != 0
        wanted &= _outcome(self.ask(f"{TOPICS}/{ORDERS}/publish", body)) == DONE
        wanted = wanted and _outcome(self.ask(f"{TOPICS}/{COPIES}/store", body)) == DONE
        how, told = ("commit", self.committed) if wanted else ("abort", self.aborted)
        if _outcome(self.ask(f"{TRANSACTIONS}/{transaction}/{how}", {})) == DONE:
            told.add(transaction)


class SessionJob(Worker):
    """Commits version after version of a named session to both topics, each until it is told that it is done."""

    def __init__(self, story: Story, name: str) -> None:
        super().__init__(story, name)
        self.version = 0  # the newest that is done, as it was told

    def step(self) -> None:
        version = self.version + 1
        named = {"session": f"{self._story.name}-{self.name}", "run": "only", "version": version}
        begun = self.ask(TRANSACTIONS, {**named, "timeoutMs": OPEN_MS, "snapshot": False})
        if begun is None or _outcome(begun) != DONE:
            return
        if begun.json()["id"] is None:
            self.version = version
            return
        publish = [
            {"namespace": NAMESPACE, "topic": topic, "messages": [f"{self.name}.{version:06}"]}
            for topic in (ORDERS, COPIES)
        ]
        if _outcome(self.ask(f"{TRANSACTIONS}/{begun.json()['id']}/commit", {"publish": publish})) == DONE:
            self.version = version


class TableWriter(TransactionWorker):
    """Writes a number to two rows of a table and to both topics, in one transaction; then reads the rows."""

    def __init__(self, story: Story, name: str) -> None:
        super().__init__(story, name)
        self.highest_done = 0
        self.views: list[tuple[int, int, int]] = []  # done before, and both rows

    def step(self) -> None:
        begun = self.begin(snapshot=True)
        if begun is not None:
            self._write(begun.id, begun.text)
        self._read()

    def _write(self, transaction: str, text: str) -> None:
        puts = [{"row": row, "column": _base64("n"), "value": _base64(f"{self.begun}")} for row in self.rows]
        if _outcome(self.ask(f"{TABLE}/write", {"transaction": transaction, "puts": puts})) != DONE:
            self.ask(f"{TRANSACTIONS}/{transaction}/abort", {})
            return
        publish = [{"namespace": NAMESPACE, "topic": topic, "messages": [text]} for topic in (ORDERS, COPIES)]
        if _outcome(self.ask(f"{TRANSACTIONS}/{transaction}/commit", {"publish": publish})) == DONE:
            self.committed.add(transaction)
            self.highest_done = self.begun

    def _read(self) -> None:
        before = self.highest_done
        reply = self.ask(f"{TABLE}/read", {"rows": self.rows})
        if reply is not None and reply.status == 200:
            self.views.append((before, *self.values(reply)))

    def values(self, reply: Reply) -> tuple[int, int]:
        """The numbers in both rows; 0: none."""
        found = {cell["row"]: int(b64decode(cell["value"])) for cell in reply.json()["cells"]}
        return found.get(self.rows[0], 0), found.get(self.rows[1], 0)

    @property
    def rows(self) -> list[str]:
        return [_base64(f"{self._story.name}-{self.name}-{row}") for row in ("a", "b")]


class StableEnds(Worker):
    """Asks for the stable end of a topic, of each server in turn."""

    def __init__(self, story: Story, topic: str) -> None:
        super().__init__(story, f"stable end of {topic}")
        self.ids: list[str] = []
        self._topic = topic

    def step(self) -> None:
        reply = self.ask(f"{TOPICS}/{self._topic}/stable-end", None, method="GET")
        if reply is not None and reply.status == 200 and reply.json()["id"] is not None:
            self.ids.append(reply.json()["id"])


class Feed(Worker):
    """Publishes what groups hand on, each message until it is told that it is there."""

    def __init__(self, story: Story) -> None:
        super().__init__(story, "feed")
        self.sent: list[tuple[bytes, bytes]] = []  # key and payload of what is there
        self.is_enough = False

    def step(self) -> None:
        if self.is_enough:
            return
        key, payload = f"key-{len(self.sent) % KEYS}", f"{self.name}.{len(self.sent):06}"
        records = [{"payload": payload, "key": key}]
        entry = {"namespace": group_worker.NAMESPACE, "topic": INPUTS, "records": records}
        if outcome_of(self.ask(TRANSACTIONS, {"work": {"publish": [entry]}, "owner": self.name}, payload)) == DONE:
            self.sent.append((key.encode(), payload.encode()))


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _outcome(reply: Reply | None) -> str:
    """As `outcome_of`; a transaction may also have been given up meanwhile, and be forgotten."""
    if reply is not None and reply.status != 200 and reply.json()["code"] in MORE_CODES:
        return NOTHING
    return outcome_of(reply)


class Load:
    """All clients at once."""

    def __init__(self, servers: Members, folder: Path, *, may_hang: bool) -> None:
        """`may_hang`: a server may take a call and not answer it, and then a client waits as long as it was told to, and knows nothing."""
        self.servers = servers
        self._may_hang = may_hang
        self.story = Story([each.process for each in servers.those], ANSWER_SECONDS_MAX)
        self.plain = [PlainPublisher(self.story, f"plain{number}") for number in range(2)]
        self.one_shots = [
            OneShots(self.story, "patient", is_patient=True),
            OneShots(self.story, "hasty", is_patient=False),
        ]
        self.transactions = [StoringTransactions(self.story, f"tx{number}") for number in range(2)]
        self.session, self.table = SessionJob(self.story, "job"), TableWriter(self.story, "cells")
        self.feed = Feed(self.story)
        self.of_states: list[StoringTransactions | TableWriter] = [*self.transactions, self.table]
        self.of_outcomes: list[PlainPublisher | OneShots] = [*self.plain, *self.one_shots]
        self.committed = [Reader(self.story, topic, "committed") for topic in (ORDERS, COPIES)]
        self.raw = [Reader(self.story, topic, "uncommitted") for topic in (ORDERS, COPIES)]
        self.ends = [StableEnds(self.story, topic) for topic in (ORDERS, COPIES)]
        self.writers: list[Worker] = [
            *self.plain, *self.one_shots, *self.transactions, self.session, self.table, self.feed,
        ]  # fmt: skip
        self.all: list[Worker] = [*self.writers, *self.committed, *self.raw, *self.ends]
        timeout_ms = int(1_000 * ANSWER_SECONDS_MAX) if may_hang else PATIENT_MS
        self.publishers = [Publisher(servers.urls, CLIENT_TOPIC, f"client{number}", timeout_ms) for number in range(2)]
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Load:
        self._make()
        log = self._folder / "group-members.log"
        self._stack.enter_context(group_members(self.servers.urls, log, *GROUPS, inputs=INPUTS))
        for worker in (*self.all, *self.publishers):
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.story.is_over.set()
        for publisher in self.publishers:
            publisher.enough.set()
        for worker in (*self.all, *self.publishers):
            worker.join(WAIT_SECONDS_MAX)
        self._stack.close()

    def _make(self) -> None:
        """Topics and a table that nobody has used, each topic with another owner where there are several."""
        topics = [
            *((NAMESPACE, topic) for topic in (ORDERS, COPIES)), (CLIENT_NAMESPACE, CLIENT_TOPIC),
            *((group_worker.NAMESPACE, topic) for topic in (INPUTS, *(outputs_of(group) for group, _, _ in GROUPS))),
        ]  # fmt: skip
        for namespace, topic in topics:
            self.servers.make(f"/v1/namespaces/{namespace}/topics/{topic}")
        self.servers.make(TABLE)
        self.servers.spread(NAMESPACE, [ORDERS, COPIES])

    def check_that_none_failed(self) -> None:
        wrong = [(each.name, each.wrong) for each in self.all if each.wrong]
        wrong += [(each.name, each.wrong) for each in self.publishers if each.wrong]
        assert not wrong, [(name, str(error)[:1_000]) for name, error in wrong]

    def wait_until_all_work(self) -> None:
        """Return once each client got some more answers of 200, through each server."""
        self.story.phase = f"works since {len(self.plain[0].answers)}"
        told = [len(publisher.told) for publisher in self.publishers]
        calls_min = WORKS_CALLS * len(self.story.servers)

        def works() -> bool:
            self.check_that_none_failed()
            counts = [[answer.status for answer in each.of(self.story.phase)].count(200) for each in self.all]
            more = [len(each.told) - before for each, before in zip(self.publishers, told, strict=True)]
            self._lacking = [each.name for each, count in zip(self.all, counts, strict=True) if count < calls_min]
            return not self._lacking and min(more) >= WORKS_CALLS

        try:
            until(works, self.servers.up()[0].process, 2 * TAKE_OVER_SECONDS_MAX)
        except AssertionError as error:
            last = {each.name: each.answers[-2:] for each in self.all if each.name in self._lacking}
            last |= {each.name: each.unknown[-2:] for each in self.publishers}
            raise AssertionError(f"these do not work again: {last}\n{self._logs()}") from error

    def _logs(self) -> str:
        """The last that each server said, but for each call."""
        lines: list[str] = []
        for each in self.servers.those:
            said = each.process.log.read_text(errors="replace").splitlines()
            lines += [
                f"--- {each.number}",
                *[line for line in said if not any(word in line for word in OF_EACH_CALL)][-LINES:],
            ]
        return "\n".join(lines)

    # What must be true.

    def finish(self) -> None:
        """Let groups come to the end, stop all clients, end what is open, and check."""
        self.feed.is_enough = True
        server = self.servers.leader().process
        self._wait_for_groups(server)
        self.__exit__()
        self.check_that_none_failed()
        states = self._states(server)
        found = self._found(server, states)
        self._check_topics(found, states)
        self._check_readers(server, found)
        self._check_groups(server)
        self._check_table(server, states)
        with basalt.connect(server.url, namespace=CLIENT_NAMESPACE) as client:
            messages = [message.text for message in client.topic(CLIENT_TOPIC).read()]
        check(self.publishers, messages)
        assert self._may_hang or [each.unknown for each in self.publishers] == [[] for _ in self.publishers]
        for other in self.servers.up():  # whoever is asked
            assert {topic: everything(other.process, topic) for topic in found} == found, f"read through {other.number}"
        print(f"checked: {self.counts()}; transactions {dict(Counter(states.values()))}")

    def counts(self) -> dict[str, Any]:
        """How often each kind of call was answered, by status and code."""
        return {each.name: dict(Counter(f"{a.status} {a.code}".strip() for a in each.answers)) for each in self.all}

    def _wait_for_groups(self, server: ServerProcess) -> None:
        with basalt.connect(server.url, namespace=group_worker.NAMESPACE) as client:
            for group, _, _ in GROUPS:
                topic = client.topic(outputs_of(group))
                until(lambda topic=topic: _count(topic) >= len(self.feed.sent), server, 2 * TAKE_OVER_SECONDS_MAX)  # type: ignore[misc]

    def _states(self, server: ServerProcess) -> dict[str, str]:
        """By text, of transactions: what is open is aborted."""
        texts = {tx: text for worker in self.of_states for tx, text in worker.texts.items()}
        states: dict[str, str] = {}
        for transaction, text in texts.items():
            states[text] = _end(server, transaction)
        told = {texts[tx] for worker in self.of_states for tx in worker.committed}
        wrong = [text for text in told if states[text] != "COMMITTED"]
        assert not wrong, f"commits that were acknowledged are {[(text, states[text]) for text in wrong[:10]]}"
        wrong = [texts[tx] for worker in self.transactions for tx in worker.aborted if states[texts[tx]] == "COMMITTED"]
        assert not wrong, f"aborts that were acknowledged are committed: {wrong[:10]}"
        return states

    def _found(self, server: ServerProcess, states: dict[str, str]) -> dict[str, list[checks.Message]]:
        """The committed messages of both topics. What a call that was under way left open is no concern: it ends by itself."""
        for one_shots in self.one_shots:
            one_shots._story = Story([server])
            one_shots._story.name = self.story.name
        for topic in (ORDERS, COPIES):
            raw = everything(server, topic, "uncommitted")

            def stable(topic: str = topic, last: str = raw[-1][0]) -> bool:
                reply = server.ask("GET", f"{TOPICS}/{topic}/stable-end")
                return reply.status == 200 and (reply.json()["id"] or "") >= last

            until(stable, server, 2 * TAKE_OVER_SECONDS_MAX)
        return {topic: everything(server, topic) for topic in (ORDERS, COPIES)}

    def _check_topics(self, found: dict[str, list[checks.Message]], states: dict[str, str]) -> None:
        outcomes = {text: told for worker in self.of_outcomes for text, told in worker.outcomes.items()}
        versions = {f"{self.session.name}.{number:06}" for number in range(1, self.session.version + 1)}
        done = {text for text, told in outcomes.items() if told == DONE} | versions
        told = done | {worker.texts[tx] for worker in self.of_states for tx in worker.committed}
        done |= {text for text, state in states.items() if state == "COMMITTED"}
        unknown = {text for text, told in outcomes.items() if told == UNKNOWN}
        unknown |= {f"{self.session.name}.{self.session.version + 1:06}"}
        texts = {topic: [text for _, text in messages] for topic, messages in found.items()}
        for topic, each in texts.items():
            checks.check_once(each)
            checks.check_places(found[topic])
            checks.check_order(each, told)
        try:
            checks.check_there(texts[ORDERS], done, unknown)
        except AssertionError as error:
            odd = sorted((set(texts[ORDERS]) - done - unknown) | (done - set(texts[ORDERS])))[:10]
            places = {text: (place, text in texts[COPIES]) for place, text in found[ORDERS] if text in odd}
            error.add_note(
                f"{[(text, states.get(text), outcomes.get(text), places.get(text)) for text in odd]}\n{self._logs()}"
            )
            raise
        only_one = {worker.name for worker in self.plain}
        checks.check_whole(texts, {checks.name_of(text) for text in done | unknown} - only_one)
        assert not {checks.name_of(text) for text in texts[COPIES]} & only_one

    def _check_readers(self, server: ServerProcess, found: dict[str, list[checks.Message]]) -> None:
        for reader in self.committed:
            checks.check_places(reader.seen)
            checks.check_committed_reader(reader.seen, found[reader.topic])
        for reader in self.raw:
            checks.check_places(reader.seen)
            raw = everything(server, reader.topic, "uncommitted")
            checks.check_raw_reader(reader.seen, raw, found[reader.topic])
        for ends in self.ends:
            assert ends.ids == sorted(ends.ids), f"the {ends.name} went back"

    def _check_groups(self, server: ServerProcess) -> None:
        with basalt.connect(server.url, namespace=group_worker.NAMESPACE) as client:
            for group, mode, _ in GROUPS:
                made = [(each.key or b"", each.payload) for each in client.topic(outputs_of(group)).read()]
                assert sorted(made) == sorted(self.feed.sent), (
                    f"{group}: lost or doubled {_difference(made, self.feed.sent)}"
                )
                if mode == "keyed":
                    by_key = [sorted(each, key=lambda one: one[0]) for each in (made, self.feed.sent)]
                    assert by_key[0] == by_key[1], f"{group}: the order of a key"

    def _check_table(self, server: ServerProcess, states: dict[str, str]) -> None:
        seen = 0
        for before, one, other in self.table.views:
            assert one == other, f"a transaction over two rows is not whole: {one} and {other}"
            assert one >= max(before, seen), f"row of {one} was read after {max(before, seen)}"
            seen = one
        mine = [
            text for text, state in states.items() if state == "COMMITTED" and checks.name_of(text) == self.table.name
        ]
        last = max((checks.number_of(text) for text in mine), default=0)
        body, told = json.dumps({"rows": self.table.rows}).encode(), list[Reply]()

        def is_read() -> bool:
            told[:] = [server.ask("POST", f"{TABLE}/read", body, {"Content-Type": "application/json"})]
            return told[0].status == 200

        until(is_read, server)
        assert self.table.values(told[0]) == (last, last), "what is in the table is not what was committed last"


def _count(topic: Any) -> int:
    return sum(1 for _ in topic.read())


def _end(server: ServerProcess, transaction: str) -> str:
    """How it ended. What is open is aborted, and a roll back may wait for the next owner of a topic."""

    def has_ended() -> bool:
        if _state(server, transaction) in ("OPEN", "DOOMED"):
            server.ask("POST", f"{TRANSACTIONS}/{transaction}/abort")
        return _state(server, transaction) in ENDED

    until(has_ended, server, 2 * TAKE_OVER_SECONDS_MAX)
    return _state(server, transaction)


def _state(server: ServerProcess, transaction: str) -> str:
    return str(server.ask_json("GET", f"{TRANSACTIONS}/{transaction}")["state"])


def _difference(made: list[tuple[bytes, bytes]], sent: list[tuple[bytes, bytes]]) -> Any:
    one, other = Counter(made), Counter(sent)
    return list((other - one).elements())[:5], list((one - other).elements())[:5]
