"""The keys of an identity provider: which of them count, and how long they do when it is away, slow, or answers something else."""

from __future__ import annotations

import asyncio
import json
import logging
import os

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from basalt.access.proofs import jwks
from basalt.access.proofs.jwks import (
    ALGORITHMS,
    ASK_MS_MIN,
    KEYS_MAX,
    RSA_BITS_MAX,
    SET_BYTES_MAX,
    STALE_MS_MAX,
    Jwks,
    parse_key_set,
)
from basalt.errors import AuthenticationUnavailableError, InvalidSettingError
from basalt.settings import JwtSettings
from basalt.settings.tree import keys as setting_keys
from basalt_engine.clock import ManualClock
from tests.control.access.proofs.identity_provider import certificates, key_set, private_key, public_jwk, serving
from tests.ports import reserved_port

PUBLISHED = key_set(public_jwk())


def unreadable(keys: Jwks) -> str:
    with pytest.raises(AuthenticationUnavailableError) as raised:
        keys.keys()
    assert raised.value.retry_after_ms > 0
    return raised.value.message


def test_what_the_settings_may_name_are_the_algorithms_that_keys_have():
    assert setting_keys()["auth.jwt.algorithms"].default == JwtSettings().algorithms
    assert set(JwtSettings().algorithms) == ALGORITHMS


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_key_of_each_kind_verifies_by_its_algorithms(algorithm: str):
    found = parse_key_set(key_set(public_jwk(private_key(algorithm))))
    for each in ALGORITHMS:
        is_its = each == algorithm or {each, algorithm} == {"RS256", "PS256"}
        assert (found.find("a", each) is not None) == is_its
    assert parse_key_set(key_set(public_jwk(private_key(algorithm), alg=algorithm))).find("a", algorithm)


def test_a_key_that_names_its_algorithm_verifies_by_no_other():
    found = parse_key_set(key_set(public_jwk(alg="PS256")))
    assert found.find("a", "PS256")
    assert found.find("a", "RS256") is None


def test_an_algorithm_that_the_settings_leave_out_has_no_key():
    found = parse_key_set(key_set(public_jwk(), public_jwk(private_key("ES256"), "b")), ["ES256"])
    assert (len(found), found.find("a", "RS256")) == (1, None)
    assert found.ignored == ("key 1 is for none of ES256",)


SMALL = rsa.generate_private_key(65_537, 1_024)
HUGE = rsa.RSAPublicNumbers(65_537, (1 << RSA_BITS_MAX) + 1).public_key()
BAD_KEYS = {
    "a secret, by which a server could sign": {"kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "HS256"},
    "a secret that says it were RS256": {"kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "RS256"},
    "an RSA key that is too small": public_jwk(SMALL),
    "an RSA key that takes long to check by": {**RSAAlgorithm.to_jwk(HUGE, as_dict=True), "kid": "a"},
    "an RSA key for HS256": public_jwk(alg="HS256"),
    "an RSA key for none": public_jwk(alg="none"),
    "a key for encryption": public_jwk(use="enc"),
    "a key that may only sign": public_jwk(key_ops=["sign"]),
    "another curve": public_jwk(ec.generate_private_key(ec.SECP384R1())),
    "a curve of coins": public_jwk(ec.generate_private_key(ec.SECP256K1())),
    "Ed448": OKPAlgorithm.to_jwk(ed448.Ed448PrivateKey.generate().public_key(), as_dict=True),
    "a private key": {**RSAAlgorithm.to_jwk(private_key(), as_dict=True), "kid": "a", "key_ops": None},
    "a point that is not on the curve": {**public_jwk(private_key("ES256")), "x": "A" * 43},
    "numbers that are none": {**public_jwk(), "n": "!!!"},
    "no numbers": {"kty": "RSA", "kid": "a"},
    "an exponent of one": {**public_jwk(), "e": "AQ"},
    "no text where one belongs": {**public_jwk(), "n": 17},
    "an id that is no text": {**public_jwk(), "kid": 17},
    "no object": ["RSA"],
    "null": None,
}


@pytest.mark.parametrize("jwk", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_key_that_may_not_count_is_passed_over_with_a_reason_and_the_others_count(jwk: object):
    good = public_jwk(private_key("ES256", "good"), "good")
    found = parse_key_set(key_set(jwk, good))
    assert (len(found), len(found.ignored)) == (1, 1)
    assert found.find("good", "ES256") is not None
    assert all(found.find("a", each) is None for each in ALGORITHMS)


def test_of_two_keys_with_one_id_the_second_does_not_count():
    other = public_jwk(private_key("RS256", "other"))
    found = parse_key_set(key_set(public_jwk(), other))
    key = found.find("a", "RS256")
    assert key is not None
    assert key.public_key.public_numbers() == private_key().public_key().public_numbers()
    assert found.ignored == ("key 2 has the id of another one",)


def test_keys_of_different_kinds_may_share_an_id():
    found = parse_key_set(key_set(public_jwk(), public_jwk(private_key("ES256"))))
    assert found.find("a", "RS256") is not found.find("a", "ES256") is not None


def test_without_an_id_a_token_is_meant_for_the_only_key_that_there_is_for_its_algorithm():
    one_each = parse_key_set(key_set(public_jwk(), public_jwk(private_key("ES256"), "b")))
    assert one_each.find(None, "RS256") is one_each.find("a", "RS256")
    two = parse_key_set(key_set(public_jwk(), public_jwk(private_key("RS256", "b"), "b")))
    assert two.find(None, "RS256") is None
    nameless = parse_key_set(key_set(public_jwk(kid=None)))
    assert nameless.find(None, "RS256") is not None
    assert nameless.find("a", "RS256") is None


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"null", b"<html>", b'{"keys": {}}', b'{"keys": 3}', b"\xff\xfe", b'{"keys": [' * 50_000, b"[" * 500_000,
        key_set(*[public_jwk()] * (KEYS_MAX + 1)),
    ],
)  # fmt: skip
def test_what_is_no_key_set_is_refused_whole(body: bytes):
    with pytest.raises(ValueError):
        parse_key_set(body)


@settings(max_examples=200)
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kty", "kid", "n", "e", "x", "y", "crv", "alg", "use", "d"]), inner, max_size=5),
    ).map(lambda keys: json.dumps({"keys": [keys, {**public_jwk(), **(keys if isinstance(keys, dict) else {})}]}).encode())
)  # fmt: skip
def test_any_bytes_are_a_key_set_or_refused(body: bytes):
    try:
        found = parse_key_set(body)
    except ValueError:
        return
    assert len(found) + len(found.ignored) <= 2


