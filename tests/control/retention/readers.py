"""What readers of all kinds see of a topic, and what its tables hold."""

from __future__ import annotations

from typing import NamedTuple

from basalt.catalog.topics import TopicName
from basalt.messaging.read.log_reader import Fetch
from basalt.operations.scheduler import Run
from basalt_engine.keys import topic_prefix
from basalt_engine.snapshot import TransactionSnapshot
from tests.wiring import Wired

LIFETIME_MS = 3_600_000
HOUR_MS = 3_600_000
HIDDEN = ("rolled back", "invalid")


class Seen(NamedTuple):
    """Ids and payloads: of readers of committed messages, of each held snapshot, and of plain readers with states."""

    committed: list[tuple[bytes, bytes]]
    snapshots: list[list[tuple[bytes, bytes]]]
    plain: list[tuple[bytes, bytes, str]]


def messages_of(page: Fetch) -> list[tuple[bytes, bytes]]:
    return [
        (message_id, bytes(payload))
        for piece in page.slices
        for message_id, payload in zip(piece.ids(), piece.payloads(), strict=True)
    ]


async def seen(wired: Wired, title: TopicName, snapshots: list[TransactionSnapshot] | None = None) -> Seen:
    """What the topic shows to everybody."""
    held = [messages_of(await wired.messaging.fetch(title, None, True, snapshot=one)) for one in snapshots or []]
    committed = messages_of(await wired.messaging.fetch(title, None, True, committed=True))
    plain = messages_of(await wired.messaging.fetch(title, None, True))
    peeked = (await wired.services.peek.peek(title, None, True)).messages
    assert [(message.id, bytes(message.payload)) for message in peeked] == plain
    return Seen(committed, held, [(message.id, bytes(message.payload), message.state) for message in peeked])


def rows(wired: Wired, table: str, title: TopicName | None = None) -> list[bytes]:
    """The keys of all rows of a table, or of one topic's in it, whatever their generation and bucket."""
    keys = [row.key for row in wired.store.table(table).scan(b"", None)]
    return keys if title is None else [key for key in keys if key[1:].startswith(topic_prefix(*title))]


def entries(wired: Wired, kind: str) -> list[str]:
    """The names of the system entries of a kind."""
    return [name for name, _ in wired.services.system.scan(kind)]


async def run(wired: Wired, job: str = "retention") -> Run:
    """Run a job; it must not fail."""
    done = await wired.services.scheduler.run_now(job)
    assert done.outcome == "ok", done
    return done


def lose_log(wired: Wired) -> None:
    """As after a write that failed: the manager knows nothing until it has read its log again."""
    wired.transactions.manager.lost()
