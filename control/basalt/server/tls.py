"""TLS of a server: its certificate and the CAs of its clients, read from files, tried before they are used, and read again.

A new context takes the place of the old one as a whole, or not at all. What is tried: that the files can be read, that the key
fits, and that a client that trusts just this certificate goes through a handshake with it today. A change that does not pass leaves the old
context in force, which is logged and counted: `basalt_tls_reloads_total`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from basalt.cluster.links.hello import fingerprint
from basalt.cluster.links.link_tls import Shown
from basalt.errors import InvalidSettingError
from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.server_context import ServerContext
from basalt.settings import TlsSettings
from basalt.settings.kinds import DAY_MS, HOUR_MS
from basalt_engine.clock import Clock

FILE_BYTES_MAX = 4 << 20  # a list of revoked certificates has 40 bytes for each; CAs and certificates are far smaller
ATTEMPTS_MAX = 3  # at files that change while they are read
ROUNDS_MAX = 10  # of a handshake in memory, which takes three
SOON_MS = 14 * DAY_MS  # before a certificate's end, the log says so at each start and reload

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_ASKED = {"off": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_MARK = b"-----BEGIN CERTIFICATE-----"
_END = b"-----END CERTIFICATE-----"

log = logging.getLogger("basalt.tls")


class _Files(NamedTuple):
    """The content of the files, by the keys that name them; empty where none is named."""

    certificate: bytes
    key: bytes
    client_ca: bytes
    client_crl: bytes


class Tls:
    """The contexts of a server, one after the other. `handshakes` has the one in force."""

    def __init__(self, settings: TlsSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.hsts = settings.hsts
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._files, context, self._for_links = load(settings)
        self._told: str | None = None  # of the change that did not pass, as long as it stands
        self.handshakes = Handshakes(context)
        self._say_when_it_ends()

    def shown_on_links(self) -> Shown:
        """The certificate in force, for links between servers: they ask for none, for who dials one proves itself by the secret."""
        return Shown(self._for_links, fingerprint(self._for_links.certificate_der))

    def ask(self) -> None:
        """Read the files anew, whether they have changed or not: an operator wants it. A signal's handler may call this."""
        with suppress(RuntimeError):  # the server ends
            self._loop.call_soon_threadsafe(self._asked.set)

    async def watch(self) -> None:
        """Look at the files from time to time, and when asked to, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), self._settings.reload_ms / 1_000)
            asked = self._asked.is_set()
            self._asked.clear()
            await self.look(asked=asked)

    async def look(self, *, asked: bool = False) -> None:
        """Use what the files hold, where they have changed or somebody asked for it."""
        try:
            if not asked and await asyncio.to_thread(_read, self._settings) == self._files:
                self._told = None
                return
            self._files, context, for_links = await asyncio.to_thread(load, self._settings)
        except InvalidSettingError as error:
            self._failed(error.message, error.hint or "", asked=asked)
        except Exception:
            log.exception("goes on with the certificate and the CAs of before")
            self.handshakes.reloads["failed"] += 1
        else:
            self._told = None
            self.handshakes.use(context)
            self._for_links = for_links
            log.info(
                "%s was read anew, with what belongs to it: new connections go by that", self._settings.certificate
            )
            self._say_when_it_ends()

    def _failed(self, message: str, hint: str, *, asked: bool) -> None:
        self.handshakes.reloads["failed"] += 1
        if asked or message != self._told:
            self._told = message
            log.error("goes on with the certificate and the CAs of before: %s; %s", message, hint)

    def _say_when_it_ends(self) -> None:
        left_ms = self.handshakes.context.not_after_ms - self._clock.now_ms()
        if left_ms < SOON_MS:
            log.warning(
                "the certificate in %s ends in %d hours; clients refuse it then",
                self._settings.certificate,
                left_ms // HOUR_MS,
            )


def load(settings: TlsSettings) -> tuple[_Files, ServerContext, ServerContext]:
    """The content of the files of these settings, and two contexts of it that were tried: for clients, and for links, where nobody is asked for a certificate.

    `InvalidSettingError` names the key that is wrong.
    """
    for _ in range(ATTEMPTS_MAX):
        files = _read(settings)
        try:
            for_links = _context(settings, files)
            context = for_links if settings.client == "off" else _context(settings, files)
            if settings.client != "off":
                _load_clients(context, settings, files)
        except InvalidSettingError:
            if _read(settings) == files:
                raise
            continue
        if _read(settings) == files:  # what OpenSSL has read by itself is what was looked at
            return files, context, for_links
    raise InvalidSettingError(
        "setting tls.certificate: its files change while they are read",
        field="tls.certificate",
        hint="replace them as a whole",
    )


def _context(settings: TlsSettings, files: _Files) -> ServerContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    # With a ticket a client comes back without showing its certificate, and as whom it was when it got the ticket.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load_certificate(context, settings, files)
    _try(context, settings, files)
    return context


def _load_certificate(context: ServerContext, settings: TlsSettings, files: _Files) -> None:
    assert settings.certificate is not None
    assert settings.key is not None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_first_certificate(files.certificate))
    except (ssl.SSLError, ValueError) as error:
        raise _wrong(
            "certificate", settings, "holds no certificate", "name a file in PEM, the server's certificate first"
        ) from error
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _wrong(
                "key",
                settings,
                f"does not fit the certificate in {settings.certificate}",
                "name the key that it was made with",
            ) from error
        if str(error.reason).startswith("EE_KEY"):
            raise _wrong(
                "certificate",
                settings,
                "has a key that is too short to be safe",
                "make one of 2,048 bits of RSA or more, or of P-256",
            ) from error
        raise _wrong(
            "key",
            settings,
            "holds no private key, or what stands behind the certificate is none",
            "name files in PEM: the key alone, and the certificate with those between it and its CA behind it",
        ) from error
    except ValueError as error:
        raise _wrong(
            "key",
            settings,
            "is encrypted",
            "store the key without a password, in a file that only the server's user can read",
        ) from error
    except OSError as error:
        raise _wrong(
            "key", settings, f"cannot be read: {error.strerror}", "name a file that the server's user can read"
        ) from error


def _no_password() -> str:
    raise ValueError("there is nobody to ask for it")


def _first_certificate(pem: bytes) -> str:
    """The first certificate of a file in PEM, without comments; `ValueError` where it has none."""
    start = pem.index(_MARK)
    return pem[start : pem.index(_END, start) + len(_END)].decode("ascii") + "\n"


def _try(context: ServerContext, settings: TlsSettings, files: _Files) -> None:
    """Go through a handshake in memory, as a client that trusts just this certificate; and note what it saw."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=_first_certificate(files.certificate))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(ROUNDS_MAX):
            for side in (asking, answering):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        seen = asking.getpeercert()
        der = asking.getpeercert(True)
    except ssl.SSLCertVerificationError as error:
        raise _wrong(
            "certificate", settings, f"is one that no client takes: {error.verify_message}", "get a new one"
        ) from error
    except (ssl.SSLError, ValueError) as error:
        raise _wrong("certificate", settings, f"and its key make no connection: {error}", "get new ones") from error
    assert seen is not None
    assert der is not None
    context.certificate_der = der
    context.not_after_ms = 1_000 * ssl.cert_time_to_seconds(str(seen["notAfter"]))


