"""Groups under every combination that members must not notice, and the shortest words for what the stories do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from basalt.api.bodies.groups import (
    Acknowledged,
    AcknowledgeRequest,
    GroupOptions,
    Released,
    ReleaseRequest,
)
from basalt.api.bodies.json import HexMessageId
from basalt.groups.fetches import FetchAsk
from basalt.groups.groups import Groups
from basalt.groups.live_group import GroupFetch, LiveGroup
from tests.control.messaging.conftest import anyio_backend, memory, shop
from tests.wiring import A, Wired, ids, texts

WAIT_S_MAX = 30

__all__ = ["Billing", "anyio_backend", "memory", "shop"]


class Billing:
    """A group named billing, of topic orders."""

    def __init__(self, shop: Wired, name: str = "billing") -> None:
        self.shop = shop
        self.name = name

    @classmethod
    async def made(cls, shop: Wired, options: GroupOptions | None = None, name: str = "billing") -> Billing:
        await shop.services.groups.make(A, name, options or GroupOptions())
        return cls(shop, name)

    @property
    def groups(self) -> Groups:
        return self.shop.services.groups

    @property
    def live(self) -> LiveGroup:
        state = next(
            state for state in self.shop.transactions.state.groups.by_number.values() if state.name == self.name
        )
        return self.groups.live.of(state, A)

    async def fetch(self, member: str = "", limit: int | None = None, **ask: object) -> GroupFetch:
        return await self.groups.fetch(A, self.name, FetchAsk(member, limit=limit, **ask))  # type: ignore[arg-type]

    async def read(self, member: str = "", limit: int | None = None, **ask: object) -> list[str]:
        return texts((await self.fetch(member, limit, **ask)).fetch)

    async def acknowledge(
        self,
        *claims: int | None,
        ids: Sequence[bytes] = (),
        tx: int | None = None,
        up_to: bytes | None = None,
        **asked: object,
    ) -> Acknowledged:
        request = AcknowledgeRequest(
            tuple(map(HexMessageId, ids)), None if up_to is None else HexMessageId(up_to),
            tuple(claim for claim in claims if claim is not None), **asked,  # type: ignore[arg-type]
        )  # fmt: skip
        return await self.groups.acknowledge(A, self.name, request, tx)

    async def release(self, *claims: int | None, ids: Sequence[bytes] = (), **asked: object) -> Released:
        request = ReleaseRequest(
            tuple(map(HexMessageId, ids)),
            tuple(claim for claim in claims if claim is not None),
            **asked,  # type: ignore[arg-type]
        )
        return await self.groups.release(A, self.name, request)

    async def handled(self, member: str = "") -> list[str]:
        """All that is dealt now, acknowledged claim by claim."""
        found: list[str] = []
        known = self.live.members.get(member)
        epoch = 0 if known is None else known.epoch
        while (page := await self.fetch(member, epoch=epoch)).claim is not None:
            epoch = page.member_epoch
            found += texts(page.fetch)
            await self.acknowledge(page.claim, member=member)
        return found

    async def waiting(self, fetches: int = 1) -> None:
        """Return once so many fetches wait for messages: on a busy machine a store takes its time to say that there are none."""
        async with asyncio.timeout(WAIT_S_MAX):
            while len(self.live._queue) < fetches:
                await asyncio.sleep(0.005)

    def floor(self) -> bytes:
        return self.live.state.acknowledged.floor


def ids_of(page: GroupFetch) -> list[bytes]:
    return ids(page.fetch)
