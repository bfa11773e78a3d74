"""`basalt job`, `audit`, `cluster`, `snapshot`, `prune`, `alerts` and `process`: what operators do with a running server, and see of it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.failures import EXIT_FAILURE, EXIT_OK, CommandFailure, Usage
from basalt.cli.options import (
    JOB,
    TOPIC,
    Invocation,
    PositionText,
    author_options,
    command,
    confirm,
    dry_run_option,
    limit_option,
    yes_option,
)
from basalt.cli.output import Column, columns, counted, duration_text, printable, row, size_text, time_text
from basalt.cli.root import group
from basalt_engine.snapshot import POINTER_MAX

if TYPE_CHECKING:
    from basalt.api.positions import Position

HISTORY_RUNS_DEFAULT = 20
HISTORY_RUNS_MAX = 1_000

job = group("job", "List, run, pause and resume scheduled jobs.")

_JOB_COLUMNS = columns(
    "name enabled paused running interval_ms next_run_ms last_started_ms last_outcome",
    interval_ms="every",
    last_started_ms="last run",
    last_outcome="outcome",
)
_ONE_JOB = columns(
    "name help enabled paused running interval_ms window next_run_ms last_started_ms last_outcome",
    interval_ms="every",
    last_started_ms="last run",
    last_outcome="outcome",
)
_RUN_COLUMNS = columns("started_ms duration_ms outcome times detail", duration_ms="took")


@job.call("list")
def list_jobs(invocation: Invocation) -> None:
    """List jobs: when each runs next, and how its last run ended."""
    invocation.show_all(_JOB_COLUMNS, lambda client: client.admin.jobs())


@job.call("history")
@click.argument("name", type=JOB)
@limit_option(HISTORY_RUNS_DEFAULT, HISTORY_RUNS_MAX, " runs")
def history(invocation: Invocation, name: str, limit: int) -> None:
    """List a job's last runs, newest first."""
    invocation.show_all(_RUN_COLUMNS, lambda client: client.admin.job_history(name, limit=limit))


@job.call("show")
@click.argument("name", type=JOB)
def show_job(invocation: Invocation, name: str) -> None:
    """Show a job: its schedule, its last run, and when it runs next."""
    with invocation.client() as client:
        invocation.out.record(row(client.admin.job(name)), _ONE_JOB)


def _job_command(verb: str, help_text: str) -> None:
    @job.call(verb)
    @click.argument("name", type=JOB)
    @author_options
    @dry_run_option
    def act(invocation: Invocation, name: str, dry_run: bool, reason: str, by: str) -> None:
        _act(invocation, verb, name, dry_run=dry_run, reason=reason, by=by)

    act.help = help_text


_job_command("run", "Run a job now, also one that is paused, and tell how it ended.")
_job_command("pause", "Let a job run no more by itself, also after a restart, until it is resumed.")
_job_command("resume", "Let a paused job run again.")


def _act(invocation: Invocation, verb: str, name: str, **how: Any) -> None:
    with invocation.client() as client:
        admin = client.admin
        act = {"run": admin.run_job, "pause": admin.pause_job, "resume": admin.resume_job}[verb]
        answer = row(act(name, **how))
    if answer["dry_run"]:
        unchanged = "" if answer["changed"] else ": nothing changes"
        invocation.out.done(f"would {verb} job {name}{unchanged}", answer)
        return
    run = answer["run"]
    if run is not None and run["outcome"] == "failed":
        raise CommandFailure(f"job {name} failed: {run['error']}", hint=f"see `basalt job history {name}`")
    done = {"run": "ran", "pause": "paused", "resume": "resumed"}[verb]
    invocation.out.done(f"{done} job {name}" + ("" if run is None else _outcome(run)), answer)


def _outcome(run: dict[str, Any]) -> str:
    detail = f" ({run['detail']})" if run["detail"] else ""
    return f": {run['outcome']} in {duration_text(run['duration_ms'])}{detail}"


