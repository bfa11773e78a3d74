"""The binding of a credential to a TLS connection: `tls-server-end-point` of RFC 5929, a hash of the server's certificate.

Who makes a token for one server, and who takes it, each compute it of the certificate that they see: a token that somebody in between passes
on is bound to another one. Both sides of this package need it, and neither a library for it.
"""

from __future__ import annotations

import hashlib

_PREFIX = b"tls-server-end-point:"

# The hash is that of the certificate's signature, but SHA-256 where that is MD5 or SHA-1. By the encoded name of the algorithm:
_RSA, _ECDSA, _SHA2 = (
    bytes.fromhex("2a864886f70d0101"),
    bytes.fromhex("2a8648ce3d04"),
    bytes.fromhex("6086480165030402"),
)
_HASHES = {
    _RSA + b"\x04": "sha256",
    _RSA + b"\x05": "sha256",
    _RSA + b"\x0b": "sha256",
    _RSA + b"\x0c": "sha384",
    _RSA + b"\x0d": "sha512",
    _ECDSA + b"\x01": "sha256",
    _ECDSA + b"\x03\x02": "sha256",
    _ECDSA + b"\x03\x03": "sha384",
    _ECDSA + b"\x03\x04": "sha512",
}
_PSS = _RSA + b"\x0a"  # RSA-PSS names its hash behind its own name; without, it is SHA-1
_PSS_HASHES = {_SHA2 + b"\x01": "sha256", _SHA2 + b"\x02": "sha384", _SHA2 + b"\x03": "sha512"}


def binding(end_point: bytes) -> bytes:
    """The binding by this hash, as a mechanism of GSSAPI takes it."""
    return _PREFIX + end_point


def end_point_hash(certificate: bytes) -> bytes | None:
    """The hash of a server's certificate (DER); None for a signature that RFC 5929 has none for (Ed25519)."""
    whole, _ = _content(certificate)
    _, algorithm_and_signature = _content(whole)  # past what is signed
    algorithm, _ = _content(algorithm_and_signature)
    name, parameters = _content(algorithm)
    used = _HASHES.get(name)
    if name == _PSS:
        # The first name in them is that of the hash: one for the mask may follow.
        found = [(parameters.find(each), digest) for each, digest in _PSS_HASHES.items() if each in parameters]
        used = min(found)[1] if found else "sha256"
    return None if used is None else hashlib.new(used, certificate).digest()


def _content(encoded: bytes) -> tuple[bytes, bytes]:
    """The content of the first element, and what follows it."""
    length, start = encoded[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(encoded[2:start], "big")
    return encoded[start : start + length], encoded[start + length :]
