"""The calls on consumer groups: their options, fetching and acknowledging, members, and what operators do with them.

One call does a consumer's whole round: a fetch that has a Work as its body carries it out first, as a one-shot transaction, and
then claims the next messages. So what was acknowledged and published is one decision, and the claim comes with its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import cast, get_args

import msgspec
from msgspec import structs

from basalt import errors
from basalt.access import resources
from basalt.access.needs import needs
from basalt.access.quotas import FETCH_BYTES, PUBLISH_BYTES
from basalt.api.bodies import groups as bodies
from basalt.api.bodies.messages import INT_MAX, LONG_MAX, MEMBER_CHARS_MAX, Work, WorkAcknowledge, is_member
from basalt.api.codecs import avro, json_bodies
from basalt.api.positions import parse_position
from basalt.catalog.catalog import check_name
from basalt.catalog.topics import TopicName
from basalt.groups import attendance
from basalt.groups.attendance import CLAIMS_SHOWN_MAX
from basalt.groups.fetches import NOTHING, FetchAsk
from basalt.groups.groups import dead_letter_title
from basalt.groups.keyed.slots import SLOTS
from basalt.groups.live_group import GroupFetch, LiveGroup
from basalt.http.asgi.requests import AVRO, JSON, Headers
from basalt.http.asgi.responses import Response
from basalt.http.routes import schemas
from basalt.http.routes.polls import BATCHES, WAIT_MS_MAX, Shape, messages_answer, traceparents_in, unless_gone
from basalt.http.routes.route_table import (
    ADMIN_PATH,
    AS,
    DRY_RUN,
    EXISTING,
    MS_MAX,
    REASON,
    TOPIC,
    TOPIC_PATH,
    WORK_NEEDS,
    Request,
    RouteTable,
    choice,
    flag,
    integer,
    query,
    text_query,
    words,
)
from basalt.http.routes.topics import parse_message_id
from basalt.operations.groups.inspection import ENTRIES_MAX, STATES
from basalt.operations.groups.listing import NAME, SORTS, GroupFilter
from basalt.runtime.group_commit import Group
from basalt.transactions.rules.transaction import ID_PATTERN
from basalt_engine.keys import NAME_EXPRESSION, NAME_PATTERN, topic_prefix

MESSAGES_DEFAULT = 100
GROUPS_PATH = TOPIC_PATH + "/groups"
GROUP_PATH = GROUPS_PATH + "/{group}"
MEMBER_PATH = GROUP_PATH + "/members/{member}"

GROUP = "group:{namespace}:{topic}:{group}"
WORKS = needs("read", GROUP) & needs("read", TOPIC)
# The rights on the topic of dead letters: it is made, and what the group gives up is written to it.
MAKES = needs("manage", GROUP, in_body=("manage topic", "write topic"))

_STATE = choice("state", STATES, "only those in this state")
_LIMIT = integer("limit", 1, ENTRIES_MAX, f"most entries; {MESSAGES_DEFAULT} by default")
_JOINING = bodies.MemberRequest()
_NOT_FETCHED = GroupFetch(None, None, None, 0, 0, None, 0, "", NOTHING)
_GROUP = (*EXISTING, errors.GroupNotFoundError)
_ENDING = (
    errors.ClaimLostError,
    errors.MemberFencedError,
    errors.AcknowledgeConflictError,
    errors.AcknowledgeOrderError,
    errors.ConflictError,
)
_OF_A_TRANSACTION = (
    errors.TransactionNotFoundError,
    errors.TransactionEndedError,
    errors.TransactionConflictError,
    errors.SessionFencedError,
)
_OF_A_WORK = (errors.TopicEndedError, errors.MarkerRefusedError, errors.RequestReusedError)
_FORCE_DELETE = flag(
    "force", "delete it though an open transaction has acknowledged something: that commits without it"
)
_FORCE_SEEK = flag("force", "seek though open transactions have acknowledged something: they can no longer commit")

COUNT_MS_MAX = 1_000  # of one list of all groups
COUNT_MS = 100
ALL_PAGE_MAX = 10_000  # groups of one page; some 3 MB of JSON
SLOTS_DEFAULT = 100

_ALL_QUERY = (
    words("namespace", f"^{NAME_EXPRESSION}$", "only of this namespace"),
    words("topic", f"^{NAME_EXPRESSION}:{NAME_EXPRESSION}$", "only of this topic, as namespace:topic"),
    choice("mode", get_args(bodies.GroupMode), "only those of this mode"),
    choice("paused", ("true", "false"), "only those that are paused, or only those that are not"),
    text_query("contains", "only those in whose namespace:topic/group this is, in either case"),
    choice(
        "sort",
        SORTS,
        "the order: by name (the default), by lag in messages, by the age of the oldest message; the worst first",
    ),
    text_query("after", "go on behind this one: `next` of the page before"),
    integer("limit", 1, ALL_PAGE_MAX, f"most to answer; {ALL_PAGE_MAX:,} when it is left out"),
    integer("countMs", 0, COUNT_MS_MAX, f"about as long is spent on counting; {COUNT_MS} when it is left out"),
)

route = RouteTable("groups")
operators = RouteTable("admin")

_member = query(
    "member",
    {"type": "string", "minLength": 1, "maxLength": MEMBER_CHARS_MAX},
    "the member that calls: its lease is renewed, and it joins with its first call",
    lambda text: bool(text) and is_member(text),
    f"be 1 to {MEMBER_CHARS_MAX} printable characters without a slash",
)
_epoch = integer(
    "epoch", 0, LONG_MAX, "the member's, as the first answer told it; 0 or none joins, and fences older processes"
)
_LIST_QUERY = (
    flag("figures", "with the figures of each, as many groups as are counted in about a second"),
    words("start", f"^{NAME_PATTERN.pattern}$", "the name to begin with; the first if it is left out"),
    integer("limit", 1, INT_MAX, "most groups to answer"),
)
_FETCH_QUERY = (
    _member,
    _epoch,
    integer("limit", 1, INT_MAX, "most messages to claim"),
    integer("bytes", 1, INT_MAX, "about as many bytes of payloads to claim at most"),
    integer("waitMs", 0, WAIT_MS_MAX, "answer when there is something to claim, or after so many milliseconds"),
    words("transaction", ID_PATTERN, "the open transaction with which the claim is to end"),
    integer("claimMs", 1, MS_MAX, "how long the claim lasts, in place of the group's own claimMs"),
    flag("records", "answer records, in the formats of those"),
)


@operators("GET", ADMIN_PATH + "/groups", needs(filters="observe group"), query=_ALL_QUERY, errors=EXISTING)
async def all_groups(request: Request) -> bodies.ListedGroups:
    """The groups of all topics, with how far each is behind; a page of them.

    Counts are kept: one that no call has had the time for is as it was at its `countedMs`.
    """
    wanted = GroupFilter(
        request.text("namespace"), request.text("topic"), cast("bodies.GroupMode | None", request.text("mode")),
        request.text("contains"), None if request.text("paused") is None else request.text("paused") == "true",
    )  # fmt: skip
    may, count_ms, services = request.caller.may, request.integer("countMs"), request.services
    if wanted.topic is not None:
        title = services.topics.title(*wanted.topic.split(":"))
        if may("observe", resources.topic(*title)):
            await services.topics.get(title)  # one that is not there has no groups, and says so to who may know it
    await services.transactions.manager.ensure_known()
    return await services.group_listing.page(
        wanted, lambda title, name: may("observe", resources.group(*title, name)),
        sort=request.text("sort") or NAME, after=request.text("after"), limit=request.integer("limit") or ALL_PAGE_MAX,
        count_ms=COUNT_MS if count_ms is None else count_ms,
    )  # fmt: skip


@route("GET", GROUPS_PATH, needs("observe", TOPIC, filters="observe group"), query=_LIST_QUERY, errors=EXISTING)
async def show_all(request: Request) -> bodies.GroupList:
    """The groups of a topic, by name; a page of them where a limit or figures are asked for, and then `next` begins the one behind it."""
    start, limit, figures = request.text("start") or "", request.integer("limit"), request.flag("figures")
    title, may = request.topic, request.caller.may
    return await request.services.group_inspection.page(
        title, start, limit, lambda name: may("observe", resources.group(*title, name)), figures=figures
    )


@route("PUT", GROUP_PATH, MAKES, errors=(*EXISTING, errors.GroupExistsError, errors.BusyError))
async def make(request: Request, asked: bodies.GroupOptions = bodies.DEFAULT_OPTIONS) -> bodies.GroupInfo:
    """Make a group, and its dead-letter topic; one that is there with these options stays as it is."""
    title, name = _named(request)
    _judge_dead_letters(request, title, asked)
    return _info(request, await request.services.groups.make(title, name, asked))


@route("PUT", GROUP_PATH + "/options", MAKES, query=(DRY_RUN, REASON, AS), errors=(*_GROUP, errors.ConflictError))
async def change(request: Request, asked: bodies.GroupOptions) -> bodies.ChangedGroup:
    """Replace a group's options; those left out go back to their defaults."""
    title, name = _named(request)
    _judge_dead_letters(request, title, asked)
    services, dry_run = request.services, request.flag("dryRun")
    present = (await services.groups.change(title, name, asked, dry_run=True)).options  # what is refused needs no line
    changes = changes_between(present, asked)
    if not dry_run:
        await services.audit.act(
            "change group", f"group {title}/{name}", *request.act,
            lambda: services.groups.change(title, name, asked),
            lambda _: ", ".join(f"{each.option} {each.before} -> {each.after}" for each in changes) or "nothing changed",
        )  # fmt: skip
    info = _info(request, await services.groups.find(title, name))
    return bodies.ChangedGroup(structs.replace(info, options=asked), changes, dry_run)


