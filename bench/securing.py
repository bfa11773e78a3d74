"""Measures what TLS costs: handshakes with and without a client's certificate, and publishes and polls over TLS beside plain ones.

A handshake's yardstick is the server's half of the same one in memory, which is OpenSSL's own work. For the rest a server with TLS and
one without work in turns.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import uvloop

from basalt.api.bodies.messages import ConsumeRequest
from basalt.api.codecs.avro import encode_consume_request
from bench import processes
from bench.figures import Figure
from bench.load import Connection, drive, request
from bench.processes import Process
from bench.setting_up import BATCH, MESSAGE_BYTES, cpu_us_per, create_topics, path, publish_request

ROUNDS = 7
CLIENTS = 8
AT_ONCE = 16  # handshakes under way


def secured(folder: Path, quick: bool) -> Iterator[Figure]:
    """Handshakes, and what is sent over connections that are there."""
    certificates = Certificates(folder)
    handshakes = 200 if quick else 2_000
    for client in ("optional", "required"):
        title = f"handshake {'with' if client == 'required' else 'without'} a client's certificate"
        with processes.basalt(folder / client, *certificates.settings(client)) as server:
            own_us = certificates.own_us(handshakes, with_client=client == "required")
            context = certificates.context(with_client=client == "required")
            _shake(server.port, context, AT_ONCE)
            before_s, began = server.cpu_s(), time.perf_counter()
            _shake(server.port, context, handshakes)
            seconds = time.perf_counter() - began
            yield Figure(
                title, cpu_us_per(server, before_s, handshakes), "us", "us of OpenSSL", own_us, 4, at_most=True,
                note=f"{handshakes / seconds:,.0f} handshakes/s, whose clients share the machine",
            )  # fmt: skip
    with (
        processes.basalt(folder / "plain") as plain,
        processes.basalt(folder / "tls", *certificates.settings("optional")) as tls,
    ):
        yield from _beside(plain, tls, certificates.context(with_client=True), quick)


def _beside(plain: Process, tls: Process, context: ssl.SSLContext, quick: bool) -> Iterator[Figure]:
    sides = ((tls, context), (plain, None))
    topics = ("publish", "single", "poll")
    for server, secure in sides:
        create_topics(server, *topics, tls=secure)
        drive(server.port, 1, 4, publish_request("poll", BATCH), tls=secure)
    poll = request(path("poll", "/poll"), encode_consume_request(ConsumeRequest()))
    work = (
        ("publish 500 a call over TLS", 1, 20 if quick else 60, publish_request("publish", BATCH), BATCH, 1.3),
        (f"publish 1 a call over TLS, {CLIENTS} clients", CLIENTS, 500 if quick else 3_000, publish_request("single", 1), 1, 1.8),
        ("poll 2,000 over TLS", 1, 20 if quick else 60, poll, 4 * BATCH, 3),
    )  # fmt: skip
    for title, clients, calls, data, messages, target in work:
        rates: tuple[list[float], list[float]] = ([], [])
        cpu_us: tuple[list[float], list[float]] = ([], [])
        for turn in range(ROUNDS + 1):
            for side in (0, 1) if turn % 2 else (1, 0):
                server, secure = sides[side]
                before_s = server.cpu_s()
                load = drive(server.port, clients, calls, data, tls=secure)
                if turn:  # the first round warms up
                    rates[side].append(load.per_second * messages)
                    cpu_us[side].append(cpu_us_per(server, before_s, calls * messages))
        (ours, theirs), (our_rate, their_rate) = map(median, cpu_us), map(median, rates)
        yield Figure(
            title, ours, "us/msg", "us/msg plain", theirs, target, at_most=True,
            note=f"the server's processor for each message of {MESSAGE_BYTES} bytes; {our_rate:,.0f} messages/s, plain {their_rate:,.0f}",
        )  # fmt: skip


def _shake(port: int, context: ssl.SSLContext, count: int) -> None:
    """So many connections, some of them at a time: each is closed once its handshake is done, and one request answered."""
    asked = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"

    async def run() -> None:
        loop, numbers = asyncio.get_running_loop(), iter(range(count))

        async def client() -> None:
            for _ in numbers:
                _, connection = await loop.create_connection(
                    Connection, "127.0.0.1", port, ssl=context, server_hostname="localhost"
                )
                await connection.call(asked)
                connection.close()

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))

    uvloop.run(run())


class Certificates:
    """A CA, and what it has issued to a server and to a client: P-256, made by openssl."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        self._openssl(f"req -x509 {new} -days 60 -subj /CN=ca -keyout ca.key -out ca.pem")
        for name, extension in (("server", "subjectAltName=DNS:localhost"), ("client", "extendedKeyUsage=clientAuth")):
            self._openssl(f"req {new} -subj /CN={name} -keyout {name}.key -out {name}.csr")
            (folder / f"{name}.ext").write_text(extension)
            self._openssl(
                f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile {name}.ext -out {name}.pem"
            )

    def settings(self, client: str) -> list[str]:
        """Of a server that asks clients for certificates."""
        files = {"certificate": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
        return [f"tls.client={client}", *(f"tls.{key}={self._folder / file}" for key, file in files.items())]

    def context(self, *, with_client: bool) -> ssl.SSLContext:
        """Of a client."""
        context = ssl.create_default_context(cafile=self._folder / "ca.pem")
        if with_client:
            context.load_cert_chain(self._folder / "client.pem", self._folder / "client.key")
        return context

    def own_us(self, count: int, *, with_client: bool) -> float:
        """Processor microseconds of the server's half of a handshake in memory."""
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context(with_client=with_client)
        server.load_cert_chain(self._folder / "server.pem", self._folder / "server.key")
        server.load_verify_locations(self._folder / "ca.pem")
        server.verify_mode, server.num_tickets = ssl.CERT_OPTIONAL, 0
        spent_s = 0.0
        for _ in range(count):
            there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
            asking = client.wrap_bio(back, there, server_hostname="localhost")
            for turn in range(2):
                with suppress(ssl.SSLWantReadError):
                    asking.do_handshake()
                began_s = time.process_time()
                if not turn:
                    answering = server.wrap_bio(there, back, server_side=True)
                with suppress(ssl.SSLWantReadError):
                    answering.do_handshake()
                spent_s += time.process_time() - began_s
        return spent_s / count * 1e6

    def _openssl(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self._folder, check=True, capture_output=True)
