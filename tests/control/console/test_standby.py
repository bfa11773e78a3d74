"""The pages of a server that does not lead: its own health and the way to the leader, and what an open page is told at a change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from basalt.client.attempts import Send
from basalt.client.plans import Answer
from basalt.console.assets import ASSETS
from basalt.embedded import exchange
from basalt.server.wiring import RunningServices, Shared, open_services
from basalt.settings import Settings
from basalt.settings.tree import ConsoleSettings
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Store
from tests.control.console.conftest import ASKED, FORM, Page
from tests.control.http.conftest import Reply
from tests.led_servers import HANG_S, ONE_LEADS, LeaseTime, LedServer

JOBS = "/console/jobs"


class Server(LedServer):
    """One of two servers, and a browser that looks at its pages."""

    def __init__(self, time: LeaseTime, store: MemoryStore, name: str, settings: Settings) -> None:
        self.settings = settings
        super().__init__(time, store, name, open_services=self.open_services, settings=settings)

    async def open_services(self, store: Store, epoch: int, shared: Shared | None) -> RunningServices:
        return await open_services(self.settings, None, store=store, clock=self.clock, epoch=epoch, shared=shared)

    async def get(
        self, target: str, method: str = "GET", fields: dict[str, str] | None = None, **headers: str
    ) -> Answer:
        body = b"" if fields is None else urlencode(fields).encode()
        given = {
            "Host": "localhost",
            "Basalt-Direct": "1",
            "Accept": "text/html",
            **({} if fields is None else {"Content-Type": FORM}),
            **headers,
        }
        reply = await exchange(self.member, Send(method, target, {}, body, HANG_S * 1_000), given)
        assert isinstance(reply, Answer), reply
        return reply

    async def page(self, target: str, **how: Any) -> Page:
        answer = await self.get(target, **how)
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        return Page(Reply(answer.status, headers, [answer.body]))

    async def serves(self) -> bool:
        return (await self.get("/readyz")).status == 200

    async def knows(self, leader: Server) -> bool:
        return self.member.leadership.leader_url == leader.url


def run(story: Callable[[Server, Server], Awaitable[None]], settings: Settings = ONE_LEADS) -> None:
    async def all_of_it() -> None:
        time, store = LeaseTime(), MemoryStore(atomic=False)
        leader = Server(time, store, "first", settings)
        await time.until(leader.serves)
        standby = Server(time, store, "second", settings)
        await time.until(lambda: standby.knows(leader))
        try:
            await story(leader, standby)
        finally:
            for server in (leader, standby):
                await server.stop()

    asyncio.run(all_of_it())


def test_a_standby_shows_its_own_health_and_the_same_page_at_the_leader():
    async def story(leader: Server, standby: Server) -> None:
        for target in ("/console", JOBS, "/console/transactions?state=open&owner=a%26b", "/console/no/such/page"):
            page = await standby.page(target)
            assert (page.status, "This server does not lead" in page.text) == (503, True)
            assert leader.url + target in page.links
        answer = await standby.get(JOBS)
        assert (answer.headers["basalt-leader"], answer.headers["retry-after"]) == (leader.url, "1")
        page = await standby.page("/console")
        assert "Role standby" in page.text
        assert "Newest epoch that it knows 1" in page.text
        assert f"leader not good \u2013 standby: {leader.url} leads" in page.text
        assert "store good" in page.text
        assert (await standby.get("/console", "HEAD")).status == 503
        assert (await standby.get("/console", "DELETE")).status == 405

    run(story)


def test_a_panel_of_a_page_that_is_still_open_is_answered_with_a_sentence_for_its_page():
    async def story(leader: Server, standby: Server) -> None:
        page = await standby.page("/console?panel=hanging")
        assert (page.status, len(page.all("p", **{"data-told": ""}))) == (503, 1)
        assert f"{leader.url}/console" in page.links, "a panel alone is no page to go to"
        assert page.all("section", **{"data-live": ""}) == []

    run(story)


def test_a_standby_has_the_files_that_its_page_loads():
    async def story(leader: Server, standby: Server) -> None:
        for name in ("console.css", "console.js"):
            answer = await standby.get(ASSETS[name].path)
            assert (answer.status, answer.body) == (200, ASSETS[name].content)
        assert (await standby.get("/console/assets/0/none")).status == 404

    run(story)


def test_a_form_that_comes_to_a_standby_does_nothing_and_says_so():
    async def story(leader: Server, standby: Server) -> None:
        page = await standby.page(f"{JOBS}/stats/pause", method="POST", fields={"reason": "x", "digest": "0" * 32})
        assert (page.status, "Nothing was done: only the server that leads takes acts." in page.text) == (503, True)
        assert f"{leader.url}/console" in page.links
        refused = await standby.get(f"{JOBS}/stats/pause", method="POST", fields={}, Origin="https://evil.example")
        assert (refused.status, b"cross_origin" in refused.body or b"Cross origin" in refused.body) == (403, True)
        assert (await standby.get("/console", Host="evil.example")).status == 421

    run(story)


def test_an_open_page_says_that_another_one_leads_and_goes_on_when_its_server_leads_again():
    async def story(leader: Server, standby: Server) -> None:
        panel = f"{JOBS}?panel=jobs"
        assert [each["id"] for each in (await leader.page(panel)).all("section")] == ["panel-jobs"]
        with leader.gave_up():
            answer = await leader.get(panel)
            assert answer.status == 503
            await leader.time.until(standby.serves)
            assert [each["id"] for each in (await standby.page(panel)).all("section")] == ["panel-jobs"]
        await leader.time.until(lambda: leader.knows(standby))
        answer = await leader.get(panel)
        assert (answer.status, answer.headers["basalt-leader"]) == (503, standby.url)
        with standby.gave_up():
            await leader.time.until(leader.serves)
        assert (await leader.page(panel)).status == 200

    run(story)


def test_a_standby_whose_leader_is_gone_says_that_none_leads():
    async def story(leader: Server, standby: Server) -> None:
        with standby.stopped():
            await leader.stop()
            standby.member.leadership.release()
        standby.is_stopped = True
        standby.member.leadership._read_lease()
        page = await standby.page("/console")
        assert "no server leads at the moment." in page.text
        assert "basalt-leader" not in (await standby.get("/console")).headers

    run(story)


def test_the_page_of_the_leader_tells_its_lease():
    async def story(leader: Server, standby: Server) -> None:
        page = await leader.page("/console/cluster")
        assert "Leads yes, under epoch 1" in page.text
        assert f"URL {leader.url}" in page.text
        assert "Terms 1 since it started" in page.text
        assert "Lease holds for 6 s, renewed" in page.text

    run(story)


@pytest.mark.parametrize("url", ["javascript:alert(1)", "//evil.example", "data:text/html,x"])
def test_a_leader_whose_url_is_no_page_is_named_and_not_linked(monkeypatch, url):
    async def story(leader: Server, standby: Server) -> None:
        monkeypatch.setattr(type(standby.member.leadership), "leader_url", property(lambda _: url))
        page = await standby.page("/console")
        assert url in page.text
        assert [link for link in page.links if "alert" in link or "evil" in link or "data" in link] == []

    run(story)


def test_a_standby_that_asks_who_is_there_shows_its_page_and_nothing_of_the_store():
    async def story(leader: Server, standby: Server) -> None:
        page = await standby.page("/console/audit")
        assert page.status == 503
        assert page.all("form", action="/console/logout") == []

    run(story, ASKED)


def test_without_a_console_a_standby_has_no_pages():
    async def story(leader: Server, standby: Server) -> None:
        answer = await standby.get("/console")
        assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")

    run(story, replace(ONE_LEADS, console=ConsoleSettings(enabled=False)))
