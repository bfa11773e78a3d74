"""What a call waits for is noted for the one that set out to know it, and for nobody else."""

from __future__ import annotations

import asyncio

from basalt_engine.clock import STAGES, STAGES_MAX, Stage, Stages, stage


def test_a_block_is_a_stage_of_the_call_that_it_works_for_also_when_it_fails():
    async def call() -> Stages:
        STAGES.set(stages := Stages())
        with stage("read"):
            pass
        try:
            with stage("write"):
                raise ValueError
        except ValueError:
            pass
        return stages

    async def others() -> list[Stages]:
        with stage("nobody asked"):
            return list(await asyncio.gather(call(), call()))

    first, second = asyncio.run(others())
    assert [each.name for each in first.found] == [each.name for each in second.found] == ["read", "write"]
    assert all(first.began_ms <= each.start_ms <= each.stop_ms for each in first.found)


def test_stages_beyond_the_most_are_counted():
    stages = Stages()
    for number in range(STAGES_MAX + 3):
        stages.add("read", number, number + 1)
        stages.add_write(0, 1, 2, None)
    assert (len(stages.found), stages.left_out) == (STAGES_MAX * 3 // 2, STAGES_MAX + 2 * 3)


def test_a_call_waits_in_the_queue_until_the_write_that_it_shares_begins():
    stages, inside = Stages(), Stages()
    inside.add("hbase put", 11, 19)
    stages.add_write(3, 10, 20, inside)
    stages.add_write(21, 22, 23, None)
    assert stages.found == [
        Stage("queue", 3, 10), Stage("hbase put", 11, 19), Stage("write", 10, 20), Stage("queue", 21, 22), Stage("write", 22, 23),
    ]  # fmt: skip


def test_the_longest_kind_of_stage_is_told_first():
    stages = Stages()
    for each in (Stage("queue", 0, 3), Stage("read", 3, 10), Stage("write", 10, 20), Stage("read", 20, 27)):
        stages.add(*each)
    assert stages.told() == "read 14 ms, write 10 ms, queue 3 ms"
    assert Stages().told() == ""
