"""The context of TLS handshakes: ssl's own, with what a connection must know of the certificate that it was made with.

A context is never changed once it is in use. When the files have changed, new connections are made with a new one, and the old one is
`retired`: who was let in by it must show a certificate anew. `end_point_hash` is what ties a Kerberos ticket to the connection
that it is sent over (`tls-server-end-point`, RFC 5929).
"""

from __future__ import annotations

import hashlib
import ssl

# By what the signature of a certificate is made, as DER writes it. MD5 and SHA-1 are too weak: RFC 5929 has SHA-256 for them.
_SHA256, _SHA384, _SHA512 = "sha256", "sha384", "sha512"
_HASHES = {
    "2a864886f70d010104": _SHA256,  # MD5 with RSA
    "2a864886f70d010105": _SHA256,  # SHA-1 with RSA
    "2a864886f70d01010b": _SHA256,
    "2a864886f70d01010c": _SHA384,
    "2a864886f70d01010d": _SHA512,
    "2a8648ce3d0401": _SHA256,  # SHA-1 with ECDSA
    "2a8648ce3d040302": _SHA256,
    "2a8648ce3d040303": _SHA384,
    "2a8648ce3d040304": _SHA512,
}
_RSA_PSS = "2a864886f70d01010a"  # names its hash in its parameters, and has SHA-1 where it names none
_HASHES_OF_PSS = {"608648016503040201": _SHA256, "608648016503040202": _SHA384, "608648016503040203": _SHA512}
_OBJECT_IDENTIFIER = 0x06


class ServerContext(ssl.SSLContext):
    """A context, and the certificate that it shows."""

    certificate_der: bytes = b""
    not_after_ms: int = 0  # of the certificate, since 1970
    retired: bool = False  # another context has taken its place

    @property
    def end_point_hash(self) -> bytes | None:
        """The hash of the certificate by RFC 5929; None where its signature has none (Ed25519), for which nothing is defined."""
        return end_point_hash(self.certificate_der)


def end_point_hash(certificate_der: bytes) -> bytes | None:
    """`tls-server-end-point` of a certificate: its hash, by the function that its own signature is made with."""
    _, certificate, _ = _element(certificate_der)
    _, _, behind_body = _element(certificate)
    _, algorithm, _ = _element(behind_body)
    tag, identifier, parameters = _element(algorithm)
    if tag != _OBJECT_IDENTIFIER:
        return None
    name = _HASHES.get(identifier.hex())
    if identifier.hex() == _RSA_PSS:
        name = next((hash_name for oid, hash_name in _HASHES_OF_PSS.items() if _names(parameters, oid)), _SHA256)
    return None if name is None else hashlib.new(name, certificate_der).digest()


def _names(parameters: bytes, oid: str) -> bool:
    """Tell whether parameters of RSA-PSS name this hash: they come first, then those of the mask, which have the same one."""
    written = bytes.fromhex(oid)
    return bytes((_OBJECT_IDENTIFIER, len(written))) + written in parameters


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """The tag and the content of the first element, and what stands behind it. The bytes are those of a certificate that OpenSSL reads."""
    length, start = der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    return der[0], der[start : start + length], der[start + length :]