@route("GET", GROUP_PATH, needs("observe", GROUP), errors=_GROUP)
async def show(request: Request) -> bodies.GroupInfo:
    """A group and its figures."""
    live = await request.services.groups.find(*_named(request))
    return structs.replace(_info(request, live), figures=await request.services.group_inspection.figures(live))


@route(
    "DELETE",
    GROUP_PATH,
    needs("manage", GROUP),
    query=(_FORCE_DELETE, DRY_RUN, REASON, AS),
    errors=(*_GROUP, errors.ConflictError),
)
async def delete(request: Request) -> bodies.DeletedGroup:
    """Delete a group, and what it has acknowledged."""
    title, name = _named(request)
    force, groups = request.flag("force"), request.services.groups
    if request.flag("dryRun"):
        return await groups.delete(title, name, force, dry_run=True)
    await groups.find(title, name)  # an act on what is not there needs no line
    return await request.services.audit.act(
        "delete group", f"group {title}/{name}", *request.act, lambda: groups.delete(title, name, force)
    )


@route(
    "POST",
    GROUP_PATH + "/fetch",
    WORKS & needs(in_body=("transact transactions", "transact cluster", *WORK_NEEDS)),
    query=_FETCH_QUERY,
    body={JSON: schemas.WORK, AVRO: schemas.BINARY},
    answer={JSON: {"anyOf": [schemas.MESSAGES, schemas.RECORDS_PAGE]}, AVRO: schemas.BINARY, BATCHES: schemas.BATCHED},
    errors=(*_GROUP, *_ENDING, *_OF_A_TRANSACTION, *_OF_A_WORK, errors.BusyError),
    meters=(PUBLISH_BYTES, FETCH_BYTES),
)
async def fetch(request: Request) -> Response:
    """Claim the next messages; before that carry out a Work, if there is one, as a one-shot transaction.

    A Work that only acknowledges messages of one group is carried out without a transaction. When the Work is refused, nothing is
    fetched. When it was done and there is nothing to claim, the header Basalt-Waiting-For says why.
    """
    title, name = _named(request)
    body = await request.body()
    try:
        media_type = request.content_type((AVRO, JSON))
    except errors.UnsupportedMediaTypeError:
        if body:
            raise
        media_type = None  # libraries name one also where there is nothing that could be of it
    work = None if not body else avro.decode_work(body) if media_type == AVRO else json_bodies.decode_work(body)
    await _judge_fetch(request, work)
    records = request.flag("records")
    answered = media_type or request.accepted_type((JSON, AVRO))
    shape = Shape(answered, request.accepts(BATCHES) and not records, records)
    live = await request.services.groups.find(title, name)  # before anything is done
    ask = _asked(request, shape)
    headers: Headers = []
    if work is None:
        fetched = await _fetch(request, live, name, ask)
    else:
        fetched = await _carry_out_and_fetch(request, work, headers, live, name, ask)
    headers += _fetch_headers(request, fetched)
    request.metrics.topics.fetched(title, fetched.fetch.messages, fetched.fetch.payload_bytes)
    if request.services.traces is not None:
        request.traceparents = traceparents_in(fetched.fetch)
    return messages_answer(request, fetched.fetch, shape, headers)


