"""Bad input to every call on consumer groups: each is refused by a 4xx that says what is wrong, and nothing at all has changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from basalt.api.bodies.messages import Work, WorkAcknowledge, WorkPublish
from basalt.api.codecs import avro
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from tests.control.http.conftest import AVRO, JSON, Client

ORDERS = "/v1/namespaces/shop/topics/orders"
GROUPS = f"{ORDERS}/groups"
BILLING, AUDITING, LEDGER = f"{GROUPS}/billing", f"{GROUPS}/auditing", f"{GROUPS}/ledger"
ID = "00000000000000000001" * 2
CLAIM = 7_777_777_777_777_777  # stands for the number of a claim of the group, which is known when the group has it
UNKNOWN = f"{ManualClock().now_ms():016x}000f{0:016x}0001"  # between two messages that nobody has
ENTRY = {"namespace": "shop", "topic": "orders", "group": "billing"}


class Bad(NamedTuple):
    """One bad request, and the code that it is answered with."""

    name: str
    method: str
    target: str
    body: Any
    code: str
    media_type: str | None = None


def post(call: str, name: str, body: Any, code: str = "malformed_body", media_type: str | None = None) -> Bad:
    return Bad(f"{call}: {name}", "POST", f"{BILLING}/{call}", body, code, media_type)


def options(name: str, body: Any, code: str = "malformed_body") -> Iterator[Bad]:
    yield Bad(f"make: {name}", "PUT", f"{GROUPS}/other", body, code)
    yield Bad(f"change: {name}", "PUT", f"{BILLING}/options", body, code)


def bad_options() -> Iterator[Bad]:
    yield from options("not JSON", b"{mode}")
    yield from options("a list", [])
    yield from options("an unknown mode", {"mode": "exclusive"})
    yield from options("an unknown option", {"ackMs": 5})
    yield from options("mode as a number", {"mode": 1})
    yield from options("a key that is none", {"key": "value"}, "invalid_input")
    yield from options("a header of no name", {"key": "header:"}, "invalid_input")
    yield from options("a lease of no time", {"memberMs": 0})
    yield from options("a claim beyond the setting", {"claimMs": 43_200_001})
    yield from options("no unacknowledged messages", {"unackedMax": 0})
    yield from options("more unacknowledged messages than the setting", {"unackedMax": 100_001})
    yield from options("attempts below 0", {"attemptsMax": -1})
    yield from options("attempts beyond 16 bits", {"attemptsMax": 65_536})
    yield from options("a delay below 0", {"retryDelayMs": -1})
    yield from options("a delay above the most", {"retryDelayMs": 10, "retryDelayMsMax": 5})
    yield from options("a time as text", {"expireMs": "1d"})
    yield from options("a dead-letter topic of no name", {"deadLetterTopic": "a b"}, "invalid_name")
    yield Bad("make: a start that is none", "PUT", f"{GROUPS}/other", {"start": "yesterday"}, "invalid_input")
    yield Bad("make: a name that is none", "PUT", f"{GROUPS}/a%20b", {}, "invalid_name")
    yield Bad("make: of no topic", "PUT", "/v1/namespaces/shop/topics/none/groups/other", {}, "topic_not_found")
    yield Bad("make: of a topic of no name", "PUT", "/v1/namespaces/shop/topics/.x/groups/other", {}, "invalid_name")
    yield Bad("make: with other options", "PUT", BILLING, {"claimMs": 5_000}, "group_exists")
    yield Bad("change: another mode with claims", "PUT", f"{BILLING}/options", {"mode": "stream"}, "conflict")
    for query in ("limit=0", "limit=x", "start=", "start=a%20b", "start=.a", "figures=1", "state=parked"):
        yield Bad(f"list?{query}: query", "GET", f"{GROUPS}?{query}", b"", "invalid_input")
    yield Bad("list: of no topic", "GET", "/v1/namespaces/shop/topics/none/groups", b"", "topic_not_found")
    yield Bad("show: a query", "GET", f"{BILLING}?figures=true", b"", "invalid_input")
    yield Bad("delete: force as a number", "DELETE", f"{BILLING}?force=1", b"", "invalid_input")


def bad_fetches() -> Iterator[Bad]:
    for query in (
        "limit=0", "limit=-1", "limit=2147483648", "limit=ten", "limit=", "limit=1&limit=2", "bytes=0", "waitMs=-1",
        "waitMs=60001", "claimMs=0", "claimMs=43200001", "member=", "member=a%0ab", "member=" + "m" * 256, "epoch=-1", "epoch=x",
        "epoch=9223372036854775808", "transaction=abc", "records=yes", "isolation=committed",
    ):  # fmt: skip
        yield post(f"fetch?{query}", "query", b"", "invalid_input")
    yield post("fetch?epoch=5", "an epoch of nobody", b"", "invalid_input")
    yield post("fetch?member=w1&epoch=1", "an older process", b"", "member_fenced")
    yield post(f"fetch?transaction={'f' * 32}", "no transaction of here", b"", "transaction_not_found")
    yield post("fetch", "no JSON", b"nonsense")
    yield post("fetch", "no Work", {"claims": [CLAIM]})
    yield post("fetch", "another type", b"<fetch/>", "unsupported_media_type", "text/xml")
    yield post("fetch", "Avro of two bytes", b"\x00\x02", "malformed_body", AVRO)
    yield post(
        "fetch",
        "a Work of no topic",
        {"publish": [{"namespace": "shop", "topic": "none", "messages": ["a"]}]},
        "topic_not_found",
    )
    for name, entry, code in bad_entries():
        yield post("fetch", f"a Work of {name}", {"acknowledge": [entry]}, code)
        published = {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["a"]}], "acknowledge": [entry]}
        yield post("fetch", f"a publishing Work of {name}", published, code)
        yield Bad(f"one-shot: {name}", "POST", "/v1/transactions", {"work": published}, code)
    body = avro.encode_work(
        Work(
            [WorkPublish("shop", "orders", [b"a"])],
            acknowledge=[WorkAcknowledge("shop", "orders", "none", claims=[CLAIM])],
        )
    )
    yield post("fetch", "Avro that acknowledges in no group", body, "group_not_found", AVRO)
    yield Bad("fetch: of no group", "POST", f"{GROUPS}/none/fetch", b"", "group_not_found")
    yield Bad(
        "fetch: of no group, with Work",
        "POST",
        f"{GROUPS}/none/fetch",
        {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["a"]}]},
        "group_not_found",
    )
    yield Bad(
        "fetch: of no topic", "POST", "/v1/namespaces/shop/topics/none/groups/billing/fetch", b"", "topic_not_found"
    )


def bad_entries() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Entries of a Work's acknowledge."""
    yield "no group of this name", {**ENTRY, "group": "none", "claims": [CLAIM]}, "group_not_found"
    yield "a group of no name", {**ENTRY, "group": "a b", "claims": [CLAIM]}, "group_not_found"
    yield "no topic of this name", {**ENTRY, "topic": "none", "claims": [CLAIM]}, "topic_not_found"
    yield "a claim that was never given", {**ENTRY, "claims": [999_999]}, "claim_lost"
    yield "a claim of another member", {**ENTRY, "claims": [CLAIM], "member": "w2"}, "claim_lost"
    yield "a round that is over", {**ENTRY, "claims": [CLAIM], "round": 77, "member": "w1"}, "claim_lost"
    yield "a member of an older epoch", {**ENTRY, "claims": [CLAIM], "member": "w1", "epoch": 1}, "member_fenced"
    yield "an id that no message has", {**ENTRY, "ids": [bytes.fromhex(UNKNOWN).decode("latin-1")]}, "message_not_found"
    yield "an id beyond the end", {**ENTRY, "ids": ["\xff" * 20]}, "conflict"
    yield "an end that is not decided", {**ENTRY, "upTo": "\xff" * 20}, "conflict"
    yield "nothing", {**ENTRY}, "malformed_body"
    yield "a rejected message", {**ENTRY, "reject": [{"id": bytes.fromhex(ID).decode("latin-1")}]}, "conflict"
    yield "an id of zeros", {**ENTRY, "ids": ["\0" * 20]}, "malformed_body"
    yield "up to zeros", {**ENTRY, "upTo": "\0" * 20}, "malformed_body"


