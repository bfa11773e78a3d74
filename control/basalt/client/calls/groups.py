"""Plans for the consumer groups of a topic: one for each call, and what a fetch answers. Routes: docs/reference/http-api.md#consumer-groups.

A group keeps on the server what it has acknowledged. Whoever works for it fetches, handles and acknowledges; `basalt.client.consumer`
does that in turn. What stands here is for operators, and what a consumer is made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from msgspec import structs

from basalt.api.bodies.groups import (
    Acknowledged,
    AcknowledgeRequest,
    ChangedGroup,
    ClaimInfo,
    ClaimList,
    DeletedGroup,
    GroupInfo,
    GroupList,
    GroupMessage,
    GroupMessages,
    GroupMode,
    GroupOptions,
    MemberInfo,
    MemberList,
    MemberRequest,
    MemberStanding,
    PositionRequest,
    Released,
    ReleaseRequest,
    SeekRequest,
    SlotList,
    Sought,
    Unparked,
    UnparkRequest,
)
from basalt.api.bodies.json import MESSAGE_ID_BYTES, HexMessageId
from basalt.api.bodies.messages import ACKNOWLEDGED_CLAIMS_MAX, Work
from basalt.api.codecs import avro
from basalt.client.calls.messages import PositionLike, position
from basalt.client.calls.pages import Page
from basalt.client.plans import (
    AVRO,
    BATCHES,
    Answer,
    Call,
    Effect,
    Query,
    Steps,
    TopicScope,
    act_of,
    ask,
    get_json,
    json_of,
    media_type_of,
    next_id_of,
    nothing,
    query_of,
    send_json,
)
from basalt.errors import InputError


class GroupOptionsGiven(TypedDict, total=False):
    """The options of a group that were given; what is left out has its default, or stays."""

    mode: GroupMode
    key: str
    start: str
    member_ms: int
    claim_ms: int
    unacked_max: int
    attempts_max: int
    retry_delay_ms: int
    retry_delay_ms_max: int
    dead_letter_topic: str | None
    expire_ms: int


@dataclass(frozen=True, slots=True)
class GroupScope:
    """A group of a topic, by its name."""

    topic: TopicScope
    name: str

    def path(self, *parts: str) -> str:
        """The path of it, and of what is below it."""
        return self.topic.path("groups", self.name, *parts)

    def __str__(self) -> str:
        return f"{self.name} of {self.topic}"


@dataclass(frozen=True, slots=True)
class Dealt:
    """The answer of a fetch: a claim with its messages, or the reason why there is none (`waiting_for`).

    `transaction` is the one-shot that carried out the Work of the call.
    """

    page: Page = field(repr=False)
    claim: int | None
    after: bytes | None
    through: bytes | None
    round: int
    attempt: int
    until_ms: int
    epoch: int
    transaction: str | None
    waiting_for: str | None


def group(scope: TopicScope, name: str) -> GroupScope:
    """A consumer group of the topic. It need not exist yet, and nothing is asked of the server."""
    return GroupScope(scope, name)


def list_groups(scope: TopicScope, *, figures: bool = False) -> Steps[list[GroupInfo]]:
    """The consumer groups of the topic, by name; with `figures` of each, a page after the other, for each is counted."""
    found: list[GroupInfo] = []
    start: str | None = None
    while True:
        query = query_of(figures=figures or None, start=start)
        page = yield from get_json(GroupList, f"list the groups of {scope}", scope.path("groups"), query)
        found += page.groups
        start = page.next
        if start is None:
            return found


def create(scope: GroupScope, /, **options: Unpack[GroupOptionsGiven]) -> Steps[GroupInfo]:
    """Make the group; it reads from `start` on: "start" (the default), "end", "now", "-1h", an id. The options: `GroupOptions`.

    One that is there with these options is answered as it is; with others it is a `GroupExistsError`. The dead-letter topic
    is made, too.
    """
    return put(scope, GroupOptions(**options))


def put(scope: GroupScope, options: GroupOptions) -> Steps[GroupInfo]:
    """Make the group with all of these options."""
    return send_json("PUT", f"create group {scope}", scope.path(), json_of(GroupInfo), body=options)


def get(scope: GroupScope) -> Steps[GroupInfo]:
    """The group with its options and, as `figures`, how it stands. `GroupNotFoundError` when there is none."""
    return get_json(GroupInfo, f"get group {scope}", scope.path())


def update(
    scope: GroupScope,
    /,
    *,
    dry_run: bool = False,
    reason: str = "",
    by: str = "",
    **options: Unpack[GroupOptionsGiven],
) -> Steps[ChangedGroup]:
    """Change these options and leave the others. `ConflictError` for another mode while something is unacknowledged."""
    changed = structs.replace((yield from get(scope)).options, **options)
    path, parse, query = scope.path("options"), json_of(ChangedGroup), act_of(reason, by, dry_run=dry_run)
    return (yield from send_json("PUT", f"change group {scope}", path, parse, body=changed, query=query))


def delete(
    scope: GroupScope, *, force: bool = False, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[DeletedGroup]:
    """Delete the group with all that it has acknowledged. The audit keeps who did it and why.

    `ConflictError` while a transaction has acknowledged something in it, unless `force`.
    """
    query = act_of(reason, by, dry_run=dry_run, force=force)
    return ask(Call(f"delete group {scope}", "DELETE", scope.path(), json_of(DeletedGroup), Effect.ONCE, query))


def fetch(
    scope: GroupScope,
    member: str,
    epoch: int,
    *,
    limit: int | None = None,
    bytes_max: int | None = None,
    wait_ms: int = 0,
    claim_ms: int | None = None,
    work: Work | None = None,
    patient: bool = False,
) -> Steps[Dealt]:
    """Carry out the work, if any, and claim the next messages for the member.

    Sent again with its request id it is the same work and the same claim, so a lost answer is asked for again.
    """
    query = query_of(member=member, epoch=epoch or None, limit=limit, bytes=bytes_max, claimMs=claim_ms)
    body, media_type = (b"", None) if work is None else (avro.encode_work(work), AVRO)
    what, path = f"fetch from group {scope}", scope.path("fetch")
    return ask(
        Call(what, "POST", path, _dealt, Effect.REPEATABLE, query, body, media_type, BATCHES, wait_ms, patient=patient)
    )


def acknowledge(scope: GroupScope, body: AcknowledgeRequest) -> Steps[Acknowledged]:
    """Acknowledge messages at once; again it changes nothing."""
    what, path = f"acknowledge in group {scope}", scope.path("acknowledge")
    return send_json("POST", what, path, json_of(Acknowledged), body=body)


def release(scope: GroupScope, body: ReleaseRequest, *, timeout_ms_max: int | None = None) -> Steps[Released]:
    """Give messages back, to be dealt again."""
    what, path = f"release messages of group {scope}", scope.path("release")
    return send_json("POST", what, path, json_of(Released), body=body, timeout_ms_max=timeout_ms_max)


def give_back(
    scope: GroupScope,
    *,
    claims: Iterable[int] = (),
    ids: Iterable[bytes | str] = (),
    delay_ms: int | None = None,
    counts: bool = True,
    reason: str = "",
) -> Steps[Released]:
    """Give back what members have claimed, by claims or by ids. `counts=False`: it was no attempt at the messages.

    More than 1,000 claims are given back by several calls: where one is refused, those before it were done.
    """
    named, numbers, released = _ids(ids), tuple(claims), 0
    for first in range(0, max(len(numbers), 1), ACKNOWLEDGED_CLAIMS_MAX):
        some = numbers[first : first + ACKNOWLEDGED_CLAIMS_MAX]
        body = ReleaseRequest(() if first else named, some, delay_ms=delay_ms, counts=counts, reason=reason)
        released += (yield from release(scope, body)).released
    return Released(released)


def sign_of_life(
    scope: GroupScope, member: str, epoch: int, extend: Iterable[int] = (), *, timeout_ms_max: int | None = None
) -> Steps[MemberStanding]:
    """Join with epoch 0, or renew a member's lease and these claims of its."""
    what, path = f"renew member {member} of group {scope}", scope.path("members", member)
    body = MemberRequest(epoch, tuple(extend))
    return send_json("POST", what, path, json_of(MemberStanding), body=body, timeout_ms_max=timeout_ms_max)


