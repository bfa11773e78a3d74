"""Authentication: from what a request brings to its caller. Exactly one credential counts, and a bad one is never passed over.

Verifying is done once for a credential; what came out holds until it ends, or until tokens, grants or roles change.
A server without authentication has no object of this class.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from basalt.access.directory import Directory
from basalt.access.failed_proofs import FailedProofs
from basalt.access.policy import Caller, Policy
from basalt.access.principal import ANONYMOUS, Principal, parse_principal
from basalt.access.proofs import certificate as certificates
from basalt.access.proofs import token as tokens
from basalt.access.proofs.certificate import ClientCertificate
from basalt.access.proofs.proof import Proof
from basalt.access.quotas import HELD_MS
from basalt.access.refusals import Refusals
from basalt.access.sightings import NOTED_EVERY_MS
from basalt.errors import AuthenticationUnavailableError, ForbiddenError, InputError, UnauthenticatedError
from basalt_engine.clock import Clock

if TYPE_CHECKING:
    from basalt.access.proofs.jwt import Jwts
    from basalt.access.proofs.kerberos import Kerberos  # the libraries of both are there where they are asked for

CALLERS_MAX = 10_000  # credentials that are not verified again; when they are full, all are forgotten
PASSED_MS = 1_000.0  # a bad credential that is let through is verified again after this time
FOREVER_MS = float("inf")
KEY_BYTES_MAX = 128  # of a credential as it is kept; a longer one (a JWT) is known by its hash

# The cookie of the console's logins. Over TLS no other counts: one without the prefix may be another host's, or come from plain HTTP.
SECURE_COOKIE, PLAIN_COOKIE = b"__Host-basalt", b"basalt"
IDLE_MS = 3_600_000.0  # after which a login counts no more in a browser in which nobody has gone to a page
SEEN_AGAIN_MS = (
    60_000.0  # the time for which a browser's login is not looked at again; so long before its end it may end
)
DO_AS = b"doAs"  # the query parameter in which Apache Knox names the user, as Hadoop's servers take it
BEARER, NEGOTIATE = b"bearer", b"negotiate"

_BY_QUERY = b":doas"  # no header has such a name

log = logging.getLogger("basalt.access")


@dataclass(frozen=True, slots=True)
class AuthenticationRules:
    """The part of the settings that says who is let in, and how."""

    kinds: frozenset[str]
    bootstrap_digest: str | None = None
    not_before_ms: int = 0
    proxies: frozenset[str] = frozenset()  # principals that vouch for others
    user_header: bytes = b"x-forwarded-user"
    groups_header: bytes = b"x-forwarded-groups"
    do_as: bool = False  # whether the query may name the user in the header's place
    behind_tls: bool = False  # a proxy or mesh before the server speaks TLS, so browsers know https
    certificate_name: certificates.Name = "subject"  # where a client's certificate has its name


class Identified:
    """The caller that a credential stands for, and how long that holds (by the clock that never steps).

    Of a token that counts once there is the `proof`, for as long as its request is answered, and the `answer` that proves the server.
    """

    __slots__ = ("answer", "caller", "entries", "networks", "proof", "until_ms")

    def __init__(
        self, caller: Caller, entries: object, until_ms: float, networks: tuple[str, ...] = (),
        proof: Proof | None = None, answer: str = "",
    ) -> None:  # fmt: skip
        self.caller = caller
        self.entries = entries
        self.until_ms = until_ms
        self.networks = networks
        self.proof = proof
        self.answer = answer


class Authentication:
    """Finds who makes each request of one server."""

    def __init__(
        self, rules: AuthenticationRules, directory: Directory, refusals: Refusals, clock: Clock, *, jwts: Jwts | None = None,
        kerberos: Kerberos | None = None,
    ) -> None:  # fmt: skip
        self._rules = rules
        self._kerberos = kerberos
        self.directory = directory  # whatever was found under other entries than its present ones is to be found again
        self._refusals = refusals
        self._clock = clock
        self.jwts = jwts
        self._callers: dict[bytes, Identified] = {}
        self._callers_of: object = None  # the entries under which they were verified
        self.nobody = Caller(ANONYMOUS, Policy())  # who sends no credential, where rights are enforced
        # Credentials that were good when they were verified last, under whichever entries.
        self._proved: set[bytes] = set()
        # When a browser's login was last used to go to a page, the longest unused first. After a restart all begin anew.
        self._browsed: OrderedDict[str, float] = OrderedDict()
        self.failed = FailedProofs()
        self._nameless = FailedProofs()  # calls without a credential that needed one: they keep no good one waiting
        self.counts: Counter[tuple[str, str]] = Counter()  # by kind and outcome, for the metrics

    @property
    def reads_certificates(self) -> bool:
        """True where a connection's certificate says who calls, for requests that say nothing themselves."""
        return certificates.CERT in self._rules.kinds

    def identify(
        self, headers: Mapping[bytes, bytes], address: str | None, now_ms: float, certificate: ClientCertificate | None = None,
        *, before: Identified | None = None, end_point: bytes | None = None, secure: bool = False,
    ) -> Identified:  # fmt: skip
        """Find the caller. Who sends no credential is `nobody`, and may make public calls alone. `certificate` is that of the
        connection; it counts where the request has no credential of its own.

        `before` is what was found for the same request earlier: a token that counts once is not looked at again. `end_point` is
        the hash of the server's certificate on its TLS connection (RFC 5929). `secure`: the request came by https.
        `UnauthenticatedError`, `AuthenticationUnavailableError`; `ThrottledError` for a credential that is not verified, because its
        address sent too many bad ones; `InputError` for a user's name that nobody vouches for.
        """
        if before is not None and before.proof is not None:
            return self._once_more(before.proof, before.answer, now_ms)
        if self._callers_of is not self.directory.entries:
            self._callers.clear()
            self._callers_of = self.directory.entries
        given = headers.get(b"authorization")
        login = None if given is not None else login_of(headers.get(b"cookie"), self.cookie(secure))
        if login is not None:
            return self._by_cookie(login, headers, address, now_ms)
        if given is not None or not self.reads_certificates:
            certificate = None
        if given is None and certificate is None:
            self._refuse_vouching(headers)
            return self._without_credential(FOREVER_MS)
        key = self._key(given or b"", headers, certificate)
        known = self._callers.get(key)
        scheme, _, credential = (given or b"").partition(b" ")
        value = credential.strip().decode("latin-1")
        kind = certificates.CERT if certificate is not None else "jwt" if self._is_jwt(value) else "token"
        try:
            if known is not None and now_ms < known.until_ms:
                tokens.check_network(known.networks, address)
                return known
            self._must_be_fresh()
            if certificate is None and key not in self._proved and not self.failed.may_verify(address, now_ms):
                return self._unverified(address, now_ms)
            if self._kerberos is not None and scheme.lower() == NEGOTIATE:
                kind = "kerberos"
                accepted = self._kerberos.prove(value, self._clock.now_ms(), end_point)
                return self._identified(self._vouched(accepted.proof, headers), now_ms, accepted.answer)  # kept nowhere
            proof = self._proved_by(scheme.lower(), value, address, certificate)
            kind = proof.credential.partition(" ")[0]
            return self._keep(key, self._identified(self._vouched(proof, headers), now_ms))
        except (UnauthenticatedError, AuthenticationUnavailableError) as error:
            if isinstance(error, UnauthenticatedError):
                self._proved.discard(key)
                self.failed.failed(address, now_ms)
            return self._refused(error, kind, now_ms)

    def _by_cookie(
        self, login: bytes, headers: Mapping[bytes, bytes], address: str | None, now_ms: float
    ) -> Identified:
        """The caller whose login a browser has sent. It keeps what ends soon, and nothing else counts from there.

        A page that renews itself is no use of a login: it would keep one alive from which everybody has gone away.
        """
        found = self.identify({**headers, b"authorization": login}, address, now_ms)
        credential = found.caller.credential
        if not credential.startswith("login "):
            return self._refused(tokens.invalid_token(), "login", now_ms)
        before_ms = self._browsed.get(credential)
        if before_ms is not None and now_ms - before_ms >= IDLE_MS:
            error = UnauthenticatedError("the login is expired: nobody has used it for an hour", hint="Sign in again.")
            return self._refused(error, "login", now_ms)
        if before_ms is None or headers.get(b"sec-fetch-mode", b"navigate") == b"navigate":
            if len(self._browsed) >= CALLERS_MAX:
                self._browsed.popitem(last=False)
            self._browsed[credential] = now_ms
            self._browsed.move_to_end(credential)
        until_ms = min(found.until_ms, now_ms + SEEN_AGAIN_MS)
        return Identified(found.caller, found.entries, until_ms, found.networks)

    def cookie(self, secure: bool) -> bytes:
        """The name of the cookie of a login, for a browser that came by https, or not."""
        return SECURE_COOKIE if secure or self._rules.behind_tls else PLAIN_COOKIE

    @property
    def takes_do_as(self) -> bool:
        """True where a request's query may name the user for whom a proxy asks."""
        return self._rules.do_as

    def naming(self, headers: Mapping[bytes, bytes], query_string: bytes) -> Mapping[bytes, bytes]:
        """The headers of a request, with the user whom its query names in the place where a proxy's header would."""
        named = [value for name, _, value in _parameters(query_string) if name == DO_AS]
        if not named:
            return headers
        if len(named) > 1 or self._rules.user_header in headers:
            raise InputError("the request names its user twice", field="doAs", hint="Name the user once.")
        user = unquote_to_bytes(named[0].replace(b"+", b" "))
        return {**headers, self._rules.user_header: user, _BY_QUERY: b""}

    def _proved_by(
        self, scheme: bytes, value: str, address: str | None, certificate: ClientCertificate | None
    ) -> Proof:
        if certificate is None:
            return self._prove(scheme, value, address)
        return certificates.prove(certificate, self._rules.certificate_name, self._clock.now_ms())

    def _refused(
        self, error: UnauthenticatedError | AuthenticationUnavailableError, kind: str, now_ms: float
    ) -> Identified:
        self.counts[kind, "refused" if isinstance(error, UnauthenticatedError) else "unavailable"] += 1
        if self._refusals.enforced:
            if isinstance(error, UnauthenticatedError):
                error.challenges = self.challenges
            raise error
        is_bad = isinstance(error, UnauthenticatedError)
        self._refusals.note("anonymous", "authenticate", error.message if is_bad else "it cannot be checked")
        return self._without_credential(now_ms + PASSED_MS)

    def _must_be_fresh(self) -> None:
        """Refuse to let anybody in who is not known yet, where tokens and grants could not be read for long."""
        if self.directory.is_stale:
            raise AuthenticationUnavailableError(
                f"the server could not read tokens and grants for {self.directory.age_ms / 1_000:.0f} s",
                hint="Send the call again.",
            )

    def _once_more(self, proof: Proof, answer: str, now_ms: float) -> Identified:
        """The caller by the rights of now, for a request whose token counted when it came."""
        if proof.until_ms is not None and self._clock.now_ms() >= proof.until_ms:
            error = UnauthenticatedError("the Kerberos ticket is expired", hint="Log in anew, as with `kinit`.")
            return self._refused(error, "kerberos", now_ms)
        return self._identified(proof, now_ms, answer)

    def _unverified(self, address: str | None, now_ms: float) -> Identified:
        """Refuse a credential of an address that sends too many bad ones, without a look at it."""
        refusal = self.failed.refusal(address, now_ms)
        if self._refusals.enforced:
            raise refusal
        return self._without_credential(now_ms + PASSED_MS)

    def start(self) -> None:
        """Keep what credentials are proved by fresh, until `close`."""
        if self.jwts is not None:
            self.jwts.start()

    async def close(self) -> None:
        """Let go of what is kept fresh."""
        if self.jwts is not None:
            await self.jwts.close()

    def missing(self, address: str | None, now_ms: float) -> UnauthenticatedError:
        """The refusal of a call that is not public, and comes without a credential: to be kept back, where too many such come."""
        error = UnauthenticatedError(
            "the call has no credential, and this server asks who calls",
            field="Authorization",
            hint=self._ways,
        )
        error.challenges = self.challenges
        self.counts["none", "refused"] += 1
        if self._nameless.may_verify(address, now_ms):
            self._nameless.failed(address, now_ms)
        else:
            error.held_ms = HELD_MS
        return error

    def now_ms(self) -> float:
        """The time by which what was found holds."""
        return self._clock.monotonic_ms()

    def seen(self, caller: Caller, address: str | None, now_ms: float) -> None:
        """Note that somebody calls, now and then."""
        if caller is not self.nobody and now_ms - caller.noted_ms >= NOTED_EVERY_MS:
            self.directory.sightings.note(caller, address, now_ms)

    def is_nobody(self, caller: Caller) -> bool:
        """Tell the caller of a request without a credential."""
        return caller is self.nobody

    @property
    def _ways(self) -> str:
        ways = {
            certificates.CERT: "connect with a client certificate",
            "kerberos": "send Authorization: Negotiate with a Kerberos ticket (`kinit`)",
            "jwt": "send Authorization: Bearer with a token of the identity provider",
            "token": "send Authorization: Bearer with a token; `basalt token create` makes tokens, for who may",
        }
        found = ", or ".join(way for kind, way in ways.items() if kind in self._rules.kinds)
        return f"{found[:1].upper()}{found[1:]}."

    @property
    def challenges(self) -> tuple[str, ...]:
        """The ways to prove who one is, as WWW-Authenticate has them."""
        kinds = self._rules.kinds
        found = ['Bearer realm="basalt"'] if kinds & {"token", "jwt"} else []
        return (*found, "Negotiate") if "kerberos" in kinds else tuple(found)

    def _key(self, given: bytes, headers: Mapping[bytes, bytes], certificate: ClientCertificate | None) -> bytes:
        """The few bytes that a credential is known by: all that its proof depends on, or the hash of that."""
        rules = self._rules
        if certificate is not None:  # no header has such bytes
            given = b"\0" + certificate.digest
        if "proxy" in rules.kinds and (rules.user_header in headers or rules.groups_header in headers):
            user, groups = headers.get(rules.user_header), headers.get(rules.groups_header)
            given = repr((given, user, groups)).encode()
        return given if len(given) <= KEY_BYTES_MAX else hashlib.sha256(given).digest()

    def _prove(self, scheme: bytes, value: str, address: str | None) -> Proof:
        if scheme == BEARER and len(value) <= tokens.TOKEN_BYTES_MAX:
            if self.jwts is not None and self._is_jwt(value):
                return self.jwts.prove(value, self._clock.now_ms())
            proof = self._prove_token(value, address)
            if "token" in self._rules.kinds or proof.credential.startswith("login "):
                return proof  # a login is made with a credential of any kind, and goes on where tokens are none
        raise tokens.invalid_token()

    def _is_jwt(self, value: str) -> bool:
        """Tell whether a bearer's credential is for the identity provider to vouch for: all are that are no tokens of this server."""
        return self.jwts is not None and not value.startswith(tokens.PREFIX) and not self._is_bootstrap(value)

    def _is_bootstrap(self, value: str) -> bool:
        digest = self._rules.bootstrap_digest
        return digest is not None and tokens.is_bootstrap(value, digest)

    def _prove_token(self, value: str, address: str | None) -> Proof:
        if self._is_bootstrap(value):
            return Proof(parse_principal(tokens.BOOTSTRAP), "token bootstrap")
        return tokens.prove_token(
            tokens.read_token(value), self.directory.entries.tokens, now_ms=self._clock.now_ms(),
            not_before_ms=self._rules.not_before_ms, address=address,
        )  # fmt: skip

    def _identified(self, proof: Proof, now_ms: float, answer: str = "") -> Identified:
        entries = self.directory.entries
        caller = Caller(
            proof.principal, entries.policy, credential=proof.credential, until_ms=proof.until_ms, only=proof.only,
            via=proof.via, refusals=self._refusals,
        )  # fmt: skip
        ends_ms = [end_ms for end_ms in (proof.until_ms, proof.check_again_ms) if end_ms is not None]
        until_ms = now_ms + min(ends_ms) - self._clock.now_ms() if ends_ms else FOREVER_MS
        kind, _, credential_id = proof.credential.partition(" ")
        row = entries.tokens.get(credential_id) if kind in ("token", "login") else None
        self.counts[kind, "accepted"] += 1
        networks = () if row is None else self._networks(row.networks, row.parent)
        return Identified(caller, entries, until_ms, networks, proof if answer else None, answer)

    def _networks(self, networks: tuple[str, ...], parent: str) -> tuple[str, ...]:
        row = self.directory.entries.tokens.get(parent)
        return networks or (() if row is None else row.networks)

    def _vouched(self, proof: Proof, headers: Mapping[bytes, bytes]) -> Proof:
        """The user for whom a proxy asks; who is no proxy asks for themselves."""
        if str(proof.principal) not in self._rules.proxies:
            self._refuse_vouching(headers)
            return proof
        user = headers.get(self._rules.user_header)
        if user is None:
            raise ForbiddenError(
                f"{proof.principal} is a proxy, and does not say for whom it asks",
                field=self._rules.user_header.decode().title(),
                hint="Have the proxy send the user's name in that header.",
            )
        groups = _text(headers.get(self._rules.groups_header, b"")).split(",")
        named = frozenset(f"proxy-group:{each.strip()}" for each in groups if each.strip())
        principal = Principal("proxy", _text(user), named)
        return replace(proof, principal=principal, via=proof.principal)

    def _refuse_vouching(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a user's name from who is no proxy: who ignored it would let a forged one pass for a mistake."""
        if "proxy" in self._rules.kinds:
            for name in (self._rules.user_header, self._rules.groups_header):
                if name in headers:
                    is_header = name != self._rules.user_header or _BY_QUERY not in headers
                    field = name.decode().title() if is_header else "doAs"
                    raise InputError(
                        f"the {'header' if is_header else 'parameter'} {field} comes from nobody who may say who calls",
                        field=field,
                        hint="Leave it out; or have the setting auth.proxy.principals list the proxy's principal.",
                    )

    def _without_credential(self, until_ms: float) -> Identified:
        entries = self.directory.entries
        caller = self.nobody
        if not self._refusals.enforced:
            caller = Caller(ANONYMOUS, entries.policy, refusals=self._refusals)
        return Identified(caller, entries, until_ms)

    def _keep(self, key: bytes, found: Identified) -> Identified:
        if len(self._callers) >= CALLERS_MAX:
            self._callers.clear()
        if len(self._proved) >= CALLERS_MAX:
            self._proved.clear()
        self._callers[key] = found
        self._proved.add(key)
        return found


def without_do_as(query_string: bytes) -> bytes:
    """The query without the user whom it names: that is no parameter of any call."""
    return b"&".join(name + equals + value for name, equals, value in _parameters(query_string) if name != DO_AS)


def _parameters(query_string: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    return (each.partition(b"=") for each in query_string.split(b"&"))


def login_of(cookies: bytes | None, wanted: bytes) -> bytes | None:
    """The login in the console's cookie, as a header would have it."""
    if cookies is None:
        return None
    for each in cookies.split(b";"):
        name, _, value = each.strip().partition(b"=")
        if name == wanted and value:
            return b"Bearer " + value
    return None


def _text(header: bytes) -> str:
    try:
        return header.decode("utf-8")
    except UnicodeDecodeError:  # two names must not become one
        raise InputError("the name of a user or group is no UTF-8", field="Authorization") from None


def superusers_of(names: Iterable[str]) -> tuple[str, ...]:
    """The principals and groups that may do everything: those of the settings, and whoever has the first token."""
    return (*names, tokens.BOOTSTRAP)
