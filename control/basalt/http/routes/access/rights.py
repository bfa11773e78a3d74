"""The calls about who calls, and who may do what: tokens, logins, grants, roles, and what was seen and refused.

Nobody rises by giving: who gives a right must have it, and who makes a token of a principal, or puts one into a role, must have every right
that comes with it. That holds where rights are not enforced yet, too: what is written here stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from basalt.access.needs import SELF, needs
from basalt.access.policy import Grant, Policy, consequences, parse_grant
from basalt.access.principal import (
    EVERYONE,
    INTERNAL,
    ROLE,
    check_member,
    check_subject_name,
    parse_principal,
)
from basalt.access.proofs.token import draw_token, parse_network
from basalt.access.records import GrantRow, RoleRow, TokenRow
from basalt.access.records import Rights as StoredRights
from basalt.access.resources import CLUSTER as WHOLE_CLUSTER
from basalt.access.resources import Resource, check_verbs, parse_resource
from basalt.access.sightings import SEEN_MAX
from basalt.api.bodies import access as bodies
from basalt.errors import BusyError, ConflictError, ForbiddenError, InputError, NotFoundError
from basalt.http.routes.route_table import (
    ADMIN_PATH,
    AS,
    CLUSTER,
    DRY_RUN,
    REASON,
    Request,
    RouteTable,
    flag,
    integer,
    text_query,
    words,
)
from basalt.operations.audit import TEXT_CHARS_MAX, is_line

AUTH_PATH = "/v1/auth"
TTL_MS_MIN = 1_000
TTL_MS_MAX = 3_660 * 86_400_000  # ten years: for longer there is null
LOGIN_MS_MAX = 12 * 3_600_000  # a working day; after it, prove again who you are
NETWORKS_MAX = 64
ONLY_MAX = 64
REFUSALS_DEFAULT, REFUSALS_MAX = 100, 10_000
LIST_MAX = 20_000  # tokens, with those that are over and still kept
NO_ID = ""  # of what is only tried

_TOKENS = ADMIN_PATH + "/tokens"
_GRANTS = ADMIN_PATH + "/grants"
_ROLES = ADMIN_PATH + "/roles"
_CHANGE = (REASON, AS, DRY_RUN)
_GIVE = needs("grant", CLUSTER)
_ID = "^[0-9a-f]{16}$"
_DAY_MS = 86_400_000

T = TypeVar("T")

route = RouteTable("access")


# Who calls.


@route("GET", AUTH_PATH + "/whoami", SELF)
async def whoami(request: Request) -> bodies.Identity:
    """Tell who makes the call."""
    caller = request.caller
    principal, policy = caller.principal, caller.policy
    return bodies.Identity(
        principal=str(principal),
        groups=tuple(sorted(principal.groups)),
        roles=() if policy is None else policy.roles_of(principal),
        superuser=policy is not None and policy.is_superuser(principal),
        judged=policy is not None,
        credential=caller.credential,
        expires_ms=caller.until_ms,
        only=None if caller.only is None else tuple(map(_rights_of, caller.only)),
        via="" if caller.via is None else str(caller.via),
    )


@route("POST", AUTH_PATH + "/check", needs(in_body=("inspect cluster",)))
async def check(request: Request, asked: bodies.RightRequest) -> bodies.RightAnswer:
    """Tell whether the caller has a right, and by which grants; or what is missing.

    Of another principal, without its groups, it takes `inspect` on the cluster.
    """
    caller, resource = request.caller, parse_resource(asked.resource)
    check_verbs((asked.verb,), resource.kind)
    if asked.principal and asked.principal != str(caller.principal):
        caller.must("inspect", WHOLE_CLUSTER)
        principal, policy = parse_principal(asked.principal), request.services.directory.entries.policy
        verdict = policy.why(principal, asked.verb, resource)
    else:
        principal, verdict = caller.principal, caller.why(asked.verb, resource)
    grants = (
        bodies.GrantedRights(each.subject, tuple(sorted(each.verbs)), str(each.resource)) for each in verdict.grants
    )
    return bodies.RightAnswer(
        verdict.allowed, str(principal), asked.verb, str(resource), verdict.because, tuple(grants)
    )


@route("POST", AUTH_PATH + "/logins", SELF, errors=(ConflictError, ForbiddenError, BusyError))
async def log_in(request: Request, asked: bodies.LoginRequest = bodies.LoginRequest()) -> bodies.NewToken:  # noqa: B008
    """Turn the credential of the call into a token that ends soon.

    It is the caller's principal, and ends with the credential that it was made with.
    """
    _must_be_asked(request)
    caller, directory, now_ms = request.caller, request.services.directory, request.services.clock.now_ms()
    kind, _, credential_id = caller.credential.partition(" ")
    if not caller.credential or kind == "login":
        raise ConflictError(
            "a login is made with the credential that proves who one is, and not with another login",
            hint="send that credential",
        )
    if caller.via is not None:
        raise ForbiddenError("a proxy makes no logins for its users", hint="Send each call through the proxy.")
    _check_ttl(asked.ttl_ms, LOGIN_MS_MAX)
    until_ms = now_ms + asked.ttl_ms if caller.until_ms is None else min(now_ms + asked.ttl_ms, caller.until_ms)
    new = draw_token()
    row = TokenRow(
        str(caller.principal), new.digest, now_ms, until_ms, groups=tuple(sorted(caller.principal.groups)),
        only=None if caller.only is None else tuple(StoredRights(tuple(sorted(each.verbs)), str(each.resource)) for each in caller.only),
        made_by=str(caller.principal), parent=credential_id or kind, parent_is_token=kind == "token" and credential_id != "bootstrap",
    )  # fmt: skip
    await _audited(request, "log in", f"login {new.id}", lambda: directory.add_token(new.id, row))
    return bodies.NewToken(new.text, _token_info(request, new.id, row, now_ms))


@route("DELETE", AUTH_PATH + "/logins", SELF, errors=(ConflictError,))
async def log_out(request: Request) -> bodies.TokenInfo:
    """End the login with which the call is made."""
    _must_be_asked(request)
    directory, now_ms = request.services.directory, request.services.clock.now_ms()
    kind, _, token_id = request.caller.credential.partition(" ")
    if kind != "login":
        raise ConflictError("the call is not made with a login, so there is none to end", hint="send the login's token")
    row = replace(directory.token(token_id), revoked_ms=now_ms)
    await _audited(request, "log out", f"login {token_id}", lambda: directory.change_token(token_id, row))
    return _token_info(request, token_id, row, now_ms)


# Tokens.


@route(
    "GET",
    _TOKENS,
    SELF,
    query=(
        text_query("principal", "only those of this principal"),
        flag("active", "only tokens that count, and no logins"),
        words("after", _ID, "only those behind this id"),
        integer("limit", 1, LIST_MAX, "most tokens to answer; all by default"),
    ),
)
async def tokens(request: Request) -> list[bodies.TokenInfo]:
    """List tokens and logins, by id: one's own, or all, for who may give rights on the cluster or inspect it."""
    directory, now_ms = request.services.directory, request.services.clock.now_ms()
    await directory.read_uses()
    sees_all, own = _sees_all(request), str(request.caller.principal)
    of, active = request.text("principal") or "", request.flag("active")
    rows = directory.entries.tokens
    found = (
        token_id
        for token_id, row in rows.items()
        if (sees_all or row.principal == own)
        and of in ("", row.principal)
        and not (active and (row.parent or row.is_over(now_ms)))
    )
    return [_token_info(request, token_id, rows[token_id], now_ms) for token_id in _page(request, found)]


