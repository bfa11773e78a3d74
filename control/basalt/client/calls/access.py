"""Plans about who the caller is to the server and who may do what: logins, tokens, grants, roles. Routes: docs/reference/http-api.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from basalt.api.bodies.access import (
    GrantInfo,
    GrantRequest,
    Identity,
    LoginRequest,
    NewToken,
    RefusalInfo,
    RightAnswer,
    RightRequest,
    Rights,
    RoleInfo,
    RoleRequest,
    RotateRequest,
    SeenPrincipal,
    TokenInfo,
    TokenRequest,
)
from basalt.client.plans import (
    Call,
    ClientScope,
    Effect,
    Steps,
    act_of,
    ask,
    get_json,
    joined_path,
    json_of,
    query_of,
    send_json,
)

AUTH = "/v1/auth"
ADMIN = "/v1/admin"
TOKEN_TTL_MS = 90 * 86_400_000  # of one that is made without a word on it
LOGIN_TTL_MS = 3_600_000
OVERLAP_MS = 86_400_000

_UNHEARD = "List the tokens: one that was made and is not known to anybody can be revoked by its id."


def whoami(scope: ClientScope) -> Steps[Identity]:
    """Who this client is to the server."""
    return get_json(Identity, "ask who calls", f"{AUTH}/whoami")


def check(scope: ClientScope, verb: str, resource: str, *, principal: str = "") -> Steps[RightAnswer]:
    """Ask whether this client has a right, `write` on `topic:shop:orders` for example, and by which grants; or what is missing.

    Of another `principal`, without its groups, it takes `inspect` on the cluster.
    """
    what, asked = f"check {verb} on {resource}", RightRequest(verb, resource, principal)
    return send_json("POST", what, f"{AUTH}/check", json_of(RightAnswer), Effect.NONE, asked)


def login(scope: ClientScope, *, ttl_ms: int = LOGIN_TTL_MS) -> Steps[NewToken]:
    """Turn what proves who this client is (a token, a certificate, …) into a token that ends soon, and with what it was made with."""
    return send_json(
        "POST", "log in", f"{AUTH}/logins", json_of(NewToken), Effect.REPEATABLE, LoginRequest(ttl_ms)
    )  # one that is made unheard ends by itself


def logout(scope: ClientScope) -> Steps[TokenInfo]:
    """End the login whose token this client sends."""
    return ask(Call("log out", "DELETE", f"{AUTH}/logins", json_of(TokenInfo), Effect.ONCE))


def refusals(scope: ClientScope, *, limit: int | None = None) -> Steps[list[RefusalInfo]]:
    """The rights that callers lacked since the server started, newest first; with `auth.enforce = false`, what would be refused."""
    return get_json(list[RefusalInfo], "list refusals", f"{ADMIN}/refusals", query_of(limit=limit))


def principals(scope: ClientScope, *, limit: int | None = None) -> Steps[list[SeenPrincipal]]:
    """The principals that called since the server started, those that called last first."""
    return get_json(list[SeenPrincipal], "list principals", f"{ADMIN}/principals", query_of(limit=limit))


def create_token(
    scope: ClientScope, name: str, *, ttl_ms: int | None = TOKEN_TTL_MS, only: Mapping[str, Iterable[str]] | None = None,
    networks: Sequence[str] = (), note: str = "", reason: str = "", by: str = "", dry_run: bool = False,
) -> Steps[NewToken]:  # fmt: skip
    """Make a token of `token:NAME`. The answer has its text, this once: the server keeps only a hash.

    It ends after `ttl_ms` (None: never). `only` limits it to rights, `{"topic:shop:orders": ["read"]}`, whatever its principal has, and
    `networks` to addresses, `["10.0.0.0/8"]`. Whoever makes it must have every right of that principal.
    """
    rights = None if only is None else tuple(Rights(tuple(verbs), resource) for resource, verbs in only.items())
    asked = TokenRequest(name, ttl_ms, rights, tuple(networks), note)
    return send_json(
        "POST", f"make a token of token:{name}", f"{ADMIN}/tokens", json_of(NewToken), Effect.ONCE, asked,
        query=act_of(reason, by, dry_run=dry_run), lost_hint=_UNHEARD,
    )  # fmt: skip


def list_tokens(
    scope: ClientScope, *, principal: str | None = None, active: bool = False, after: str | None = None,
    limit: int | None = None,
) -> Steps[list[TokenInfo]]:  # fmt: skip
    """Tokens and logins, by id: one's own, or all, for who may give rights on the cluster or inspect it; `active`: tokens that count alone.

    All of them, or `limit` behind the id `after`.
    """
    query = query_of(principal=principal, active=active or None, after=after, limit=limit)
    return get_json(list[TokenInfo], "list tokens", f"{ADMIN}/tokens", query)


def get_token(scope: ClientScope, token_id: str) -> Steps[TokenInfo]:
    """A token by its id, without its secret."""
    return get_json(TokenInfo, f"get token {token_id}", ADMIN + joined_path("tokens", token_id))


def rotate_token(
    scope: ClientScope, token_id: str, *, overlap_ms: int = OVERLAP_MS, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[NewToken]:  # fmt: skip
    """Make a token that takes another one's place, with the same rights and for as long; the old one goes on for `overlap_ms`."""
    return send_json(
        "POST", f"rotate token {token_id}", ADMIN + joined_path("tokens", token_id, "rotate"), json_of(NewToken), Effect.ONCE,
        RotateRequest(overlap_ms), query=act_of(reason, by, dry_run=dry_run), lost_hint=_UNHEARD,
    )  # fmt: skip


