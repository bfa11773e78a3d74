"""Planned moves in a whole server over a store that writes row by row: what goes on through them, and what fails between their steps."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from basalt.client.plans import Answer
from basalt.cluster import owners, shard_gate
from basalt.cluster.owners import OwnersMap
from basalt.cluster.reigns import Phase
from basalt.errors import UnknownOutcomeError
from basalt.messaging.log.tails import TailOwner
from basalt.messaging.log.topic_log import TopicLog
from basalt.operations import shard_holding, shard_moves
from basalt.operations.shard_moves import CALLED_OFF, PLANNED, ShardMoves
from basalt_engine.errors import FencedError, StoreError
from basalt_engine.keys import table_prefix, topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS, shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import Put, TableWrite
from tests.control.server.test_failover import Server
from tests.led_servers import HANG_S, LeaseTime

TOPIC = "/v1/namespaces/shop/topics/orders"
SHARD = shard_of(topic_prefix("shop", "orders"))
ME = "first-1"
BOTH = pytest.mark.parametrize("atomic", [False, True], ids=["row by row", "atomic"])


class Alone(Server):
    """The only server, with what the stories ask. `held` are the fences that a story holds up."""

    held: list[threading.Event]

    @property
    def moves(self) -> ShardMoves:
        serving = self.member._serving
        assert serving is not None, "it serves"
        return serving.services.shard_moves

    @property
    def phase(self) -> Phase:
        return self.moves.gate.reigns[SHARD].phase

    async def move(self, **how: Any) -> Answer:
        asked = {"to": ME, "namespace": "shop", "topic": "orders", **how}
        return await self.ask("POST", "/v1/admin/cluster/moves", asked)

    async def said(self, method: str, target: str, body: object = None, **given: str) -> Any:
        answer = await self.ask(method, target, body, **given)
        assert answer.status in (200, 201, 204), (target, answer.status, answer.body)
        return json.loads(answer.body) if answer.body else None

    def map(self) -> OwnersMap:
        stored = SystemTable(self._store.table("system")).get(owners.KIND, owners.NAME)
        assert stored is not None
        return OwnersMap.decode(stored)


@asynccontextmanager
async def alone(atomic: bool = False) -> AsyncIterator[Alone]:
    server = Alone(LeaseTime(), MemoryStore(atomic), "first")
    server.held = []
    await server.until_it_serves()
    try:
        assert (await server.ask("PUT", TOPIC)).status in (200, 201)
        yield server
    finally:
        for go_on in server.held:
            go_on.set()
        await server.stop()


def run(story: Callable[[Alone], Awaitable[None]], *, atomic: bool = False) -> None:
    async def all_of_it() -> None:
        async with asyncio.timeout(HANG_S), alone(atomic) as server:
            await story(server)

    asyncio.run(all_of_it())


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again soon."""
    for module in (shard_moves, shard_holding):
        monkeypatch.setattr(module, "TRY_AGAIN_S_MIN", 0.001)
        monkeypatch.setattr(module, "TRY_AGAIN_S_MAX", 0.002)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


# What is asked for.


def test_a_move_raises_the_epoch_of_its_shard_alone_in_the_map_and_in_the_store():
    async def story(server: Alone) -> None:
        before = server.map()
        moved = await server.said("POST", "/v1/admin/cluster/moves", {"to": ME, "shards": [SHARD]})
        after, epoch = server.map(), before.epochs[SHARD]
        assert moved["shards"] == [{"shard": SHARD, "epochBefore": epoch, "epoch": epoch + 1}]
        assert (after.version, after.epochs[SHARD], sum(after.epochs)) == (
            before.version + 1,
            epoch + 1,
            sum(before.epochs) + 1,
        )
        assert server.moves.gate.reigns[SHARD].epoch == epoch + 1
        late = server._store.another()
        late.take({SHARD: epoch + 1})  # not below it
        with pytest.raises(FencedError):
            server._store.another().take({SHARD: epoch})
        assert server.moves.moves == Counter({PLANNED: 1})
        acts = await server.said("GET", "/v1/admin/audit")
        assert [(act["act"], act["outcome"]) for act in acts] == [("move shards", "done")]

    run(story)


