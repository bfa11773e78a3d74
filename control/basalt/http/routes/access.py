"""The calls about who calls, and who may do what: tokens, logins, grants, roles, what was refused, and quotas.

Nobody rises by giving: who gives a right must have it, and who makes a token of a principal, or puts one into a role, must have every right
that comes with it. That holds where rights are not enforced yet, too: what is written here stays.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import asdict, replace

from basalt.access.needs import SELF, needs
from basalt.access.policy import Grant, Policy, parse_grant
from basalt.access.principal import (
    ANONYMOUS,
    EVERYONE,
    INTERNAL,
    ROLE,
    Principal,
    check_member,
    check_subject,
    check_subject_name,
    parse_principal,
)
from basalt.access.proofs.token import draw_token, parse_network
from basalt.access.quotas import OPEN_TRANSACTIONS, QUOTAS, SESSIONS, TOPICS, QuotaLimits, QuotaRow, Ruling
from basalt.access.records import GrantRow, RoleRow, TokenRow
from basalt.access.records import Rights as StoredRights
from basalt.access.resources import CLUSTER as WHOLE_CLUSTER
from basalt.access.resources import check_verbs, parse_resource
from basalt.api.bodies import access as bodies
from basalt.errors import BusyError, ConflictError, ForbiddenError, InputError, NotFoundError
from basalt.http.routes.route_table import ADMIN_PATH, AS, CLUSTER, DRY_RUN, REASON, Request, RouteTable, integer
from basalt.operations.audit import TEXT_CHARS_MAX, is_line
from basalt.settings.tree import QUOTA_MAX

AUTH_PATH = "/v1/auth"
TTL_MS_MIN = 1_000
TTL_MS_MAX = 3_660 * 86_400_000  # ten years: for longer there is null
LOGIN_MS_MAX = 12 * 3_600_000  # a working day; after it, prove again who you are
NETWORKS_MAX = 64
ONLY_MAX = 64
REFUSALS_DEFAULT, REFUSALS_MAX = 100, 10_000
SETTINGS = "settings"  # that a quota is by, where no subject's rule says anything

_TOKENS = ADMIN_PATH + "/tokens"
_GRANTS = ADMIN_PATH + "/grants"
_ROLES = ADMIN_PATH + "/roles"
_QUOTAS = ADMIN_PATH + "/quotas"
_QUOTA = _QUOTAS + "/{subject}"
_CHANGE = (REASON, AS, DRY_RUN)
_GIVE = needs("grant", CLUSTER)
_DAY_MS = 86_400_000
_ESCAPED = re.compile(r"~([012])|~")
_ESCAPES = {"0": "~", "1": "/", "2": "\\"}

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
    return bodies.NewToken(new.text, _token_info(new.id, row, now_ms))


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
    return _token_info(token_id, row, now_ms)


# Tokens.


@route("GET", _TOKENS, SELF)
async def tokens(request: Request) -> list[bodies.TokenInfo]:
    """List tokens and logins: one's own, or all, for who may give rights on the cluster or inspect it."""
    services, now_ms = request.services, request.services.clock.now_ms()
    sees_all, own = _sees_all(request), str(request.caller.principal)
    return [
        _token_info(token_id, row, now_ms)
        for token_id, row in services.directory.entries.tokens.items()
        if sees_all or row.principal == own
    ]


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
    if request.flag("dryRun"):
        return bodies.NewToken(None, _token_info(new.id, row, now_ms))
    await _audited(request, "make token", f"token {new.id} of {principal}", lambda: directory.add_token(new.id, row))
    return bodies.NewToken(new.text, _token_info(new.id, row, now_ms))


@route("GET", _TOKENS + "/{token}", SELF, errors=(NotFoundError, ForbiddenError))
async def token(request: Request) -> bodies.TokenInfo:
    """Show a token, without its secret."""
    row = _token_of(request, to_change=False)
    return _token_info(request.path["token"], row, request.services.clock.now_ms())


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
    return _token_info(token_id, row, now_ms)


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
    if request.caller.credential.startswith("login "):
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
    if request.flag("dryRun"):
        return bodies.NewToken(None, _token_info(new.id, made, now_ms))
    what = f"token {old_id} of {row.principal}"
    await _audited(
        request, "rotate token", what, lambda: directory.rotate_token(old_id, ending, new.id, made),
        lambda _: f"token {new.id} takes its place",
    )  # fmt: skip
    return bodies.NewToken(new.text, _token_info(new.id, made, now_ms))


# Grants.