audit = group("audit", "Show what was done by hand, by whom and why.")

_ACTS = columns("at_ms act what outcome reason name address", at_ms="when", name="by", address="from")


@audit.call("list")
@click.option(
    "--from",
    "start",
    type=PositionText(),
    metavar="WHEN",
    help="Only at this time or later: -7d, @2026-01-31T10:00:00Z.",
)
@click.option("--to", "stop", type=PositionText(), metavar="WHEN", help="Only before this time.")
@click.option("--act", metavar="ACT", help="Only this act, such as grant.")
@click.option("--principal", metavar="PRINCIPAL", help="Only what this principal did.")
@click.option("--target", metavar="TEXT", help="Only what was done to something with this text in its name.")
@click.option("--after", metavar="ID", help="Only acts behind the one of this id, which are older.")
@limit_option(50, 10_000, "", metavar=None)
def list_acts(
    invocation: Invocation, start: Position | None, stop: Position | None, act: str | None, principal: str | None,
    target: str | None, after: str | None, limit: int,
) -> None:  # fmt: skip
    """List forced ends of transactions, pruning, truncations and the like, newest first."""
    from_ms, to_ms = _time_ms("--from", start), _time_ms("--to", stop)
    invocation.show_all(
        _ACTS,
        lambda client: client.admin.audit(
            from_ms=from_ms, to_ms=to_ms, act=act, principal=principal, target=target, after=after, limit=limit
        ),
    )


def _time_ms(option: str, given: Position | None) -> int | None:
    if given is not None and given.time_ms is None:
        raise Usage(
            f"{option} {given.text} is not a time", hint="give @2026-01-31T10:00:00Z, @milliseconds, -7d or now"
        )
    return None if given is None else given.time_ms


DRAIN_LOOK_S = 0.5  # between two looks of `cluster drain --wait`; the shards move together, within a second or two

cluster = group("cluster", "Show who leads, who stands by and who owns which topics; move shards.")

_CLUSTER = columns(
    "version started_ms shared leads holder url epoch lease_ms lease_age_ms terms certificate_ends_ms",
    started_ms="started",
    lease_ms="lease",
    lease_age_ms="lease age",
    certificate_ends_ms="certificate ends",
)


@cluster.call("show")
def show_cluster(invocation: Invocation) -> None:
    """Show the server that leads: its lease, its epoch, how often it took the lead, and when its certificate ends."""
    with invocation.client() as client:
        invocation.out.record(row(client.admin.cluster()), _CLUSTER)


_MEMBERS = columns(
    "name url role state version since_ms renewed_ago_ms linked rtt_us shards load of_share",
    since_ms="member since",
    renewed_ago_ms="renewed ago",
    of_share="of its share",
)
_STANDING = columns(
    "leader url epoch shared live silent dead standbys linked versions looked_ago_ms", looked_ago_ms="looked ago"
)


@cluster.call("members")
def list_members(invocation: Invocation) -> None:
    """List the servers that share the store: the leader, its standbys, and those that died of late."""
    invocation.show_all(_MEMBERS, lambda client: client.admin.cluster_members().members)


@cluster.call("move")
@click.argument("topic", type=TOPIC, required=False)
@click.option("--shard", "shards", type=click.IntRange(0), multiple=True, help="Move this shard; may be given again.")
@click.option(
    "--to",
    required=True,
    metavar="MEMBER",
    help="The member that gets it: its name or its instance, as `cluster members` tells.",
)
@author_options
@dry_run_option
def move_shards(
    invocation: Invocation, topic: str | None, shards: tuple[int, ...], to: str, dry_run: bool, reason: str, by: str
) -> None:  # fmt: skip
    """Move the shard of a topic, or shards, to a member. Calls to their topics wait meanwhile."""
    if (topic is None) == (not shards):
        raise Usage("a move is of the shard of a topic, or of shards", hint="give TOPIC, or --shard N")
    with invocation.client() as client:
        moved = client.admin.move_shards(to, topic=topic, shards=shards, dry_run=dry_run, reason=reason, by=by)
    told = ", ".join(f"{each.shard} (epoch {each.epoch_before} to {each.epoch})" for each in moved.shards)
    told = f"shard{'s' if len(moved.shards) > 1 else ''} {told} to {to}"
    took = "" if dry_run else f", within {duration_text(moved.took_ms)}"
    invocation.out.done(f"{'would move' if dry_run else 'moved'} {told}{took}", row(moved))


