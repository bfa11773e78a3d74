"""Whatever a client can fill in is text on every page: markup, ends of attributes, marks of direction, NUL, a mebibyte in one line, no UTF-8."""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import crc32
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from basalt.console.page import CONSOLE_PATH
from basalt.console.text import shown
from tests.console_pages import PAGES_MAX, Place, walk
from tests.control.console.conftest import Api, Browser, Page
from tests.control.http.conftest import Client, Reply
from tests.shared_members import SharedMembers

ORDERS = "/v1/namespaces/shop/topics/orders"
STOCK = "/v1/namespaces/shop/tables/stock"
PAGE_BYTES_MAX = 2 << 20  # whatever is in a row, a page of rows is no larger
OF_A_KIND = 12
JUDGED = (b"content-type", b"content-security-policy")  # the headers of a page that it is refused for
NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")

HOSTILE = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "end of an attribute": '"\'> onmouseover=alert(1) x="',
    "template": "{{ 7 * 7 }}{% raw %}${7*7}",
    "command in a sentence": "`basalt topic delete orders`",
    "entity": "&lt;b&gt;&#60;script&#62;&amp;",
    "direction": "a\u202egnp.exe\u2066b\u200bc",
    "NUL": "a\x00b\x1b[31m\r\nc",
    "lone surrogate": "a\ud800b",
    "a mebibyte": "y" * (1 << 20),
    "no UTF-8": "\xff\xfe\x80",
    "style": "</style><style>*{display:none}</style>",
    "a link": "javascript:alert(1)",
}

Fill = Callable[[Client, Api, str], Reply | None]


def call(client: Client, method: str, path: str, body: Any = b"", **headers: str) -> Reply:
    return client.call(method, path, body, Authorization=f"Bearer {'b' * 40}", **headers)


