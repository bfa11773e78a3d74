"""A directory that takes the place of a data directory: whole, or not at all; and nothing that was there is deleted.

It is put together beside its place, as PLACE.new, with a file UNFINISHED in it until all of it is on the disk. Then it gets
its place in one step: where there was a directory already, the kernel exchanges the two, and the old one is PLACE.aside-TIME.
So a crash at any moment leaves the old directory or the new one in its place, each of them whole, and the same can be tried
again: a PLACE.new that has UNFINISHED in it is begun anew, and nothing else is ever removed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from basalt_engine.errors import DataDirectoryError, StoreError
from basalt_engine.stores.rocks.damage import os_errors
from basalt_engine.stores.rocks.data_directory import HARMLESS, MINE, lock_directory, sync_directory

UNFINISHED = "UNFINISHED"

_AT_CURRENT_FOLDER = -100
_RENAME_EXCHANGE = 2


class Replacement:
    """A directory that is being put together, `new`, and the lock on that whose place it is to take."""

    def __init__(self, place: Path, new: Path, locks: list[int], owner: os.stat_result) -> None:
        self.place = place
        self.new = new
        self._locks = locks
        self._owner = owner

    @classmethod
    def begin(cls, place: Path, source: Path, *, put_aside: bool) -> Replacement:
        """Make the new directory, beside the place. It will belong to whom the place belongs, else the `source`.

        `DataDirectoryError` when there is something in the place and it is not to be put aside, when a server has it open,
        when it is not Basalt's, and when it has a file system of its own and so cannot be renamed.
        """
        place = place.resolve()  # a link to a data directory stays one
        new, locks = place.with_name(f"{place.name}.new"), []
        with os_errors(place):
            if os.path.ismount(place):
                raise DataDirectoryError(
                    f"{place} has a file system of its own, so nothing can take its place in one step",
                    hint="name a directory that does not exist yet in it, and start the server with that",
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                if place.exists():
                    _refuse(place, put_aside=put_aside)
                    locks.append(lock_directory(place))
                locks.append(_begun(new))
                return cls(place, new, locks, (place if place.exists() else source).stat())
            except BaseException:
                _unlock(locks)
                raise

    def finish(self, now_ms: int) -> Path | None:
        """Put it on the disk and in its place; the path of what was put aside, or None."""
        with os_errors(self.new):
            self._give_away()
            sync_tree(self.new)
            if not self.place.exists():
                self.new.rename(self.place)
                _finished(self.place)
                return None
            aside = _free(self.place.with_name(f"{self.place.name}.aside-{_stamp(now_ms)}"))
            self.new.rename(aside)
            _finished(aside)
            _exchange(aside, self.place)
            sync_directory(self.place.parent)
            if (aside / "backups").is_dir() and not (self.place / "backups").exists():
                (aside / "backups").rename(self.place / "backups")
                sync_directory(self.place)
            return aside

    def close(self) -> None:
        """Unlock the old directory, and remove the new one if it was not finished."""
        if (self.new / UNFINISHED).exists():
            shutil.rmtree(self.new, ignore_errors=True)
        _unlock(self._locks)
        self._locks = []

    def _give_away(self) -> None:
        """To whom it is to belong, if this is the administrator: the server refuses files of another user."""
        if os.geteuid() == 0:
            for path in (self.new, *self.new.rglob("*")):
                os.chown(path, self._owner.st_uid, self._owner.st_gid)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes, and put them on the disk. Its owner is whoever copies."""
    shutil.copyfile(source, target)
    with target.open("rb") as copied:
        os.fsync(copied.fileno())


def copy_tree(source: Path, target: Path) -> None:
    """Copy what is in a directory into another one, and put it on the disk."""
    for path in sorted(source.rglob("*")):  # a folder comes before what is in it
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(mode=0o700)
        else:
            copy_file(path, copy)
    sync_tree(target)


def sync_tree(directory: Path) -> None:
    """Put the names in a directory, and in those below it, on the disk."""
    for folder, _, _ in os.walk(directory):
        sync_directory(Path(folder))


def _refuse(place: Path, *, put_aside: bool) -> None:
    names = {entry.name for entry in place.iterdir()}
    if not names & (MINE | {"backups"}) and not names <= HARMLESS:
        raise DataDirectoryError(
            f"{place} has files that are not Basalt's, such as {min(names - HARMLESS)!r}",
            hint="name a data directory, or one that does not exist yet",
        )
    if names - HARMLESS and not put_aside:
        raise DataDirectoryError(
            f"{place} is not empty", hint="add --put-aside to keep it beside its place, or name another directory"
        )


def _begun(new: Path) -> int:
    """The lock on an empty directory that is marked as unfinished."""
    mark = new / UNFINISHED
    if new.exists() and any(new.iterdir()) and not mark.exists():
        raise DataDirectoryError(f"{new} is in the way", hint="look what is in it, and move it elsewhere")
    new.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in new.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif left != mark:
                left.unlink()
    except BlockingIOError:
        os.close(lock)
        raise DataDirectoryError(
            f"{new} is being put together by another process", hint="wait until that has ended"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _finished(directory: Path) -> None:
    sync_directory(directory.parent)
    (directory / UNFINISHED).unlink()
    sync_directory(directory)


def _free(path: Path) -> Path:
    """The path, or one with a number where there is something already."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _stamp(now_ms: int) -> str:
    return f"{datetime.fromtimestamp(now_ms // 1_000, tz=UTC):%Y%m%dT%H%M%SZ}"


def _exchange(one: Path, other: Path) -> None:
    """Exchange two directories in one step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = os.fsencode(one), os.fsencode(other)
    if rename is not None and not rename(
        _AT_CURRENT_FOLDER, paths[0], _AT_CURRENT_FOLDER, paths[1], ctypes.c_uint(_RENAME_EXCHANGE)
    ):
        return
    reason = "this system has no call for it" if rename is None else os.strerror(ctypes.get_errno())
    raise StoreError(
        f"{other} cannot be exchanged with {one}, which is finished: {reason}",
        hint=f"move {other} away yourself, and then {one} to its place",
    )


def _unlock(locks: list[int]) -> None:
    for lock in locks:
        os.close(lock)
