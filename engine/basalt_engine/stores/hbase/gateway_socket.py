"""The sockets on which a gateway is spoken to: as it is, or behind SASL with Kerberos.

SASL is RFC 4422 with the mechanism GSSAPI (RFC 4752), in Thrift's frames. While client and gateway get to know each other, each frame has one byte of
status, four of length, and a token. Then come frames of four bytes of length and a body, which Kerberos signs (auth-int) or encrypts
(auth-conf); with auth it protects none of them. The client takes the layer that its settings name and no other, so that nobody between the two
can talk them down; what the gateway offers is signed by it.
"""

from __future__ import annotations

import math
import select
import socket
from contextlib import suppress

from basalt_engine.clock import Clock
from basalt_engine.stores.hbase.kerberos import SERVICE_HINT, KerberosError, KerberosLogin

HANDSHAKE_TIMEOUT_MS = (
    5_000  # it takes 10 ms; a gateway that has just started needs a quarter of a second for its first
)
TOKEN_BYTES_MAX = (
    64 * 1024
)  # from a gateway that has not proved itself yet; one with many groups of a user has some 10 KiB
# A gateway sends each answer in one frame. A page of a scan has some 10 MiB, a row may be a payload of as much again.
FRAME_BYTES_MAX = 256 * 1024 * 1024
RECEIVED_BYTES_MAX = (1 << 24) - 1  # the most that the three bytes can say; gateways do not go by it
TOKENS_MAX = 4  # Kerberos needs one from each side
LAYERS = {"auth": 1, "auth-int": 2, "auth-conf": 4}
START, OK, BAD, ERROR, COMPLETE = 1, 2, 3, 4, 5
MECHANISM = b"GSSAPI"
LOG_HINT = f"the gateway's log tells why; {SERVICE_HINT}"
TEXT_CHARS_MAX = 200


class GatewaySocket:
    """A TCP socket for thriftpy2's transport, with one deadline for each call."""

    def __init__(self, address: tuple[str, int], connect_timeout_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._tcp = socket.create_connection(address, timeout=connect_timeout_ms / 1_000)
        self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._deadline_ms = 0.0
        self.asked = False

    def begin(self, timeout_ms: float) -> None:
        """Start a call, which must be answered within this time."""
        self._deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self.asked = False

    def _wait(self) -> None:
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError("timed out")
        self._tcp.settimeout(left_ms / 1_000)

    def read(self, size: int) -> bytes:
        """At least one byte and at most `size` of them."""
        self._wait()
        data = self._tcp.recv(size)
        if not data:
            raise EOFError("the gateway hung up")
        return data

    def write(self, data: bytes) -> None:
        """All of the bytes: a part of a request."""
        self._wait()
        self._tcp.sendall(data)

    def flush(self) -> None:
        """The request is whole."""
        self.asked = True

    def is_quiet(self) -> bool:
        """True when it is open, and nothing has come that was not read."""
        if self._tcp.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._tcp, select.POLLIN)
        return not poll.poll(0)

    def has_ended(self) -> bool:
        """True when it must not be used any longer, though it is open."""
        return False

    def is_open(self) -> bool:
        return self._tcp.fileno() >= 0

    def hang_up(self) -> None:
        """Wake the thread that waits for bytes; it sees that the other side has ended."""
        with suppress(OSError):  # it has ended, or was closed
            self._tcp.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._tcp.close()


