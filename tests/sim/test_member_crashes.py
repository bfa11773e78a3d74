"""Each row of the crash table of several members, as a scene of its own: who dies where, what recovery does, what readers see.

It is the model (`tests.sim.members.world`) that is tested here: the product has one leader and standbys, and no owners yet.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.members.hbase import DATA_REGIONS, LOG
from tests.sim.members.leader import LEASE_MS
from tests.sim.members.ledger import Edit
from tests.sim.members.play import AbortedError, CallError, RefusedError
from tests.sim.members.scene import Scene

AWAY_MS = LEASE_MS + 1_000  # a lease, and what it takes to notice, to write the map and to send the fences


@pytest.fixture
def scene() -> Scene:
    return Scene()


# An owner, around a plain publish.


def test_a_publish_that_hangs_when_its_owner_dies_never_lands(scene: Scene) -> None:
    scene.publish("plain", "a")  # the end is known from now on, and the next publish is a write at once
    act = scene.history.act({"hung": "a"}, scene.play.now_ms)
    scene.hbase.cut_until_ms[scene.first.process] = scene.play.now_ms + 4 * LEASE_MS
    answer = scene.begin(scene.call(scene.leader, "serve", "publish", "a", "hung", patience_ms=50))
    scene.wait(lambda: answer.done)
    scene.first.process.kill()
    assert scene.wait(lambda: scene.serves("a")) < AWAY_MS
    act.tell("refused", scene.play.now_ms)
    scene.publish("next", "a")
    scene.pass_ms(5 * LEASE_MS)
    assert scene.texts(scene.leader, "a", "raw") == ["plain", "next"]
    scene.finish()


def test_a_publish_that_landed_before_its_owner_died_is_there_and_others_come_after_it(scene: Scene) -> None:
    scene.history.act({"landed": "a"}, scene.play.now_ms)
    scene.dies(scene.first, scene.first.reigns["a"], "append", after=True)
    scene.begin(scene.call(scene.leader, "serve", "publish", "a", "landed"))
    scene.wait(lambda: not scene.first.process.alive)
    assert scene.do(scene.call(scene.leader, "serve", "publish", "b", "elsewhere")) > 0  # others notice nothing
    scene.wait(lambda: scene.serves("a"))
    scene.do(scene.call(scene.leader, "serve", "publish", "a", "next"))
    assert scene.texts(scene.leader, "a") == ["landed", "next"]
    scene.finish()


# An owner, with a one-shot.


def test_rows_of_a_one_shot_whose_owner_died_before_the_decision_hold_readers_and_are_then_skipped(
    scene: Scene,
) -> None:
    act = scene.history.act({"undecided": "a"}, scene.play.now_ms)
    scene.dies(scene.first, scene.first, "ask_leader", "decide_one_shot")
    scene.begin(scene.call(scene.leader, "serve_one_shot", {"a": "undecided"}, "r"))
    scene.wait(lambda: not scene.first.process.alive)
    scene.wait(lambda: scene.ended(scene.first) and scene.serves("a"))
    page = scene.committed(scene.leader, "a")
    assert (page.rows, page.held_by) == ((), None)
    assert scene.texts(scene.leader, "a", "raw") == ["undecided"]
    act.tell("refused", scene.play.now_ms)
    scene.finish()


def test_a_one_shot_that_was_decided_and_not_answered_shows_and_its_request_id_gets_it(scene: Scene) -> None:
    act = scene.history.act({"decided": "a"}, scene.play.now_ms)
    scene.dies(scene.first, scene.first, "ask_leader", "decide_one_shot", after=True)
    scene.begin(scene.call(scene.leader, "serve_one_shot", {"a": "decided"}, "r"))
    scene.wait(lambda: scene.serves("a", but=scene.first) and scene.ended(scene.first))
    again = scene.do(scene.call(scene.leader, "serve_one_shot", {"a": "decided"}, "r"))
    assert again == scene.ledger().requests["r"]
    assert scene.texts(scene.leader, "a") == ["decided"]
    act.tell("done", scene.play.now_ms)
    scene.finish()


# A carrier.


def test_a_commit_whose_carrier_died_before_the_intent_is_open_as_before(scene: Scene) -> None:
    act = scene.transaction(a="early")
    act.texts["brought"] = "b"
    scene.dies(scene.second, scene.second, "ask_leader", "intend")
    scene.begin(scene.call(scene.second, "commit", act.writer, {"b": ("brought",)}))
    scene.wait(lambda: not scene.second.process.alive)
    assert scene.ledger().open[act.writer or 0].state == "open"
    scene.wait(lambda: scene.serves("b"))
    scene.do(scene.call(scene.leader, "commit", act.writer, {"b": ("brought",)}))
    act.tell("done", scene.play.now_ms)
    assert scene.texts(scene.leader, "b") == ["brought"]
    scene.finish()


@pytest.mark.parametrize("at", ["place", "decide"])
def test_a_commit_whose_carrier_died_between_intent_and_decision_is_given_up(scene: Scene, at: str) -> None:
    act = scene.transaction(a="early", t="cell")
    act.texts["brought"] = "b"
    if at == "place":
        scene.dies(scene.second, scene.second, "_place_all")
    else:
        scene.dies(scene.second, scene.second, "ask_leader", "decide")
    scene.begin(scene.call(scene.second, "commit", act.writer, {"b": ("brought",)}))
    scene.wait(lambda: not scene.second.process.alive)
    if at == "decide":  # its rows are there, and readers wait at them
        assert scene.committed(scene.leader, "a").held_by == act.writer
    scene.wait(lambda: scene.ledger().outcomes.get(act.writer or 0) == "aborted")
    with pytest.raises(AbortedError):
        scene.do(scene.call(scene.leader, "commit", act.writer, {"b": ("brought",)}))
    act.tell("refused", scene.play.now_ms)
    scene.finish()


# An owner, with a commit over several.


def test_a_commit_whose_owner_died_before_it_answered_is_given_up(scene: Scene) -> None:
    act = scene.transaction(a="early", c="also")
    scene.dies(scene.first, scene.first.reigns["a"], "place", after=True)
    with pytest.raises(CallError):
        scene.do(scene.call(scene.leader, "commit", act.writer, {}))
    scene.wait(lambda: scene.ledger().outcomes.get(act.writer or 0) == "aborted")
    act.tell("refused", scene.play.now_ms)
    scene.finish()


def test_a_commit_whose_owner_died_after_it_answered_goes_on(scene: Scene) -> None:
    act = scene.transaction(a="early", b="also")
    ask = scene.leader.ask_owner

    async def answered(shard: str, call: str, *arguments: object) -> object:
        answer = await ask(shard, call, *arguments)
        if shard == "a":
            scene.first.process.kill()
        return answer

    scene.leader.ask_owner = answered  # type: ignore[method-assign]
    scene.do(scene.call(scene.leader, "commit", act.writer, {}))
    act.tell("done", scene.play.now_ms)
    scene.wait(lambda: scene.serves("a"))
    assert scene.texts(scene.second, "a") == ["early"]
    scene.finish()


# The coordinator.


def test_a_coordinator_that_died_before_the_intent_leaves_the_transaction_open(scene: Scene) -> None:
    act = scene.transaction(a="early", b="also")
    assert scene.leader.leader is not None
    scene.dies(scene.leader, scene.leader.leader.coordinator, "intend")
    scene.begin(scene.call(scene.first, "commit", act.writer, {}))
    scene.wait(lambda: not scene.leader.process.alive)
    scene.do(scene.call(scene.first, "serve", "publish", "b", "plain"))  # plain calls go on
    scene.wait(scene.coordinates)
    assert scene.ledger().open[act.writer or 0].state == "open"
    scene.do(scene.call(scene.first, "commit", act.writer, {}))
    act.tell("done", scene.play.now_ms)
    scene.finish()


def test_what_a_coordinator_has_not_decided_the_next_one_gives_up(scene: Scene) -> None:
    act = scene.transaction(a="early", b="also")
    assert scene.leader.leader is not None
    scene.committed(scene.first, "a")  # which has a view then
    scene.dies(scene.leader, scene.leader.leader.coordinator, "decide")
    scene.begin(scene.call(scene.first, "commit", act.writer, {}))
    scene.wait(lambda: not scene.leader.process.alive)
    page = scene.committed(scene.first, "a")
    assert (page.held_by, page.is_fresh) == (
        act.writer,
        False,
    )  # committed readers stop at rows in flight till one serves
    scene.wait(lambda: scene.ledger().outcomes.get(act.writer or 0) == "aborted")
    act.tell("refused", scene.play.now_ms)
    scene.finish()


def test_owners_that_were_not_told_of_a_commit_ask_the_next_coordinator(scene: Scene) -> None:
    act = scene.transaction(a="early", b="also")
    assert scene.leader.leader is not None
    scene.committed(scene.second, "b")  # which has a view then
    coordinator = scene.leader.leader.coordinator
    write = coordinator.log

    async def log(*propose: Callable[[], tuple[Edit, ...]]) -> None:
        await write(*propose)
        if (act.writer or 0) in scene.ledger().outcomes:
            scene.leader.process.kill()
            await scene.play.sleep(0)

    coordinator.log = log  # type: ignore[method-assign]
    scene.begin(scene.call(scene.first, "commit", act.writer, {}))
    scene.wait(lambda: not scene.leader.process.alive)
    assert scene.ledger().outcomes[act.writer or 0] == "committed"
    assert scene.committed(scene.second, "b").rows == ()
    scene.wait(scene.coordinates)
    assert scene.texts(scene.second, "b") == ["also"]
    act.tell("done", scene.play.now_ms)
    scene.finish()


def test_coordinator_and_owner_on_one_machine_give_plain_calls_back_before_the_log_can_be_read(scene: Scene) -> None:
    """Committed readers stop at what that machine left undecided, until its loans are ended in the log."""
    act = scene.history.act({"undecided": "c"}, scene.play.now_ms)
    scene.dies(scene.leader, scene.leader, "ask_leader", "decide_one_shot")
    scene.begin(scene.call(scene.first, "serve_one_shot", {"c": "undecided"}, "r"))
    scene.wait(lambda: not scene.leader.process.alive)
    scene.hbase.regions[LOG].away_until_ms = scene.play.now_ms + 6_000
    assert scene.wait(lambda: scene.serves("c")) < 2 * AWAY_MS  # the lead's lease, then the member's
    scene.do(scene.call(scene.first, "serve", "publish", "c", "plain"))
    assert scene.texts(scene.first, "c", "raw") == ["undecided", "plain"]
    with pytest.raises(CallError):
        scene.committed(scene.first, "c")
    assert not scene.coordinates()
    scene.wait(scene.coordinates)
    scene.wait(lambda: scene.ended(scene.leader))
    scene.pass_ms(200)
    assert scene.texts(scene.first, "c") == ["plain"]
    act.tell("refused", scene.play.now_ms)
    scene.finish()


# Who stands still.


def test_an_owner_that_wakes_after_its_lease_answers_nothing_and_its_writes_meet_fences(scene: Scene) -> None:
    scene.publish("plain", "a")
    act = scene.history.act({"late": "a"}, scene.play.now_ms)
    scene.hbase.cut_until_ms[scene.first.process] = (
        scene.play.now_ms + 3 * LEASE_MS
    )  # the write comes when another owns the topic
    answer = scene.begin(scene.call(scene.first, "own", "a", "publish", "late", patience_ms=20_000))
    scene.pass_ms(10)
    scene.first.process.stopped_until = scene.play.now_ms + 4 * LEASE_MS
    scene.wait(lambda: scene.serves("a", but=scene.first))
    scene.publish("next", "a")
    scene.wait(lambda: not scene.first.process.alive or answer.done)
    assert scene.texts(scene.leader, "a", "raw") == ["plain", "next"]
    act.tell("refused", scene.play.now_ms)
    scene.finish()


def test_a_coordinator_that_wakes_finds_its_place_in_the_log_taken(scene: Scene) -> None:
    act = scene.transaction(a="early", b="also")
    scene.leader.process.stopped_until = scene.play.now_ms + 4 * LEASE_MS
    scene.wait(lambda: scene.coordinates(but=scene.leader))
    scene.do(scene.call(scene.first, "commit", act.writer, {}))
    act.tell("done", scene.play.now_ms)
    scene.wait(lambda: scene.leader.process.stopped_until < scene.play.now_ms)
    with pytest.raises(CallError):
        scene.do(scene.call(scene.leader, "serve_transaction", "begin"))
    scene.finish()


# Links and regions.


def test_an_owner_without_a_link_to_the_coordinator_is_ended_after_a_while(scene: Scene) -> None:
    scene.world.links.cut(scene.first.instance, scene.leader.instance, 60_000)
    scene.do(scene.call(scene.second, "serve", "publish", "a", "plain"))  # plain calls go on
    with pytest.raises(RefusedError):
        scene.do(scene.call(scene.first, "serve_transaction", "begin"))
    scene.wait(lambda: scene.serves("a", but=scene.first))
    assert scene.ended(scene.first) or not scene.first.process.alive
    scene.finish()


@pytest.mark.parametrize("region", DATA_REGIONS)
def test_a_shard_waits_for_the_fence_of_a_region_that_is_away(scene: Scene, region: str) -> None:
    scene.hbase.regions[region].away_until_ms = scene.play.now_ms + 6_000
    scene.first.process.kill()
    scene.pass_ms(AWAY_MS + 1_000)
    assert not scene.serves("a")
    scene.wait(lambda: scene.serves("a"))
    scene.finish()
