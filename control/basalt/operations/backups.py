"""Backups: consistent copies of the whole store, made while it runs, under `backups/` in the data directory.

A backup is a data directory itself. How to put one back is told in docs/operations/backup.md.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from basalt.api.bodies.operations import Backup, BackupPage, MadeBackup
from basalt.catalog.catalog import check_name
from basalt.errors import BackupNotFoundError, ConflictError, CorruptionError, InputError, StoreError
from basalt_engine.clock import Clock
from basalt_engine.table import Store

FOLDER = "backups"
HIDDEN = "."  # what a name never begins with: half of a backup, made or deleted

T = TypeVar("T")


class Backups:
    """The backups of one store; there can be none of a store that has no directory."""

    def __init__(self, store: Store, clock: Clock, data_directory: Path | None) -> None:
        self._store = store
        self._clock = clock
        self._folder = None if data_directory is None else data_directory / FOLDER
        self._one_at_a_time = asyncio.Lock()

    async def create(self, name: str) -> Backup:
        """Copy the store as it is now; returns once the copy is on the disk.

        `ConflictError` when there is a backup of this name, `DiskFullError` when there is no room; then there is no new
        one.
        """
        return await self._with(name, self._create)

    async def plan(self, name: str) -> MadeBackup:
        """The backup that `create` would make; errors as it has them, but for the disk's."""
        return await self._with(name, _plan)

    async def list(self) -> list[Backup]:
        """All backups, the oldest first."""
        return [] if self._folder is None else await asyncio.to_thread(_all, self._folder)

    async def verify(self, name: str, start: str | None) -> BackupPage:
        """Compare a page of a backup's files, from the one named `start` on, with what the store wrote."""
        return await self._with(name, lambda path: _verified(_existing(path), start))

    async def delete(self, name: str) -> Backup:
        """Delete a backup, and tell what it was. Once its name is gone a crash does not bring it back."""
        return await self._with(name, _delete)

    async def _with(self, name: str, act: Callable[[Path], T]) -> T:
        """Act on the backup's path, while nothing else happens to any backup."""
        check_name(name, "name")
        if self._folder is None:
            raise InputError(
                f"the {self._store.kind} store has no data directory to keep backups in",
                hint="start the server with --data and store.kind rocks",
            )
        async with self._one_at_a_time:
            return await asyncio.to_thread(act, self._folder / name)

    def _create(self, target: Path) -> Backup:
        _plan(target)
        _sweep(target.parent)
        _sweep(target.parents[1], f"{HIDDEN}partial-*")  # with a folder of backups on another file system
        self._store.checkpoint(target)
        try:
            os.utime(target, ns=(self._clock.now_ms() * 1_000_000,) * 2)
            return _described(target)
        except OSError as error:
            raise StoreError(f"the backup {target} was made, but cannot be read: {error.strerror}") from error


def _plan(target: Path) -> MadeBackup:
    if target.exists():
        raise ConflictError(
            f"there is a backup {target.name} already, in {target}", field="name",
            hint="choose another name, or delete it",
        )  # fmt: skip
    return MadeBackup(target.name, str(target), 0, 0, 0, dry_run=True)


def _delete(path: Path) -> Backup:
    try:
        deleted = _described(_existing(path))
        _sweep(path.parent)
        # At once, and then file by file: nobody finds half of it under its name. Names may be as long as a file system allows.
        going = path.with_name(f"{HIDDEN}deleted")
        path.rename(going)
        shutil.rmtree(going)
    except OSError as error:
        raise StoreError(f"the backup {path} cannot be deleted: {error.strerror}") from error
    return deleted


def _verified(path: Path, start: str | None) -> BackupPage:
    from basalt_engine.stores.rocks.verification import Verification

    try:
        verification = Verification(path)
        page = verification.page(start)
    except CorruptionError as error:  # of the files that say which others there must be
        return BackupPage(path.name, 0, 0, 0, 0, (error.message,), None)
    return BackupPage(
        path.name,
        len(verification.files),
        verification.total_bytes,
        page.files,
        page.checked_bytes,
        page.faults,
        page.next,
    )


def _existing(path: Path) -> Path:
    if not path.is_dir():
        raise BackupNotFoundError(f"there is no backup {path.name}", field="name", hint="list those that there are")
    return path


def _sweep(folder: Path, pattern: str = f"{HIDDEN}*") -> None:
    """Remove what a crash left of backups that were being made or deleted."""
    try:
        for left_by_a_crash in folder.glob(pattern):
            shutil.rmtree(left_by_a_crash, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be read: {error.strerror}") from error


def _all(folder: Path) -> list[Backup]:
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        if path.is_dir() and not path.name.startswith(HIDDEN):
            try:
                found.append(_described(path))
            except FileNotFoundError:
                continue  # it is being deleted
    return sorted(found, key=lambda backup: (backup.created_ms, backup.name))


def _described(path: Path) -> Backup:
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    created_ms = path.stat().st_mtime_ns // 1_000_000
    return Backup(name=path.name, path=str(path), created_ms=created_ms, files=len(sizes), bytes=sum(sizes))
