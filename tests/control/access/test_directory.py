"""The directory: what one server changes another one knows, also where something ends half-way."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from basalt.access import directory as module
from basalt.access.directory import Directory
from basalt.access.policy import GrantReader, parse_grant
from basalt.access.principal import parse_principal
from basalt.access.quotas import QuotaLimits, QuotaRow
from basalt.access.records import GRANTS, KINDS, ROLES, TOKENS, VERSION, GrantUse, RoleRow, TokenRow, grant_id
from basalt.access.resources import topic
from basalt.errors import BusyError, ConflictError, NotFoundError, StoreError
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable

READ_ORDERS = parse_grant("token:etl", ["read"], "topic:shop:orders")
ETL = parse_principal("token:etl")
ORDERS = topic("shop", "orders")
DAY_MS = 86_400_000
HANG_S = 60.0  # nothing waits that long


class Remote(MemoryStore):
    """A store that others have open too."""

    remote = True


class Failing:
    """The system table, whose writes end at a certain one."""

    def __init__(self, table, writes_left: int) -> None:
        self.inner = table
        self.writes_left = writes_left

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def _count(self) -> None:
        if self.writes_left == 0:
            raise StoreError("the disk is gone")
        self.writes_left -= 1

    def write(self, mutations) -> None:
        self._count()
        self.inner.write(mutations)

    def check_and_write(self, *args) -> bool:
        self._count()
        return self.inner.check_and_write(*args)


@pytest.fixture
def clock():
    return ManualClock()


def token(**more) -> TokenRow:
    return TokenRow(**{"principal": "token:etl", "digest": "0" * 64, "created_ms": 0, "expire_ms": None, **more})


def may(directory: Directory) -> bool:
    return directory.entries.policy.allows(ETL, "read", ORDERS)


async def two(store, clock) -> tuple[Directory, Directory]:
    first, second = Directory(store, clock, ()), Directory(store, clock, ())
    await first.read()
    await second.read()
    return first, second


def test_what_is_granted_counts_at_once_here_and_at_another_server_when_it_looks(clock):
    async def story():
        first, second = await two(Remote(), clock)
        name = await first.add_grant(READ_ORDERS, "token:root")
        assert (may(first), may(second)) == (True, False)
        await second._refresh()
        assert may(second)
        await second.remove_grant(name)
        assert (may(first), may(second)) == (True, False)
        await first._refresh()
        assert not may(first)

    asyncio.run(story())


def test_two_servers_that_change_at_the_same_time_know_both_changes(clock):
    async def story():
        first, second = await two(Remote(), clock)
        await first.add_grant(READ_ORDERS, "a")
        await second.put_role("readers", ("token:etl",), "b")  # it did not know of the grant
        assert may(second)
        assert second.entries.version == 2
        await first._refresh()
        assert first.entries.roles["readers"] == RoleRow(("token:etl",), clock.now_ms(), "b")

    asyncio.run(story())


def test_a_look_at_an_unchanged_version_reads_no_rows_but_keeps_them_fresh(clock):
    async def story():
        _, second = await two(Remote(), clock)
        entries = second.entries
        clock.advance(59_000)
        await second._refresh()
        assert second.entries is entries
        assert second.age_ms == 0
        clock.advance(59_000)
        assert second.age_ms == 59_000
        assert not second.is_stale
        clock.advance(1_001)
        assert second.is_stale

    asyncio.run(story())


@pytest.mark.parametrize("writes", [0, 1])
def test_a_crash_between_a_row_and_the_version_is_found_within_a_minute(clock, writes):
    async def story():
        store = Remote()
        first, second = await two(store, clock)
        table = store.table("system")
        first._system = SystemTable(Failing(table, writes))
        with pytest.raises(StoreError):
            await first.add_grant(READ_ORDERS, "a")
        assert not may(first)  # what was not acknowledged
        first._system = SystemTable(table)
        await first._refresh()  # which looks at all rows after a failure
        assert may(first) == (writes == 1)
        await second._refresh()
        assert not may(second)
        clock.advance(60_000)
        await second._refresh()
        assert may(second) == (writes == 1)

    asyncio.run(story())


@pytest.mark.parametrize("writes", [0, 1])
def test_a_revocation_whose_server_ends_half_way_counts_everywhere_within_a_minute_or_was_not_made(clock, writes):
    async def story():
        store = Remote()
        first, second = await two(store, clock)
        await first.add_token("t1", token())
        await second._refresh()
        first._system = SystemTable(Failing(store.table("system"), writes))
        with pytest.raises(StoreError):
            await first.change_token("t1", token(revoked_ms=clock.now_ms()))
        clock.advance(60_000)
        await second._refresh()
        assert (second.token("t1").revoked_ms is not None) == (writes == 1)

    asyncio.run(story())


def test_giving_twice_is_giving_once(clock):
    async def story():
        first, _ = await two(MemoryStore(), clock)
        again = parse_grant("token:etl", ["write", "read"], "topic:shop:orders")
        names = [await first.add_grant(each, "a") for each in (READ_ORDERS, READ_ORDERS, again)]
        assert names[0] == names[1] != names[2]
        assert first.entries.version == 2
        assert names[2] == grant_id("token:etl", ["read", "write"], "topic:shop:orders")

    asyncio.run(story())


def test_what_is_not_there_is_told(clock):
    async def story():
        first, _ = await two(MemoryStore(), clock)
        for change in (first.remove_grant("x"), first.remove_role("x"), first.change_token("x", token())):
            with pytest.raises(NotFoundError):
                await change

    asyncio.run(story())


def test_limits_are_told_before_anything_is_written(clock, monkeypatch):
    for name in ("TOKENS_MAX", "GRANTS_MAX", "ROLES_MAX", "MEMBERS_MAX"):
        monkeypatch.setattr(module, name, 1)

    async def story():
        store = MemoryStore()
        first, _ = await two(store, clock)
        await first.add_token("t1", token())
        await first.add_grant(READ_ORDERS, "a")
        await first.put_role("r", ("token:a",), "a")
        with pytest.raises(BusyError, match="1 tokens and logins"):
            await first.add_token("t2", token())
        with pytest.raises(ConflictError, match="1 grants"):
            await first.add_grant(parse_grant("token:b", ["read"], "*"), "a")
        with pytest.raises(ConflictError, match="1 roles"):
            await first.put_role("s", (), "a")
        with pytest.raises(ConflictError, match="1 members at most"):
            await first.put_role("r", ("token:a", "token:b"), "a")
        await first.put_role("r", ("token:b",), "a")
        await first.change_token("t1", token(revoked_ms=1))
        await first.add_token("t2", token())  # one that is over takes no place
        assert first.entries.version == 6

    asyncio.run(story())


def test_tokens_that_are_over_for_a_month_are_forgotten(clock):
    async def story():
        store = MemoryStore()
        first, _ = await two(store, clock)
        now_ms = clock.now_ms()
        await first.add_token("kept", token())
        await first.add_token("revoked", token(revoked_ms=now_ms))
        await first.add_token("expired", token(expire_ms=now_ms + DAY_MS))
        for days, left in ((30, {"kept", "revoked", "expired"}), (1, {"kept"}), (365, {"kept"})):
            clock.advance(days * DAY_MS + 1)
            await first._refresh()
            assert set(first.entries.tokens) == left or days == 30
        assert dict(TOKENS.scan(SystemTable(store.table("system")))).keys() == {"kept"}

    asyncio.run(story())


def test_uses_of_grants_outlive_a_restart(clock):
    async def story():
        store = MemoryStore()
        first = Directory(store, clock, ())
        await first.start()
        name = await first.add_grant(READ_ORDERS, "a")
        assert first.use_of(name) is None
        assert may(first)
        used_ms = clock.now_ms()
        await first.close()
        clock.advance(DAY_MS)
        again = Directory(store, clock, ())
        await again.start()
        await again.read_uses()
        assert again.use_of(name) == GrantUse(used_ms, ("token:etl",))
        await again.close()

    asyncio.run(story())


def test_of_a_grants_users_the_latest_are_kept(clock):
    async def story():
        first, _ = await two(MemoryStore(), clock)
        name = await first.add_grant(parse_grant("everyone", ["read"], "*"), "a")
        for number in range(module.USERS_MAX + 5):
            first.entries.policy.allows(parse_principal(f"token:{number:02}"), "read", ORDERS)
            use = first.use_of(name)
        assert len(use.principals) == module.USERS_MAX
        assert use.principals[0] == "token:14"

    asyncio.run(story())


def test_where_the_rows_cannot_be_read_for_long_nobody_is_let_in_until_they_can(clock):
    async def story():
        store = Remote()
        first, _ = await two(store, clock)
        await first.add_grant(READ_ORDERS, "a")
        clock.advance(module.LOST_MS + 1)
        first._put_in_force(-1, {}, {}, {}, {})  # as its task does when the read fails
        assert not may(first)
        await first._refresh()
        assert may(first)
        assert not first.is_stale

    asyncio.run(story())


def test_where_others_change_without_end_the_caller_is_told_to_try_again(clock, monkeypatch):
    async def story():
        store = MemoryStore()
        first, _ = await two(store, clock)
        monkeypatch.setattr(SystemTable, "replace", lambda *_: False)
        with pytest.raises(BusyError, match="at the same time"):
            await first.add_grant(READ_ORDERS, "a")
        assert module.VERSION_TRIES_MAX == 10
        monkeypatch.undo()
        await first._refresh()
        assert may(first)

    asyncio.run(story())


def test_ten_thousand_grants_are_parsed_once(clock, monkeypatch):
    parsed, read = [], GrantReader.__call__
    monkeypatch.setattr(GrantReader, "__call__", lambda self, *row: parsed.append(row) or read(self, *row))

    async def story():
        first, _ = await two(MemoryStore(), clock)
        for number in range(20):
            await first.add_grant(parse_grant(f"token:{number}", ["read"], "*"), "a")
        assert len(parsed) == 20

    asyncio.run(story())


def test_the_kinds_of_rows_are_these():
    assert [kind.kind for kind in (*KINDS, VERSION)] == ["token", "grant", "role", "policy"]
    assert replace(token(), revoked_ms=1).is_over(0)
    assert GRANTS.kind == "grant"


def test_a_look_that_fails_in_any_way_is_not_the_last_one(clock, monkeypatch):
    monkeypatch.setattr(module, "CHECK_MS", 1)
    monkeypatch.setattr(module, "REFRESH_SECONDS_MAX", 0.01)
    looks = []

    async def story():
        first, _ = await two(Remote(), clock)

        async def look():
            looks.append(True)
            if len(looks) == 1:
                raise RuntimeError("no thread is left")
            if len(looks) == 2:
                await asyncio.Event().wait()  # behind a change that a stuck region holds up
            enough.set()

        enough = asyncio.Event()
        first._refresh = look
        await first.start()
        async with asyncio.timeout(HANG_S):
            await enough.wait()
        await first.close()

    asyncio.run(story())
    assert len(looks) >= 3


def test_a_change_that_is_held_up_keeps_nobody_in_for_ever(clock, monkeypatch):
    monkeypatch.setattr(module, "CHECK_MS", 1)
    monkeypatch.setattr(module, "REFRESH_SECONDS_MAX", 0.001)

    async def story():
        first, _ = await two(Remote(), clock)
        await first.add_grant(READ_ORDERS, "a")
        await first.start()
        assert may(first)
        async with first._changing, asyncio.timeout(HANG_S):
            clock.advance(module.LOST_MS + 1)
            while may(first):
                await asyncio.sleep(0)
            monkeypatch.setattr(module, "REFRESH_SECONDS_MAX", HANG_S)  # the next look ends, however long it takes
        async with asyncio.timeout(HANG_S):
            while not may(first):
                await asyncio.sleep(0)
        await first.close()

    asyncio.run(story())


def test_a_quota_that_one_server_sets_counts_at_another_when_it_looks(clock):
    async def story():
        first, second = await two(Remote(), clock)
        await first.put_quota("token:etl", QuotaLimits(requests_per_s=5), "token:root")
        assert (first.quotas.are_on, second.quotas.are_on) == (True, False)
        await second._refresh()
        assert second.quotas.rules.rows == {"token:etl": QuotaLimits(requests_per_s=5)}
        assert second.quota("token:etl") == QuotaRow(QuotaLimits(requests_per_s=5), clock.now_ms(), "token:root")
        await second.remove_quota("token:etl")
        await first._refresh()
        assert not first.quotas.are_on
        with pytest.raises(NotFoundError):
            await first.remove_quota("token:etl")

    asyncio.run(story())


def test_a_change_of_tokens_alone_keeps_the_policy_and_what_it_has_found(clock):
    async def story():
        first, _ = await two(MemoryStore(), clock)
        await first.add_grant(READ_ORDERS, "a")
        policy = first.entries.policy
        await first.add_token("t1", token())
        assert first.entries.policy is policy
        assert "t1" in first.entries.tokens
        await first.put_role("r", ("token:a",), "a")
        assert first.entries.policy is not policy

    asyncio.run(story())


def test_a_quota_whose_version_was_not_written_is_found_within_a_minute(clock):
    async def story():
        store = Remote()
        first, second = await two(store, clock)
        first._system = SystemTable(Failing(store.table(SystemTable.name), writes_left=1))
        with pytest.raises(StoreError):
            await first.put_quota("everyone", QuotaLimits(topics=1), "token:root")
        assert not first.quotas.are_on
        await second._refresh()
        assert not second.quotas.are_on
        clock.advance(60_000)
        await second._refresh()
        assert second.quotas.are_on
        await first._refresh()
        assert first.quotas.are_on

    asyncio.run(story())


def test_a_superuser_gets_a_token_where_there_are_too_many(clock, monkeypatch):
    monkeypatch.setattr(module, "TOKENS_MAX", 1)

    async def story():
        first = Directory(MemoryStore(), clock, ("token:root",))
        await first.add_token("t1", token())
        with pytest.raises(BusyError):
            await first.add_token("t2", token())
        await first.add_token("t3", token(principal="token:root"))
        assert set(first.entries.tokens) == {"t1", "t3"}

    asyncio.run(story())


def test_a_revocation_at_one_server_is_not_undone_by_a_rotation_at_another(clock):
    async def story():
        first, second = await two(Remote(), clock)
        await first.add_token("t1", token())
        await second._refresh()
        row = second.token("t1")
        await first.change_token("t1", token(revoked_ms=1))
        with pytest.raises(ConflictError, match="revoked in the meantime"):
            await second.rotate_token("t1", replace(row, expire_ms=clock.now_ms() + 1), "t2", token())
        with pytest.raises(ConflictError, match="revoked in the meantime"):
            await second.change_token("t1", replace(row, note="x"))
        assert set(second.entries.tokens) == {"t1"}

    asyncio.run(story())


def test_what_another_server_writes_within_a_change_is_known_behind_it(clock, monkeypatch):
    async def story():
        store = Remote()
        first, _ = await two(store, clock)
        other, write = Directory(store, clock, ()), SystemTable.write_all

        def write_late(system, mutations):
            monkeypatch.undo()
            other._write_rows([ROLES.put(RoleRow(("token:etl",), 0, "b"), "readers")])
            write(system, mutations)

        monkeypatch.setattr(SystemTable, "write_all", write_late)
        await first.add_grant(READ_ORDERS, "a")
        assert (set(first.entries.roles), len(first.entries.grants), first.entries.version) == ({"readers"}, 1, 2)

    asyncio.run(story())


def test_a_grant_that_is_given_again_is_there_though_another_server_has_half_taken_it_back(clock):
    async def story():
        store = Remote()
        first, second = await two(store, clock)
        name = await first.add_grant(READ_ORDERS, "a")
        await second._refresh()
        SystemTable(store.table("system")).write_all([GRANTS.delete(name)])  # and crashed before the version
        await second.add_grant(READ_ORDERS, "a")
        await first._refresh()
        assert may(first)
        clock.advance(module.READ_MS)
        await second._refresh()
        assert may(second)

    asyncio.run(story())


def test_a_member_reads_what_the_leader_changes_and_writes_nothing_itself(clock):
    async def story():
        store = MemoryStore()
        leader = Directory(store, clock, ())
        member = Directory(store, clock, (), is_member=True)
        member._system = SystemTable(Failing(store.table("system"), 0))
        await leader.read()
        await member.start()
        old = token(created_ms=1, revoked_ms=1)
        await leader.add_token("old", old)
        await leader.add_grant(READ_ORDERS, "token:root")
        clock.advance(2 * 31 * DAY_MS)
        await member._refresh()  # of the leader it would forget the token, and save that the grant is used
        assert may(member)
        assert member.entries.tokens["old"] == old
        clock.advance(61_000)
        assert member.is_stale, "others change the rows"
        await member.close()

    asyncio.run(story())
