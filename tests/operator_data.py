"""An installation as operators have it, for tests of the console: many topics, long and hostile names, groups, sessions, tables, a
transaction that holds readers back, others that lost a conflict or were given up, a job that is paused, and acts with their reasons.

It is made by calls of the API, so that it is the same in a process of its own and within a test's.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

TOPICS = 60
SESSIONS = 12
MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;"
TURNED = "\u202egnp.exe\u2066\u200b"  # marks of direction and a space that is not seen
LONG = "x" * 255
LONG_NAME = "a-topic-whose-name-is-as-long-as-names-may-be-" + "n" * 200
PAUSED = "log-snapshot"
SHOP = "/v1/namespaces/shop"
ORDERS = f"{SHOP}/topics/orders"
WAREHOUSE = f"{SHOP}/tables/stock"


class Ask(Protocol):
    """A call: method, path, body and the status that it must have; the answer."""

    def __call__(self, method: str, path: str, body: Any = ..., status: int = ...) -> Any: ...


@dataclass(frozen=True)
class Installation:
    """What is there, by name."""

    hanging: str  # the id of the transaction that holds the readers of shop:orders back
    open_too: str  # one that does not
    lost: str  # one that lost a conflict
    invalid: str
    session: str


def fill(ask: Ask) -> Installation:
    """Make all of it."""
    _topics(ask)
    _messages(ask)
    _groups(ask)
    session = _sessions(ask)
    _tables(ask)
    lost, invalid = _ended(ask)
    hanging, open_too = _open(ask)
    ask("POST", f"/v1/admin/jobs/{PAUSED}/pause?{urlencode({'reason': 'a backup of the log'})}")
    return Installation(hanging, open_too, lost, invalid, session)


def fill_access(ask: Ask) -> None:
    """Tokens, roles, grants and a quota, where the server asks who is there."""
    for name, note in (("etl", "the nightly load"), ("odd", MARKUP)):
        ask("POST", "/v1/admin/tokens", {"name": name, "note": note})
        ask("POST", "/v1/admin/grants", {"subject": f"token:{name}", "verbs": ["read"], "resource": "topic:shop:*"})
    ask("PUT", "/v1/admin/roles/night", {"members": ["token:etl"]})
    ask("PUT", "/v1/admin/quotas/" + quote("token:etl", safe=""), {"requestsPerS": 100})


def path_of(*parts: str) -> str:
    """A path of these names."""
    return "/".join(quote(part, safe="") for part in parts)


def _topics(ask: Ask) -> None:
    ask("PUT", ORDERS, {"ttl": "1d", "label.owner": MARKUP, "label.turned": TURNED})
    ask("PUT", f"{SHOP}/topics/{LONG_NAME}")
    ask("PUT", f"{SHOP}/topics/gone")
    ask("DELETE", f"{SHOP}/topics/gone")
    for number in range(TOPICS):
        ask("PUT", f"/v1/namespaces/area-{number % 7}/topics/events-{number:03}", {"ttl": "forever", "spread": "2"})


def _messages(ask: Ask) -> None:
    records: list[dict[str, Any]] = [
        {"payload": '{"id": 1, "total": 12.5}', "key": "order-1", "headers": [{"name": "trace", "value": "a"}]},
        {"payload": MARKUP, "key": MARKUP, "headers": [{"name": MARKUP, "value": MARKUP}]},
        {"payload": f"{TURNED}\x00\x1b[31m\r\n", "key": TURNED, "headers": [{"name": "t", "value": TURNED}]},
        {"payload": "y" * (1 << 20)},
    ]
    ask("POST", f"{ORDERS}/records", {"records": records})
    ask("POST", f"{ORDERS}/publish", {"messages": ["\xff\xfe\x00\x80"]})  # no UTF-8
    for number in range(0, TOPICS, 5):
        path = f"/v1/namespaces/area-{number % 7}/topics/events-{number:03}"
        ask("POST", f"{path}/publish", {"messages": [f"event {each}" for each in range(20)]})


def _groups(ask: Ask) -> None:
    for name in ("billing", LONG):
        ask("PUT", f"{ORDERS}/groups/{quote(name, safe='')}", {"mode": "shared", "retryDelayMs": 0, "attemptsMax": 1})
    billing = f"{ORDERS}/groups/billing"
    member = quote(MARKUP.replace("/", "|"), safe="")
    epoch = ask("POST", f"{billing}/members/{member}")["epoch"]
    ask("POST", f"{billing}/fetch?{urlencode({'limit': 2, 'member': MARKUP.replace('/', '|'), 'epoch': epoch})}")
    worked_on = ask("GET", f"{billing}/messages?state=claimed")["messages"][0]["id"]
    failed = {"ids": [worked_on], "member": MARKUP.replace("/", "|"), "epoch": epoch, "reason": MARKUP}
    ask("POST", f"{billing}/release", failed)  # it is parked, for one attempt is all it has
    ask("POST", f"{billing}/pause?{urlencode({'reason': MARKUP, 'as': MARKUP})}")


def _sessions(ask: Ask) -> str:
    for number in range(SESSIONS):
        ask("POST", f"/v1/transactions/sessions/import-{number:02}", {"run": f"host-{number} 2026-11-22T07:00"})
    hostile = "load " + MARKUP.replace("/", "|")
    for name in (hostile, LONG):
        ask("POST", f"/v1/transactions/sessions/{quote(name, safe='')}", {"run": MARKUP})
    opened = ask("POST", f"/v1/transactions/sessions/{quote(hostile, safe='')}", {"run": MARKUP})
    named = {"session": hostile, "sessionEpoch": opened["epoch"], "version": 7, "kind": "long", "snapshot": False}
    ask("POST", f"/v1/transactions/{_begin(ask, **named)}/commit")
    _begin(ask, **{**named, "version": 8})
    return hostile


def _tables(ask: Ask) -> None:
    ask("PUT", WAREHOUSE, {"conflict": "cell"})
    ask("PUT", f"{SHOP}/tables/{LONG_NAME}")
    writer = _begin(ask)
    cells = (("chair", "4"), ("desk", MARKUP), (TURNED, "1"), ("lamp", "z" * 1_000))
    puts = [{"row": _bytes(row), "column": _bytes("count"), "value": _bytes(value)} for row, value in cells]
    puts.append(
        {"row": b64encode(b"\xff\x00").decode(), "column": _bytes(MARKUP), "value": b64encode(b"\x80").decode()}
    )
    ask("POST", f"{WAREHOUSE}/write", {"transaction": writer, "puts": puts})
    ask("POST", f"/v1/transactions/{writer}/commit")


def _ended(ask: Ask) -> tuple[str, str]:
    """One transaction that lost a conflict, one that was given up, and two that operators ended."""
    winner, loser = _begin(ask, owner="first"), _begin(ask, owner=MARKUP, timeoutMs=300_000)
    changes = {"changes": [_bytes("key")], "externalWrites": False}
    for each in (winner, loser):
        ask("POST", f"/v1/transactions/{each}/changes", changes)
    ask("POST", f"/v1/transactions/{winner}/commit")
    ask("POST", f"/v1/transactions/{loser}/changes", changes, 409)
    given_up = _begin(ask, owner="ledger", externalWrites=True)
    why = urlencode({"reason": MARKUP, "as": TURNED.replace("\u202e", "").replace("\u2066", "").replace("\u200b", "")})
    ask("POST", f"/v1/admin/transactions/{given_up}/invalidate?{why}")
    stuck = _begin(ask, owner="etl")
    ask("POST", f"/v1/admin/transactions/{stuck}/abort?{urlencode({'reason': 'its client is gone'})}")
    return loser, given_up


def _open(ask: Ask) -> tuple[str, str]:
    """One transaction that holds readers back, and one that is merely open."""
    begun = ask("POST", "/v1/transactions", {"snapshot": False, "owner": "etl", "kind": "long"})
    _publish(ask, ["early"], begun["writePointer"])
    _publish(ask, [f"behind it {number}" for number in range(30)])
    return begun["id"], _begin(ask, owner="\u00e9t\u00e9 \u4e2d\u6587", kind="long")


def _begin(ask: Ask, **wanted: Any) -> str:
    return str(ask("POST", "/v1/transactions", {"snapshot": False, **wanted})["id"])


def _publish(ask: Ask, messages: Sequence[str], write_pointer: int | None = None) -> None:
    ask("POST", f"{ORDERS}/publish", {"transactionWritePointer": write_pointer, "messages": list(messages)})


def _bytes(text: str) -> str:
    return b64encode(text.encode()).decode()