def test_a_dry_run_tells_the_epochs_and_moves_nothing():
    async def story(server: Alone) -> None:
        epoch = server.map().epochs[SHARD]
        told = await server.said(
            "POST", "/v1/admin/cluster/moves?dryRun=true", {"to": ME, "namespace": "shop", "topic": "orders"}
        )
        assert told == {
            "to": ME,
            "shards": [{"shard": SHARD, "epochBefore": epoch, "epoch": epoch + 1}],
            "tookMs": 0,
            "dryRun": True,
        }
        assert server.map().epochs[SHARD] == epoch
        assert await server.said("GET", "/v1/admin/audit") == []

    run(story)


def test_the_leader_is_meant_by_its_name_and_by_its_present_membership_too():
    async def story(server: Alone) -> None:
        membership = server.member.membership
        for name in (membership.candidate.holder, membership.instance):
            assert json.loads((await server.move(to=name)).body)["to"] == ME
        membership._own = replace(membership._own, instance="first-1-anew")  # it was ended, and began anew
        assert json.loads((await server.move(to="first-1-anew")).body)["to"] == ME

    run(story)


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ({"to": "another"}, 409, "no such member"),
        ({"topic": None}, 400, "name either"),
        ({"shards": [3]}, 400, "name either"),
        ({"topic": None, "shards": [SHARDS]}, 400, "there is no shard 1024"),
        ({"topic": None, "shards": [-1]}, 400, "there is no shard -1"),
        ({"topic": "absent"}, 404, "does not exist"),
    ],
)
def test_what_cannot_be_moved_is_refused_with_words(how: dict[str, Any], status: int, words: str):
    async def story(server: Alone) -> None:
        answer = await server.move(**how)
        assert answer.status == status
        assert words in answer.body.decode()
        assert server.phase is Phase.HELD

    run(story)


def test_one_move_at_a_time(monkeypatch: pytest.MonkeyPatch):
    async def story(server: Alone) -> None:
        async with server.moves.gate.visit(topic_prefix("shop", "orders")):
            moving = asyncio.create_task(server.move())
            await until(lambda: server.phase is Phase.RELEASING)
            other = await server.move(topic=None, shards=[(SHARD + 1) % SHARDS])
            assert (other.status, json.loads(other.body)["code"]) == (503, "busy")
        assert (await moving).status == 200

    run(story)


# What goes on.


class Begun(NamedTuple):
    """An open transaction."""

    id: str
    pointer: int

    def work(self, text: str) -> dict[str, Any]:
        return {"transactionWritePointer": self.pointer, "messages": [text]}


async def transact(server: Alone, *texts: str) -> Begun:
    told = await server.said("POST", "/v1/transactions", {})
    begun = Begun(told["id"], int(told["writePointer"]))
    for text in texts:
        await server.said("POST", f"{TOPIC}/store", begun.work(text))
    return begun


async def _committed(server: Alone) -> list[str]:
    found = await server.said("POST", f"{TOPIC}/poll", {})
    return [message["payload"] for message in found]


@BOTH
def test_messages_keep_their_order_over_many_moves(atomic: bool):
    async def story(server: Alone) -> None:
        texts = [str(number) for number in range(20)]
        for text in texts:
            assert (await server.publish(text)).status == 200
            assert (await server.move()).status == 200
        assert await server.read() == texts

    run(story, atomic=atomic)


def test_a_publish_that_comes_in_the_middle_of_a_move_waits_and_is_carried_out_once():
    async def story(server: Alone) -> None:
        taken, go_on = held_take(server)
        moving = asyncio.create_task(server.move())
        await asyncio.to_thread(taken.wait)
        publishing = asyncio.create_task(server.publish("late"))
        reading = asyncio.create_task(server.read())
        await until(lambda: server.moves.gate.waited_total >= 2)
        assert not publishing.done()
        go_on.set()
        assert ((await publishing).status, (await moving).status) == (200, 200)
        await reading
        assert await server.read() == ["late"]

    run(story)


def held_take(server: Alone) -> tuple[threading.Event, threading.Event]:
    """The next fence waits, between these two events."""
    store, taken, go_on = server.opened[-1], threading.Event(), threading.Event()
    take = store.take
    server.held.append(go_on)

    def held(epochs: Any) -> None:
        taken.set()
        assert go_on.wait(HANG_S)
        take(epochs)

    store.take = held  # type: ignore[method-assign]
    return taken, go_on