def remove_member(scope: GroupScope, member: str, *, epoch: int | None = None) -> Steps[None]:
    """Let a member leave; its claims are given back, uncounted."""
    return leave(scope, member, epoch)


def leave(scope: GroupScope, member: str, epoch: int | None, *, timeout_ms_max: int | None = None) -> Steps[None]:
    """The same, for who does not wait long for it."""
    what, path = f"remove member {member} of group {scope}", scope.path("members", member)
    query = query_of(epoch=epoch or None)
    return ask(Call(what, "DELETE", path, nothing, Effect.REPEATABLE, query, timeout_ms_max=timeout_ms_max))


def members(scope: GroupScope) -> Steps[list[MemberInfo]]:
    """The members of the group, with their slots, claims and last sign of life."""
    found = yield from get_json(MemberList, f"list the members of group {scope}", scope.path("members"))
    return list(found.members)


def claims(scope: GroupScope, *, limit: int | None = None) -> Steps[list[ClaimInfo]]:
    """The claims of the group: who works on what, since when and until when."""
    query = query_of(limit=limit)
    found = yield from get_json(ClaimList, f"list the claims of group {scope}", scope.path("claims"), query)
    return list(found.claims)


def slots(scope: GroupScope, *, limit: int | None = None) -> Steps[SlotList]:
    """The slots of a keyed group that have messages, the furthest behind first; as far as the group has been read ahead."""
    return get_json(SlotList, f"list the slots of group {scope}", scope.path("slots"), query_of(limit=limit))


