"""`basalt backup`: copies of a server's store, and putting one back; `basalt repair`: what to do where there is none."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from basalt.cli.failures import EXIT_FOUND, EXIT_OK, Usage
from basalt.cli.options import (
    BACKUP,
    Invocation,
    author_options,
    command,
    confirm,
    dry_run_option,
    output_option,
    yes_option,
)
from basalt.cli.output import columns, counted, printable, progress, row, size_text
from basalt.cli.root import group
from basalt.errors import CorruptionError

if TYPE_CHECKING:
    from basalt.client import Client

backup = group("backup", "Make, list, verify, delete and restore backups of a store.")

_BACKUPS = columns("name created_ms files bytes path", counts="files", bytes="size")


class Verified(NamedTuple):
    """A page of a verification, and how much there is in all."""

    files: int
    total_bytes: int
    checked_bytes: int
    faults: tuple[str, ...]


@backup.call("create")
@click.argument("name")
@author_options
@dry_run_option
def create(invocation: Invocation, name: str, dry_run: bool, reason: str, by: str) -> None:
    """Copy a server's store while it runs.

    The copy is consistent, and lies under NAME where the server keeps its backups: a directory for `basalt serve --data`.
    """
    with invocation.client() as client:
        made = row(client.admin.backup(name, dry_run=dry_run, reason=reason, by=by))
    invocation.out.done(f"{'would back up' if dry_run else 'backed up'} as {made['path']}", made)


@backup.call("list")
def list_backups(invocation: Invocation) -> None:
    """List the backups that a server keeps, the oldest first.

    A file that the store still has as well takes no space of its own.
    """
    invocation.show_all(_BACKUPS, lambda client: client.admin.backups())


@backup.call("verify")
@click.argument("name", type=BACKUP, required=False)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Verify a backup that lies here, without a server: one that was copied away.",
)
def verify(invocation: Invocation, name: str | None, directory: Path | None) -> int:
    """Compare every byte of a backup with what the store wrote; exit code 7 when it is not whole.

    Every fault has a line of its own on standard error.
    """
    if name is not None and directory is None:
        with invocation.client() as client:
            return _tell(invocation, name, _pages_there(client, name))
    if directory is not None and name is None:
        return _tell(invocation, str(directory), _pages_here(directory))
    raise Usage("name a backup of the server, or a --directory", hint="see `basalt backup list`")


@backup.call("delete")
@click.argument("name", type=BACKUP)
@author_options
@yes_option
@dry_run_option
def delete(invocation: Invocation, name: str, yes: bool, dry_run: bool, reason: str, by: str) -> None:
    """Delete a backup that a server keeps."""
    with invocation.client() as client:
        if dry_run:
            found = next((row(each) for each in client.admin.backups() if each.name == name), None)
            what = "there is no backup" if found is None else "would delete backup"
            invocation.out.done(f"{what} {name}", {"name": name, "found": found is not None, "dry_run": True})
            return
        confirm(f"Delete backup {printable(name)}?", yes=yes)
        deleted = row(client.admin.delete_backup(name, reason=reason, by=by))
    size = size_text(deleted["bytes"])
    invocation.out.done(f"deleted backup {name}: {counted(deleted['files'], 'file')}, {size}", deleted)


@backup.call("restore", output_option)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="Data directory.")
@click.option("--put-aside", is_flag=True, help="Keep what is there beside its place, as DATA.aside-TIME.")
@click.option(
    "--new-installation", is_flag=True, help="With an id of its own, to run beside the server that made the backup."
)
@dry_run_option
def restore(
    invocation: Invocation, source: Path, data: Path, put_aside: bool, new_installation: bool, dry_run: bool
) -> None:
    """Put a backup in the place of a data directory that no server has open.

    SOURCE is the directory of the backup, or its name in the data directory. It is verified, copied, and the copy verified;
    then the copy takes its place in one step. Until then nothing is changed, and nothing is ever deleted.

    Tokens and grants are those of the backup again, revoked ones too: with auth.not_before no token of before counts.
    """
    from basalt_engine.clock import SystemClock
    from basalt_engine.stores.rocks.restore import Restore

    named = data / "backups" / source
    found = named if len(source.parts) == 1 and not source.exists() and named.is_dir() else source
    restoring = Restore(found, data, new_installation=new_installation)
    result = {"source": str(found), "data": str(data), "dry_run": dry_run}
    with progress("restoring", restoring.total_bytes) as advance:
        if dry_run:
            restoring.verify(advance)
        else:
            done = restoring.run(SystemClock(), put_aside=put_aside, advance=advance)
    if dry_run:
        invocation.out.done(f"{found} is whole; would restore it as {data}", result)
        return
    result |= {"files": done.files, "bytes": done.copied_bytes, "aside": str(done.aside) if done.aside else None}
    aside = f"; what was there is {done.aside}" if done.aside else ""
    invocation.out.done(f"restored {found} as {data}{aside}", result)


@command(options=output_option)
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--accept-loss", metavar="TEXT", help="Repair, and lose this: the words that it shows without.")
@dry_run_option
def repair(invocation: Invocation, data: Path, accept_loss: str | None, dry_run: bool) -> int:
    """Show what is damaged in a data directory, and mend what can be mended.

    DATA is the directory. Without --accept-loss it shows what would be lost; exit code 7 if something is damaged. Nothing
    is changed before the loss is accepted in just the words that are shown. Then what was damaged is put aside, as
    DATA.aside-TIME: nothing is ever deleted.
    """
    from basalt_engine.clock import SystemClock
    from basalt_engine.stores.rocks.repair import Repair

    repairing = Repair(data)
    with progress("looking at", None) as advance:
        if accept_loss is not None and not dry_run:
            aside = repairing.mend(accept_loss, SystemClock(), advance)
            result = {"data": str(data), "lost": accept_loss, "aside": str(aside)}
            invocation.out.done(f"repaired {data}; lost: {accept_loss}; the damaged directory is {aside}", result)
            return EXIT_OK
        found = repairing.diagnose(advance)
    if not invocation.out.for_people:
        invocation.out.record({"data": str(data), "faults": list(found.faults), "loss": found.loss})
    elif not found.faults:
        invocation.out.line(printable(f"{data} is whole"))
    else:
        for fault in found.faults:
            invocation.out.line(printable(f"damaged: {fault}"))
        for line in _way_out(data, found.loss):
            invocation.out.line(printable(line))
    return EXIT_FOUND if found.faults else EXIT_OK


def _way_out(data: Path, loss: str | None) -> list[str]:
    quoted = shlex.quote(str(data))
    if loss is None:
        return [f"this cannot be mended; restore a backup: basalt backup restore SOURCE --data {quoted} --put-aside"]
    accept = f"basalt repair {quoted} --accept-loss {shlex.quote(loss)}"
    return [f"lost when it is mended: {loss}", f"nothing was changed; to mend it: {accept}"]


def _tell(invocation: Invocation, name: str, pages: Iterator[Verified]) -> int:
    files = checked_bytes = 0
    faults: list[str] = []
    with _progress(pages) as told:
        for page in told:
            files, checked_bytes = page.files, checked_bytes + page.checked_bytes
            faults += page.faults
    result = {"name": name, "files": files, "bytes": checked_bytes, "whole": not faults, "faults": faults}
    if invocation.out.for_people:
        for fault in faults:
            click.echo(f"basalt: {printable(fault)}", err=True)
    size = f"{counted(files, 'file')}, {size_text(checked_bytes)}"
    whole = f"{name} is whole: {size}"
    invocation.out.done(whole if not faults else f"{name} is not whole: {counted(len(faults), 'fault')}", result)
    return EXIT_FOUND if faults else EXIT_OK


@contextmanager
def _progress(pages: Iterator[Verified]) -> Iterator[Iterator[Verified]]:
    """The pages, with a bar that goes forward with each."""
    first = next(pages)
    with progress("verifying", first.total_bytes) as advance:

        def told() -> Iterator[Verified]:
            advance(first.checked_bytes)
            yield first
            for page in pages:
                advance(page.checked_bytes)
                yield page

        yield told()


def _pages_there(client: Client, name: str) -> Iterator[Verified]:
    start: str | None = None
    whole = True
    while True:
        page = client.admin.verify_backup(name, start=start)
        yield Verified(page.files, page.bytes, page.checked_bytes, page.faults)
        start, whole = page.next, whole and not page.faults
        if start is None or (start == "rows" and not whole):  # rows of a damaged file would tell the same again
            return


def _pages_here(directory: Path) -> Iterator[Verified]:
    from basalt_engine.stores.rocks.verification import Verification

    try:
        verification = Verification(directory)
        for page in verification.pages():
            yield Verified(len(verification.files), verification.total_bytes, page.checked_bytes, page.faults)
    except CorruptionError as error:  # of the files that say which others there must be
        yield Verified(0, 0, 0, (error.message,))
