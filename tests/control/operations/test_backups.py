"""Copies of a running store, and opening them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from basalt.errors import BackupNotFoundError, ConflictError, InputError, InvalidNameError
from basalt.operations.backups import Backups
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import DiskFullError
from basalt_engine.stores.rocks import RocksStore
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def opened(directory: Path) -> Wired:
    clock = ManualClock()
    services = await open_services(Settings(), directory, clock=clock)
    return Wired(services, clock, services.store)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Wired]:
    wired = await opened(tmp_path / "data")
    await wired.topics.create(A, {})
    yield wired
    await wired.services.close()


async def test_a_backup_is_a_data_directory_with_what_there_was_when_it_was_made(shop: Wired, tmp_path: Path):
    await shop.publish(A, "before")
    tx = await shop.transactions.begin(owner="open during the backup")
    made = await shop.services.backups.create("first")
    await shop.publish(A, "after")
    assert Path(made.path) == tmp_path / "data" / "backups" / "first"
    assert made.files > 0
    assert made.bytes > 0
    restored = await opened(Path(made.path))
    assert await restored.read(A) == ["before"]
    assert (await restored.transactions.get(tx.id)).owner == "open during the backup"
    await restored.services.close()


async def test_backups_are_listed_the_oldest_first_also_after_a_restart(shop: Wired, tmp_path: Path):
    for name in ("zebra", "ant"):
        await shop.services.backups.create(name)
        shop.clock.advance(60_000)
    listed = await shop.services.backups.list()
    assert [backup.name for backup in listed] == ["zebra", "ant"]
    assert listed[1].created_ms - listed[0].created_ms == 60_000
    await shop.services.close()
    again = await opened(tmp_path / "data")
    assert [backup.name for backup in await again.services.backups.list()] == ["zebra", "ant"]
    await again.services.close()


async def test_a_second_backup_of_the_same_name_is_refused_and_the_first_stays(shop: Wired):
    first = await shop.services.backups.create("nightly")
    with pytest.raises(ConflictError, match="nightly"):
        await shop.services.backups.create("nightly")
    assert await shop.services.backups.list() == [first]


async def test_backups_asked_for_at_once_are_made_one_after_the_other(shop: Wired):
    names = [f"b.{number}" for number in range(5)]
    made = await asyncio.gather(*map(shop.services.backups.create, names))
    assert [backup.name for backup in made] == names
    assert sorted(backup.name for backup in await shop.services.backups.list()) == names


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 256, "naïve", "a\0b"])
async def test_a_name_that_is_no_name_is_refused(shop: Wired, name: str):
    with pytest.raises(InvalidNameError):
        await shop.services.backups.create(name)
    assert await shop.services.backups.list() == []


async def test_what_a_crash_left_is_neither_listed_nor_in_the_way(shop: Wired, tmp_path: Path):
    left = tmp_path / "data" / "backups" / ".partial-x1"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    links = tmp_path / "data" / ".partial-x2"  # of a folder of backups on another file system
    links.mkdir()
    assert await shop.services.backups.list() == []
    await shop.services.backups.create("nightly")
    assert not left.exists()
    assert not links.exists()


async def test_a_name_may_be_as_long_as_a_file_system_allows(shop: Wired):
    assert (await shop.services.backups.create("n" * 255)).name == "n" * 255
    assert (await shop.services.backups.delete("n" * 255)).name == "n" * 255


async def test_a_backup_is_verified_page_by_page_and_a_flipped_byte_is_told(shop: Wired):
    await shop.publish(A, "kept")
    backups = shop.services.backups
    made = await backups.create("nightly")

    async def faults() -> list[str]:
        found, start = [], None
        while True:
            page = await backups.verify("nightly", start)
            found += page.faults
            start = page.next
            if start is None:
                return found

    assert await faults() == []
    table = next(Path(made.path).glob("rocks/*.sst"))
    whole = table.read_bytes()
    table.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    assert table.name in (await faults())[0]
    table.write_bytes(whole)
    (Path(made.path) / "rocks" / "CURRENT").unlink()
    assert [one.endswith("CURRENT is missing") for one in await faults()] == [True]


async def test_a_deleted_backup_is_gone_and_its_name_free(shop: Wired, tmp_path: Path):
    made = await shop.services.backups.create("nightly")
    assert await shop.services.backups.delete("nightly") == made
    assert await shop.services.backups.list() == []
    assert list((tmp_path / "data" / "backups").iterdir()) == []
    for act in (shop.services.backups.delete("nightly"), shop.services.backups.verify("nightly", None)):
        with pytest.raises(BackupNotFoundError, match="no backup nightly"):
            await act
    await shop.services.backups.create("nightly")


async def test_a_delete_that_a_crash_cut_is_finished_later(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    await shop.services.backups.create("nightly")
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_path, **_keywords: None)
        await shop.services.backups.delete("nightly")
    assert await shop.services.backups.list() == []
    await shop.services.backups.create("another")
    assert [path.name for path in (tmp_path / "data" / "backups").iterdir()] == ["another"]


@pytest.mark.parametrize("name", ["..", "a/../b", ".partial-x"])
async def test_no_call_leaves_the_folder_of_backups(shop: Wired, name: str):
    for act in (shop.services.backups.delete(name), shop.services.backups.verify(name, None)):
        with pytest.raises(InvalidNameError):
            await act
    assert await shop.read(A) == []


async def test_a_memory_store_says_that_it_has_no_directory():
    wired = await Wired.start()
    with pytest.raises(InputError, match="no data directory"):
        await wired.services.backups.create("nightly")
    assert await wired.services.backups.list() == []
    await wired.services.close()


async def test_a_full_disk_is_told_and_leaves_no_backup(tmp_path: Path):
    class FullStore(RocksStore):
        def checkpoint(self, directory: Path) -> None:
            raise DiskFullError(f"the disk of {directory} is full")

    store = FullStore.open(tmp_path / "data")
    backups = Backups(store, ManualClock(), tmp_path / "data")
    with pytest.raises(DiskFullError):
        await backups.create("nightly")
    assert await backups.list() == []
    store.close()
