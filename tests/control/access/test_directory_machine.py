"""Two servers over one store, that change, crash between any two writes, start again, and whose clocks step: they agree within a minute.

What was acknowledged is in force at once where it was done, and everywhere a minute later; what was not may be either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from basalt.access.directory import READ_MS, Directory
from basalt.access.policy import parse_grant
from basalt.access.records import GRANTS, ROLES, TOKENS, TokenRow, grant_id
from basalt.errors import BasaltError, ConflictError, NotFoundError, StoreError
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Mutation

SERVERS = st.integers(0, 1)
NAMES = st.sampled_from(["a", "b"])
MEMBERS = st.sampled_from([("token:a",), ("token:a", "token:b"), ()])
WRITES_LEFT = st.one_of(st.none(), st.none(), st.integers(0, 3))
HOUR_MS = 3_600_000


class Remote(MemoryStore):
    """A store that others have open too."""

    remote = True


class FailingTable:
    """A table that writes row by row, and no more after a certain write."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.writes_left: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def _count(self) -> None:
        if self.writes_left is not None:
            if not self.writes_left:
                raise StoreError("the server has crashed")
            self.writes_left -= 1

    def write(self, mutations: Sequence[Mutation]) -> None:
        for each in mutations:
            self._count()
            self._table.write([each])

    def check_and_write(self, *args: Any) -> bool:
        self._count()
        written: bool = self._table.check_and_write(*args)
        return written


