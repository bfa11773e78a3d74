"""The data directory around the RocksDB database: its owner, its format, and the process that has it open.

FORMAT   written first; names the format, and whether the database was ever complete
LOCK     held by the process that has the directory open, and names it
SYNCED   how much of the database is known to be on the disk: see SyncedFile
SPACE    for a moment, when the disk was full
rocks/   RocksDB's files
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from crc32c import crc32c

from basalt_engine.errors import CorruptionError, DataDirectoryError
from basalt_engine.stores.rocks.damage import RESTORE, from_os, os_errors

FORMAT_VERSION = 1

_TITLE = "Basalt data directory"
MINE = {"FORMAT", "FORMAT.new", "LOCK", "SYNCED", "rocks"}
HARMLESS = {"FORMAT.new", "LOCK", "SPACE", "lost+found"}  # may lie in a directory that is as good as empty
_PID_BYTES_MAX = 20


class DataDirectory:
    """A data directory that this process has locked."""

    def __init__(self, path: Path, lock: int, initialised: bool) -> None:
        self.path = path
        self.initialised = initialised
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Lock the directory, created if need be.

        Raises `DataDirectoryError` when it is in use, not Basalt's, another user's or of a newer format, and
        `CorruptionError` when it is Basalt's and a part is missing or damaged.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(path)
            lock = lock_directory(path)
        except FileExistsError:
            raise DataDirectoryError(f"{path} is not a directory", hint="name another data directory") from None
        except OSError as error:
            raise from_os(error, path) from error
        directory = cls(path, lock, initialised=False)
        try:
            directory._check()
        except BaseException:
            directory.release()
            raise
        return directory

    @property
    def database(self) -> Path:
        """The directory of RocksDB's files."""
        return self.path / "rocks"

    @property
    def synced(self) -> Path:
        """The file of marks."""
        return self.path / "SYNCED"

    def _check(self) -> None:
        file = self.path / "FORMAT"
        with os_errors(file):
            _refuse_foreign(self.path)
            _refuse_other_owner(self.path)
            if file.exists():
                self.initialised = read_format(file)
            else:
                write_format(self.path, initialised=False)
            if not self.initialised:
                self.database.mkdir(mode=0o700, exist_ok=True)

    def finish(self) -> None:
        """Note that the database is complete; from now on a missing part of it is damage."""
        with os_errors(self.path / "FORMAT"):
            sync_directory(self.database)
            write_format(self.path, initialised=True)
        self.initialised = True

    def require_space(self, space_bytes: int) -> None:
        """`DiskFullError` unless the disk has this space left, and lets this user have it."""
        file = self.path / "SPACE"
        try:
            with os_errors(file), file.open("wb") as probe:
                os.posix_fallocate(probe.fileno(), 0, space_bytes)
        finally:
            file.unlink(missing_ok=True)

    def release(self) -> None:
        """Unlock the directory; releasing twice is fine."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def others_may(path: Path) -> str:
    """Tell the rights of other users of this machine in the directory, such as "read, enter"; empty where they have none.

    Files in it are made by the umask, and RocksDB's own are readable by all: the directory is what keeps others from payloads.
    """
    mode = path.stat().st_mode
    return ", ".join(word for word, bits in (("read", 0o044), ("write", 0o022), ("enter", 0o011)) if mode & bits)


def write_format(path: Path, *, initialised: bool) -> None:
    """Write and sync the FORMAT file of a directory."""
    try:
        created_by = f"basalt-mq {version('basalt-mq')}"
    except PackageNotFoundError:
        created_by = "basalt-mq from its sources"
    state = "initialised" if initialised else "being created"
    body = f"{_TITLE}\nformat: {FORMAT_VERSION}\nstore: rocks\ncreated by: {created_by}\nstate: {state}\n"
    new = path / "FORMAT.new"
    with new.open("w") as file:
        file.write(f"{body}crc32c: {crc32c(body.encode()):08x}\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path / "FORMAT")
    sync_directory(path)


def sync_directory(path: Path) -> None:
    """Put the directory's list of names on the disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_format(path: Path) -> bool:
    """Read whether the database was complete once; refuses a damaged file and a newer format."""
    text = path.read_bytes().decode("latin-1")
    body, _, checksum = text.rpartition("crc32c: ")
    fields = dict(line.partition(": ")[::2] for line in body.splitlines()[1:])
    number = fields.get("format", "")
    # A newer format may do without a checksum, so its number counts first.
    if text.startswith(_TITLE) and number.isdecimal() and int(number) > FORMAT_VERSION:
        raise DataDirectoryError(
            f"{path.parent} is in format {number} ({fields.get('created by')}); this program reads {FORMAT_VERSION}",
            hint="start it with the newer Basalt that wrote it",
        )
    if checksum != f"{crc32c(body.encode('latin-1')):08x}\n":
        raise CorruptionError(f"{path} is damaged: it is not what Basalt wrote there", hint=RESTORE)
    return fields["state"] == "initialised"


def _refuse_foreign(path: Path) -> None:
    names = {entry.name for entry in path.iterdir()}
    if "FORMAT" in names or names <= HARMLESS:
        return
    if names & {"SYNCED", "rocks"}:
        raise CorruptionError(f"{path / 'FORMAT'} is missing from a data directory", hint=RESTORE)
    raise DataDirectoryError(
        f"{path} has files that are not Basalt's, such as {min(names - HARMLESS)!r}",
        hint="name an empty directory, or one that does not exist yet",
    )


def _refuse_other_owner(path: Path) -> None:
    user = os.geteuid()
    files = [entry for entry in path.iterdir() if entry.name in MINE]
    with contextlib.suppress(FileNotFoundError):
        files += (path / "rocks").iterdir()
    for file in files:
        owner = file.lstat().st_uid
        if owner != user:
            raise DataDirectoryError(
                f"{file} belongs to user {owner}, this program runs as {user}",
                hint="run it as the owner of the data directory, or give the directory to this user",
            )
        if not os.access(file, os.R_OK | os.W_OK):
            raise DataDirectoryError(
                f"{file} cannot be read and written by user {user}", hint="give its owner the right to"
            )


def lock_directory(path: Path) -> int:
    """Lock a data directory: a descriptor that holds the lock; closing it lets go."""
    lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(lock, _PID_BYTES_MAX, 0).decode("latin-1").strip()
        os.close(lock)
        raise DataDirectoryError(
            f"{path} is in use by process {holder or 'unknown'}",
            hint="stop that process, or use another directory",
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock
