"""Tickets of a real KDC: got once, renewed beside the calls, read anew from the cache that somebody else keeps; connections whose ticket ends."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from basalt_engine.clock import ManualClock, SystemClock
from basalt_engine.errors import InputError, StoreError
from basalt_engine.stores.hbase.gateway import ConnectionPool, Gateway
from basalt_engine.stores.hbase.gateway_socket import SaslSocket
from basalt_engine.stores.hbase.kerberos import (
    CACHE_HINT,
    DROP_PAUSE_MS,
    EARLY_MS_MAX,
    KEYTAB_HINT,
    SERVICE_HINT,
    Kerberos,
    KerberosError,
    KerberosLogin,
)
from tests.engine.stores.hbase.sasl_gateway import SaslGateway, sasl_gateway
from tests.kdc import Kdc

HOST = "127.0.0.1"
SECOND_MS, HOUR_MS = 1_000, 3_600_000
LIFE_MS = 10 * HOUR_MS  # of the realm's tickets


@pytest.fixture(scope="module")
def service(kdc: Kdc) -> Path:
    return kdc.keytab(f"renewed/{HOST}")


@pytest.fixture(scope="module")
def user(kdc: Kdc) -> Path:
    return kdc.keytab("renewed-user")


@pytest.fixture(autouse=True)
def realm(kdc: Kdc, service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is in the realm; the file of its ticket cache, in which there is nothing."""
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.configuration))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'cache'}")
    return tmp_path / "cache"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keytab(user: Path, tmp_path: Path) -> Path:
    """A copy that a test may take away."""
    return Path(shutil.copy(user, tmp_path / "keytab"))


@pytest.fixture
def login(keytab: Path, clock: ManualClock) -> KerberosLogin:
    return KerberosLogin(Kerberos("auth-conf", "renewed-user", str(keytab), "renewed"), clock)


@pytest.fixture
def gateway(service: Path) -> Iterator[SaslGateway]:
    with sasl_gateway(service) as running:
        yield running


def wait_for_renewal() -> None:
    for thread in threading.enumerate():
        if thread.name == "hbase-kerberos":
            thread.join()


def test_tickets_are_got_once_and_again_when_they_have_ended(login: KerberosLogin, clock: ManualClock):
    assert login.begin(HOST).token
    first = login._tickets
    login.begin(HOST)
    assert login._tickets is first
    clock.advance(LIFE_MS)
    login.begin(HOST)
    assert login._tickets is not first


