"""`tls-server-end-point` (RFC 5929) of certificates of each kind, against what the library for certificates says of them."""

from __future__ import annotations

import hashlib
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from basalt.channel_binding import end_point_hash
from basalt.http.asgi.server_context import ServerContext
from tests.certificates import common_name


def signed(key: Any, function: Any, title: str = "server", rsa_padding: Any = None) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(common_name(title)).issuer_name(common_name(title))
    builder = builder.public_key(key.public_key()).serial_number(7).not_valid_before(now)
    return builder.not_valid_after(now + timedelta(days=1)).sign(key, function, rsa_padding=rsa_padding)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, 2_048)


@pytest.mark.parametrize("function", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()])
@pytest.mark.parametrize("kind", ["ec", "rsa", "pss"])
def test_the_hash_is_that_of_the_signature(kind: str, function: hashes.HashAlgorithm, rsa_key: rsa.RSAPrivateKey):
    key = ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else rsa_key
    pss = padding.PSS(padding.MGF1(function), padding.PSS.DIGEST_LENGTH) if kind == "pss" else None
    certificate = signed(key, function, rsa_padding=pss)
    assert end_point_hash(der(certificate)) == certificate.fingerprint(function)


def test_a_signature_without_a_hash_has_none():
    assert end_point_hash(der(signed(ed25519.Ed25519PrivateKey.generate(), None))) is None


def test_a_certificate_of_any_length_is_taken_apart():
    for length in (1, 60):
        certificate = signed(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256(), "x" * length)
        assert end_point_hash(der(certificate)) == hashlib.sha256(der(certificate)).digest()


def test_a_context_tells_the_hash_of_the_certificate_that_it_shows():
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.certificate_der = der(signed(ec.generate_private_key(ec.SECP256R1()), hashes.SHA384()))
    assert context.end_point_hash == hashlib.sha384(context.certificate_der).digest()
    assert not context.retired
