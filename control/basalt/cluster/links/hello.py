"""The hello of a link: both sides prove that they know the secret before anything else is read. Pure. Format: docs/formats/links.md.

A proof is HMAC-SHA-256 over all that was said, with a nonce of each side, so no earlier hello counts again; over who speaks, so no proof
can be sent back to its maker; and over the certificate that was shown, so no TLS can end between the two. The one who dials proves first: of the two, its address is the harder one to take, and whoever is proved nothing gets
nothing by which the secret could be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from basalt.cluster.links.frames import UNREADABLE, Frame, Kind, frame_bytes
from basalt.errors import ProtocolError, UnavailableError

VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
OTHER = "other"  # in the place of a reason that this version does not know
LEADER = "leader"  # the purpose of a link to the leader, as a member of what it leads

# Who is refused in the hello by who accepts; and, for TLS, before it and at both ends.
Why: TypeAlias = Literal[
    "version", "secret", "certificate", "installation", "another_server", "stale", "not_leader", "not_ready", "full",
    "plain", "handshake", "untrusted", "another_name", "expired",
]  # fmt: skip

_WORDS: dict[str, str] = {
    "version": "it speaks another version of the format of links",
    "secret": "the two do not have the same secret: is cluster.secret_file the same on both?",
    "installation": "it belongs to another installation",
    "another_server": "another server answers at that address",
    "stale": "a newer leader is known there",
    "not_leader": "it does not lead under that epoch",
    "not_ready": "it has not read yet which installation it belongs to",
    "full": "it has as many links as it takes",
    "certificate": "the two saw different certificates, so something between them ends TLS: let links go through it as they are",
    "plain": "one of the two speaks TLS on links, and the other does not: set tls.certificate on all servers, or on none",
    "handshake": "no TLS handshake came about; if one side does not take the other's certificate, the log of that side says so",
    "untrusted": "nobody whom this server trusts vouches for its certificate: set cluster.ca",
    "another_name": "its certificate is not for the host of its URL: leader.url, or a certificate with that name",
    "expired": "its certificate does not count at this time: it needs a new one, or a clock is wrong",
    OTHER: "for a reason that this version does not know",
}

T = TypeVar("T")


class RefusedError(UnavailableError):
    """No link came to be; `why` is the reason that the format names."""

    def __init__(self, why: str, who: str) -> None:
        super().__init__(f"{who}: {_WORDS.get(why, why)}", hint="it is tried again by itself")
        self.why = why


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first frame: who dials, whom it means, and by which epoch."""

    version: int
    installation: str
    instance: str
    to: str
    epoch: int
    purpose: str
    nonce: bytes
    certificate: bytes = b""  # fingerprint of the one that the other side has shown; empty without TLS


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last frame of a hello that succeeded: the proof of the one who was dialed."""

    proof: bytes


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """In the place of a welcome."""

    why: str
    message: str


class Acceptor(NamedTuple):
    """A server that takes links: its secret, and what it is at this moment. `epoch`: under which it leads, 0 when it does not."""

    secret: bytes
    installation: str
    instance: str
    epoch: int
    newest_epoch: int  # that it knows of, its own or another's
    is_full: bool = False
    certificate: bytes = b""  # fingerprint of the one that this connection was made with; empty without TLS


class Dial:
    """The side of a hello that dials. Send `opening()`, give each frame that comes to `step`, send what it returns; then `is_done`."""

    def __init__(self, secret: bytes, hello: Hello, where: str) -> None:
        self.is_done = False
        self.hello = hello
        self._secret = secret
        self._where = where
        self._said = b""
        self._asked = False

    def opening(self, certificate: bytes = b"") -> bytes:
        """The first bytes, once there is a connection. `certificate`: fingerprint of the one that the other side has shown, by TLS."""
        self.hello = msgspec.structs.replace(self.hello, certificate=certificate)
        self._said = _part(msgspec.msgpack.encode(self.hello))
        return frame_bytes(0, Kind.HELLO, self.hello)

    def step(self, frame: Frame) -> bytes:
        """The bytes to send next. `RefusedError` or `ProtocolError`: the connection is of no use."""
        if frame.kind == Kind.REFUSED:
            why = _read(frame, Refused).why  # of somebody who has proved nothing: it becomes the label of a series
            raise RefusedError(why if why in _WORDS else OTHER, f"the server at {self._where} refused a link")
        if frame.kind == Kind.CHALLENGE and not self._asked:
            self._asked = True
            if len(_read(frame, bytes)) != NONCE_BYTES:
                raise ProtocolError(f"the server at {self._where} sent no challenge of {NONCE_BYTES} bytes")
            self._said += _part(bytes(frame.body))
            return frame_bytes(0, Kind.PROOF, proof(self._secret, b"dials", self._said))
        if frame.kind == Kind.WELCOME and self._asked and not self.is_done:
            if not hmac.compare_digest(_read(frame, Welcome).proof, proof(self._secret, b"accepts", self._said)):
                raise RefusedError("secret", f"the server at {self._where} proved nothing, and gets no link")
            self.is_done = True
            return b""
        raise ProtocolError(f"the server at {self._where} sent a frame of kind {frame.kind} in its hello")


class Accept:
    """The side that was dialed. It says nothing about itself before the other one has proved that it knows the secret."""

    def __init__(self, nonce: bytes, where: str) -> None:
        self.is_done = False
        self.hello: Hello | None = None
        self._nonce = nonce
        self._where = where
        self._said = b""

    def step(self, frame: Frame, own: Acceptor) -> bytes:
        """The bytes to send next. `RefusedError`: send `refusal`, and close. `ProtocolError`: close."""
        if frame.kind == Kind.HELLO and self.hello is None:
            self.hello = _read(frame, Hello)
            if self.hello.version != VERSION:
                raise self._refused("version")
            if len(self.hello.nonce) != NONCE_BYTES:
                raise ProtocolError(f"the caller at {self._where} sent no nonce of {NONCE_BYTES} bytes")
            self._said = _part(bytes(frame.body)) + _part(msgspec.msgpack.encode(self._nonce))
            return frame_bytes(0, Kind.CHALLENGE, self._nonce)
        if frame.kind == Kind.PROOF and self.hello is not None and not self.is_done:
            if not hmac.compare_digest(_read(frame, bytes), proof(own.secret, b"dials", self._said)):
                raise self._refused("secret")
            if (why := _judged(self.hello, own)) is not None:
                raise self._refused(why)
            self.is_done = True
            return frame_bytes(0, Kind.WELCOME, Welcome(proof(own.secret, b"accepts", self._said)))
        raise ProtocolError(f"the caller at {self._where} sent a frame of kind {frame.kind} in its hello")

    def _refused(self, why: Why) -> RefusedError:
        return RefusedError(why, f"a link from {self._where} was refused")


def fingerprint(certificate_der: bytes) -> bytes:
    """The fingerprint of a certificate in a hello: SHA-256 of all of it."""
    return hashlib.sha256(certificate_der).digest()


def refusal(error: RefusedError) -> bytes:
    """The frame that tells the other side why."""
    return frame_bytes(0, Kind.REFUSED, Refused(error.why, _WORDS.get(error.why, error.why)))


def proof(secret: bytes, side: bytes, said: bytes) -> bytes:
    """The proof of one side over all that both have said."""
    return hmac.digest(secret, b"basalt-link-1 " + side + b"\0" + said, "sha256")


def _judged(hello: Hello, own: Acceptor) -> Why | None:
    """The reason for which somebody who knows the secret is refused all the same; None: there is none."""
    if not hmac.compare_digest(hello.certificate, own.certificate):
        return "certificate"
    if not own.installation:
        return "not_ready"
    if hello.installation != own.installation:
        return "installation"
    if hello.to != own.instance:
        return "another_server"
    if hello.epoch < own.newest_epoch:
        return "stale"
    if hello.purpose != LEADER or hello.epoch != own.epoch:
        return "not_leader"
    return "full" if own.is_full else None


def _part(body: bytes) -> bytes:
    """One part of what was said: with its length, so that no two conversations are the same bytes."""
    return len(body).to_bytes(4, "big") + body


def _read(frame: Frame, kind: type[T]) -> T:
    if frame.number:  # no proof covers it, so it must be what the format says
        raise ProtocolError(f"a frame of kind {frame.kind} in a hello has the number {frame.number}")
    try:
        return msgspec.msgpack.decode(frame.body, type=kind)
    except UNREADABLE as error:
        raise ProtocolError(f"a frame of kind {frame.kind} in a hello cannot be read: {error}") from error
