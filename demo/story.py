"""The demo's steps, in order: transactions, some of them aborted, and two SIGKILLs; and the time that each took."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import basalt
from basalt.client import Client, Transaction
from basalt.errors import RetryError
from demo.producer import BeforeCommit, Producer, nothing
from demo.server_pair import ServerPair
from demo.server_process import ServerProcess

LINES_PER_TRANSACTION_MAX = 250
TRANSACTIONS_MIN = 20  # so that a short log has room for every incident too
ABORT_EVERY = 6
COMMIT_S = 0.012  # a commit or two: the second SIGKILL falls before, into or after its commit, by chance


class Incident(Enum):
    """The faults that may strike a transaction."""

    NONE = "none"
    ABORT = "abort"
    KILL_OPEN = "kill with a transaction open"
    KILL_COMMIT = "kill around a commit"


@dataclass(slots=True)
class Figures:
    """The counts of what happened."""

    transactions: int = 0
    aborted: int = 0
    kills: int = 0
    publishing_s: float = 0.0
    restarting_s: float = 0.0


def incidents(transactions: int) -> dict[int, Incident]:
    """The fault of each transaction that has one, by its number (from 0), of so many."""
    plan = dict.fromkeys(range(2, transactions, ABORT_EVERY), Incident.ABORT)
    for incident, number in (
        (Incident.KILL_OPEN, transactions * 2 // 5),
        (Incident.KILL_COMMIT, transactions * 7 // 10),
    ):
        plan[number + 1 if number in plan else number] = incident
    return plan


class Story:
    """Publishes `lines` to a server that is killed in between."""

    def __init__(self, server: ServerProcess | ServerPair, lines: Sequence[bytes], say: Callable[[str], None]) -> None:
        self.figures = Figures()
        self._server = server
        self._lines = lines
        self._say = say
        self._size = max(1, min(LINES_PER_TRANSACTION_MAX, len(lines) // TRANSACTIONS_MIN))
        self._producer = Producer(lines, self._size)
        self._killer: threading.Timer | None = None
        self._is_killed = False  # the server, or will be in a moment
        self._incidents = incidents(-(-len(lines) // self._size))

    def play(self) -> None:
        """Publish all lines. The server must run; in the end it runs again."""
        with self._connect() as client:
            self._producer.create_topics(client)
        start = 0
        while start < len(self._lines):
            began = time.monotonic()
            try:
                with self._connect() as client:
                    self._publish_from(client, start)
                start = len(self._lines)
            except RetryError:
                start = self._resume()
            finally:
                self.figures.publishing_s += time.monotonic() - began
        self.figures.publishing_s -= self.figures.restarting_s

    def _publish_from(self, client: Client, start: int) -> None:
        while start < len(self._lines):
            incident = self._incidents.pop(start // self._size, Incident.NONE)
            if incident is Incident.ABORT:
                self._producer.publish_and_abort(client, start)
                self.figures.aborted += 1
            start = self._producer.publish(client, start, before_commit=self._before_commit(incident))
            self.figures.transactions += 1

    def _resume(self) -> int:
        began = time.monotonic()
        if self._killer is not None:
            self._killer.join()
        if self._is_killed:  # else a call was refused for a moment, as one may be where servers share topics
            self._server.start()
            self._is_killed = False
            self.figures.kills += 1
        # Patient: where servers share the topics, those of the one that was killed are nobody's until it is known to be dead.
        with basalt.connect(self._server.url) as client:
            state = self._producer.settle(client)
            position = self._producer.position(client)
        if state == "committed":
            self.figures.transactions += 1
        took_s = time.monotonic() - began
        self.figures.restarting_s += took_s
        ended = "no transaction was open" if state is None else f"the transaction was {state}"
        self._say(f"  back in {took_s:.1f} s; {ended}; going on at line {position + 1:,}")
        return position

    def _before_commit(self, incident: Incident) -> BeforeCommit:
        """The act within a transaction that is ready to commit."""

        def kill(_: Transaction) -> None:
            self._say("SIGKILL with a transaction open")
            self._is_killed = True
            self._server.kill()

        def kill_soon(_: Transaction) -> None:
            self._say("SIGKILL around a commit")
            self._is_killed = True
            self._killer = threading.Timer(random.uniform(0, COMMIT_S), self._server.kill)
            self._killer.start()

        return {Incident.KILL_OPEN: kill, Incident.KILL_COMMIT: kill_soon}.get(incident, nothing)

    def _connect(self) -> Client:
        # One attempt: this producer settles by itself what was in doubt, so a retry would only hide the crash.
        return basalt.connect(self._server.url, attempts_max=1)
