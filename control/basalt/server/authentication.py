"""Authentication as the settings ask for it: checked before anything is opened, and built over the store."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from typing import TYPE_CHECKING

from basalt.access.authentication import Authentication, AuthenticationRules, superusers_of
from basalt.access.directory import Directory
from basalt.access.principal import check_member, parse_principal
from basalt.access.proofs.token import BOOTSTRAP_CHARS_MIN, bootstrap_digest
from basalt.access.quotas import QuotaLimits, Quotas
from basalt.access.refusals import Refusals
from basalt.errors import InputError, InvalidSettingError
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from basalt_engine.clock import Clock
from basalt_engine.table import Store

if TYPE_CHECKING:
    from basalt.access.proofs.jwt import Jwts
    from basalt.access.proofs.kerberos import Kerberos

NONE = "none"
# The kind of proof that makes principals of a kind.
_PROVED_BY = {
    "token": "token", "jwt": "jwt", "jwt-group": "jwt", "cert": "cert", "krb": "kerberos", "proxy": "proxy", "proxy-group": "proxy",
}  # fmt: skip
_VOUCHED = ("proxy", "proxy-group")
_INTERNAL = "internal"  # parts of the server, which may do everything anyway


def is_asked(settings: Settings) -> bool:
    """Tell whether callers have to prove who they are."""
    return bool(set(settings.auth.kinds) - {NONE})


def check_authentication(settings: Settings) -> None:
    """Refuse with `InvalidSettingError` settings by which nobody could tell who is to be let in."""
    auth = settings.auth
    if NONE in auth.kinds and len(auth.kinds) > 1:
        raise _wrong("auth.kinds", "says none and another kind: either nobody is asked, or everybody", "leave none out")
    if auth.bootstrap_token is not None and len(auth.bootstrap_token) < BOOTSTRAP_CHARS_MIN:
        hint = "make one with `openssl rand -hex 32`"
        raise _wrong(
            "auth.bootstrap_token", f"has fewer than {BOOTSTRAP_CHARS_MIN} characters: it could be guessed", hint
        )
    _check_names("auth.superusers", auth.superusers)
    _check_names("auth.proxy.principals", auth.proxy.principals)
    for name in auth.superusers:
        if name.partition(":")[0] == _INTERNAL:
            raise _wrong("auth.superusers", f"lists {name}, which nobody can prove to be", "leave it out")
        if name.partition(":")[0] in _VOUCHED:
            raise _wrong(
                "auth.superusers", f"lists {name}: a proxy's word is not enough for that",
                "grant what that user needs, or have them prove who they are",
            )  # fmt: skip
    _check_proxies(auth)
    open_kerberos(auth)
    if "jwt" in auth.kinds:
        _check_jwt(auth)


def _check_jwt(auth: AuthSettings) -> None:
    for library in ("jwt", "cryptography"):
        if importlib.util.find_spec(library) is None:
            raise _wrong(
                "auth.kinds", f"says jwt, and that needs a library that is not here: {library}",
                "install it with `pip install 'basalt-mq[jwt]'`",
            )  # fmt: skip
    for name in auth.superusers:
        if name.partition(":")[0] == "jwt-group" and auth.jwt.groups_claim is None:
            raise _wrong(
                "auth.jwt.groups_claim", f"is not given, and auth.superusers lists {name}: nobody is in that group",
                "name the claim in which tokens have their groups",
            )  # fmt: skip
    if auth.jwt.ca is not None:
        from basalt.access.proofs.jwks import tls_context  # its library is wanted only here

        tls_context(auth.jwt.ca)


def _check_proxies(auth: AuthSettings) -> None:
    has_kind, principals = "proxy" in auth.kinds, auth.proxy.principals
    if has_kind and not principals:
        raise _wrong(
            "auth.proxy.principals", "is empty, and auth.kinds says proxy", "list the principals of the proxies"
        )
    if principals and not has_kind:
        raise _wrong(
            "auth.proxy.principals", "lists proxies, and auth.kinds does not say proxy", "add proxy to auth.kinds"
        )
    for name in principals:
        if _PROVED_BY.get(name.partition(":")[0]) not in auth.kinds or name.partition(":")[0] in _VOUCHED:
            raise _wrong(
                "auth.proxy.principals", f"lists {name}, who cannot prove that with auth.kinds = {', '.join(auth.kinds)}",
                "add the kind by which the proxy proves who it is",
            )  # fmt: skip


def _check_names(key: str, names: tuple[str, ...]) -> None:
    for name in names:
        try:
            check_member(name)
        except InputError as error:
            raise _wrong(key, f"has a wrong name in it: {error.message}", error.hint or "") from None


async def open_access(
    settings: Settings, store: Store, clock: Clock, *, is_member: bool = False
) -> tuple[Directory, Refusals, Authentication | None]:
    """The tokens, grants and roles of a store, the refusals of this server, and its authentication: None where nobody is asked.

    `is_member`: another server leads, and changes them. `InvalidSettingError` where nobody could ever come in who may give a right.
    """
    auth = settings.auth
    directory, refusals = (
        Directory(
            store,
            clock,
            superusers_of(auth.superusers),
            Quotas(QuotaLimits(**asdict(settings.quota))),
            is_member=is_member,
        ),
        Refusals(clock, enforced=auth.enforce),
    )
    if not is_asked(settings):
        await (directory.start() if is_member else directory.read())  # of quotas a member hears no other way
        return directory, refusals, None
    await directory.start()
    if not _has_superuser(auth, directory, clock.now_ms()):
        await directory.close()
        raise _wrong(
            "auth.bootstrap_token", "is not given, and no superuser has a way to come in: nobody could make tokens or grants",
            "name a file that holds one (openssl rand -hex 32 > FILE): auth.bootstrap_token_file; or list somebody who can prove"
            " who they are in auth.superusers; `basalt auth reset --data DIR` makes a token on a stopped embedded store",
        )  # fmt: skip
    rules = AuthenticationRules(
        frozenset(auth.kinds),
        None if auth.bootstrap_token is None else bootstrap_digest(auth.bootstrap_token),
        auth.not_before or 0,
        frozenset(auth.proxy.principals),
        auth.proxy.header.lower().encode("ascii"),
        auth.proxy.groups_header.lower().encode("ascii"),
        certificate_name=auth.cert.name,
        do_as=auth.proxy.do_as and "proxy" in auth.kinds,
        behind_tls=settings.http.tls_elsewhere,
    )
    authentication = Authentication(
        rules, directory, refusals, clock, jwts=_jwts(auth, clock), kerberos=open_kerberos(auth)
    )
    authentication.start()
    return directory, refusals, authentication


def _jwts(auth: AuthSettings, clock: Clock) -> Jwts | None:
    if "jwt" not in auth.kinds:
        return None
    from basalt.access.proofs.jwt import Jwts

    return Jwts(auth.jwt, clock)


def open_kerberos(auth: AuthSettings) -> Kerberos | None:
    """Make ready to take tickets, where that is asked for. `InvalidSettingError` when they cannot be taken here."""
    if "kerberos" not in auth.kinds:
        return None
    try:
        from basalt.access.proofs.kerberos import Kerberos
    except ImportError as error:
        raise _wrong(
            "auth.kinds", f"has kerberos, which needs a library that is not here ({error})",
            "install it with `pip install 'basalt-mq[kerberos]'`, and what it is compiled with: docs/operations/security.md",
        ) from None  # fmt: skip
    return Kerberos(auth.kerberos)


def _has_superuser(auth: AuthSettings, directory: Directory, now_ms: int) -> bool:
    if auth.bootstrap_token is not None and "token" in auth.kinds:
        return True
    others = {name for name in auth.superusers if name.partition(":")[0] != "token"}
    if any(_PROVED_BY.get(name.partition(":")[0]) in auth.kinds for name in others):
        return True
    policy = directory.entries.policy
    return "token" in auth.kinds and any(
        policy.is_superuser(parse_principal(row.principal))
        and not row.is_over(now_ms)
        and row.only is None
        and row.created_ms >= (auth.not_before or 0)
        for row in directory.entries.tokens.values()
    )


def _wrong(key: str, what: str, hint: str) -> InvalidSettingError:
    return InvalidSettingError(f"setting {key} {what}", field=key, hint=hint)