_DRAIN = columns("member drained left kept")


@cluster.call("drain")
@click.argument("member")
@click.option("--wait", "waits", is_flag=True, help="Wait until it has none any more.")
@author_options
@dry_run_option
def drain_member(invocation: Invocation, member: str, waits: bool, dry_run: bool, reason: str, by: str) -> None:
    """Give a server no topics any more, and move away those that it has, as before it is stopped."""
    with invocation.client() as client:
        told = client.admin.drain_member(member, dry_run=dry_run, reason=reason, by=by)
        while waits and not dry_run and told.left:
            time.sleep(DRAIN_LOOK_S)
            told = client.admin.drain_member(member, dry_run=True)
    invocation.out.record(row(told), _DRAIN)


@cluster.call("undrain")
@click.argument("member")
@author_options
@dry_run_option
def undrain_member(invocation: Invocation, member: str, dry_run: bool, reason: str, by: str) -> None:
    """Let a server that was drained have topics again."""
    with invocation.client() as client:
        invocation.out.record(row(client.admin.undrain_member(member, dry_run=dry_run, reason=reason, by=by)), _DRAIN)


@cluster.call("balance")
@author_options
@dry_run_option
def balance_shards(invocation: Invocation, dry_run: bool, reason: str, by: str) -> None:
    """Move some shards now from servers that have more than their share of calls, whatever cluster.balance says."""
    with invocation.client() as client:
        told = client.admin.balance_shards(dry_run=dry_run, reason=reason, by=by)
    moves = Counter((each.origin, each.to) for each in told.moves)
    ways = ", ".join(
        f"{counted(count, 'shard')} from {origin} to {to}" for (origin, to), count in sorted(moves.items())
    )
    sentence = f"{'would move' if dry_run else 'moved'} {ways}" if moves else "nothing moves"
    invocation.out.done(f"{sentence}: {told.why}", row(told))


@cluster.call("status")
def cluster_status(invocation: Invocation) -> None:
    """Tell who leads, how many servers stand by to take over, and whether all have the same version."""
    with invocation.client() as client:
        told = client.admin.cluster_members()
    alive = [member for member in told.members if member.state != "dead"]
    leader = next((member for member in alive if member.role == "leader"), None)
    counts = Counter(member.state for member in told.members)
    versions = sorted({member.version for member in alive})
    answer = {
        "leader": leader and leader.name, "url": leader and leader.url, "epoch": told.epoch, "shared": told.shared,
        "live": counts["live"], "silent": counts["silent"], "dead": counts["dead"],
        "standbys": sum(member.role == "standby" and member.state == "live" for member in alive),
        "linked": sum(member.linked is True for member in alive), "versions": versions, "looked_ago_ms": told.looked_ago_ms,
    }  # fmt: skip
    invocation.out.record(answer, _STANDING)
    if invocation.out.for_people and told.shared:
        if len(versions) > 1:
            click.echo("basalt: the servers have different versions: an upgrade is not over", err=True)
        if not answer["standbys"]:
            click.echo("basalt: no server stands by: if the leader ends, nothing serves until one is started", err=True)


_SHARDS = columns("version leader_epoch shared shards live silent dead unowned", version="map version")
_OWNERS = columns("owner url state shards load of_share", of_share="of its share")
_BUSIEST = columns("shard owner load")
_RANGES = columns("first last owner epoch_min epoch_max", epoch_min="lowest epoch", epoch_max="highest epoch")
_OWNER = columns(
    "kind name shard owner instance url state epoch since_ms why map_version",
    since_ms="since",
    map_version="map version",
)