class SaslSocket(GatewaySocket):
    """A socket behind a handshake, with both sides' names proved. `KerberosError` when a side is not content."""

    def __init__(self, address: tuple[str, int], connect_timeout_ms: int, clock: Clock, login: KerberosLogin) -> None:
        # First the tickets: a KDC may take long to answer, and a gateway would wait meanwhile.
        self._context = login.begin(address[0])
        super().__init__(address, connect_timeout_ms, clock)
        self._login = login
        self._end_ms = math.inf
        self._wraps = login.kerberos.quality != "auth"
        self._encrypts = login.kerberos.quality == "auth-conf"
        self._part_bytes_max = FRAME_BYTES_MAX  # of a request in one frame
        self._read = memoryview(b"")  # of an answer, unwrapped, and not taken yet
        try:
            self.begin(HANDSHAKE_TIMEOUT_MS)
            self._shake_hands()
        except TimeoutError:
            self.close()
            hint = "set store.hbase.sasl to off where the gateway's hbase.thrift.security.qop is not set"
            raise KerberosError("the gateway did not answer to SASL", hint) from None
        except EOFError:
            self.close()
            login.drop_refused()
            raise KerberosError("the gateway hung up during the login", LOG_HINT) from None
        except KerberosError:
            self.close()
            login.drop_refused()
            raise
        except BaseException:
            self.close()
            raise

    def _shake_hands(self) -> None:
        self._send_token(START, MECHANISM)
        self._send_token(OK, self._context.token)
        for _ in range(TOKENS_MAX):
            if self._context.is_complete:
                break
            self._send_token(OK, self._context.step(self._receive_token(OK)))
        if self._context.lacks(encryption=self._encrypts):
            raise KerberosError(f"the gateway's tickets are not good for {self._login.kerberos.quality}", LOG_HINT)
        self._end_ms = self._login.end_ms(self._context.lifetime_s)
        self._choose_layer(self._context.unwrap(self._receive_token(OK), encrypted=False))
        self._receive_token(COMPLETE)

    def _choose_layer(self, offer: bytes) -> None:
        quality = self._login.kerberos.quality
        layers = offer[0] if len(offer) == 4 else 0
        if not layers & LAYERS[quality]:
            offered = ", ".join(name for name, layer in LAYERS.items() if layers & layer) or "nothing"
            hint = "set store.hbase.sasl to what hbase.thrift.security.qop says there"
            raise KerberosError(f"the gateway offers {offered}, and not {quality}", hint)
        received_bytes_max = RECEIVED_BYTES_MAX if self._wraps else 0
        choice = bytes([LAYERS[quality]]) + received_bytes_max.to_bytes(3, "big")
        self._send_token(OK, self._context.wrap(choice, encrypt=False))
        if self._wraps:
            frame_bytes_max = int.from_bytes(offer[1:], "big")
            self._part_bytes_max = self._context.part_bytes_max(frame_bytes_max, encrypt=self._encrypts)
            if self._part_bytes_max <= 0:
                raise KerberosError(
                    f"the gateway takes frames of {frame_bytes_max} bytes, in which nothing fits", LOG_HINT
                )

    def _send_token(self, status: int, token: bytes) -> None:
        super().write(bytes([status]) + len(token).to_bytes(4, "big") + token)

    def _receive_token(self, wanted: int) -> bytes:
        head = self._exactly(5)
        status, size = head[0], int.from_bytes(head[1:], "big")
        if not OK <= status <= COMPLETE or size > TOKEN_BYTES_MAX:
            hint = "see that store.hbase.thrift2 and store.hbase.thrift name HBase's Thrift gateways"
            raise KerberosError(f"the gateway's answer to the login is not SASL: {head.hex()}", hint)
        token = bytes(self._exactly(size))
        if status in (BAD, ERROR):
            text = token.decode(errors="replace")[:TEXT_CHARS_MAX]
            raise KerberosError(f"the gateway refuses the login: {text}", LOG_HINT)
        if status != wanted:
            raise KerberosError("the gateway's login ends too early, or not at all", LOG_HINT)
        return token

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            self._wait()
            received = self._tcp.recv_into(view[filled:])
            if not received:
                raise EOFError("the gateway hung up")
            filled += received
        return data

    def read(self, size: int) -> bytes:
        """At least one byte of the answer and at most `size` of them."""
        while not self._read:
            length = int.from_bytes(self._exactly(4), "big")
            if length > FRAME_BYTES_MAX:
                raise ConnectionError(f"the gateway sent a frame of {length} bytes; {FRAME_BYTES_MAX} are the most")
            frame = self._exactly(length)
            try:
                self._read = memoryview(
                    self._context.unwrap(bytes(frame), encrypted=self._encrypts) if self._wraps else frame
                )
            except KerberosError as error:
                raise ConnectionError(str(error)) from error
        taken, self._read = bytes(self._read[:size]), self._read[size:]
        return taken

    def write(self, data: bytes) -> None:
        """All of the bytes: a part of a request, in frames that the gateway takes."""
        for start in range(0, len(data), self._part_bytes_max):
            part = data[start : start + self._part_bytes_max]
            try:
                frame = self._context.wrap(part, encrypt=self._encrypts) if self._wraps else part
            except KerberosError as error:
                raise ConnectionError(str(error)) from error
            super().write(len(frame).to_bytes(4, "big") + frame)

    def is_quiet(self) -> bool:
        return not self._read and super().is_quiet()

    def has_ended(self) -> bool:
        return self._login.has_ended(self._end_ms)
