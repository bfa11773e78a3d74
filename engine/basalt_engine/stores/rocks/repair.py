"""Repair of a damaged data directory: it shows what would be lost, and mends only when just that loss is accepted.

It works in a new directory beside the damaged one: large files that never change are hard links to the originals, all others
are copies. There it mends what it can, lets RocksDB recover, and verifies the result, so that what it shows is what was
tried. The mended directory then takes the place of the damaged one, which is put aside as it is.

What can be mended: FORMAT and CURRENT, which say nothing that is not known elsewhere; SYNCED, with which the proof goes that the
end of the history is there; and logs that are cut short, damaged or gone: with all that was written after the first damage.
A history with a hole in it is never made. Damaged table and blob files, and a damaged manifest, need a backup.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from basalt_engine.clock import Clock
from basalt_engine.errors import CorruptionError, DataDirectoryError, InputError
from basalt_engine.stores.rocks.damage import RESTORE, check_log, os_errors
from basalt_engine.stores.rocks.data_directory import read_format, write_format
from basalt_engine.stores.rocks.database import CACHE_BYTES, Database, RocksOptions
from basalt_engine.stores.rocks.manifest import Needs, current_manifest, log_records, read_manifest
from basalt_engine.stores.rocks.replacement import Replacement, copy_file
from basalt_engine.stores.rocks.store import RocksStore, SyncedFile, create_synced_file, log_number
from basalt_engine.stores.rocks.verification import FAULTS_MAX, ROWS, Verification, fault_of

NOTHING = "nothing"  # in the words of a loss
_SEQUENCE_BYTES, _HEAD_BYTES = (
    8,
    12,
)  # a log's record begins with the number of its first change, and how many there are
_LINKED = (".sst", ".blob")

Advance = Callable[[int], None]  # is told of bytes that were verified


class Diagnosis(NamedTuple):
    """The faults of a directory, and the words for what is lost when they are mended; None where only a backup helps."""

    faults: tuple[str, ...]
    loss: str | None


class Logs(NamedTuple):
    """The logs that can be used, and up to which byte; the one with the first damage, and the bytes that are lost with it."""

    kept: dict[Path, int]
    cut: Path | None
    lost_bytes: int
    newest: Path


class Repair:
    """One repair of one directory. Nothing in it is changed before `mend`, and nothing is deleted by it."""

    def __init__(self, directory: Path) -> None:
        """`DataDirectoryError` when there is no directory."""
        if not directory.is_dir():
            raise DataDirectoryError(f"{directory} is not a directory", hint="name the data directory that is damaged")
        self._directory = directory.resolve()
        self._database = self._directory / "rocks"
        self._faults: list[str] = []
        self._losses: list[str] = []

    def diagnose(self, advance: Advance = lambda _bytes: None) -> Diagnosis:
        """Find the faults, and try the repair aside. `DataDirectoryError` when a server has the directory open."""
        with Replacement.begin(self._directory, self._directory, put_aside=True) as replacement:
            return self._try(replacement.new, advance)

    def mend(self, accepted: str, clock: Clock, advance: Advance = lambda _bytes: None) -> Path:
        """Repair it, and return where the damaged directory is then.

        `InputError` when the words are not those of the loss, or there is nothing to repair; `CorruptionError` when it is
        beyond repair. Then nothing was changed.
        """
        with Replacement.begin(self._directory, self._directory, put_aside=True) as replacement:
            found = self._try(replacement.new, advance)
            if not found.faults:
                raise InputError(f"{self._directory} is whole", hint="start the server")
            if found.loss is None:
                raise CorruptionError(found.faults[0], hint=RESTORE)
            if accepted != found.loss:
                raise InputError(
                    f"what would be lost is {found.loss!r}, not {accepted!r}", hint="accept the loss in these words"
                )
            aside = replacement.finish(clock.now_ms())
            assert aside is not None, "the damaged directory is there"
            return aside

    def _try(self, new: Path, advance: Advance) -> Diagnosis:
        """Build the mended directory. Whole ones are found to be whole before anything is built."""
        self._faults, self._losses = [], []
        try:
            self._mend(new, advance)
        except CorruptionError as error:
            if error.message not in self._faults:
                self._faults.append(error.message)
            return Diagnosis(tuple(self._faults[:FAULTS_MAX]), None)
        return Diagnosis(tuple(self._faults[:FAULTS_MAX]), "; ".join(self._losses) or NOTHING)

    def _mend(self, new: Path, advance: Advance) -> None:
        if not self._database.is_dir():
            raise CorruptionError(f"{self._database} is missing")
        self._look_at_format()
        synced = self._marks()
        manifest = self._manifest(synced)
        needs = read_manifest(manifest)
        self._require_files(needs, advance)
        logs = self._logs(synced, needs)
        sequence = _last_change(logs, needs)
        if not self._faults:
            return
        self._link(new, manifest, logs)
        self._recover(new)
        if logs.cut is not None and logs.lost_bytes:
            lost = 0 if synced is None else synced.marks.sequence - sequence
            changes = "all changes" if lost < 1 else "the last change" if lost == 1 else f"the last {lost:,} changes"
            self._losses.append(
                f"{changes} from byte {logs.kept.get(logs.cut, 0):,} of {logs.cut.name} on ({logs.lost_bytes:,} bytes)"
            )

    def _look_at_format(self) -> None:
        try:
            with os_errors(self._directory / "FORMAT"):
                initialised = read_format(self._directory / "FORMAT")
        except CorruptionError as error:
            self._faults.append(error.message)
            return
        if not initialised:
            raise DataDirectoryError(
                f"{self._directory} was never complete", hint="start a server with it, which goes on with creating it"
            )

    def _marks(self) -> SyncedFile | None:
        try:
            return SyncedFile.load(self._directory / "SYNCED", self._database)
        except CorruptionError as error:
            self._faults.append(error.message)
            self._losses.append("the proof that the newest writes are there")
            return None

    def _manifest(self, synced: SyncedFile | None) -> Path:
        """The manifest in force. It must be whole as far as it was on the disk: nothing else knows the files."""
        known = "" if synced is None else synced.marks.manifest
        try:
            manifest = current_manifest(self._database)
            if log_number(manifest.name) < log_number(known):
                raise CorruptionError(f"{self._database / 'CURRENT'} names {manifest.name}, but {known} is newer")
        except CorruptionError as error:
            self._faults.append(error.message)
            found = [path for path in self._database.glob("MANIFEST-*") if log_number(path.name) >= log_number(known)]
            if len(found) != 1:
                raise CorruptionError(
                    f"which manifest counts is not known: {self._database} has {len(found)}"
                ) from None
            manifest = found[0]
        check_log(manifest, synced.marks.manifest_bytes if synced is not None and manifest.name == known else 0)
        return manifest

    def _require_files(self, needs: Needs, advance: Advance) -> None:
        """`CorruptionError` when a table or blob file is not as it was written."""
        damaged = []
        for file in needs.files:
            fault = fault_of(self._database, file)
            damaged += [] if fault is None else [fault]
            advance(file.size_bytes)
        self._faults += damaged
        if damaged:
            raise CorruptionError(damaged[-1])

    def _logs(self, synced: SyncedFile | None, needs: Needs) -> Logs:
        """The logs that can be used, up to the first damage."""
        marks = {} if synced is None else synced.marks.logs
        existing = {path.name for path in self._database.glob("*.log")}
        names = {*marks, *existing, *(f"{number:06d}.log" for number in needs.closed_logs)}
        newest = max(names, key=log_number, default="")
        logs = Logs({}, None, 0, self._database / newest)
        for name in sorted(names, key=log_number):
            path, synced_bytes = self._database / name, marks.get(name, 0)
            number = log_number(name)
            if number < needs.first_log or (
                name not in existing and name != newest and number not in needs.closed_logs
            ):
                continue  # RocksDB needs it no more
            size_bytes = path.stat().st_size if name in existing else synced_bytes
            if logs.cut is not None:
                logs = logs._replace(lost_bytes=logs.lost_bytes + max(size_bytes, synced_bytes))
                continue
            end, fault = _end_of(path, synced_bytes, must_be_whole=synced is None or number in needs.closed_logs)
            logs.kept[path] = end
            if fault is not None:
                self._faults.append(fault)
                logs = logs._replace(cut=path, lost_bytes=max(size_bytes, synced_bytes) - end)
        return logs

    def _link(self, new: Path, manifest: Path, logs: Logs) -> None:
        """Bring the database's files into the new directory."""
        with os_errors(new):
            (new / "rocks").mkdir(mode=0o700)
            for source in self._database.iterdir():
                target = new / "rocks" / source.name
                if source.suffix in _LINKED:
                    _link(source, target)
                elif source == manifest or logs.kept.get(source):
                    copy_file(source, target)
            for source, size_bytes in logs.kept.items():
                if size_bytes:
                    os.truncate(new / "rocks" / source.name, size_bytes)
            (new / "rocks" / "CURRENT").write_text(f"{manifest.name}\n")

    def _recover(self, new: Path) -> None:
        """Let RocksDB recover what is there, and prove that a server would start with it."""
        with os_errors(new):
            options = RocksOptions(new, CACHE_BYTES, verify_logs=False)
        database = Database(new / "rocks", options, create=False)
        sequence = database.sequence()
        database.close()
        write_format(new, initialised=True)
        create_synced_file(new / "SYNCED", new / "rocks", sequence).release()
        RocksStore.open(new).close()
        (new / "LOCK").unlink()
        faults = Verification(new).page(ROWS).faults
        if faults:
            raise CorruptionError(faults[0])


