"""The yardstick for HTTP: uvicorn as Basalt runs it, and the least that an application can do.

`POST /…` reads the body and answers 200 with an empty one; `GET /bytes/N` answers N constant bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

PART_BYTES = 256 << 10  # parts as large as those of a poll answer
_PART = b"x" * PART_BYTES


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Read all, say nothing; or say N bytes."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    wanted = int(scope["path"].rsplit("/", 1)[1]) if scope["path"].startswith("/bytes/") else 0
    headers = [(b"content-type", b"avro/binary"), (b"content-length", str(wanted).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while wanted > PART_BYTES:
        await send({"type": "http.response.body", "body": _PART, "more_body": True})
        wanted -= PART_BYTES
    await send({"type": "http.response.body", "body": _PART[:wanted]})


class _Server(uvicorn.Server):
    port_file: Path

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        partial = self.port_file.with_suffix(".partial")
        partial.write_text(str(self.servers[0].sockets[0].getsockname()[1]))
        partial.replace(self.port_file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port-file", type=Path, required=True)
    config = uvicorn.Config(
        application, port=0, http="httptools", lifespan="off", log_config=None, access_log=False, server_header=False,
        proxy_headers=False, backlog=2_048,
    )  # fmt: skip
    server = _Server(config)
    server.port_file = parser.parse_args().port_file
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve())


if __name__ == "__main__":
    main()
