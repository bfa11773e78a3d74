"""Groups while their log cannot be written: what is asked of it is refused, what is claimed stays so, and fetching goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence

import pytest

from basalt.api.bodies.groups import GroupOptions, SeekRequest
from basalt.catalog.topics import TopicName
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import DiskFullError, StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite
from tests.control.http.conftest import Reply
from tests.control.http.group_client import GROUP, INVOICES, ORDERS, GroupClient, claim_of, done, ids_of, payloads

NAMED = TopicName("shop", "orders"), "billing"
HANG_S = 60


class Disk(MemoryStore):
    """A store that has room, or has none."""

    full = False
    busy = False  # then a write is done on a thread, and others are answered meanwhile

    def __init__(self, **kind: bool) -> None:
        super().__init__(**kind)
        self.writing, self.go_on = threading.Event(), threading.Event()

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.busy:
            self.writing.set()
            assert self.go_on.wait(HANG_S)
        if self.full:
            raise DiskFullError("no space left on device")
        super().write(writes)


class Shop(GroupClient):
    disk: Disk

    def fetched(self, query: str = "") -> list[str]:
        return payloads(self.fetch(query))

    def fetched_while(self, work: Coroutine[None, None, object], query: str) -> Reply:
        """The answer to a fetch that comes while the write of this work is under way, and fails."""
        self.disk.full = self.disk.busy = True

        async def fetched() -> Reply:
            failing = asyncio.create_task(work)
            async with asyncio.timeout(HANG_S):
                while not self.disk.writing.is_set():
                    await asyncio.sleep(0.001)
            found = await self.ask("POST", f"{GROUP}/fetch{query}")
            assert not failing.done()
            self.disk.go_on.set()
            with pytest.raises(DiskFullError):
                await failing
            return found

        found = self.run(fetched())
        self.disk.full = self.disk.busy = False
        return found


@pytest.fixture(params=["one batch", "row by row"])
def shop(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Shop]:
    disk = Disk(atomic=request.param == "one batch")
    services = runner.run(open_services(Settings(), None, store=disk, clock=ManualClock()))
    client = Shop(services, runner)
    client.disk = disk
    yield client
    disk.full = False
    runner.run(services.close())


def refused(reply: Reply) -> str:
    assert reply.status in (503, 507), reply.body
    return reply.code


def test_what_cannot_be_written_is_refused_and_fetches_go_on(shop: Shop) -> None:
    """A claim whose acknowledgement could not be written goes on. One whose release could not is over, as at a crash: its messages are free."""
    shop.make()
    others = shop.fetch("?limit=2&member=w2")
    claims = iter([shop.fetch("?limit=1") for _ in range(3)])
    acknowledged, released, worked = claims
    shop.disk.full = True
    for call, claim in (("acknowledge", acknowledged), ("release", released)):
        refused(shop.call("POST", f"{GROUP}/{call}", {"claims": [claim_of(claim)]}))
    for call, body in (("seek?dryRun=false", {"to": "start"}), ("pause", b"")):
        refused(shop.call("POST", f"{GROUP}/{call}", body))
    refused(shop.call("DELETE", GROUP))
    refused(shop.call("PUT", f"{ORDERS}/groups/other", {}))
    assert shop.fetched("?limit=2") == payloads(released)
    refused(shop.call("POST", f"{GROUP}/fetch", done(claim_of(worked), publish=("a",))))
    shop.disk.full = False
    assert shop.call("GET", f"{ORDERS}/groups/other").code == "group_not_found"
    assert (shop.shown()["floor"], shop.shown()["paused"]) == ("00" * 20, False)
    assert shop.payloads(INVOICES) == []
    assert shop.post("acknowledge", {"ids": ids_of(others), "member": "w2"}) == {"acknowledged": 2, "already": 0}
    kept = [claim_of(acknowledged), claim_of(worked)]
    assert shop.post("acknowledge", {"claims": kept}) == {"acknowledged": 2, "already": 0}


def test_what_was_dealt_behind_a_seek_that_could_not_be_written_is_void_behind_the_next(shop: Shop) -> None:
    made = shop.make(2)
    done_with = shop.fetch("")
    shop.post("acknowledge", {"claims": [claim_of(done_with)]})
    dealt = shop.fetched_while(shop.services.groups.seek(*NAMED, SeekRequest("start")), "?limit=1&member=w1")
    assert (payloads(dealt), shop.shown()["round"]) == (["m0"], made["round"])
    shop.post("seek", {"to": "start"})
    by_ids = {"ids": ids_of(dealt), "member": "w1", "round": int(dealt.header("basalt-round") or 0)}
    assert shop.call("POST", f"{GROUP}/acknowledge", by_ids).code == "claim_lost"
    assert shop.fetched() == ["m0", "m1"]


def test_a_group_that_could_not_be_made_leaves_nothing_to_the_next_one(shop: Shop) -> None:
    """The two have the same number, for the first one never was."""
    shop.make(2, group=f"{ORDERS}/groups/other")
    shop.publish(INVOICES, "i0")
    assert payloads(shop.fetched_while(shop.services.groups.make(*NAMED, GroupOptions()), "?limit=1&member=w1")) == [
        "m0"
    ]
    invoicing = f"{INVOICES}/groups/billing"
    assert shop.call("PUT", invoicing, {}).json()["members"] == 0
    assert payloads(shop.fetch("", group=invoicing)) == ["i0"]
    assert shop.call("POST", f"{GROUP}/fetch").code == "group_not_found"


@pytest.mark.parametrize("what", ["a claim", "a member", "a replaced member"])
def test_what_runs_out_while_nothing_can_be_written_keeps_nobody_from_fetching(shop: Shop, what: str) -> None:
    shop.make(4, claimMs=5_000 if what == "a claim" else 600_000, memberMs=5_000 if what == "a member" else 600_000)
    assert shop.fetched("?limit=1&member=w1") == ["m0"]
    shop.disk.full = True
    shop.pass_ms(5_000)
    if what == "a replaced member":
        shop.post("members/w1")
    found = [message for _ in range(4) for message in shop.fetched("?limit=1")]
    assert sorted(found) == ["m0", "m1", "m2", "m3"]


def test_what_ran_out_while_nothing_could_be_written_is_unacknowledged_once(shop: Shop) -> None:
    """Though a message that is parked keeps the group from ever having nothing unacknowledged."""
    shop.make(3, claimMs=5_000, attemptsMax=1, unackedMax=3)
    shop.post("release", {"claims": [claim_of(shop.fetch("?limit=1"))]})
    for _ in range(3):
        assert shop.fetched("?limit=1") == ["m1"]
        shop.disk.full = True
        shop.pass_ms(5_000)
        assert shop.fetched("?limit=1") == ["m1"]
        shop.disk.full = False
        shop.call("POST", f"{GROUP}/seek?dryRun=true", {"to": "start"})
        claims = [each["claim"] for each in shop.call("GET", f"{GROUP}/claims").json()["claims"]]
        assert shop.post("release", {"claims": claims, "counts": False}) == {"released": 1}


def test_while_the_manager_cannot_read_its_log_groups_are_unavailable_and_publish_and_poll_go_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.make(2)
    claim = claim_of(shop.fetch("?limit=1"))
    manager = shop.services.transactions.manager

    async def fails() -> None:
        raise StoreError("the log cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(manager, "read_log", fails)
        manager.lost()
        calls = (
            ("POST", "/fetch", b""),
            ("POST", "/acknowledge", {"claims": [claim]}),
            ("GET", "", b""),
            ("DELETE", "", b""),
        )
        for method, call, body in calls:
            assert shop.call(method, GROUP + call, body).status == 503
        shop.publish(ORDERS, "m2")
        assert shop.payloads(ORDERS, "?isolation=uncommitted") == ["m0", "m1", "m2"]
    assert shop.post("acknowledge", {"claims": [claim]}) == {"acknowledged": 1, "already": 0}
    assert shop.fetched() == ["m1", "m2"]


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_clock_that_steps_ends_no_claim_and_no_lease_and_moves_what_is_delayed(shop: Shop, step_ms: int) -> None:
    shop.make(3, retryDelayMs=60_000, retryDelayMsMax=60_000)
    epoch = shop.post("members/w1")["epoch"]
    claim = claim_of(shop.fetch(f"?limit=1&member=w1&epoch={epoch}"))
    shop.post("release", {"claims": [claim_of(shop.fetch("?limit=1"))]})
    clock = shop.clock
    assert isinstance(clock, ManualClock)
    clock.step(clock.now_ms() + step_ms)
    assert shop.fetched() == (["m1"] if step_ms > 0 else ["m2"])
    assert shop.post("members/w1", {"epoch": epoch})["claims"] == [claim]
    assert shop.post("acknowledge", {"claims": [claim], "member": "w1", "epoch": epoch})["acknowledged"] == 1
    assert shop.post("members/w1")["epoch"] > epoch
    shop.pass_ms(max(-step_ms, 0) + 60_000)
    assert (shop.fetched("?limit=1") == ["m1"]) == (step_ms < 0)


@pytest.mark.parametrize("mode", ["shared", "stream", "keyed"])
def test_a_truncation_takes_what_nobody_has_and_the_floor_moves_on(shop: Shop, mode: str) -> None:
    shop.make(4, mode=mode)
    epoch = shop.post("members/w1")["epoch"]
    first = shop.fetch(f"?limit=2&member=w1&epoch={epoch}")
    shop.post("release", {"claims": [claim_of(shop.fetch(f"?limit=1&member=w1&epoch={epoch}"))], "member": "w1"})
    shop.pass_ms(10)
    shop.publish(ORDERS, "late")
    last = shop.poll(ORDERS).json()[-1]["id"].encode("latin-1")
    before_ms = int.from_bytes(last[:8], "big")
    assert shop.call("POST", f"{ORDERS}/truncate", {"beforeMs": before_ms}).status == 200
    assert shop.post("acknowledge", {"claims": [claim_of(first)], "member": "w1"})["acknowledged"] == 2
    for _ in range(2):
        shop.run(shop.services.groups.upkeep.run())
    shop.pass_ms(60_000)
    late = shop.fetch(f"?member=w1&epoch={shop.post('members/w1')['epoch']}")
    assert payloads(late) == ["late"]
    assert shop.post("acknowledge", {"claims": [claim_of(late)], "member": "w1"}) == {"acknowledged": 1, "already": 0}
    shown = shop.shown()
    assert (shown["floor"], shown["figures"]["lagMessages"], shown["figures"]["delayed"]) == (ids_of(late)[0], 0, 0)


def test_options_that_could_not_be_written_are_not_used(shop: Shop) -> None:
    shop.make(2)
    shop.fetch("?limit=1")
    shop.disk.full = True
    refused(shop.call("PUT", f"{GROUP}/options", {"claimMs": 5_000, "memberMs": 1_000}))
    shop.disk.full = False
    assert shop.shown()["options"]["claimMs"] == 300_000
    claimed = shop.fetch(f"?member=w1&epoch={shop.post('members/w1')['epoch']}")
    assert int(claimed.header("basalt-claim-until") or 0) == shop.clock.now_ms() + 300_000
    member = shop.call("GET", f"{GROUP}/members").json()["members"][0]
    assert member["expiresMs"] == shop.clock.now_ms() + 30_000
    assert shop.call("PUT", f"{GROUP}/options", {"claimMs": 5_000}).status == 200
