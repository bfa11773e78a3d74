"""The Kerberos identity with which Basalt comes to HBase's Thrift gateways, and its tickets: got before they are needed, renewed before they end.

Tickets come from a keytab, or from the ticket cache that something else keeps (`kinit`, k5start, sssd): that of `KRB5CCNAME`, else the
user's own. After four fifths of their life the next call begins a renewal, in a thread of its own, so that no call waits for a server of Kerberos
that is away; what a gateway's service ticket takes is done there, too. A renewal that fails is logged and tried again; calls go on with
what there is until it ends. Where it did end, the call that comes next renews it itself.

Tickets from a keytab lie in the memory of this process alone, in two caches that take turns: whoever still uses the last one is not disturbed.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from basalt_engine.clock import Clock, SystemClock
from basalt_engine.errors import InputError

Quality = Literal["auth", "auth-int", "auth-conf"]

CACHE_HINT = "log in with kinit where it ended, or set store.hbase.keytab and store.hbase.principal"
KEYTAB_HINT = "see that store.hbase.keytab has a key of store.hbase.principal, and that the KDC of krb5.conf answers"
SERVICE_HINT = "store.hbase.service and store.hbase.gateway_host must name the gateway's own principal, which is hbase.thrift.kerberos.principal there"
EARLY_MS_MAX = 10_000  # so long before its end a ticket counts as ended: a call that has begun takes as long at most
_EARLY_PART = 10  # but no more than a tenth of its life
_ROUNDED_MS = 1_000  # a life is told in whole seconds, and may be as much shorter
_RENEWED_AT = 0.8  # of their life, as Hadoop does it: a fifth is left to find a KDC that answers
_ENDED = "the ticket ended during the login"
_PAUSE_MS = 1_000  # after a login that failed: threads that wait for it fail with it, and do not all wait for a KDC that is away
_RENEWAL_PAUSE_MS = 30_000  # after a renewal that failed while tickets last
# Between two logins because a gateway refuses the tickets: the library keeps 4 KB of each, for caches in memory cannot be taken away.
DROP_PAUSE_MS = 300_000
_CACHES = itertools.count()  # caches in memory are the process's, and go by name
_UNKNOWN_SERVER = 2529638919  # KRB5KDC_ERR_S_PRINCIPAL_UNKNOWN, of MIT's library

_LOG = logging.getLogger(__name__)


class KerberosError(Exception):
    """A ticket that cannot be had, or a gateway that does not take it; the hint says what to look at."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Kerberos:
    """Settings: whose tickets, from where, for which service, and what protects the bytes that follow."""

    quality: Quality
    principal: str | None = None  # None: whoever the ticket cache is of
    keytab: str | None = None  # None: from the ticket cache
    service: str = "hbase"
    gateway_host: str | None = None  # in the gateway's principal; None: the host of its address


class _Tickets(NamedTuple):
    """Credentials of the library, and the cache in memory where they lie; times are the clock's."""

    credentials: Any
    cache: str
    renew_ms: float
    end_ms: float


