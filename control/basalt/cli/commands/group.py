"""`basalt group`: consumer groups made, listed and looked at; how far each is behind; set back, paused, and set free by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from basalt.cli.failures import EXIT_FOUND, EXIT_OK, Usage
from basalt.cli.options import (
    GROUP,
    TOPIC,
    DurationMs,
    Invocation,
    MessageIdText,
    PositionText,
    author_options,
    confirm,
    dry_run_option,
    limit_option,
    stacked,
    yes_option,
)
from basalt.cli.output import Column, columns, count_text, counted, duration_text, plain, row
from basalt.cli.root import group as command_group
from basalt.errors import ClaimLostError, GroupExistsError, GroupNotFoundError, InputError

if TYPE_CHECKING:
    from basalt.api.bodies.groups import GroupInfo
    from basalt.api.positions import Position
    from basalt.client import Client, Group

group = command_group("group", "Create, list, show, seek, pause and delete consumer groups.")

MESSAGES_DEFAULT = 50
SLOTS_DEFAULT = 100
STATES = ("available", "claimed", "pending", "delayed", "parked")
MODES = ("shared", "keyed", "stream", "tracked")
SORTS = ("name", "lag", "age")


def _seconds_text(seconds: object) -> str:
    return duration_text(round(seconds * 1_000)) if isinstance(seconds, int | float) else plain(seconds)


_LAG = (
    Column("lag_messages", count_text, "lag"),
    Column("lag_seconds", _seconds_text, "oldest"),
)
_LIST = (
    *columns("namespace topic name mode paused members claims"),
    *_LAG,
    *columns("exact counted_ms used_ms", counted_ms="counted", used_ms="used"),
)
_SLOTS = (
    *columns("slot owner messages claimed"),
    Column("lag_seconds", _seconds_text, "oldest"),
    *columns("oldest draining", oldest="id"),
)
_SHOWN = (
    *columns("name topic mode paused round floor"),
    *_LAG,
    *columns(
        "exact unread claimed pending delayed parked spans members claims", counts="unread claimed pending delayed parked spans"
    ),
    *columns("acknowledged_ms fetched_per_second acknowledged_per_second made_ms used_ms", acknowledged_ms="acknowledged",
             fetched_per_second="fetched per second", acknowledged_per_second="acknowledged per second",
             counts="fetched_per_second acknowledged_per_second"),
)  # fmt: skip
_OPTIONS = columns("option value")
_MEMBERS = columns("name epoch slots claims standby seen_ms expires_ms", seen_ms="seen", expires_ms="lease until")
_CLAIMS = columns(
    "claim member messages attempt since_ms until_ms transaction after through", since_ms="since", until_ms="until"
)
_MESSAGES = columns(
    "id state attempts reason member claim transaction owner since_ms until_ms through",
    since_ms="since",
    until_ms="until",
)
_MEASURED = (*columns("name"), *_LAG, *columns("exact unread claimed pending delayed parked"))

_topic_argument = click.argument("topic", type=TOPIC)
_name_argument = click.argument("name", type=GROUP, metavar="GROUP")
_option_options = stacked(
    click.option("--mode", type=click.Choice(MODES), help="How messages are shared out. [default: shared]"),
    click.option("--key", metavar="key|header:NAME", help="What tells the lanes of a keyed group apart. [default: key]"),
    click.option("--lease", "member_ms", type=DurationMs(), metavar="DURATION", help="Lease of a member. [default: 30s]"),
    click.option("--claim-time", "claim_ms", type=DurationMs(), metavar="DURATION", help="A claim ends after this. [default: 5m]"),
    click.option("--unacked-max", type=click.IntRange(1), metavar="N", help="Messages dealt at the same time. [default: 10000]"),
    click.option("--attempts-max", type=click.IntRange(0), metavar="N", help="Dealt so often at most; 0: no end. [default: 8]"),
    click.option("--retry-delay", "retry_delay_ms", type=DurationMs(), metavar="DURATION", help="Wait after the first attempt. [default: 1s]"),
    click.option("--retry-delay-max", "retry_delay_ms_max", type=DurationMs(), metavar="DURATION", help="Wait at most so long. [default: 5m]"),
    click.option("--dead-letter-topic", metavar="TOPIC", help="Where a message goes that failed too often."),
    click.option("--expire", "expire_ms", type=DurationMs(), metavar="DURATION", help="Forget the group when unused for so long. [default: never]"),
)  # fmt: skip


class _Acted(NamedTuple):
    """The group that a command acts on, or would act on."""

    client: Client
    group: Group
    dry_run: bool

    def __str__(self) -> str:
        return f"group {self.group.name} of {self.group.namespace}:{self.group.topic}"

    def result(self, **facts: object) -> dict[str, Any]:
        """The command's answer for programs."""
        names = {"name": self.group.name, "topic": self.group.topic, "namespace": self.group.namespace}
        return {**names, **facts, "dry_run": self.dry_run}


