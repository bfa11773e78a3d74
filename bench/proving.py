"""Measures what it takes to find out whose a JWT is: the first time, against the library alone, and as one that is known, against its hash."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from basalt.access.proofs.jwt import Jwts
from basalt.settings import JwtSettings
from basalt_engine.clock import SystemClock
from bench.figures import Figure

ROUNDS = 7
FIRST_CHECKS = 300
KNOWN_CHECKS = 3_000
TOKEN_BYTES = 900  # of a token before its signature, as one with a dozen groups is
KEYS: dict[str, tuple[Callable[[], Any], Any]] = {
    "RS256": (lambda: rsa.generate_private_key(65_537, 2_048), RSAAlgorithm),
    "ES256": (lambda: ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate, OKPAlgorithm),
}


def jwts(folder: Path, quick: bool) -> Iterator[Figure]:
    """Each algorithm's token, checked whole and found again."""
    divisor = 10 if quick else 1
    for algorithm, (make_key, writer) in KEYS.items():
        key = make_key()
        public_key = key.public_key()
        tokens = _reader(folder / f"{algorithm}.json", {**writer.to_jwk(public_key, as_dict=True), "kid": "a"})
        now_ms = SystemClock().now_ms()
        token = _signed(key, algorithm, now_ms // 1_000)

        def first(tokens: Jwts = tokens, token: str = token, now_ms: int = now_ms) -> None:
            tokens.forget()
            tokens.prove(token, now_ms)

        def bare(token: str = token, key: Any = public_key, algorithm: str = algorithm) -> None:
            jwt.decode(token, key, [algorithm], audience="basalt", issuer="https://idp.example/realms/data")

        def known(tokens: Jwts = tokens, token: str = token, now_ms: int = now_ms) -> None:
            tokens.prove(token, now_ms)

        def hashed(token: str = token) -> None:
            hashlib.sha256(token.encode()).digest()

        for name, judge, yardstick, than, target, calls in (
            ("checked", first, bare, "us for jwt.decode", 1.2, FIRST_CHECKS),
            ("known", known, hashed, "us for its hash", 5.0, KNOWN_CHECKS),
        ):
            value, least = _least_us(judge, calls // divisor), _least_us(yardstick, calls // divisor)
            yield Figure(f"jwt {algorithm} {name}", value, "us", than, least, target, at_most=True)


def _reader(file: Path, jwk: dict[str, object]) -> Jwts:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"keys": [jwk]}))
    settings = JwtSettings(issuer="https://idp.example/realms/data", audience="basalt", jwks=str(file))
    tokens = Jwts(settings, SystemClock())
    asyncio.run(tokens.jwks.read())
    return tokens


def _signed(key: Any, algorithm: str, now_s: int) -> str:
    claims = {
        "iss": "https://idp.example/realms/data", "aud": "basalt", "sub": "5e7c1a52-8d5e-4f0e-a4a5-1f1a9c0e7d11", "iat": now_s,
        "exp": now_s + 3_600, "groups": [],
    }  # fmt: skip
    padding = TOKEN_BYTES * 3 // 4 - len(json.dumps(claims))
    claims["groups"] = [f"group-{number:03}" for number in range(padding // 12)]
    return jwt.encode(claims, key, algorithm, headers={"kid": "a"})


def _least_us(call: Callable[[], None], calls: int) -> float:
    """The least of some rounds: what else the machine does is in none of it."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append(time.perf_counter() - start)
    return min(rounds) / calls * 1e6
