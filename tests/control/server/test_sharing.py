"""Several servers that serve the topics of one store beside each other: what a client gets from any of them, and what becomes of it when one of them goes."""

from __future__ import annotations

import uvloop

from tests.control.server.sharing_servers import Sharers, Story, sharers


def run(story: Story, count: int = 2) -> None:
    async def all_of_it() -> None:
        async with sharers(count) as world:
            await story(world)

    uvloop.run(all_of_it())


def test_a_server_that_does_not_lead_opens_services_of_its_own():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        assert not member.services.transactions.manager.is_known
        assert member.services.scheduler.figures().keys() == {"retention", "stats"}

    run(story)
