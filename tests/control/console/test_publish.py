"""Publishing one message from a form: once, by who may write, and copied from another topic as it was."""

from __future__ import annotations

from base64 import b64encode

import pytest

from basalt.console.pages.messaging.publish import KEY_BYTES, fields_of, record_of
from basalt.console.views.message_view import ShownRecord
from basalt.settings import Settings
from basalt.settings.tree import ConsoleSettings
from tests.control.console.conftest import Browser, Page

ORDERS = "/console/ns/shop/topics/orders"
FORM = f"{ORDERS}/publish"
API = "/v1/namespaces/shop/topics/orders"


@pytest.fixture(autouse=True)
def orders(api):
    api("PUT", API)


def records(api) -> list[dict]:
    return api("GET", f"{API}/records")["records"]


def test_a_message_is_published_from_a_form(browser, api):
    form = browser.page(FORM).fields
    assert len(form["once"]) == 2 * KEY_BYTES
    sent = {**form, "payload": "a\r\nb", "encoding": "text", "key": "k", "headers": "trace=7\r\nx=y=z", "ttl": "60"}
    done = Page(browser.post(FORM, sent))
    assert "published" in done.text
    assert "basalt publish orders --namespace shop --key k --header trace=7 --header x=y=z --ttl 60000ms" in done.text
    (record,) = records(api)
    assert (record["payload"], record["key"], record["ttlMs"]) == ("a\nb", "k", 60_000)
    assert record["headers"] == [{"name": "trace", "value": "7"}, {"name": "x", "value": "y=z"}]


def test_a_form_that_is_sent_twice_publishes_once_and_another_form_again(browser, api):
    form = {**browser.page(FORM).fields, "payload": "a", "encoding": "text"}
    for _ in range(2):
        assert Page(browser.post(FORM, form)).status == 200
    assert len(records(api)) == 1
    browser.post(FORM, {**browser.page(FORM).fields, "payload": "a", "encoding": "text"})
    assert len(records(api)) == 2


def test_bytes_are_published_in_base64(browser, api):
    form = {**browser.page(FORM).fields, "payload": "/wA=", "encoding": "base64"}
    browser.post(FORM, form)
    assert records(api)[0]["payloadBase64"] == "/wA="


@pytest.mark.parametrize(
    "wrong", [{"payload": "!", "encoding": "base64"}, {"ttl": "soon"}, {"once": "no key"}, {"ttl": "9" * 400}]
)
def test_what_the_api_does_not_take_is_refused_in_words_and_nothing_is_published(browser, api, wrong):
    page = Page(browser.post(FORM, {**browser.page(FORM).fields, "payload": "a", "encoding": "text", **wrong}))
    assert (page.status, "Nothing was done" in page.text) == (400, True)
    assert records(api) == []


def test_a_message_is_copied_to_another_topic_as_it_was(browser, api):
    api("PUT", "/v1/namespaces/other/topics/copies")
    record = {"payloadBase64": "/wA=", "key": "k", "headers": [{"name": "trace", "value": "7"}]}
    api("POST", f"{API}/records", {"records": [record]})
    name = records(api)[0]["id"]
    chosen = browser.get(f"/console/publish?namespace=other&topic=copies&copy=shop:orders:{name}")
    assert chosen.status == 303
    page = browser.page(chosen.header("location") or "")
    reply = browser.get(chosen.header("location") or "")
    assert "Publish to other:copies" in page.text
    assert "/wA=" in reply.body.decode()
    assert page.fields["key"] == "k"
    browser.post(
        "/console/ns/other/topics/copies/publish",
        {**page.fields, "payload": "/wA=", "encoding": "base64", "headers": "trace=7"},
    )
    (copy,) = api("GET", "/v1/namespaces/other/topics/copies/records")["records"]
    assert {name: copy[name] for name in record} == record


def test_a_message_that_cannot_be_copied_is_told(browser):
    page = browser.page(f"{FORM}?copy=shop:orders:{'0' * 39}1")
    assert (page.status, "The message was not copied" in page.text) == (200, True)
    assert browser.page(f"{FORM}?copy=nonsense").status == 200


def test_a_form_has_what_is_copied_so_that_a_browser_sends_the_same():
    assert fields_of(ShownRecord("0" * 40, "a\nb"))["payload"] == "a\nb"
    assert fields_of(ShownRecord("0" * 40, "a\r\nb")) == {
        "encoding": "base64", "payload": b64encode(b"a\r\nb").decode(), "key": "", "headers": "",
    }  # fmt: skip
    assert record_of({"payload": "", "encoding": "text"}) == {"payload": ""}


def test_who_may_not_write_sees_the_form_disabled_and_is_refused(signed_in, root):
    root("PUT", API)
    ada = signed_in("ada", ("read", "topic:shop:orders"))
    page = ada.page(FORM)
    assert len([each for each in page.all("fieldset") if "disabled" in each]) == 1
    assert "basalt grant add token:ada write topic:shop:orders" in page.text
    refused = Page(ada.post(FORM, {**page.fields, "payload": "a", "encoding": "text"}))
    assert refused.status == 403
    assert root("GET", f"{API}/records")["records"] == []


def test_a_console_that_only_shows_publishes_nothing(connect):
    browser = Browser(connect(Settings(console=ConsoleSettings(read_only=True))))
    assert Page(browser.post(FORM, {"payload": "a", "encoding": "text", "once": "k"})).status == 403


def test_who_has_not_signed_in_is_sent_to_do_so(asked):
    assert asked.call("GET", FORM).status == 303
    assert asked.call("POST", FORM, b"payload=a", "application/x-www-form-urlencoded").status in (303, 403)


def test_hostile_names_lead_to_no_other_place(browser):
    reply = browser.get("/console/publish?namespace=../..&topic=%2F%2Fevil.example&copy=x")
    assert reply.status == 303
    assert (reply.header("location") or "").startswith("/console/ns/..%2F../topics/%2F%2Fevil.example/publish")
