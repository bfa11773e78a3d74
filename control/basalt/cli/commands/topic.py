"""`basalt topic` and `namespace`: topics, their markers and ranges, and the namespaces that they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from basalt.api.bodies.topics import TOPIC_ORDERS
from basalt.api.topic_properties import BY_NAME, GENERATION, LABEL, PROPERTIES, TopicProperty, Word, unknown_property
from basalt.cli.failures import CommandFailure, Usage
from basalt.cli.options import (
    TOPIC,
    DurationMs,
    Invocation,
    MessageIdText,
    Pair,
    PositionText,
    author_options,
    confirm,
    dry_run_option,
    stacked,
    yes_option,
)
from basalt.cli.output import Column, columns, counted, described_topic_row, plain, row, time_text, topic_row
from basalt.cli.root import group
from basalt.errors import ProducerNotFoundError

if TYPE_CHECKING:
    from basalt.api.bodies.topics import TopicDescription, TopicPlan
    from basalt.api.positions import Position
    from basalt.client import Client

topic = group("topic", "Create, list, show, update and delete topics.")

PAGE_TOPICS = 1_000  # as many as the server gives at once

# The client's methods have these as parameters of their own, which a property could shadow.
_NOT_PROPERTIES = ("name", "namespace", "labels", "generation", "unset")


def _ttl_text(ttl_ms: object) -> str:
    """A TTL as people say it."""
    return BY_NAME["ttl"].kind.show(str(ttl_ms // 1_000)) if isinstance(ttl_ms, int) else plain(ttl_ms)


_COLUMNS = (
    *columns("namespace name generation"),
    Column("ttl_ms", _ttl_text, "ttl"),
    *columns("spread on_invalid properties"),
)
_FIGURES = columns(
    "namespace name messages bytes published_per_second oldest_ms newest_ms held_by",
    counts="messages published_per_second",
    bytes="size",
    published_per_second="messages per second",
    held_by="held by",
)
_SHOWN = columns("namespace name generation")
_PROPERTIES = columns("property value default effect")
_STATS = columns(
    "messages bytes stored_bytes oldest_ms truncated_before_ms newest_ms published_per_second oldest_open_write_pointer",
    counts="messages published_per_second",
    bytes="size",
    stored_bytes="on disk",
    published_per_second="messages per second",
    oldest_open_write_pointer="oldest open writer",
)


def _tasks_text(tasks: object) -> str:
    """Write what the tasks have said on one line: map-0 at 1700000000000 map-1 ended ?"""
    assert isinstance(tasks, list)
    said = (
        f"{task['task']} {'ended' if task['ended'] else 'at'} {'?' if task['watermark_ms'] is None else task['watermark_ms']}"
        for task in tasks
    )
    return plain(list(said))


_MARKERS = (
    *columns("name watermark_ms ended task_count", task_count="tasks"),
    Column("tasks", _tasks_text),
    Column("at"),
)
_RANGE = columns("name through messages bytes expired", counts="messages", bytes="size")
_SPLITS = columns("through messages bytes", counts="messages", bytes="size")
_tasks_option = click.option(
    "--tasks", "task_count", type=click.IntRange(1), default=1, metavar="N", help="How many tasks write the topic."
)


class PropertyText(click.ParamType[str]):
    """A value of a topic's property, as the API has it."""

    def __init__(self, described: TopicProperty) -> None:
        self.name = described.name
        self._described = described

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        read = self._described.kind.read(str(value))
        return (
            self.fail(f"{str(value)[:40]!r} is not {self._described.kind.values}", param, ctx) if read is None else read
        )


def _option_of(described: TopicProperty) -> Callable[[Any], Any]:
    effect = f"{described.effect[0].upper()}{described.effect[1:]}"
    return click.option(
        f"--{described.argument.replace('_', '-')}", described.argument, type=PropertyText(described),
        metavar="|".join(described.kind.words) if isinstance(described.kind, Word) else described.kind.METAVAR,
        help=f"{effect}. [default: {described.default_text}]",
    )  # fmt: skip