def segment(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def query(**given: str) -> str:
    return urlencode({name: text.encode("utf-8", "surrogatepass") for name, text in given.items()})


def bytes_of(text: str) -> str:
    return b64encode(text.encode("utf-8", "surrogatepass")).decode()


def begin(api: Api, **wanted: Any) -> str:
    return str(api("POST", "/v1/transactions", {"snapshot": False, **wanted})["id"])


def cell(client: Client, api: Api, **given: str) -> Reply:
    put = {
        "row": bytes_of(f"row {crc32(str(given).encode())}"),
        "column": bytes_of("column"),
        "value": bytes_of("1"),
    } | given
    writer = begin(api)
    reply = call(client, "POST", f"{STOCK}/write", {"transaction": writer, "puts": [put]})
    call(client, "POST", f"/v1/transactions/{writer}/commit")
    return reply


def record(client: Client, **given: Any) -> Reply:
    return call(client, "POST", f"{ORDERS}/records", {"records": [{"payload": "1", **given}]})


def member(client: Client, **given: str) -> Reply | None:
    """A server that shares the store calls itself so."""
    members = vars(client).setdefault("members", None) or SharedMembers(client.services)
    vars(client)["members"] = members
    try:
        members.add(**{"name": "other:2"} | given)
    except UnicodeEncodeError:  # no row holds it
        return None
    return call(client, "GET", "/v1/cluster")


def abort_with_agent(client: Client, api: Api, text: str) -> Reply | None:
    if not text.isascii() or not text.isprintable():
        return None  # no header can have it
    return call(client, "POST", f"/v1/admin/transactions/{begin(api)}/abort", User_Agent=text[:4_000])


# By the field: what fills it in. All of them are asked for with all texts; each is taken, or refused in order.
FIELDS: dict[str, Fill] = {
    "topic": lambda client, _, text: call(client, "PUT", f"/v1/namespaces/shop/topics/{segment(text)}"),
    "namespace": lambda client, _, text: call(client, "PUT", f"/v1/namespaces/{segment(text)}/topics/a"),
    "property": lambda client, _, text: call(client, "PUT", f"{ORDERS}/properties", {"label.x": text}),
    "payload": lambda client, _, text: record(client, payload=text),
    "payload of bytes": lambda client, _, text: call(
        client, "POST", f"{ORDERS}/publish", {"messages": [text.encode("utf-8", "replace").decode("latin-1")]}
    ),
    "key": lambda client, _, text: record(client, key=text),
    "header": lambda client, _, text: record(client, headers=[{"name": text, "value": text}]),
    "group": lambda client, _, text: call(client, "PUT", f"{ORDERS}/groups/{segment(text)}", {}),
    "member": lambda client, _, text: call(client, "POST", f"{ORDERS}/groups/billing/members/{segment(text)}"),
    "task": lambda client, _, text: call(
        client, "POST", f"{ORDERS}/markers", {"task": text, "taskCount": 20, "kind": "end_of_stream"}
    ),
    "producer": lambda client, _, text: call(
        client, "POST", f"{ORDERS}/producers/{segment(text)}", {"run": text}
    ),
    "owner": lambda client, _, text: call(client, "POST", "/v1/transactions", {"owner": text, "snapshot": False}),
    "change": lambda client, api, text: call(
        client, "POST", f"/v1/transactions/{begin(api)}/changes", {"changes": [bytes_of(text)], "externalWrites": True}
    ),
    "participant": lambda client, api, text: call(
        client, "POST", f"/v1/transactions/{begin(api)}/participants", {"kind": "external", "name": text}
    ),
    "session": lambda client, _, text: call(client, "POST", f"/v1/transactions/sessions/{segment(text)}", {"run": "a"}),
    "run": lambda client, _, text: call(client, "POST", "/v1/transactions/sessions/import", {"run": text}),
    "table": lambda client, _, text: call(client, "PUT", f"/v1/namespaces/shop/tables/{segment(text)}"),
    "row": lambda client, api, text: cell(client, api, row=bytes_of(text)),
    "column": lambda client, api, text: cell(client, api, column=bytes_of(text)),
    "value": lambda client, api, text: cell(client, api, value=bytes_of(text)),
    "reason": lambda client, api, text: call(
        client, "POST", f"/v1/admin/transactions/{begin(api)}/abort?{query(reason=text)}"
    ),
    "name in the audit": lambda client, api, text: call(
        client, "POST", f"/v1/admin/transactions/{begin(api)}/abort?{query(**{'as': text})}"
    ),
    "user agent": abort_with_agent,
    "name of a server": lambda client, _, text: member(client, name=text),
    "URL of a server": lambda client, _, text: member(client, url=text),
    "version of a server": lambda client, _, text: member(client, version=text),
    "token": lambda client, _, text: call(client, "POST", "/v1/admin/tokens", {"name": text}),
    "note of a token": lambda client, _, text: call(client, "POST", "/v1/admin/tokens", {"name": "a", "note": text}),
    "role": lambda client, _, text: call(client, "PUT", f"/v1/admin/roles/{segment(text)}", {"members": ["token:a"]}),
    "subject of a grant": lambda client, _, text: call(
        client, "POST", "/v1/admin/grants", {"subject": text, "verbs": ["read"], "resource": "cluster"}
    ),
}  # fmt: skip
# Fields that no page shows, or not where somebody has proved who they are.
NOT_SHOWN = {
    "payload", "payload of bytes", "key", "header", "property", "member", "task", "producer", "participant", "change", "name in the audit",
    "user agent", "note of a token",
}  # fmt: skip


@pytest.fixture
def installation(asked: Client, root: Api) -> Client:
    root("PUT", ORDERS)
    root("PUT", STOCK)
    root("PUT", f"{ORDERS}/groups/billing", {})
    return asked


@pytest.fixture
def everything(asked: Client, root: Api) -> Browser:
    """Somebody who may do everything."""
    return Browser(asked, root("POST", "/v1/auth/logins", {"ttlMs": 3_600_000})["token"])


# Most pages are the same whatever holds the text, and reading one takes longer than making it.
@lru_cache(PAGES_MAX)
def read_once(status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> Page:
    return Page(Reply(status, [*headers], [body]))


def pages_of(browser: Browser) -> dict[str, Page]:
    """All pages, read as strictly as `Page` does: markup that is not ours fails."""
    found: dict[str, Page] = {}

    def read(place: Place) -> str | None:
        reply = browser.get(place.target) if place.form_on is None else browser.post(place.target)
        if reply.header("content-type") != "text/html; charset=utf-8":
            return None
        html = reply.body.decode()
        assert len(reply.body) < PAGE_BYTES_MAX, place
        assert NO_TEXT.search(html) is None, place
        judged = tuple(header for header in reply.headers if header[0] in JUDGED)
        found[place.target] = read_once(reply.status, judged, reply.body)
        return html

    list(walk(read, OF_A_KIND))
    return found


@pytest.mark.parametrize("name", FIELDS)
def test_it_is_text_on_every_page(installation: Client, root: Api, everything: Browser, name: str):
    taken = []
    for text in HOSTILE.values():
        reply = FIELDS[name](installation, root, text)
        assert reply is None or reply.status == 200 or (400 <= reply.status < 500 and reply.code), reply
        taken += [text] if reply is not None and reply.status == 200 else []
    pages = pages_of(everything)
    for place, page in pages.items():
        inside = [
            each for each in page.links if not each.startswith((CONSOLE_PATH, "#", "?")) and each != "/openapi.json"
        ]
        assert inside == [], place
        assert page.all("img", src="x") == page.all("style") == [], place
    told = " ".join(page.text for page in pages.values())
    unseen = [text for text in taken if as_told(text) not in told]
    assert unseen == [] or name in NOT_SHOWN


def as_told(text: str) -> str:
    """The beginning of a text as pages show it; in hex where it is none."""
    try:
        return " ".join(shown(text.encode().decode())[:200].split())
    except UnicodeEncodeError:
        return f"0x{text.encode('utf-8', 'surrogatepass').hex()}"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_so_is_what_is_asked_for_in_an_address(browser: Browser, text: str):
    cut = text[:2_000]
    for path in ("/console", "/console/topics", "/console/transactions", "/console/sessions", "/console/tables"):
        for target in (
            f"{path}/{segment(cut)}",
            f"{path}?{query(after=cut, owner=cut, namespace=cut)}",
            f"{path}?{query(panel=cut)}",
        ):
            reply = browser.get(target)
            body = reply.body.decode()
            assert NO_TEXT.search(body) is None
            if reply.header("content-type") == "text/html; charset=utf-8":
                assert Page(reply).all("img", src="x") == []
