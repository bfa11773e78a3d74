"""Rules of several members whose lack seldom shows by chance, each as a scene: it keeps its promises, and breaks one once the rule is left out.

As in `tests.sim.test_member_crashes` it is the model that is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.sim.members import faults
from tests.sim.members.coordinator import RUN_RESTS_MS
from tests.sim.members.faults import Fault
from tests.sim.members.hbase import DATA_REGIONS
from tests.sim.members.leader import LEASE_MS
from tests.sim.members.member import Clock
from tests.sim.members.play import CallError
from tests.sim.members.scene import Scene

AHEAD_MS = 4_000


def a_write_hangs_until_after_its_owner_s_end_was_read(scene: Scene) -> None:
    scene.first.clock = Clock(scene.play, 1.0, AHEAD_MS)
    scene.publish("plain", "a")  # the end is known from now on
    scene.history.act({"hung": "a"}, scene.play.now_ms)
    scene.hbase.cut_until_ms[scene.first.process] = scene.play.now_ms + 2.2 * LEASE_MS
    answer = scene.begin(scene.call(scene.leader, "serve", "publish", "a", "hung", patience_ms=50))
    scene.wait(lambda: answer.done)
    scene.first.process.kill()
    scene.wait(lambda: scene.serves("a"))
    scene.publish("next", "a")
    scene.finish()


def a_last_row_is_dropped_before_a_clock_behind_takes_over(scene: Scene) -> None:
    scene.first.clock = Clock(scene.play, 1.0, AHEAD_MS)
    act = scene.transaction(a="early", t="cell")
    cursor = scene.do(scene.call(scene.leader, "serve", "raw", "a", 0)).cursor
    scene.dies(scene.first, scene.first.reigns["a"], "note_end")
    scene.begin(scene.call(scene.leader, "serve_transaction", "abort", act.writer))
    scene.wait(lambda: scene.ledger().outcomes.get(act.writer or 0) == "aborted")
    act.tell("refused", scene.play.now_ms)
    scene.wait(lambda: not scene.first.process.alive)
    scene.pass_ms(45)  # a round of the coordinator, which tells region servers
    for region in DATA_REGIONS:
        scene.hbase.clean(region, scene.world._may_drop)
    scene.wait(lambda: scene.serves("a"))
    scene.publish("next", "a")
    page = scene.do(scene.call(scene.leader, "serve", "raw", "a", cursor))
    assert [texts for _, _, texts in page.rows] == [("next",)]
    scene.finish()


def a_place_comes_after_the_roll_back(scene: Scene) -> None:
    act = scene.transaction(a="early", b="also")
    ask = scene.leader.ask_owner

    async def late(shard: str, call: str, *arguments: object) -> object:
        if (shard, call) == ("b", "place"):
            await scene.play.sleep(2 * LEASE_MS)
        return await ask(shard, call, *arguments)

    act.texts["brought"] = "b"
    scene.leader.ask_owner = late  # type: ignore[method-assign]
    with pytest.raises(CallError):
        scene.do(scene.call(scene.leader, "commit", act.writer, {"b": ("brought",)}, patience_ms=5_000))
    assert scene.ledger().outcomes[act.writer or 0] == "aborted"
    act.tell("refused", scene.play.now_ms)
    scene.finish()


def a_shard_goes_to_a_member_with_an_old_view(scene: Scene) -> None:
    old = scene.second.view
    act = scene.transaction(a="early")
    scene.do(scene.call(scene.leader, "commit", act.writer, {}))
    act.tell("done", scene.play.now_ms)
    before = scene.do(scene.call(scene.leader, "serve", "stable_end", "a"))
    assert scene.leader.leader is not None
    scene.do(scene.leader.leader.move("a", scene.second.instance))
    scene.wait(lambda: scene.serves("a"))
    scene.second.view = old  # as a slow link would have it
    after = scene.do(scene.call(scene.second, "own", "a", "stable_end"))
    assert after >= before
    scene.finish()


def a_shard_is_released_and_another_one_moves(scene: Scene) -> None:
    scene.publish("plain", "a")
    act = scene.transaction(a="early")
    assert scene.leader.leader is not None
    scene.do(scene.leader.links.call(scene.leader, scene.first.instance, "hear_leader", 1, "a", "release"))
    scene.do(scene.leader.leader.move("b", scene.leader.instance))
    scene.wait(lambda: scene.serves("a"))
    scene.do(scene.call(scene.leader, "serve_transaction", "abort", act.writer))
    act.tell("refused", scene.play.now_ms)
    scene.finish()


def a_row_in_doubt_lands_before_its_delete(scene: Scene) -> None:
    scene.publish("plain", "a")  # the end is known from now on
    scene.history.act({"doubtful": "a"}, scene.play.now_ms)
    first = scene.first.reigns["a"]
    usual, write = scene.hbase.delay_ms, first._write

    async def slow(region: str, change: Callable[[], object]) -> None:
        """The put takes longer than its sender waits, and its delete longer still."""
        delay_ms = 1_500.0 if "delete_row" in change.__code__.co_names else 700.0

        def once(**_: object) -> float:
            scene.hbase.delay_ms = usual  # type: ignore[method-assign]
            return delay_ms

        scene.hbase.delay_ms = once  # type: ignore[method-assign]
        await write(region, change)

    first._write = slow  # type: ignore[method-assign]
    with pytest.raises(CallError):
        scene.do(scene.call(scene.leader, "serve", "publish", "a", "doubtful", patience_ms=250))
    scene.pass_ms(200)
    seen: list[str] = []
    for _ in range(6):
        with suppress(CallError):
            page = scene.do(scene.call(scene.leader, "serve", "raw", "a", 0, patience_ms=600))
            seen = [text for _, _, texts in page.rows for text in texts]
    first._write = write  # type: ignore[method-assign]
    scene.pass_ms(2_000)
    assert scene.texts(scene.leader, "a", "raw")[: len(seen)] == seen
    scene.finish()


def a_request_is_repeated_the_short_way(scene: Scene) -> None:
    """The first try is placed by two owners and not decided; by the second one owner has both topics."""
    texts = {"a": "one", "b": "two"}
    act = scene.history.act({text: topic for topic, text in texts.items()}, scene.play.now_ms)
    goes_on = scene.play.answer()
    decide = scene.leader._decide

    async def late(writer: int, placed: bool) -> tuple[str, int]:
        await goes_on
        return await decide(writer, placed)

    scene.leader._decide = late  # type: ignore[method-assign]
    first_try = scene.begin(scene.call(scene.leader, "serve_one_shot", texts, "r"))
    scene.wait(lambda: all(scene.hbase.rows[topic] for topic in texts))
    scene.pass_ms(20)
    assert scene.leader.leader is not None
    scene.do(scene.leader.leader.move("b", scene.first.instance))
    scene.wait(lambda: scene.serves("b"))
    again = scene.do(scene.call(scene.leader, "serve_one_shot", texts, "r"))
    goes_on.give()
    scene.wait(lambda: first_try.done)
    act.tell("done", scene.play.now_ms)
    assert first_try._value == again
    scene.finish()


def a_reader_comes_while_a_question_is_under_way(scene: Scene) -> None:
    """What it knows, the answer to that question does not: a commit was decided in between."""
    act = scene.transaction(b="early")
    goes_on = scene.play.answer()
    ask = scene.second.ask_leader
    questions: list[str] = []

    async def slow(call: str, *arguments: object) -> object:
        answer = await ask(call, *arguments)
        questions.append(call)
        if questions == ["view"]:
            await goes_on
        return answer

    async def nothing(*_: object) -> None:
        """Neither beats nor outcomes bring a view."""

    scene.committed(scene.leader, "b")  # which has its first view then
    scene.second.ask_leader = slow  # type: ignore[method-assign]
    scene.second.hear_view = scene.second._beat_once = nothing  # type: ignore[method-assign, assignment]
    scene.begin(scene.call(scene.leader, "serve", "committed", "b", 0))
    scene.wait(lambda: bool(questions))
    scene.do(scene.call(scene.leader, "commit", act.writer, {}))
    act.tell("done", scene.play.now_ms)
    reader = scene.begin(scene.call(scene.leader, "serve", "committed", "b", 0))
    scene.pass_ms(20)
    goes_on.give()
    scene.wait(lambda: reader.done)
    assert reader._value is not None
    assert reader._value.held_by is None, "held up by what was answered before it came"


RULES: tuple[tuple[Callable[[Scene], None], Fault], ...] = (
    (a_write_hangs_until_after_its_owner_s_end_was_read, faults.fences_come_after_reading),
    (a_write_hangs_until_after_its_owner_s_end_was_read, faults.nothing_is_fenced),
    (a_last_row_is_dropped_before_a_clock_behind_takes_over, faults.dropped_places_are_given_out_again),
    (a_place_comes_after_the_roll_back, faults.late_places_are_taken),
    (a_shard_goes_to_a_member_with_an_old_view, faults.views_outlive_reigns),
    (a_shard_is_released_and_another_one_moves, faults.reigns_are_taken_up_again),
    (a_request_is_repeated_the_short_way, faults.requests_are_looked_at_in_the_intent_alone),
    (a_reader_comes_while_a_question_is_under_way, faults.questions_under_way_are_shared),
    (a_row_in_doubt_lands_before_its_delete, faults.deletes_in_doubt_are_forgotten),
)


@pytest.mark.parametrize("play", dict.fromkeys(play for play, _ in RULES), ids=lambda play: play.__name__)
def test_a_scene_keeps_its_promises(play: Callable[[Scene], None]) -> None:
    play(Scene())


@pytest.mark.parametrize(("play", "fault"), RULES, ids=lambda each: each.__name__)
def test_a_scene_misses_the_rule_that_is_left_out(play: Callable[[Scene], None], fault: Fault) -> None:
    scene = Scene()
    with fault(), pytest.raises(AssertionError):
        play(scene)


def test_a_run_that_rests_for_less_than_clocks_are_apart_is_dropped_too_early() -> None:
    """The limit of the rule for runs: nobody notes where the topics of a dead member's one-shots end."""
    scene = Scene()
    scene.first.clock = Clock(scene.play, 1.0, 3 * int(RUN_RESTS_MS))
    scene.dies(scene.first, scene.first, "ask_leader", "decide_one_shot")
    scene.begin(scene.call(scene.leader, "serve_one_shot", {"a": "undecided"}, "r"))
    scene.wait(lambda: scene.serves("a", but=scene.first) and scene.ended(scene.first))
    scene.pass_ms(RUN_RESTS_MS + 1_000)
    for region in DATA_REGIONS:
        scene.hbase.clean(region, scene.world._may_drop)
    scene.publish("next", "a")
    assert (
        scene.hbase.end_of("a") < scene.first.clock.wall_ms() - RUN_RESTS_MS
    )  # below a place that readers may have passed


def test_a_run_is_not_dropped_before_it_has_rested() -> None:
    scene = Scene()
    scene.dies(scene.first, scene.first, "ask_leader", "decide_one_shot")
    scene.begin(scene.call(scene.leader, "serve_one_shot", {"a": "undecided"}, "r"))
    scene.wait(lambda: scene.ended(scene.first))
    scene.pass_ms(RUN_RESTS_MS - 1_000)
    assert scene.world.droppable == (frozenset(), ())
    scene.pass_ms(2_000)
    assert scene.world.droppable[1] != ()
