"""Every page, as a real browser shows it: with all there is, with nothing, to somebody without rights, and for reading only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.conftest import Shop
from tests.browser.visitor import Visitor
from tests.console_pages import FILLED_IN, Place, route_of, unreached, walk
from tests.system.server_process import ServerProcess

# How many pages of a kind are looked at in each state. Of two one has names that are as long and odd as names may be.
OF_A_KIND = {"full": 2, "empty": 1, "no rights": 1, "read-only": 1, "regions": 1}
WITHIN = {"regions": "/console/regions"}  # of which an embedded store has nothing; other pages are the same there
OPENED = ("full",)
STATUSES = {"no rights": (200, 403)}  # of pages to which others lead; 409 of an act that would change nothing


@dataclass
class Survey:
    """What was found on all pages, by the kind of fault."""

    statuses: tuple[int, ...]
    opens: bool = False  # what a page has folded up, before it is looked at
    looks: set[str] = field(default_factory=set)  # of texts, as they were judged on pages of any state
    places: list[Place] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)
    _routes: set[object] = field(default_factory=set)

    def is_first(self, place: Place) -> bool:
        """Tell whether no page of its route was looked at before."""
        route = route_of(place.path), place.form_on is None
        is_first = route not in self._routes
        self._routes.add(route)
        return is_first

    def note(self, kind: str, place: Place, found: Any) -> None:
        if found:
            self.faults.setdefault(kind, []).append(f"{place.target}: {found}")


@pytest.fixture(scope="module")
def looks() -> set[str]:
    """How texts look whose colors were judged."""
    return set()


@pytest.fixture(scope="module")
def survey(chromium: Any, looks: set[str], request: pytest.FixtureRequest) -> Survey:
    """Go through all pages once, and note everything."""
    url, token = _who(request)
    of_a_kind, within = OF_A_KIND[request.param], WITHIN.get(request.param, "/console")
    found = Survey(STATUSES.get(request.param, (200, 409)), request.param in OPENED, looks)
    with (
        Visitor.at(chromium, url, token, reduced_motion="reduce") as visitor,
        Visitor.at(chromium, url, token, java_script_enabled=False) as plain,
    ):
        found.places += walk(lambda place: _look(visitor, plain, place, found), of_a_kind, within)
    return found


def _who(request: pytest.FixtureRequest) -> tuple[str, str | None]:
    """The server's URL, and the login of who looks."""
    state = request.param
    if state in ("full", "no rights"):
        shop: Shop = request.getfixturevalue("shop")
        return shop.server.url, shop.root if state == "full" else request.getfixturevalue("no_rights")
    if state == "regions":
        return request.getfixturevalue("region_url"), None
    server: ServerProcess = request.getfixturevalue("empty" if state == "empty" else "read_only")
    return server.url, None


def _look(visitor: Visitor, plain: Visitor, place: Place, found: Survey) -> str | None:
    """Look at one page; its HTML."""
    answer = visitor.go(place.target) if place.form_on is None else _plan(visitor, place)
    # None: a file, or what the visitor may not do, whose button cannot be pressed.
    if answer is None or not answer.headers["content-type"].startswith("text/html"):
        return None
    html: str = answer.text()
    refused = place.form_on is not None and answer.status == 400  # its other fields were left empty
    if found.opens:
        visitor.open_all()
    found.note("status", place, answer.status not in found.statuses and not refused and answer.status)
    found.note("axe", place, visitor.violations(dark=found.is_first(place), seen=found.looks))
    found.note("sideways", place, visitor.sideways())
    found.note("motion", place, visitor.motion())
    found.note("refused", place, visitor.refused())
    # Chromium says so of every answer that is not 200; which ones there may be is another question.
    found.note("faults", place, [each for each in visitor.faults if f"a status of {answer.status}" not in each])
    visitor.faults.clear()
    found.note("facts", place, _differing(visitor.facts(), _facts_of(plain, place, html)))
    return html


def _plan(visitor: Visitor, place: Place) -> Any:
    visitor.go(place.form_on or "")
    visitor.open_all()
    actions = visitor.page.eval_on_selector_all("form", "(forms) => forms.map((each) => each.getAttribute('action'))")
    # A backup is offered under the name of this minute, which was another one when its page was looked at.
    alike = [each for each in actions if each and route_of(urlsplit(each).path) == route_of(place.path)]
    action = place.target if place.target in alike else alike[0]
    form = visitor.page.locator(f'form[action="{action}"]')
    for empty in form.locator("input[required]").all():
        if not empty.input_value() and empty.is_enabled():
            empty.fill(FILLED_IN[empty.get_attribute("name") or ""])
    button = form.locator("button")
    if button.is_disabled():
        return None
    with visitor.page.expect_navigation() as navigation:
        button.click()
    return navigation.value


def _facts_of(plain: Visitor, place: Place, html: str) -> str:
    """The text of the very same answer in a browser without scripts, which went to a page of the server before."""
    if not plain.page.url.startswith(plain.url):
        plain.go(place.target)
    plain.page.set_content(html)
    return plain.facts()


def _differing(one: str, other: str) -> str:
    """Where two texts begin to differ; empty where they do not."""
    if one == other:
        return ""
    start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"{one[start - 20 : start + 60]!r} with scripts, {other[start - 20 : start + 60]!r} without"


pytestmark = pytest.mark.parametrize("survey", [*OF_A_KIND], indirect=True)


def test_nothing_is_in_the_way_of_who_cannot_see_or_point(survey: Survey):
    assert survey.faults.get("axe", []) == []


def test_no_page_breaks_its_policy(survey: Survey):
    assert survey.faults.get("refused", []) == []


def test_no_page_has_errors_or_asks_another_host(survey: Survey):
    assert survey.faults.get("faults", []) == []


def test_nothing_but_tables_scrolls_sideways_on_a_narrow_screen_or_at_twice_the_size(survey: Survey):
    assert survey.faults.get("sideways", []) == []


def test_nothing_moves_for_who_wants_it_to_be_still(survey: Survey):
    assert survey.faults.get("motion", []) == []


def test_every_page_tells_the_same_without_scripts(survey: Survey):
    assert survey.faults.get("facts", []) == []


def test_every_link_leads_to_a_page(survey: Survey):
    assert survey.faults.get("status", []) == []


def test_every_page_is_reached(survey: Survey, request: pytest.FixtureRequest):
    missing, of_regions = unreached(survey.places), WITHIN["regions"]
    if "full" in request.node.name:
        assert [route for route in missing if not route.startswith(of_regions)] == []
    if "regions" in request.node.name:
        assert [route for route in missing if route.startswith(of_regions)] == []
