"""`basalt doctor`: is the server there and well, and is its data directory?

The data directory is looked at from outside, without opening the store in it: a running server may hold it. What is in it:
docs/formats/rocks-store.md.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

import basalt
from basalt.cli.options.options import Command, Invocation, common_options, pass_invocation
from basalt.cli.output.failures import EXIT_FAILURE, EXIT_OK, EXIT_UNAVAILABLE
from basalt.cli.output.output import Column, size_text
from basalt.errors import BasaltError, RetryError

if TYPE_CHECKING:
    from basalt.client import Client


@click.command(cls=Command)
@click.option("--data", type=click.Path(path_type=Path), help="Also check this data directory.")
@click.option("--no-server", is_flag=True, help="Check only the data directory.")
@common_options
@pass_invocation
def doctor(invocation: Invocation, data: Path | None, no_server: bool) -> int:
    """Check a server and a data directory.

    Exit code 0 if all is well, 6 if the server cannot be reached, 1 if something else is wrong.
    """
    if no_server and data is None:
        raise click.UsageError("--no-server leaves nothing to check without --data")
    checks = list(check_data_directory(data)) if data is not None else []
    reached = True
    if not no_server:
        try:
            with invocation.client() as client:
                checks = [*_server(client, invocation.target().url), *checks]
        except BasaltError as error:
            reached = not isinstance(error, RetryError)
            checks.insert(0, Check("server", False, error.message, error.hint or ""))
    columns = (Column("name", title="check"), Column("ok"), Column("detail"), Column("hint"))
    rows = [{"name": check.name, "ok": check.ok, "detail": check.detail, "hint": check.hint} for check in checks]
    invocation.out.rows(columns, rows)
    if not reached:
        return EXIT_UNAVAILABLE
    return EXIT_OK if all(check.ok for check in checks) else EXIT_FAILURE


def _server(client: Client, url: str) -> list[Check]:
    version = client.version()
    same = version.version == basalt.__version__
    checks = [
        Check("server", True, f"{url} answers"),
        Check(
            "version",
            True,
            f"server {version.version}, this command {basalt.__version__}",
            "" if same else "they differ; use the server's version if something is odd",
        ),
    ]
    checks += [
        Check(f"part {part.name}", part.ok, f"{part.detail} ({part.latency_ms:.3g} ms)")
        for part in client.ready().parts
    ]
    return checks


FREE_BYTES_MIN = 1024**3  # a compaction needs room of the order of what it rewrites
FREE_SHARE_MIN = 0.05
SMALL_FILE_BYTES_MAX = 4_096  # FORMAT and LOCK are a few lines; more than this is something else


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: whether it is well, what was seen, what to do if it is not."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def check_data_directory(path: Path) -> Iterator[Check]:
    """Check the directory; end at the first problem that hides the others."""
    try:
        if not path.exists():
            yield Check("data directory", False, f"{path} does not exist", "`basalt serve --data` makes it")
            return
        if not path.is_dir():
            yield Check("data directory", False, f"{path} is not a directory", "name a directory")
            return
        rights = (("read", os.R_OK), ("write", os.W_OK), ("enter", os.X_OK))
        missing = [word for word, mode in rights if not os.access(path, mode)]
        if missing:
            yield Check("data directory", False, f"no right to {', '.join(missing)} {path}", "run as its owner")
            return
        yield Check("data directory", True, str(path))
        yield _free_space(path)
        yield _format(path)
        yield _lock(path)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        yield Check("data directory", False, f"{error.filename or path}: {reason}", "run as the directory's owner")


def _free_space(path: Path) -> Check:
    usage = shutil.disk_usage(path)
    detail = f"{size_text(usage.free)} of {size_text(usage.total)} are free"
    enough = usage.free >= FREE_BYTES_MIN and usage.free >= usage.total * FREE_SHARE_MIN
    return Check("disk space", enough, detail, "" if enough else "make room before publishing fails with disk_full")


def _format(path: Path) -> Check:
    from basalt_engine.stores.rocks.data_directory import FORMAT_VERSION

    file = path / "FORMAT"
    if not file.exists():
        if any(entry.name not in ("LOCK", "lost+found") for entry in path.iterdir()):
            return Check(
                "format", False, f"{file} is missing: this is no data directory of Basalt's", "name another one"
            )
        return Check("format", True, "empty: a server would make a store here")
    fields = dict(line.partition(": ")[::2] for line in _text(file).splitlines())
    number = fields.get("format", "")
    told = f"format {number or 'unknown'}, created by {fields.get('created by', 'nobody knows what')}, {fields.get('state', '')}"
    if not number.isdecimal() or int(number) > FORMAT_VERSION:
        return Check("format", False, f"{told}; this program reads {FORMAT_VERSION}", "use the Basalt that wrote it")
    return Check("format", True, told)


def _lock(path: Path) -> Check:
    """See whether a process has the store open. The lock is taken for an instant, and shared, so only a start could notice."""
    file = path / "LOCK"
    if not file.exists():
        return Check("lock", True, "no store has been opened here yet")
    with file.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _text(file).strip() or "unknown"
            return Check("lock", True, f"process {holder} has the store open; a second server would be refused")
    return Check("lock", True, "no process has the store open")


def _text(file: Path) -> str:
    with file.open("rb") as source:
        return source.read(SMALL_FILE_BYTES_MAX).decode("utf-8", "backslashreplace")