@cluster.call("shards")
@click.option("--busiest", is_flag=True, help="Also the busiest shards, with the calls a second to each.")
@click.option("--ranges", is_flag=True, help="Also every range of neighbouring shards that one server owns.")
def cluster_shards(invocation: Invocation, busiest: bool, ranges: bool) -> None:
    """Show how the shards of all topics and tables are dealt to servers, and whether some are without an owner."""
    with invocation.client() as client:
        answer = row(client.admin.cluster_shards())
    if not invocation.out.for_people:
        invocation.out.record(answer)
        return
    invocation.out.record({**answer, **answer["states"]}, _SHARDS)
    invocation.out.line("")
    invocation.out.rows(_OWNERS, map(_named_owner, answer["members"]))
    names = {each["instance"]: _named_owner(each)["owner"] for each in answer["members"]}
    for columns_of, key in [(_BUSIEST, "busiest")] * busiest + [(_RANGES, "ranges")] * ranges:
        invocation.out.line("")
        invocation.out.rows(columns_of, ({**each, "owner": names[each["instance"]]} for each in answer[key]))
    if answer["unowned"]:
        click.echo(
            f"basalt: nobody serves {counted(answer['unowned'], 'shard')}: the owner is no member any more", err=True
        )


def _named_owner(member: dict[str, Any]) -> dict[str, Any]:
    """A member, by the name of its run where it has no other."""
    return {**member, "owner": member["owner"] or member["instance"]}


@cluster.call("owner")
@click.argument("topic", type=TOPIC)
@click.option("--table", is_flag=True, help="TOPIC is the name of a transactional table.")
def cluster_owner(invocation: Invocation, topic: str, table: bool) -> None:
    """Tell which server owns TOPIC, since when and why. A topic that there is not has an owner, too."""
    with invocation.client() as client:
        admin = client.admin
        answer = row(admin.table_owner(topic) if table else admin.topic_owner(topic))
    invocation.out.record(answer, _OWNER)


@cluster.call("explain")
@click.argument("topic", type=TOPIC)
def cluster_explain(invocation: Invocation, topic: str) -> None:
    """Tell in words where TOPIC is: its shard, owner, buckets and regions, and what is in the way of calls to it now."""
    with invocation.client() as client:
        answer = row(client.admin.explain_topic(topic))
    if not invocation.out.for_people:
        invocation.out.record(answer)
        return
    for sentence in _explained(answer):
        invocation.out.line(printable(sentence))


def _explained(answer: dict[str, Any]) -> list[str]:
    """The sentences about a topic, each a line."""
    owner = answer["owner"]
    name = f"{owner['namespace']}:{owner['name']}"
    salts = ", ".join(map(str, answer["buckets"]))
    where = f"shard {owner['shard']} and bucket {salts} of {answer['bucket_count']}"
    told = [
        f"Topic {name} is in {where}." if answer["exists"] else f"There is no topic {name}; it would be in {where}."
    ]
    if owner["why"] == "alone":
        told.append("Its store is embedded: this server owns all shards, and has answered just now.")
    else:
        who = f"{owner['owner'] or owner['instance']}{owner['url'] and ' at ' + owner['url']}"
        told.append(
            f"Its owner is {who}, under epoch {owner['epoch']} of the shard (map version {owner['map_version']})."
        )
        told.append(_WHY[owner["why"]] + (f" That was at {time_text(owner['since_ms'])}." if owner["since_ms"] else ""))
        told.append(_LEASES[owner["state"]] + (" It has answered just now." if answer["answers"] else ""))
    told += [
        f"Region {each['region']} of table {each['table']}, on {each['server'] or 'no region server'}, can hold messages of it."
        for each in answer["regions"]
    ]
    told += [f"In the way: {each}." for each in answer["obstacles"]]
    return told if answer["obstacles"] else [*told, "Nothing is known that would make calls wait, or refuse them."]


