"""A consumer group of a real server over plain calls, in the shortest words for what tests do with it."""

from __future__ import annotations

import json
from typing import Any

from tests.system.server_process import ORDERS, Reply, ServerProcess

GROUP = f"{ORDERS}/groups/billing"
INVOICES = "/v1/namespaces/shop/topics/invoices"
JSON = {"Content-Type": "application/json"}


class Billing:
    """A group of the topic orders, over plain calls."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def make(self, messages: int = 10, **options: Any) -> None:
        self.server.ask("PUT", INVOICES)
        self.publish(*(f"m{number}" for number in range(messages)))
        self.server.ask_json("PUT", GROUP, {"retryDelayMs": 0, **options})

    def publish(self, *messages: str) -> None:
        if messages:
            self.server.ask_json("POST", f"{ORDERS}/publish", {"messages": list(messages)})

    def fetch(self, query: str = "", work: Any = None) -> Reply:
        if work is None:
            return self.server.ask("POST", f"{GROUP}/fetch{query}")
        return self.server.ask("POST", f"{GROUP}/fetch{query}", json.dumps(work).encode(), JSON)

    def claim(self, query: str = "") -> tuple[int, list[str], list[str]]:
        """The next claim: its number, payloads and ids, in hex."""
        reply = self.fetch(query)
        assert reply.status == 200, reply
        assert "basalt-claim" in reply.headers, reply
        got = reply.json()
        return (
            int(reply.headers["basalt-claim"]),
            [each["payload"] for each in got],
            [each["id"].encode("latin-1").hex() for each in got],
        )

    def acknowledge(self, status: int = 200, **asked: Any) -> Any:
        return self.server.ask_json("POST", f"{GROUP}/acknowledge", asked, status)

    def claims(self) -> list[int]:
        return [each["claim"] for each in self.server.ask_json("GET", f"{GROUP}/claims")["claims"]]

    def work(self, claim: int, text: str) -> Any:
        entry = {"namespace": "shop", "topic": "orders", "group": "billing", "claims": [claim]}
        publish = {"namespace": "shop", "topic": "invoices", "messages": [text]}
        return {"acknowledge": [entry], "publish": [publish]}

    def read(self, topic: str) -> list[str]:
        return [each["payload"] for each in self.server.ask_json("POST", f"{topic}/poll", {})]