async def _judge_fetch(request: Request, work: Work | None) -> None:
    transaction = request.text("transaction")
    if transaction is not None:
        await request.transaction_of(transaction, "transaction")
    if work is not None:
        if work.publish or work.markers or work.segments:
            request.caller.must("transact", resources.CLUSTER)
        request.must_do(work)


def _asked(request: Request, shape: Shape) -> FetchAsk:
    transaction, member = request.text("transaction"), request.text("member") or ""
    epoch = request.integer("epoch") or 0
    if epoch and not member:
        raise errors.InputError("the query has an epoch and no member", field="epoch", hint="Name the member too.")
    return FetchAsk(
        member=member,
        epoch=epoch,
        limit=request.integer("limit"),
        bytes_max=request.integer("bytes"),
        wait_ms=request.integer("waitMs") or 0,
        transaction_id=None if transaction is None else request.write_pointer_of(transaction, "transaction"),
        claim_ms=request.integer("claimMs"),
        encoding=shape.encoding,
        request_id=request.once_id,
    )


class _NextClaim:
    """The claim behind a Work, dealt while the Work is written; nobody is told of it before that is durable.

    Where it is written at once, there is nothing to gain, and nothing is dealt here. When the write fails, or nobody waits any more, the
    claim is given back as if it had never been dealt.
    """

    def __init__(self, live: LiveGroup, deal: Callable[[], Coroutine[None, None, GroupFetch]]) -> None:
        self._live = live
        self._deal = deal
        self._dropped = False
        self._task: asyncio.Task[GroupFetch] | None = None

    def staged(self, group: Group) -> None:
        """In the stage of the Work, once nothing refuses it."""
        group.while_written(self._begin)
        group.when_failed(self.drop)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._dealt())

    async def _dealt(self) -> GroupFetch:
        fetched = await self._deal()
        if self._dropped:
            self._give_back(fetched)
        return fetched

    async def fetched(self) -> GroupFetch | None:
        """Once the Work is durable: what was dealt; None where nothing was, or that failed."""
        if self._task is None:
            return None
        try:
            return await asyncio.shield(self._task)  # so that who is cancelled gives it back
        except errors.BasaltError:
            return None

    def drop(self) -> None:
        """Give the claim back, now or when it is dealt."""
        self._dropped = True
        task = self._task
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            self._give_back(task.result())

    def _give_back(self, fetched: GroupFetch) -> None:
        if fetched.claim is not None:
            self._live.give_back(self._live.dispatcher.claims.find(fetched.claim))


