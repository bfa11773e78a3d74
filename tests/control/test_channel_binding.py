"""The binding to a server's certificate, of certificates that OpenSSL makes, against hashes that it computes."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from basalt.channel_binding import binding, end_point_hash

# Kind of key, options of the signature, and the hash that RFC 5929 wants.
SIGNED = {
    "rsa sha256": (["rsa:2048"], ["-sha256"], "sha256"),
    "rsa sha384": (["rsa:2048"], ["-sha384"], "sha384"),
    "rsa sha512": (["rsa:2048"], ["-sha512"], "sha512"),
    "rsa sha1": (["rsa:2048"], ["-sha1"], "sha256"),
    "pss sha384": (["rsa:2048"], ["-sha384", "-sigopt", "rsa_padding_mode:pss"], "sha384"),
    "pss sha256, another one for the mask": (
        ["rsa:2048"], ["-sha256", "-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_mgf1_md:sha512"], "sha256",
    ),
    "ecdsa sha256": (["ec", "-pkeyopt", "ec_paramgen_curve:P-256"], ["-sha256"], "sha256"),
    "ecdsa sha384": (["ec", "-pkeyopt", "ec_paramgen_curve:P-384"], ["-sha384"], "sha384"),
    "ecdsa sha512": (["ec", "-pkeyopt", "ec_paramgen_curve:P-384"], ["-sha512"], "sha512"),
    "ed25519": (["ed25519"], [], None),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNED)
def test_it_is_the_hash_of_the_certificate_by_the_algorithm_of_its_signature(name: str, tmp_path: Path):
    key, options, digest = SIGNED[name]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        *key,
        "-nodes",
        "-subj",
        "/CN=here",
        "-keyout",
        "key",
        "-out",
        "certificate",
        *options,
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    certificate = ssl.PEM_cert_to_DER_cert((tmp_path / "certificate").read_text())
    (tmp_path / "der").write_bytes(certificate)
    if digest is None:
        assert end_point_hash(certificate) is None
        return
    hashed = subprocess.run(
        ["openssl", "dgst", f"-{digest}", "-binary", "der"], cwd=tmp_path, check=True, capture_output=True
    )
    assert end_point_hash(certificate) == hashed.stdout
    assert binding(hashed.stdout) == b"tls-server-end-point:" + hashed.stdout