class KerberosLogin:
    """The tickets of one identity. Any thread may use it."""

    def __init__(self, kerberos: Kerberos, clock: Clock | None = None) -> None:
        self.kerberos = kerberos
        self._clock = clock or SystemClock()
        self._library = _library()
        self._caches = _new_caches()
        self._lock = threading.Lock()
        self._renewal = threading.Lock()
        self._tickets: _Tickets | None = None
        self._failure: tuple[float, KerberosError] | None = None
        self._renew_again_ms = 0.0
        self._drop_again_ms = 0.0
        self._hosts: set[str] = set()

    def begin(self, host: str) -> KerberosContext:
        """A context with the gateway at this host, which is to see its first token; `KerberosError`."""
        host = self.kerberos.gateway_host or host
        context = self._begin(self._current(), host)
        self._hosts.add(host)
        return context

    def end_ms(self, lifetime_s: float) -> float:
        """The time from which something that lasts so long from now counts as ended: a little early, so that it does not end within a call."""
        early_ms = _ROUNDED_MS + min(EARLY_MS_MAX, lifetime_s * 1_000 / _EARLY_PART)
        return self._clock.now_ms() + lifetime_s * 1_000 - early_ms

    def has_ended(self, end_ms: float) -> bool:
        """True when this time has come."""
        return self._clock.now_ms() >= end_ms

    def drop_refused(self) -> None:
        """Take the tickets that a gateway did not take for old: its key may have changed since they were made. Seldom, for others may be well."""
        with self._lock:
            now_ms = self._clock.now_ms()
            if now_ms >= self._drop_again_ms:
                self._drop_again_ms = now_ms + DROP_PAUSE_MS
                self._tickets = None
                self._caches = _new_caches()

    def renew_early(self) -> None:
        """Begin a renewal in a thread of its own when it is time for one. Returns at once; each use of a connection calls it."""
        tickets, now_ms = self._tickets, self._clock.now_ms()
        if tickets is None or now_ms < tickets.renew_ms or now_ms < self._renew_again_ms:
            return
        if self._renewal.acquire(blocking=False):
            threading.Thread(target=self._renew, name="hbase-kerberos", daemon=True).start()

    def _renew(self) -> None:
        try:
            tickets = self._acquire()
            for host in list(self._hosts):
                self._begin(tickets, host)  # which gets the service ticket, and keeps it with the others
            with self._lock:
                self._tickets = tickets
        except KerberosError as error:
            self._renew_again_ms = self._clock.now_ms() + _RENEWAL_PAUSE_MS
            _LOG.warning("the Kerberos tickets for HBase's gateways are not renewed: %s; %s", error, error.hint)
        finally:
            self._renewal.release()

    def _current(self) -> _Tickets:
        """The tickets, got anew where they have ended: one thread does, and the others wait for it."""
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._tickets is not None and now_ms < self._tickets.end_ms:
                return self._tickets
            if self._failure is not None and now_ms < self._failure[0]:
                failed = self._failure[1]
                raise KerberosError(str(failed), failed.hint) from failed
            try:
                self._tickets = self._acquire()
            except KerberosError as error:
                self._failure = (self._clock.now_ms() + _PAUSE_MS, error)
                raise
            return self._tickets

    def _acquire(self) -> _Tickets:
        gssapi, of = self._library, self.kerberos
        name = None if of.principal is None else gssapi.Name(of.principal, gssapi.NameType.kerberos_principal)
        held = self._tickets
        cache = next(each for each in self._caches if held is None or each != held.cache)
        store = None if of.keytab is None else {"client_keytab": of.keytab, "ccache": cache}
        try:
            credentials = gssapi.Credentials(name=name, usage="initiate", mechs=[gssapi.MechType.kerberos], store=store)
            lifetime_s = credentials.lifetime
        except gssapi.exceptions.GSSError as error:
            who, where = of.principal or "anybody", of.keytab or "the ticket cache"
            hint = KEYTAB_HINT if of.keytab else CACHE_HINT
            raise KerberosError(f"there is no Kerberos ticket of {who} from {where}: {_reason(error)}", hint) from error
        return _Tickets(
            credentials, cache, self._clock.now_ms() + lifetime_s * 1_000 * _RENEWED_AT, self.end_ms(lifetime_s)
        )

    def _begin(self, tickets: _Tickets, host: str) -> KerberosContext:
        service = f"{self.kerberos.service}@{host}"
        try:
            return KerberosContext(self._library, tickets.credentials, service)
        except self._library.exceptions.GSSError as error:
            hint = KEYTAB_HINT if self.kerberos.keytab else CACHE_HINT
            raise KerberosError(
                f"there is no Kerberos ticket for {service.replace('@', '/')}: {_reason(error)}",
                SERVICE_HINT if error.min_code == _UNKNOWN_SERVER else hint,
            ) from error


