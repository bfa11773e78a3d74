"""Backups: consistent copies of the whole store, made while it runs, under `backups/` in the data directory.

A backup is a data directory itself. How to put one back is told in docs/operations/backup.md.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from basalt.api.bodies.operations import Backup
from basalt.catalog.catalog import check_name
from basalt.errors import ConflictError, InputError, StoreError
from basalt_engine.clock import Clock
from basalt_engine.table import Store

FOLDER = "backups"


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
        check_name(name, "name")
        if self._folder is None:
            raise InputError(
                f"the {self._store.kind} store has no data directory to keep backups in",
                hint="start the server with --data and store.kind rocks",
            )
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._create, self._folder, name)

    async def list(self) -> list[Backup]:
        """All backups, the oldest first."""
        return [] if self._folder is None else await asyncio.to_thread(_all, self._folder)

    def _create(self, folder: Path, name: str) -> Backup:
        target = folder / name
        if target.exists():
            raise ConflictError(
                f"there is a backup {name} already, in {target}", field="name", hint="choose another name, or remove it"
            )
        try:
            for left_by_a_crash in folder.glob(f".{name}.*"):
                shutil.rmtree(left_by_a_crash, ignore_errors=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be read: {error.strerror}") from error
        self._store.checkpoint(target)
        try:
            os.utime(target, ns=(self._clock.now_ms() * 1_000_000,) * 2)
            return _described(target)
        except OSError as error:
            raise StoreError(f"the backup {target} was made, but cannot be read: {error.strerror}") from error


def _all(folder: Path) -> list[Backup]:
    if not folder.is_dir():
        return []
    found = [_described(path) for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(found, key=lambda backup: (backup.created_ms, backup.name))


def _described(path: Path) -> Backup:
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    created_ms = path.stat().st_mtime_ns // 1_000_000
    return Backup(name=path.name, path=str(path), created_ms=created_ms, files=len(sizes), bytes=sum(sizes))