async def _carry_out_and_fetch(
    request: Request, work: Work, headers: Headers, live: LiveGroup, name: str, ask: FetchAsk
) -> GroupFetch:
    """Carry the Work out and fetch; once it is done, what the fetch failed of is in its answer."""
    title, groups = live.title, request.services.groups
    ahead = _NextClaim(live, lambda: groups.fetch(title, name, ask._replace(wait_ms=0)))
    try:
        done = await _carry_out(request, work, headers, live, ahead.staged)
        fetched = await ahead.fetched()
    except BaseException:
        ahead.drop()
        raise
    if fetched is not None:
        if fetched.claim is not None:
            return fetched
        ask = ask._replace(epoch=fetched.member_epoch)  # the Work may have made something to fetch
    try:
        return await _fetch(request, live, name, ask)
    except errors.BasaltError as error:
        if not done:
            raise
        return _NOT_FETCHED._replace(member_epoch=ask.epoch, waiting_for=error.code)


async def _carry_out(
    request: Request, work: Work, headers: Headers, live: LiveGroup, staged: Callable[[Group], None]
) -> bool:
    """Do the work; False when there is none. A transaction that was needed for it is named in the headers."""
    transactional = bool(work.publish or work.markers or work.segments)
    entries = work.acknowledge
    if not (transactional or entries):
        return False
    services = request.services
    if transactional or len(entries) > 1 or entries[0].reject or not _is_here(request, entries[0]):
        outcome = await services.transactions.one_shot_anywhere(work, "", request.once_id, staged, request.principal)
        headers.append((b"basalt-transaction", services.ids.text(outcome.id).encode("ascii")))
    else:
        entry = entries[0]
        if not live.is_named(entry.namespace, entry.topic, entry.group):
            live = await services.groups.find(services.topics.title(entry.namespace, entry.topic), entry.group)
        await services.groups.acknowledge_entry(live, entry, staged=staged)
    return True