def bad_ends() -> Iterator[Bad]:
    for call in ("acknowledge", "release"):
        yield post(call, "nothing", {})
        yield post(call, "no body", b"")
        yield post(call, "a list", [])
        yield post(call, "claims as a number", {"claims": 1})
        yield post(call, "claim 0", {"claims": [0]})
        yield post(call, "a claim as text", {"claims": ["1"]})
        yield post(call, "an id of 39 digits", {"ids": [ID[1:]]})
        yield post(call, "an id of zeros", {"ids": ["0" * 40]})
        yield post(call, "an id as bytes", {"ids": ["\x01" * 20]})
        yield post(call, "an unknown field", {"claims": [CLAIM], "force": True})
        yield post(call, "leaving out of ids", {"ids": [ID], "except": [UNKNOWN]})
        yield post(call, "an id that is left out, too", {"claims": [CLAIM], "ids": [ID], "except": [ID]})
        yield post(call, "an epoch of nobody", {"claims": [CLAIM], "epoch": 5})
        yield post(call, "an epoch below 0", {"claims": [CLAIM], "member": "w1", "epoch": -1})
        yield post(call, "a round below 0", {"claims": [CLAIM], "round": -1})
        yield post(call, "a member with a slash", {"claims": [CLAIM], "member": "a/b"})
        yield post(call, "65,537 ids", {"ids": [ID] * 65_537}, "too_large")
        yield post(call, "Avro", avro.encode_work(Work()), "unsupported_media_type", AVRO)
        yield post(f"{call}?force=true", "a query", {"claims": [CLAIM]}, "invalid_input")
        yield post(call, "a claim that was never given", {"claims": [999_999]}, "claim_lost")
        yield post(call, "a claim of another member", {"claims": [CLAIM], "member": "w2"}, "claim_lost")
        yield post(call, "a round that is over", {"claims": [CLAIM], "member": "w1", "round": 77}, "claim_lost")
        yield post(call, "a member of an older epoch", {"claims": [CLAIM], "member": "w1", "epoch": 1}, "member_fenced")
        yield Bad(f"{call}: no group", "POST", f"{GROUPS}/none/{call}", {"claims": [CLAIM]}, "group_not_found")
    yield post("acknowledge", "an id that no message has", {"ids": [UNKNOWN]}, "message_not_found")
    yield post("acknowledge", "beyond the end", {"upTo": "f" * 40}, "conflict")
    yield post("acknowledge", "no transaction", {"claims": [CLAIM], "transaction": "abc"}, "invalid_input")
    yield post(
        "acknowledge", "a transaction of nobody", {"claims": [CLAIM], "transaction": "f" * 32}, "transaction_not_found"
    )
    yield post("release", "beyond the end", {"upTo": "f" * 40}, "conflict")
    yield post("release", "up to a number", {"upTo": 7})
    yield post("release", "up to where another has messages", {"upTo": ID, "member": "w2"}, "claim_lost")
    yield post("release", "a delay below 0", {"claims": [CLAIM], "delayMs": -1})
    yield post("release", "a delay of a year", {"claims": [CLAIM], "delayMs": 31_536_000_000})
    yield post(
        "release", "a delay of what was no attempt", {"claims": [CLAIM], "delayMs": 5, "counts": False}, "invalid_input"
    )
    yield post("release", "counts as text", {"claims": [CLAIM], "counts": "no"})


