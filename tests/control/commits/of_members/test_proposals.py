"""The coordinator decides about what members propose by its own state, and only about groups whose topics they own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from basalt.api.bodies.groups import GroupOptions
from basalt.commits.of_members.proposals import PLACED_MS_MAX, ProposalsOfMembers
from basalt.errors import UnavailableError
from basalt.transactions.proposal_calls import Placed, Propose, Proposed, Unit
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit, ReturnReason
from basalt_engine.clock import ManualClock
from basalt_engine.errors import CorruptionError
from basalt_engine.spans.spans import ZERO_ID, Spans
from basalt_engine.stores.memory import MemoryStore
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def spans(first: int, last: int) -> Spans:
    return Spans([(first.to_bytes(20, "big"), last.to_bytes(20, "big"))])


class Link:
    def __init__(self) -> None:
        self.told: list[Placed] = []

    def send(self, kind: object, told: Placed, timeout_ms: float, then: object) -> None:
        assert timeout_ms == PLACED_MS_MAX
        self.told.append(told)


class Asked:
    """A coordinator with one group, whose topic is the member's by the map."""

    def __init__(self, shop: Wired) -> None:
        self.shop, self.link, self.owner = shop, Link(), "run"
        transactions: Any = shop.transactions
        owners: Any = SimpleNamespace(owner_of=lambda _: self.owner)
        links: Any = SimpleNamespace(of_run={"run": self.link}.get, of_members={"instance": self.link})
        gate: Any = SimpleNamespace(owners=owners)
        self.proposals = ProposalsOfMembers(transactions.manager, transactions._stages, gate, links)

    async def __call__(self, *units: tuple[Edit, ...], force: bool = False, instance: str = "instance") -> Proposed:
        given = tuple(Unit.of(each, force=force) for each in units)
        return await self.proposals.propose(instance, Propose("run", 9, given))

    @property
    def group(self) -> Any:
        return self.shop.transactions.state.groups.by_number[1]


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    shop = await Wired.start(MemoryStore(atomic=False), ManualClock())
    await shop.topics.create(A, {})
    await shop.services.groups.make(A, "billing", GroupOptions())
    yield Asked(shop)


async def test_what_is_right_is_logged_and_the_member_hears_before_where(asked: Asked) -> None:
    place = asked.shop.transactions.manager.coming_place
    told = await asked(
        (edits.Acknowledged(0, 1, 1, spans(0, 5)),), (edits.Returned(1, 1, ReturnReason.RELEASED, 2, spans(6, 7)),)
    )
    assert told.refused == (None, None)
    assert asked.group.acknowledged == spans(0, 5)
    assert [each.spans for each in asked.group.returned] == [spans(6, 7)]
    assert asked.link.told == [Placed(9, place)]


async def test_of_plain_acknowledgements_the_member_need_not_hear_where_they_lie(asked: Asked) -> None:
    assert (await asked((edits.Acknowledged(0, 1, 1, spans(0, 5)),))).refused == (None,)
    assert asked.group.acknowledged == spans(0, 5)
    assert asked.link.told == []
    await asked((edits.Acknowledged(0, 1, 1, spans(6, 7)), edits.Returned(1, 1, ReturnReason.RELEASED, 2, spans(8, 9))))
    assert len(asked.link.told) == 1, "an attempt that is counted twice is one too many"


async def test_of_two_that_acknowledge_one_message_the_second_is_refused_wherever_it_was_asked(asked: Asked) -> None:
    first = await asked.shop.transactions.begin()
    second = await asked.shop.transactions.begin()
    assert (await asked((edits.AcknowledgedIn(first.id, 1, 1, spans(0, 5)),))).refused == (None,)
    (plain,) = (await asked((edits.Acknowledged(0, 1, 1, spans(4, 8)),))).refused
    assert plain is not None
    assert plain.code == "acknowledge_conflict"
    (lost,) = (await asked((edits.AcknowledgedIn(second.id, 1, 1, spans(4, 8)),))).refused
    assert lost is not None
    assert lost.code == "transaction_conflict"
    assert asked.shop.transactions.state.get(second.id).doomed is not None
    await asked.shop.transactions.commit(first.id)
    assert asked.group.acknowledged == spans(0, 5)


async def test_a_unit_is_logged_as_a_whole_or_not_at_all(asked: Asked) -> None:
    first = await asked.shop.transactions.begin()
    await asked((edits.AcknowledgedIn(first.id, 1, 1, spans(0, 5)),))
    one, other = (await asked(
        (edits.Acknowledged(0, 1, 1, spans(10, 12)), edits.Acknowledged(0, 1, 1, spans(4, 8))),
        (edits.Acknowledged(0, 1, 1, spans(20, 22)),),
    )).refused  # fmt: skip
    assert one is not None
    assert other is None
    assert asked.group.acknowledged == spans(20, 22)


async def test_groups_are_made_sought_changed_and_forgotten(asked: Asked) -> None:
    prefix, generation = asked.group.topic
    made = edits.GroupMade(77, 1, generation, prefix, "stock", b"{}", ZERO_ID, 3)
    sought, changed = edits.GroupSought(1, 1, 99, spans(0, 3).end), edits.GroupChanged(1, 1, asked.group.options, True)
    assert (await asked((made,), (sought,), (changed,))).refused == (None,) * 3
    table = asked.shop.transactions.state.groups
    assert {state.name: number for number, state in table.by_number.items()} == {"billing": 1, "stock": 2}
    assert (asked.group.round, asked.group.paused) == (99, True)
    tx = await asked.shop.transactions.begin()
    await asked((edits.AcknowledgedIn(tx.id, 1, 1, spans(4, 5)),))
    (refused,) = (await asked((edits.GroupsForgotten((1,)),))).refused
    assert refused is not None
    assert (await asked((edits.GroupsForgotten((1,)),), force=True)).refused == (None,)
    assert list(table.by_number) == [2]


async def test_what_another_owns_and_what_is_no_members_to_propose_is_refused(asked: Asked) -> None:
    asked.owner = "another"
    (refused,) = (await asked((edits.Acknowledged(0, 1, 1, spans(0, 5)),))).refused
    assert refused is not None
    assert refused.code == "shard_moving"
    asked.owner = "run"
    with pytest.raises(UnavailableError, match="not the member of this link"):
        await asked((edits.Acknowledged(0, 1, 1, spans(0, 5)),), instance="somebody")
    with pytest.raises(CorruptionError):
        await asked((edits.Aborted(1, 1, False),))
    assert not asked.group.acknowledged