def test_tickets_are_renewed_beside_the_calls_when_a_fifth_of_their_life_is_left(
    login: KerberosLogin, clock: ManualClock
):
    login.renew_early()  # there is nothing to renew
    login.begin(HOST)
    first = login._tickets
    clock.advance(LIFE_MS * 3 // 4)
    login.renew_early()
    wait_for_renewal()
    assert login._tickets is first
    clock.advance(LIFE_MS // 10)
    login.renew_early()
    wait_for_renewal()
    assert first is not None
    assert login._tickets is not first
    second = login._tickets
    assert second is not None
    assert second.cache != first.cache, "whoever uses the first ones still is not disturbed"
    clock.advance(LIFE_MS // 2)
    login.begin(HOST)
    assert login._tickets is second, "the renewed ones last on"


def test_a_renewed_service_ticket_needs_no_kdc_any_more(
    login: KerberosLogin, clock: ManualClock, kdc: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    login.begin(HOST)
    clock.advance(LIFE_MS * 9 // 10)
    login.renew_early()
    wait_for_renewal()
    away = tmp_path / "krb5.conf"
    away.write_text(kdc.configuration.read_text().replace(f"127.0.0.1:{kdc.port}", "127.0.0.1:1"))
    monkeypatch.setenv("KRB5_CONFIG", str(away))
    assert login.begin(HOST).token


def test_a_renewal_that_fails_is_logged_and_tried_again_later_and_the_tickets_go_on(
    login: KerberosLogin, clock: ManualClock, keytab: Path, caplog: pytest.LogCaptureFixture
):
    login.begin(HOST)
    first = login._tickets
    kept = keytab.read_bytes()
    keytab.unlink()
    clock.advance(LIFE_MS * 9 // 10)
    login.renew_early()
    wait_for_renewal()
    assert "are not renewed" in caplog.text
    assert str(keytab) in caplog.text
    login.begin(HOST)
    assert login._tickets is first
    keytab.write_bytes(kept)
    login.renew_early()
    wait_for_renewal()
    assert login._tickets is first, "it is not tried again at once"
    clock.advance(30 * SECOND_MS)
    login.renew_early()
    wait_for_renewal()
    assert login._tickets is not first


def test_who_waits_for_a_login_that_fails_fails_with_it(login: KerberosLogin, clock: ManualClock, keytab: Path):
    kept = keytab.read_bytes()
    keytab.unlink()
    with pytest.raises(KerberosError, match="no Kerberos ticket of renewed-user") as raised:
        login.begin(HOST)
    assert raised.value.hint == KEYTAB_HINT
    keytab.write_bytes(kept)
    with pytest.raises(KerberosError):
        login.begin(HOST)
    clock.advance(SECOND_MS)
    assert login.begin(HOST).token


def test_the_ticket_cache_is_read_anew(kdc: Kdc, user: Path, realm: Path, clock: ManualClock):
    login = KerberosLogin(Kerberos("auth", service="renewed"), clock)
    with pytest.raises(KerberosError, match="no Kerberos ticket of anybody from the ticket cache") as raised:
        login.begin(HOST)
    assert raised.value.hint == CACHE_HINT
    kdc.ticket("renewed-user", keytab=user, life_seconds=600).replace(realm)
    clock.advance(SECOND_MS)
    login.begin(HOST)
    assert login._tickets is not None
    assert login._tickets.end_ms < clock.now_ms() + 600 * SECOND_MS
    kdc.ticket("renewed-user", keytab=user, life_seconds=7_200).replace(realm)
    clock.advance(599 * SECOND_MS)
    login.begin(HOST)
    assert login._tickets.end_ms > clock.now_ms() + HOUR_MS


def test_a_cache_of_somebody_else_than_the_settings_name_is_not_taken(kdc: Kdc, user: Path, realm: Path):
    kdc.ticket("renewed-user", keytab=user).replace(realm)
    with pytest.raises(KerberosError, match="no Kerberos ticket of another"):
        KerberosLogin(Kerberos("auth", "another", service="renewed")).begin(HOST)


def test_a_service_that_the_kdc_does_not_know_is_told_by_the_settings_that_name_it(login: KerberosLogin, keytab: Path):
    with pytest.raises(KerberosError, match=r"no Kerberos ticket for renewed/localhost") as raised:
        login.begin("localhost")
    assert raised.value.hint == SERVICE_HINT
    renamed = Kerberos("auth", "renewed-user", str(keytab), "renewed", gateway_host=HOST)
    assert KerberosLogin(renamed).begin("localhost").token


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(InputError, match="needs the library gssapi") as raised:
        KerberosLogin(Kerberos("auth"))
    assert "basalt-mq[kerberos]" in str(raised.value.hint)


def test_a_pooled_connection_is_replaced_before_its_ticket_ends_within_a_call(
    login: KerberosLogin, clock: ManualClock, gateway: SaslGateway
):
    pool = ConnectionPool(gateway.address, connections_max=2, clock=clock, login=login)
    with pool.lent() as first:
        pass
    with pool.lent() as second:
        assert second is first
    clock.advance(LIFE_MS - EARLY_MS_MAX - 5 * SECOND_MS)
    first.used_ms = clock.monotonic_ms()  # it was in use all along
    with pool.lent() as second:
        assert second is first
        clock.advance(10 * SECOND_MS)
    with pool.lent() as second:
        assert second is not first
        assert not first._socket.is_open()
    assert gateway.connections == 2
    pool.close()


def test_tickets_that_a_gateway_refuses_are_got_anew_for_its_key_may_have_changed(
    login: KerberosLogin, clock: ManualClock, kdc: Kdc, tmp_path: Path
):
    kdc.keytab(f"rotated/{HOST}", path=tmp_path / "0")
    login = KerberosLogin(dataclasses.replace(login.kerberos, service="rotated"), clock)
    for number in (1, 2, 3):
        login.begin(HOST)
        kdc._admin("change_password", "-randkey", f"rotated/{HOST}")
        kdc._admin("ktadd", "-k", str(tmp_path / str(number)), "-norandkey", f"rotated/{HOST}")
        with sasl_gateway(tmp_path / str(number)) as gateway:
            with pytest.raises(KerberosError):
                SaslSocket(gateway.address, 5_000, SystemClock(), login)
            SaslSocket(gateway.address, 5_000, SystemClock(), login).close()
        clock.advance(DROP_PAUSE_MS)


def test_a_gateway_that_goes_on_refusing_does_not_have_the_kdc_asked_again_and_again(
    login: KerberosLogin, clock: ManualClock, gateway: SaslGateway
):
    gateway.answers_first = lambda connection: connection.close()
    for _ in range(2):
        with pytest.raises(KerberosError):
            SaslSocket(gateway.address, 5_000, SystemClock(), login)
    held = login._tickets
    assert held is not None
    clock.advance(DROP_PAUSE_MS - SECOND_MS)
    with pytest.raises(KerberosError):
        SaslSocket(gateway.address, 5_000, SystemClock(), login)
    assert login._tickets is held
    clock.advance(SECOND_MS)
    with pytest.raises(KerberosError):
        SaslSocket(gateway.address, 5_000, SystemClock(), login)
    assert login._tickets is None


def test_the_use_of_a_connection_begins_the_renewal(login: KerberosLogin, clock: ManualClock, gateway: SaslGateway):
    pool = ConnectionPool(gateway.address, connections_max=1, clock=clock, login=login)
    with pool.lent():
        pass
    first = login._tickets
    clock.advance(LIFE_MS * 9 // 10)
    with pool.lent() as connection:
        connection.close()
    wait_for_renewal()
    assert login._tickets is not first
    pool.close()


def test_a_store_without_a_ticket_says_what_to_set(gateway: SaslGateway, clock: ManualClock):
    login = KerberosLogin(Kerberos("auth-conf", service="renewed"), clock)
    pool = ConnectionPool(gateway.address, connections_max=1, clock=clock, login=login)
    with pytest.raises(StoreError, match="no Kerberos ticket") as raised:
        Gateway(pool, "here", clock=clock, sleep=lambda _: None).read("get", b"t")
    assert raised.value.hint == CACHE_HINT
    assert gateway.connections == 0