@contextmanager
def _acting(invocation: Invocation, topic: str, name: str, *, dry_run: bool) -> Iterator[_Acted]:
    try:
        with invocation.client() as client:
            yield _Acted(client, client.topic(topic).group(name), dry_run)
    except InputError as error:
        error.message = _by_options(error.message)
        raise


def _by_options(message: str) -> str:
    """A refusal in which what the server calls claimMs, say, is named as the command's option is, and its times are durations."""
    for option in click.get_current_context().command.params:
        if not isinstance(option, click.Option) or option.name is None:
            continue
        first, *others = option.name.split("_")
        for name in (option.name, first + "".join(map(str.capitalize, others))):
            values = r"(?P<values> is [^,;]+(, not [^,;]+|; it must be [^,;]+)?)"
            shown = (
                partial(_with_durations, option)
                if isinstance(option.type, DurationMs)
                else rf"{option.opts[-1]}\g<values>"
            )
            message = re.sub(rf"(?<![\w-]){name}{values}", shown, message)
    return message


def _with_durations(option: click.Option, found: re.Match[str]) -> str:
    return option.opts[-1] + re.sub(r"\d+", lambda number: duration_text(int(number[0])), found["values"])


def group_row(info: GroupInfo) -> dict[str, Any]:
    """A group as a row: its options and figures beside its own fields."""
    shown = row(info)
    figures = shown.pop("figures") or {}
    return {**shown, "mode": info.options.mode, **figures}


def _shown(invocation: Invocation, shown: dict[str, Any]) -> None:
    invocation.out.record(shown, _SHOWN)
    if invocation.out.for_people:
        invocation.out.line("")
        invocation.out.rows(_OPTIONS, [{"option": name, "value": value} for name, value in shown["options"].items()])


@group.call("create")
@_topic_argument
@_name_argument
@click.option(
    "--start", metavar="SPEC", help="Where it begins: start, end, an id, or a time such as -1h. [default: start]"
)
@_option_options
@dry_run_option
def create(invocation: Invocation, /, topic: str, name: str, dry_run: bool, **given: Any) -> None:
    """Create a group. One that is there with these options stays as it is; with others it is left alone, exit code 4."""
    options = {option: value for option, value in given.items() if value is not None}
    with _acting(invocation, topic, name, dry_run=dry_run) as acted:
        if dry_run:
            there = _is_there(acted, options)
            invocation.out.done(
                f"{acted} is there with these options" if there else f"would create {acted}",
                acted.result(options=options),
            )
            return
        made = group_row(acted.group.create(**options))
    invocation.out.done(f"{acted} is {made['mode']} and begins at {made['floor']}", made)


