"""Pruning where retention itself removes the rows: a writer goes once no note about it is left, and not before."""

from __future__ import annotations

import pytest

from basalt.catalog.topics import TopicName
from basalt.pruning.prune import read_notes
from basalt.pruning.rule import Cause
from basalt.transactions.manager import external_writers
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS, failed_writer
from tests.wiring import A, B, Wired, texts

pytestmark = pytest.mark.anyio

AFTER_ITS_LIFE_MS = LIFETIME_MS + SKEW_MS + 1


async def prune(wired: Wired) -> tuple[int, ...]:
    return (await wired.services.pruner.run()).pruned


async def test_a_writer_goes_when_retention_has_removed_its_rows_and_its_life_is_over(embedded: Wired):
    writer = await failed_writer(embedded)
    survey = await embedded.services.pruner.survey()
    assert survey.certificate.cause(writer) is Cause.LIFETIME
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    survey = await embedded.services.pruner.survey()
    assert [hold.cause for hold in survey.certificate.holds(writer)] == [Cause.NOTE]
    assert "shop:orders" in survey.certificate.holds(writer)[0].detail
    assert await prune(embedded) == ()
    await embedded.services.scheduler.run_now("retention")
    assert await prune(embedded) == (writer,)
    assert embedded.transactions.manager.current().invalid.pointers == ()


async def test_a_writer_whose_rows_are_gone_waits_for_the_end_of_its_life(embedded: Wired):
    writer = await failed_writer(embedded)
    await embedded.services.scheduler.run_now("retention")
    embedded.clock.advance(AFTER_ITS_LIFE_MS - 1)
    assert await prune(embedded) == ()
    embedded.clock.advance(1)
    assert await prune(embedded) == (writer,)


@pytest.mark.parametrize("title", [A, B], ids=["drop", "retain"])
async def test_no_reader_sees_a_row_of_a_writer_that_was_forgotten(embedded: Wired, title: TopicName):
    tx = await embedded.transactions.begin()
    await embedded.publish(title, "published", tx=tx)
    await embedded.store_aside(title, "stored", tx=tx)
    await embedded.transactions.invalidate(tx.id)
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    await embedded.services.scheduler.run_now("retention")
    assert await prune(embedded) == (tx.id,)
    again = await embedded.restarted(cached=False)
    assert texts(await again.messaging.fetch(title, None, True, committed=True)) == []
    plain = texts(await again.messaging.fetch(title, None, True))
    assert plain == ([] if title is A else ["published"])


async def test_all_pointers_of_a_transaction_go(embedded: Wired):
    tx = await embedded.transactions.begin()
    tx = await embedded.transactions.checkpoint(tx.id)
    await embedded.publish(A, "lost", tx=tx)
    await embedded.transactions.invalidate(tx.id)
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    assert await prune(embedded) == ()
    await embedded.services.scheduler.run_now("retention")
    assert await prune(embedded) == tx.pointers


async def test_a_writer_of_a_deleted_topic_goes_when_its_note_does(embedded: Wired):
    writer = await failed_writer(embedded)
    await embedded.topics.delete(A)
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    assert await prune(embedded) == ()
    await embedded.services.scheduler.run_now("retention")
    assert await prune(embedded) == (writer,)


async def test_the_job_prunes_and_reports(embedded: Wired):
    run = await embedded.services.scheduler.run_now("prune")
    assert (run.outcome, run.report) == ("ok", {})
    await failed_writer(embedded)
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    await embedded.services.scheduler.run_now("retention")
    run = await embedded.services.scheduler.run_now("prune")
    assert run.report == {"pruned": 1, "held": 0, "waiting": 0}


async def test_there_is_no_snapshot_job_where_nobody_reads_it(embedded: Wired):
    names = {job.name for job in await embedded.services.scheduler.jobs()}
    assert "prune" in names
    assert "snapshot" not in names
    assert embedded.services.system.get("snapshot", "latest") is None


async def noted(wired: Wired) -> list[int]:
    return sorted(external_writers(wired.services.system))


async def test_a_writer_that_also_wrote_outside_basalt_is_kept_for_nobody_here_knows_its_rows(embedded: Wired):
    tx = await embedded.transactions.begin(external_writes=True)
    tx = await embedded.transactions.checkpoint(tx.id)
    plain = await failed_writer(embedded)
    await embedded.transactions.invalidate(tx.id)
    assert await noted(embedded) == list(tx.pointers)
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    await embedded.services.scheduler.run_now("retention")
    assert await prune(embedded) == (plain,)
    survey = await embedded.services.pruner.survey()
    assert [hold.cause for hold in survey.certificate.holds(tx.id)] == [Cause.EXTERNAL_WRITES]
    assert await noted(embedded) == list(tx.pointers)


async def test_one_that_timed_out_is_noted_as_well(embedded: Wired):
    tx = await embedded.transactions.begin(external_writes=True, timeout_ms=1_000)
    embedded.clock.advance(2_000)
    await embedded.transactions.expire()
    assert await noted(embedded) == [tx.id]


async def test_its_note_goes_some_time_after_it_has_left_the_list(embedded: Wired):
    tx = await embedded.transactions.begin(external_writes=True)
    await embedded.transactions.invalidate(tx.id)
    await embedded.transactions.abort(tx.id)
    await prune(embedded)
    assert await noted(embedded) == [tx.id]
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    await prune(embedded)
    assert await noted(embedded) == []


async def test_an_operator_may_let_such_writers_go(embedded: Wired):
    tx = await embedded.transactions.begin(external_writes=True)
    await embedded.transactions.invalidate(tx.id)
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    embedded.services.pruner._forget_external_writers = True
    assert await prune(embedded) == (tx.id,)
    assert await noted(embedded) == []


async def test_who_looks_again_reads_no_note_again_and_finds_what_is_stored(embedded: Wired):
    pruner, reports = embedded.services.pruner, embedded.services.prune_reports
    for number in range(20):
        await failed_writer(embedded, None if number % 2 else A)
        shown = await reports.invalid(0, 100, None)
        assert (shown.invalid, (await reports.status()).invalid) == (number + 1, number + 1)
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    assert {each.cause for each in (await reports.invalid(0, 100, None)).writers} == {Cause.NOTE.value}
    await embedded.services.scheduler.run_now("retention")
    assert (await reports.status()).free == 20
    assert read_notes(embedded.services.system) == {}
    assert pruner.noted.reads == 1


async def test_a_run_goes_by_the_notes_as_they_are_stored(embedded: Wired):
    writer = await failed_writer(embedded)
    embedded.clock.advance(AFTER_ITS_LIFE_MS)
    await embedded.services.prune_reports.status()
    pruner = embedded.services.pruner
    pruner.noted._names = {}  # as if it had been told that the note is gone
    assert (await embedded.services.prune_reports.status()).free == 1
    assert await prune(embedded) == ()
    assert writer in embedded.transactions.manager.current().invalid.pointers