class Server:
    """One life after another of a server."""

    def __init__(self, store: Remote, clock: ManualClock) -> None:
        self.table = FailingTable(store.table(SystemTable.name))
        self.store, self.clock = store, clock
        self.directory = self.started()

    def started(self) -> Directory:
        directory = Directory(self.store, self.clock, ())
        directory._system = SystemTable(self.table)  # type: ignore[arg-type]
        return directory


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store = Remote()
        self.servers = [Server(self.store, self.clock) for _ in range(2)]
        for server in self.servers:
            self.run(server.directory.read())
        self.may_be: dict[tuple[str, str], set[Any]] = {}  # what each entry may be; None: absent
        self.newest = 0  # number of the last token

    def teardown(self) -> None:
        self.clock.advance(READ_MS)
        for server in self.servers:
            self.run(server.directory._refresh())
        self.agree()
        self.runner.close()

    def run(self, work: Awaitable[Any]) -> Any:
        async def main() -> Any:
            return await work

        return self.runner.run(main())

    def change(
        self, number: int, writes_left: int | None, name: tuple[str, str], value: Any, work: Awaitable[Any]
    ) -> None:
        """One change at a server, which may crash in it, and is started again then."""
        server = self.servers[number]
        server.table.writes_left = writes_left
        try:
            self.run(work)
        except StoreError:
            self.may_be.setdefault(name, {None}).add(value)
            server.table.writes_left = None
            server.directory = server.started()
            self.run(server.directory.read())
        except NotFoundError:
            pass  # not known here, a minute at most: rows are there whose server crashed before the version
        except ConflictError:
            assert any(row is not None and row[1] for row in self.may_be[name]), f"{name} was never revoked"
        else:
            was_revoked = name[0] == "token" and all(
                row is not None and row[1] for row in self.may_be.get(name, {None})
            )
            assert not was_revoked or value[1], "a token counts that was revoked"
            self.may_be[name] = {value}
            assert self.seen(server.directory, name) == value, "what is acknowledged is not in force"
        finally:
            server.table.writes_left = None

    @rule(number=SERVERS, subject=NAMES, writes_left=WRITES_LEFT)
    def give(self, number: int, subject: str, writes_left: int | None) -> None:
        grant = parse_grant(f"token:{subject}", ["read"], "topic:shop:orders")
        name = grant_id(grant.subject, grant.verbs, str(grant.resource))
        self.change(number, writes_left, ("grant", name), True, self.servers[number].directory.add_grant(grant, "x"))

    @rule(number=SERVERS, subject=NAMES, writes_left=WRITES_LEFT)
    def take_back(self, number: int, subject: str, writes_left: int | None) -> None:
        name = grant_id(f"token:{subject}", ["read"], "topic:shop:orders")
        self.change(number, writes_left, ("grant", name), None, self.servers[number].directory.remove_grant(name))

    @rule(number=SERVERS, name=NAMES, members=MEMBERS, writes_left=WRITES_LEFT)
    def put_role(self, number: int, name: str, members: tuple[str, ...], writes_left: int | None) -> None:
        work = self.servers[number].directory.put_role(name, members, "x")
        self.change(number, writes_left, ("role", name), members, work)

    @rule(number=SERVERS, name=NAMES, writes_left=WRITES_LEFT)
    def remove_role(self, number: int, name: str, writes_left: int | None) -> None:
        self.change(number, writes_left, ("role", name), None, self.servers[number].directory.remove_role(name))

    @rule(number=SERVERS, writes_left=WRITES_LEFT)
    def make_token(self, number: int, writes_left: int | None) -> None:
        self.newest += 1
        row = TokenRow("token:a", "0" * 64, self.clock.now_ms(), None)
        work = self.servers[number].directory.add_token(str(self.newest), row)
        self.change(number, writes_left, ("token", str(self.newest)), (None, False), work)

    @rule(number=SERVERS, name=st.integers(1, 3), writes_left=WRITES_LEFT)
    def revoke(self, number: int, name: int, writes_left: int | None) -> None:
        row = TokenRow("token:a", "0" * 64, 0, None, revoked_ms=self.clock.now_ms())
        work = self.servers[number].directory.change_token(str(name), row)
        self.change(number, writes_left, ("token", str(name)), (None, True), work)

    @rule(number=SERVERS, name=st.integers(1, 3), writes_left=WRITES_LEFT)
    def rotate(self, number: int, name: int, writes_left: int | None) -> None:
        """With a row that was read before whatever the other server did to it."""
        self.newest += 1
        ends_ms = self.clock.now_ms() + HOUR_MS
        ending, new = (TokenRow("token:a", "0" * 64, 0, until_ms) for until_ms in (ends_ms, None))
        new_name, row = ("token", str(self.newest)), (None, False)
        self.may_be[new_name] = {None, row}
        work = self.servers[number].directory.rotate_token(str(name), ending, str(self.newest), new)
        self.change(number, writes_left, ("token", str(name)), (ends_ms, False), work)
        if self.seen(self.servers[number].directory, new_name) is not None:
            self.may_be[new_name] = {row}

    @rule(ms=st.integers(1, READ_MS))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.integers(-HOUR_MS, HOUR_MS))
    def wall_clock_steps(self, ms: int) -> None:
        self.clock.step(max(1, self.clock.now_ms() + ms))

    @rule(number=SERVERS)
    def look(self, number: int) -> None:
        self.run(self.servers[number].directory._refresh())

    @rule(number=SERVERS)
    def start_again(self, number: int) -> None:
        server = self.servers[number]
        server.directory = server.started()
        self.run(server.directory.read())
        self.is_allowed(server.directory)

    @rule()
    def a_minute_later_all_agree(self) -> None:
        self.clock.advance(READ_MS)
        for server in self.servers:
            self.run(server.directory._refresh())
        self.agree()

    @invariant()
    def nothing_is_stale_that_was_just_read(self) -> None:
        for server in self.servers:
            if server.directory.age_ms == 0:
                assert not server.directory.is_stale

    def seen(self, directory: Directory, name: tuple[str, str]) -> Any:
        kind, key = name
        entries = directory.entries
        if kind == "token":
            row = entries.tokens.get(key)
            return None if row is None else (row.expire_ms, row.revoked_ms is not None)
        if kind == "role":
            role = entries.roles.get(key)
            return None if role is None else role.members
        return True if key in entries.grants else None

    def is_allowed(self, directory: Directory) -> None:
        for name, values in self.may_be.items():
            found = self.seen(directory, name)
            assert found in values, f"{name} is {found}, and may be {values}"

    def agree(self) -> None:
        system = SystemTable(self.store.table(SystemTable.name))
        rows = tuple(dict(kind.scan(system)) for kind in (TOKENS, GRANTS, ROLES))
        for server in self.servers:
            entries = server.directory.entries
            assert (entries.tokens, entries.grants, entries.roles) == rows
            self.is_allowed(server.directory)


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis.settings(max_examples=80, stateful_step_count=20, deadline=None)


def test_the_machine_crashes_between_writes():
    store = Remote()
    table = FailingTable(store.table(SystemTable.name))
    table.writes_left = 1
    put = SystemTable.put("token", "a", b"1")
    with pytest.raises(BasaltError, match="crashed"):
        table.write([put, SystemTable.put("token", "b", b"1")])
    assert table.get(put.key) is not None