def _is_here(request: Request, entry: WorkAcknowledge) -> bool:
    services = request.services
    return services.groups.live.is_here(topic_prefix(*services.topics.title(entry.namespace, entry.topic)))


async def _fetch(request: Request, live: LiveGroup, name: str, ask: FetchAsk) -> GroupFetch:
    """Fetch, and wait as long as is asked for or until the client has gone; who has no right to it by then gets nothing."""
    title = live.title
    groups = request.services.groups
    fetched = await groups.fetch(title, name, ask._replace(wait_ms=0) if ask.wait_ms else ask)
    if fetched.claim is None and ask.wait_ms:
        fetched = await unless_gone(request, groups.fetch(title, name, ask._replace(epoch=fetched.member_epoch)))
        try:
            request.judge_again()
        except errors.BasaltError:
            if fetched.claim is not None:
                live.give_back(live.dispatcher.claims.find(fetched.claim))
            raise
    return fetched


def _fetch_headers(request: Request, fetched: GroupFetch) -> Headers:
    headers: Headers = [(b"basalt-round", b"%d" % fetched.round)]
    if fetched.member_epoch:
        headers.append((b"basalt-member-epoch", b"%d" % fetched.member_epoch))
    if fetched.claim is None:
        headers.append((b"basalt-waiting-for", _waiting_for(request, fetched).encode("ascii", "replace")))
        return headers
    assert fetched.after is not None
    assert fetched.through is not None
    headers += (
        (b"basalt-claim", b"%d" % fetched.claim),
        (b"basalt-after", fetched.after.hex().encode("ascii")),
        (b"basalt-through", fetched.through.hex().encode("ascii")),
        (b"basalt-attempt", b"%d" % fetched.attempt),
        (b"basalt-claim-until", b"%d" % (fetched.claim_until_ms or 0)),
    )
    return headers


def _waiting_for(request: Request, fetched: GroupFetch) -> str:
    held_by = fetched.fetch.held_by
    return fetched.waiting_for if held_by is None else f"held {request.services.holder(held_by)}"


@route(
    "POST",
    GROUP_PATH + "/acknowledge",
    WORKS & needs(in_body=("transact transactions",)),
    errors=(*_GROUP, *_ENDING, *_OF_A_TRANSACTION),
)
async def acknowledge(request: Request, asked: bodies.AcknowledgeRequest) -> bodies.Acknowledged:
    """Acknowledge messages, at once or when a transaction commits."""
    title, name = _named(request)
    given = asked.transaction
    transaction_id = None if given is None else await request.transaction_of(given, "transaction")
    return await request.services.groups.acknowledge(title, name, asked, transaction_id)


