"""A log's rows a page at a time, and what they count."""

from __future__ import annotations

import pytest

from basalt.messaging.index import RowCount
from basalt.messaging.log import garbage_notes, stored_log
from basalt.messaging.log.garbage_notes import GarbageRange
from basalt.messaging.log.noted_writers import NotedWriters
from basalt.messaging.log.stored_log import counted, pages
from basalt.runtime.group_commit import Group
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import MessageRow, MessageTable, Reference
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.records import RecordKind, encode
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def test_rows_come_in_pages_of_so_many_or_so_many_bytes(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    for number in range(7):
        await shop.publish(A, f"{number}" * (1 if number < 4 else 2_000))
        shop.clock.advance(1)
    topic = await shop.topics.get(A)
    monkeypatch.setattr(stored_log, "PAGE_ROWS", 3)
    monkeypatch.setattr(stored_log, "PAGE_BYTES", 1_000)
    call, messages = StoreCalls(shop.store), MessageTable(shop.store.table("message"))
    assert [len(page) async for page in pages(call, messages, topic.read_keys)] == [3, 2, 1, 1]
    stop = position(shop.clock.now_ms() - 6, 0)
    assert [len(page) async for page in pages(call, messages, topic.read_keys, b"", stop)] == [1]


async def test_a_page_of_compressed_rows_is_as_long_as_they_are_unpacked(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    await shop.topics.update(A, {"compression": "zstd"})
    for _ in range(5):
        await shop.publish(A, "x" * 10_000)
        shop.clock.advance(1)
    topic = await shop.topics.get(A)
    monkeypatch.setattr(stored_log, "PAGE_BYTES", 20_000)
    call, messages = StoreCalls(shop.store), MessageTable(shop.store.table("message"))
    assert [len(page) async for page in pages(call, messages, topic.read_keys)] == [2, 2, 1]


@pytest.mark.parametrize("page_rows", [1, 256])
async def test_a_reference_counts_what_it_refers_to(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, page_rows: int
) -> None:
    monkeypatch.setattr(stored_log, "PAGE_ROWS", page_rows)
    topic = await shop.topics.get(A)
    table = shop.store.table("payload")
    for where, batch in ((position(1, 0), encode([b"x"])), (position(2, 1), encode([b"yy", b"zzz"]))):
        table.write([PayloadTable.put(topic.keys, 7, PayloadRow(where, batch))])
    rows = [
        MessageRow(position(4, 0), None, encode([b"plain"])),
        MessageRow(position(5, 0), 7, None, Reference(position(1, 0), position(2, 1), 3)),
        MessageRow(position(6, 0), None, encode([b"mark"], kind=RecordKind.WATERMARK)),
    ]
    found = [
        (position_fields(row.position)[0], content)
        async for row, content in counted(StoreCalls(shop.store), PayloadTable(table), topic, rows)
    ]
    assert found == [
        (4, RowCount(4, 1, 5)),
        (5, RowCount(5, 1, 1)),
        (5, RowCount(5, 2, 5)),
        (6, RowCount(6, 0, 0)),
    ]


async def test_a_note_about_the_rest_takes_the_place_of_one_about_more(shop: Wired):
    noted = NotedWriters()
    whole = GarbageRange("shop", "orders", 1, [7], position(1, 0).hex(), position(9, 0).hex())

    def note(group: Group) -> None:
        garbage_notes.note(group, noted, A, 1, [7], position(1, 0), position(9, 0))

    await shop.services.writer.each[0].run(note)
    assert garbage_notes.read(shop.services.system, 9) == [whole]
    await shop.services.writer.each[0].run(lambda group: garbage_notes.remove(group, noted, whole, position(5, 0)))
    assert garbage_notes.read(shop.services.system, 9) == [whole.left(position(5, 0))]
    await shop.services.writer.each[0].run(lambda group: garbage_notes.remove(group, noted, whole.left(position(5, 0))))
    assert garbage_notes.read(shop.services.system, 9) == []