@route("POST", _TOKENS, _GIVE, query=_CHANGE, errors=(ConflictError, BusyError))
async def make_token(request: Request, asked: bodies.TokenRequest) -> bodies.NewToken:
    """Make a token of `token:NAME`, with all the rights that it has, or fewer.

    The caller must have each of them. The answer holds the token, which is shown this once.
    """
    _must_hold(request)
    principal = f"token:{check_subject_name(asked.name)}"
    _must_act_as(request, principal)
    if asked.ttl_ms is not None:
        _check_ttl(asked.ttl_ms, TTL_MS_MAX)
    directory, now_ms, new = request.services.directory, request.services.clock.now_ms(), draw_token()
    row = TokenRow(
        principal, new.digest, now_ms, None if asked.ttl_ms is None else now_ms + asked.ttl_ms, only=_only(asked.only),
        networks=_networks(asked.networks), note=_note(asked.note), made_by=str(request.caller.principal),
    )  # fmt: skip
    beside = _counting(request, principal)
    if request.flag("dryRun"):
        return bodies.NewToken(None, _token_info(request, NO_ID, row, now_ms), beside)
    await _audited(request, "make token", f"token {new.id} of {principal}", lambda: directory.add_token(new.id, row))
    return bodies.NewToken(new.text, _token_info(request, new.id, row, now_ms), beside)