_WHY = {
    "lead": "It owns the shard because it leads: who begins to lead is given all shards.",
    "move": "A planned move has given it the shard since.",
    "grant": "It was given the shard by the leader, after that one's term had begun or in a term before.",
}
_LEASES = {"live": "Its lease is on.", "silent": "It has missed renewals of its lease.", "dead": "Its lease is over."}

snapshot = group("snapshot", "Show and publish the transaction snapshot.")

_SNAPSHOT = columns(
    "read_pointer write_pointer in_progress invalid oldest_in_progress oldest_began_ms", oldest_began_ms="began"
)
_PUBLISHED = columns(
    "epoch sequence time_ms decided visibility_upper_bound lifetime_ms_max in_progress invalid",
    time_ms="published",
    lifetime_ms_max="lifetime",
)


@snapshot.call("show")
def show_snapshot(invocation: Invocation) -> None:
    """Show the manager's snapshot, and the one that was published for region servers."""
    with invocation.client() as client:
        answer = row(client.admin.snapshot())
    if not invocation.out.for_people:
        invocation.out.record(answer)
        return
    invocation.out.record(answer, _SNAPSHOT)
    if answer["published"] is not None:
        invocation.out.line("")
        invocation.out.record(answer["published"], _PUBLISHED)


@snapshot.call("publish")
@dry_run_option
def publish_snapshot(invocation: Invocation, dry_run: bool) -> None:
    """Publish the snapshot for the region servers now, rather than with the job's next run."""
    with invocation.client() as client:
        if dry_run:
            answer = row(client.admin.snapshot())
            invocation.out.done("would publish a snapshot", {**answer, "dry_run": True})
            return
        answer = row(client.admin.publish_snapshot())
    invocation.out.done(f"published snapshot {answer['sequence']} of epoch {answer['epoch']}", answer)


prune = group("prune", "Forget failed writers once no row of theirs is left.")

_STATUS = columns(
    "invalid free fault regions reports lifetime_ms skew_ms restored",
    free="may go now",
    reports="regions with a report",
    skew_ms="clock difference",
)
_CAUSES = columns("writers cause freed_by")
_HOLDS = columns("write_pointer began_ms cause table region detail freed_by")
_REGIONS = columns(
    "id table server report_ms oldest_edit_ms files unknown_files held_back oldest_held coprocessor coprocessor_state idle",
    report_ms="reported",
    oldest_edit_ms="oldest unflushed",
    coprocessor_state="beside the server",
    unknown_files="of unknown origin",
)
_FILES = columns("name decided newest bytes modified_ms held_back", bytes="size")
_INVALID = columns("write_pointer began_ms ends_ms cause freed_by", ends_ms="not before")
_COMPACTIONS = columns("id table server files bytes", bytes="size")
_HISTORY = columns("pruned_ms writers oldest newest")


@prune.call("run")
@author_options
@dry_run_option
def prune_run(invocation: Invocation, dry_run: bool, reason: str, by: str) -> None:
    """Forget what may be forgotten now, and ask for compactions where files are in the way."""
    with invocation.client() as client:
        answer = row(client.admin.prune(dry_run=dry_run, reason=reason, by=by))
    would = "would prune" if dry_run else "pruned"
    sentence = f"{would} {counted(answer['pruned'], 'writer')} of {answer['invalid']:,}"
    sentence += f"; {answer['waiting']:,} wait for their lifetime to end, something holds back {answer['held']:,}"
    if answer["compactions"]:
        sentence += f"; compactions asked for: {' '.join(answer['compactions'])}"
    invocation.out.done(sentence, answer)


@prune.call("status")
def status(invocation: Invocation) -> None:
    """Show how long the invalid list is, how much of it may go, and what is in the way of the rest."""
    with invocation.client() as client:
        answer = row(client.admin.prune_status())
    invocation.out.record(answer, _STATUS)
    if invocation.out.for_people and answer["causes"]:
        invocation.out.line("")
        invocation.out.rows(_CAUSES, answer["causes"])


