"""`basalt publish`, `consume` and `message`: messages published from arguments or files, read on, and looked at one by one."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from basalt.api.positions import END, START, Position, after_id, at_id
from basalt.cli.failures import CommandFailure, Usage
from basalt.cli.options import (
    GROUP,
    TOPIC,
    Bytes,
    DurationMs,
    Invocation,
    MessageIdText,
    Pair,
    PositionText,
    TransactionId,
    command,
    dry_run_option,
    limit_option,
    payload_format_option,
)
from basalt.cli.output import (
    PAYLOAD_FORMATS,
    PayloadFormat,
    bytes_field,
    columns,
    counted,
    message_line,
    message_row,
    payload_line,
    printable,
    printable_bytes,
    progress,
    time_text,
)
from basalt.cli.root import group
from basalt.cli.template import Separator, Template, TemplateText
from basalt.errors import BasaltError

if TYPE_CHECKING:
    from basalt.client import Client, Consumer, Message, PeekedMessage
    from basalt.client.calls.messages import Isolation


class Keyed(NamedTuple):
    """A message with a key of its own."""

    key: bytes
    payload: bytes


Outgoing = bytes | Keyed
Send = Callable[[Sequence[Outgoing]], Any]
BATCH_MESSAGES_DEFAULT = 500
BATCH_MESSAGES_MAX = 65_536  # as many as one request may carry


@command()
@click.argument("topic", type=TOPIC)
@click.argument("messages", nargs=-1, type=Bytes(), metavar="[MESSAGE]...")
@click.option("--file", metavar="PATH", help="Publish a file's content; - is standard input.")
@click.option("--lines", is_flag=True, help="Each line of the file is a message.")
@click.option("--key", type=Bytes(), metavar="TEXT", help="Key of each message.")
@click.option(
    "--key-separator",
    "separator",
    type=Separator(),
    metavar="TEXT",
    help="Each line, or argument, is a key, this text (\\t is a tab), and a message.",
)
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
@click.option(
    "--producer",
    metavar="NAME",
    help="Number the lines under this name, and go on behind the last one that was published under it.",
)
@dry_run_option
def publish(
    invocation: Invocation,
    topic: str,
    messages: Sequence[bytes],
    file: str | None,
    lines: bool,
    key: bytes | None,
    separator: bytes | None,
    headers: Sequence[tuple[str, str]],
    ttl_ms: int | None,
    batch: int,
    transaction: str | None,
    producer: str | None,
    dry_run: bool,
) -> None:
    """Publish messages to a topic.

    What is piped in is published when there are neither messages nor a file: as one message, its line end included, or
    with --lines each line as one. Each request is stored whole or not at all, and in order. A message that begins with a
    dash goes behind --.

    With --lines --producer a file is published once, however often this is started: give the same file from its beginning.
    Of two that run at once under one name the older one stops.
    """
    if key is not None and separator is not None:
        raise Usage("--key and --key-separator both say what the keys are", hint="leave one of them out")
    if producer is not None and (not lines or transaction is not None):
        raise Usage("--producer numbers lines that are published", hint="give --lines with it, and no --tx")
    source = _read_messages(messages, file, separator, lines=lines)
    namespace = invocation.target().namespace
    with invocation.client() as client:
        client.topics.get(topic)  # a topic that is not there should be found before standard input is read
        sending, skipped = _sending(client, topic, transaction, producer, dry_run=dry_run)
        if producer is not None:
            source = _behind(source, skipped, producer)
        send = _sender(_Carried(key, headers, ttl_ms, keyed=separator is not None), sending)
        counts = _send_all(source, send, batch, _file_bytes(file))
    result = {"topic": topic, "namespace": namespace, **counts, "transaction": transaction, "dry_run": dry_run}
    if producer is not None:
        result |= {"producer": producer, "skipped": skipped}
    what = "would publish" if dry_run else "stored" if transaction else "published"
    when = f", to be published when transaction {transaction} commits" if transaction else ""
    how_much = f"{counted(counts['messages'], 'message')}, {counted(counts['bytes'], 'byte')}"
    behind = f", behind {counted(skipped, 'message')} that {'was' if skipped == 1 else 'were'} there" if skipped else ""
    invocation.out.done(f"{what} {how_much}, to {namespace}:{topic}{when}{behind}", result)


class _Carried(NamedTuple):
    """The key, headers and life that each message carries; with `keyed` each has a key of its own."""

    key: bytes | None
    headers: Sequence[tuple[str, str]]
    ttl_ms: int | None
    keyed: bool


def _sender(carried: _Carried, sending: Callable[..., Any]) -> Send:
    """Make the function that sends a batch, of bytes or of `Keyed`."""
    from basalt.client import RecordIn

    ttl_ms = carried.ttl_ms
    encoded = tuple((name, value.encode("utf-8", "surrogateescape")) for name, value in carried.headers)
    beside: dict[str, Any] = {} if carried.keyed else {"key": carried.key, "headers": encoded or None, "ttl_ms": ttl_ms}

    def messages(batch: Sequence[Any]) -> Sequence[Any]:
        if not carried.keyed:
            return batch
        return [RecordIn(payload, key, encoded, ttl_ms=ttl_ms) for key, payload in batch]

    return lambda batch: sending(messages(batch), **beside)


def _sending(
    client: Client, name: str, transaction: str | None, producer: str | None, *, dry_run: bool
) -> tuple[Callable[..., Any], int]:
    """Return what is called with messages, and how many were published before under the producer's name."""
    topic = client.topic(name)
    if dry_run:  # opens no producer
        known = () if producer is None else topic.producers()
        last = next((each.last_sequence for each in known if each.name == producer), -1)
        return lambda _messages, **_beside: None, last + 1
    if producer is not None:
        opened = client.producer(name, producer)
        return opened.publish, opened.last_sequence + 1
    if transaction is None:
        return topic.publish, 0
    write_pointer = client.transactions.get(transaction).write_pointer
    return lambda messages, **beside: topic.store(messages, write_pointer, **beside), 0


