"""Clients of tables and sessions, each in a thread of its own, of a server that is about to be killed."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from basalt.api.bodies.messages import ConsumeRequest, Work, WorkPublish
from basalt.api.codecs import avro
from basalt_engine.cells.names import change_key
from tests.control.api.codecs import client_codecs
from tests.system.bank import ACCOUNTS, MOVES, OPENING, SESSION, TABLE, VERSIONS
from tests.system.caller import AVRO, JSON
from tests.system.clients import NAMESPACE, TOPICS, TRANSACTIONS, Client
from tests.system.server_process import Reply

ACCOUNTS_PATH = f"/v1/namespaces/{NAMESPACE}/tables/{TABLE}"
SESSION_PATH = f"{TRANSACTIONS}/sessions/{SESSION}"
BALANCE = "balance"
TIMEOUT_MS = 60_000  # nobody who works meets it
LEFT_ALONE_MS = 2_000  # the time-out of what may be left alone: whoever meets it is refused


class BankClient(Client):
    """One thread's view of the table and the session."""

    run_name = ""
    epoch = 0

    def open_accounts(self) -> None:
        """Make the table and what it tells of itself in; give every account something."""
        for path in (ACCOUNTS_PATH, f"{TOPICS}/{MOVES}", f"{TOPICS}/{VERSIONS}"):
            reply = self.caller.ask("PUT", path)
            assert reply is not None
            assert reply.status == 200, reply
        tx = self._begin()
        self._write(tx, dict.fromkeys(ACCOUNTS, OPENING))
        assert self._send(f"{TRANSACTIONS}/{tx}/commit").status == 200

    # Steps.

    def move(self) -> None:
        """Move money from one account to another, and tell so in the same transaction; or change one's mind."""
        bank = self.expected.bank
        one, other = self.chances.sample(ACCOUNTS, 2)
        amount = self.chances.randint(1, 9)
        abandoned = self.chances.random() < 0.05
        tx = self._begin(LEFT_ALONE_MS if abandoned else TIMEOUT_MS)
        if abandoned:
            if self._told_changes(tx, (one, other)):
                self._write(tx, {one: -amount})
            return
        held = self._balances("read", tx, {"rows": [_text(one), _text(other)]})
        if self._told_changes(tx, (one, other)):
            self._write(tx, {one: held[one] - amount})
            if self.chances.random() < 0.2:
                self._ask(f"{TRANSACTIONS}/{tx}/checkpoint")
            self._write(tx, {other: held[other] + amount})
            if self.chances.random() < 0.8:
                self._commit_telling(tx, MOVES, f"{next(bank.numbers)}>{one}>{other}>{amount}")
                return
        self._send(f"{TRANSACTIONS}/{tx}/abort")

    def look(self) -> None:
        """In one snapshot: the balances, and what the messages say of them."""
        tx = self._begin()
        balances = self._balances("scan", tx, {})
        moves = self._texts(MOVES, f"transaction={tx}")
        self._send(f"{TRANSACTIONS}/{tx}/abort")
        self.expected.bank.check_view(balances, moves)

    def work(self) -> None:
        """Commit the next version of the job, as one of several runs, of which only the newest may."""
        bank = self.expected.bank
        if not self.epoch or self.chances.random() < 0.1:
            self.run_name = self.run_name or f"run {next(bank.numbers)}"
            self.epoch = self._ask(SESSION_PATH, {"run": self.run_name}).json()["epoch"]
            bank.epoch = max(bank.epoch, self.epoch)
        newest, version = bank.epoch, bank.version_done + self.chances.choice((0, 1, 1, 1))
        asked = {"session": SESSION, "sessionEpoch": self.epoch, "version": version, "timeoutMs": LEFT_ALONE_MS}
        reply = self._ask(TRANSACTIONS, {**asked, "snapshot": False})
        if reply.status == 409:
            assert reply.json()["code"] == "session_fenced", reply
            self.epoch = 0
            return
        assert self.epoch >= newest, f"epoch {self.epoch} began a transaction after epoch {newest} was told"
        tx = reply.json()["id"]
        if tx is None:  # it was done before
            assert version == 0 or version in bank.attempts, f"version {version} was done by nobody"
            bank.version_done = max(bank.version_done, version)
            return
        newest = bank.epoch
        if self._commit_telling(tx, VERSIONS, bank.attempt(version)):
            assert self.epoch >= newest, f"epoch {self.epoch} committed after epoch {newest} was told"
            bank.version_done = max(bank.version_done, version)

    # After a kill.

    def compare(self) -> None:
        """Nobody else talks to the server: all that is committed is what it must be."""
        bank = self.expected.bank
        versions = self._texts(VERSIONS, "isolation=committed")
        bank.check(self._texts(MOVES, "isolation=committed"), versions)
        self.look()
        shown = self.caller.ask("GET", SESSION_PATH)
        assert shown is not None
        if bank.epoch:
            assert shown.status == 200, shown
            assert shown.json()["epoch"] >= bank.epoch, f"{shown.json()}, and epoch {bank.epoch} was told"
            newest = max([int(text.split(":")[0]) for text in versions], default=0)
            assert (shown.json()["version"] or 0) == max(newest, 0), (
                f"{shown.json()}, and version {newest} is committed"
            )

    # How.

    def _ask(self, target: str, body: Any = None) -> Reply:
        return self._send(target, b"" if body is None else json.dumps(body).encode(), "" if body is None else JSON)

    def _begin(self, timeout_ms: int = TIMEOUT_MS) -> str:
        reply = self._ask(TRANSACTIONS, {"timeoutMs": timeout_ms, "snapshot": False})
        assert reply.status == 200, reply
        return str(reply.json()["id"])

    def _balances(self, verb: str, tx: str, asked: Any) -> dict[str, int]:
        reply = self._ask(f"{ACCOUNTS_PATH}/{verb}", {"transaction": tx, **asked})
        assert reply.status == 200, reply
        return {b64decode(cell["row"]).decode(): int(b64decode(cell["value"])) for cell in reply.json()["cells"]}

    def _told_changes(self, tx: str, accounts: tuple[str, ...]) -> bool:
        keys = [change_key(f"{NAMESPACE}:~{TABLE}:".encode(), 1, account.encode()) for account in accounts]
        changes = [b64encode(key).decode() for key in keys]
        reply = self._ask(f"{TRANSACTIONS}/{tx}/changes", {"changes": changes, "externalWrites": False})
        assert reply.status in (200, 409), reply
        return reply.status == 200

    def _write(self, tx: str, balances: dict[str, int]) -> None:
        puts = [
            {"row": _text(row), "column": _text(BALANCE), "value": _text(str(held))} for row, held in balances.items()
        ]
        reply = self._ask(f"{ACCOUNTS_PATH}/write", {"transaction": tx, "puts": puts})
        assert reply.status in (200, 409), reply

    def _commit_telling(self, tx: str, topic: str, text: str) -> bool:
        """Whether it was told that the transaction is committed, with this message."""
        bank = self.expected.bank
        body = avro.encode_work(Work(publish=[WorkPublish(NAMESPACE, topic, [text.encode()])]))
        reply = self._send(f"{TRANSACTIONS}/{tx}/commit", body, AVRO, None, f"commit-{tx}")
        if reply.status == 200:
            bank.done.add(text)
            return True
        assert reply.status == 409 or reply.json()["code"] in ("stopping", "unavailable"), reply
        bank.gone.add(text)
        self._send(f"{TRANSACTIONS}/{tx}/abort")
        return False

    def _texts(self, topic: str, view: str) -> list[str]:
        found: list[str] = []
        start: bytes | None = None
        while True:
            body = avro.encode_consume_request(ConsumeRequest(start, start is None))
            reply = self._send(f"{TOPICS}/{topic}/poll?{view}", body, AVRO)
            assert reply.status == 200, reply
            messages = client_codecs.decode_avro_messages(reply.body)
            if not messages:
                return found
            found += [bytes(message.payload).decode() for message in messages]
            start = bytes(messages[-1].id)


def _text(value: str) -> str:
    return b64encode(value.encode()).decode()
