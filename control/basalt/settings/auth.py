"""Declares the settings of how clients prove who they are, and of TLS. A part of `tree`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from basalt.settings.kinds import (
    DAY_MS,
    MINUTE_MS,
    SECOND_MS,
    Choice,
    Duration,
    FilePath,
    Flag,
    HeaderName,
    KeySource,
    Moment,
    Principals,
    Realms,
    RequiredTerm,
    Secret,
    ServiceName,
    Term,
    Words,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosSettings:
    """The service that tickets of Kerberos are for; read only when auth.kinds has kerberos."""

    keytab: Annotated[
        str | None, FilePath("file with the keys of this server's service, HTTP/host.name, that others cannot read")
    ] = None
    service: Annotated[
        str, ServiceName("the service that tickets are for: on any host that the keytab has, or one principal")
    ] = "HTTP"
    realms: Annotated[tuple[str, ...], Realms("realms of clients that count; no other does, trusted or not")] = ()
    binding: Annotated[
        Literal["off", "accept", "require"],
        Choice(
            "whether a token is to be bound to the TLS connection: off, accept (right where it is) or require",
            ("off", "accept", "require"),
        ),
    ] = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of the HTTP face, and the certificates of clients; read again while the server runs, when the files change."""

    certificate: Annotated[
        str | None, FilePath("file of the server's certificate and those between it and its CA, in PEM; off: no TLS")
    ] = None
    key: Annotated[
        str | None, FilePath("file of its private key, in PEM and without a password, that others cannot read")
    ] = None
    client: Annotated[
        Literal["off", "optional", "required"],
        Choice(
            "certificates of clients: off (not asked for), optional, or required of each connection",
            ("off", "optional", "required"),
        ),
    ] = "off"
    client_ca: Annotated[
        str | None, FilePath("file of the CAs, in PEM, of which a client's certificate must be one's")
    ] = None
    client_crl: Annotated[
        str | None, FilePath("file of their lists of revoked certificates, in PEM: one of each CA on a client's chain")
    ] = None
    min_version: Annotated[Literal["1.2", "1.3"], Choice("oldest version of TLS", ("1.2", "1.3"))] = "1.2"
    # The files are read, so that a link that was turned, as Kubernetes does it, is seen too; they are small.
    reload_ms: Annotated[
        int, Duration("how often the files are looked at, whether they have changed", SECOND_MS, DAY_MS)
    ] = MINUTE_MS
    hsts: Annotated[
        bool, Flag("tell browsers to go by https alone to all ports of this server's name, for a year (HSTS)")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CertSettings:
    """The place of a client's name in its certificate; read only where auth.kinds has cert."""

    name: Annotated[
        Literal["subject", "cn", "dns", "uri"],
        Choice(
            "what of a client's certificate is its name: the whole subject, its only CN, or its only DNS name or URI",
            ("subject", "cn", "dns", "uri"),
        ),
    ] = "subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSettings:
    """The identity provider whose tokens count; read only when auth.kinds has jwt."""

    issuer: Annotated[
        str | None, Term("the identity provider, as its tokens name it in iss, to the last character")
    ] = None
    audience: Annotated[str | None, Term("this server, as tokens that are meant for it name it in aud")] = None
    jwks: Annotated[str | None, KeySource("where the provider publishes its keys, or a file with them")] = None
    ca: Annotated[
        str | None, FilePath("certificates of the authorities that vouch for the provider; off: those of this machine")
    ] = None
    algorithms: Annotated[
        tuple[Literal["RS256", "PS256", "ES256", "EdDSA"], ...],
        Words("algorithms of signatures that count", ("RS256", "PS256", "ES256", "EdDSA")),
    ] = ("RS256", "PS256", "ES256", "EdDSA")
    principal_claim: Annotated[str, RequiredTerm("the claim that becomes the principal's name, behind jwt:")] = "sub"
    groups_claim: Annotated[
        str | None, Term("the claim with the names of the principal's groups, behind jwt-group:; off: it is in none")
    ] = None
    # Clocks of servers differ by less; each second more is one for which a token outlives its end.
    leeway_ms: Annotated[
        int, Duration("how far the provider's clock and this server's may differ", 0, 5 * MINUTE_MS)
    ] = 30 * SECOND_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Proxies that have proved who their users are, and say it in a header."""

    principals: Annotated[
        tuple[str, ...], Principals("principals of proxies: they ask for a user, and never for themselves")
    ] = ()
    header: Annotated[str, HeaderName("the header in which a proxy names the user")] = "X-Forwarded-User"
    groups_header: Annotated[
        str, HeaderName("the header in which it names the user's groups, with commas between them")
    ] = "X-Forwarded-Groups"
    do_as: Annotated[
        bool, Flag("let a proxy name the user in the query parameter doAs in place of the header, as Apache Knox does")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """The ways in which clients prove who they are."""

    # () is not ("none",): on an address beyond this machine somebody must have written the word.
    kinds: Annotated[
        tuple[Literal["none", "token", "jwt", "cert", "kerberos", "proxy"], ...],
        Words(
            "how clients prove who they are; none: not at all, so whoever reaches a port may do everything",
            ("none", "token", "jwt", "cert", "kerberos", "proxy"),
        ),
    ] = ()
    bootstrap_token: Annotated[
        str | None, Secret("token of the first superuser, token:bootstrap, who makes the tokens of the others")
    ] = None
    superusers: Annotated[
        tuple[str, ...], Principals("principals and groups that may do everything, beside token:bootstrap")
    ] = ()
    enforce: Annotated[
        bool, Flag("refuse who may not; false: let everybody do everything, and note what would be refused")
    ] = True
    public: Annotated[
        tuple[Literal["/metrics"], ...],
        Words("paths that are answered to everybody, beside /livez, /readyz, /v1", ("/metrics",)),
    ] = ()
    not_before: Annotated[
        int | None, Moment("tokens that were made before count no more; to be set after a backup was restored")
    ] = None
    cert: CertSettings = CertSettings()
    jwt: JwtSettings = JwtSettings()
    proxy: ProxySettings = ProxySettings()
    kerberos: KerberosSettings = KerberosSettings()