def _behind(source: Iterator[Outgoing], count: int, producer: str) -> Iterator[Outgoing]:
    """The messages behind the first so many. Fewer than these are those of another file."""
    there = sum(1 for _ in islice(source, count))
    if there < count:
        raise CommandFailure(
            f"producer {producer} has published {counted(count, 'line')}, and here {'is' if there == 1 else 'are'} {there}",
            hint="give the same file from its beginning, or another --producer for another file",
        )
    yield from source


def _send_all(source: Iterable[Outgoing], send: Send, batch: int, size_bytes: int | None) -> dict[str, int]:
    messages = sent_bytes = requests = 0
    with progress("bytes", size_bytes) as advance:
        try:
            for run in _in_batches(source, batch):
                send(run)
                run_bytes = sum(map(_bytes_of_message, run))
                messages, sent_bytes, requests = messages + len(run), sent_bytes + run_bytes, requests + 1
                advance(run_bytes)
        except (BasaltError, CommandFailure) as error:  # of the server, or of a source that cannot be read further
            if messages:
                error.add_note(f"the first {counted(messages, 'message')} {'is' if messages == 1 else 'are'} published")
            raise
    return {"messages": messages, "bytes": sent_bytes, "requests": requests}


MESSAGE_BYTES_MAX = 10 * 1024 * 1024  # the server's default limit of a body; a longer line is surely not a message
BATCH_BYTES_MAX = 4 * 1024 * 1024  # a request well below that limit, and a progress bar that moves


def _read_messages(
    given: Sequence[bytes], file: str | None, separator: bytes | None, *, lines: bool
) -> Iterator[Outgoing]:
    """The messages in order. `file` is a path or "-" for standard input; with `lines` each of its lines is a message."""
    if given and file is not None:
        raise Usage("messages are given both as arguments and with --file", hint="leave one of them out")
    if lines and given:
        raise Usage("--lines needs --file", hint="add --file PATH, or --file - for standard input")
    piped = not given and file is None and _is_piped()
    file = "-" if piped else file
    if not given and file is None:
        hint = "give messages as arguments, pipe them in, or name a --file"
        raise Usage("there is no message to publish", hint=hint)
    if separator is not None:
        texts = enumerate(given, 1) if file is None else enumerate(_lines(file), 1)
        which = "message" if file is None else "line"
        where = "" if file is None else f" of {file}"
        return (_keyed(text, separator, f"{which} {number}{where}") for number, text in texts)
    if file is None:
        return iter(given)
    if lines:
        return _lines(file)
    content = _whole(file)
    if piped and not content:
        raise Usage("there is no message to publish: standard input is empty", hint="--file - publishes it as it is")
    return iter([content])


def _is_piped() -> bool:
    return sys.stdin is not None and not sys.stdin.isatty()


def _keyed(text: bytes, separator: bytes, which: str) -> Keyed:
    key, found, payload = text.partition(separator)
    if not found:
        raise CommandFailure(
            f"{which} has no key separator {printable_bytes(separator)!r}",
            hint="add a key, or leave --key-separator out",
        )
    return Keyed(key, payload)


