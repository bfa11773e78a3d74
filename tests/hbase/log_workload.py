"""Clients of several servers while the log of transactions, or servers, come and go: each makes one kind of call on and on, and keeps what it was told.

What they were told is then compared with what is in the topics.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.system.caller import JSON, Caller
from tests.system.server_process import ANSWER_SECONDS_MAX, Reply, ServerProcess

NAMESPACE = "away"
TOPICS = f"/v1/namespaces/{NAMESPACE}/topics"
TRANSACTIONS = "/v1/transactions"
ORDERS, COPIES = (
    "orders",
    "copies",
)  # one-shot transactions and commits write to both: there they are whole, or in neither
OPEN_MS = 600_000  # of a transaction that is ended by its client
END_SECONDS_MAX = 120.0  # in which a reader comes to the end of a topic to which nobody publishes; a bound for a hang
JSON_BODY = {"Content-Type": JSON}
PAUSE_SECONDS = 0.05  # between two calls of a client: they are there all the time, and keep no core busy

DONE, UNKNOWN, NOTHING = "done", "unknown", "nothing"
NOTHING_WAS_DONE = {  # the last one: a commit comes after the transaction was given up
    "coordinator_unavailable", "store_unavailable", "unavailable", "not_leader", "not_owner", "fenced", "stopping", "busy", "transaction_ended", "shard_moving",
}  # fmt: skip


class Answer(NamedTuple):
    """A call of a client, and how long it took."""

    phase: str  # of the story, in which it was begun and answered; empty where that changed meanwhile
    status: int  # 0: the connection broke
    code: str
    seconds: float


class Story:
    """Who takes calls at the moment, and what is going on."""

    def __init__(self, servers: Sequence[ServerProcess], answer_seconds_max: float = ANSWER_SECONDS_MAX) -> None:
        self.servers = tuple(servers)
        self.answer_seconds_max = answer_seconds_max
        self.phase = ""
        self.name = secrets.token_hex(4)  # in request ids, which the tables know of earlier stories, too
        self.is_over = threading.Event()


class Worker(threading.Thread):
    """One client, which turns to each of the servers in turn."""

    def __init__(self, story: Story, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.answers: list[Answer] = []
        self.wrong: BaseException | None = None
        self._story = story
        self._callers: dict[int, Caller] = {}

    def run(self) -> None:
        try:
            while not self._story.is_over.is_set():
                self.step()
                self._story.is_over.wait(PAUSE_SECONDS)
        except BaseException as error:  # raised where the threads are joined
            self.wrong = error

    def step(self) -> None:
        """Make the next call, or those that belong together."""
        raise NotImplementedError

    def ask(self, target: str, body: Any, request_id: str = "", method: str = "POST") -> Reply | None:
        """Make one call; None: its answer was lost."""
        servers, phase, began = self._story.servers, self._story.phase, time.monotonic()
        port = servers[len(self.answers) % len(servers)].port
        caller = self._callers.setdefault(port, Caller(port, self._story.answer_seconds_max))
        named = f"{self._story.name}.{request_id}" if request_id else ""
        reply = caller.ask(method, target, b"" if body is None else json.dumps(body).encode(), JSON, named)
        status, code = (0, "") if reply is None else (reply.status, code_of(reply, target))
        kept_phase = phase if phase == self._story.phase else ""
        self.answers.append(Answer(kept_phase, status, code, time.monotonic() - began))
        return reply

    def hang_up(self, port: int) -> None:
        """The process that it talked to there has ended, and another one listens."""
        self._callers.pop(port, None)

    def of(self, phase: str) -> list[Answer]:
        """The answers to calls of this phase."""
        return [answer for answer in tuple(self.answers) if answer.phase == phase]


def code_of(reply: Reply, target: str) -> str:
    """The code of an error; empty for what was done. Whatever it is, the answer must be whole."""
    try:
        value = reply.json() if reply.body else {}
        return "" if reply.status == 200 else str(value["code"])
    except (ValueError, KeyError) as error:
        raise AssertionError(f"{target} was answered with {reply}") from error


def outcome_of(reply: Reply | None) -> str:
    """What a client knows after such an answer."""
    if reply is None:
        return UNKNOWN
    if reply.status == 200:
        return DONE
    code = reply.json()["code"]
    assert code == "outcome_unknown" or code in NOTHING_WAS_DONE, reply
    return UNKNOWN if code == "outcome_unknown" else NOTHING


class PlainPublisher(Worker):
    """Publishes to one topic without a transaction, each message once, whatever the answer is."""

    def __init__(self, story: Story, name: str) -> None:
        super().__init__(story, name)
        self.outcomes: dict[str, str] = {}

    def step(self) -> None:
        text = f"{self.name}.{len(self.outcomes):06}"
        self.outcomes[text] = outcome_of(self.ask(f"{TOPICS}/{ORDERS}/publish", {"messages": [text]}))


class OneShots(Worker):
    """Publishes to both topics with one call. The patient one repeats it under its request id until it is done."""

    def __init__(self, story: Story, name: str, *, is_patient: bool) -> None:
        super().__init__(story, name)
        self.outcomes: dict[str, str] = {}
        self._is_patient = is_patient
        self._text = ""

    def step(self) -> None:
        if not self._is_patient or self.outcomes.get(self._text, DONE) == DONE:
            self._text = f"{self.name}.{len(self.outcomes):06}"
        self.send(self._text)

    def send(self, text: str) -> None:
        """Send it for the first time, or once more."""
        publish = [{"namespace": NAMESPACE, "topic": topic, "messages": [text]} for topic in (ORDERS, COPIES)]
        outcome = outcome_of(self.ask(TRANSACTIONS, {"work": {"publish": publish}, "owner": self.name}, text))
        if outcome == DONE or self.outcomes.get(text) != UNKNOWN:
            self.outcomes[text] = outcome

    def repeat_what_is_not_done(self) -> None:
        """When all works again: whoever repeats what is unknown finds it done, or has it done now."""
        for text, outcome in tuple(self.outcomes.items()):
            if outcome != DONE:
                self.send(text)
        assert set(self.outcomes.values()) == {DONE}, self.answers[-1]


class Begun(NamedTuple):
    """A transaction, and the text that is published in it."""

    id: str
    write_pointer: str
    text: str


class TransactionWorker(Worker):
    """Makes one transaction after the other, each with a text of its own."""

    def __init__(self, story: Story, name: str) -> None:
        super().__init__(story, name)
        self.texts: dict[str, str] = {}  # by transaction
        self.committed: set[str] = set()  # as it was told
        self.begun = 0

    def begin(self, *, snapshot: bool = False) -> Begun | None:
        """The next one; None: it was not begun, or its answer was lost."""
        self.begun += 1
        text = f"{self.name}.{self.begun:06}"
        told = self.ask(TRANSACTIONS, {"timeoutMs": OPEN_MS, "snapshot": snapshot, "owner": self.name}, text)
        if told is None or outcome_of(told) != DONE:
            return None
        found = told.json()
        self.texts[found["id"]] = text
        return Begun(found["id"], found["writePointer"], text)


class Transactions(TransactionWorker):
    """Begins, publishes under the write pointer to one topic, and commits with a message for the other one."""

    def step(self) -> None:
        begun = self.begin()
        if begun is None:
            return
        transaction, pointer, text = begun
        body = {"transactionWritePointer": pointer, "messages": [text]}
        if outcome_of(self.ask(f"{TOPICS}/{ORDERS}/publish", body)) != DONE:
            self.ask(f"{TRANSACTIONS}/{transaction}/abort", {})
            return
        work = {"publish": [{"namespace": NAMESPACE, "topic": COPIES, "messages": [text]}]}
        if outcome_of(self.ask(f"{TRANSACTIONS}/{transaction}/commit", work)) == DONE:
            self.committed.add(transaction)


class Reader(Worker):
    """Follows a topic from its start; an answer that it does not get it asks for again."""

    def __init__(self, story: Story, topic: str, isolation: str) -> None:
        super().__init__(story, f"{isolation} reader of {topic}")
        self.topic, self.isolation = topic, isolation
        self.seen: list[tuple[str, str]] = []

    def step(self) -> None:
        body = {"startFrom": self.seen[-1][0], "inclusive": False} if self.seen else {}
        reply = self.ask(f"{TOPICS}/{self.topic}/poll?isolation={self.isolation}", body)
        if reply is not None and reply.status == 200:
            self.seen += [(each["id"], each["payload"]) for each in reply.json()]

    @property
    def texts(self) -> list[str]:
        """What it has read so far."""
        return [text for _, text in tuple(self.seen)]


def everything(server: ServerProcess, topic: str, isolation: str = "committed") -> list[tuple[str, str]]:
    """A topic from its start to its end. A call that is refused has not come there, and neither has a reader that is held: it is asked again."""
    return read_to_the_end(server, f"{TOPICS}/{topic}", isolation)


def read_to_the_end(server: ServerProcess, path: str, isolation: str = "committed") -> list[tuple[str, str]]:
    """Ids and texts of all messages of the topic at this path."""
    seen: list[tuple[str, str]] = []
    give_up_s = time.monotonic() + END_SECONDS_MAX
    while True:
        body = {"startFrom": seen[-1][0], "inclusive": False} if seen else {}
        reply = server.ask("POST", f"{path}/poll?isolation={isolation}", json.dumps(body).encode(), JSON_BODY)
        if reply.status == 200 and (messages := reply.json()):
            seen += [(each["id"], each["payload"]) for each in messages]
        elif reply.status == 200 and "basalt-held-by" not in reply.headers:
            return seen
        else:
            assert reply.status == 200 or code_of(reply, path) in NOTHING_WAS_DONE, reply
            assert time.monotonic() < give_up_s, f"behind {len(seen)} messages of {path} it was told {reply}"
            time.sleep(PAUSE_SECONDS)