@route("GET", _GRANTS, SELF, query=(integer("unusedDays", 1, 3_660, "only grants that nobody needed for so long"),))
async def grants(request: Request) -> list[bodies.GrantInfo]:
    """List grants: those to the caller, and those that it may take back; all, for who may inspect the cluster."""
    caller, directory, sees_all = request.caller, request.services.directory, _sees_all(request)
    mine = frozenset() if caller.policy is None else frozenset(caller.policy.subjects_of(caller.principal))
    gives = caller.policy is not None and caller.policy.may_give_somewhere(caller.principal)
    days = request.integer("unusedDays")
    before_ms = None if days is None else request.services.clock.now_ms() - days * _DAY_MS
    found = [
        _grant_info(request, grant_id, row)
        for grant_id, row in directory.entries.grants.items()
        if sees_all
        or row.subject in mine
        or (gives and caller.has("grant", directory.entries.parsed[grant_id].resource))
    ]
    return [
        each for each in found if before_ms is None or (each.created_ms < before_ms and (each.used_ms or 0) < before_ms)
    ]


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
        return bodies.GrantInfo("", grant.subject, verbs, str(grant.resource), now_ms, made_by, None, ())
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
    info = _grant_info(request, grant_id, row)
    if not request.flag("dryRun"):
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
        return bodies.RoleInfo(name, members, request.services.clock.now_ms(), made_by)
    what = f"role {name}: {len(members)} members"
    await _audited(request, "set role", what, lambda: directory.put_role(name, members, made_by))
    return _role_info(name, directory.role(name))


@route("DELETE", _ROLES + "/{role}", _GIVE, query=_CHANGE, errors=(NotFoundError, ConflictError))
async def remove_role(request: Request) -> bodies.RoleInfo:
    """Remove a role. What was granted to it stays granted to a later role of its name."""
    _must_hold(request)
    directory, name = request.services.directory, request.path["role"]
    info = _role_info(name, directory.role(name))
    if not request.flag("dryRun"):
        await _audited(request, "remove role", f"role {name}", lambda: directory.remove_role(name))
    return info


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


# Quotas.


@route("GET", _QUOTAS, needs("inspect", CLUSTER))
async def quotas(request: Request) -> list[bodies.SubjectQuota]:
    """List the rules of subjects, sorted by subject."""
    rows = request.services.directory.entries.quotas
    return [_quota_info(subject, rows[subject]) for subject in sorted(rows)]


@route("GET", _QUOTA, needs(in_body=("inspect cluster",)))
async def quota(request: Request) -> bodies.QuotaDescription:
    """Show a subject's rule; of a principal what is in force, by whose rule, and what it uses.

    One's own takes no right. In the path a / is written ~1, a \\ is ~2, and a ~ is ~0.
    """
    subject = _quota_subject(request)
    if subject != str(request.caller.principal):
        request.caller.must("inspect", WHOLE_CLUSTER)
    row = request.services.directory.entries.quotas.get(subject)
    rule = None if row is None else _quota_rule(row.limits)
    kind = subject.partition(":")[0]
    if kind in (EVERYONE, ROLE) or kind.endswith("-group"):
        return bodies.QuotaDescription(subject, rule, (), ())
    return await _quotas_in_force(request, subject, rule)


@route("PUT", _QUOTA, needs("operate", CLUSTER), query=_CHANGE, errors=(ConflictError,))
async def set_quota(request: Request, asked: bodies.QuotaRule) -> bodies.SubjectQuota:
    """Give a subject a rule, in place of the one that it has.

    It counts for what comes from now on, at once on this server. In the path a / is written ~1, a \\ is ~2, and a ~ is ~0.
    """
    subject, limits, directory = _quota_subject(request), _quota_limits(asked), request.services.directory
    made_by, now_ms = str(request.caller.principal), request.services.clock.now_ms()
    if request.flag("dryRun"):
        return _quota_info(subject, QuotaRow(limits, now_ms, made_by))
    said = ", ".join(f"{name} {limit}" for name, limit in asdict(limits).items() if limit is not None)
    await request.services.audit.act(
        "set quota", subject, *request.act, lambda: directory.put_quota(subject, limits, made_by), lambda _: said
    )
    return _quota_info(subject, directory.quota(subject))


@route("DELETE", _QUOTA, needs("operate", CLUSTER), query=_CHANGE, errors=(NotFoundError,))
async def remove_quota(request: Request) -> bodies.SubjectQuota:
    """Remove a subject's rule. In the path a / is written ~1, a \\ is ~2, and a ~ is ~0."""
    subject, directory = _quota_subject(request), request.services.directory
    row = directory.quota(subject)
    if not request.flag("dryRun"):
        await request.services.audit.act("remove quota", subject, *request.act, lambda: directory.remove_quota(subject))
    return _quota_info(subject, row)


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