_property_options = stacked(
    *map(_option_of, PROPERTIES),
    click.option("--label", "labels", multiple=True, type=Pair(), metavar="NAME=VALUE", help="A property of your own."),
    click.option("--property", "others", multiple=True, type=Pair(), metavar="NAME=VALUE", help="Any property."),
)


def _given(
    labels: tuple[tuple[str, str], ...], others: tuple[tuple[str, str], ...], **typed: str | None
) -> dict[str, Any]:
    """The properties in the API's words; a usage error when one comes twice or is no property."""
    pairs = [*others, *((f"{LABEL}{name}", value) for name, value in labels)]
    pairs += [(each.name, value) for each in PROPERTIES if (value := typed[each.argument]) is not None]
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise Usage(f"property {name} is given {count} times", hint="leave all but one out")
        if name in _NOT_PROPERTIES:
            raise Usage(f"{name} is not a property that can be set", hint="see `basalt topic create --help`")
        if name not in BY_NAME and not name.startswith(LABEL):
            refused = unknown_property(name)
            raise Usage(refused.message, hint=refused.hint)
    return dict(pairs)


def _told(properties: Mapping[str, str]) -> list[dict[str, str]]:
    """Every property there is and a topic's own, with what holds, what would by default, and what it does."""
    known = [
        {
            "property": each.name,
            "value": each.kind.show(properties[each.name]) if each.name in properties else each.default_text,
            "default": each.default_text,
            "effect": each.effect,
        }
        for each in PROPERTIES
    ]
    labels = {name: value for name, value in properties.items() if name not in BY_NAME and name != GENERATION}
    return known + [
        {"property": name, "value": value, "default": "", "effect": ""} for name, value in sorted(labels.items())
    ]


@topic.call("create")
@click.argument("name")
@_property_options
@author_options
@dry_run_option
def create(invocation: Invocation, /, name: str, reason: str, by: str, dry_run: bool, **given: Any) -> None:
    """Create a topic.

    A topic that was deleted comes back empty, as its next generation.
    """
    properties = _given(**given)
    namespace = invocation.target().namespace
    with invocation.client() as client:
        if dry_run:
            would = client.topics.would_create(name, **properties)
            invocation.out.done(f"would create topic {namespace}:{name}, generation {would.generation}", row(would))
            return
        created = topic_row(client.topics.create(name, reason=reason, by=by, **properties), namespace)
    invocation.out.done(f"created topic {namespace}:{name}, generation {created['generation']}", created)


