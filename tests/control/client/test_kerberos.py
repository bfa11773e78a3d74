"""Kerberos as a client's credential, with a real KDC: a fresh token for each request, for the server that it goes to and its TLS connection."""

from __future__ import annotations

import asyncio
import base64
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt
from basalt.access.proofs.kerberos import Kerberos
from basalt.channel_binding import end_point_hash
from basalt.errors import AuthenticationUnavailableError, InputError, NotLeaderError, UnauthenticatedError
from basalt.settings import KerberosSettings
from tests.certificates import Authority
from tests.control.client.scripted import ScriptedServer, answer, problem
from tests.kdc import Kdc

TOPICS = answer(200, b"[]", content_type="application/json")
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def realm(kdc: Kdc) -> Iterator[Kdc]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        kdc.principal("erin", "of erin")
        yield kdc


@pytest.fixture(scope="module")
def keytab(realm: Kdc) -> Path:
    return realm.keytab("HTTP/127.0.0.1", "HTTP/127.0.0.2")


@pytest.fixture
def logged_in(realm: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{realm.ticket('erin', 'of erin')}")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    scripted.script = [TOPICS]
    yield scripted
    scripted.close()


@pytest.fixture
def secure(authority: Authority) -> Iterator[ScriptedServer]:
    own = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    scripted = ScriptedServer(context)
    scripted.script = [TOPICS]
    yield scripted
    scripted.close()


def ask(url: str, times: int = 1, **more) -> None:
    with basalt.connect(url, kerberos=True, **more) as client:
        for _ in range(times):
            assert client.topics.list() == []


def ask_async(url: str, times: int = 1, **more) -> None:
    async def main() -> None:
        async with basalt.aio.connect(url, kerberos=True, **more) as client:
            for _ in range(times):
                assert await client.topics.list() == []

    asyncio.run(main())


CLIENTS = pytest.mark.parametrize("ask", [ask, ask_async], ids=["blocking", "async"])


def tokens(server: ScriptedServer) -> list[str]:
    given = [each.headers["authorization"].partition(" ") for each in server.seen]
    assert {scheme for scheme, _, _ in given} == {"Negotiate"}
    return [token for _, _, token in given]


@CLIENTS
def test_each_request_has_a_token_of_its_own(ask, server, keytab, logged_in, caplog):
    ask(server.url, times=3)
    assert server.connections == 1
    kerberos = Kerberos(
        KerberosSettings(keytab=str(keytab), realms=("EXAMPLE.TEST",), service="HTTP/127.0.0.1@EXAMPLE.TEST")
    )
    proofs = [kerberos.prove(token, NOW_MS).proof for token in tokens(server)]
    assert [str(proof.principal) for proof in proofs] == ["krb:erin@EXAMPLE.TEST"] * 3
    assert caplog.text == ""  # nobody else is on this machine's own line


@CLIENTS
def test_over_tls_a_token_is_bound_to_the_certificate_that_was_shown(ask, secure, authority, keytab, logged_in):
    ask(secure.url, times=2, tls=basalt.Tls(ca_file=authority.file))
    shown = end_point_hash(ssl.PEM_cert_to_DER_cert((authority.file.parent / "server.pem").read_text()))
    strict = Kerberos(KerberosSettings(keytab=str(keytab), realms=("EXAMPLE.TEST",), binding="require"))
    first, second = tokens(secure)
    assert str(strict.prove(first, NOW_MS, shown).proof.principal) == "krb:erin@EXAMPLE.TEST"
    with pytest.raises(UnauthenticatedError, match="another server"):
        strict.prove(second, NOW_MS, bytes(32))


@CLIENTS
def test_another_server_gets_a_token_for_itself(ask, server, keytab, logged_in):
    leader = ScriptedServer(host="127.0.0.2")
    leader.script = [TOPICS]
    server.script = [problem(503, "not_leader", leader=leader.url)]
    ask(f"{server.url},{leader.url}")
    leader.close()
    settings = KerberosSettings(keytab=str(keytab), realms=("EXAMPLE.TEST",), service="HTTP/127.0.0.2@EXAMPLE.TEST")
    [token] = tokens(leader)
    Kerberos(settings).prove(token, NOW_MS)
    with pytest.raises(UnauthenticatedError):
        Kerberos(settings).prove(tokens(server)[0], NOW_MS)


@CLIENTS
def test_a_leader_that_only_a_standby_names_gets_none_in_the_open(ask, server, logged_in):
    stranger = ScriptedServer(host="127.0.0.2")
    server.script = [problem(503, "not_leader", leader=stranger.url)]
    with pytest.raises(NotLeaderError, match="sends no credential"):
        ask(server.url, attempts_max=2)
    stranger.close()
    assert stranger.seen == []


@CLIENTS
def test_without_a_ticket_nothing_is_sent(ask, server, realm, monkeypatch, tmp_path):
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none'}")
    with pytest.raises(UnauthenticatedError, match=r"no Kerberos ticket for HTTP/127\.0\.0\.1") as raised:
        ask(server.url)
    assert "kinit" in raised.value.hint
    assert server.seen == []


@CLIENTS
def test_to_a_server_that_the_realm_does_not_know_nothing_is_sent(ask, logged_in):
    unknown = ScriptedServer(host="127.0.0.3")
    with pytest.raises(UnauthenticatedError, match=r"no Kerberos ticket for HTTP/127\.0\.0\.3: Server .* not found"):
        ask(unknown.url)
    unknown.close()
    assert unknown.seen == []


@CLIENTS
def test_a_realm_that_cannot_be_reached_is_asked_again_and_nothing_is_sent(
    ask, server, realm, logged_in, monkeypatch, tmp_path
):
    away = (realm.folder / "krb5.conf").read_text().replace(f":{realm.port}", ":1")
    (tmp_path / "krb5.conf").write_text(away)
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    with pytest.raises(AuthenticationUnavailableError, match="cannot be reached"):
        ask(server.url, attempts_max=2)
    assert server.seen == []


@CLIENTS
def test_a_refusal_is_not_tried_again(ask, server, logged_in):
    server.script = [problem(401, "unauthenticated")]
    with pytest.raises(UnauthenticatedError):
        ask(server.url)
    assert len(server.seen) == 1


def test_a_token_in_the_environment_is_not_sent_beside_it(server, logged_in, monkeypatch):
    monkeypatch.setenv("BASALT_TOKEN", "one")
    ask(server.url)
    assert tokens(server)


@pytest.mark.parametrize("more", [{"token": "one"}, {"headers": {"Authorization": "Bearer one"}}])
def test_one_credential_is_enough(more):
    with pytest.raises(InputError, match="both kerberos and another credential"):
        basalt.connect("http://127.0.0.1:1", kerberos=True, **more)


def test_without_the_library_there_is_no_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(InputError, match="needs a library") as raised:
        basalt.connect("http://127.0.0.1:1", kerberos=True)
    assert "basalt-mq[kerberos]" in raised.value.hint


def test_what_goes_through_the_open_is_told(caplog):
    basalt.connect("http://basalt.example:4780", kerberos=True).close()
    assert "without TLS" in caplog.text


def test_no_repr_shows_a_token(logged_in, keytab):
    from basalt.client.kerberos import negotiate

    made = negotiate("127.0.0.1", None)
    assert base64.b64decode(made.removeprefix("Negotiate "))[:1] == b"`"
    assert "Negotiate" not in repr(made)


def test_a_long_reason_of_the_library_is_cut(logged_in):
    from basalt.client.kerberos import REASON_CHARS_MAX, negotiate

    with pytest.raises(UnauthenticatedError) as raised:
        negotiate("x" * 2 * REASON_CHARS_MAX, None)
    assert len(raised.value.message) < 3 * REASON_CHARS_MAX + 100
