"""What holds for every page: its headers, its landmarks and labels, and that it tells what the API tells."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from basalt.console.app import PAGES
from basalt.console.page import HEADERS, TERMS_PATH
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from tests.console_pages import Place, unreached, walk
from tests.control.console.conftest import ASKED, TERMS, Api, Browser, Page
from tests.control.http.conftest import Client, Reply
from tests.control.pruning.conftest import PaperCluster
from tests.operator_data import fill, fill_access
from tests.region_data import fill_regions

OF_A_KIND = 3
FIELDS = ("input", "select", "textarea")
NAMED_BY_ITSELF = ("hidden", "submit", "button")
HEADERS_OF_ALL = {**dict(HEADERS), b"cache-control": b"no-store", b"x-content-type-options": b"nosniff"}


class Outline(HTMLParser):
    """What somebody who does not see the page is told of it; `faults` are what they would miss."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.described: list[str] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self._text: list[list[str]] = []
        self._labelled: set[str] = set()
        self._unlabelled: list[str] = []
        self._captions: list[bool] = []
        self.feed(html)
        self.close()
        self.faults += [f"{each} has no label" for each in self._unlabelled if each not in self._labelled]
        self.faults += [f"the id {each} is there twice" for each, count in self.ids.items() if count > 1]
        self.faults += [f"there is no element {each}" for each in self.described if each not in self.ids]
        self.faults += [
            f"{tag} is there {self.tags[tag]} times"
            for tag in ("h1", "main", "header", "footer", "title")
            if self.tags[tag] != 1
        ]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags[tag] += not (
            tag == "title" and any(each == "svg" for each, _ in self._open)
        )  # a drawing has one of its own
        self.ids.update([given["id"]] if "id" in given else [])
        for name in ("aria-labelledby", "aria-describedby", "aria-controls"):
            self.described += given.get(name, "").split()
        if tag == "label" and "for" in given:
            self._labelled.add(given["for"])
        if tag in FIELDS and given.get("type") not in NAMED_BY_ITSELF:
            self._field(tag, given)
        if tag == "th" and given.get("scope") not in ("col", "row"):
            self.faults.append("a heading of a table says neither col nor row")
        if tag == "img" and "alt" not in given:
            self.faults.append("an image has no text")
        if tag == "svg" and given.get("role") != "img" and given.get("aria-hidden") != "true":
            self.faults.append("a drawing is no image and not hidden")
        if tag == "table":
            self._captions.append(False)
        if tag == "caption":
            self._captions[-1] = True
        if tag not in ("meta", "link", "input", "img", "br", "hr"):
            self._open.append((tag, given))
            self._text.append([])

    def _field(self, tag: str, given: dict[str, str]) -> None:
        inside = any(each == "label" for each, _ in self._open)
        if not inside and "aria-label" not in given:
            self._unlabelled.append(given.get("id", f"{tag} {given.get('name')}"))

    def handle_data(self, data: str) -> None:
        for each in self._text:
            each.append(data)

    def handle_endtag(self, tag: str) -> None:
        _, given = self._open.pop()
        text = "".join(self._text.pop()).strip()
        if (
            tag in ("a", "button", "h1", "h2", "h3", "caption", "label", "summary", "th")
            and not text
            and "aria-label" not in given
        ):
            self.faults.append(f"{tag} {given} has no text")
        if tag == "table" and not self._captions.pop():
            self.faults.append("a table has no caption")


@pytest.fixture
def cluster(connect_cluster: Callable[[Settings], tuple[Client, PaperCluster]]) -> tuple[Client, PaperCluster]:
    """A client of a server that asks who is there, and whose store has regions: pages of these are looked at, too."""
    return connect_cluster(replace(ASKED, transactions=TERMS.transactions))


@pytest.fixture
def asked(cluster: tuple[Client, PaperCluster]) -> Client:
    return cluster[0]


@pytest.fixture
def everything(cluster: tuple[Client, PaperCluster], asked: Client, root: Api) -> Browser:
    """Somebody who may do everything, where there is an operator's installation."""
    assert isinstance(asked.clock, ManualClock)
    fill_regions(root, cluster[1], asked.clock)
    fill(root)
    fill_access(root)
    return Browser(asked, root("POST", "/v1/auth/logins", {"ttlMs": 43_200_000})["token"])


def seen(finder: Browser, reader: Browser | None = None) -> list[tuple[Place, Reply]]:
    """Every page that one finds, with its answer; or with the answer to another, who may find fewer."""
    found: list[tuple[Place, Reply]] = []

    def read(place: Place) -> str | None:
        reply = answer(finder, place)
        if reply.header("content-type") != "text/html; charset=utf-8":
            return None
        assert reply.status < 400 or place.form_on is not None, (place, reply.status)  # a form that is empty is refused
        found.append((place, reply if reader is None else answer(reader, place)))
        return reply.body.decode()

    places = list(walk(read, OF_A_KIND))
    assert unreached(places) == []
    return found