def bad_acts() -> Iterator[Bad]:
    yield post("seek", "nowhere", {})
    yield post("seek", "no place", {"to": "yesterday"}, "invalid_input")
    yield post("seek", "an id of 39 digits", {"to": ID[1:]}, "invalid_input")
    yield post("seek", "a number", {"to": 5})
    yield post("seek?dryRun=maybe", "a flag that is none", {"to": "start"}, "invalid_input")
    yield post("seek", "over a pending acknowledgement", {"to": "start"}, "conflict")
    yield post("pause", "a body", {"paused": True})
    yield post("resume?reason=" + "x" * 301, "a long reason", b"", "invalid_input")
    yield post("unpark", "nothing", {}, "invalid_input")
    yield post("unpark", "some and all", {"ids": [ID], "all": True}, "invalid_input")
    yield post("unpark", "all as text", {"all": "yes"})
    yield post("unpark", "an id of zeros", {"ids": ["0" * 40]})
    yield Bad("unpark: no group", "POST", f"{GROUPS}/none/unpark", {"all": True}, "group_not_found")
    yield Bad("messages: no group", "GET", f"{GROUPS}/none/messages", b"", "group_not_found")
    yield Bad("messages: an unknown state", "GET", f"{BILLING}/messages?state=lost", b"", "invalid_input")
    yield Bad("messages: none of them", "GET", f"{BILLING}/messages?limit=0", b"", "invalid_input")
    yield Bad("message: no id", "GET", f"{BILLING}/messages/abc", b"", "invalid_input")
    yield Bad("message: of no group", "GET", f"{GROUPS}/none/messages/{ID}", b"", "group_not_found")
    yield post("position", "of a group that keeps its own", {"upTo": ID}, "conflict")
    yield post("position", "nowhere", {})
    yield post("position", "before all", {"upTo": "0" * 40})
    yield post("position", "by two lines", {"upTo": ID, "by": "a\nb"}, "invalid_input")
    yield post("members/w1", "an older process", {"epoch": 1}, "member_fenced")
    yield post("members/w1", "an epoch below 0", {"epoch": -1})
    yield post("members/w1", "an unknown field", {"lease": 5})
    yield post("members/w1", "claim 0", {"extend": [0]})
    yield post("members/a%0ab", "a name of two lines", b"", "invalid_name")
    yield Bad("leave: an older process", "DELETE", f"{BILLING}/members/w1?epoch=1", b"", "member_fenced")
    yield Bad("leave: an epoch as text", "DELETE", f"{BILLING}/members/w1?epoch=x", b"", "invalid_input")
    for method, call, body in (
        ("GET", "", b""), ("DELETE", "", b""), ("PUT", "/options", {}), ("GET", "/members", b""), ("GET", "/claims", b""),
        ("POST", "/members/w1", b""), ("DELETE", "/members/w1", b""), ("POST", "/seek", {"to": "end"}), ("POST", "/pause", b""),
        ("POST", "/resume", b""), ("POST", "/position", {"upTo": ID}),
    ):  # fmt: skip
        yield Bad(f"{method} {call or 'group'}: no group", method, f"{GROUPS}/none{call}", body, "group_not_found")


