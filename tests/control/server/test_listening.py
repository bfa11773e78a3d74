"""Which addresses are open to others, and that a server listens there only where somebody wrote so."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from basalt.errors import InvalidSettingError, UnavailableError
from basalt.server.listening import SECRET_CHARACTERS_MIN, ListenAddress, has_clear_links, link_address, listen_address
from basalt.settings import AuthSettings, HttpSettings, ServerSettings, Settings, TlsSettings
from basalt.settings.cluster import ClusterSettings


def settings(host: str, *kinds: str) -> Settings:
    return Settings(server=ServerSettings(host=host), auth=AuthSettings(kinds=kinds))


def names(monkeypatch: pytest.MonkeyPatch, **addresses: list[str]) -> None:
    """Have these names stand for these addresses, and no other name for any."""

    def found(host: str | None, port: int, family: int, *_: object, **__: object) -> list[object]:
        if host not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses[host]]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "127.1", "2130706433", "localhost", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"]
)
def test_loopback_needs_no_word(host: str):
    address = listen_address(settings(host))
    assert address.is_loopback
    assert address.host == host


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("0.0.0.0", "0.0.0.0"), ("::", "::"), ("", " (0.0.0.0)"), ("0", "0 (0.0.0.0)"), ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1"), ("::2", "::2"), ("128.0.0.1", "128.0.0.1"), ("fe80::1", "fe80::1"),
    ],
)  # fmt: skip
def test_an_address_that_others_reach_is_refused_until_somebody_writes_that_it_is_to_be_open(host: str, shown: str):
    with pytest.raises(InvalidSettingError) as refused:
        listen_address(settings(host))
    assert refused.value.field == "auth.kinds"
    assert f"server.host is {shown}, which others" in refused.value.message
    assert 'kinds = ["none"] under [auth]' in refused.value.hint
    assert not listen_address(settings(host, "none")).is_loopback


def test_a_name_is_judged_by_what_it_stands_for_and_not_by_how_it_sounds(monkeypatch: pytest.MonkeyPatch):
    names(monkeypatch, broker=["127.0.1.1", "10.0.0.7"], localhost=["10.0.0.7", "127.0.0.1"])
    # The first one is bound, and no other.
    assert listen_address(settings("broker")) == ListenAddress("broker", "127.0.1.1")
    with pytest.raises(InvalidSettingError, match=r"server\.host is localhost \(10\.0\.0\.7\)"):
        listen_address(settings("localhost"))


def test_a_name_that_nobody_has_is_told_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch):
    names(monkeypatch)
    with pytest.raises(UnavailableError, match="cannot listen on nowhere: Name or service not known") as refused:
        listen_address(settings("nowhere", "none"))
    assert refused.value.field == "server.host"


def test_what_was_looked_up_is_what_is_bound():
    found = ListenAddress.find("localhost")
    with socket.create_server((found.literal, 0)) as bound:
        assert bound.getsockname()[0] == found.literal


@pytest.mark.parametrize("kind", ["token", "jwt", "kerberos", "proxy"])
def test_no_token_or_ticket_goes_through_a_network_in_clear_by_accident(kind: str):
    open_to_others = settings("0.0.0.0", kind)
    with pytest.raises(InvalidSettingError) as refused:
        listen_address(open_to_others)
    assert refused.value.field == "tls.certificate"
    assert f"what auth.kinds has ({kind}) through the network for all to read" in refused.value.message
    assert "http.tls_elsewhere" in refused.value.hint
    for given in (
        replace(open_to_others, tls=TlsSettings(certificate="c.pem", key="k.pem")),
        replace(open_to_others, http=HttpSettings(tls_elsewhere=True)),
        settings("127.0.0.1", kind),
    ):
        assert listen_address(given)


def linked(host: str, listen: str | None = None, secret: str | None = None) -> Settings:
    return Settings(server=ServerSettings(host=host), cluster=ClusterSettings(listen=listen, secret=secret))


GOOD_SECRET = "x" * SECRET_CHARACTERS_MIN


@pytest.mark.parametrize(
    ("given", "address", "port"),
    [
        (linked("127.0.0.1"), "127.0.0.1", 0),
        (linked("10.0.0.7", "127.0.0.1:4790"), "127.0.0.1", 4_790),
        (linked("10.0.0.7", secret=GOOD_SECRET), "10.0.0.7", 0),
        (linked("127.0.0.1", "[fd00::7]:4790", GOOD_SECRET), "fd00::7", 4_790),
    ],
)
def test_links_are_taken_where_the_settings_say_or_beside_http(given: Settings, address: str, port: int):
    assert link_address(given) == (ListenAddress(address, address), port)


@pytest.mark.parametrize(("host", "listen"), [("10.0.0.7", None), ("127.0.0.1", "10.0.0.7:4790"), ("0.0.0.0", None)])
def test_links_beyond_this_machine_need_a_secret(host: str, listen: str | None):
    with pytest.raises(InvalidSettingError, match=r"cluster\.secret_file is not given") as refused:
        link_address(linked(host, listen))
    assert refused.value.field == "cluster.secret"
    assert "openssl rand -hex 32" in (refused.value.hint or "")


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7"])
def test_a_secret_that_could_be_guessed_is_refused_everywhere(host: str):
    with pytest.raises(InvalidSettingError, match=f"{SECRET_CHARACTERS_MIN} are the fewest"):
        link_address(linked(host, secret=GOOD_SECRET[1:]))


def test_links_in_the_clear_are_told_of_where_they_leave_this_machine_without_tls():
    beyond = linked("10.0.0.7", secret=GOOD_SECRET)
    assert has_clear_links(beyond)
    assert not has_clear_links(replace(beyond, tls=TlsSettings(certificate="c.pem", key="k.pem")))
    assert not has_clear_links(linked("10.0.0.7", "127.0.0.1:4790"))
    assert not has_clear_links(replace(beyond, cluster=replace(beyond.cluster, share=False)))