def answer(browser: Browser, place: Place) -> Reply:
    return browser.get(place.target) if place.form_on is None else browser.post(place.target)


@pytest.mark.parametrize("who", ["everything", "nobody"])
def test_every_page_has_the_headers_that_keep_others_out(everything: Browser, signed_in: Any, who: str):
    for place, reply in seen(everything, None if who == "everything" else signed_in("nobody")):
        headers = dict(reply.headers)
        assert {name: headers.get(name) for name in HEADERS_OF_ALL} == HEADERS_OF_ALL, place


@pytest.mark.parametrize("who", ["everything", "nobody"])
def test_every_page_can_be_read_by_who_does_not_see_it(everything: Browser, signed_in: Any, who: str):
    pages = seen(everything, None if who == "everything" else signed_in("nobody"))
    faults = {place.target: Outline(reply.body.decode()).faults for place, reply in pages}
    assert {place: found for place, found in faults.items() if found} == {}


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ("<table><tr><td>1</td></tr></table>", "a table has no caption"),
        ('<input name="a">', "input a has no label"),
        ("<th>x</th>", "a heading of a table says neither col nor row"),
        ("<a href='/x'></a>", "a {'href': '/x'} has no text"),
        ('<p id="a"></p><p id="a"></p>', "the id a is there twice"),
        ('<button aria-describedby="b">x</button>', "there is no element b"),
        ("<h1>a</h1><h1>b</h1>", "h1 is there 2 times"),
    ],
)
def test_a_page_that_cannot_be_read_so_is_found(html: str, fault: str):
    assert fault in Outline(html).faults


def test_every_page_is_named_in_the_documentation():
    text = (Path(__file__).parents[3] / "docs" / "operations" / "console.md").read_text()
    named = set(re.findall(r"`(/console[^` ]*)`", text))
    paths = {re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), each.path) for each in PAGES if each.method == "GET"}
    pages = {each for each in paths if not each.startswith(("/console/assets/", "/console/NAME0"))}
    assert pages - named == set()


def test_the_title_is_the_heading(everything: Browser):
    for place, reply in seen(everything):
        assert reply.body.decode().count(" · Basalt</title>") == 1, place


def test_each_word_that_is_a_link_finds_what_it_means(everything: Browser):
    places = {f"{TERMS_PATH}#{each['id']}" for each in everything.page(TERMS_PATH).all("dt") if "id" in each}
    found = {
        place.path: {each["href"] for each in Page(reply).all("a", **{"class": "term"})}
        for place, reply in seen(everything)
    }
    assert {path: links - places for path, links in found.items() if links - places} == {}
    assert len(set().union(*found.values())) > 10


def test_what_a_page_shows_is_what_its_line_for_curl_is_answered(asked: Client, everything: Browser):
    same = Api(asked, everything.token)
    compared = 0
    for place, _ in seen(everything):
        if place.form_on is not None:
            continue
        glue = "&" if urlsplit(place.target).query else "?"
        calls = everything.get(f"{place.target}{glue}json=true")
        page = everything.page(place.target)
        if calls.header("content-type") != "application/json":
            continue  # a page without calls
        lines = list(curls(page))
        for panel in calls.json().values():
            (line,) = [each for each in lines if each[:2] == tuple(panel["call"].split(" ", 1))][:1]
            answered = same(line[0], line[1], line[2], panel["status"])
            assert as_told(answered) == as_told(panel["answer"]), place
            compared += 1
    assert compared > 20


def as_told(answer: Any) -> Any:
    """The answer without what is another in each: the number of the request, and how the process is at that moment."""
    if isinstance(answer, dict) and "pid" in answer:
        return {"pid": answer["pid"]}
    return {**answer, "requestId": ""} if isinstance(answer, dict) and "requestId" in answer else answer


def curls(page: Page) -> Iterator[tuple[str, str, Any]]:
    """The calls that a page's lines for curl make: method, target and body."""
    for line in page.lines:
        words = shlex.split(line)
        if words[0] != "curl":
            continue
        assert words[1] == "-sS"
        method = words[words.index("-X") + 1] if "-X" in words else "GET"
        body = words[words.index("--data-binary") + 1].encode() if "--data-binary" in words else b""
        url = urlsplit(words[-1])
        assert (url.scheme, url.netloc) == ("http", "localhost")
        yield method, f"{url.path}?{url.query}" if url.query else url.path, body
