"""The bytes of a snapshot are their client's own word: whatever they say, they show nothing that a poll without them would not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import parse_principal
from basalt.http.app import ANYBODY, build_app
from basalt.settings import Settings
from basalt.transactions.codec import TransactionFields
from basalt.transactions.rules.transaction import Kind, VisibilityLevel
from basalt_engine.snapshot import POINTER_MAX
from tests.control.http.conftest import Client
from tests.control.transactions.whole_bytes import encode_transaction

MALLORY = parse_principal("token:mallory")
PATH = "/v1/namespaces/shop/topics/orders"


def made(client: Client) -> list[int]:
    """A topic with rows of every fate, and the write pointers of their transactions."""
    path = client.topic()
    client.publish(path, "plain")
    pointers = []
    for how in ("commit", "abort", "invalidate", None):
        begun = client.begin()
        pointers.append(begun["writePointer"])
        client.publish(path, f"published, then {how}", pointer=begun["writePointer"])
        stored = {"transactionWritePointer": begun["writePointer"], "messages": [f"stored, then {how}"]}
        assert client.call("POST", f"{path}/store", stored).status == 200
        if how is not None:
            assert client.call("POST", f"/v1/transactions/{begun['id']}/{how}").status == 200
    undone = client.begin()
    placed = client.publish(path, "rolled back", pointer=undone["writePointer"])
    assert client.call("POST", f"{path}/rollback", placed.body, "application/json").status == 200
    return [*pointers, undone["writePointer"]]


@pytest.fixture(scope="module", params=[True, False], ids=["one batch", "row by row"])
def server(request: pytest.FixtureRequest, open_client: Callable[[Settings, bool], Client]) -> tuple[Client, list[int]]:
    client = open_client(Settings(), request.param)
    return client, made(client)


def read(client: Client, query: str = "", **wanted: Any) -> list[str]:
    policy = Policy([parse_grant(str(MALLORY), ["read"], "topic:shop:orders")])
    client.app = build_app(client.services, Caller(MALLORY, policy))
    try:
        return client.payloads(PATH, query, **wanted)
    finally:
        client.app = build_app(client.services, ANYBODY)


def forged(client: Client, fields: TransactionFields) -> list[str]:
    return read(client, transaction=encode_transaction(fields).decode("latin-1"))


def test_with_everything_visible_a_forged_snapshot_shows_what_uncommitted_reads_do(server: tuple[Client, list[int]]):
    client, pointers = server
    everything = read(client, "?isolation=uncommitted")
    for own in (pointers, [pointers[3]], []):
        fields = TransactionFields(
            id=own[0] if own else POINTER_MAX, read_pointer=POINTER_MAX, write_pointer=POINTER_MAX, checkpoints=own[1:],
            visibility=VisibilityLevel.SNAPSHOT_ALL,
        )  # fmt: skip
        shown = forged(client, fields)
        assert set(shown) <= set(everything)
        assert "rolled back" not in shown
    assert "stored, then None" not in everything


def test_nobody_reads_under_anothers_pointer_what_it_has_stored(server: tuple[Client, list[int]]):
    client, pointers = server
    for pointer in pointers:
        shown = forged(client, TransactionFields(pointer, POINTER_MAX, write_pointer=pointer))
        assert not [text for text in shown if text.startswith("stored") and text != "stored, then commit"]


@given(data=st.data())
@hypothesis_settings(deadline=None)
def test_whatever_a_snapshot_says_it_shows_no_more_than_an_uncommitted_read(
    server: tuple[Client, list[int]], data: st.DataObject
):
    client, pointers = server
    some = st.sampled_from([1, *pointers, *(pointer + 1 for pointer in pointers), POINTER_MAX])
    several = st.frozensets(some, max_size=5).map(lambda found: tuple(sorted(found)))
    fields = TransactionFields(
        id=data.draw(some), read_pointer=data.draw(some), invalid=data.draw(several), in_progress=data.draw(several),
        first_short=data.draw(some), kind=data.draw(st.sampled_from(Kind)), write_pointer=data.draw(some),
        checkpoints=data.draw(several), visibility=data.draw(st.sampled_from(VisibilityLevel)),
    )  # fmt: skip
    everything = read(client, "?isolation=uncommitted")
    shown = forged(client, fields)
    assert set(shown) <= set(everything)
    assert shown == [text for text in everything if text in shown], "in the same order, each once"
