"""The reset of a test server: everything is forgotten but which numbers were given out."""

from __future__ import annotations

import pytest

from basalt.commits.owning.owner import Owner
from basalt.errors import ConflictError, SessionNotFoundError, TransactionNotFoundError
from basalt.settings import Settings
from basalt.settings.tree import TransactionSettings
from basalt.transactions.rules.outcomes import RememberedOutcomes
from basalt.transactions.rules.transaction import TransactionLimits
from basalt_engine.stores.memory import MemoryStore
from tests.wiring import A, Wired


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_it_is_refused_where_it_is_not_allowed(scene):
    with pytest.raises(ConflictError, match="keeps its transactions") as refused:
        scene.state.reset(scene.now_ms)
    assert "transactions.allow_reset" in refused.value.hint


def test_everything_is_gone_and_pointers_keep_rising(scene_with):
    scene = scene_with(TransactionLimits(allow_reset=True))
    session = scene.open()
    committed, opened, failed = scene.begin_in(session, version=3), scene.begin(request_id="r"), scene.begin()
    scene.change(committed, b"row")
    scene.commit(committed)
    scene.invalidate(failed)
    before = scene.state.image()
    scene.done(scene.state.reset(scene.now_ms))
    after = scene.state.image()
    assert (after.last_pointer, after.read_pointer) == (before.last_pointer, before.read_pointer)
    assert (after.transactions, after.committed, after.requests, after.sessions) == ((),) * 4
    assert after.outcomes == RememberedOutcomes()
    assert (scene.state.in_progress_count, scene.state.next_deadline_ms(), len(scene.state.invalid)) == (0, None, 0)
    assert after.invalid_version > before.invalid_version, "a client's copy of the list is not taken for the new one"
    for old in (committed, opened, failed):
        with pytest.raises(TransactionNotFoundError):
            scene.state.outcome(old.id)
    with pytest.raises(SessionNotFoundError):
        scene.begin_in(session)
    assert scene.open().epoch == 2, "zombies from before stay fenced"
    again = scene.begin(request_id="r")
    assert again.id > opened.id
    assert scene.replayed().image() == scene.state.image()


@pytest.mark.anyio
@pytest.mark.parametrize("atomic", [True, False])
async def test_a_server_goes_on_after_it(atomic):
    settings = Settings(transactions=TransactionSettings(allow_reset=True))
    wired = await Wired.start(MemoryStore(atomic=atomic), settings=settings)
    await wired.topics.create(A, {})
    opened = await wired.transactions.begin()
    await wired.messaging.store(A, [b"stored"], opened.write_pointer)
    await wired.transactions.sessions.reset()
    with pytest.raises(TransactionNotFoundError):
        await wired.transactions.commit(opened.id)
    await wired.messaging.publish(A, [b"after"])
    assert await wired.page_through(A, 10, committed=True) == ["after"]
    assert await wired.transactions.list() == []
    again = await wired.restarted()
    assert again.transactions.state.last_pointer >= opened.id
    assert await again.transactions.list() == []
    await again.services.close()


@pytest.mark.anyio
async def test_topics_are_told_of_everything_that_was_open(monkeypatch: pytest.MonkeyPatch):
    told: list[int] = []
    monkeypatch.setattr(Owner, "end", lambda _, end: told.append(end.transaction.id))
    settings = Settings(transactions=TransactionSettings(allow_reset=True))
    wired = await Wired.start(MemoryStore(atomic=True), settings=settings)
    await wired.topics.create(A, {})
    opened = [await wired.transactions.begin() for _ in range(2)]
    for each in opened:
        await wired.store_aside(A, "stored", tx=each)
    await wired.transactions.sessions.reset()
    assert told == [each.id for each in opened]
    await wired.services.close()