@route("GET", _TOKENS + "/{token}", SELF, errors=(NotFoundError, ForbiddenError))
async def token(request: Request) -> bodies.TokenInfo:
    """Show a token, without its secret."""
    row = _token_of(request, to_change=False)
    await request.services.directory.read_uses()
    return _token_info(request, request.path["token"], row, request.services.clock.now_ms())


@route("DELETE", _TOKENS + "/{token}", SELF, query=_CHANGE, errors=(NotFoundError, ForbiddenError, ConflictError))
async def revoke_token(request: Request) -> bodies.TokenInfo:
    """Revoke a token: it counts no more, and nor do the logins that were made with it."""
    _must_be_asked(request)
    directory, now_ms, token_id = request.services.directory, request.services.clock.now_ms(), request.path["token"]
    row = _token_of(request, to_change=True)
    if row.revoked_ms is None:
        row = replace(row, revoked_ms=now_ms)
        if not request.flag("dryRun"):
            what = f"token {token_id} of {row.principal}"
            await _audited(request, "revoke token", what, lambda: directory.change_token(token_id, row))
    return _token_info(request, token_id, row, now_ms)


@route(
    "POST",
    _TOKENS + "/{token}/rotate",
    SELF,
    query=_CHANGE,
    errors=(NotFoundError, ForbiddenError, ConflictError, BusyError),
)
async def rotate_token(
    request: Request,
    asked: bodies.RotateRequest = bodies.RotateRequest(),  # noqa: B008
) -> bodies.NewToken:
    """Make a token that takes another one's place, with the same rights and for as long.

    The old one ends after `overlapMs`, within which those who have it take the new one. A token may be sent to rotate itself; for any
    other the caller must have each right of its principal.
    """
    _must_be_asked(request)
    directory, now_ms, old_id = request.services.directory, request.services.clock.now_ms(), request.path["token"]
    row = _token_of(request, to_change=True)
    if row.parent or row.is_over(now_ms):
        reason = "is a login" if row.parent else "counts no more"
        raise ConflictError(f"token {old_id} {reason}, and is not rotated", hint="make a new one")
    if request.caller.credential.startswith("login ") and not request.caller.has("grant", WHOLE_CLUSTER):
        # Who may make tokens anyway, as an operator at the console, gains nothing by it.
        raise ForbiddenError("a login rotates no token: it would outlive itself", hint="Send the token itself.")
    if request.caller.credential != f"token {old_id}":
        _must_act_as(request, row.principal)
    if not 0 <= asked.overlap_ms <= TTL_MS_MAX:
        raise InputError(f"overlapMs must be from 0 to {TTL_MS_MAX}", field="overlapMs")
    lasts_ms = None if row.expire_ms is None else row.expire_ms - row.created_ms
    new = draw_token()
    expire_ms = None if lasts_ms is None else now_ms + lasts_ms
    made = replace(
        row, digest=new.digest, created_ms=now_ms, expire_ms=expire_ms, made_by=str(request.caller.principal)
    )
    ends_ms = now_ms + asked.overlap_ms
    ending = replace(row, expire_ms=ends_ms if row.expire_ms is None else min(row.expire_ms, ends_ms))
    beside = _counting(request, row.principal, but=old_id)
    if request.flag("dryRun"):
        return bodies.NewToken(None, _token_info(request, NO_ID, made, now_ms), beside)
    what = f"token {old_id} of {row.principal}"
    await _audited(
        request, "rotate token", what, lambda: directory.rotate_token(old_id, ending, new.id, made),
        lambda _: f"token {new.id} takes its place",
    )  # fmt: skip
    return bodies.NewToken(new.text, _token_info(request, new.id, made, now_ms), beside)