@pytest.mark.parametrize("call", ["publish", "poll", "table", "update"])
def test_what_waits_too_long_is_told_that_the_shard_moves(monkeypatch: pytest.MonkeyPatch, call: str):
    monkeypatch.setattr(shard_gate, "MOVING_WAIT_MS_MAX", 20)

    async def story(server: Alone) -> None:
        await server.said("PUT", "/v1/namespaces/shop/tables/prices")
        taken, go_on = held_take(server)
        shards = [SHARD, shard_of(table_prefix("shop", "prices"))]
        moving = asyncio.create_task(server.move(topic=None, shards=shards))
        await asyncio.to_thread(taken.wait)
        answer = await {
            "publish": lambda: server.publish("no"),
            "poll": lambda: server.ask("POST", f"{TOPIC}/poll", {}),
            "table": lambda: server.ask("GET", "/v1/namespaces/shop/tables/prices"),
            "update": lambda: server.ask("PATCH", f"{TOPIC}/properties", {"ttl": 60}),
        }[call]()
        problem = json.loads(answer.body)
        assert (answer.status, problem["code"], answer.headers["retry-after"]) == (503, "shard_moving", "1")
        go_on.set()
        assert (await moving).status == 200
        assert await server.read() == []

    run(story)


@BOTH
def test_an_open_transaction_survives_with_what_it_stored_and_what_it_published_early(atomic: bool):
    async def story(server: Alone) -> None:
        kept, dropped = await transact(server, "a"), await transact(server, "x")
        for transaction, text in ((kept, "early"), (dropped, "y")):
            await server.said("POST", f"{TOPIC}/publish", transaction.work(text))
        assert (await server.move()).status == 200
        await server.said("POST", f"{TOPIC}/store", kept.work("b"))
        await server.said("POST", f"/v1/transactions/{dropped.id}/abort")
        assert (await server.move()).status == 200
        await server.said("POST", f"/v1/transactions/{kept.id}/commit")
        assert await _committed(server) == ["early", "a", "b"]

    run(story, atomic=atomic)


def test_a_transaction_of_before_the_move_holds_readers_back_after_it():
    async def story(server: Alone) -> None:
        transaction = await transact(server)
        await server.said("POST", f"{TOPIC}/publish", transaction.work("open"))
        assert (await server.move()).status == 200
        await server.publish("behind")
        assert await _committed(server) == []
        await server.said("POST", f"/v1/transactions/{transaction.id}/abort")
        assert await _committed(server) == ["behind"]

    run(story)


def test_a_long_poll_is_answered_by_the_release():
    async def story(server: Alone) -> None:
        polling = asyncio.create_task(server.ask("POST", f"{TOPIC}/poll?waitMs=30000", {}))
        serving = server.member._serving
        assert serving is not None
        await until(lambda: serving.services.topics.memory.waiting == 1)
        assert (await server.move()).status == 200
        answer = await polling
        assert (answer.status, json.loads(answer.body)) == (200, [])

    run(story)


def test_a_producer_goes_on_with_its_numbers_and_a_repetition_is_known():
    async def story(server: Alone) -> None:
        def numbered(first: int) -> dict[str, str]:
            return {"Basalt_Producer": "till", "Basalt_Sequence": str(first), "Basalt_Sequence_After": str(first - 1)}

        for number in range(3):
            await server.said("POST", f"{TOPIC}/publish", {"messages": [str(number)]}, **numbered(number))
            assert (await server.move()).status == 200
            await server.said("POST", f"{TOPIC}/publish", {"messages": [str(number)]}, **numbered(number))
        assert await server.read() == ["0", "1", "2"]

    run(story)


@BOTH
def test_cells_are_written_and_read_through_moves_of_their_table(atomic: bool):
    async def story(server: Alone) -> None:
        prices, shard = "/v1/namespaces/shop/tables/prices", shard_of(table_prefix("shop", "prices"))
        await server.said("PUT", prices)
        transaction = await transact(server)
        for number in range(3):
            cell = {
                "row": base64.b64encode(b"r").decode(),
                "column": base64.b64encode(b"c%d" % number).decode(),
                "value": "",
            }
            await server.said("POST", f"{prices}/write", {"transaction": transaction.id, "puts": [cell]})
            assert (await server.move(topic=None, shards=[shard])).status == 200
        await server.said("POST", f"/v1/transactions/{transaction.id}/commit")
        found = await server.said("POST", f"{prices}/read", {"rows": [base64.b64encode(b"r").decode()]})
        assert len(found["cells"] if isinstance(found, dict) else found) == 3

    run(story, atomic=atomic)