def _rights_of(grant: Grant) -> bodies.Rights:
    return bodies.Rights(tuple(sorted(grant.verbs)), str(grant.resource))


def _token_info(token_id: str, row: TokenRow, now_ms: int) -> bodies.TokenInfo:
    state = "revoked" if row.revoked_ms is not None else "expired" if row.is_over(now_ms) else "active"
    only = None if row.only is None else tuple(bodies.Rights(each.verbs, each.resource) for each in row.only)
    return bodies.TokenInfo(
        token_id,
        row.principal,
        state,
        row.created_ms,
        row.expire_ms,
        row.made_by,
        row.note,
        row.networks,
        only,
        row.parent,
    )


def _grant_info(request: Request, grant_id: str, row: GrantRow) -> bodies.GrantInfo:
    use = request.services.directory.use_of(grant_id)
    return bodies.GrantInfo(
        grant_id, row.subject, row.verbs, row.resource, row.created_ms, row.made_by, None if use is None else use.used_ms,
        () if use is None else use.principals,
    )  # fmt: skip


def _role_info(name: str, row: RoleRow) -> bodies.RoleInfo:
    return bodies.RoleInfo(name, row.members, row.changed_ms, row.made_by)


def _quota_subject(request: Request) -> str:
    """The subject in the path, in which no slash can be."""

    def meant(found: re.Match[str]) -> str:
        if found[1] is None:
            raise InputError(
                "the subject has a ~ that no 0, 1 or 2 follows",
                field="subject",
                hint="Write ~ as ~0, / as ~1, \\ as ~2.",
            )
        return _ESCAPES[found[1]]

    return check_subject(_ESCAPED.sub(meant, request.path["subject"]))


async def _quotas_in_force(request: Request, subject: str, rule: bodies.QuotaRule | None) -> bodies.QuotaDescription:
    """The quotas in force for a principal: by the groups that it came with, where it called of late."""
    services, principal = request.services, parse_principal(subject)
    is_own = subject == str(request.caller.principal)
    account = services.quotas.known(principal)
    groups = request.caller.principal.groups if is_own else frozenset() if account is None else account.groups
    policy = request.caller.policy or Policy()
    named = Principal(principal.kind, principal.name, groups)
    free = policy.is_superuser(named)
    rulings = (
        tuple(Ruling(None, "") for _ in QUOTAS)
        if free
        else services.quotas.rules.rulings(subject, policy.subjects_of(named)[1:-1])
    )
    now_ms, owner = services.clock.monotonic_ms(), "" if principal == ANONYMOUS else subject
    in_force = []
    for quota, ruling in zip(QUOTAS, rulings, strict=True):
        used = 0 if account is None else account.used(quota, now_ms)
        if quota is TOPICS and ruling.limit is not None:
            used += await services.topics.catalog.created_by(owner)
        elif quota is OPEN_TRANSACTIONS:
            used += services.transactions.state.open_of[owner]
        elif quota is SESSIONS:
            used += services.transactions.state.session_table.held[owner]
        by = "superuser" if free else ruling.subject or SETTINGS
        in_force.append(bodies.QuotaInForce(quota.name, ruling.limit, by, used))
    return bodies.QuotaDescription(subject, rule, tuple(sorted(groups)), tuple(in_force))


def _quota_limits(asked: bodies.QuotaRule) -> QuotaLimits:
    limits = QuotaLimits(**asdict(asked))
    for name, encoded in zip(asked.__struct_fields__, asked.__struct_encode_fields__, strict=True):
        limit = getattr(asked, name)
        if isinstance(limit, int) and not 1 <= limit <= QUOTA_MAX:
            raise InputError(
                f"{encoded} is {limit}; it must be from 1 to {QUOTA_MAX}, or off",
                field=encoded,
                hint="null says nothing of it",
            )
    if limits.is_empty:
        raise InputError("the rule says nothing of any quota", field="body", hint="give one, or DELETE the rule")
    return limits


def _quota_rule(limits: QuotaLimits) -> bodies.QuotaRule:
    return bodies.QuotaRule(**asdict(limits))


def _quota_info(subject: str, row: QuotaRow) -> bodies.SubjectQuota:
    return bodies.SubjectQuota(subject, _quota_rule(row.limits), row.changed_ms, row.made_by)
