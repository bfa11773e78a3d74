"""All pages of the console, found as a visitor finds them: from the navigation on, by the links and forms of each page.

Of a kind of page (its route, and which parameters its link has) a few are enough; or one of each route. So a new page is in every test of this kind once a
page leads to it; `unreached` tells which none leads to.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from basalt.console.app import PAGES, missing
from basalt.console.page import CONSOLE_PATH, NAVIGATION

PAGES_MAX = 400  # of one walk: each kind has a few, so more means that the walk does not end
# What a visitor writes into empty fields: of a page that offers more then, and of forms that need it.
FILLED_IN = {
    "since": "@1700000000000", "before": "now", "namespace": "shop", "topic": "new-ones", "name": "night", "subject": "token:etl",
    "verbs": "read", "resource": "topic:shop:orders", "members": "token:etl",
}  # fmt: skip
OFFERS_MORE = "since"
NOT_LEFT = ("/console/assets/", "/console/live/", "/console/logout")


@dataclass(frozen=True)
class Place:
    """A page: its target, and for the first step of an act the page whose form leads there."""

    target: str
    form_on: str | None = None

    @property
    def path(self) -> str:
        return urlsplit(self.target).path


# Walks that differ in what one field holds find most pages as the walk before them did, and reading a page takes longer than making it.
@lru_cache(PAGES_MAX)
def links_of(target: str, html: str) -> Links:
    return Links(target, html)


class Links(HTMLParser):
    """The links of a page, and where its forms lead as they are."""

    def __init__(self, target: str, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.plans: list[str] = []
        self._target = target
        self._form: tuple[str, dict[str, str]] | None = None
        self._select = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and not given.get("href", "#").startswith("#"):
            self._add(given["href"])
        elif tag == "form" and given.get("method", "get").lower() == "get":
            self._form = (given.get("action", urlsplit(self._target).path), {})
        elif tag == "form" and "step=plan" in given.get("action", ""):
            self.plans.append(urljoin(self._target, given["action"]))
        elif self._form is not None:
            self._fill(tag, given)

    def _fill(self, tag: str, given: dict[str, str]) -> None:
        assert self._form is not None
        if tag == "select":
            self._select = given.get("name", "")
        elif tag == "option" and self._select and ("selected" in given or self._select not in self._form[1]):
            self._form[1][self._select] = given.get("value", "")
        elif tag == "input" and "name" in given and (
            given.get("type") not in ("checkbox", "radio") or "checked" in given
        ):  # fmt: skip
            self._form[1][given["name"]] = given.get("value") or (
                FILLED_IN[given["name"]] if given["name"] == OFFERS_MORE else ""
            )

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._form is not None:
            action, fields = self._form
            self._form = None
            self._add(f"{action}?{urlencode(fields)}")

    def _add(self, href: str) -> None:
        target = urlsplit(urljoin(self._target, href))
        if not target.netloc and not target.scheme and target.path.startswith("/console"):
            self.links.append(target._replace(fragment="").geturl())


def route_of(path: str) -> str | None:
    """The path of the route that answers this path; None: there is no such page."""
    return next((route for route, pattern in _ROUTES.items() if pattern.fullmatch(path)), None)


def walk(read: Callable[[Place], str | None], of_a_kind: int, within: str = CONSOLE_PATH) -> Iterator[Place]:
    """Go through the pages, or those below a path; `read` answers a page's HTML, None for what is no page and has no links.

    Where one is enough of a kind, parameters make no other kind.
    """

    def kind_of(place: Place) -> object:
        return _kind(place) if of_a_kind > 1 else (route_of(place.path), place.form_on is None)

    waiting = [Place(path) for path, _, _ in NAVIGATION if path.startswith(within)]
    known = set(waiting)
    kinds = Counter(map(kind_of, waiting))
    for number, place in enumerate(waiting):
        assert number < PAGES_MAX, "the pages have no end"
        html = read(place)
        yield place
        if html is None:
            continue
        for found in _found(place, links_of(place.target, html)):
            if found.path.startswith(within) and found not in known and kinds[kind_of(found)] < of_a_kind:
                known.add(found)
                kinds[kind_of(found)] += 1
                waiting.append(found)


def unreached(places: Iterable[Place]) -> list[str]:
    """The routes of pages to which no page led; those whose path no link has, such as live streams, are left out."""
    reached = {route_of(place.path) for place in places}
    left_out = (*NOT_LEFT, "/console/login")
    return [route for route in _ROUTES if route not in reached and not route.startswith(left_out)]


def _found(place: Place, page: Links) -> list[Place]:
    """What the page leads to. Of links of one kind the longest comes second: names that are long and odd are looked at, too."""
    links = [Place(link) for link in page.links if not link.startswith(NOT_LEFT)]
    kinds: dict[object, list[Place]] = {}
    for each in links:
        kinds.setdefault(_kind(each), []).append(each)
    ordered = [
        each for alike in kinds.values() for each in (alike[0], max(alike, key=lambda link: len(link.target)), *alike)
    ]
    return [*(Place(plan, place.target) for plan in page.plans), *ordered]


def _kind(place: Place) -> object:
    return route_of(place.path), frozenset(parse_qs(urlsplit(place.target).query)), place.form_on is None


# In the order in which the server tries them; POST's are those of forms, whose first step is a page as well.
_ROUTES = {
    operation.path: re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(operation.path)))
    for operation in PAGES
    if operation not in missing.operations and operation.path != "/console/logout"
}
