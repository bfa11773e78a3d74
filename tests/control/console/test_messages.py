"""Messages on pages: read from a chosen start, searched within bounds, shown as text, taken along."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from basalt.console.pages.messaging import messages as pages
from basalt.console.pages.messaging.messages import LINE_CHARS, PAGE_ROWS, PAGE_ROWS_MAX, SCANNED_BYTES_MAX, SCANNED_MAX
from basalt.console.text import SHOWN_CHARS_MAX
from basalt.console.views.avro_view import SCHEMA_CHARS_MAX
from basalt.http.asgi import inside
from tests.control.console.conftest import Api

ORDERS = "/console/ns/shop/topics/orders"
LIST = f"{ORDERS}/messages"
API = "/v1/namespaces/shop/topics/orders"
HOSTILE = "<script>alert(1)</script>\u202e\x00"
SCHEMA = json.dumps({"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]})


def publish(api: Api, *payloads: str | bytes, **more: object) -> None:
    records = [
        {"payloadBase64": b64encode(each).decode(), **more} if isinstance(each, bytes) else {"payload": each, **more}
        for each in payloads
    ]
    api("POST", f"{API}/records", {"records": records})


def ids(api: Api) -> list[str]:
    return [each["id"] for each in api("GET", f"{API}/records?isolation=uncommitted")["records"]]


@pytest.fixture(autouse=True)
def orders(api: Api) -> None:
    api("PUT", API)


def test_nothing_is_read_before_a_start_is_chosen(browser, api):
    publish(api, "secret")
    page = browser.page(LIST)
    assert "Nothing is read before you say from where." in page.text
    assert "secret" not in page.text
    assert {"?from=end&back=50", "?from=start", "?from=-1h"} <= set(page.links)


def test_messages_are_read_from_the_oldest_the_newest_an_id_and_around_one(browser, api):
    publish(api, *(f"m{number:02}." for number in range(60)))
    found = ids(api)
    for query, shown in (
        ("from=start", range(50)),
        ("from=end&back=5", range(55, 60)),
        (f"from={found[30]}&limit=3", range(30, 33)),
        (f"from={found[30]}&back=2&limit=4", range(28, 32)),
    ):
        text = browser.page(f"{LIST}?{query}").text
        assert [number for number in range(60) if f"m{number:02}." in text] == list(shown)


def test_a_page_goes_on_behind_its_last_message_and_ends(browser, api):
    publish(api, *(f"m{number:02}." for number in range(PAGE_ROWS + 2)))
    page = browser.page(f"{LIST}?from=start&view=text")
    (following,) = page.all("a", rel="next")
    rest = browser.page(following["href"])
    assert ("m51." in rest.text, "m49." in rest.text, "view=text" in following["href"]) == (True, False, True)
    (last,) = rest.all("a", rel="next")
    assert "There is no such message." in browser.page(last["href"]).text


def test_the_lines_to_copy_read_the_same(browser, api):
    publish(api, "a")
    page = browser.page(f"{LIST}?from=end&back=5&limit=9")
    assert "basalt consume orders --namespace shop --from end --back 5 --isolation committed --limit 9" in page.text
    assert (
        "client.topic('orders').read(client.topic('orders').back('end', 5), limit=9, isolation='committed')"
        in page.text
    )
    assert "curl -sS 'http://localhost/v1/namespaces/shop/topics/orders/records?from=end&back=5" in page.text
    page = browser.page(f"{LIST}?from=-1h&isolation=inspect")
    assert "basalt message peek orders --namespace shop --from -1h --limit 50" in page.text
    assert "client.topic('orders').peek('-1h', back=None, limit=50)" in page.text
    assert sorted(browser.get(f"{LIST}?from=start&json=true").json()) == ["messages"]


def test_open_and_rolled_back_messages_are_there_where_all_are_asked_for_and_say_so(browser, api):
    publish(api, "plain")
    for end in ("abort", None):
        begun = api("POST", "/v1/transactions", {"snapshot": False})
        api("POST", f"{API}/publish", {"messages": [f"of {end}"], "transactionWritePointer": begun["writePointer"]})
        if end is not None:
            api("POST", f"/v1/transactions/{begun['id']}/{end}")
    publish(api, "behind")
    committed = browser.page(f"{LIST}?from=start")
    assert ("plain" in committed.text, "behind" in committed.text) == (True, False)
    assert f"Readers of committed messages stop here, for {begun['id']}." in committed.text
    inspected = browser.page(f"{LIST}?from=start&isolation=inspect").text
    assert "rolled back" in inspected
    assert "open by" in inspected
    assert "of abort" in inspected
    assert "behind" in inspected
    assert "behind" in browser.page(f"{LIST}?from=start&isolation=uncommitted").text


def test_a_filter_goes_over_what_is_shown_and_says_so(browser, api):
    publish(api, *(json.dumps({"n": number}) for number in range(60)))
    page = browser.page(f"{LIST}?from=start&pointer=/n&equals=7")
    assert "1 shown, of 50 that were looked at." in page.text
    page = browser.page(f"{LIST}?from=start&pointer=/n&equals=55")
    assert "0 shown, of 50 that were looked at." in page.text


def test_a_search_goes_on_to_a_bound_and_says_how_many_it_has_looked_at(browser, api, monkeypatch):
    assert SCANNED_MAX == 10_000
    publish(api, *(json.dumps({"n": number}) for number in range(60)))
    monkeypatch.setattr(pages, "SCAN_ROWS", 7)
    page = browser.page(f"{LIST}?from=start&pointer=/n&equals=55&scan=true")
    assert '"n": 55' in page.text
    assert "1 shown, of 60 that were looked at." in page.text
    page = browser.page(f"{LIST}?from=start&contains=n&scan=true&limit=20")
    assert "20 shown, of 20 that were looked at." in page.text
    monkeypatch.setattr(pages, "SCANNED_MAX", 30)
    page = browser.page(f"{LIST}?from=start&pointer=/n&equals=55&scan=true")
    assert "0 shown, of 30 that were looked at. the search was given up there" in page.text.replace(" : ", ": ")
    (following,) = page.all("a", rel="next")
    assert "1 shown, of 30" in browser.page(following["href"]).text


def test_a_search_is_given_up_behind_so_many_bytes(browser, api, monkeypatch):
    assert SCANNED_BYTES_MAX >= 1 << 20
    publish(api, *("x" * 1_000 for _ in range(20)))
    monkeypatch.setattr(pages, "SCAN_ROWS", 5)
    monkeypatch.setattr(pages, "SCANNED_BYTES_MAX", 4_000)
    assert (
        "0 shown, of 5 that were looked at. the search was given up there"
        in browser.page(f"{LIST}?from=start&contains=y&scan=true").text
    )


def test_headers_keys_and_payloads_are_text_whatever_they_are(browser, api):
    publish(api, HOSTILE, key=HOSTILE, headers=[{"name": HOSTILE, "value": HOSTILE}])
    publish(api, b"\xff\xfe", keyBase64="/w==", headers=[{"name": "raw", "valueBase64": "/w=="}])
    for query in ("from=start", "from=start&isolation=inspect"):
        page = browser.page(f"{LIST}?{query}")
        assert page.text.count("<script>alert(1)</script>\\u202e\\x00") == 4
        assert "raw=0xff" in page.text
        assert b"<script>" not in browser.get(f"{LIST}?{query}").body
    one = browser.page(f"{LIST}/{ids(api)[0]}")
    assert one.text.count("<script>alert(1)</script>\\u202e\\x00") == 4


def test_hostile_words_in_the_url_are_text_as_well(browser):
    query = f"from={'%3Cscript%3E'}&contains=%22%3E%3Cscript%3E&schema=%3Cscript%3E&header=%3Cscript%3E"
    assert b"<script>" not in browser.get(f"{LIST}?{query}").body
    page = browser.page(f"{LIST}?{query}")
    assert "invalid_input" in page.text


def test_long_payloads_are_cut_in_the_list_and_whole_in_the_download(browser, api):
    publish(api, "x" * (SHOWN_CHARS_MAX + 5))
    (name,) = ids(api)
    listed = browser.page(f"{LIST}?from=start")
    assert ("x" * LINE_CHARS in listed.text, "x" * (LINE_CHARS + 1) in listed.text) == (True, False)
    assert "64.0 KiB in all" in listed.text
    page = browser.page(f"{LIST}/{name}")
    assert ("x" * SHOWN_CHARS_MAX in page.text, "x" * (SHOWN_CHARS_MAX + 1) in page.text) == (True, False)
    assert f"{LIST}/{name}/payload" in page.links
    reply = browser.get(f"{LIST}/{name}/payload")
    assert len(reply.body) == SHOWN_CHARS_MAX + 5


def test_a_payload_is_kept_as_a_file_and_neither_shown_nor_run(browser, api):
    publish(api, "<html><script>alert(1)</script>")
    (name,) = ids(api)
    reply = browser.get(f"{LIST}/{name}/payload")
    assert reply.body == b"<html><script>alert(1)</script>"
    assert reply.header("content-type") == "application/octet-stream"
    assert reply.header("content-disposition") == f"attachment; filename*=UTF-8''orders-{name}.bin"
    assert reply.header("x-content-type-options") == "nosniff"
    assert "sandbox" in (reply.header("content-security-policy") or "")


def test_avro_is_read_by_the_topics_schema_or_by_one_that_is_pasted(browser, api):
    publish(api, b"\x54")
    assert '"n": 42' not in browser.page(f"{LIST}?from=start").text
    quoted = SCHEMA.replace('"', "%22").replace(" ", "+")
    assert '"n": 42' in browser.page(f"{LIST}?from=start&view=avro&schema={quoted}").text
    api("PATCH", f"{API}/properties", {"label.schema": SCHEMA})
    assert '"n": 42' in browser.page(f"{LIST}?from=start").text
    assert '"n": 42' in browser.page(f"{LIST}?from=start&pointer=/n&equals=42").text
    assert "1 shown" in browser.page(f"{LIST}?from=start&pointer=/n&equals=42").text
    assert '"n": 42' in browser.page(f"{LIST}/{ids(api)[0]}").text
    api("PATCH", f"{API}/properties", {"label.schema": "nonsense"})
    assert "the schema is no JSON" in browser.page(f"{LIST}?from=start").text


def test_the_bounds_of_a_page_are_those_of_the_query(browser):
    assert browser.get(f"{LIST}?from=start&limit={PAGE_ROWS_MAX + 1}").status == 400
    assert browser.get(f"{LIST}?from=start&schema={'x' * (SCHEMA_CHARS_MAX + 1)}").status == 400


def test_the_messages_of_a_page_are_downloaded_as_json_lines(browser, api):
    publish(api, "one", "two", b"\xff", key="k")
    page = browser.page(f"{LIST}?from=start&contains=o")
    (link,) = [each for each in page.links if "/download?" in each]
    reply = browser.get(link)
    assert reply.header("content-type") == "application/x-ndjson"
    assert "attachment" in (reply.header("content-disposition") or "")
    found = [json.loads(line) for line in reply.body.splitlines()]
    assert [(each["payload"], each["key"]) for each in found] == [("one", "k"), ("two", "k")]


def test_one_message_tells_all_that_it_carries(browser, api):
    publish(api, '{"a": 1}', key="k", headers=[{"name": "trace", "value": "7"}], eventTimeMs=5, ttlMs=60_000)
    (name,) = ids(api)
    page = browser.page(f"{LIST}/{name}")
    assert "State plain" in page.text
    assert "Key k Headers trace=7 Event time 1970-01-01 00:00:00 UTC Kept for 1 min" in page.text
    assert "8 B, shown as json" in page.text
    assert f"basalt message show orders {name} --namespace shop" in page.text
    assert f"client.topic('orders').message('{name}')" in page.text
    assert "shown as hex" in browser.page(f"{LIST}/{name}?view=hex").text


@pytest.mark.parametrize("name", ["0" * 39 + "1", "nonsense", "%3Cscript%3E"])
def test_a_message_that_is_not_there_is_a_page_that_says_so(browser, name):
    for path in (f"{LIST}/{name}", f"{LIST}/{name}/payload"):
        page = browser.page(path)
        assert page.status in (400, 404)
        assert b"<script>" not in browser.get(path).body


@pytest.mark.parametrize("name", ["none", "%3Cscript%3E"])
def test_a_topic_that_does_not_exist_has_no_messages_and_the_page_says_so(browser, name):
    path = f"/console/ns/shop/topics/{name}/messages"
    for query in ("", "?from=start", "?follow=true"):
        page = browser.page(path + query)
        assert page.status in (400, 404)
        assert b"<script>" not in browser.get(path + query).body
    assert browser.get(f"{path}/download?from=start").status in (400, 404)


def test_who_may_read_and_not_inspect_sees_messages_and_not_their_states(signed_in, root):
    root("PUT", API)
    publish(root, "hello")
    (name,) = ids(root)
    ada = signed_in("ada", ("read", "topic:shop:orders"))
    assert "hello" in ada.page(f"{LIST}?from=start").text
    assert "hello" in ada.page(f"{LIST}/{name}").text
    assert ada.get(f"{LIST}/{name}/payload").body == b"hello"
    assert ada.page(f"{LIST}/{'0' * 40}").status == 404
    assert "token:ada may not inspect topic:shop:orders" in ada.page(f"{LIST}?from=start&isolation=inspect").text
    eve = signed_in("eve", ("observe", "topic:shop:orders"))
    for path in (f"{LIST}?from=start", f"{LIST}/{name}", f"{LIST}/{name}/payload", f"{LIST}/download?from=start"):
        assert b"hello" not in eve.get(path).body


def test_who_has_not_signed_in_is_sent_to_do_so(asked):
    for path in (LIST, f"{LIST}/{'0' * 40}", f"{LIST}/download", f"{LIST}/{'0' * 40}/payload"):
        reply = asked.call("GET", path)
        assert (reply.status, (reply.header("location") or "").startswith("/console/login")) == (303, True)


def test_an_answer_that_is_too_long_is_told(browser, api, monkeypatch):
    publish(api, "x" * 5_000)
    monkeypatch.setattr(inside, "ANSWER_BYTES_MAX", 4_000)
    assert "too_large" in browser.page(f"{LIST}?from=start").text