def _is_there(acted: _Acted, options: dict[str, Any]) -> bool:
    """True if the group is there with these options; `GroupExistsError` when it has others, as the server says it."""
    wanted = _checked(options)
    acted.client.topics.get(acted.group.topic)
    try:
        found = row(acted.group.get().options)
    except GroupNotFoundError:
        return False
    others = [f"{name} is {plain(found[name])}, not {plain(wanted[name])}" for name in _differing(found, wanted)]
    if others:
        raise GroupExistsError(
            f"{acted} is there with other options: {', '.join(others)}", hint="change them, or name another group"
        )
    return True


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options with those that were left out; refused as the server would, which has limits of its own beside."""
    from basalt.api.bodies.groups import GroupOptions, check_options
    from basalt.api.bodies.messages import LONG_MAX

    made = GroupOptions(**options)
    check_options(made, LONG_MAX, LONG_MAX)
    return row(made)


def _differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in before if before[name] != after[name]]


@group.call("list")
@click.argument("topic", type=TOPIC, required=False)
@click.option("--all-namespaces", is_flag=True, help="Groups of all topics of every namespace.")
@click.option("--mode", type=click.Choice(MODES), help="Only those of this mode.")
@click.option("--paused/--not-paused", default=None, help="Only those that are paused, or only those that are not.")
@click.option("--contains", metavar="TEXT", help="Only those with this in NAMESPACE:TOPIC/GROUP.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="name",
    show_default=True,
    help="By name, lag in messages, or age of the oldest.",
)
@click.option("--after", metavar="PLACE", help="Only those behind this place: `next` of an answer.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
def list_groups(
    invocation: Invocation, topic: str | None, all_namespaces: bool, mode: Any, paused: bool | None, contains: str | None,
    sort: Any, after: str | None, limit: int | None,
) -> None:  # fmt: skip
    """List groups: of a topic, of all topics of the namespace, or of every namespace; with how far each is behind.

    The lag of each is as it was counted last, which may be a while ago where there are very many. `basalt group lag` counts anew.
    """
    if all_namespaces and topic is not None:
        raise Usage("--all-namespaces and a topic", hint="leave one of them out")
    with invocation.client() as client:
        title = None if topic is None else f"{client.topic(topic).namespace}:{topic}"
        page = client.admin.groups(
            namespace=None if all_namespaces or topic is not None else client.namespace, topic=title, mode=mode, paused=paused,
            contains=contains, sort=sort, after=after, limit=limit,
        )  # fmt: skip
    invocation.out.rows(_LIST[0 if all_namespaces else 1 if topic is None else 2 :], map(row, page.groups))


@group.call("show")
@_topic_argument
@_name_argument
def show(invocation: Invocation, topic: str, name: str) -> None:
    """Show a group: how far behind it is, what its messages wait for, and its options."""
    with invocation.client() as client:
        shown = group_row(client.topic(topic).group(name).get())
    _shown(invocation, shown)


@group.call("change")
@_topic_argument
@_name_argument
@_option_options
@author_options
@dry_run_option
def change(invocation: Invocation, /, topic: str, name: str, reason: str, by: str, dry_run: bool, **given: Any) -> None:
    """Change options of a group; those not named stay as they are."""
    changes = {option: value for option, value in given.items() if value is not None}
    if not changes:
        raise Usage("there is nothing to change", hint="name an option")
    with _acting(invocation, topic, name, dry_run=dry_run) as acted:
        found = acted.group.update(dry_run=dry_run, reason=reason, by=by, **changes)
    named = ((re.sub("[A-Z]", lambda hump: f"_{hump[0].lower()}", each.option), each) for each in found.changes)
    moves = ", ".join(f"{option} {each.before} -> {each.after}" for option, each in named) or "nothing"
    verb = "would change" if dry_run else "changed"
    invocation.out.done(f"{verb} {acted}: {moves}", {**group_row(found.group), "dry_run": dry_run})


@group.call("members")
@_topic_argument
@_name_argument
def members(invocation: Invocation, topic: str, name: str) -> None:
    """List a group's members, with their slots and claims, and when each was last heard of."""
    invocation.show_all(_MEMBERS, lambda client: client.topic(topic).group(name).members())


@group.call("claims")
@_topic_argument
@_name_argument
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
def claims(invocation: Invocation, topic: str, name: str, limit: int | None) -> None:
    """List who works on what in a group, oldest first."""
    invocation.show_all(_CLAIMS, lambda client: client.topic(topic).group(name).claims(limit=limit))


@group.call("slots")
@_topic_argument
@_name_argument
@limit_option(SLOTS_DEFAULT, None, " slots")
def slots(invocation: Invocation, topic: str, name: str, limit: int) -> None:
    """List the slots of a keyed group that have messages, the furthest behind first: as far as it has been read ahead."""
    invocation.show_all(_SLOTS, lambda client: client.topic(topic).group(name).slots(limit=limit).slots)