@topic.call("list")
@click.option("--all-namespaces", is_flag=True, help="Topics of every namespace.")
@click.option("--deleted", is_flag=True, help="Deleted topics too.")
@click.option("--contains", metavar="TEXT", help="Only those with this in NAMESPACE:TOPIC, in any case.")
@click.option("--sort", type=click.Choice(TOPIC_ORDERS), help="In which order. [default: name]")
@click.option("--descending", is_flag=True, help="The other way round.")
@click.option("--figures", is_flag=True, help="With messages, bytes, rate, and who holds readers back.")
@click.option("--after", metavar="NAMESPACE:NAME", help="Only those behind this one.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
def list_topics(invocation: Invocation, all_namespaces: bool, limit: int | None, **asked: Any) -> None:
    """List topics with their properties, or with their figures."""
    with invocation.client() as client:
        namespace = None if all_namespaces else client.namespace
        rows = list(map(described_topic_row, _listed(client, limit, namespace=namespace, **asked)))
    shown = _FIGURES if asked["figures"] else _COLUMNS
    columns = [column for column in shown if column.key != "namespace" or all_namespaces]
    invocation.out.rows([*columns, Column("deleted")] if asked["deleted"] else columns, rows)


def _listed(client: Client, limit: int | None, after: str | None, **asked: Any) -> Iterator[TopicDescription]:
    """The topics, a page at a time."""
    while True:
        wanted = {name: value or None for name, value in asked.items()}  # a flag that is not set is left out
        page = client.admin.topics_page(**wanted, after=after, limit=min(limit or PAGE_TOPICS, PAGE_TOPICS))
        yield from page.topics
        for server in page.unanswered:
            click.echo(
                f"basalt: the figures of topics of server {server} are missing: it did not answer in time", err=True
            )
        limit = None if limit is None else limit - len(page.topics)
        if page.next is None or limit == 0:
            return
        after = page.next


@topic.call("show")
@click.argument("name", type=TOPIC)
def show(invocation: Invocation, name: str) -> None:
    """Show a topic's properties and figures."""
    namespace = invocation.target().namespace
    with invocation.client() as client:
        found = client.topics.get(name)
        shown, properties = topic_row(found, namespace), found.properties
        stats = client.topic(name).stats()
    figures = {column.key: getattr(stats, column.key) for column in _STATS}
    invocation.out.record({**shown, **figures}, (*_SHOWN, *_STATS))
    if invocation.out.for_people:
        invocation.out.line("")
        invocation.out.rows(_PROPERTIES, _told(properties))


@topic.call("update")
@click.argument("name", type=TOPIC)
@_property_options
@click.option("--unset", multiple=True, metavar="NAME", help="Put this property back to its default.")
@author_options
@dry_run_option
def update(
    invocation: Invocation, /, name: str, unset: tuple[str, ...], reason: str, by: str, dry_run: bool, **given: Any
) -> None:
    """Change properties of a topic; those not named stay as they are. A new TTL holds for old messages too."""
    properties = _given(**given)
    if not properties and not unset:
        raise Usage("there is nothing to change", hint="name a property, or one to --unset")
    both = sorted(set(properties) & set(unset))
    if both:
        raise Usage(f"property {both[0]} is both given and unset", hint="leave one of them out")
    namespace = invocation.target().namespace
    with invocation.client() as client:
        shown = client.topics.get(name).properties
        for property_name in unset:
            if property_name not in shown:
                raise Usage(f"topic {namespace}:{name} has no property {property_name}")
        if dry_run:
            would = client.topics.would_update(name, unset=unset, **properties)
            invocation.out.done(f"would update topic {namespace}:{name}{_differences(would)}", row(would))
            return
        # With the generation, which makes the server refuse if the topic is another one by then.
        updated = topic_row(
            client.topics.update(name, generation=shown["generation"], unset=unset, reason=reason, by=by, **properties),
            namespace,
        )
    invocation.out.done(f"updated topic {namespace}:{name}", updated)


def _differences(would: TopicPlan) -> str:
    """The properties that would be others: ": ttl 60 to 120"."""
    before = would.before or {}
    names = sorted(name for name in {**before, **would.properties} if before.get(name) != would.properties.get(name))
    told = (
        f"{name} {plain(before.get(name, 'nothing'))} to {plain(would.properties.get(name, 'nothing'))}"
        for name in names
    )
    return f": {', '.join(told)}" if names else ": nothing changes"


@topic.call("watermark")
@click.argument("name", type=TOPIC)
@click.argument("task")
@click.argument("event_time_ms", type=int, metavar="MS")
@_tasks_option
@dry_run_option
def watermark(invocation: Invocation, name: str, task: str, event_time_ms: int, task_count: int, dry_run: bool) -> None:
    """Say that the event time of a producing task has come so far (milliseconds since 1970)."""
    _emit(invocation, name, task, event_time_ms, task_count, dry_run)


@topic.call("end")
@click.argument("name", type=TOPIC)
@click.argument("task")
@_tasks_option
@dry_run_option
def end(invocation: Invocation, name: str, task: str, task_count: int, dry_run: bool) -> None:
    """Say that nothing more comes from a producing task. The topic has ended when all of its tasks have."""
    _emit(invocation, name, task, None, task_count, dry_run)


def _emit(
    invocation: Invocation, name: str, task: str, event_time_ms: int | None, task_count: int, dry_run: bool
) -> None:
    """Emit a task's watermark; or, without a time, its end."""
    ends = event_time_ms is None
    with invocation.client() as client:
        handle, namespace = client.topic(name), client.namespace
        if dry_run:
            handle.markers()  # whether there is such a topic
        elif event_time_ms is None:
            handle.end(task, task_count)
        else:
            handle.watermark(task, event_time_ms, task_count)
    time = {} if ends else {"event_time_ms": event_time_ms}
    result = {"name": name, "namespace": namespace, "task": task, **time, "dry_run": dry_run}
    has, done = "would have" if dry_run else "has", "ended" if ends else f"come to {event_time_ms}"
    invocation.out.done(f"task {task} of topic {namespace}:{name} {has} {done}", result)


@topic.call("markers")
@click.argument("name", type=TOPIC)
@click.option("--wait", is_flag=True, help="Return when the topic has ended.")
@click.option("--within", "within_ms", type=DurationMs(), metavar="DURATION", help="How long to wait, at most.")
def markers(invocation: Invocation, name: str, wait: bool, within_ms: int | None) -> None:
    """Show a topic's watermark, whether it has ended, and what each of its tasks has said.

    With --wait the exit code is 1 when it has not ended in time.
    """
    if within_ms is not None and not wait:
        raise Usage("--within is for --wait", hint="add --wait")
    with invocation.client() as client:
        handle, namespace = client.topic(name), client.namespace
        if wait and not handle.wait_until_ended(within_ms):
            raise CommandFailure(f"topic {namespace}:{name} has not ended in time")
        found = handle.markers()
    tasks = [{"task": task.task, "watermark_ms": task.watermark_ms, "ended": task.ended} for task in found.tasks]
    shown = {"name": name, "namespace": namespace, **row(found), "tasks": tasks}
    invocation.out.record(shown, _MARKERS)


@topic.call("range")
@click.argument("name", type=TOPIC)
@click.option(
    "--after",
    type=MessageIdText("an id of 40 hex digits"),
    metavar="ID",
    help="Where it begins, exclusively; else at the oldest message.",
)
@click.option("--splits", "count", type=click.IntRange(1, 1_000), metavar="N", help="Also cut it into so many parts.")
def range_(invocation: Invocation, name: str, after: bytes | None, count: int | None) -> None:
    """Show up to where a topic reads the same for ever, and how much lies up to there."""
    with invocation.client() as client:
        handle, namespace = client.topic(name), client.namespace
        advance = handle.advance(after)
        expired, through = advance.expired, advance.through
        messages, size_bytes = advance.messages, advance.bytes
        while not advance.at_end:
            advance = handle.advance(through)
            through, messages, size_bytes = advance.through, messages + advance.messages, size_bytes + advance.bytes
        parts = [] if count is None or through is None else handle.splits(after, through, count)
    splits = [{"through": part.through.hex(), "messages": part.messages, "bytes": part.bytes} for part in parts]
    shown = {
        "name": name,
        "namespace": namespace,
        "after": None if after is None else after.hex(),
        "through": None if through is None else through.hex(),
        "messages": messages,
        "bytes": size_bytes,
        "expired": expired,
        "generation": advance.generation,
        "splits": splits,
    }
    invocation.out.record(shown, _RANGE)
    if invocation.out.for_people and splits:
        invocation.out.line("")
        invocation.out.rows(_SPLITS, splits)


@topic.call("truncate")
@click.argument("name", type=TOPIC)
@click.option(
    "--before", type=PositionText(), required=True, metavar="WHEN", help="A time: @2026-01-31T10:00:00Z, -7d or now."
)
@author_options
@yes_option
@dry_run_option
def truncate(
    invocation: Invocation, name: str, before: Position, reason: str, by: str, yes: bool, dry_run: bool
) -> None:
    """Put what was published before a time out of every reader's reach, for ever.

    A topic that is truncated already stays so at least as far.
    """
    if before.time_ms is None:
        raise Usage(f"{before.text} is not a time", hint="give @2026-01-31T10:00:00Z, @milliseconds, -7d or now")
    if before.time_ms == 0:
        raise Usage(f"{before.text} is before every message", hint="give a later time")
    namespace = invocation.target().namespace
    with invocation.client() as client:
        found = client.topics.truncate(name, before.time_ms, dry_run=True)
        what = f"{'' if found.exact else 'at least '}{counted(found.messages or 0, 'message')}"
        told = f"topic {namespace}:{name} before {time_text(found.truncated_before_ms)}: {what}"
        if not dry_run:
            confirm(f"Truncate {told}?", yes=yes)
            generation = client.topics.get(name).generation
            client.topics.truncate(name, before.time_ms, generation=generation, reason=reason, by=by)
    result = {"name": name, "namespace": namespace, **row(found), "dry_run": dry_run}
    invocation.out.done(f"{'would truncate' if dry_run else 'truncated'} {told}", result)


@topic.call("delete")
@click.argument("name", type=TOPIC)
@author_options
@yes_option
@dry_run_option
def delete(invocation: Invocation, name: str, reason: str, by: str, yes: bool, dry_run: bool) -> None:
    """Delete a topic with all its messages."""
    namespace = invocation.target().namespace
    with invocation.client() as client:
        would = client.topics.delete(name, dry_run=True)
        what = f"topic {namespace}:{name} and its {counted(would.messages or 0, 'message')}"
        what += f", read by {counted(would.groups, 'group')}" if would.groups else ""
        if not dry_run:
            confirm(f"Delete {what}?", yes=yes)
            client.topics.delete(name, reason=reason, by=by)
    result = {**row(would), "dry_run": dry_run}
    invocation.out.done(f"would delete {what}" if dry_run else f"deleted topic {namespace}:{name}", result)


namespace = group("namespace", "List namespaces.")


@namespace.call("list")
def list_namespaces(invocation: Invocation) -> None:
    """List the namespaces in which there is a topic; a namespace needs no creation."""
    with invocation.client() as client:
        rows = [{"name": name} for name in client.admin.namespaces()]
    invocation.out.rows(columns("name"), rows)


producers = group("producers", "See who publishes to a topic, and up to which number.")
topic.add_command(producers)

_PRODUCERS = columns("name last_sequence epoch run used_ms", last_sequence="last number", used_ms="used")


@producers.call("list")
@click.argument("topic", type=TOPIC)
def list_producers(invocation: Invocation, topic: str) -> None:
    """List the producers that a topic knows: named ones, which have an epoch and a run, and those of clients."""
    with invocation.client() as client:
        found = client.topic(topic).producers()
    invocation.out.rows(_PRODUCERS, map(row, found))


@producers.call("delete")
@click.argument("topic", type=TOPIC)
@click.argument("producer", metavar="NAME")
@yes_option
@dry_run_option
def delete_producer(invocation: Invocation, topic: str, producer: str, yes: bool, dry_run: bool) -> None:
    """Forget a producer and its last number: what it published stays, and whoever opens the name again begins anew."""
    told = f"producer {producer} of topic {topic}"
    with invocation.client() as client:
        known = next((each for each in client.topic(topic).producers() if each.name == producer), None)
        if known is None:
            raise ProducerNotFoundError(f"topic {topic} knows no producer {producer}")
        result = {"topic": topic, "name": producer, "last_sequence": known.last_sequence, "dry_run": dry_run}
        if dry_run:
            invocation.out.done(f"would delete {told}", result)
            return
        confirm(f"Delete {told}, after which its messages could be published again?", yes=yes)
        client.topic(topic).delete_producer(producer)
    invocation.out.done(f"deleted {told}", result)
