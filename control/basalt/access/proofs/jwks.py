"""The keys of an identity provider: which of them count, and how a server keeps them fresh.

A JSON Web Key Set (RFC 7517) is read in the background from an https URL or a file, and no call ever waits for it. What cannot be read for a
while is used as it was; what was not read for a day counts no more. No key and no address comes from anywhere else, least of all from a token.
docs/operations/security.md, "JWT from an identity provider".
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from basalt.errors import AuthenticationUnavailableError, InvalidSettingError
from basalt_engine.clock import Clock

if TYPE_CHECKING:
    from jwt.algorithms import AllowedPublicKeys

SET_BYTES_MAX = 1 << 20  # a set of a hundred keys with their certificates has a fifth of it
KEYS_MAX = 100  # providers have two to ten
RSA_BITS_MIN = 2_048  # what is shorter can be factored, or soon
RSA_BITS_MAX = 8_192  # each doubling makes a signature four times as dear to check
READ_MS_MAX = 5_000  # for name, connection, handshake and body together
ANSWERED_MS = 1_000  # within which providers answer
REFRESH_MS = 300_000  # a key that its provider took back counts for no longer
LOOK_MS = 5_000  # at a file, whose reading costs next to nothing
AGAIN_MS = 10_000  # after a failure
ASK_MS_MIN = 30_000  # between two readings that tokens with unknown keys caused: anybody can make such a token
STALE_MS_MAX = 86_400_000  # a provider that was away for a night has not taken its keys back

# By key pairs alone: with a secret that it verifies by a server could sign, too.
_BY_TYPE: Mapping[tuple[str, str | None], frozenset[str]] = {
    ("RSA", None): frozenset(("RS256", "PS256")),
    ("EC", "P-256"): frozenset(("ES256",)),
    ("OKP", "Ed25519"): frozenset(("EdDSA",)),
}
ALGORITHMS = frozenset().union(*_BY_TYPE.values())

log = logging.getLogger("basalt.jwks")


class _Jwk(msgspec.Struct):
    """One key as its provider publishes it. What else it has, certificates and addresses, is not looked at."""

    kty: str
    kid: str | None = None
    alg: str | None = None
    use: str | None = None
    key_ops: list[str] | None = None
    crv: str | None = None
    n: str | None = None
    e: str | None = None
    x: str | None = None
    y: str | None = None
    d: object = None


class _Jwks(msgspec.Struct):
    keys: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key, and the algorithms whose signatures it may verify."""

    kid: str | None
    algorithms: frozenset[str]
    public_key: AllowedPublicKeys


class KeySet:
    """The keys of a provider at one moment. It never changes."""

    def __init__(self, keys: Iterable[VerificationKey] = (), ignored: Iterable[str] = ()) -> None:
        self.ignored = tuple(ignored)  # what was wrong with those that do not count
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        """The key of this id for this algorithm. A token that names none is meant for the only one that there is for it."""
        fitting = [key for key in self._keys if algorithm in key.algorithms and kid in (None, key.kid)]
        return fitting[0] if len(fitting) == 1 else None

    def has(self, kid: str) -> bool:
        """Tell whether a key has this id, for whatever algorithm."""
        return any(key.kid == kid for key in self._keys)


def parse_key_set(body: bytes, algorithms: Iterable[str] = ALGORITHMS) -> KeySet:
    """The keys in a key set that may verify one of these algorithms. `ValueError` when it is no key set, with the reason."""
    try:
        raw_keys = msgspec.json.decode(body, type=_Jwks).keys
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise ValueError('is no JSON object with a list "keys"') from None
    if len(raw_keys) > KEYS_MAX:
        raise ValueError(f"has {len(raw_keys)} keys, more than {KEYS_MAX}")
    found: list[VerificationKey] = []
    ignored: list[str] = []
    wanted = frozenset(algorithms)
    for number, raw in enumerate(raw_keys, 1):
        try:
            key = _verification_key(raw, wanted)
            if any(other.kid == key.kid and other.algorithms & key.algorithms for other in found):
                raise ValueError("has the id of another one")
            found.append(key)
        except ValueError as error:
            ignored.append(f"key {number} {error}")
    return KeySet(found, ignored)