# What fails between the steps.


def test_rows_in_doubt_call_a_move_off_and_the_shard_is_served_on(monkeypatch: pytest.MonkeyPatch):
    async def story(server: Alone) -> None:
        store = server.opened[-1]
        write, table = store.write, store.table("message")
        await server.publish("before")

        def lost(writes: list[TableWrite]) -> None:
            if any(isinstance(each, Put) for name, mutations in writes if name == "message" for each in mutations):
                raise UnknownOutcomeError("the answer was lost")
            write(writes)

        def refused(_mutations: object) -> None:
            raise StoreError("the region does not answer")

        monkeypatch.setattr(store, "write", lost)
        assert (await server.publish("doubtful")).status >= 500
        monkeypatch.setattr(table, "write", refused)
        answer = await server.move()
        assert (answer.status, server.phase) == (409, Phase.HELD)
        assert "called off" in answer.body.decode()
        assert server.moves.moves[CALLED_OFF] == 1
        monkeypatch.undo()
        assert (await server.move()).status == 200  # which decides about them first
        await server.publish("after")
        assert await server.read() == ["before", "after"]

    run(story)


def test_a_change_in_doubt_ends_with_the_reign_for_no_region_takes_it_any_more(monkeypatch: pytest.MonkeyPatch):
    async def story(server: Alone) -> None:
        await server.publish("before")
        serving = server.member._serving
        assert serving is not None
        catalog = serving.services.topics.catalog

        def lost(*_: object) -> bool:
            raise UnknownOutcomeError("the answer was lost")

        monkeypatch.setattr(catalog._table, "replace", lost)
        assert (await server.ask("PATCH", f"{TOPIC}/properties", {"ttl": 60})).status >= 500
        assert len(catalog._in_doubt) == 1
        assert (await server.move(namespace=None, topic=None, shards=[SHARD])).status == 200
        assert not catalog._in_doubt
        monkeypatch.undo()
        assert (await server.ask("PATCH", f"{TOPIC}/properties", {"ttl": 3600})).status == 200

    run(story)


def test_a_move_that_cannot_drain_is_called_off_in_time():
    async def story(server: Alone) -> None:
        server.moves.holding.release_ms_max = 20
        async with server.moves.gate.visit(topic_prefix("shop", "orders")):
            answer = await server.move()
        assert (answer.status, server.phase) == (409, Phase.HELD)
        assert (await server.publish("on")).status == 200
        assert await server.read() == ["on"]

    run(story)


@pytest.mark.parametrize("landed", [False, True])
def test_a_write_of_the_map_whose_answer_is_lost_is_made_again(monkeypatch: pytest.MonkeyPatch, landed: bool):
    quick(monkeypatch)
    failures = [1, 2]

    async def story(server: Alone) -> None:
        before, deal = server.map().epochs[SHARD], owners.deal

        def lost(*args: Any) -> OwnersMap:
            if failures and failures.pop():
                if landed:
                    deal(*args)
                raise UnknownOutcomeError("the answer was lost")
            return deal(*args)

        monkeypatch.setattr(shard_moves, "deal", lost)
        assert (await server.move()).status == 200
        epoch = before + (3 if landed else 1)
        assert (server.map().epochs[SHARD], server.moves.gate.reigns[SHARD].epoch) == (epoch, epoch)
        assert (await server.publish("on")).status == 200

    run(story)


def test_fences_that_fail_are_sent_again_under_the_same_epoch(monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)

    async def story(server: Alone) -> None:
        store, tried = server.opened[-1], list[dict[int, int]]()
        take = store.take

        def fails_twice(epochs: Any) -> None:
            tried.append(dict(epochs))
            if len(tried) < 3:
                raise StoreError("a region does not answer")
            take(epochs)

        monkeypatch.setattr(store, "take", fails_twice)
        epoch = server.map().epochs[SHARD]
        assert (await server.move()).status == 200
        assert tried == [{SHARD: epoch + 1}] * 3

    run(story)


def test_who_asked_hears_that_a_move_goes_on_when_the_store_does_not_let_it_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shard_moves, "ANSWER_MS_MAX", 20)

    async def story(server: Alone) -> None:
        taken, go_on = held_take(server)
        answer = await server.move()
        assert json.loads(answer.body)["code"] == "outcome_unknown"
        assert await asyncio.to_thread(taken.wait, HANG_S), "it goes on, and asks the store"
        go_on.set()
        assert (await server.publish("on")).status == 200
        assert server.phase is Phase.HELD

    run(story)


