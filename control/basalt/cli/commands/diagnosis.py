"""`basalt doctor`: is the server there and well, and is its data directory? `basalt explain`: which transaction a reader waits for
and until when; what a transaction holds back, and what it waits for; why a message of a consumer group is not worked on.

The data directory is looked at from outside, without opening the store in it: a running server may hold it. Its
content: docs/formats/rocks-store.md.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import basalt
from basalt.cli.commands.tx import held_text, wait_text
from basalt.cli.failures import EXIT_FAILURE, EXIT_OK, EXIT_UNAVAILABLE
from basalt.cli.options import GROUP, TOPIC, Invocation, MessageIdText, PositionText, TransactionId, command
from basalt.cli.output import columns, counted, duration_text, plain, printable, publish_ms, row, size_text, time_text
from basalt.cli.root import group
from basalt.errors import BasaltError, RetryError, TransactionNotFoundError
from basalt_engine.clock import SystemClock

if TYPE_CHECKING:
    from basalt.api.positions import Position
    from basalt.client import Client


_PROGRESS = columns(
    "namespace topic task watermark_ms delay_ms ended task_count", watermark_ms="watermark", delay_ms="delay"
)
_SINKS = columns(
    "session run counter_owner version committed_ms used_ms open",
    committed_ms="committed",
    used_ms="used",
    open="open transactions",
)
_STEPS = columns(
    "level kind name principal reads writes tables transactions last_ms", last_ms="last", counts="transactions"
)


@command()
@click.option("--data", type=click.Path(path_type=Path), help="Also check this data directory.")
@click.option("--no-server", is_flag=True, help="Check only the data directory.")
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
            with invocation.client(wait=False) as client:  # whether one is there is what was asked
                checks = [*_server(client, invocation.target().url), *checks]
        except BasaltError as error:
            reached = not isinstance(error, RetryError)
            checks.insert(0, Check("server", False, error.message, error.hint or ""))
    invocation.out.rows(columns("name ok detail hint", name="check"), [asdict(check) for check in checks])
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
        yield _rights(path)
        yield _free_space(path)
        yield _format(path)
        yield _lock(path)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        yield Check("data directory", False, f"{error.filename or path}: {reason}", "run as the directory's owner")


def _rights(path: Path) -> Check:
    from basalt_engine.stores.rocks.data_directory import others_may

    allowed = others_may(path)
    if allowed:
        detail = f"other users of this machine may {allowed} it (mode {path.stat().st_mode & 0o777:04o})"
        return Check("rights", False, detail, f"chmod 700 {path}: every payload is in its files")
    return Check("rights", True, "its owner's alone")


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


explain = group("explain", "Tell why a reader stops, a message of a group waits, and what a transaction holds back.")

_HOLDER = columns(
    "held_by at_id at_ms state owner began_ms expires_ms expires_in_ms messages_behind polls_waiting at_deadline",
    at_id="at message",
    at_ms="published",
    at_deadline="then",
)


@explain.call("poll")
@click.argument("topic", type=TOPIC)
@click.option("--from", "start", type=PositionText(), metavar="SPEC", help="Where the reader starts. [default: start]")
def poll(invocation: Invocation, topic: str, start: Position | None) -> None:
    """Tell at which transaction a reader of committed messages stops, what waits behind it, and when it will end."""
    with invocation.client() as client:
        shown = {"topic": topic, **_hold(client, topic, start)}
    invocation.out.record(shown, (*columns("topic"), *(_HOLDER if shown["held_by"] else ())))
    if invocation.out.for_people:
        invocation.out.line("")
        invocation.out.line(_advice(shown))


@explain.call("tx")
@click.argument("transaction", type=TransactionId(), metavar="ID")
def transaction(invocation: Invocation, transaction: str) -> None:
    """Tell who waits for a transaction, what it waits for itself, and what happens when its time is up."""
    with invocation.client() as client:
        found = row(client.admin.describe_transaction(transaction))
    if invocation.out.for_people:
        for line in _story(found):
            invocation.out.line(printable(line))
        return
    invocation.out.record(found)


@explain.call("group")
@click.argument("topic", type=TOPIC)
@click.argument("name", type=GROUP, metavar="GROUP")
@click.argument("message_id", required=False, type=MessageIdText(), metavar="[ID]")
def explain_group(invocation: Invocation, topic: str, name: str, message_id: bytes | None) -> None:
    """Tell why a message is with no member of a group, or who has it; what frees it, and when.

    Without an ID of the oldest message that the group has not acknowledged.
    """
    with invocation.client() as client:
        handle, asked = client.topic(topic).group(name), message_id
        if asked is None:
            asked = next((found.id for found in handle.messages(limit=1)), None)
        if asked is None:
            handle.get()  # is there such a group?
            shown: dict[str, Any] = {"id": None, "state": None, "explanation": None}
        else:
            found = row(handle.message(asked))
            shown = {**found, "id": asked.hex(), "through": None}
        now_ms = SystemClock().now_ms()
    if not invocation.out.for_people:
        invocation.out.record(shown)
        return
    for line in group_story(name, shown, now_ms):
        invocation.out.line(printable(line))


@command()
@click.option("--after", metavar="NAMESPACE:TOPIC", help="Only topics behind this one.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many topics.")
def pipelines(invocation: Invocation, after: str | None, limit: int | None) -> None:
    """Show pipelines as the server knows them: event time, jobs that commit by name, and who reads and writes what."""
    with invocation.client() as client:
        found = row(client.admin.pipelines(after=after, limit=limit))
    out = invocation.out
    if not out.for_people:
        out.record(found)
        return
    progress = [
        {**task, "namespace": topic["namespace"], "topic": topic["topic"]}
        for topic in found["topics"]
        for task in ({**topic, "task": "all"}, *topic["tasks"])
    ]
    steps = [
        {**each, **{part: _named(each[part]) for part in ("reads", "writes", "tables")}} for each in found["steps"]
    ]
    for title, shown, rows in (
        ("Event time", _PROGRESS, progress), ("Jobs that commit by name", _SINKS, found["sinks"]), ("Who reads and writes what", _STEPS, steps),
    ):  # fmt: skip
        out.line(title)
        out.rows(shown, rows)
        out.line("")


def _named(parts: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{each['namespace']}:{each['name']}" + (f"/{each['group']}" if each["group"] else "") for each in parts
    )


def group_story(name: str, message: dict[str, Any], now_ms: int) -> Iterator[str]:
    """The circumstances of a message in a group, in sentences."""
    if message["id"] is None:
        yield f"Group {name} has acknowledged all that there is."
        return
    since_ms, until_ms = message["since_ms"], message["until_ms"]
    since = f", since {duration_text(max(now_ms - since_ms, 0))}" if since_ms else ""
    yield f"Message {message['id']} in group {name}: {message['explanation']}{since}."
    when = ""
    if until_ms:
        left_ms = until_ms - now_ms
        in_ms = f"in {duration_text(left_ms)}" if left_ms > 0 else "now"
        when = f", {in_ms} at the latest: {time_text(until_ms)}"
    yield f"What frees it: {message['next_step']}{when}."


def _story(description: dict[str, Any]) -> Iterator[str]:
    """A transaction's circumstances in sentences."""
    owner = f" of {description['owner']}" if description["owner"] else ""
    name = f"Transaction {description['id']}{owner}"
    if "ended_ms" in description:
        late = " because its time was up" if description["timed_out"] else ""
        yield f"{name} ended at {time_text(description['ended_ms'])}{late}: {description['meaning']}."
        if description["invalid_pointers"]:
            are = "is" if description["invalid_pointers"] == 1 else "are"
            yield f"{counted(description['invalid_pointers'], 'write pointer')} of it {are} on the invalid list."
        yield f"Next: {description['next_step']}."
        return
    yield f"{name} is {description['state']} since {duration_text(description['age_ms'])}. It waits for {description['waits_for']}."
    if description["lost_to"]:
        lost = description["lost_to"]
        yield f"It lost a write conflict on {lost['key']} to transaction {lost['winner']} of {plain(lost['winner_owner'])}."
    for block in description["blocks"]:
        yield f"Readers of committed messages wait in {wait_text(block)}."
    if not description["blocks"]:
        yield "No reader waits for it."
    for part in description["acknowledges"]:
        more = "" if part["exact"] else " or more"
        yield (
            f"It acknowledges {counted(part['messages'], 'message')}{more} of group {part['group']} of"
            f" {part['namespace']}:{part['topic']}, which nobody else gets until it ends."
        )
    held = held_text(description["held_back"])
    if held:
        yield f"Because of it {held}."
    if description["state"] == "OPEN":
        when = time_text(description["expires_ms"])
        yield f"Its time is up in {duration_text(description['remaining_ms'])}, at {when}: then {description['at_deadline']}."
    yield f"Next: {description['next_step']}."