def _bytes_of_message(message: Outgoing) -> int:
    return len(message) if isinstance(message, bytes) else len(message.payload) + len(message.key)


def _in_batches(source: Iterable[Outgoing], messages_max: int) -> Iterator[list[Outgoing]]:
    """The messages in lists of at most `messages_max` and about `BATCH_BYTES_MAX`; none is empty."""
    batch: list[Outgoing] = []
    batch_bytes = 0
    for message in source:
        message_bytes = _bytes_of_message(message)
        if batch and (len(batch) >= messages_max or batch_bytes + message_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += message_bytes
    if batch:
        yield batch


def _file_bytes(file: str | None) -> int | None:
    """Return how much there is to read, when a file can tell."""
    if file is None or file == "-":
        return None
    try:
        return Path(file).stat().st_size or None
    except OSError:
        return None


@contextmanager
def _reading(file: str) -> Iterator[BinaryIO]:
    try:
        if file == "-":
            yield sys.stdin.buffer
        else:
            with Path(file).open("rb") as source:
                yield source
    except OSError as error:
        if error.filename is None and error.errno != errno.EIO:
            raise  # not the file's fault: the messages read so far are sent while it is open
        raise CommandFailure(f"cannot read {file}: {os.strerror(error.errno or 0)}") from None


def _whole(file: str) -> bytes:
    with _reading(file) as source:
        content = source.read(MESSAGE_BYTES_MAX + 1)
    if len(content) > MESSAGE_BYTES_MAX:
        raise CommandFailure(
            f"{file} is longer than a message may be, {MESSAGE_BYTES_MAX} bytes", hint="did you mean --lines?"
        )
    return content


def _lines(file: str) -> Iterator[bytes]:
    number = 0
    with _reading(file) as source:
        while line := source.readline(MESSAGE_BYTES_MAX + 2):
            number += 1
            message = line.removesuffix(b"\n")
            if len(message) > MESSAGE_BYTES_MAX:
                raise CommandFailure(
                    f"line {number} of {file} is longer than a message may be, {MESSAGE_BYTES_MAX} bytes"
                )
            yield message


_back_option = click.option(
    "--back",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="Start so many messages before that, whatever became of them: --from end --back 20.",
)
GROUP_BATCH = 500  # messages that a group deals at once, and that come again when this command is killed
PROGRESS_MESSAGES = 1_000  # a bar that moves more often costs more than the messages


@command()
@click.argument("topic", type=TOPIC)
@click.option("--from", "start", type=PositionText(), metavar="SPEC", help="First message. [default: start]")
@click.option("--after", type=MessageIdText(), metavar="ID", help="Start behind this message instead.")
@_back_option
@click.option("--to", "stop", type=PositionText(), metavar="SPEC", help="Stop before this. [default: end]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages; Ctrl-C ends it.")
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    show_default=True,
    help="committed stops at the first message of an open transaction; uncommitted shows everything.",
)
@click.option(
    "--group",
    type=GROUP,
    metavar="NAME",
    help="For this consumer group: each message to one member; acknowledged once written.",
)
@click.option("--member", metavar="NAME", help="As this member of the group. [default: a name of its own]")
@payload_format_option(PAYLOAD_FORMATS)
@click.option(
    "--template",
    type=TemplateText(),
    metavar="TEXT",
    help="What to write of each message, such as '{id} {key} {value}'; see Templates.",
)
def consume(
    invocation: Invocation,
    topic: str,
    start: Position | None,
    after: bytes | None,
    back: int | None,
    stop: Position | None,
    limit: int | None,
    follow: bool,
    isolation: Isolation,
    group: str | None,
    member: str | None,
    form: PayloadFormat,
    template: Template | None,
) -> None:
    """Read messages from a topic.

    A SPEC is start, end, now, a message id, @milliseconds, @2026-01-31T10:00:00Z, or a time from now such as -1h or
    +10m. --format raw writes payloads alone, each with a line end after it.

    --template writes fields of each message: id, key, value, headers, header.NAME, published, published_ms, event_time,
    event_time_ms and ttl_ms, in braces.

    With --group the server keeps how far the group is: what was written is acknowledged, and nobody in the group gets it again.
    """
    start = _consumed_from(start, after)
    _check_ways(invocation, form, template)
    if group is not None:
        _check_consuming(click.get_current_context())
        with invocation.client() as client, client.consumer(topic, group=group, member=member) as consumer:
            _write_messages(invocation, _consumed(consumer, limit, follow=follow), form, template)
            _say_what_it_waits_for(consumer, topic, group, follow=follow)
        return
    if member is not None:
        raise Usage("--member is for --group", hint="name the group")
    _check_order(start, stop)
    with invocation.client() as client:
        begin, end = _gone_back(client, topic, start or START, back), stop if stop is not None or follow else END
        reader = client.topic(topic).read(begin, end, limit=limit, isolation=isolation, follow=follow)
        _write_messages(invocation, _flushed(reader) if follow else _watched(reader, limit), form, template)
        if reader.held_by is not None and not follow:
            age_ms = reader.view_age_ms
            known = "is still open" if age_ms is None else f"was open {age_ms} ms ago: the coordinator does not answer"
            click.echo(
                f"basalt: stopped at a message of transaction {reader.held_by}, which {known}; "
                f"`basalt explain poll {topic}` tells more",
                err=True,
            )


