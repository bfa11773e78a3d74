"""Certificates for tests: authorities that are made in a moment, and what they issue and revoke, as files in PEM."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)


class Issued(NamedTuple):
    """A certificate with its key, each a file."""

    certificate: Path
    key: Path
    x509: x509.Certificate

    @property
    def der(self) -> bytes:
        return self.x509.public_bytes(serialization.Encoding.DER)


def name(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


def common_name(text: str) -> x509.Name:
    return name((NameOID.COMMON_NAME, text))


class Authority:
    """A CA, with its own certificate in `file`. `folder` gets what it issues. `above`: the CA that has issued its certificate."""

    def __init__(self, folder: Path, title: str = "ca", above: Authority | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = common_name(title)
        self.title = title
        signing_name, signing_key = (self._name, self._key) if above is None else (above._name, above._key)
        builder = _builder(self._name, self._key.public_key(), -1, 3_650).issuer_name(signing_name)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_others=True), critical=True)
        self.x509 = builder.sign(signing_key, hashes.SHA256())
        self.file = folder / f"{title}.pem"
        self.file.write_bytes(self.pem)

    @property
    def pem(self) -> bytes:
        return self.x509.public_bytes(serialization.Encoding.PEM)

    def issue(
        self, file: str, subject: x509.Name | str, *, dns: tuple[str, ...] = (), uris: tuple[str, ...] = (), addresses: tuple[str, ...] = (),
        starts_days: float = -1, ends_days: float = 30, ends: datetime | None = None, signature: Any = None, for_clients: bool = False,
    ) -> Issued:  # fmt: skip
        """A certificate of this subject, or with this CN, and for these names; it counts from and until so many days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        whole = common_name(subject) if isinstance(subject, str) else subject
        builder = _builder(whole, key.public_key(), starts_days, ends_days, ends).issuer_name(self._name)
        names: list[x509.GeneralName] = [*map(x509.DNSName, dns), *map(x509.UniformResourceIdentifier, uris)]
        names += [x509.IPAddress(ip_address(address)) for address in addresses]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if for_clients else ExtendedKeyUsageOID.SERVER_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        issued = builder.sign(self._key, signature or hashes.SHA256())
        paths = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        paths[0].write_bytes(issued.public_bytes(serialization.Encoding.PEM))
        paths[1].touch(0o600)
        paths[1].write_bytes(_pem_of(key))
        return Issued(*paths, issued)

    def server(self, file: str = "server", **given: Any) -> Issued:
        """One for a server on this machine."""
        return self.issue(file, "localhost", dns=("localhost",), addresses=("127.0.0.1",), **given)

    def client(self, subject: x509.Name | str = "etl", file: str = "client", **given: Any) -> Issued:
        """One for a client."""
        return self.issue(file, subject, for_clients=True, **given)

    def revoke(self, *revoked: Issued | Authority, file: str = "crl", ends_days: float = 30) -> Path:
        """The list of what is revoked, which counts for so many days."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name).last_update(now - 100 * DAY)
        builder = builder.next_update(now + ends_days * DAY)
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.x509.serial_number).revocation_date(now - DAY)
            builder = builder.add_revoked_certificate(entry.build())
        path = self._folder / f"{file}.pem"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def trusting(self, client: Issued | None = None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this CA, shows this certificate, and speaks this version alone."""
        context = ssl.create_default_context(cafile=self.file)
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context


def encrypted(issued: Issued, password: bytes = b"secret") -> None:
    """Store its key under a password."""
    key = serialization.load_pem_private_key(issued.key.read_bytes(), None)
    issued.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )
    )


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(
    subject: x509.Name, public_key: Any, starts_days: float, ends_days: float, ends: datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now + starts_days * DAY).not_valid_after(ends or now + ends_days * DAY)


def _key_usage(*, signs_others: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs_others, crl_sign=signs_others, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
