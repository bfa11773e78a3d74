"""Publishes many messages exactly once and in order: one named transaction, to which each task stores its share.

Every attempt of a task stores under a segment of its own; the driver commits the segments of those attempts that Spark
answered, in the order of the parts. What other attempts stored is removed. The session (named by the job) remembers the version that
was committed, in the same commit: so a job that is repeated goes on behind what it has done, and a job that is started a
second time while the first still runs takes over from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from basalt.client import Topic
from basalt.errors import BasaltError, InputError, NotFoundError
from basalt_spark.connection import Server, client_of
from basalt_spark.jobs.running import Advance, Runner
from basalt_spark.topic_name import TopicName

BODY_BYTES = 4 << 20  # of one request, about: a body of one message may be larger
BODY_ROWS = 16_384
BODY_BATCHES = 256
LEDGER_CHARS_MAX = 255  # that a server keeps of it
COLUMNS = ("value", "key", "headers", "event_time")

Part = TypeVar("Part")


class Target(NamedTuple):
    """The topic that is written; a value, so that it travels to executors."""

    server: Server
    name: TopicName

    @property
    def topic(self) -> Topic:
        """The topic, as this process's client has it."""
        return client_of(self.server).topic(self.name.topic, namespace=self.name.namespace)


class Work(NamedTuple):
    """One version of a job's work: `session` is the job, `run` this run of it, `ledger` what it is a job of."""

    session: str
    run: str
    version: int
    ledger: str


class Stored(NamedTuple):
    """What one task stored: nothing, when there is no segment."""

    write_pointer: int | None
    messages: int
    value_bytes: int


class Published(NamedTuple):
    """What one version came to; `before`: it was committed by an earlier run."""

    messages: int
    value_bytes: int
    before: bool


def new_run() -> str:
    """An id for this run of a job."""
    return uuid4().hex


def session_of(job: str, job_id: str) -> str:
    """The name of the session of a job."""
    return f"jobs-{job}-{job_id}"


def ledger_of(job: str, *what: str) -> str:
    """How a session tells what its versions count; by a digest where the names are too long to be kept."""
    told = " ".join((job, *what))
    return told if len(told) <= LEDGER_CHARS_MAX else f"{job} sha256 {sha256(told.encode()).hexdigest()}"


def version_of(server: Server, session: str, ledger: str) -> int | None:
    """The newest version that the session has committed. `InputError` when it counts something else."""
    try:
        found = client_of(server).sessions.get(session)
    except NotFoundError:
        return None
    if found.version is not None and found.ledger != ledger:
        raise InputError(
            f"session {session} of this job id was written by {found.ledger!r}, and this is {ledger!r}",
            field="job-id",
            hint="use another id",
        )
    return found.version


def publish(
    target: Target,
    work: Work,
    parts: Sequence[Part],
    batches: Callable[[Part], Iterable[Any]],
    run: Runner,
    advance: Advance,
) -> Published:
    """Publish what `batches` gives for each part, in the order of the parts; all of it or nothing, and once."""
    client = client_of(target.server)
    opened = _open(target, work)
    if opened.committed_before:
        advance(len(parts))
        return Published(0, 0, before=True)
    try:
        stored = run(parts, lambda part: store(target, work, batches(part)), advance)
    except BaseException:
        # Another run may have taken over; then there is nothing left to abort, and the first error is the one to tell.
        _abort_quietly(target, opened.id)
        raise
    segments = [each.write_pointer for each in stored if each.write_pointer is not None]
    client.transactions.commit_segments(opened.id, segments)
    return Published(sum(each.messages for each in stored), sum(each.value_bytes for each in stored), before=False)


def store(target: Target, work: Work, batches: Iterable[Any]) -> Stored:
    """Store one task's messages under a segment of its own, begun at the first of them."""
    segment: int | None = None
    messages = value_bytes = 0
    for body, rows, size in bodies(batches):
        if segment is None:
            segment = _open(target, work).segment()
        target.topic.store_arrow(body, segment)
        messages += rows
        value_bytes += size
    return Stored(segment, messages, value_bytes)


def bodies(batches: Iterable[Any]) -> Iterator[tuple[bytes, int, int]]:
    """Record batches as bodies of requests, each with its messages and the bytes of their values."""
    held: list[Any] = []
    size = rows = 0
    for batch in batches:
        for piece in _pieces(batch.select([name for name in COLUMNS if name in batch.schema.names])):
            full = size + piece.nbytes > BODY_BYTES or rows + piece.num_rows > BODY_ROWS or len(held) >= BODY_BATCHES
            if held and full:
                yield _body(held, rows)
                held, size, rows = [], 0, 0
            held.append(piece)
            size += piece.nbytes
            rows += piece.num_rows
    if held:
        yield _body(held, rows)


def _pieces(batch: Any) -> Iterator[Any]:
    """The batch, halved until each piece fits into a body or is a single message."""
    if batch.num_rows > 1 and (batch.nbytes > BODY_BYTES or batch.num_rows > BODY_ROWS):
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half))
        yield from _pieces(batch.slice(half))
    elif batch.num_rows:
        yield batch


def _body(batches: Sequence[Any], rows: int) -> tuple[bytes, int, int]:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    values = sum(len(value) for batch in batches for value in batch.column("value").to_pylist())
    return sink.getvalue().to_pybytes(), rows, values


def _open(target: Target, work: Work) -> Any:
    """The named transaction of this work: begun, or joined."""
    return client_of(target.server).named_transaction(
        work.session, work.run, work.version, ledger=work.ledger, kind="long"
    )


def _abort_quietly(target: Target, transaction: str) -> None:
    with suppress(BasaltError):
        client_of(target.server).transactions.abort(transaction)
