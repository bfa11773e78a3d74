"""`basalt publish`: messages from arguments, a file or standard input, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.options import message_source as intake
from basalt.cli.options.invocation import Session, pass_session
from basalt.cli.options.options import Bytes, Command, DurationMs, Pair, TransactionId, common_options, dry_run_option
from basalt.cli.output.failures import Usage
from basalt.cli.output.output import counted
from basalt.cli.output.progress import progress
from basalt.errors import BasaltError

if TYPE_CHECKING:
    from basalt.client import Client

Send = Callable[[Sequence[bytes]], Any]
BATCH_MESSAGES_DEFAULT = 500
BATCH_MESSAGES_MAX = 65_536  # as many as one request may carry


@click.command(cls=Command)
@click.argument("topic")
@click.argument("messages", nargs=-1, type=Bytes(), metavar="[MESSAGE]...")
@click.option("--file", metavar="PATH", help="Publish a file's content; - is standard input.")
@click.option("--lines", is_flag=True, help="Each line of the file is a message.")
@click.option("--key", type=Bytes(), metavar="TEXT", help="Key of each message.")
@click.option("--header", "headers", multiple=True, type=Pair(), metavar="NAME=VALUE", help="Header of each message.")
@click.option(
    "--ttl", "ttl_ms", type=DurationMs(), metavar="DURATION", help="Life of each, if shorter than the topic's."
)
@click.option(
    "--batch",
    type=click.IntRange(1, BATCH_MESSAGES_MAX),
    default=BATCH_MESSAGES_DEFAULT,
    show_default=True,
    metavar="N",
    help="At most so many messages in one request.",
)
@click.option("--tx", "transaction", type=TransactionId(), metavar="ID", help="Publish when this transaction commits.")
@dry_run_option
@common_options
@pass_session
def publish(
    session: Session,
    topic: str,
    messages: Sequence[bytes],
    file: str | None,
    lines: bool,
    key: bytes | None,
    headers: Sequence[tuple[str, str]],
    ttl_ms: int | None,
    batch: int,
    transaction: str | None,
    dry_run: bool,
) -> None:
    """Publish messages to a topic.

    Each request is stored whole or not at all, and in order. A message that begins with a dash goes behind --.
    """
    richer = key is not None or bool(headers) or ttl_ms is not None
    if transaction is not None and richer:
        raise Usage("--tx does not go with --key, --header or --ttl", hint="leave --tx out, or the others")
    source = intake.messages(messages, file, lines=lines)
    namespace = session.target().namespace
    with session.client() as client:
        client.topics.get(topic)  # a topic that is not there should be found before standard input is read
        send: Send = lambda _batch: None  # noqa: E731 - a def would have three spellings below
        if not dry_run:
            send = _sender(client, topic, key, headers, ttl_ms, transaction)
        counts = _send_all(source, send, batch, intake.size_bytes(file))
    result = {"topic": topic, "namespace": namespace, **counts, "transaction": transaction, "dry_run": dry_run}
    what = "would publish" if dry_run else "stored" if transaction else "published"
    when = f", to be published when transaction {transaction} commits" if transaction else ""
    how_much = f"{counted(counts['messages'], 'message')}, {counted(counts['bytes'], 'byte')}"
    session.out.done(f"{what} {how_much}, to {namespace}:{topic}{when}", result)


def _sender(
    client: Client,
    name: str,
    key: bytes | None,
    headers: Sequence[tuple[str, str]],
    ttl_ms: int | None,
    transaction: str | None,
) -> Send:
    topic = client.topic(name)
    if transaction is not None:
        write_pointer = client.transactions.get(transaction).write_pointer
        return lambda batch: topic.store(batch, write_pointer)
    if key is None and not headers and ttl_ms is None:
        return topic.publish
    from basalt.api.bodies.work import RecordIn

    encoded = tuple((header, value.encode("utf-8", "surrogateescape")) for header, value in headers)
    return lambda batch: topic.publish_records(
        [RecordIn(payload, key=key, headers=encoded, ttl_ms=ttl_ms) for payload in batch]
    )


def _send_all(source: Iterable[bytes], send: Send, batch: int, size_bytes: int | None) -> dict[str, int]:
    messages = sent_bytes = requests = 0
    with progress("bytes", size_bytes) as advance:
        for run in intake.batches(source, batch):
            try:
                send(run)
            except BasaltError as error:
                if messages:
                    error.add_note(f"the first {counted(messages, 'message')} are published")
                raise
            run_bytes = sum(map(len, run))
            messages, sent_bytes, requests = messages + len(run), sent_bytes + run_bytes, requests + 1
            advance(run_bytes)
    return {"messages": messages, "bytes": sent_bytes, "requests": requests}
