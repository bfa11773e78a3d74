"""https: with files of certificates and a key, which are loaded again when they change, and what is wrong with them."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

import pytest

import basalt
from basalt.client.tls import FILES_LOOK_MS, Tls, TlsContext, tls_context
from basalt.errors import InputError, UnavailableError
from tests.certificates import Authority, encrypted


@pytest.fixture
def opened(side) -> Callable[..., Any]:
    """A client through the front door, as a program opens it."""

    def opens(url: str, **options: Any) -> Any:
        connect = basalt.connect if side.name == "blocking" else basalt.aio.connect
        return side.keep(connect(url, **{"attempts_max": 1, **options}))

    return opens


def publish(client: Any) -> Any:
    return client.topic("orders").publish(b"a")


def test_a_client_with_the_files_is_let_in(side, secure, opened, authority):
    own = authority.client(file="etl")
    side.do(publish(opened(secure.url, tls=Tls(authority.file, own.certificate, own.key))))
    together = authority.file.with_name("both.pem")
    together.write_text(own.certificate.read_text() + own.key.read_text())
    side.do(publish(opened(secure.url, tls=Tls(ca_file=str(authority.file), cert_file=str(together)))))
    assert len(secure.seen) == 2


def test_the_environment_names_files_for_a_client_that_is_given_none(side, secure, opened, authority, monkeypatch):
    own = authority.client(file="etl")
    for name, path in (("CA", authority.file), ("CERT", own.certificate), ("KEY", own.key)):
        monkeypatch.setenv(f"BASALT_{name}_FILE", str(path))
    side.do(publish(opened(secure.url)))
    assert len(secure.seen) == 1


def test_a_client_without_a_certificate_or_with_anothers_is_not_let_in(side, secure, opened, authority, tmp_path):
    foreign = Authority(tmp_path / "other", "stranger").client()
    for tls in (Tls(authority.file), Tls(authority.file, foreign.certificate, foreign.key)):
        with pytest.raises(basalt.errors.BasaltError):
            side.do(publish(opened(secure.url, tls=tls)))
    assert secure.seen == []


def test_a_server_of_an_authority_that_the_client_does_not_trust_gets_nothing(side, secure, opened, authority):
    own = authority.client(file="etl")
    with pytest.raises(UnavailableError, match="nothing was sent") as raised:
        side.do(publish(opened(secure.url, token="one", tls=Tls(None, own.certificate, own.key))))
    assert "BASALT_CA_FILE" in (raised.value.hint or "")
    assert secure.seen == []


def test_files_that_change_are_loaded_again(side, secure, opened, authority):
    own = authority.client(file="etl")
    client = opened(secure.url, tls=Tls(authority.file, own.certificate, own.key))
    side.do(publish(client))
    transport = next(iter(client._driver._transport._servers._open.values()))
    before = transport._tls.context
    transport._tls._looked_ms -= FILES_LOOK_MS
    authority.client(file="etl")  # in the same files
    for connection in getattr(transport, "_idle", ()):
        connection.close()  # the blocking client looks when it opens one
    if hasattr(transport, "_idle"):
        transport._idle.clear()
    side.do(publish(client))
    assert transport._tls.context is not before
    assert secure.connections == 2


def test_files_are_looked_at_now_and_then(authority, caplog):
    now_ms = 0.0
    own = authority.client(file="etl")
    tls = TlsContext(Tls(authority.file, own.certificate, own.key), lambda: now_ms)
    first = tls.context
    assert not tls.due
    now_ms = FILES_LOOK_MS
    assert tls.due
    tls.look()
    assert (tls.context, tls.due) == (first, False)
    own.certificate.write_text("half of it")
    with caplog.at_level(logging.WARNING, "basalt.client"):
        tls.look()
    assert tls.context is first
    assert "what was loaded before stays in use" in caplog.text
    authority.client(file="etl")
    tls.look()
    assert tls.context is not first


def broken(authority: Authority, what: str) -> Tls:
    own, other, locked = (authority.client(file=file) for file in ("etl", "other", "locked"))
    encrypted(locked)
    authority.file.with_name("empty.pem").write_text("")
    return {
        "no CA": Tls("/nowhere/ca.pem"),
        "CA is none": Tls(own.key),
        "CA is empty": Tls(authority.file.with_name("empty.pem")),
        "no certificate": Tls(authority.file, "/nowhere/etl.pem", own.key),
        "no key": Tls(authority.file, own.certificate),
        "another's key": Tls(authority.file, own.certificate, other.key),
        "key with a password": Tls(authority.file, locked.certificate, locked.key),
        "key alone": Tls(authority.file, key_file=own.key),
    }[what]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no CA", "/nowhere/ca.pem cannot be used: No such file"),
        ("CA is none", "etl.key cannot be used: no PEM of the right kind is in it"),
        ("CA is empty", "empty.pem cannot be used: no PEM of the right kind is in it"),
        ("no certificate", "/nowhere/etl.pem cannot be used: No such file"),
        ("no key", "etl.pem cannot be used: no PEM of the right kind is in it"),
        ("another's key", "other.key cannot be used: the key is not that of the certificate"),
        ("key with a password", "locked.key cannot be used: its key is encrypted"),
        ("key alone", "etl.key is given without a certificate"),
    ],
)
@pytest.mark.parametrize("connect", [basalt.connect, basalt.aio.connect])
def test_a_file_that_is_no_good_is_named_at_once(connect, authority, what, says):
    with pytest.raises(InputError) as raised:
        connect("https://127.0.0.1:1", tls=broken(authority, what))
    assert raised.value.field == "tls"
    assert says in raised.value.message


@pytest.mark.parametrize("tls", [Tls(), ssl.create_default_context()])
def test_tls_for_a_url_without_it_is_refused(tls):
    with pytest.raises(InputError, match="the URL is not https"):
        basalt.connect("http://127.0.0.1:1", tls=tls)


def test_the_environment_says_nothing_to_a_client_of_a_server_without_tls(monkeypatch):
    monkeypatch.setenv("BASALT_CA_FILE", "/nowhere")
    assert tls_context(None, secure=False) is None
    with pytest.raises(InputError, match="/nowhere"):
        tls_context(None, secure=True)


def test_a_context_is_taken_as_it_is():
    context = ssl.create_default_context()
    assert tls_context(context, secure=True) is context
