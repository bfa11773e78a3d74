"""Restoring: a backup, verified, copied to the place of a data directory that no server has open."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from basalt_engine.clock import Clock
from basalt_engine.errors import CorruptionError, DataDirectoryError, DiskFullError
from basalt_engine.stores.rocks.damage import os_errors
from basalt_engine.stores.rocks.read_only import is_locked
from basalt_engine.stores.rocks.replacement import Replacement, copy_file
from basalt_engine.stores.rocks.store import SPARE_BYTES, RocksStore
from basalt_engine.stores.rocks.verification import Verification
from basalt_engine.system import FACTS, InstallationFacts, SystemTable

Advance = Callable[[int], None]  # is told of bytes that were verified or copied


class Restored(NamedTuple):
    """The outcome: how much was restored, and where the directory is that was in its place, if there was one."""

    files: int
    copied_bytes: int
    aside: Path | None


class Restore:
    """One restoring of a backup. Nothing is written before `run`."""

    def __init__(self, backup: Path, place: Path, *, new_installation: bool = False) -> None:
        """`DataDirectoryError` when the backup is no whole data directory, or that of a server that runs elsewhere."""
        self._backup = backup.absolute()
        self._place = place.absolute()
        self._new_installation = new_installation
        if not new_installation and self._is_of_a_running_server():
            raise DataDirectoryError(
                f"{self._backup} is a backup of a server that is running: with the same installation id in two servers,"
                " transactions of one could be taken for those of the other",
                hint="add --new-installation to try the backup beside it, or stop that server",
            )
        self._verification = Verification(self._backup)

    @property
    def total_bytes(self) -> int:
        """The bytes of all steps, as it is told to `advance`: the backup is verified, copied, and its copy verified."""
        return 3 * self._verification.total_bytes

    def verify(self, advance: Advance = lambda _bytes: None) -> None:
        """`CorruptionError` when the backup is not whole."""
        _verify(self._verification, advance)

    def run(self, clock: Clock, *, put_aside: bool, advance: Advance = lambda _bytes: None) -> Restored:
        """Verify the backup, copy it, verify the copy, and put it in its place.

        The place is as it was when this fails. `CorruptionError` when the backup is not whole, `DiskFullError`, and
        `DataDirectoryError` when something is in the place that may not be put aside.
        """
        self.verify(advance)
        with Replacement.begin(self._place, self._backup, put_aside=put_aside) as replacement:
            self._require_space()
            files, copied_bytes = self._copy(replacement.new, advance)
            _verify(Verification(replacement.new), advance)
            if self._new_installation:
                _rename_installation(replacement.new, clock)
            return Restored(files, copied_bytes, replacement.finish(clock.now_ms()))

    def _is_of_a_running_server(self) -> bool:
        folder = self._backup.parent
        return folder.name == "backups" and is_locked(folder.parent / "LOCK")

    def _require_space(self) -> None:
        with os_errors(self._place.parent):
            free_bytes = shutil.disk_usage(self._place.parent).free
        wanted_bytes = self._verification.total_bytes + SPARE_BYTES
        if free_bytes < wanted_bytes:
            raise DiskFullError(
                f"the backup takes {wanted_bytes} bytes, and the disk of {self._place.parent} has {free_bytes} left",
                hint="free some space, or restore to another disk",
            )

    def _copy(self, new: Path, advance: Advance) -> tuple[int, int]:
        files = copied_bytes = 0
        with os_errors(self._backup):
            (new / "rocks").mkdir(mode=0o700)
            sources = [*(self._backup / "rocks").iterdir(), self._backup / "SYNCED", self._backup / "FORMAT"]
            for source in sources:
                target = new / source.relative_to(self._backup)
                copy_file(source, target)
                size_bytes = target.stat().st_size
                files += 1
                copied_bytes += size_bytes
                advance(size_bytes)
        return files, copied_bytes


def _verify(verification: Verification, advance: Advance) -> None:
    faults: list[str] = []
    for page in verification.pages():
        faults += page.faults
        advance(page.checked_bytes)
    if faults:
        more = f", and {len(faults) - 1} more faults" if len(faults) > 1 else ""
        raise CorruptionError(f"{faults[0]}{more}", hint="restore another backup")


def _rename_installation(directory: Path, clock: Clock) -> None:
    store = RocksStore.open(directory)
    try:
        system = SystemTable(store.table(SystemTable.name))
        facts = FACTS.get(system)
        if facts is not None:
            FACTS.write(system, InstallationFacts.new(facts.buckets, clock))
    finally:
        store.close()
        (directory / "LOCK").unlink(missing_ok=True)