def test_a_lease_that_is_lost_between_map_and_fence_ends_the_move_with_the_term_and_the_next_term_serves(
    monkeypatch: pytest.MonkeyPatch,
):
    quick(monkeypatch)

    async def story(server: Alone) -> None:
        await server.publish("before")
        epoch = server.map().epochs[SHARD]
        first = server.served_epoch
        taken, go_on = held_take(server)
        moving = asyncio.create_task(server.move())
        await asyncio.to_thread(taken.wait)
        server.member.leadership.release()
        go_on.set()
        await server.time.until(lambda: _serves_anew(server, first))
        assert (await moving).status in (200, 503)
        assert server.map().epochs[SHARD] == epoch + 2  # one for the move, one for the next term
        assert (await server.publish("after")).status == 200
        assert await server.read() == ["before", "after"]

    run(story)


async def _serves_anew(server: Alone, before: int | None) -> bool:
    return server.served_epoch not in (None, before)


def test_a_server_that_stops_in_the_middle_of_a_move_waits_for_nobody():
    async def story(server: Alone) -> None:
        taken, go_on = held_take(server)
        moving = asyncio.create_task(server.move())
        await asyncio.to_thread(taken.wait)
        stopping = asyncio.create_task(server.moves.close())
        go_on.set()
        await stopping
        assert (await moving).status >= 500

    run(story)


def test_a_log_of_transactions_that_does_not_answer_calls_a_move_off(monkeypatch: pytest.MonkeyPatch):
    async def story(server: Alone) -> None:
        server.moves.holding.release_ms_max = 50
        store, writing, go_on = server.opened[-1], threading.Event(), threading.Event()
        write = store.write

        def stuck(writes: list[TableWrite]) -> None:
            if any(name == "transaction_log" for name, _ in writes):
                writing.set()
                assert go_on.wait(HANG_S)
            write(writes)

        monkeypatch.setattr(store, "busy", True)  # written on a thread, as of a store that is far away
        monkeypatch.setattr(store, "write", stuck)
        beginning = asyncio.create_task(server.ask("POST", "/v1/transactions", {}))
        assert await asyncio.to_thread(writing.wait, HANG_S)
        assert (await server.move()).status == 409
        assert (await server.publish("on")).status == 200
        go_on.set()
        await beginning

    run(story)


# What must end with a reign.


def test_everything_that_a_log_knows_ends_with_its_reign():
    async def story(server: Alone) -> None:
        transaction = await transact(server, "stored")
        await server.said("POST", f"{TOPIC}/publish", transaction.work("early"))
        await server.said(
            "POST",
            f"{TOPIC}/publish",
            {"messages": ["plain"]},
            Basalt_Producer="till",
            Basalt_Sequence="0",
            Basalt_Sequence_After="-1",
        )
        await server.said("GET", f"{TOPIC}/stats")
        serving = server.member._serving
        assert serving is not None
        (log,) = serving.services.topics.of_shards({SHARD})
        known = {name for name in _OF_A_REIGN if getattr(log, name) not in (None, b"", (), 0)}
        assert known >= {"staged", "uncommitted", "producers", "tail", "index"}
        taken, go_on = held_take(server)
        moving = asyncio.create_task(server.move())
        await asyncio.to_thread(taken.wait)
        fresh = TopicLog(log.topic, log.end, log.memory)
        for name in _OF_A_REIGN - {"packing"}:
            assert getattr(log, name) == getattr(fresh, name), name
        for name in (
            "recent",
            "detailed",
            "with_unconfirmed",
            "with_uncommitted",
            "with_unsaved",
            "with_waiting",
        ):
            assert not len(getattr(log.memory, name)), name
        assert not log.memory.rows_in_doubt.condemned
        go_on.set()
        assert (await moving).status == 200
        (same,) = serving.services.topics.of_shards({SHARD}) or [log]
        assert same is log

    run(story)


# What is set anew by each reign: all but what the log is, and who waits for it.
_OF_A_REIGN = frozenset({*TopicLog.__slots__, *TailOwner.__slots__}) - {
    "__weakref__", "_locks", "_waiting", "end", "ended", "live", "marked", "memory", "pending", "roll_backs_seen", "shard", "topic", "unknown",
    "unknown_up_to", "writing",
}  # fmt: skip