def _verification_key(raw: msgspec.Raw, wanted: frozenset[str]) -> VerificationKey:
    try:
        jwk = msgspec.json.decode(raw, type=_Jwk)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise ValueError("is no JSON Web Key") from None
    algorithms = _BY_TYPE.get((jwk.kty, jwk.crv if jwk.kty != "RSA" else None), frozenset())
    if jwk.alg is not None:
        algorithms &= {jwk.alg}
    algorithms &= wanted
    if not algorithms:
        raise ValueError(f"is for none of {', '.join(sorted(wanted))}")
    if jwk.use not in (None, "sig") or (jwk.key_ops is not None and "verify" not in jwk.key_ops):
        raise ValueError("is not for signatures")
    if jwk.d is not None:
        raise ValueError("is published with its private half, so anybody may sign by it")
    public = {name: value for name in ("kty", "crv", "n", "e", "x", "y") if (value := getattr(jwk, name)) is not None}
    try:
        public_key = jwt.PyJWK(public, algorithm=min(algorithms)).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
        raise ValueError("is no key: its numbers are missing or wrong") from None
    if isinstance(public_key, RSAPublicKey) and not RSA_BITS_MIN <= public_key.key_size <= RSA_BITS_MAX:
        raise ValueError(f"has {public_key.key_size} bits, not {RSA_BITS_MIN} to {RSA_BITS_MAX}")
    return VerificationKey(jwk.kid, algorithms, public_key)