BAD = [*bad_options(), *bad_fetches(), *bad_ends(), *bad_acts()]


@pytest.fixture(scope="module", params=["one batch", "row by row"])
def served(request: pytest.FixtureRequest, open_client: Callable[[Settings, bool], Client]) -> Client:
    """Two groups amid their work: one with claims, a pending and a returned message and a member; and a tracked one."""
    client = open_client(Settings(), request.param == "one batch")
    client.topic()
    client.publish(ORDERS, *(f"m{number}" for number in range(20)))
    for path, mode in ((BILLING, "shared"), (AUDITING, "shared"), (LEDGER, "tracked")):
        assert client.call("PUT", path, {"mode": mode}).status == 200
    first = client.call("POST", f"{BILLING}/fetch?limit=5&member=w1")
    assert first.header("basalt-claim")
    pending = client.call("POST", f"{BILLING}/fetch?limit=2")
    begun = client.begin(timeoutMs=60_000)
    done = {"claims": [int(pending.header("basalt-claim") or 0)], "transaction": begun["id"]}
    assert client.call("POST", f"{BILLING}/acknowledge", done).status == 200
    returned = client.call("POST", f"{BILLING}/fetch?limit=3")
    assert (
        client.call("POST", f"{BILLING}/release", {"claims": [int(returned.header("basalt-claim") or 0)]}).status == 200
    )
    other = client.call("POST", f"{AUDITING}/fetch?limit=4")
    assert (
        client.call("POST", f"{AUDITING}/acknowledge", {"claims": [int(other.header("basalt-claim") or 0)]}).status
        == 200
    )
    return client


def state_of(client: Client) -> list[Any]:
    """All that a call on a group could change: groups, claims, members, the log and transactions."""
    targets = [GROUPS, ORDERS, f"{ORDERS}/stats", "/v1/transactions", "/v1/namespaces/shop/topics"]
    targets += [f"{group}/{call}" for group in (BILLING, AUDITING, LEDGER) for call in ("claims", "members")]
    answers = [client.call("GET", target) for target in targets]
    assert {answer.status for answer in answers} == {200}
    return [answer.json() for answer in answers] + [client.payloads(ORDERS), durable_state(client)]


def claim_of_w1(client: Client) -> int:
    claims = client.call("GET", f"{BILLING}/claims").json()["claims"]
    return next(int(each["claim"]) for each in claims if each["member"] == "w1")


def durable_state(client: Client) -> Any:
    groups = client.services.transactions.state.groups
    return [
        (number, state.round, state.paused, bytes(state.options), list(state.acknowledged), len(state.returned))
        for number, state in sorted(groups.by_number.items())
    ]


@pytest.mark.parametrize("bad", [pytest.param(bad, id=bad.name) for bad in BAD])
def test_it_is_refused_and_nothing_has_changed(served: Client, bad: Bad) -> None:
    before, acts = state_of(served), served.call("GET", "/v1/admin/audit").json()
    media_type = bad.media_type or (JSON if isinstance(bad.body, bytes) and bad.body else None)
    body = bad.body
    if not isinstance(body, bytes):
        body = json.dumps(body).replace(str(CLAIM), str(claim_of_w1(served))).encode()
        media_type = media_type or JSON
    reply = served.call(bad.method, bad.target, body, media_type)
    assert (reply.code, reply.status // 100) == (bad.code, 4), reply.body[:300]
    assert json.loads(reply.body)["detail"]
    assert state_of(served) == before
    if bad.code != "conflict":  # an act that the state of the group refuses leaves a line
        assert served.call("GET", "/v1/admin/audit").json() == acts


def test_there_are_enough_of_them_and_each_is_another_one() -> None:
    assert len({(bad.method, bad.target, repr(bad.body)) for bad in BAD}) == len(BAD) >= 60
