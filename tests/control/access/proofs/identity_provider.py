"""An identity provider for tests: it has keys, signs tokens, good ones and bad ones, and publishes its key set on a port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import functools
import ipaddress
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from basalt.settings import JwtSettings

ISSUER = "https://idp.example/realms/data"
AUDIENCE = "basalt"
MAKERS: dict[str, Callable[[], Any]] = {
    "RS256": lambda: rsa.generate_private_key(65_537, 2_048),
    "PS256": lambda: rsa.generate_private_key(65_537, 2_048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


def private_key(algorithm: str = "RS256", name: str = "a") -> Any:
    """A key for this algorithm; the same one whenever it is asked for by this name, for RSA keys are dear."""
    return _made(algorithm, name)


@functools.cache
def _made(algorithm: str, name: str) -> Any:
    return MAKERS[algorithm]()


def public_jwk(key: PrivateKeyTypes | None = None, kid: str | None = "a", **members: object) -> dict[str, object]:
    """The public half as it is published."""
    public = (key or private_key()).public_key()
    jwk = {**written(public), **({} if kid is None else {"kid": kid}), **members}
    return {name: value for name, value in jwk.items() if value is not None}


def written(public: Any) -> dict[str, Any]:
    if isinstance(public, rsa.RSAPublicKey):
        return RSAAlgorithm.to_jwk(public, as_dict=True)
    if isinstance(public, ec.EllipticCurvePublicKey):
        return ECAlgorithm.to_jwk(public, as_dict=True)
    return OKPAlgorithm.to_jwk(public, as_dict=True)


def key_set(*jwks: object) -> bytes:
    return json.dumps({"keys": jwks}).encode()


def claims(now_ms: int | None = None, **changed: object) -> dict[str, object]:
    """The claims of a good token that was issued now; None leaves one out."""
    now_s = (int(time.time() * 1_000) if now_ms is None else now_ms) // 1_000
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice@example.org", "iat": now_s, "exp": now_s + 300}
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def signed(
    of: dict[str, object],
    *,
    key: Any = None,
    algorithm: str = "RS256",
    kid: str | None = "a",
    header: dict[str, object] | None = None,
) -> str:
    """A token with these claims."""
    named = {} if kid is None else {"kid": kid}
    return jwt.encode(of, key or private_key(algorithm), algorithm, headers={**named, **(header or {})})


def segment(value: object) -> str:
    """A part of a token, of JSON or of bytes as they are."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed_bytes(header: object, payload: object) -> str:
    """A token signed by RS256 whatever its head and claims are, be they no JSON at all."""
    head = f"{segment(header)}.{segment(payload)}"
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(head.encode(), private_key())
    return f"{head}.{segment(signature)}"


def jwt_settings(jwks: str, **changed: Any) -> JwtSettings:
    return JwtSettings(**{"issuer": ISSUER, "audience": AUDIENCE, "jwks": jwks, **changed})


Answer = Callable[[web.Request], Any]


class KeyServer:
    """What is published, how often it was asked for, and how it is answered: `answer` may be changed."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.asked = 0
        self.answer: Answer = self._published
        self.url = ""
        self._came = asyncio.Condition()

    async def was_asked(self, times: int) -> None:
        """Wait until it was asked so often."""
        async with self._came:
            await self._came.wait_for(lambda: self.asked >= times)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        async with self._came:
            self.asked += 1
            self._came.notify_all()
        return await self.answer(request)

    async def _published(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.body, content_type="application/json")


@asynccontextmanager
async def serving(body: bytes, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[KeyServer]:
    """A server of this key set."""
    server = KeyServer(body)
    app = web.Application()
    app.router.add_get("/keys", server.handle)
    app.router.add_get("/elsewhere", server._published)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    host, bound = runner.addresses[0][:2]
    server.url = f"{'http' if tls is None else 'https'}://{host}:{bound}/keys"
    try:
        yield server
    finally:
        await runner.cleanup()


def certificates(folder: Path, address: str) -> tuple[Path, ssl.SSLContext]:
    """A file with a certificate authority, and a server's TLS with a certificate of it for this address."""
    authority_key, server_key = private_key("ES256", "authority"), private_key("ES256", "server")
    authority_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Test authority")])
    today = dt.datetime.now(dt.UTC)
    empty = (
        x509.CertificateBuilder()
        .issuer_name(authority_name)
        .not_valid_before(today - dt.timedelta(days=1))
        .not_valid_after(today + dt.timedelta(days=1))
    )
    authority = (
        empty.subject_name(authority_name)
        .public_key(authority_key.public_key())
        .serial_number(1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        empty.subject_name(x509.Name([]))
        .public_key(server_key.public_key())
        .serial_number(2)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    authority_file, server_file = folder / "authority.pem", folder / "server.pem"
    authority_file.write_bytes(authority.public_bytes(pem))
    secret = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    server_file.write_bytes(secret + certificate.public_bytes(pem))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server_file)
    return authority_file, tls