def _load_clients(context: ServerContext, settings: TlsSettings, files: _Files) -> None:
    """Have the context ask clients for certificates, of these CAs and not on these lists."""
    context.verify_mode = _ASKED[settings.client]
    try:
        context.load_verify_locations(cadata=files.client_ca.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise _wrong(
            "client_ca", settings, "holds what is no certificate", "name a file of CA certificates in PEM"
        ) from error
    held = context.cert_store_stats()
    if not held["x509_ca"]:
        raise _wrong("client_ca", settings, "holds no certificate of a CA", "name a file of CA certificates in PEM")
    if settings.client_crl is None:
        return
    try:
        context.load_verify_locations(cafile=settings.client_crl)
    except (ssl.SSLError, OSError) as error:
        raise _wrong(
            "client_crl", settings, "holds no list of revoked certificates", "name a file of such lists (CRLs) in PEM"
        ) from error
    with_lists = context.cert_store_stats()
    if not with_lists["crl"]:
        raise _wrong(
            "client_crl", settings, "holds no list of revoked certificates", "name a file of such lists (CRLs) in PEM"
        )
    if with_lists["x509"] != held["x509"]:
        raise _wrong(
            "client_crl",
            settings,
            "holds certificates, whose holders would be trusted as CAs",
            "leave just the lists in it",
        )
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _read(settings: TlsSettings) -> _Files:
    return _Files(*(_content(name, settings) for name in _Files._fields))


def _content(name: str, settings: TlsSettings) -> bytes:
    path = getattr(settings, name)
    if path is None:
        return b""
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise _wrong(
            name, settings, f"cannot be read: {error.strerror}", "name a file that the server's user can read"
        ) from error
    if len(content) > FILE_BYTES_MAX:
        raise _wrong(name, settings, f"is longer than {FILE_BYTES_MAX} bytes", "name a file in PEM")
    if name == "key" and mode & (stat.S_IROTH | stat.S_IWOTH):
        raise _wrong(name, settings, "can be read by every user of this machine", f"chmod o-rwx {path}")
    return content


def _wrong(name: str, settings: TlsSettings, what: str, hint: str) -> InvalidSettingError:
    return InvalidSettingError(f"setting tls.{name}: {getattr(settings, name)} {what}", field=f"tls.{name}", hint=hint)
