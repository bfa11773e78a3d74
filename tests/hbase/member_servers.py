"""Several real servers on one real HBase, each with a gateway, a link and a port of its own that tests can cut, and what they ask of them."""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.hbase import dialing_server
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Installation, serves, until
from tests.hbase.switchboard import Switchboard
from tests.ports import reserved_port
from tests.system.server_process import Reply, ServerProcess

MOVES = "/v1/admin/cluster/moves"
BALANCE = "cluster.balance"
SHARE = "cluster.share"  # off: the leader owns all, and the others only pass on
CALLED_OFF = {409, 503}  # it is asked for again: one move is made at a time, and what nobody serves is dealt anew first
JSON_BODY = {"Content-Type": "application/json"}


class Member:
    """One server: its process, which may be another one later, at the same port and behind the same proxies."""

    def __init__(self, number: int, folder: Path, gateway: HoldingProxy, line: str, ports: tuple[int, int]) -> None:
        self.number = number
        self.gateway = gateway
        self.port, self.link_port = ports
        self._line = line
        self._folder = folder
        self._folder.mkdir()
        self.process = ServerProcess(folder, (str(Path(dialing_server.__file__)),))

    def launch(self, *options: str, environment: dict[str, str] | None = None) -> None:
        """Start it; `wait` until it answers."""
        listen = ("--set", f"cluster.listen=127.0.0.1:{self.link_port}")
        given = {"BASALT_LINE": self._line, **(environment or {})}
        self.process.launch(*options, *listen, port=self.port, environment=given)

    def signal(self, what: signal.Signals) -> None:
        assert self.process.process is not None
        self.process.process.send_signal(what)

    @property
    def name(self) -> str:
        """The end of the name that its present process has as a member."""
        assert self.process.process is not None
        return f":{self.process.process.pid}"


