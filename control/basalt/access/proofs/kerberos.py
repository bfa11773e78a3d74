"""Kerberos tickets as proofs of who calls: one SPNEGO token of `Authorization: Negotiate` (RFC 4559) makes one principal, in one step.

The keys of the service are in a keytab, which is read for each token, so a new key counts at once. A ticket counts for the service that
the settings name, from a client of a realm that they list, and each token once: the library keeps what it has accepted in a file of this
process's memory. docs/operations/security.md, docs/decisions/0047-kerberos-tokens-count-once-for-each-process.md
"""

from __future__ import annotations

import base64
import binascii
import functools
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from gssapi import raw

from basalt.access.principal import Principal
from basalt.access.proofs.proof import Proof
from basalt.channel_binding import binding
from basalt.errors import AuthenticationUnavailableError, InputError, InvalidSettingError, UnauthenticatedError
from basalt.settings import KerberosSettings

KIND = "krb"
# Windows makes none that is larger (MaxTokenSize), and in base64 one of this size just fits into the head of a request.
TOKEN_BYTES_MAX = 48_000
REASON_CHARS_MAX = 300  # of the library's words, in the log: a ticket's names are in them

_SPNEGO = raw.OID.from_int_seq("1.3.6.1.5.5.2")
_KRB5 = raw.OID.from_int_seq("1.2.840.113554.1.2.2")
_REPLAY_CACHE = "KRB5RCACHENAME"  # MIT's own variable: an operator who sets it has chosen another place
# Everybody may be this one, where the realm lets anybody have a ticket without a name (RFC 8062).
_ANONYMOUS = "WELLKNOWN/ANONYMOUS"

# What the library says is told in words of ours. Its codes are no help: SPNEGO numbers them anew in each process.
_REASONS = (
    ("Clock skew too great", "the clocks of the client and of this server differ by more than the realm allows", "Set both clocks, by NTP."),
    ("Request is a replay", "it was sent before, and each token counts once", "Make a new token for each request."),
    ("Ticket not yet valid", "its ticket does not count yet", "Set the clocks of client and server, by NTP."),
)  # fmt: skip
_EXPIRED = "Ticket expired"

log = logging.getLogger("basalt.access.kerberos")


class Accepted(NamedTuple):
    """The proof of who sent a token, and the token that proves this server to them: for WWW-Authenticate of the answer."""

    proof: Proof
    answer: str