# Grants.


@route(
    "GET",
    _GRANTS,
    SELF,
    query=(
        text_query("subject", "only those to this subject itself"),
        integer("unusedDays", 1, 3_660, "only grants that nobody needed for so long"),
        words("after", _ID, "only those behind this id"),
        integer("limit", 1, LIST_MAX, "most grants to answer; all by default"),
    ),
)
async def grants(request: Request) -> list[bodies.GrantInfo]:
    """List grants, by id: those to the caller, and those that it may take back; all, for who may inspect the cluster."""
    await request.services.directory.read_uses()
    caller, directory, sees_all = request.caller, request.services.directory, _sees_all(request)
    mine = frozenset() if caller.policy is None else frozenset(caller.policy.subjects_of(caller.principal))
    gives = caller.policy is not None and caller.policy.may_give_somewhere(caller.principal)
    days = request.integer("unusedDays")
    before_ms = None if days is None else request.services.clock.now_ms() - days * _DAY_MS
    to, rows = request.text("subject") or "", directory.entries.grants

    def is_wanted(grant_id: str, row: GrantRow) -> bool:
        if to not in ("", row.subject):
            return False
        if before_ms is not None:
            use = directory.use_of(grant_id)
            if row.created_ms >= before_ms or (use is not None and use.used_ms >= before_ms):
                return False
        return (
            sees_all
            or row.subject in mine
            or (gives and caller.has("grant", directory.entries.parsed[grant_id].resource))
        )

    found = (grant_id for grant_id, row in rows.items() if is_wanted(grant_id, row))
    return [_grant_info(request, grant_id, rows[grant_id]) for grant_id in _page(request, found)]


@route("POST", _GRANTS, needs(in_body=("grant *",)), query=_CHANGE, errors=(ConflictError,))
async def give(request: Request, asked: bodies.GrantRequest) -> bodies.GrantInfo:
    """Give rights. The caller must have `grant` on the resource, and each right that is given.

    What is granted already is granted once.
    """
    _must_be_asked(request)
    grant = parse_grant(asked.subject, asked.verbs, asked.resource)
    _must_give(request, grant)
    directory = request.services.directory
    made_by, verbs = str(request.caller.principal), tuple(sorted(grant.verbs))
    if request.flag("dryRun"):
        now_ms = request.services.clock.now_ms()
        row = GrantRow(grant.subject, verbs, str(grant.resource), now_ms, made_by)
        after = directory.would_be(grants={**directory.entries.grants, NO_ID: row})
        info = bodies.GrantInfo(NO_ID, grant.subject, verbs, str(grant.resource), now_ms, made_by, None, ())
        return replace(info, **_changes(request, after, _those_of(request, grant.subject), (grant,)))
    what = f"{', '.join(verbs)} on {grant.resource} to {grant.subject}"
    grant_id = await _audited(request, "grant", what, lambda: directory.add_grant(grant, made_by))
    return _grant_info(request, grant_id, directory.grant(grant_id))