@route("POST", GROUP_PATH + "/release", WORKS, errors=(*_GROUP, *_ENDING))
async def release(request: Request, asked: bodies.ReleaseRequest) -> bodies.Released:
    """Give messages back, to be dealt again."""
    title, name = _named(request)
    bodies.check_release(asked)
    return await request.services.groups.release(title, name, asked)


@route("GET", GROUP_PATH + "/members", needs("observe", GROUP), errors=_GROUP)
async def members(request: Request) -> bodies.MemberList:
    """The members of a group."""
    services = request.services
    return attendance.members_of(await services.groups.find(*_named(request)), services.clock)


@route("POST", MEMBER_PATH, WORKS, errors=(*_GROUP, errors.MemberFencedError, errors.BusyError))
async def renew(request: Request, asked: bodies.MemberRequest = _JOINING) -> bodies.MemberStanding:
    """Renew a member's lease, and some of its claims; or join."""
    title, name = _named(request)
    member = request.path["member"]
    bodies.check_member_request(member, asked)
    services = request.services
    return attendance.renew(await services.groups.find(title, name), services.clock, member, asked)


@route("DELETE", MEMBER_PATH, WORKS, query=(_epoch,), errors=(*_GROUP, errors.MemberFencedError))
async def leave(request: Request) -> None:
    """Let a member leave; its claims are given back uncounted."""
    title, name = _named(request)
    member = request.path["member"]
    bodies.check_member_request(member, _JOINING)
    await attendance.leave(await request.services.groups.find(title, name), member, request.integer("epoch") or 0)


@route(
    "POST",
    GROUP_PATH + "/seek",
    needs("manage", GROUP),
    query=(DRY_RUN, _FORCE_SEEK, REASON, AS),
    errors=(*_GROUP, errors.ConflictError),
)
async def seek(request: Request, asked: bodies.SeekRequest) -> bodies.Sought:
    """Let a group go on somewhere else; its claims are revoked and its attempts forgotten."""
    title, name = _named(request)
    services, force = request.services, request.flag("force")
    parse_position(asked.to, services.clock.now_ms(), field="to")  # what means nothing is no act
    if request.flag("dryRun"):
        return await services.groups.seek(title, name, asked, force=force, dry_run=True)
    await services.groups.find(title, name)
    return await services.audit.act(
        "seek", f"group {title}/{name}", *request.act,
        lambda: services.groups.seek(title, name, asked, force=force),
        lambda done: f"goes on behind {done.floor.hex()}: {done.skipped} skipped, {done.repeated} repeated",
    )  # fmt: skip


@route("POST", GROUP_PATH + "/pause", needs("manage", GROUP), query=(DRY_RUN, REASON, AS), errors=_GROUP)
async def pause(request: Request) -> bodies.GroupInfo:
    """Deal nothing until the group is resumed."""
    return await _switch(request, paused=True)


@route("POST", GROUP_PATH + "/resume", needs("manage", GROUP), query=(DRY_RUN, REASON, AS), errors=_GROUP)
async def resume(request: Request) -> bodies.GroupInfo:
    """Deal again."""
    return await _switch(request, paused=False)


async def _switch(request: Request, *, paused: bool) -> bodies.GroupInfo:
    title, name = _named(request)
    services = request.services
    do = services.groups.pause if paused else services.groups.resume
    live = await services.groups.find(title, name)
    if request.flag("dryRun"):
        return structs.replace(_info(request, live), paused=paused)
    act = "pause group" if paused else "resume group"
    return _info(request, await services.audit.act(act, f"group {title}/{name}", *request.act, lambda: do(title, name)))


@route(
    "POST", GROUP_PATH + "/unpark", needs("manage", GROUP), query=(DRY_RUN, REASON, AS), errors=(*_GROUP, errors.ConflictError),
)  # fmt: skip
async def unpark(request: Request, asked: bodies.UnparkRequest) -> bodies.Unparked:
    """Deal parked messages again, from their first attempt on."""
    title, name = _named(request)
    bodies.check_unpark(asked)
    services, ids = request.services, None if asked.all else [bytes(each) for each in asked.ids]
    live = await services.groups.find(title, name)
    if request.flag("dryRun"):
        return await services.group_inspection.parked(live, ids)
    number = await services.audit.act(
        "unpark", f"group {title}/{name}", *request.act,
        lambda: services.groups.unpark(title, name, ids), lambda done: f"{done} messages are dealt again",
    )  # fmt: skip
    return bodies.Unparked(number)


