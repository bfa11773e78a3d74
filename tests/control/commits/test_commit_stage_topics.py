"""What a commit does to topics: the work that it takes where there are many of both topics and checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.catalog.topics import topic_name
from basalt.messaging.log.staged_payloads import StagedPayloads
from basalt.messaging.log.staged_writers import StagedWriters
from basalt_engine.stores.memory import MemoryStore
from tests.wiring import Wired

MANY = 40

pytestmark = pytest.mark.anyio


async def test_a_commit_looks_only_at_checkpoints_and_topics_that_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint stores in a topic of its own: of 41 x 40 pairs 40 exist."""
    shop = await Wired.start(MemoryStore(atomic=True))
    opened = await shop.transactions.begin()
    for number in range(MANY):
        title = topic_name("shop", f"t{number}")
        await shop.topics.create(title, {})
        opened = await shop.transactions.checkpoint(opened.id)
        await shop.store_aside(title, f"m{number}", tx=opened)
    calls: list[str] = []
    for kind, name in ((StagedPayloads, "unpublished"), (StagedWriters, "forget")):
        monkeypatch.setattr(kind, name, _counted(getattr(kind, name), name, calls))
    await shop.transactions.commit(opened.id)
    assert calls.count("unpublished") <= 2 * MANY
    assert calls.count("forget") <= 2 * MANY
    for number in range(MANY):
        assert await shop.read(topic_name("shop", f"t{number}"), committed=True) == [f"m{number}"]
    assert [await shop.topics.open(topic_name("shop", f"t{number}")) for number in range(MANY)]
    assert not [log for log in shop.topics._open.values() if log.staged]


def _counted(method: Any, name: str, calls: list[str]) -> Any:
    def counted(*given: Any) -> Any:
        calls.append(name)
        return method(*given)

    return counted
