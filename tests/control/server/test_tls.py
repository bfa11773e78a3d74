"""Certificates, keys, CAs and lists as they are read at the start and while a server runs: what is taken, and what is refused and why."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from basalt.cluster.links.hello import fingerprint
from basalt.errors import InvalidSettingError
from basalt.server import tls as tls_module
from basalt.server.tls import Tls, load
from basalt.settings import TlsSettings
from basalt_engine.clock import SystemClock
from tests.certificates import Authority, Issued, encrypted


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Issued:
    return authority.server()


def settings(server: Issued, **given: object) -> TlsSettings:
    return TlsSettings(certificate=str(server.certificate), key=str(server.key), **given)


def refused(of: TlsSettings) -> InvalidSettingError:
    with pytest.raises(InvalidSettingError) as error:
        load(of)
    assert error.value.hint
    return error.value


def test_a_context_knows_the_certificate_that_it_shows(server: Issued):
    context = load(settings(server))[1]
    assert context.certificate_der == server.der
    assert context.not_after_ms == 1_000 * int(server.x509.not_valid_after_utc.timestamp())
    assert context.verify_mode == ssl.CERT_NONE


def test_nobody_comes_back_by_a_ticket_or_negotiates_anew(server: Issued):
    context = load(settings(server))[1]
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert load(settings(server, min_version="1.3"))[1].minimum_version == ssl.TLSVersion.TLSv1_3


def test_the_chain_goes_with_the_certificate(authority: Authority, server: Issued):
    server.certificate.write_bytes(server.certificate.read_bytes() + authority.pem)
    assert load(settings(server))[1].certificate_der == server.der


@pytest.mark.parametrize("key", ["certificate", "key", "client_ca", "client_crl"])
def test_a_file_that_is_not_there_is_named_with_its_key(authority: Authority, server: Issued, key: str):
    given = settings(server, client="optional", client_ca=str(authority.file), client_crl=str(authority.revoke()))
    error = refused(replace(given, **{key: "/nowhere.pem"}))
    assert error.field == f"tls.{key}"
    assert "/nowhere.pem cannot be read: No such file" in error.message


@pytest.mark.parametrize(
    ("content", "key"),
    [(b"", "certificate"), (b"what?", "certificate"), (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate")],
)  # fmt: skip
def test_a_certificate_that_is_none_is_refused(server: Issued, content: bytes, key: str):
    server.certificate.write_bytes(content)
    assert refused(settings(server)).field == f"tls.{key}"


def test_a_key_of_another_certificate_is_refused(authority: Authority, server: Issued):
    error = refused(replace(settings(server), key=str(authority.server("other").key)))
    assert error.field == "tls.key"
    assert "does not fit the certificate" in error.message


def test_a_key_that_is_none_or_has_a_password_is_refused_and_nobody_is_asked(server: Issued):
    encrypted(server)
    assert "is encrypted" in refused(settings(server)).message
    server.key.write_bytes(b"what?")
    assert refused(settings(server)).field == "tls.key"


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o666])
def test_a_key_that_others_can_read_is_refused(server: Issued, mode: int):
    server.key.chmod(mode)
    error = refused(settings(server))
    assert error.field == "tls.key"
    assert "can be read by every user of this machine" in error.message
    server.key.chmod(0o640)
    load(settings(server))


def test_a_certificate_that_has_ended_or_not_begun_is_refused(authority: Authority):
    ended = refused(settings(authority.server(starts_days=-9, ends_days=-1)))
    assert (ended.field, "certificate has expired" in ended.message) == ("tls.certificate", True)
    early = refused(settings(authority.server(starts_days=1, ends_days=9)))
    assert (early.field, "not yet valid" in early.message) == ("tls.certificate", True)


def test_a_certificate_for_clients_is_refused_as_that_of_a_server(authority: Authority):
    assert "is one that no client takes" in refused(settings(authority.client())).message


def test_a_file_of_cas_without_a_ca_is_refused(authority: Authority, server: Issued):
    for content in (b"", b"what?", authority.client().certificate.read_bytes(), authority.pem[:200]):
        authority.file.write_bytes(content)
        assert refused(settings(server, client="required", client_ca=str(authority.file))).field == "tls.client_ca"


def test_comments_in_a_file_of_cas_may_be_in_any_language(authority: Authority, server: Issued):
    authority.file.write_bytes("# Zertifikat für Kunden\n".encode() + authority.pem)
    context = load(settings(server, client="required", client_ca=str(authority.file)))[1]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1


def test_a_file_of_lists_has_lists_and_nothing_that_would_be_trusted(authority: Authority, server: Issued):
    crl = authority.revoke()
    given = settings(server, client="optional", client_ca=str(authority.file), client_crl=str(crl))
    context = load(given)[1]
    assert context.verify_flags & ssl.VERIFY_CRL_CHECK_CHAIN
    good = crl.read_bytes()
    other = Authority(crl.parent / "other")
    for content in (b"", b"what?", other.pem, good + other.pem, good[:100]):
        crl.write_bytes(content)
        assert refused(given).field == "tls.client_crl"


def test_a_file_without_end_is_not_read_to_its_end(server: Issued):
    assert (
        f"is longer than {tls_module.FILE_BYTES_MAX} bytes"
        in refused(replace(settings(server), certificate="/dev/zero")).message
    )


def test_files_that_change_while_they_are_read_are_read_again(
    authority: Authority, server: Issued, monkeypatch: pytest.MonkeyPatch
):
    """The certificate is there before its key is: a moment later both are."""
    after = authority.server("after")
    read = tls_module._read
    reads = []

    def half_way(of: TlsSettings):
        found = read(of)
        reads.append(found)
        if len(reads) == 1:
            server.certificate.write_bytes(after.certificate.read_bytes())
        if len(reads) == 2:
            server.key.write_bytes(after.key.read_bytes())
        return found

    monkeypatch.setattr(tls_module, "_read", half_way)
    assert load(settings(server))[1].certificate_der == after.der


def test_files_that_do_not_stop_changing_are_refused(
    authority: Authority, server: Issued, monkeypatch: pytest.MonkeyPatch
):
    read = tls_module._read
    reads = []

    def changing(of: TlsSettings):
        authority.server(starts_days=-len(reads) - 1)
        reads.append(read(of))
        return reads[-1]

    monkeypatch.setattr(tls_module, "_read", changing)
    assert "its files change while they are read" in refused(settings(server)).message
    assert len(reads) == 2 * tls_module.ATTEMPTS_MAX


def test_a_handshake_in_memory_that_comes_to_no_end_is_a_refusal(server: Issued, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tls_module, "ROUNDS_MAX", 1)
    assert "make no connection" in refused(settings(server)).message


def watched(server: Issued, story, **given: object):
    """Have `story` run with the TLS of a server."""

    async def main():
        await story(Tls(settings(server, **given), SystemClock()))

    asyncio.run(main())


def swap(old: Issued, new: Issued) -> None:
    old.key.write_bytes(new.key.read_bytes())
    old.certificate.write_bytes(new.certificate.read_bytes())


def test_what_has_changed_is_used_and_what_has_not_is_not_read_anew(authority: Authority, server: Issued):
    async def story(tls: Tls):
        first = tls.handshakes.context
        await tls.look()
        assert tls.handshakes.context is first
        new = authority.server("new")
        swap(server, new)
        await tls.look()
        assert tls.handshakes.context.certificate_der == new.der
        assert first.retired
        assert not tls.handshakes.context.retired
        assert tls.handshakes.reloads == {"done": 1, "failed": 0}

    watched(server, story)


@pytest.mark.parametrize("client", ["off", "required"])
def test_links_are_shown_the_certificate_in_force_and_asked_for_none(authority: Authority, server: Issued, client: str):
    """Servers prove themselves on links by the secret: a client certificate of their own they need not have."""

    async def story(tls: Tls):
        before = tls.shown_on_links()
        assert before.certificate == fingerprint(server.der)
        assert before.context.verify_mode == ssl.CERT_NONE
        new = authority.server("new")
        swap(server, new)
        await tls.look()
        after = tls.shown_on_links()
        assert after.certificate == fingerprint(new.der)
        assert after.context is not before.context
        assert after.context.verify_mode == ssl.CERT_NONE
        asked = ssl.CERT_NONE if client == "off" else ssl.CERT_REQUIRED
        assert tls.handshakes.context.verify_mode == asked

    watched(server, story, client=client, **({} if client == "off" else {"client_ca": str(authority.file)}))


def test_an_operator_has_the_files_read_anew_though_they_are_the_same(server: Issued):
    async def story(tls: Tls):
        first = tls.handshakes.context
        await tls.look(asked=True)
        assert tls.handshakes.context is not first
        assert first.retired

    watched(server, story)


@pytest.mark.parametrize("what", ["certificate", "key", "ca", "expired", "gone"])
def test_a_bad_change_leaves_the_old_in_force_says_so_once_and_is_counted_as_long_as_it_stands(
    authority: Authority, server: Issued, caplog: pytest.LogCaptureFixture, what: str
):
    async def story(tls: Tls):
        first = tls.handshakes.context
        kept = server.certificate.read_bytes()
        if what == "expired":
            swap(server, authority.server("expired", starts_days=-2, ends_days=-1))
        elif what == "gone":
            server.certificate.unlink()
        else:
            file = {"certificate": server.certificate, "key": server.key, "ca": authority.file}[what]
            file.write_bytes(b"what?" if what != "key" else authority.server("other").key.read_bytes())
        for looks in (1, 2, 3):
            await tls.look()
            assert tls.handshakes.context is first
            assert not first.retired
            assert tls.handshakes.reloads == {"done": 0, "failed": looks}
        lines = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(lines) == 1
        assert "goes on with the certificate and the CAs of before: setting tls." in lines[0].getMessage()
        if what in ("certificate", "gone"):
            server.certificate.write_bytes(kept)
            await tls.look()
            assert tls.handshakes.context is first  # it is as it was
            server.certificate.write_bytes(b"what?")
            await tls.look()
            assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2

    watched(server, story, client="optional", client_ca=str(authority.file))


def test_whatever_goes_wrong_the_files_are_looked_at_again(server: Issued, monkeypatch: pytest.MonkeyPatch):
    async def story(tls: Tls):
        with monkeypatch.context() as patch:
            patch.setattr(tls_module, "_read", lambda _: 1 / 0)
            await tls.look()
        assert tls.handshakes.reloads["failed"] == 1
        await tls.look(asked=True)
        assert tls.handshakes.reloads["done"] == 1

    watched(server, story)


def test_a_signal_has_the_files_read_at_once(authority: Authority, server: Issued):
    async def story(tls: Tls):
        watching = asyncio.create_task(tls.watch())
        new = authority.server("new")
        swap(server, new)
        tls.ask()
        async with asyncio.timeout(60):
            while tls.handshakes.context.certificate_der != new.der:
                await asyncio.sleep(0)
        watching.cancel()

    watched(server, story, reload_ms=86_400_000)


def test_a_signal_to_a_server_that_has_ended_is_no_error(server: Issued):
    async def make() -> Tls:
        return Tls(settings(server), SystemClock())

    asyncio.run(make()).ask()


def test_a_certificate_that_ends_soon_is_told(authority: Authority, caplog: pytest.LogCaptureFixture):
    async def story(tls: Tls):
        assert "ends in 47 hours; clients refuse it then" in caplog.text

    watched(authority.server(ends_days=2), story)