def test_no_key_counts_before_the_first_reading_and_each_thereafter():
    async def story() -> None:
        async with serving(PUBLISHED) as server:
            keys = Jwks(server.url, ALGORITHMS, ManualClock())
            assert "have not been read yet" in unreadable(keys)
            await keys.read()
            assert keys.keys().find("a", "RS256") is not None
            assert server.asked == 1

    asyncio.run(story())


async def _moved(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def _wrong(request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, body=PUBLISHED)


async def _page(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>we are being maintained</html>", content_type="text/html")


async def _huge(request: web.Request) -> web.StreamResponse:
    return web.Response(body=PUBLISHED + b" " * SET_BYTES_MAX)


async def _endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    with pytest.raises(ConnectionError):
        while True:
            await answer.write(b" " * 65_536)
    return answer


async def _compressed(request: web.Request) -> web.StreamResponse:
    answer = web.Response(body=PUBLISHED + b" " * SET_BYTES_MAX * 100)
    answer.enable_compression(web.ContentCoding.gzip)
    return answer


async def _cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-length": "10000"})
    await answer.prepare(request)
    await answer.write(PUBLISHED)
    assert request.transport is not None
    request.transport.abort()
    return answer


async def _noise(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 200\x00\r\nFAKE LINE OF A LOG\r\n" + b"x" * 5_000 + b"\r\n\r\n")
    request.transport.close()
    return web.Response()


BAD_ANSWERS = {
    "no HTTP": (_noise, "failed: "),
    "redirected": (_moved, "was answered with 302"),
    "broken": (_wrong, "was answered with 500"),
    "a page": (_page, "is no JSON object"),
    "huge": (_huge, "is longer than"),
    "endless": (_endless, "is longer than"),
    "compressed": (_compressed, "is no JSON object"),
    "cut": (_cut, "failed"),
}


@pytest.mark.parametrize(("answer", "reason"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_answer_that_is_no_key_set_changes_nothing_of_what_is_known(answer, reason: str, caplog):
    async def story() -> None:
        async with serving(PUBLISHED) as server:
            clock = ManualClock()
            keys, never = Jwks(server.url, ALGORITHMS, clock), Jwks(server.url, ALGORITHMS, clock)
            await keys.read()
            known = keys.keys()
            server.answer = answer
            clock.advance(1_000)
            await keys.read()
            await never.read()
            assert keys.keys() is known
            assert keys.age_ms == 1_000
            unreadable(never)

    asyncio.run(asyncio.wait_for(story(), 30))
    assert reason in caplog.text
    for record in caplog.records:
        assert len(record.message.splitlines()) == 1
        assert len(record.message) < 600


def test_a_provider_that_does_not_answer_is_not_waited_for_long(monkeypatch, caplog):
    monkeypatch.setattr(jwks, "READ_MS_MAX", 50)

    async def story() -> None:
        async with serving(PUBLISHED) as server:
            never = asyncio.Event()

            async def drips(request: web.Request) -> web.StreamResponse:
                answer = web.StreamResponse()
                await answer.prepare(request)
                await answer.write(b'{"keys":')
                await never.wait()
                return answer

            server.answer = drips
            keys = Jwks(server.url, ALGORITHMS, ManualClock())
            try:
                await asyncio.wait_for(keys.read(), 30)
            finally:
                never.set()
            unreadable(keys)

    asyncio.run(story())
    assert "did not come within" in caplog.text


def test_a_provider_that_is_away_is_done_without_for_a_day_and_no_longer():
    async def story() -> None:
        clock = ManualClock()
        async with serving(PUBLISHED, port) as server:
            keys = Jwks(server.url, ALGORITHMS, clock)
            await keys.read()
        clock.advance(STALE_MS_MAX)
        await keys.read()
        assert len(keys.keys()) == 1
        clock.advance(1)
        assert "could not be read for a day" in unreadable(keys)
        async with serving(PUBLISHED, port):
            await keys.read()
            assert len(keys.keys()) == 1

    with reserved_port() as port:  # its own, also while it is away
        asyncio.run(story())


def test_keys_that_a_provider_takes_back_count_no_more_even_when_there_is_no_other(caplog):
    async def story() -> None:
        async with serving(PUBLISHED) as server:
            keys = Jwks(server.url, ALGORITHMS, ManualClock())
            await keys.read()
            server.body = key_set()
            await keys.read()
            assert "none that may be used" in unreadable(keys)

    asyncio.run(story())
    assert "has no key that may be used" in caplog.text


def test_the_same_bytes_are_the_same_keys():
    async def story() -> None:
        async with serving(PUBLISHED) as server:
            keys = Jwks(server.url, ALGORITHMS, ManualClock())
            await keys.read()
            known = keys.keys()
            await keys.read()
            assert keys.keys() is known
            server.body = key_set(public_jwk(private_key("RS256", "b"), "b"))
            await keys.read()
            assert keys.keys().find("a", "RS256") is None

    asyncio.run(story())


def test_a_failure_is_told_once_and_so_is_its_end(caplog):
    caplog.set_level(logging.INFO, "basalt.jwks")

    async def story() -> None:
        async with serving(PUBLISHED) as server:
            keys = Jwks(server.url, ALGORITHMS, ManualClock())
            server.answer = _wrong
            for _ in range(3):
                await keys.read()
            server.answer = server._published
            for _ in range(3):
                await keys.read()

    asyncio.run(story())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_any_number_of_unknown_keys_causes_one_request():
    async def story() -> None:
        clock = ManualClock()
        async with serving(PUBLISHED) as server:
            keys = Jwks(server.url, ALGORITHMS, clock)
            keys.start()
            await server.was_asked(1)
            await known(keys)
            assert keys.wait_for_key_ms(None) is None
            clock.advance(ASK_MS_MIN - 1)
            assert keys.wait_for_key_ms(None) is None
            clock.advance(1)
            assert all(keys.wait_for_key_ms(None) for _ in range(1_000))
            await server.was_asked(2)
            assert all(keys.wait_for_key_ms(None) for _ in range(1_000))
            await read_again(keys)
            assert not any(keys.wait_for_key_ms(None) for _ in range(1_000))
            assert server.asked == 2
            clock.advance(ASK_MS_MIN)
            keys.wait_for_key_ms(None)
            await server.was_asked(3)
            await keys.close()

    asyncio.run(asyncio.wait_for(story(), 30))


async def known(keys: Jwks) -> None:
    while keys._keys is None:
        await asyncio.sleep(0)


async def read_again(keys: Jwks) -> None:
    while keys._asked.is_set() or keys._is_reading:
        await asyncio.sleep(0)


def test_what_was_issued_since_the_last_reading_may_be_known_after_the_next_one():
    async def story() -> None:
        clock = ManualClock()
        async with serving(PUBLISHED) as server:
            keys = Jwks(server.url, ALGORITHMS, clock)
            await keys.read()
            began_ms = clock.now_ms()
            clock.advance(10_000)
            assert keys.wait_for_key_ms(began_ms - 1) is None
            assert keys.wait_for_key_ms(began_ms) == ASK_MS_MIN - 10_000

    asyncio.run(story())


def test_while_the_provider_is_away_nobody_can_tell_whether_a_key_is_its():
    async def story() -> None:
        clock = ManualClock()
        async with serving(PUBLISHED) as server:
            keys = Jwks(server.url, ALGORITHMS, clock)
            await keys.read()
        await keys.read()
        assert keys.wait_for_key_ms(None) is not None
        clock.advance(ASK_MS_MIN)
        assert keys.wait_for_key_ms(None) is not None
        assert not keys._asked.is_set()  # it is tried again soon by itself

    asyncio.run(story())


def test_a_start_holds_nobody_up_and_an_end_waits_for_nothing():
    async def story() -> None:
        async with serving(PUBLISHED) as server:
            never = asyncio.Event()

            async def silent(request: web.Request) -> web.StreamResponse:
                await never.wait()
                return web.Response()

            server.answer = silent
            keys = Jwks(server.url, ALGORITHMS, ManualClock())
            keys.start()
            await server.was_asked(1)
            unreadable(keys)
            await keys.close()
            never.set()
        await Jwks(server.url, ALGORITHMS, ManualClock()).close()  # one that never began

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_mistake_of_ours_does_not_end_the_reading(monkeypatch, caplog):
    async def story() -> None:
        async with serving(PUBLISHED) as server:
            real = jwks.parse_key_set

            def broken(*_: object) -> None:
                raise KeyError("a mistake")

            monkeypatch.setattr(jwks, "AGAIN_MS", 0)
            monkeypatch.setattr(jwks, "parse_key_set", broken)
            keys = Jwks(server.url, ALGORITHMS, ManualClock())
            keys.start()
            await server.was_asked(2)
            monkeypatch.setattr(jwks, "parse_key_set", real)
            await known(keys)
            await keys.close()

    asyncio.run(asyncio.wait_for(story(), 30))
    assert "KeyError" in caplog.text


def test_a_file_is_read_again_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(jwks, "LOOK_MS", 0)
    file = tmp_path / "keys.json"
    file.write_bytes(PUBLISHED)

    async def story() -> None:
        keys = Jwks(str(file), ALGORITHMS, ManualClock())
        keys.start()
        await known(keys)
        before, times = keys.keys(), file.stat()
        assert before.find("a", "RS256") is not None
        file.write_bytes(key_set(public_jwk(private_key("RS256", "b"), "b")))
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        while keys.keys() is before:
            await asyncio.sleep(0)
        assert keys.keys().find("b", "RS256") is not None
        assert keys.keys().find("a", "RS256") is None
        await keys.close()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_file_that_is_missing_long_or_a_pipe_is_a_failure_and_holds_nobody_up(tmp_path, caplog):
    async def story() -> None:
        pipe, long = tmp_path / "pipe", tmp_path / "long"
        os.mkfifo(pipe)
        long.write_bytes(PUBLISHED + b" " * SET_BYTES_MAX)
        for path in (tmp_path / "none", pipe, long, tmp_path):
            keys = Jwks(str(path), ALGORITHMS, ManualClock())
            await keys.read()
            unreadable(keys)

    asyncio.run(asyncio.wait_for(story(), 30))
    assert all(text in caplog.text for text in ("No such file", "pipe is no file", "is longer than", f"{tmp_path} "))


def test_a_certificate_authority_that_is_no_file_is_refused_at_the_start(tmp_path):
    page = tmp_path / "page"
    page.write_text("<html>")
    for path in (tmp_path / "none", page):
        with pytest.raises(InvalidSettingError, match=r"auth\.jwt\.ca"):
            Jwks("https://idp.example/keys", ALGORITHMS, ManualClock(), certificate_authorities=str(path))


@pytest.mark.parametrize(
    ("vouches", "name", "believed"),
    [(True, "127.0.0.1", True), (True, "127.0.0.2", False), (False, "127.0.0.1", False)],
)
def test_only_a_provider_whose_certificate_somebody_vouches_for_is_believed(
    tmp_path, caplog, vouches: bool, name: str, believed: bool
):
    authority, tls = certificates(tmp_path, name)

    async def story() -> None:
        async with serving(PUBLISHED, tls=tls) as server:
            keys = Jwks(
                server.url, ALGORITHMS, ManualClock(), certificate_authorities=str(authority) if vouches else None
            )
            await keys.read()
            if believed:
                assert len(keys.keys()) == 1
            else:
                unreadable(keys)

    asyncio.run(asyncio.wait_for(story(), 30))
    assert ("could not be read" in caplog.text) != believed
