"""Pages that are open while their server stops: each says how old it is, in words, and goes on when the server is back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import QUIET
from tests.browser.visitor import COLORS, Visitor
from tests.console_pages import Place, walk
from tests.ports import reserved_port
from tests.system.server_process import ServerProcess

OPTIONS = ("--set", "console.refresh_ms=200")  # a page notices at once
BACK_MS_MAX = 240_000  # until it asks again: it waits longer and longer


@pytest.fixture(scope="module")
def server(servers: Any, stored: tuple[Path, Any]) -> Iterator[ServerProcess]:
    """A server at a port that is its own while it is stopped."""
    with reserved_port() as port:
        process: ServerProcess = servers("stopping", *OPTIONS, data=stored[0], port=port)
        yield process
        process.kill()


@pytest.fixture
def visitor(chromium: Any, server: ServerProcess) -> Iterator[Visitor]:
    with Visitor.at(chromium, server.url) as found:
        yield found


def test_every_page_says_how_old_it_is_and_can_be_read(visitor: Visitor):
    faults: list[str] = []
    looks: set[str] = set()

    def look(place: Place) -> str | None:
        if place.form_on is not None:
            return None
        visitor.page.unroute("**/*panel=*")
        answer = visitor.go(place.target)
        if answer is None:
            return None
        html: str = answer.text()
        if "data-live" in html:
            visitor.page.route("**/*panel=*", lambda route: route.abort("connectionrefused"))
            visitor.page.wait_for_selector("#stale:visible")
            if "(as it was)" not in visitor.page.evaluate(_STALE_MARKS):
                faults.append(f"{place.target}: its panels do not say so")
            faults.extend(f"{place.target}: {each}" for each in visitor.violations(tags=False, seen=looks))
            faults.extend(f"{place.target}: {each}" for each in visitor.sideways())
        return html

    places = list(walk(look, of_a_kind=1))
    assert faults == []
    assert len(places) > 5


_STALE_MARKS = """() => [...document.querySelectorAll("[data-stale] > h2")].map((each) => getComputedStyle(each, "::after").content).join()"""


def test_a_page_of_a_server_that_stops_says_so_and_goes_on_when_it_is_back(visitor: Visitor, server: ServerProcess):
    visitor.go("/console")
    server.stop()
    visitor.page.wait_for_selector("#stale:visible")
    assert "the server does not answer" in visitor.page.inner_text("#stale")
    assert visitor.page.is_visible("#panel-readiness table"), "what was there is there still"
    server.launch(*QUIET, *OPTIONS, port=server.port)
    server.wait_until_ready()
    visitor.page.wait_for_selector("#stale", state="hidden", timeout=BACK_MS_MAX)
    assert visitor.refused() == []


def test_the_colors_that_are_looked_at_are_rules_of_axe(visitor: Visitor):
    """A rule whose name is wrong would be looked at by nobody."""
    visitor.go("/console")
    visitor.page.evaluate("document.querySelector('h1').style.color = '#fefefe'")
    assert any(COLORS[0] in each for each in visitor.violations(tags=False))


def test_colors_are_judged_again_where_a_text_looks_as_none_did_or_lies_on_another_ground(visitor: Visitor):
    looks: set[str] = set()
    visitor.go("/console")
    assert visitor.violations(seen=looks) == []
    known = len(looks)
    visitor.page.evaluate("document.querySelector('h1').style.color = '#fefefe'")
    assert any("light: " + COLORS[0] in each for each in visitor.violations(seen=looks))
    assert len(looks) > known
    visitor.go("/console")
    visitor.page.evaluate("document.querySelector('main').style.background = '#333'")
    assert any("light: " + COLORS[0] in each for each in visitor.violations(tags=False, seen=looks))


def test_a_page_of_known_colors_is_still_asked_for_all_else(visitor: Visitor):
    looks: set[str] = set()
    visitor.go("/console")
    visitor.violations(seen=looks)
    visitor.page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x>')")
    assert any("image-alt" in each for each in visitor.violations(seen=looks))