class Members:
    """All servers of a test. `those` are told apart by their numbers; who leads, and who owns what, is asked with each question."""

    def __init__(
        self, stack: ExitStack, folder: Path, installation: Installation, *, share: bool, balance: bool = True
    ) -> None:
        """`balance`: shards also move by themselves, once there are several servers."""
        self.share = share
        self._balance = balance
        self.those: list[Member] = []
        self._stack = stack
        self._folder = folder
        self._installation = installation
        self.switchboard = Switchboard()
        stack.callback(self.switchboard.close)
        stack.callback(self._end)

    def add(self, environment: dict[str, str] | None = None) -> Member:
        """Start one more. `environment`: what tests/hbase/dialing_server.py is to leave out."""
        gateway = HoldingProxy(self._installation.thrift2)
        self._stack.callback(gateway.close)
        number = len(self.those)
        ports = tuple(self._stack.enter_context(reserved_port()) for _ in range(2))
        line = self.switchboard.line(str(number))
        made = Member(number, self._folder / f"member-{number}", gateway, line, (ports[0], ports[1]))
        self.those.append(made)
        self.launch(made, environment)
        made.process.wait_until_ready()
        return made

    def launch(self, member: Member, environment: dict[str, str] | None = None) -> None:
        """Start its next process, and do not wait for it."""
        balance = "auto" if self._balance else "off"
        share = ("--set", f"{SHARE}={str(self.share).lower()}", "--set", f"{BALANCE}={balance}")
        member.launch(*self._installation.options(member.gateway.address), *share, environment=environment)

    @property
    def urls(self) -> str:
        return ",".join(each.process.url for each in self.those)

    def up(self) -> list[Member]:
        """Those whose process has not ended."""
        return [each for each in self.those if each.process.alive()]

    def leader(self) -> Member:
        """The one that leads, once there is one that says so."""
        found: list[Member] = []

        def known() -> bool:
            urls = {each["url"] for asked in self.up() for each in _rows(asked) if each["role"] == "leader"}
            found[:] = [each for each in self.up() if each.process.url in urls and _answers(each)]
            return len(found) == 1

        until(known, self.up()[0].process, TAKE_OVER_SECONDS_MAX)
        return found[0]

    def owner_of(self, namespace: str, topic: str) -> Member:
        """The live server that owns a topic, once there is one."""
        found: list[Member] = []

        def known() -> bool:
            reply = self.leader().process.ask("GET", f"/v1/cluster/owners/{namespace}/{topic}")
            told = reply.json() if reply.status == 200 else {}
            found[:] = [each for each in self.up() if told.get("url") == each.process.url and told["state"] == "live"]
            return bool(found)

        until(known, self.up()[0].process, TAKE_OVER_SECONDS_MAX)
        return found[0]

    def rows(self) -> list[dict[str, Any]]:
        """The members as the leader tells them."""
        return _rows(self.leader())

    def run_of(self, member: Member) -> str:
        """The name by which the map knows it."""
        return next((each["instance"] for each in self.rows() if each["name"].endswith(member.name)), "")

    def wait_until_all_are_linked(self) -> None:
        """Return once the leader has a live row of, and a link to, each process that is up."""

        def all_are() -> bool:
            live = {each["name"].rpartition(":")[2]: each for each in self.rows() if each["state"] == "live"}
            mine = [live.get(each.name[1:]) for each in self.up()]
            return all(row is not None and (row["role"] == "leader" or row["linked"]) for row in mine)

        until(all_are, self.up()[0].process, TAKE_OVER_SECONDS_MAX)

    def make(self, target: str) -> None:
        """Make a topic or a table anew. Its shard may be moving."""
        for method, done in (("DELETE", {200, 404}), ("PUT", {200})):
            until(lambda m=method, d=done: self.leader().process.ask(m, target).status in d, self.up()[0].process)  # type: ignore[misc]

    def move(self, namespace: str, topic: str, to: Member) -> float:
        """Move the shard of a topic there: for how long calls to it waited, in milliseconds."""
        asked = {"to": self.run_of(to), "namespace": namespace, "topic": topic}
        told: list[Reply] = []

        def is_moved() -> bool:
            told[:] = [self.leader().process.ask("POST", MOVES, json.dumps(asked).encode(), JSON_BODY)]
            assert told[0].status == 200 or told[0].status in CALLED_OFF, told
            return told[0].status == 200

        try:
            until(is_moved, self.up()[0].process, TAKE_OVER_SECONDS_MAX)
        except AssertionError as error:
            error.add_note(f"the shard of {topic} was not moved: {told}")
            raise
        return float(told[0].json()["tookMs"])

    def spread(self, namespace: str, topics: Sequence[str]) -> None:
        """Have each topic owned by another server, the last one by the leader; with one that owns all, leave them where they are."""
        if not self.share:
            return
        leader = self.leader()
        others = [each for each in self.up() if each is not leader]
        for topic, to in zip(topics, [*others, leader], strict=False):
            if self.owner_of(namespace, topic) is not to:
                self.move(namespace, topic, to)

    def cut_links(self, member: Member) -> None:
        """Let nothing pass between this server and the others, but what goes through HBase."""
        self.switchboard.cut_off(str(member.number), (member.port, member.link_port))

    def _end(self) -> None:
        for each in self.those:
            if each.process.alive():
                each.signal(signal.SIGCONT)
            each.process.kill()


def _rows(asked: Member) -> list[dict[str, Any]]:
    """The members as this server tells them, or the leader that it passes the question on to; none where it does not know."""
    if not _answers(asked):
        return []
    try:
        reply = asked.process.ask("GET", "/v1/cluster")
    except (OSError, http.client.HTTPException):
        return []
    rows: list[dict[str, Any]] = reply.json()["members"] if reply.status == 200 else []
    return rows


def _answers(member: Member) -> bool:
    """False while its process stands still, or does not listen yet."""
    try:
        return state_of(member.process) != "T" and member.process.ask("GET", "/livez").status == 200
    except (OSError, http.client.HTTPException):
        return False


def state_of(server: ServerProcess) -> str:
    """The kernel's letter for its process."""
    assert server.process is not None
    try:
        return Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextmanager
def members(
    folder: Path, installation: Installation, count: int, *, share: bool, balance: bool = True,
    environment: dict[str, str] | None = None,
) -> Iterator[Members]:  # fmt: skip
    """So many servers, all linked. The first one leads, and has more in its environment."""
    with ExitStack() as stack:
        made = Members(stack, folder, installation, share=share, balance=balance)
        leader = made.add(environment).process
        until(lambda: serves(leader), leader)
        for _ in range(count - 1):
            made.add()
        made.wait_until_all_are_linked()
        yield made


def pause(seconds: float) -> None:
    """Let a fault last: how long it does is what it is."""
    assert seconds < WAIT_SECONDS_MAX
    time.sleep(seconds)