@route("DELETE", _GRANTS + "/{grant}", SELF, query=_CHANGE, errors=(NotFoundError, ForbiddenError, ConflictError))
async def take_back(request: Request) -> bodies.GrantInfo:
    """Take a grant back. The caller must have `grant` on its resource, or on the cluster."""
    _must_be_asked(request)
    directory, grant_id = request.services.directory, request.path["grant"]
    row = directory.entries.grants.get(grant_id)
    if row is None or not request.caller.has("grant", directory.entries.parsed[grant_id].resource):
        _must_hold(request)  # who may give no rights does not learn which there are
        row = directory.grant(grant_id)
    await directory.read_uses()
    info = _grant_info(request, grant_id, row)
    if request.flag("dryRun"):
        kept = {each: other for each, other in directory.entries.grants.items() if each != grant_id}
        of, grant = _those_of(request, row.subject), directory.entries.parsed[grant_id]
        info = replace(info, **_changes(request, directory.would_be(grants=kept), of, (grant,)))
    else:
        what = f"{', '.join(row.verbs)} on {row.resource} from {row.subject}"
        await _audited(request, "take back", what, lambda: directory.remove_grant(grant_id))
    return info


# Roles.


@route("GET", _ROLES, SELF)
async def roles(request: Request) -> list[bodies.RoleInfo]:
    """List roles: those of the caller, or all, for who may give rights on the cluster or inspect it."""
    policy, principal = request.caller.policy, request.caller.principal
    mine = () if policy is None else policy.roles_of(principal)
    sees_all = _sees_all(request)
    return [
        _role_info(name, row)
        for name, row in request.services.directory.entries.roles.items()
        if sees_all or f"{ROLE}:{name}" in mine
    ]


@route("GET", _ROLES + "/{role}", needs("inspect", CLUSTER), errors=(NotFoundError,))
async def role(request: Request) -> bodies.RoleInfo:
    """Show a role and its members."""
    name = request.path["role"]
    return _role_info(name, request.services.directory.role(name))


@route("PUT", _ROLES + "/{role}", _GIVE, query=_CHANGE, errors=(ConflictError,))
async def put_role(request: Request, asked: bodies.RoleRequest) -> bodies.RoleInfo:
    """Make a role, or give it other members. The caller must have each right of the role."""
    _must_hold(request)
    directory, name = request.services.directory, check_subject_name(request.path["role"])
    members = tuple(sorted(set(map(check_member, asked.members))))
    _must_act_as(request, f"{ROLE}:{name}")
    made_by = str(request.caller.principal)
    if request.flag("dryRun"):
        now_ms = request.services.clock.now_ms()
        row = RoleRow(members, now_ms, made_by)
        return replace(_role_info(name, row), **_changes_of_role(request, name, row))
    what = f"role {name}: {len(members)} members"
    await _audited(request, "set role", what, lambda: directory.put_role(name, members, made_by))
    return _role_info(name, directory.role(name))


@route("DELETE", _ROLES + "/{role}", _GIVE, query=_CHANGE, errors=(NotFoundError, ConflictError))
async def remove_role(request: Request) -> bodies.RoleInfo:
    """Remove a role. What was granted to it stays granted to a later role of its name."""
    _must_hold(request)
    directory, name = request.services.directory, request.path["role"]
    info = _role_info(name, directory.role(name))
    if request.flag("dryRun"):
        info = replace(info, **_changes_of_role(request, name, None))
    else:
        await _audited(request, "remove role", f"role {name}", lambda: directory.remove_role(name))
    return info


# What was seen.


@route(
    "GET",
    ADMIN_PATH + "/principals",
    needs("inspect", CLUSTER),
    query=(integer("limit", 1, SEEN_MAX, f"most principals to answer; {REFUSALS_DEFAULT} by default"),),
)
async def principals(request: Request) -> list[bodies.SeenPrincipal]:
    """List the principals that called since the server started, those that called last first."""
    return [
        bodies.SeenPrincipal(each.principal, each.credential, each.via, each.address, each.first_ms, each.last_ms)
        for each in request.services.directory.sightings.newest(request.integer("limit") or REFUSALS_DEFAULT)
    ]