class Jwks:
    """The key set of one provider, read again and again from `start` to `close`. `read` is for its task, and for tests that have none."""

    def __init__(
        self, source: str, algorithms: Iterable[str], clock: Clock, *, certificate_authorities: str | None = None
    ) -> None:
        self._source = source
        self._is_url = "://" in source
        self._tls = tls_context(certificate_authorities) if source.startswith("https://") else None
        self._algorithms = tuple(algorithms)
        self._clock = clock
        self._body: bytes | None = None
        self._keys: KeySet | None = None
        self._fresh_ms = (
            clock.monotonic_ms()
        )  # as of when the keys are known; before the first reading, since the start
        self._began_ms: float | None = None  # when the last reading began
        self._began_at_ms = 0  # the same, since 1970
        self._is_reading = False
        self._failure: str | None = None  # of the last reading
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def age_ms(self) -> float:
        """The time since the provider's keys were read; where they never were, since the start."""
        return self._clock.monotonic_ms() - self._fresh_ms

    def keys(self) -> KeySet:
        """The keys that count now. `AuthenticationUnavailableError` where none are known, or none of late."""
        if self._keys is None:
            raise cannot_check("have not been read yet", AGAIN_MS)
        if self.age_ms > STALE_MS_MAX:
            raise cannot_check("could not be read for a day", AGAIN_MS)
        if not self._keys:
            raise cannot_check("are none that may be used", REFRESH_MS)
        return self._keys

    def wait_for_key_ms(self, issued_ms: int | None) -> int | None:
        """An unknown key signed a token that was issued at this time: after how long it may be known; None when it is unknown for good.

        It has the keys read again, but not so soon after the last reading: so any number of such tokens causes one request. A key that is in
        use since then may be known after the next one.
        """
        since_ms = float("inf") if self._began_ms is None else self._clock.monotonic_ms() - self._began_ms
        if self._failure is not None:
            return AGAIN_MS
        if since_ms >= ASK_MS_MIN:
            self._asked.set()
        if self._asked.is_set() or self._is_reading:
            return ANSWERED_MS
        if issued_ms is not None and issued_ms >= self._began_at_ms:
            return int(ASK_MS_MIN - since_ms)
        return None

    def start(self) -> None:
        """Read the keys from now on, on a task of its own; a provider that is away holds nobody up."""
        self._task = asyncio.create_task(self._run(), name="basalt-jwks")

    async def close(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def read(self) -> None:
        """Read the keys once. What was known stays where that fails."""
        began_ms, self._began_at_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        self._began_ms, self._is_reading = began_ms, True
        try:
            body = await (self._fetch() if self._is_url else asyncio.to_thread(_read_file, Path(self._source)))
            keys = self._keys
            if keys is None or body != self._body:
                keys = await asyncio.to_thread(parse_key_set, body, self._algorithms)
        except TimeoutError:
            self._failed(f"did not come within {READ_MS_MAX // 1_000} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._failed(_reason(error))
        else:
            if keys is not self._keys or self._failure is not None:
                self._tell(keys)
            self._keys, self._body, self._failure, self._fresh_ms = keys, body, None, began_ms
        finally:
            self._is_reading = False

    async def _run(self) -> None:
        while True:
            try:
                await self.read()
            except Exception as error:  # without it no key would ever be read again
                log.exception("the keys of the identity provider could not be read")
                self._failure = str(error)
            self._asked.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), self._pause_ms() / 1_000)

    def _pause_ms(self) -> int:
        if self._failure is not None:
            return AGAIN_MS
        return REFRESH_MS if self._is_url else LOOK_MS

    async def _fetch(self) -> bytes:
        # No redirects, cookies, proxies of the environment, nor compression, by which a small answer becomes a large one.
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls or True, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=READ_MS_MAX / 1_000),
            ) as session,
            session.get(
                self._source,
                allow_redirects=False,
                headers={"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"},
            ) as answer,
        ):
            if answer.status != 200:
                raise ValueError(f"was answered with {answer.status}, not 200; redirects are not followed")
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > SET_BYTES_MAX:
                    raise ValueError(f"is longer than {SET_BYTES_MAX} bytes")
            return bytes(body)

    def _failed(self, reason: str) -> None:
        if reason != self._failure:
            log.warning(
                "the keys of the identity provider could not be read: %s %s; %s",
                self._source, reason, "no JWT can be checked" if self._keys is None else "those that are known go on for a day",
            )  # fmt: skip
        self._failure = reason

    def _tell(self, keys: KeySet) -> None:
        log.info("%d keys of the identity provider count, of %s", len(keys), self._source)
        if not keys:
            log.error("no JWT can be checked: %s has no key that may be used", self._source)
        for reason in keys.ignored:
            log.warning("%s of %s is not used", reason, self._source)


def cannot_check(why: str, retry_after_ms: int) -> AuthenticationUnavailableError:
    """The error of a token that may be good, for all that is known."""
    error = AuthenticationUnavailableError(
        f"the token cannot be checked now: the keys of the identity provider {why}",
        hint="Send the call again later. The server's log says why.",
    )
    error.retry_after_ms = retry_after_ms
    return error


def tls_context(certificate_authorities: str | None) -> ssl.SSLContext:
    """TLS by which a provider is believed whom these authorities vouch for; None: those of this machine. `InvalidSettingError`."""
    try:
        return ssl.create_default_context(cafile=certificate_authorities)
    except OSError as error:
        raise InvalidSettingError(
            f"setting auth.jwt.ca: {certificate_authorities} cannot be used: {error.strerror or error}",
            field="auth.jwt.ca",
            hint="name a file with the certificates of authorities, in PEM",
        ) from None


def _read_file(path: Path) -> bytes:
    # A pipe would be waited for, and a device never ends.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is no file")
        body = file.read(SET_BYTES_MAX + 1)
    if len(body) > SET_BYTES_MAX:
        raise ValueError(f"is longer than {SET_BYTES_MAX} bytes")
    return body


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"failed: {text or type(error).__name__}" if not isinstance(error, ValueError) else text