def revoke_token(
    scope: ClientScope, token_id: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[TokenInfo]:
    """Have a token count no more, and nor the logins that were made with it. Again it changes nothing."""
    what, path = f"revoke token {token_id}", ADMIN + joined_path("tokens", token_id)
    return ask(Call(what, "DELETE", path, json_of(TokenInfo), Effect.REPEATABLE, act_of(reason, by, dry_run=dry_run)))


def add_grant(
    scope: ClientScope, subject: str, verbs: Iterable[str], resource: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[GrantInfo]:  # fmt: skip
    """Give rights to a principal, a group, `role:NAME` or `everyone`. What is granted already is granted once."""
    asked = GrantRequest(subject, tuple(verbs), resource)
    what = f"grant {', '.join(asked.verbs)} on {resource} to {subject}"
    return send_json(
        "POST", what, f"{ADMIN}/grants", json_of(GrantInfo), Effect.REPEATABLE, asked, query=act_of(reason, by, dry_run=dry_run)
    )  # fmt: skip


def list_grants(
    scope: ClientScope, *, unused_days: int | None = None, subject: str | None = None, after: str | None = None,
    limit: int | None = None,
) -> Steps[list[GrantInfo]]:  # fmt: skip
    """Grants to this client, or all, for who may give rights on the cluster or inspect it; or those that nobody needed for so long.

    All of them by id, or `limit` behind the id `after`.
    """
    query = query_of(subject=subject, unusedDays=unused_days, after=after, limit=limit)
    return get_json(list[GrantInfo], "list grants", f"{ADMIN}/grants", query)


def remove_grant(
    scope: ClientScope, grant_id: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[GrantInfo]:
    """Take a grant back, and tell what it was and who used it last; with `dry_run` only tell."""
    what, path = f"remove grant {grant_id}", ADMIN + joined_path("grants", grant_id)
    return ask(Call(what, "DELETE", path, json_of(GrantInfo), Effect.ONCE, act_of(reason, by, dry_run=dry_run)))


def list_roles(scope: ClientScope) -> Steps[list[RoleInfo]]:
    """Roles: those of this client, or all, for who may give rights on the cluster or inspect it."""
    return get_json(list[RoleInfo], "list roles", f"{ADMIN}/roles")


def get_role(scope: ClientScope, name: str) -> Steps[RoleInfo]:
    """A role with its members."""
    return get_json(RoleInfo, f"get role {name}", ADMIN + joined_path("roles", name))


def set_role(
    scope: ClientScope, name: str, members: Iterable[str], *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[RoleInfo]:
    """Make a role, or give it other members: principals and groups."""
    return send_json(
        "PUT", f"set role {name}", ADMIN + joined_path("roles", name), json_of(RoleInfo), Effect.REPEATABLE, RoleRequest(tuple(members)),
        query=act_of(reason, by, dry_run=dry_run),
    )  # fmt: skip


def remove_role(
    scope: ClientScope, name: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[RoleInfo]:
    """Remove a role. What was granted to it stays granted to a later role of its name."""
    what, path = f"remove role {name}", ADMIN + joined_path("roles", name)
    return ask(Call(what, "DELETE", path, json_of(RoleInfo), Effect.ONCE, act_of(reason, by, dry_run=dry_run)))
