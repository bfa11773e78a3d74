"""A program: a server whose store has regions, if only on paper, for pages of which an embedded store has nothing. It prints its URL.

Its time stands still, behind two lifetimes of writers, so that ages on its pages stay as they are.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import uvicorn

from basalt.client.attempts import Send
from basalt.client.plans import Answer
from basalt.console.app import PAGES
from basalt.embedded import exchange
from basalt.http.app import build_app
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt.settings.tree import ConsoleSettings, TransactionSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from tests.control.pruning.conftest import LIFETIME_MS, PaperCluster
from tests.region_data import OUTLIVED_MS, fill_regions

SETTINGS = Settings(
    transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS),
    console=ConsoleSettings(refresh_ms=0),
)
WAIT_MS = 60_000  # for an answer


async def main() -> None:
    store = MemoryStore(atomic=False)
    cluster = PaperCluster(SystemTable(store.table("system")))
    clock = ManualClock(int(time.time() * 1_000) - 2 * OUTLIVED_MS)
    loop = asyncio.get_running_loop()
    app = build_app(
        await open_services(SETTINGS, None, store=store, clock=clock, cluster=cluster), further_routes=PAGES
    )

    async def answer(method: str, path: str, body: Any) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        sent = Send(method, path, {"Content-Type": "application/json"}, data, WAIT_MS)
        reply = await exchange(app, sent, {"Host": "localhost"})
        assert isinstance(reply, Answer), reply
        return reply

    def ask(method: str, path: str, body: Any = None, status: int = 200) -> Any:
        reply = asyncio.run_coroutine_threadsafe(answer(method, path, body), loop).result()
        assert reply.status == status, reply
        return json.loads(reply.body) if reply.body else None

    await asyncio.to_thread(fill_regions, ask, cluster, clock)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning")).serve([listener])


asyncio.run(main())
