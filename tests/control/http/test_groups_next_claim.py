"""The claim behind a Work, which is dealt while the Work is written: nobody hears of it before that is durable, and it is nobody's if not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from basalt.messaging.messages import Messages
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite
from tests.control.http.conftest import JSON, Reply
from tests.control.http.group_client import GROUP, INVOICES, GroupClient, claim_of, done, payloads

LOOKS_MAX = 1_000  # turns of the loop within which a claim is dealt


class SlowWrites(MemoryStore):
    """A store whose writes are made on a thread, and wait there while they are held; then they are made, or fail."""

    busy = True  # so writes never are on the loop

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.begun = threading.Event()  # a write that is held
        self._let_through = threading.Event()
        self._let_through.set()

    def hold(self) -> None:
        self.begun.clear()
        self._let_through.clear()

    def let_through(self, *, fails: bool = False) -> None:
        self.fails = fails
        self._let_through.set()

    def write(self, writes: Sequence[TableWrite]) -> None:
        self.begun.set()
        self._let_through.wait()
        if self.fails:
            self.fails = False
            raise StoreError("the disk is full")
        super().write(writes)


class Slow(GroupClient):
    """A client of a group whose writes can be held."""

    store: SlowWrites

    async def dealt(self, numbers: set[int]) -> set[int]:
        """The claims that there are, once they are others than these."""
        live = next(iter(self.services.groups.live.all()))
        await asyncio.to_thread(self.store.begun.wait)
        for _ in range(LOOKS_MAX):
            found = {claim.number for claim in live.dispatcher.claims}
            if found - numbers:
                return found
            await asyncio.sleep(0)
        raise AssertionError("nothing was dealt while the write was under way")

    async def looked_too_early(self, query: str, work: dict[str, Any]) -> Reply:
        """A call whose Work is written once its fetch has looked, and found nothing."""
        self.store.hold()
        call = asyncio.ensure_future(self.ask("POST", f"{GROUP}/fetch{query}", work))
        await asyncio.to_thread(self.store.begun.wait)
        for _ in range(LOOKS_MAX):
            await asyncio.sleep(0)
        self.store.let_through()
        return await call

    def claims(self) -> list[int]:
        return [claim["claim"] for claim in self.call("GET", f"{GROUP}/claims").json()["claims"]]


@pytest.fixture
def slow(runner: asyncio.Runner) -> Iterator[Slow]:
    store = SlowWrites()
    services = runner.run(open_services(Settings(), None, store=store, clock=ManualClock()))
    client = Slow(services, runner)
    client.store = store
    yield client
    store.let_through()
    runner.run(services.close())


PUBLISHING = pytest.mark.parametrize("publish", [("a",), ()], ids=["a transaction", "acknowledged alone"])


@PUBLISHING
def test_the_next_claim_is_dealt_while_the_work_is_written_and_told_when_that_is_durable(
    slow: Slow, publish: tuple[str, ...]
) -> None:
    slow.make()
    first = slow.fetch("?limit=4")

    async def story() -> tuple[bool, Reply]:
        slow.store.hold()
        call = asyncio.ensure_future(slow.ask("POST", f"{GROUP}/fetch?limit=3", done(claim_of(first), publish=publish)))
        await slow.dealt({claim_of(first)})
        told = call.done()
        slow.store.let_through()
        return told, await call

    told_early, second = slow.run(story())
    assert not told_early
    assert (payloads(second), second.header("basalt-attempt")) == (["m4", "m5", "m6"], "1")
    assert slow.claims() == [claim_of(second)]
    assert slow.shown()["floor"] != "00" * 20


@PUBLISHING
def test_when_the_write_fails_the_claim_is_given_back_uncounted_and_nothing_is_acknowledged(
    slow: Slow, publish: tuple[str, ...]
) -> None:
    slow.make()
    first = slow.fetch("?limit=4")

    async def story() -> Reply:
        slow.store.hold()
        call = asyncio.ensure_future(slow.ask("POST", f"{GROUP}/fetch?limit=3", done(claim_of(first), publish=publish)))
        await slow.dealt({claim_of(first)})
        slow.store.let_through(fails=True)
        return await call

    failed = slow.run(story())
    assert failed.status >= 500
    assert slow.shown()["floor"] == "00" * 20
    assert slow.payloads(INVOICES) == []
    assert slow.claims() == [claim_of(first)], "what it has, it keeps"
    again = slow.fetch()
    assert (payloads(again), again.header("basalt-attempt")) == ([f"m{number}" for number in range(4, 10)], "1")


def test_a_call_repeated_behind_a_write_that_failed_has_its_claim_and_is_done(slow: Slow) -> None:
    slow.make()
    first = slow.fetch("?limit=4")
    work, asked = done(claim_of(first), publish=("a",)), {"basalt_request_id": "round-1"}

    async def story() -> Reply:
        slow.store.hold()
        call = asyncio.ensure_future(slow.ask("POST", f"{GROUP}/fetch?limit=3", work, **asked))
        await slow.dealt({claim_of(first)})
        slow.store.let_through(fails=True)
        return await call

    assert slow.run(story()).status >= 500
    rounds = [slow.fetch("?limit=3", work, **asked) for _ in range(2)]
    assert claim_of(rounds[0]) == claim_of(rounds[1]) != 0
    assert [payloads(each) for each in rounds] == [["m4", "m5", "m6"]] * 2
    assert slow.payloads(INVOICES) == ["a"]


def test_a_call_repeated_while_the_first_is_written_is_the_same_work_and_the_same_claim(slow: Slow) -> None:
    slow.make()
    first = slow.fetch("?limit=4")
    work, asked = done(claim_of(first), publish=("a",)), {"basalt_request_id": "round-1"}

    async def story() -> list[Reply]:
        slow.store.hold()
        calls = [asyncio.ensure_future(slow.ask("POST", f"{GROUP}/fetch?limit=3", work, **asked))]
        await slow.dealt({claim_of(first)})
        calls.append(asyncio.ensure_future(slow.ask("POST", f"{GROUP}/fetch?limit=3", work, **asked)))
        await asyncio.sleep(0)
        slow.store.let_through()
        return list(await asyncio.gather(*calls))

    one, two = slow.run(story())
    assert claim_of(one) == claim_of(two) != 0
    assert payloads(one) == payloads(two) == ["m4", "m5", "m6"]
    assert (slow.payloads(INVOICES), slow.claims()) == (["a"], [claim_of(one)])


def test_a_call_that_is_cancelled_while_it_is_written_holds_no_claim(slow: Slow) -> None:
    slow.make()
    first = slow.fetch("?limit=4")

    async def story() -> None:
        slow.store.hold()
        work = done(claim_of(first), publish=("a",))
        call = asyncio.ensure_future(slow.ask("POST", f"{GROUP}/fetch?limit=3", work))
        await slow.dealt({claim_of(first)})
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        slow.store.let_through()

    slow.run(story())
    slow.publish(INVOICES, "b")  # which is written behind it
    assert slow.claims() == []
    again = slow.fetch()
    assert (payloads(again)[0], again.header("basalt-attempt")) == ("m4", "1")
    assert slow.payloads(INVOICES) == ["a", "b"]


@pytest.mark.parametrize("cancelled", [False, True], ids=["its write failed", "it was cancelled"])
def test_a_claim_that_is_found_when_its_call_is_over_is_nobodys(
    slow: Slow, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.make()
    first = slow.fetch("?limit=4")
    reads, go_on, read_committed = asyncio.Event(), asyncio.Event(), Messages.read_committed

    async def read_slowly(*args: Any, **kwargs: Any) -> Any:
        reads.set()
        await go_on.wait()
        return await read_committed(*args, **kwargs)

    async def story() -> None:
        slow.store.hold()
        work = done(claim_of(first), publish=("a",))
        call = asyncio.ensure_future(slow.ask("POST", f"{GROUP}/fetch?limit=3", work))
        await reads.wait()
        if cancelled:
            call.cancel()
        slow.store.let_through(fails=not cancelled)
        await asyncio.gather(call, return_exceptions=True)
        go_on.set()

    monkeypatch.setattr(Messages, "read_committed", read_slowly)
    slow.run(story())
    monkeypatch.undo()
    slow.publish(INVOICES, "b")  # the loop goes on meanwhile
    kept = [] if cancelled else [claim_of(first)]  # a Work whose write failed acknowledged nothing
    assert slow.claims() == kept
    again = slow.fetch("?limit=1")
    assert (payloads(again), again.header("basalt-attempt")) == (["m4"], "1")


def test_a_group_that_eats_what_it_makes_is_dealt_what_its_work_published(slow: Slow) -> None:
    slow.make(2)
    work: dict[str, Any] = done(claim_of(slow.fetch()))
    work["publish"] = [{"namespace": "shop", "topic": "orders", "messages": ["made"]}]
    assert payloads(slow.run(slow.looked_too_early("", work))) == ["made"]


def test_a_member_that_joins_behind_a_work_joins_once(slow: Slow) -> None:
    slow.make(2)
    work = done(claim_of(slow.fetch()), publish=("a",))
    second = slow.run(slow.looked_too_early("?member=w1", work))
    epoch = str(slow.clock.now_ms())  # whoever joins again at the same time has a later one
    assert (payloads(second), second.header("basalt-member-epoch")) == ([], epoch)


def test_while_the_server_stops_a_work_is_done_and_nothing_is_dealt(slow: Slow) -> None:
    slow.make()
    first = slow.fetch("?limit=4")

    async def story() -> Reply:
        slow.store.hold()
        work = done(claim_of(first), publish=("a",))
        call = asyncio.ensure_future(slow.ask("POST", f"{GROUP}/fetch?limit=3", work, JSON))
        slow.services.groups.live.stop_waiting()
        await asyncio.sleep(0)
        slow.store.let_through()
        return await call

    second = slow.run(story())
    assert (payloads(second), second.header("basalt-waiting-for")) == ([], "stopping")
    assert slow.payloads(INVOICES) == ["a"]
    assert slow.claims() == []
