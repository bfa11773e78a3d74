"""A client of one consumer group, for the tests of the calls on groups."""

from __future__ import annotations

from typing import Any

from basalt.http.app import build_app
from basalt.server.wiring import open_services
from basalt_engine.clock import ManualClock
from tests.control.http.conftest import Client, Reply

ORDERS = "/v1/namespaces/shop/topics/orders"
INVOICES = "/v1/namespaces/shop/topics/invoices"
GROUP = f"{ORDERS}/groups/billing"


class GroupClient(Client):
    """The shortest words for what the stories do with one group."""

    def make(self, messages: int = 10, group: str = GROUP, **options: Any) -> Any:
        """The topic with so many messages, m0 and so on, and a group of it."""
        self.topic()
        self.topic("invoices")
        if messages:
            self.publish(ORDERS, *(f"m{number}" for number in range(messages)))
        reply = self.call("PUT", group, options)
        assert reply.status == 200, reply.body
        return reply.json()

    def fetch(
        self, query: str = "", body: Any = b"", media_type: str | None = None, group: str = GROUP, **headers: str
    ) -> Reply:
        reply = self.call("POST", f"{group}/fetch{query}", body, media_type, **headers)
        assert reply.status == 200, reply.body
        return reply

    def post(self, call: str, body: Any = b"") -> Any:
        reply = self.call("POST", f"{GROUP}/{call}", body)
        assert reply.status == 200, reply.body
        return reply.json() if reply.body else None

    def pass_ms(self, milliseconds: int) -> None:
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(milliseconds)

    def restart(self) -> None:
        """Another server on the same store, as after a crash: what was in memory alone is gone."""
        services = self.services
        self.services = self.run(open_services(services.settings, None, store=services.store, clock=services.clock))
        self.app = build_app(self.services)

    def shown(self) -> Any:
        return self.call("GET", GROUP).json()


def payloads(reply: Reply) -> list[str]:
    return [message["payload"] for message in reply.json()]


def claim_of(reply: Reply) -> int:
    return int(reply.header("basalt-claim") or 0)


def ids_of(reply: Reply) -> list[str]:
    return [message["id"].encode("latin-1").hex() for message in reply.json()]


def done(*claims: int, publish: tuple[str, ...] = (), **entry: Any) -> dict[str, Any]:
    """A Work that acknowledges claims, and publishes."""
    work: dict[str, Any] = {
        "acknowledge": [{"namespace": "shop", "topic": "orders", "group": "billing", "claims": list(claims), **entry}]
    }
    if publish:
        work["publish"] = [{"namespace": "shop", "topic": "invoices", "messages": list(publish)}]
    return work