@route(
    "GET",
    ADMIN_PATH + "/refusals",
    needs("inspect", CLUSTER),
    query=(integer("limit", 1, REFUSALS_MAX, f"most refusals to answer; {REFUSALS_DEFAULT} by default"),),
)
async def refusals(request: Request) -> list[bodies.RefusalInfo]:
    """List what callers had no right to since the server started, newest first.

    With `auth.enforce = false` it was let through, and would be refused.
    """
    found = request.services.refusals
    return [
        bodies.RefusalInfo(
            each.principal, each.verb, each.resource, each.count, each.first_ms, each.last_ms, found.enforced
        )
        for each in found.newest(request.integer("limit") or REFUSALS_DEFAULT)
    ]


# What is asked of those who give.


def _must_be_asked(request: Request) -> None:
    """Refuse changes where nobody is asked who they are: whoever reached the port could make a key for later."""
    if request.caller.policy is None and request.caller.principal.kind != INTERNAL:
        raise ConflictError(
            "auth.kinds is none: whoever reaches this server could give rights that count once somebody is asked",
            field="auth.kinds",
            hint='start it with auth.kinds = ["token"], and with auth.enforce = false until the grants are there',
        )


def _must_hold(request: Request) -> None:
    """Refuse who may not give rights on the cluster, also where rights are not enforced yet."""
    _must_be_asked(request)
    if not request.caller.has("grant", WHOLE_CLUSTER):
        raise _forbidden(request, "grant", str(WHOLE_CLUSTER))


def _must_give(request: Request, grant: Grant) -> None:
    caller = request.caller
    for verb in ("grant", *sorted(grant.verbs)):
        if not caller.may_give((verb,), grant.resource):
            raise _forbidden(request, verb, str(grant.resource))


def _must_act_as(request: Request, subject: str) -> None:
    """Refuse who has not every right of the subject: whoever has a token of it, or is in the role, acts as it."""
    if not request.caller.may_act_as(subject):
        request.services.refusals.note(str(request.caller.principal), "act as", subject)
        raise ForbiddenError(
            f"{request.caller.principal} has not every right of {subject}, and may not give them",
            hint="Ask somebody who has them, or a superuser.",
        )


def _forbidden(request: Request, verb: str, resource: str) -> ForbiddenError:
    principal = str(request.caller.principal)
    request.services.refusals.note(principal, verb, resource)
    return ForbiddenError(f"{principal} may not {verb} {resource}", hint=f"Have {verb} on it granted to {principal}.")


def _sees_all(request: Request) -> bool:
    return request.caller.has("grant", WHOLE_CLUSTER) or request.caller.has("inspect", WHOLE_CLUSTER)


def _token_of(request: Request, *, to_change: bool) -> TokenRow:
    """The token that the path names: one's own, or any for who may give rights on the cluster, or only look at it."""
    token_id = request.path["token"]
    row = request.services.directory.entries.tokens.get(token_id)
    if row is not None and row.principal == str(request.caller.principal):
        return row
    if not to_change and _sees_all(request):
        return request.services.directory.token(token_id)
    _must_hold(request)
    return request.services.directory.token(token_id)


async def _audited(
    request: Request, act: str, what: str, do: Callable[[], Awaitable[T]],
    outcome: Callable[[T], str] = lambda _: "done",
) -> T:  # fmt: skip
    return await request.services.audit.act(act, what, *request.act, do, outcome)


# What bodies say.


def _check_ttl(ttl_ms: int, ttl_ms_max: int) -> None:
    if not TTL_MS_MIN <= ttl_ms <= ttl_ms_max:
        raise InputError(f"ttlMs is {ttl_ms}; it must be from {TTL_MS_MIN} to {ttl_ms_max}", field="ttlMs")


def _only(asked: tuple[bodies.Rights, ...] | None) -> tuple[StoredRights, ...] | None:
    if asked is None:
        return None
    if len(asked) > ONLY_MAX:
        raise InputError(f"only has {len(asked)} entries; the limit is {ONLY_MAX}", field="only")
    grants = (parse_grant(EVERYONE, each.verbs, each.resource) for each in asked)
    return tuple(StoredRights(tuple(sorted(each.verbs)), str(each.resource)) for each in grants)


