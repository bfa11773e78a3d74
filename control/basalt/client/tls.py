"""Files with certificates and a key for https, and the context that is made of them.

Files are loaded again when they change, for certificates that last a day are no use to a program that runs for a month. Connections
that are open stay; new ones use what is there.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from basalt.errors import InputError
from basalt_engine.clock import SystemClock

FILES_LOOK_MS = 10_000  # between two looks at the files: three calls of the system, for what changes once a day

VARIABLES = {"ca_file": "BASALT_CA_FILE", "cert_file": "BASALT_CERT_FILE", "key_file": "BASALT_KEY_FILE"}
log = logging.getLogger("basalt.client")

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for https: `ca_file`, the authorities to trust in place of the system's; `cert_file`, the client's own certificate with what
    leads to its authority; `key_file`, the key of that, where it is not in the same file.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None


class TlsContext:
    """The context for new connections. `InputError` names the file that is no good, at the beginning; later on the old ones stay in use."""

    def __init__(self, files: Tls, monotonic_ms: Callable[[], float] | None = None) -> None:
        self._files = files
        self._monotonic_ms = monotonic_ms or SystemClock().monotonic_ms
        self._stamp = _stamp(files)
        self._looked_ms = self._monotonic_ms()
        self.context = _loaded(files)

    @property
    def due(self) -> bool:
        """True when it is time for a look at the files."""
        return self._monotonic_ms() - self._looked_ms >= FILES_LOOK_MS

    def look(self) -> None:
        """Look at the files, and load them if they are others than before."""
        self._looked_ms = self._monotonic_ms()
        try:
            stamp = _stamp(self._files)
            if stamp != self._stamp:
                self.context, self._stamp = _loaded(self._files), stamp
        except InputError as error:
            log.warning("%s; what was loaded before stays in use", error.message)


def tls_context(tls: ssl.SSLContext | Tls | None, *, secure: bool) -> ssl.SSLContext | TlsContext | None:
    """The context that connections over TLS are made with; None: the system's authorities. `secure`: the client's URLs are https.

    `InputError` where it would be of no use: whoever gives a certificate does not expect to speak without TLS.
    """
    if tls is None:
        found = {name: path for name, variable in VARIABLES.items() if (path := os.environ.get(variable))}
        return TlsContext(Tls(**found)) if found and secure else None
    if not secure:
        raise InputError("tls is given, and the URL is not https", field="tls", hint="Write https:// or leave tls out.")
    return TlsContext(tls) if isinstance(tls, Tls) else tls


def _stamp(files: Tls) -> _Stamp:
    found = []
    for path in (files.ca_file, files.cert_file, files.key_file):
        if path is not None:
            try:
                seen = (
                    Path(path).expanduser().stat()
                )  # of what a link leads to: platforms put new files behind the same one
            except OSError as error:
                raise _unreadable(path, os.strerror(error.errno or 0)) from None
            found.append((seen.st_mtime_ns, seen.st_ino, seen.st_size))
    return tuple(found)


def _loaded(files: Tls) -> ssl.SSLContext:
    if files.key_file is not None and files.cert_file is None:
        raise InputError(
            f"key file {files.key_file} is given without a certificate", field="tls", hint="Add cert_file."
        )
    ca_file = None if files.ca_file is None else Path(files.ca_file).expanduser()
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise _unreadable(files.ca_file, _reason(error)) from None
    if files.cert_file is not None:
        cert_file = Path(files.cert_file).expanduser()
        key_file = None if files.key_file is None else Path(files.key_file).expanduser()
        try:
            # Without a password given, OpenSSL would ask for one on the terminal, and wait.
            context.load_cert_chain(cert_file, key_file, password=_no_password)
        except (OSError, ValueError) as error:
            named = files.cert_file if files.key_file is None else f"{files.cert_file} with key {files.key_file}"
            raise _unreadable(named, _reason(error)) from None
    return context


def _no_password() -> str:
    raise ValueError("its key is encrypted; store it without a password, readable by its owner alone")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return {"KEY_VALUES_MISMATCH": "the key is not that of the certificate"}.get(
            error.reason or "", "no PEM of the right kind is in it"
        )
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


def _unreadable(path: object, reason: str) -> InputError:
    return InputError(f"TLS file {path} cannot be used: {reason}", field="tls", hint="Name readable PEM files.")
