"""Three servers that share one store: a list of topics has the figures of all of them, which their owners tell, and says whose are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from basalt.errors import UnavailableError
from basalt.operations import figures_elsewhere
from basalt.operations.figures_elsewhere import ANSWER_MS_MAX, FIGURES
from tests.control.server.sharing_servers import STEP_S, Sharers, sharers
from tests.led_servers import HANG_S

LIST = "/v1/admin/topics"


async def listed(world: Sharers, query: str = "figures=true", at: int = 0) -> Any:
    with world.time.standing_still():  # figures are read for a quarter of a second, which passes quickly here
        answer = await world.servers[at].ask("GET", f"{LIST}?{query}")
    assert answer.status == 200, answer.body
    return answer.json()


async def told(
    world: Sharers, expected: object, of: Callable[[Any], object], query: str = "figures=true", at: int = 0
) -> Any:
    """The list once it is as expected."""
    async with asyncio.timeout(HANG_S):
        while of(page := await listed(world, query, at)) != expected:
            await asyncio.sleep(STEP_S)
    return page


def run(story: Callable[[Sharers, list[str]], Awaitable[None]]) -> None:
    """Three servers, each with a topic, in which are one, two and three messages."""

    async def all_of_it() -> None:
        async with sharers(3) as world:
            names = [f"orders-{number}" for number in range(3)]
            for number, (name, server) in enumerate(zip(names, world.servers, strict=True)):
                await world.give(name, server)
                path = f"/v1/namespaces/shop/topics/{name}"
                assert (await server.ask("PUT", path)).status == 200
                answer = await server.ask("POST", f"{path}/publish", {"messages": ["x"] * (number + 1)})
                assert answer.status == 200, answer.body
            await story(world, names)

    uvloop.run(all_of_it())


def counts(page: Any) -> dict[str, int | None]:
    return {each["name"]: each["figures"] and each["figures"]["messages"] for each in page["topics"]}


def places(page: Any) -> tuple[list[str], int]:
    return [each["name"] for each in page["topics"]], page["uncounted"]


@pytest.mark.parametrize("at", [0, 1])
def test_whichever_server_is_asked_a_list_has_the_figures_of_topics_of_all_owners(at: int):
    async def story(world: Sharers, names: list[str]) -> None:
        page = await told(world, dict(zip(names, (1, 2, 3), strict=True)), counts, at=at)
        assert page["unanswered"] == []
        assert all(each["figures"]["publishedPerSecond"] > 0 for each in page["topics"])

    run(story)


def test_a_list_in_the_order_of_figures_has_topics_of_all_owners_in_their_places_and_on_each_page():
    async def story(world: Sharers, names: list[str]) -> None:
        order = "sort=messages&descending=true"
        await told(world, (names[::-1], 0), places, order)
        page = await told(world, (names[2:], 0), places, f"{order}&limit=1")
        await told(world, (names[1:2], 0), places, f"{order}&limit=1&after={page['next']}")

    run(story)


def test_an_open_transaction_that_holds_up_readers_at_another_owner_is_named():
    async def story(world: Sharers, names: list[str]) -> None:
        begun = (await world.leader.ask("POST", "/v1/transactions", {})).json()
        path = f"/v1/namespaces/shop/topics/{names[1]}/publish"
        answer = await world.leader.ask(
            "POST", path, {"messages": ["x"], "transactionWritePointer": begun["writePointer"]}
        )
        assert answer.status == 200, answer.body

        def held(page: Any) -> dict[str, str | None]:
            return {each["name"]: each["figures"] and each["figures"]["heldBy"] for each in page["topics"]}

        await told(world, {names[0]: None, names[1]: begun["id"], names[2]: None}, held)

    run(story)


def test_an_owner_that_does_not_answer_leaves_its_figures_out_and_is_named():
    async def story(world: Sharers, names: list[str]) -> None:
        async def fails(_: str, _asked: object) -> Any:
            raise UnavailableError("not now")

        handlers = world.servers[1].member.links.handlers
        handlers.remove(FIGURES)
        handlers.add(FIGURES, fails)
        page = await told(world, {names[0]: 1, names[1]: None, names[2]: 3}, counts)
        assert page["unanswered"] == [world.servers[1].instance]
        await told(world, ([names[0], names[2], names[1]], 1), places, "sort=messages")

    run(story)


def test_an_owner_is_asked_for_a_bounded_number_of_topics_at_once(monkeypatch):
    monkeypatch.setattr(figures_elsewhere, "TOPICS_ASKED_MAX", 1)

    async def story(world: Sharers, names: list[str]) -> None:
        await world.give(names[2], world.servers[1])
        await told(world, dict(zip(names, (1, 2, 3), strict=True)), counts)

    run(story)


def test_an_owner_that_is_stuck_is_waited_for_no_longer_than_said():
    assert ANSWER_MS_MAX <= 500, "somebody looks at the list"