def _gone_back(client: Client, topic: str, start: Position, back: int | None) -> Position:
    """The position so many messages before this one."""
    found = None if back is None else client.topic(topic).back(start, back)
    return start if found is None else at_id(found)


def _consumed_from(start: Position | None, after: bytes | None) -> Position | None:
    if after is None:
        return start
    if start is not None:
        raise Usage("--from and --after both say where to start", hint="leave one of them out")
    return after_id(after)


def _check_ways(invocation: Invocation, form: PayloadFormat, template: Template | None) -> None:
    if form == "raw" and invocation.output is not None:
        raise Usage("--format raw writes bytes, which no -o can hold", hint="leave one of them out")
    if template is not None and invocation.output is not None:
        raise Usage("--template and -o both say how to write messages", hint="leave one of them out")


_NOT_OF_GROUPS = ("start", "after", "back", "stop", "isolation")


def _check_consuming(context: click.Context) -> None:
    """A group reads committed messages, from where it stands."""
    for param in context.command.params:
        given = context.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
        if param.name in _NOT_OF_GROUPS and given:
            hint = "`basalt group seek` lets it go on elsewhere" if param.name != "isolation" else "leave it out"
            raise Usage(
                f"{param.opts[-1]} and --group: a group reads committed messages, from where it stands", hint=hint
            )


def _say_if_it_is_new(consumer: Consumer) -> None:
    """Whoever mistyped the name of a group would else find a new one much later, with the lag of all that there is."""
    if consumer.made_group:
        click.echo(f"basalt: group {consumer.group} was not there; it is made, and begins at the start", err=True)


def _say_what_it_waits_for(consumer: Consumer, topic: str, group: str, *, follow: bool) -> None:
    if consumer.waiting_for not in (None, "no_messages") and not follow:
        more = f"`basalt explain group {topic} {group}` tells more"
        click.echo(f"basalt: stopped at {consumer.waiting_for}; {more}", err=True)


def _consumed(consumer: Consumer, limit: int | None, *, follow: bool) -> Iterator[Message]:
    """The messages of the group, batch after batch; each batch is acknowledged once its messages were written."""
    _say_if_it_is_new(consumer)
    left = limit
    while left is None or left > 0:
        batch = next(
            iter(consumer.batches(limit=GROUP_BATCH if left is None else min(left, GROUP_BATCH), wait=follow)), None
        )
        if batch is None:
            return
        yield from batch
        sys.stdout.flush()
        consumer.acknowledge(batch)
        left = None if left is None else left - len(batch)


def _write_messages(
    invocation: Invocation, messages: Iterable[Message], form: PayloadFormat, template: Template | None
) -> None:
    out = invocation.out
    if template is not None:
        for message in messages:
            sys.stdout.buffer.write(template.line(message, form))
    elif form == "raw":
        for message in messages:
            sys.stdout.buffer.write(message.payload + b"\n")
    elif out.for_people:
        for message in messages:
            out.line(message_line(message.id, message.payload, form, _carried_in_words(message)))
    else:
        out.rows((), (_consumed_row(message, form) for message in messages))


def _carried_in_words(message: Message) -> str:
    """The key, headers and event time of a message, as a line shows them before the payload; empty for none."""
    carried = message.carried
    pairs = [] if carried.key is None else [("key", printable_bytes(carried.key))]
    pairs += [(name, printable_bytes(value)) for name, value in carried.headers]
    if carried.event_time_ms is not None:
        pairs.append(("event time", time_text(carried.event_time_ms)))
    return " ".join(f"{printable(name)}={value}" for name, value in pairs)


