"""The proof by a client's certificate: what of it is the name. That it is one of a CA of `tls.client_ca` and not revoked, the handshake has found.

A name is found in one place, `auth.cert.name`, and there must be one candidate, no more and no fewer: of two names a CA may have checked
only one, and who reads the other would be somebody else. A subject is written as RFC 4514 has it, so that two subjects that
differ are two texts: the last part first, and what could pass for the end of a part with a backslash before it.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from basalt.access.principal import Principal
from basalt.access.proofs.proof import Proof
from basalt.errors import InputError, UnauthenticatedError

Name = Literal["subject", "cn", "dns", "uri"]

CERT = "cert"

# The short names of RFC 4514 for what `ssl` calls by OpenSSL's long ones. Others keep the long one, which is LDAP's too.
_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_ALTERNATIVES = {"dns": "DNS", "uri": "URI"}
_SPECIAL = re.compile(r'["+,;<>\\]|^[ #]| $')

_Parts = Iterable[Iterable[tuple[str, str]]]  # of a distinguished name, as `ssl` has them: each is one or more pairs


class ClientCertificate:
    """A client's certificate that was verified at the handshake of its connection: `fields` as `ssl` reads them."""

    __slots__ = ("digest", "fields")

    def __init__(self, fields: Mapping[str, Any], der: bytes) -> None:
        self.fields = fields
        self.digest = hashlib.sha256(der).digest()  # what is remembered of a certificate goes by it


def prove(certificate: ClientCertificate, name: Name, now_ms: int) -> Proof:
    """The proof of a certificate: its principal, until it ends. `UnauthenticatedError`."""
    fields = certificate.fields
    until_ms = 1_000 * ssl.cert_time_to_seconds(str(fields["notAfter"]))
    if now_ms >= until_ms:
        raise UnauthenticatedError(
            "the certificate of this connection has expired", hint="Connect again with one that counts still."
        )
    candidates = [*_candidates(fields, name)]
    if len(candidates) != 1:
        found = "none" if not candidates else str(len(candidates))
        raise _invalid(f"it has {found} where the server looks for one name ({name})")
    try:
        principal = Principal(CERT, candidates[0])
    except InputError:
        raise _invalid(f"what it has for a name ({name}) is none that a principal may have") from None
    issuer = distinguished_name(fields.get("issuer", ()))
    return Proof(principal, f"cert {fields.get('serialNumber', '')} of {issuer}", until_ms)


def distinguished_name(parts: _Parts) -> str:
    """The name as RFC 4514 writes it, the last part first: `CN=etl,OU=data`. `UnauthenticatedError` for one that cannot be read."""
    return ",".join("+".join(_pair(*pair) for pair in part) for part in reversed([*parts]))


def _candidates(fields: Mapping[str, Any], name: Name) -> Iterator[str]:
    subject: _Parts = fields.get("subject", ())
    if name == "subject":
        whole = distinguished_name(subject)
        if whole:
            yield whole
    elif name == "cn":
        yield from (value for part in subject for kind, value in part if kind == "commonName")
    else:
        wanted = _ALTERNATIVES[name]
        for kind, value in fields.get("subjectAltName", ()):
            if kind == wanted:
                if "*" in value:
                    raise _invalid("its name has a *, and so is that of no one in particular")
                yield value


def _pair(kind: str, value: str) -> str:
    if not value.isprintable():
        raise _invalid("its name has characters that cannot be shown")
    return f"{_SHORT_NAMES.get(kind, kind)}={_SPECIAL.sub(lambda found: chr(92) + found[0], value)}"


def _invalid(why: str) -> UnauthenticatedError:
    return UnauthenticatedError(
        f"the certificate of this connection is invalid: {why}",
        hint="Connect with one that the server's operator has named.",
    )