@group.call("messages")
@_topic_argument
@_name_argument
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@limit_option(MESSAGES_DEFAULT, None, " entries")
def messages(invocation: Invocation, topic: str, name: str, state: str | None, limit: int) -> None:
    """List messages that a group has not acknowledged, in order; neighbours of one state are one entry."""
    invocation.show_all(_MESSAGES, lambda client: client.topic(topic).group(name).messages(state=state, limit=limit))


@group.call("lag")
@_topic_argument
@click.argument("names", nargs=-1, type=GROUP, metavar="[GROUP]...")
@click.option(
    "--over", type=click.IntRange(0), metavar="N", help="Exit with 7 when a group is over so many messages behind."
)
@click.option(
    "--older", "older_ms", type=DurationMs(), metavar="DURATION", help="Exit with 7 when its oldest message is older."
)
def lag(invocation: Invocation, topic: str, names: Sequence[str], over: int | None, older_ms: int | None) -> int:
    """Show how far groups are behind, in messages and in time: those named, or all of the topic.

    With --over or --older only those groups are shown that are further behind, and the exit code is 7 when there is one.
    """
    with invocation.client() as client:
        found = [group_row(info) for info in _asked(client, topic, names)]
    if over is not None or older_ms is not None:
        found = [each for each in found if is_behind(each, over, older_ms)]
    invocation.out.rows(_MEASURED, found)
    return EXIT_FOUND if found and (over is not None or older_ms is not None) else EXIT_OK


def _asked(client: Client, topic: str, names: Sequence[str]) -> list[GroupInfo]:
    """The groups with their figures; one that is deleted meanwhile is left out of all."""
    if names:
        return [client.topic(topic).group(name).get() for name in names]
    return client.topic(topic).groups(figures=True)


def is_behind(shown: dict[str, Any], over: int | None, older_ms: int | None) -> bool:
    """True when a group is further behind than one of these; what is not known counts as behind."""
    lag_messages, lag_seconds = shown.get("lag_messages"), shown.get("lag_seconds")
    if lag_messages is None or lag_seconds is None:
        return True
    return (over is not None and lag_messages > over) or (older_ms is not None and lag_seconds * 1_000 > older_ms)