@route(
    "GET", GROUP_PATH + "/claims", needs("observe", GROUP),
    query=(integer("limit", 1, CLAIMS_SHOWN_MAX, f"most claims to answer; {CLAIMS_SHOWN_MAX:,} by default"),),
    errors=_GROUP, tag="inspection",
)  # fmt: skip
async def claims(request: Request) -> bodies.ClaimList:
    """Who works on what."""
    services, limit = request.services, request.integer("limit") or CLAIMS_SHOWN_MAX
    live = await services.groups.find(*_named(request))
    return await attendance.claims_of(live, services.clock, services.ids.text, limit)


@route(
    "GET", GROUP_PATH + "/slots", needs("observe", GROUP),
    query=(integer("limit", 1, SLOTS, f"most slots to answer; {SLOTS_DEFAULT} by default"),),
    errors=_GROUP, tag="inspection",
)  # fmt: skip
async def slots(request: Request) -> bodies.SlotList:
    """The slots of a keyed group that have messages, the furthest behind first; as far as it has been read ahead."""
    services, limit = request.services, request.integer("limit") or SLOTS_DEFAULT
    live = await services.groups.find(*_named(request))
    return attendance.slots_behind(live, services.clock.now_ms(), limit)


@route(
    "GET", GROUP_PATH + "/messages", needs("inspect", GROUP), query=(_STATE, _LIMIT), errors=_GROUP, tag="inspection"
)
async def messages(request: Request) -> bodies.GroupMessages:
    """The messages that a group has not acknowledged, in the topic's order; neighbours in one state are one entry."""
    services, limit = request.services, request.integer("limit") or MESSAGES_DEFAULT
    live = await services.groups.find(*_named(request))
    return bodies.GroupMessages(
        await services.group_inspection.messages(live, request.text("state"), limit, request.sees)
    )


@route("GET", GROUP_PATH + "/messages/{message}", needs("inspect", GROUP), errors=_GROUP, tag="inspection")
async def message(request: Request) -> bodies.GroupMessage:
    """One message in a group: its state, why nobody works on it or who does, what frees it, and when."""
    services, message_id = request.services, parse_message_id(request.path["message"])
    live = await services.groups.find(*_named(request))
    return await services.group_inspection.message(live, message_id, request.sees)


@route("POST", GROUP_PATH + "/position", WORKS, errors=(*_GROUP, errors.ConflictError))
async def position(request: Request, asked: bodies.PositionRequest) -> None:
    """Report how far somebody has come who keeps the position of a tracked group."""
    title, name = _named(request)
    bodies.check_position(asked)
    await request.services.groups.position(title, name, asked)


def changes_between(before: bodies.GroupOptions, after: bodies.GroupOptions) -> tuple[bodies.OptionChange, ...]:
    """The options that differ, each with its values as JSON has them."""
    there, wanted = (msgspec.to_builtins(each) for each in (before, after))
    return tuple(
        bodies.OptionChange(name, *(msgspec.json.encode(each[name]).decode() for each in (there, wanted)))
        for name in there
        if there[name] != wanted[name]
    )


def _judge_dead_letters(request: Request, title: TopicName, asked: bodies.GroupOptions) -> None:
    if asked.dead_letter_topic is not None:
        topic = resources.topic(*dead_letter_title(request.services.topics, title, asked))
        request.caller.must("manage", topic)
        request.caller.must("write", topic)


def _named(request: Request) -> tuple[TopicName, str]:
    """The topic and the group that the path names; `InvalidNameError` when a name is none."""
    return request.topic, check_name(request.path["group"], "group")


def _info(request: Request, live: LiveGroup) -> bodies.GroupInfo:
    return request.services.groups.info(live.title, live.state)