@prune.call("explain")
@click.argument("write_pointer", required=False, type=click.IntRange(1, POINTER_MAX), metavar="[WRITE_POINTER]")
@limit_option(10, 1_000, " writers", metavar=None)
def explain(invocation: Invocation, write_pointer: int | None, limit: int) -> None:
    """Tell which region and file holds back each writer, and what will free it: one, or the oldest."""
    with invocation.client() as client:
        found = [row(each) for each in client.admin.prune_explain(write_pointer, limit=limit)]
    if invocation.out.for_people:
        invocation.out.rows(_HOLDS, [line for each in found for line in _lines(each)])
        return
    invocation.out.rows((), found)


@prune.call("list")
@click.option(
    "--cause", metavar="CAUSE", help="Only those that wait for this first, as `basalt prune status` names it."
)
@click.option(
    "--after", type=click.IntRange(0, POINTER_MAX), help="Only those behind this writer, as the page before it ends."
)
@limit_option(100, 10_000, " writers", metavar=None)
def list_invalid(invocation: Invocation, cause: str | None, after: int | None, limit: int) -> None:
    """List failed writers that are not forgotten yet, oldest first, and what each waits for first."""
    with invocation.client() as client:
        page = client.admin.prune_invalid(after=after, limit=limit, cause=cause)
    invocation.out.rows(_INVALID, [row(each) for each in page.writers])
    if page.next is not None and invocation.out.for_people:
        invocation.out.line(f"more: --after {page.next}")


@prune.call("compact")
@click.argument("regions", nargs=-1)
@author_options
@dry_run_option
def compact(invocation: Invocation, regions: tuple[str, ...], dry_run: bool, reason: str, by: str) -> None:
    """Ask for major compactions of REGIONS; of those whose files hold back the oldest writers, where none are named."""
    with invocation.client() as client:
        answer = row(client.admin.prune_compact(*regions, dry_run=dry_run, reason=reason, by=by))
    if invocation.out.for_people and answer["regions"]:
        invocation.out.rows(_COMPACTIONS, answer["regions"])
    asked = "would ask" if dry_run else "asked"
    invocation.out.done(f"{asked} for compactions of {counted(len(answer['regions']), 'region')}", answer)


@prune.call("regions")
@click.option("--blocking", is_flag=True, help="Only those that hold back some writer.")
@click.option("--idle", is_flag=True, help="Only those whose report vouches for nothing.")
def regions(invocation: Invocation, blocking: bool, idle: bool) -> None:
    """List regions, those first that hold back the oldest writers."""
    with invocation.client() as client:
        show = "blocking" if blocking else "idle" if idle else None
        found = [row(each) for each in client.admin.prune_regions(show=show)]
    if blocking and idle:
        found = [each for each in found if each["idle"] is not None]
    invocation.out.rows(_REGIONS, found)


@prune.call("info")
@click.argument("region")
def info(invocation: Invocation, region: str) -> None:
    """Show a region with its files: which writers each of them may hold."""
    with invocation.client() as client:
        answer = row(client.admin.prune_region(region))
    if not invocation.out.for_people:
        invocation.out.record(answer)
        return
    invocation.out.record({**answer, **answer["counters"]}, (*_REGIONS, *(Column(name) for name in answer["counters"])))
    invocation.out.line("")
    invocation.out.rows(_FILES, answer["store_files"])


@prune.call("history")
@limit_option(50, 10_000, "", metavar=None)
def prune_history(invocation: Invocation, limit: int) -> None:
    """List what was pruned, newest first."""
    invocation.show_all(_HISTORY, lambda client: client.admin.prune_history(limit=limit))