@group.call("seek")
@_topic_argument
@_name_argument
@click.option(
    "--to",
    type=PositionText(),
    required=True,
    metavar="SPEC",
    help="Go on here: start, end, an id, or a time such as -1h.",
)
@click.option("--force", is_flag=True, help="Also while transactions acknowledge: they can then not commit.")
@author_options
@yes_option
@dry_run_option
def seek(
    invocation: Invocation,
    topic: str,
    name: str,
    to: Position,
    force: bool,
    reason: str,
    by: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Set a group back or forward. What is claimed in it is revoked.

    It says first how many messages would be skipped, and how many would come once more.
    """
    with invocation.client() as client:
        handle, namespace = client.topic(topic).group(name), client.namespace
        would = handle.seek(to, force=force, dry_run=True)
        about = "" if would.exact else "about "
        told = (
            f"group {name} of {namespace}:{topic} to {to.text}: {about}{counted(would.skipped, 'message')} skipped,"
            f" {about}{counted(would.repeated, 'message')} dealt once more"
        )
        if dry_run:
            invocation.out.done(f"would seek {told}", row(would))
            return
        confirm(f"Seek {told}?", yes=yes)
        done = handle.seek(to, force=force, reason=reason, by=by)
    invocation.out.done(f"sought {told}", row(done))


@group.call("pause")
@_topic_argument
@_name_argument
@author_options
@dry_run_option
def pause(invocation: Invocation, topic: str, name: str, reason: str, by: str, dry_run: bool) -> None:
    """Deal no messages until the group is resumed."""
    _pause(invocation, topic, name, reason, by, paused=True, dry_run=dry_run)


@group.call("resume")
@_topic_argument
@_name_argument
@author_options
@dry_run_option
def resume(invocation: Invocation, topic: str, name: str, reason: str, by: str, dry_run: bool) -> None:
    """Deal messages again."""
    _pause(invocation, topic, name, reason, by, paused=False, dry_run=dry_run)


def _pause(invocation: Invocation, topic: str, name: str, reason: str, by: str, *, paused: bool, dry_run: bool) -> None:
    with _acting(invocation, topic, name, dry_run=dry_run) as acted:
        do = acted.group.pause if paused else acted.group.resume
        found = do(dry_run=dry_run, reason=reason, by=by)
    verb = ("would pause" if paused else "would resume") if dry_run else "paused" if paused else "resumed"
    invocation.out.done(f"{verb} {acted}", acted.result(paused=found.paused))


@group.call("release")
@_topic_argument
@_name_argument
@click.argument("claim_numbers", nargs=-1, required=True, type=click.IntRange(1), metavar="CLAIM...")
@click.option("--delay", "delay_ms", type=DurationMs(), metavar="DURATION", help="Deal them again after this time.")
@click.option("--uncounted", is_flag=True, help="Do not count it as an attempt.")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown with the messages.")
@dry_run_option
def release(
    invocation: Invocation, topic: str, name: str, claim_numbers: Sequence[int], delay_ms: int | None, uncounted: bool,
    reason: str, dry_run: bool,
) -> None:  # fmt: skip
    """Take claims (`basalt group claims`) from whoever works on them: their messages are dealt again."""
    if uncounted and delay_ms is not None:
        raise Usage("--delay and --uncounted: what was no attempt is dealt again at once", hint="leave one of them out")
    with _acting(invocation, topic, name, dry_run=dry_run) as acted:
        there = {claim.claim: claim.messages for claim in acted.group.claims()}
        if gone := [str(number) for number in claim_numbers if number not in there]:
            raise ClaimLostError(
                f"{acted} has no claim {', '.join(gone)} (any more)",
                hint="`basalt group claims` lists those that it has",
            )
        released = sum(there[number] for number in set(claim_numbers))
        if not dry_run:
            released = acted.group.release(
                claims=tuple(dict.fromkeys(claim_numbers)), delay_ms=delay_ms, counts=not uncounted, reason=reason
            ).released
    what = "would release" if dry_run else "released"
    invocation.out.done(f"{what} {counted(released, 'message')} of {acted}", acted.result(released=released))


@group.call("unpark")
@_topic_argument
@_name_argument
@click.argument("ids", nargs=-1, type=MessageIdText(), metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All that are parked.")
@author_options
@dry_run_option
def unpark(
    invocation: Invocation,
    topic: str,
    name: str,
    ids: Sequence[bytes],
    everything: bool,
    reason: str,
    by: str,
    dry_run: bool,
) -> None:
    """Deal parked messages again, from their first attempt on."""
    if everything == bool(ids):
        raise Usage("name messages, or --all", hint="`basalt group messages TOPIC GROUP --state parked` lists them")
    with _acting(invocation, topic, name, dry_run=dry_run) as acted:
        unparked = acted.group.unpark(None if everything else ids, dry_run=dry_run, reason=reason, by=by).unparked
    what = "would unpark" if dry_run else "unparked"
    invocation.out.done(f"{what} {counted(unparked, 'message')} of {acted}", acted.result(unparked=unparked))


@group.call("delete")
@_topic_argument
@_name_argument
@click.option("--force", is_flag=True, help="Also while transactions acknowledge in it: they can then not commit.")
@author_options
@yes_option
@dry_run_option
def delete(
    invocation: Invocation, topic: str, name: str, force: bool, reason: str, by: str, yes: bool, dry_run: bool
) -> None:
    """Forget a group and how far it is. The topic and its messages stay."""
    with _acting(invocation, topic, name, dry_run=dry_run) as acted:
        floor = acted.group.get().floor.hex()
        told = f"{acted}, which stands at {floor}"
        result = acted.result(floor=floor)
        if dry_run:
            invocation.out.done(f"would delete {told}", result)
            return
        confirm(f"Delete {told}?", yes=yes)
        acted.group.delete(force=force, reason=reason, by=by)
    invocation.out.done(f"deleted {acted}", result)
