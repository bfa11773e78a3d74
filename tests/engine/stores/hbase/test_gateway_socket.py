"""The handshake with a gateway that asks for Kerberos, and the frames behind it; gateways, or somebody on the way, that cheat.

That Java's gateways are spoken to is shown in tests/hbase/test_kerberos.py.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import basalt_engine.stores.hbase.gateway_socket as socket_module
from basalt_engine.clock import SystemClock
from basalt_engine.stores.hbase.gateway_socket import (
    BAD,
    COMPLETE,
    ERROR,
    FRAME_BYTES_MAX,
    LAYERS,
    OK,
    TEXT_CHARS_MAX,
    TOKEN_BYTES_MAX,
    TOKENS_MAX,
    SaslSocket,
)
from basalt_engine.stores.hbase.kerberos import Kerberos, KerberosError, KerberosLogin, Quality
from tests.engine.stores.hbase.sasl_gateway import HANG_SECONDS, RECEIVED_BYTES_MAX, SaslGateway, sasl_gateway, send
from tests.kdc import Kdc

LARGE = bytes(range(256)) * 4_000  # a megabyte: several of the frames that a gateway takes
CALL_MS = HANG_SECONDS * 1_000
QUALITIES: tuple[Quality, ...] = ("auth", "auth-int", "auth-conf")


@pytest.fixture(scope="module")
def keytabs(kdc: Kdc) -> tuple[Path, Path]:
    """Of the service, and of who comes to it."""
    return kdc.keytab("sasl/127.0.0.1"), kdc.keytab("sasl-user")


@pytest.fixture
def gateway(kdc: Kdc, keytabs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[SaslGateway]:
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.configuration))
    with sasl_gateway(keytabs[0]) as running:
        yield running


@pytest.fixture
def connect(keytabs: tuple[Path, Path], gateway: SaslGateway) -> Iterator[Callable[..., SaslSocket]]:
    with ExitStack() as opened:

        def to(
            quality: Quality = "auth-conf", at: SaslGateway = gateway, connect_timeout_ms: int = 5_000
        ) -> SaslSocket:
            login = KerberosLogin(Kerberos(quality, "sasl-user", str(keytabs[1]), "sasl"))
            connected = SaslSocket(at.address, connect_timeout_ms, SystemClock(), login)
            opened.callback(connected.close)
            connected.begin(CALL_MS)
            return connected

        yield to


def read(connection: SaslSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.read(size - len(data))
    return data


@pytest.mark.parametrize("quality", QUALITIES)
def test_bytes_arrive_as_they_were_sent_in_frames_that_the_gateway_takes(
    keytabs: tuple[Path, Path], connect: Callable[..., SaslSocket], quality: Quality
):
    with sasl_gateway(keytabs[0], quality) as gateway:
        connection = connect(quality, gateway)
        for data in (b"one", LARGE, b"more"):
            connection.write(data)
            connection.flush()
            assert connection.asked
            assert read(connection, len(data)) == data
        assert connection.is_quiet()
        assert not connection.has_ended()
        [choice] = gateway.chosen
        assert choice[0] == LAYERS[quality]
        if quality == "auth":
            assert choice[1:] == b"\0\0\0", "who wraps nothing receives nothing wrapped"
        else:
            assert int.from_bytes(choice[1:], "big") == socket_module.RECEIVED_BYTES_MAX
            assert max(gateway.frames) <= RECEIVED_BYTES_MAX < len(LARGE)


def test_an_answer_that_is_not_read_to_its_end_is_not_quiet(connect: Callable[..., SaslSocket]):
    connection = connect()
    connection.write(b"four")
    assert connection.read(3) == b"fou"
    assert not connection.is_quiet()
    assert connection.read(3) == b"r"
    assert connection.is_quiet()


@pytest.mark.parametrize("layers", [0, LAYERS["auth"], LAYERS["auth"] | LAYERS["auth-int"]])
def test_a_weaker_layer_than_the_settings_name_is_not_taken(
    gateway: SaslGateway, connect: Callable[..., SaslSocket], layers: int
):
    gateway.offer = bytes([layers]) + gateway.offer[1:]
    with pytest.raises(KerberosError, match="and not auth-conf"):
        connect()
    assert gateway.chosen == []


def test_an_offer_of_another_form_is_not_taken(gateway: SaslGateway, connect: Callable[..., SaslSocket]):
    gateway.offer = bytes([LAYERS["auth-conf"]])
    with pytest.raises(KerberosError, match="the gateway offers nothing"):
        connect()


def test_frames_into_which_nothing_fits_are_not_taken(gateway: SaslGateway, connect: Callable[..., SaslSocket]):
    gateway.offer = bytes([LAYERS["auth-conf"], 0, 0, 8])
    with pytest.raises(KerberosError, match="frames of 8 bytes, in which nothing fits"):
        connect()


ENDINGS = {
    "a login that is complete before a layer was chosen": (
        lambda connection: send(connection, COMPLETE, b""),
        "ends too early",
    ),
    "an offer that nobody has signed": (
        lambda connection: send(connection, OK, bytes([1, 0, 0, 0])),
        "changed on the way",
    ),
    "an end": (lambda connection: connection.close(), "hung up during the login"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_layer_is_chosen_from_what_the_gateway_itself_has_said_or_not_at_all(
    gateway: SaslGateway, connect: Callable[..., SaslSocket], name: str
):
    gateway.answers_offer, told = ENDINGS[name]
    with pytest.raises(KerberosError, match=told):
        connect()


ANSWERS = {
    "a refusal": (
        lambda connection: send(connection, ERROR, b"GSS initiate failed"),
        "refuses the login: GSS initiate",
    ),
    "another refusal": (
        lambda connection: send(connection, BAD, b"no " * 1_000),
        rf"refuses the login: no .{{1,{TEXT_CHARS_MAX}}}$",
    ),
    "a token of nobody": (lambda connection: send(connection, OK, b"nonsense"), "does not prove its name"),
    "more tokens than there are": (
        lambda connection: [send(connection, OK, b"") for _ in range(TOKENS_MAX)],
        "prove|not good",
    ),
    "another protocol": (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request"), "is not SASL: 4854545"),
    "a token without end": (
        lambda connection: connection.sendall(bytes([OK]) + (TOKEN_BYTES_MAX + 1).to_bytes(4, "big")),
        "is not SASL",
    ),
    "an end": (lambda connection: connection.close(), "hung up during the login"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_who_does_not_prove_to_be_the_gateway_is_not_spoken_to(
    gateway: SaslGateway, connect: Callable[..., SaslSocket], name: str
):
    gateway.answers_first, told = ANSWERS[name]
    with pytest.raises(KerberosError, match=told):
        connect()


def test_a_gateway_that_does_not_speak_sasl_is_not_waited_for(
    gateway: SaslGateway, connect: Callable[..., SaslSocket], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(socket_module, "HANDSHAKE_TIMEOUT_MS", 50)
    gateway.answers_first = lambda connection: connection.recv(1)
    with pytest.raises(KerberosError, match="did not answer to SASL") as raised:
        connect()
    assert "store.hbase.sasl to off" in raised.value.hint


def flipped(context: Any, data: bytes) -> list[bytes]:
    frame = bytearray(context.wrap(data, True).message)
    frame[-1] ^= 1
    return [bytes(frame)]


def repeated(context: Any, data: bytes) -> list[bytes]:
    return [context.wrap(data, True).message] * 2


def left_out(context: Any, data: bytes) -> list[bytes]:
    return [context.wrap(data, True).message for _ in range(3)][::2]


FRAMES = {
    "a bit that was flipped": (flipped, "changed on the way"),
    "a frame that comes twice": (repeated, "changed on the way"),
    "a frame that was left out": (left_out, "changed on the way"),
    "a frame that is signed and not encrypted": (
        lambda context, data: [context.wrap(data, False).message],
        "not encrypted",
    ),
    "plain bytes": (lambda _context, data: [data], "changed on the way"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_an_answer_is_taken_as_the_gateway_has_sent_it_or_not_at_all(
    gateway: SaslGateway, connect: Callable[..., SaslSocket], name: str
):
    gateway.frames_of, told = FRAMES[name]
    connection = connect()
    connection.write(b"data")
    with pytest.raises(ConnectionError, match=told):
        read(connection, 8)


def test_a_frame_without_end_is_not_waited_for(gateway: SaslGateway, connect: Callable[..., SaslSocket]):
    connection = connect()
    gateway.frames_of = lambda _context, _data: []
    received, sender = socket.socketpair()
    connection._tcp.close()
    connection._tcp = received
    with sender:
        sender.sendall((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
        with pytest.raises(ConnectionError, match=f"a frame of {FRAME_BYTES_MAX + 1} bytes"):
            connection.read(1)


class EndedContext:
    """What the library says of a context whose ticket ends between two messages of the login."""

    complete = True

    def __getattr__(self, name: str) -> Any:
        import gssapi  # only where there is Kerberos

        raise gssapi.exceptions.ExpiredContextError(786432, 0)


def test_a_ticket_that_ends_during_the_login_fails_the_login_and_nothing_else(
    connect: Callable[..., SaslSocket], monkeypatch: pytest.MonkeyPatch
):
    shake_hands = SaslSocket._shake_hands

    def later(self: SaslSocket) -> None:
        step = self._context.step

        def ended(token: bytes) -> bytes:
            answer = step(token)
            self._context._context = EndedContext()
            return answer

        monkeypatch.setattr(self._context, "step", ended)
        shake_hands(self)

    monkeypatch.setattr(SaslSocket, "_shake_hands", later)
    with pytest.raises(KerberosError, match="the ticket ended during the login"):
        connect()