def _hold(client: Client, name: str, start: Position | None) -> dict[str, Any]:
    """Find where readers stop, and the transaction they stop at; all None when they do not."""
    at: Position | str | None = start
    topic = client.topic(name)
    while True:
        holder = topic.holder(at)
        if holder.held_by is not None or holder.searched_to is None:
            break
        at = holder.searched_to
    described: dict[str, Any] = {}
    if holder.held_by is not None:
        with suppress(TransactionNotFoundError):  # it ended meanwhile
            described = row(client.admin.describe_transaction(holder.held_by))
    here = {"namespace": topic.namespace, "topic": topic.name}
    block: dict[str, Any] = next((each for each in described.get("blocks", ()) if here.items() <= each.items()), {})
    return {
        "held_by": holder.held_by,
        "at_id": holder.at,
        "at_ms": None if holder.at is None else publish_ms(bytes.fromhex(holder.at)),
        "state": described.get("state"),
        "owner": described.get("owner") or None,
        **{name: described.get(name) for name in ("began_ms", "expires_ms", "at_deadline", "next_step")},
        "expires_in_ms": described.get("remaining_ms"),
        "messages_behind": block.get("messages"),
        "messages_behind_exact": block.get("exact"),
        "polls_waiting": block.get("waiting"),
    }


def _advice(shown: dict[str, Any]) -> str:
    if shown["held_by"] is None:
        return "Nothing holds readers of committed messages: they get to the end of the topic."
    if shown["expires_ms"] is None:
        return f"Transaction {shown['held_by']} has ended since; ask again."
    behind = ""
    if shown["messages_behind"] is not None:
        more = "" if shown["messages_behind_exact"] else " or more"
        behind = f", and {counted(shown['messages_behind'], 'message')}{more} behind it"
    return (
        f"Readers of committed messages wait for transaction {shown['held_by']}{behind}. Its time is up in"
        f" {duration_text(shown['expires_in_ms'])}: then {shown['at_deadline']}. Next: {shown['next_step']}."
    )