def _consumed_row(message: Message, form: PayloadFormat) -> dict[str, Any]:
    carried, row = message.carried, message_row(message.id, message.payload, form)
    if carried.key is not None:
        row.update(bytes_field("key", carried.key))
    if carried.headers:
        row["headers"] = [{"name": name, **bytes_field("value", value)} for name, value in carried.headers]
    if carried.event_time_ms is not None:
        row["event_time_ms"] = carried.event_time_ms
    if carried.ttl_ms is not None:
        row["ttl_ms"] = carried.ttl_ms
    return row


def _flushed(messages: Iterable[Message]) -> Iterator[Message]:
    """A user who follows a topic through a pipe wants each message when it comes."""
    for message in messages:
        yield message
        sys.stdout.flush()


def _watched(messages: Iterable[Message], limit: int | None) -> Iterator[Message]:
    """With a progress bar when the messages go elsewhere than to the terminal."""
    if sys.stdout.isatty():
        yield from messages
        return
    with progress("messages", limit) as advance:
        for count, message in enumerate(messages, start=1):
            yield message
            if count % PROGRESS_MESSAGES == 0:
                advance(PROGRESS_MESSAGES)


def _check_order(start: Position | None, stop: Position | None) -> None:
    if start is None or stop is None:
        return
    if stop == START or _order_key(start) > _order_key(stop):
        raise Usage(f"--from {start.text} is not before --to {stop.text}", hint="exchange them")


def _order_key(position: Position) -> Any:
    """Positions in their order, as far as it is known before anything is read: only times and ids can be compared."""
    if position in (START, END):
        return b"" if position == START else b"\xff" * 21
    return position.id or (position.time_ms or 0).to_bytes(8)


message = group("message", "Look at single messages, hidden ones too.")

PEEK_MESSAGES_DEFAULT = 20
PEEK_MESSAGES_MAX = 1_000
_FORMS = [form for form in PAYLOAD_FORMATS if form != "raw"]


_form_option = payload_format_option(_FORMS)


@message.call("show")
@click.argument("topic", type=TOPIC)
@click.argument("message_id", type=MessageIdText(), metavar="ID")
@_form_option
def show_message(invocation: Invocation, topic: str, message_id: bytes, form: PayloadFormat) -> None:
    """Show one message and its state: plain, committed, open, rolled back, invalid or expired."""
    with invocation.client() as client:
        found = client.topic(topic).message(message_id)
    invocation.out.record(_peeked_row(invocation, found, form), _PEEKED_FULLY)


@message.call("peek")
@click.argument("topic", type=TOPIC)
@click.option("--from", "start", type=PositionText(), metavar="SPEC", help="First message. [default: start]")
@_back_option
@limit_option(PEEK_MESSAGES_DEFAULT, PEEK_MESSAGES_MAX, " messages")
@_form_option
def peek(
    invocation: Invocation, topic: str, start: Position | None, back: int | None, limit: int, form: PayloadFormat
) -> None:
    """List messages with their states, uncommitted and rolled-back ones too."""
    with invocation.client() as client:
        found = client.topic(topic).peek(start, back=back, limit=limit)
    invocation.out.rows(_PEEKED, [_peeked_row(invocation, item, form) for item in found])


_PEEKED = columns("id publish_ms state write_pointer key payload", publish_ms="published", write_pointer="writer")
_PEEKED_FULLY = (*_PEEKED[:4], *columns("kind key headers event_time_ms ttl_ms payload"))


def _peeked_row(invocation: Invocation, peeked: PeekedMessage, form: PayloadFormat) -> dict[str, Any]:
    row = {
        **message_row(bytes.fromhex(peeked.id), peeked.content, form),
        "state": peeked.state,
        "write_pointer": peeked.write_pointer,
        "kind": peeked.kind,
        "headers": [
            {"name": header.name, **_bytes_of("value", header.value, header.value_base64)} for header in peeked.headers
        ],
        "event_time_ms": peeked.event_time_ms,
        "ttl_ms": peeked.ttl_ms,
        **_bytes_of("key", peeked.key, peeked.key_base64),
    }
    if invocation.out.for_people:
        row["payload"] = payload_line(peeked.content, form)
        row["key"] = row.get("key", row.get("key_base64"))
        row["headers"] = [
            f"{header.name}={header.value if header.value_base64 is None else printable_bytes(header.value_base64)}"
            for header in peeked.headers
        ]
    return row


def _bytes_of(name: str, text: str | None, content: bytes | None) -> dict[str, str]:
    """A field that is there as text, or as bytes, or not at all."""
    if text is not None:
        return {name: text}
    return {} if content is None else bytes_field(name, content, "base64")