@prune.call("restore")
@click.option(
    "--since", required=True, type=PositionText(), metavar="SPEC", help="From when the copy is: a time such as -2d."
)
@author_options
@yes_option
@dry_run_option
def restore(invocation: Invocation, since: Any, yes: bool, dry_run: bool, reason: str, by: str) -> None:
    """Make writers invalid again that were pruned since: a table was restored from a copy of that time."""
    since_ms = since.time_ms
    if since_ms is None:
        raise click.UsageError("--since takes a time: @milliseconds, @date-time or -2d")
    if not dry_run:
        confirm(f"Make writers invalid again that were pruned since {time_text(since_ms)}?", yes=yes)
    with invocation.client() as client:
        answer = row(client.admin.prune_restore(since_ms, dry_run=dry_run, reason=reason, by=by))
    would = "would make" if dry_run else "made"
    invocation.out.done(f"{would} {counted(answer['restored'], 'writer')} invalid again", answer)


_ALERTS = columns("severity state since_ms name text", since_ms="since", name="alert")
_PROCESS = (
    *columns("pid version python started_ms cpu_seconds tasks open_files", started_ms="started", cpu_seconds="CPU seconds"),
    Column("resident_bytes", size_text, "memory"),
    Column("loop_lag_ms", duration_text, "loop lag"),
    Column("loop_lag_ms_max", duration_text, "worst of a minute"),
    *columns("connections connections_max", connections_max="at most"),
)  # fmt: skip
_QUEUES = (
    *columns("name length length_max", name="queue", length="now", length_max="at most"),
    Column("bytes", size_text, "bytes"),
    Column("bytes_max", size_text, "at most"),
)
_CACHES = (
    *columns("name entries entries_max", name="kept in memory", entries_max="at most"),
    Column("bytes", size_text, "bytes"),
    Column("bytes_max", size_text, "at most"),
    *columns("hits misses"),
)
_THREADS = columns("name threads", name="threads", threads="number")
_GATEWAYS = columns(
    "gateway pool lent idle connections_max waits calls refused lost mean_ms", connections_max="at most", mean_ms="ms"
)


@command()
@click.option(
    "--all", "everything", is_flag=True, help="Also those that do not fire, and those that only Prometheus can tell."
)
def alerts(invocation: Invocation, everything: bool) -> int:
    """Tell which alerts of a server would fire now, and which will if it stays so.

    Exit code 1 if one fires that is more than a notice, and else 0. What to do about each is in docs/operations/runbook.md, under its name.
    """
    with invocation.client() as client:
        answer = row(client.admin.alerts(everything=everything))
    found: list[dict[str, Any]] = answer["alerts"]
    if invocation.out.for_people and not found:
        invocation.out.line("no alert would fire")
    else:
        invocation.out.rows(_ALERTS, found)
    bad = [each for each in found if each["state"] == "firing" and each["severity"] != "info"]
    return EXIT_FAILURE if bad else EXIT_OK


@command()
def process(invocation: Invocation) -> None:
    """Show a server's process from within: its event loop, queues, caches, connections and threads."""
    with invocation.client() as client:
        answer = row(client.admin.process())
    if not invocation.out.for_people:
        invocation.out.record(answer)
        return
    invocation.out.record(answer, _PROCESS)
    tables = ((_QUEUES, "queues"), (_CACHES, "caches"), (_GATEWAYS, "gateways"), (_THREADS, "threads"))
    for shown, name in tables:
        if answer[name]:
            invocation.out.line("")
            invocation.out.rows(shown, answer[name])


def _lines(explained: dict[str, Any]) -> list[dict[str, Any]]:
    """One line for each thing in the way; one for a writer that nothing is in the way of."""
    holds = explained["holds"] or [{"cause": "free", "freed_by": "the next prune run"}]
    head = {name: explained[name] for name in ("write_pointer", "began_ms")}
    lines = [{**head, **hold} for hold in holds]
    if explained["holds_left_out"]:
        lines.append({**head, "cause": f"{explained['holds_left_out']:,} more"})
    return lines