def messages(scope: GroupScope, *, state: str | None = None, limit: int | None = None) -> Steps[list[GroupMessage]]:
    """The messages of the group that are not acknowledged; of a `state`, such as "parked", or of all."""
    what, query = f"list the messages of group {scope}", query_of(state=state, limit=limit)
    return list((yield from get_json(GroupMessages, what, scope.path("messages"), query)).messages)


def message(scope: GroupScope, message_id: bytes | str) -> Steps[GroupMessage]:
    """The state of one message in the group, and why it is not dealt."""
    shown = message_id if isinstance(message_id, str) else message_id.hex()
    return get_json(GroupMessage, f"explain message {shown} of group {scope}", scope.path("messages", shown))


def seek(
    scope: GroupScope,
    to: PositionLike,
    *,
    dry_run: bool = False,
    force: bool = False,
    reason: str = "",
    by: str = "",
) -> Steps[Sought]:
    """Let the group go on from a position: all before it counts as acknowledged, all from there on comes (again).

    Claims are revoked, attempts forgotten. `ConflictError` names a transaction that has acknowledged something; `force` dooms it.
    """
    text = to if isinstance(to, str) else position(to, scope.topic.now_ms(), "to").text
    what, query = f"seek in group {scope}", act_of(reason, by, dry_run=dry_run, force=force)
    return send_json("POST", what, scope.path("seek"), json_of(Sought), body=SeekRequest(text), query=query)


def pause(scope: GroupScope, *, dry_run: bool = False, reason: str = "", by: str = "") -> Steps[GroupInfo]:
    """Deal nothing until the group is resumed; what is claimed may be acknowledged."""
    return _act(scope, "pause", act_of(reason, by, dry_run=dry_run))


def resume(scope: GroupScope, *, dry_run: bool = False, reason: str = "", by: str = "") -> Steps[GroupInfo]:
    """Deal again."""
    return _act(scope, "resume", act_of(reason, by, dry_run=dry_run))


def unpark(
    scope: GroupScope,
    ids: Iterable[bytes | str] | None = None,
    *,
    dry_run: bool = False,
    reason: str = "",
    by: str = "",
) -> Steps[Unparked]:
    """Deal parked messages again, from their first attempt on: these, or all (None)."""
    body = UnparkRequest(all=True) if ids is None else UnparkRequest(_ids(ids))
    what, query = f"unpark messages of group {scope}", act_of(reason, by, dry_run=dry_run)
    return send_json("POST", what, scope.path("unpark"), json_of(Unparked), body=body, query=query)


def report_position(scope: GroupScope, up_to: bytes | str, *, by: str = "") -> Steps[None]:
    """Report how far the keeper of a `tracked` group's position has come. `ConflictError` for a group of another mode."""
    what, body = f"report the position of group {scope}", PositionRequest(_id(up_to), by)
    return send_json("POST", what, scope.path("position"), nothing, body=body)


def _act(scope: GroupScope, verb: str, query: Query) -> Steps[GroupInfo]:
    return send_json("POST", f"{verb} group {scope}", scope.path(verb), json_of(GroupInfo), query=query)


def _ids(given: Iterable[bytes | str]) -> tuple[HexMessageId, ...]:
    if isinstance(given, str | bytes):
        raise TypeError(f"ids are several: [{given!r}]")
    return tuple(map(_id, given))


def _id(given: bytes | str) -> HexMessageId:
    """The id, as a message has it or in hex digits. `InputError` when it is none."""
    if isinstance(given, bytes):
        found = given
    elif isinstance(given, str):
        try:
            found = bytes.fromhex(given)
        except ValueError:
            found = b""
    else:
        raise TypeError(f"an id is bytes or hex digits, not {given!r}")
    if len(found) != MESSAGE_ID_BYTES:
        raise InputError(
            f"{given!r} is not a message id",
            field="ids",
            hint="Give it as a message has it: 20 bytes, or 40 hex digits.",
        )
    return HexMessageId(found)


def _dealt(answer: Answer) -> Dealt:
    if media_type_of(answer) != BATCHES:
        raise ValueError("it is no message batches")
    headers = answer.headers

    def number(name: str) -> int:
        return int(headers.get(f"basalt-{name}", "0"))

    def place(name: str) -> bytes | None:
        digits = headers.get(f"basalt-{name}")
        return None if digits is None else bytes.fromhex(digits)

    return Dealt(
        Page(answer.body, next_id_of(answer)), number("claim") or None, place("after"), place("through"),
        number("round"), number("attempt"), number("claim-until"), number("member-epoch"),
        headers.get("basalt-transaction"), headers.get("basalt-waiting-for"),
    )  # fmt: skip