class Kerberos:
    """Finds out whose a ticket is. Whatever was found in this process is remembered, whichever object found it."""

    def __init__(self, settings: KerberosSettings) -> None:
        """`InvalidSettingError` when the keytab has no key of the service, cannot be read, or can be read by everybody."""
        assert settings.keytab is not None, "the settings were checked"
        self._keytab = Path(settings.keytab)
        self._realms = frozenset(settings.realms)
        self._is_bound = settings.binding != "off"
        self._must_be_bound = settings.binding == "require"
        _check_keytab(self._keytab)
        store: dict[bytes | str, bytes | str] = {b"keytab": b"FILE:" + os.fsencode(self._keytab)}
        if _REPLAY_CACHE not in os.environ:
            store[b"rcache"] = f"file2:/proc/self/fd/{remembered()}".encode()
        try:
            raw.acquire_cred_from(
                store, _name(settings.service), mechs=[_KRB5], usage="accept"
            )  # says better what is amiss
            self._credentials = raw.acquire_cred_from(
                store, _name(settings.service), mechs=[_SPNEGO], usage="accept"
            ).creds
            # Whatever else this machine has learnt to accept, as by a package for NTLM.
            raw.set_neg_mechs(self._credentials, [_KRB5])
        except raw.GSSError as error:
            raise InvalidSettingError(
                f"setting auth.kerberos.keytab: {self._keytab} has no key of the service {settings.service} that can be used"
                f" ({_words(error)})",
                field="auth.kerberos.keytab",
                hint="See what it has with `klist -k -e FILE`; auth.kerberos.service names the service.",
            ) from None

    def prove(self, token: str, now_ms: int, end_point: bytes | None = None) -> Accepted:
        """Find who sends this token, which is what follows `Negotiate` in the header. It counts no second time.

        `end_point` is the hash of the server's certificate on the TLS connection that it came over (RFC 5929); None without TLS.
        `UnauthenticatedError`, `AuthenticationUnavailableError`.
        """
        given = _decoded(token)
        bound = raw.ChannelBindings(application_data=binding(end_point)) if self._is_bound and end_point else None
        try:
            # The class SecurityContext would keep an error of this back until it is looked at next: for a token that was sent before its
            # `step` returns an answer as for a good one.
            found = raw.accept_sec_context(given, self._credentials, None, bound)
        except raw.BadChannelBindingsError:
            _refuse("it was made for a TLS connection to another server, or one that a proxy ended in between")
        except raw.GSSError as error:
            self._refuse_for(error)
        if found.more_steps or not found.token:
            _refuse("it is no token of Kerberos in one step")
        if found.mech != _KRB5:
            _refuse("it is of another mechanism than Kerberos")
        if self._must_be_bound and (bound is None or not found.flags & raw.RequirementFlag.channel_bound):
            _refuse("it is not bound to the TLS connection that it came over, as this server requires")
        principal, realm = self._principal(found.initiator_name)
        proof = Proof(principal, f"kerberos {realm}", until_ms=now_ms + 1_000 * int(found.lifetime))
        return Accepted(proof, base64.b64encode(found.token).decode("ascii"))

    def _principal(self, name: raw.Name) -> tuple[Principal, str]:
        try:
            whole = raw.display_name(name, name_type=False).name.decode("utf-8")
        except UnicodeDecodeError:
            _refuse("the name of its principal is no UTF-8")
        first, realm = _parted(whole)
        if realm not in self._realms:
            _refuse("its principal is of a realm that does not count here")
        if first == _ANONYMOUS:
            _refuse("its principal is anonymous")
        try:
            return Principal(KIND, whole), realm
        except InputError:
            _refuse("the name of its principal is none that can have rights here")

    def _refuse_for(self, error: raw.GSSError) -> NoReturn:
        words = _words(error)
        log.info("a Kerberos token was refused: %s", words)
        if _EXPIRED in words:
            raise UnauthenticatedError("the Kerberos ticket is expired", hint="Log in anew, as with `kinit`.")
        for theirs, reason, hint in _REASONS:
            if theirs in words:
                _refuse(reason, hint)
        if not os.access(self._keytab, os.R_OK):
            raise AuthenticationUnavailableError("the server cannot read the keys of its Kerberos service now")
        _refuse("it is no token of SPNEGO with a ticket for this server's service, or its keys have changed since")


@functools.cache
def remembered() -> int:
    """The file, in memory alone, of the tokens that were sent: it waits for no disk, and for no other process that has it locked.

    It has some 80 bytes for each token of the last minutes, as long as one counts (clockskew); who adds one has a ticket.
    """
    return os.memfd_create("basalt-kerberos-tokens")


def _check_keytab(path: Path) -> None:
    reason = ""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                reason = "can be read by every user of this machine, and holds the keys of a service (chmod o-r)"
    except OSError as error:
        reason = f"cannot be read: {os.strerror(error.errno or 0)}"
    if reason:
        raise InvalidSettingError(
            f"setting auth.kerberos.keytab: {path} {reason}",
            field="auth.kerberos.keytab",
            hint="Name a file with the keys of the service HTTP, which the server's user alone can read.",
        )


def _name(service: str) -> raw.Name:
    """A service on any host that the keytab has, or one whole principal. Nothing is looked up in the DNS for either."""
    kind = raw.NameType.kerberos_principal if "/" in service else raw.NameType.hostbased_service
    return raw.import_name(service.encode(), kind)


def _decoded(token: str) -> bytes:
    if len(token) > TOKEN_BYTES_MAX // 3 * 4:  # in base64
        _refuse(f"it is longer than {TOKEN_BYTES_MAX} bytes")
    given = b""
    with suppress(binascii.Error, ValueError):
        given = binascii.a2b_base64(token, strict_mode=True)
    if not given:
        _refuse("it is empty, or no base64")
    return given


def _parted(principal: str) -> tuple[str, str]:
    """The name and the realm: what is before and behind the first @ that no backslash stands before."""
    at, length = 0, len(principal)
    while at < length and principal[at] != "@":
        at += 2 if principal[at] == "\\" else 1
    return principal[:at], principal[at + 1 :]


def _words(error: raw.GSSError) -> str:
    """The library's own words, on one line."""
    text = str(error)
    minor = text.rpartition("): ")[2]
    return ascii(minor[:REASON_CHARS_MAX])[1:-1]


def _refuse(reason: str, hint: str | None = None) -> NoReturn:
    raise UnauthenticatedError(f"the Kerberos token is invalid: {reason}", field="Authorization", hint=hint)