def _networks(asked: tuple[str, ...]) -> tuple[str, ...]:
    if len(asked) > NETWORKS_MAX:
        raise InputError(f"networks has {len(asked)} entries; the limit is {NETWORKS_MAX}", field="networks")
    return tuple(map(parse_network, asked))


def _note(text: str) -> str:
    if not is_line(text):
        raise InputError(f"note must be printable text of up to {TEXT_CHARS_MAX} characters", field="note")
    return text


def _page(request: Request, found: Iterable[str]) -> list[str]:
    """The ids of a page, in their order."""
    after = request.text("after") or ""
    return sorted(each for each in found if each > after)[: request.integer("limit")]


def _those_of(request: Request, subject: str) -> tuple[str, ...]:
    """The subjects that a grant to a subject is about: of a role its members."""
    kind, _, name = subject.partition(":")
    if kind != ROLE:
        return (subject,)
    role = request.services.directory.entries.roles.get(name)
    return () if role is None else role.members


def _changes_of_role(request: Request, name: str, after: RoleRow | None) -> dict[str, Any]:
    """The gains and losses of those who come into a role, or leave it; all of its members where it goes."""
    directory = request.services.directory
    roles = directory.entries.roles
    kept = {each: row for each, row in roles.items() if each != name}
    before = frozenset(roles[name].members if name in roles else ())
    changed = before ^ frozenset(after.members if after is not None else ())
    would_be = directory.would_be(roles=kept if after is None else {**kept, name: after})
    subject = f"{ROLE}:{name}"
    grants = [each for each in directory.entries.policy.grants_of(subject) if each.subject == subject]
    return _changes(request, would_be, changed, grants)


def _changes(request: Request, after: Policy, subjects: Iterable[str], grants: Iterable[Grant]) -> dict[str, Any]:
    found = consequences(request.services.directory.entries.policy, after, subjects, grants)

    def told(parts: tuple[tuple[Resource, tuple[str, ...]], ...]) -> tuple[bodies.Rights, ...]:
        return tuple(bodies.Rights(verbs, str(resource)) for resource, verbs in parts)

    changes = tuple(bodies.RightsChange(each.subject, told(each.gains), told(each.loses)) for each in found.told)
    return {"changes": changes, "left_out": found.left_out}


def _rights_of(grant: Grant) -> bodies.Rights:
    return bodies.Rights(tuple(sorted(grant.verbs)), str(grant.resource))


def _token_info(request: Request, token_id: str, row: TokenRow, now_ms: int) -> bodies.TokenInfo:
    state = "revoked" if row.revoked_ms is not None else "expired" if row.is_over(now_ms) else "active"
    only = None if row.only is None else tuple(bodies.Rights(each.verbs, each.resource) for each in row.only)
    use = request.services.directory.token_use_of(token_id)
    used_ms, used_from = (None, "") if use is None else (use.used_ms, use.address)
    return bodies.TokenInfo(
        token_id, row.principal, state, row.created_ms, row.expire_ms, row.made_by, row.note, row.networks, only, row.parent,
        used_ms, used_from,
    )  # fmt: skip


def _counting(request: Request, principal: str, but: str = NO_ID) -> int:
    """The number of tokens of a principal that count, without logins and without one of them."""
    now_ms, rows = request.services.clock.now_ms(), request.services.directory.entries.tokens
    return sum(
        row.principal == principal and not row.parent and not row.is_over(now_ms) and token_id != but
        for token_id, row in rows.items()
    )


def _grant_info(request: Request, grant_id: str, row: GrantRow) -> bodies.GrantInfo:
    use = request.services.directory.use_of(grant_id)
    return bodies.GrantInfo(
        grant_id, row.subject, row.verbs, row.resource, row.created_ms, row.made_by, None if use is None else use.used_ms,
        () if use is None else use.principals,
    )  # fmt: skip


def _role_info(name: str, row: RoleRow) -> bodies.RoleInfo:
    return bodies.RoleInfo(name, row.members, row.changed_ms, row.made_by)