def _end_of(path: Path, synced_bytes: int, *, must_be_whole: bool) -> tuple[int, str | None]:
    """The end of a log's good records, and its fault in words. Behind what was synced a torn record is no fault."""
    if not path.exists():
        return 0, f"{path} is missing"
    try:
        end = check_log(path, synced_bytes)
    except CorruptionError as error:
        return check_log(path, 0), error.message
    torn_bytes = path.stat().st_size - end
    return end, f"{path} is damaged at byte {end}" if must_be_whole and torn_bytes else None


def _last_change(logs: Logs, needs: Needs) -> int:
    """The number of the last change that is left. `CorruptionError` when one before it is not: that would be a hole."""
    last = 0
    for path, size_bytes in logs.kept.items():
        for record in log_records(path.read_bytes()[:size_bytes] if size_bytes else b""):
            first = int.from_bytes(record[:_SEQUENCE_BYTES], "little")
            if last and first != last + 1:
                raise CorruptionError(f"{path} goes on with change {first}, but change {last + 1} is in no log")
            last = first + int.from_bytes(record[_SEQUENCE_BYTES:_HEAD_BYTES], "little") - 1
    behind = logs.cut is not None and logs.cut != logs.newest and not last
    if behind or (last and needs.sequence > last):
        raise CorruptionError(
            f"the logs are damaged from change {last + 1 if last else 'one'} on, and table files have later ones, up to"
            f" {needs.sequence}: what is left would have a hole"
        )
    return last or needs.sequence


def _link(source: Path, target: Path) -> None:
    """A hard link where there can be one, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        target.unlink(missing_ok=True)
        copy_file(source, target)