class KerberosContext:
    """The keys of one connection, which two sides share that have proved their names to each other. For one thread."""

    def __init__(self, library: Any, credentials: Any, service: str) -> None:
        self._library = library
        self._flags = library.RequirementFlag
        self._context = library.SecurityContext(
            name=library.Name(service, library.NameType.hostbased_service),
            creds=credentials,
            usage="initiate",
            mech=library.MechType.kerberos,
            # The gateway is to prove itself, too. What protects later bytes is chosen in messages that are signed, whatever it is.
            flags=self._flags.mutual_authentication
            | self._flags.out_of_sequence_detection
            | self._flags.integrity
            | self._flags.confidentiality,
        )
        self.token: bytes = self._context.step() or b""

    @property
    def is_complete(self) -> bool:
        return bool(self._context.complete)

    @property
    def lifetime_s(self) -> float:
        """The time for which the ticket lasts; `KerberosError` when it has just ended."""
        with self._failing_as(_ENDED, KEYTAB_HINT):
            return float(self._context.lifetime)

    def step(self, token: bytes) -> bytes:
        """The answer to a token of the other side; `KerberosError` when that proves nothing."""
        with self._failing_as("the gateway does not prove its name", SERVICE_HINT):
            return self._context.step(token) or b""

    def lacks(self, *, encryption: bool) -> bool:
        """True when the gateway did not prove itself, or its key cannot do what is asked for; `KerberosError`."""
        wanted = {self._flags.mutual_authentication, self._flags.integrity}
        if encryption:
            wanted.add(self._flags.confidentiality)
        with self._failing_as(_ENDED, KEYTAB_HINT):
            return not self.is_complete or not wanted.issubset(self._context.actual_flags)

    def wrap(self, data: bytes, *, encrypt: bool) -> bytes:
        """The bytes signed, or encrypted as well; `KerberosError`."""
        with self._failing_as("bytes for the gateway cannot be wrapped", SERVICE_HINT):
            wrapped = self._context.wrap(data, encrypt)
        assert wrapped.encrypted == encrypt, "the context was seen to encrypt"
        return bytes(wrapped.message)

    def unwrap(self, data: bytes, *, encrypted: bool) -> bytes:
        """The bytes as they were before; `KerberosError` where they were changed on the way, repeated, left out, or not encrypted."""
        with self._failing_as("bytes of the gateway were changed on the way", SERVICE_HINT):
            unwrapped = self._context.unwrap(data)
        if encrypted and not unwrapped.encrypted:
            raise KerberosError("the gateway sent what is not encrypted", SERVICE_HINT)
        return bytes(unwrapped.message)

    def part_bytes_max(self, frame_bytes_max: int, *, encrypt: bool) -> int:
        """The most bytes that are no more than so many when they are wrapped; `KerberosError`."""
        with self._failing_as(_ENDED, KEYTAB_HINT):
            return int(self._context.get_wrap_size_limit(frame_bytes_max, encrypt))

    @contextmanager
    def _failing_as(self, message: str, hint: str) -> Iterator[None]:
        try:
            yield
        except self._library.exceptions.GSSError as error:
            raise KerberosError(f"{message}: {_reason(error)}", hint) from error


def _new_caches() -> tuple[str, str]:
    """Two names that nobody has used. A cache that is used again gives out what it has, unless that is old."""
    number = next(_CACHES)
    return f"MEMORY:basalt-{number}-a", f"MEMORY:basalt-{number}-b"


def _library() -> Any:
    try:
        import gssapi
    except ImportError as error:
        raise InputError(
            f"Kerberos needs the library gssapi, which is not here: {error}",
            field="store.hbase.sasl",
            hint="install basalt-mq with its extra: basalt-mq[kerberos]",
        ) from None
    return gssapi


def _reason(error: Any) -> str:
    """The library's own words, which name principals and caches."""
    minor = error.get_all_statuses(error.min_code, is_maj=False)
    words = [line for line in minor if line != "Success"] or error.get_all_statuses(error.maj_code, is_maj=True)
    return "; ".join(words)
