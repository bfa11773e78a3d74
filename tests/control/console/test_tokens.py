"""Tokens on pages: listed, made, rotated and revoked; a new one's secret is shown once, and is nowhere else."""

from __future__ import annotations

import re

import pytest

from basalt.console.forms import NUMBER_DIGITS_MAX
from basalt.console.pages.access import tokens
from basalt.console.pages.access.tokens import DAY_MS, NEVER
from basalt.settings import Settings
from tests.control.console.conftest import Browser, Page

GIVES = (("grant", "cluster"), ("inspect", "cluster"))
TOKEN = re.compile(r"basalt_[0-9a-f]{16}_[A-Za-z0-9_-]{43}_[0-9a-f]{8}")
LIST, MAKE = "/console/access/tokens", "/console/access/tokens/make"


def plan(browser: Browser, path: str, fields: dict[str, str]) -> Page:
    return Page(browser.post(f"{path}?step=plan", fields))


def act(browser: Browser, path: str, fields: dict[str, str], reason: str = "asked for") -> Page:
    planned = plan(browser, path, fields)
    assert planned.status == 200, planned.text
    return Page(browser.post(path, {**planned.fields, "reason": reason}))


def test_a_token_is_made_in_two_steps_and_shown_once(signed_in, root, caplog):
    ada = signed_in("ada", *GIVES)
    fields = {
        "name": "etl",
        "ttlMs": str(DAY_MS),
        "only": "observe,read topic:shop:*\n\nwrite topic:shop:in",
        "networks": "192.0.2.0/24, 10.0.0.0/8",
        "note": "nightly <b>",
    }
    planned = plan(ada, MAKE, fields)
    assert TOKEN.search(planned.text) is None
    assert "observe, read on topic:shop:*; write on topic:shop:in" in planned.text
    with caplog.at_level("DEBUG"):
        reply = ada.post(MAKE, {**planned.fields, "reason": "ticket 7"})
    page = Page(reply)
    secret = TOKEN.search(page.text)[0]
    assert reply.body.decode().count(secret) == 1
    assert dict(reply.headers)[b"cache-control"] == b"no-store"
    assert secret not in caplog.text
    assert secret[24:67] not in str(root("GET", "/v1/admin/audit")) + str(root("GET", "/v1/admin/tokens"))
    (made,) = root("GET", "/v1/admin/tokens?principal=token:etl")
    assert (made["note"], made["networks"]) == ("nightly <b>", ["192.0.2.0/24", "10.0.0.0/8"])
    assert (made["expiresMs"] - made["createdMs"], made["madeBy"]) == (DAY_MS, "token:ada")
    assert [each["resource"] for each in made["only"]] == ["topic:shop:*", "topic:shop:in"]
    line = root("GET", "/v1/admin/audit?act=make%20token")[0]
    assert (line["reason"], line["what"]) == ("ticket 7", f"token {made['id']} of token:etl")
    for path in (LIST, f"{LIST}/{made['id']}", "/console/audit", "/console"):
        assert secret[24:67] not in ada.get(path).body.decode()


def test_a_form_that_is_sent_again_makes_no_second_token(signed_in, root):
    ada = signed_in("ada", *GIVES)
    fields = {**plan(ada, MAKE, {"name": "etl"}).fields, "reason": "x"}
    assert [Page(ada.post(MAKE, fields)).status for _ in range(2)] == [200, 409]
    assert len(root("GET", "/v1/admin/tokens?principal=token:etl")) == 1


def test_the_same_plan_a_minute_later_is_the_same(signed_in, asked):
    ada = signed_in("ada", *GIVES)
    fields = {**plan(ada, MAKE, {"name": "etl", "ttlMs": NEVER}).fields, "reason": "x"}
    asked.clock.advance(60_000)
    page = Page(ada.post(MAKE, fields))
    assert (page.status, "Ends never" in page.text) == (200, True)


def test_what_was_seen_is_what_is_made(signed_in, root):
    ada = signed_in("ada", *GIVES)
    fields = {**plan(ada, MAKE, {"name": "etl", "only": "read topic:shop:a"}).fields, "reason": "x"}
    late = Page(ada.post(MAKE, {**fields, "only": ""}))
    assert late.status == 409
    assert root("GET", "/v1/admin/tokens?principal=token:etl") == []


def test_a_token_is_rotated_from_its_page_and_the_new_one_is_shown(signed_in, root):
    ada = signed_in("ada", *GIVES)
    made = root("POST", "/v1/admin/tokens", {"name": "etl"})["info"]["id"]
    page = ada.page(f"{LIST}/{made}")
    assert [each["action"] for each in page.all("form") if "rotate" in each.get("action", "")] == [
        f"{LIST}/{made}/rotate?step=plan"
    ]
    done = act(ada, f"{LIST}/{made}/rotate", {"overlapMs": "0"})
    assert TOKEN.search(done.text)
    states = {each["id"]: each["state"] for each in root("GET", "/v1/admin/tokens?principal=token:etl")}
    assert (states.pop(made), list(states.values())) == ("expired", ["active"])


def test_a_token_is_revoked_with_its_name_typed(signed_in, root):
    ada = signed_in("ada", *GIVES)
    made = root("POST", "/v1/admin/tokens", {"name": "etl"})["info"]["id"]
    planned = plan(ada, f"{LIST}/{made}/revoke", {})
    wrong = Page(ada.post(f"{LIST}/{made}/revoke", {**planned.fields, "reason": "left", "typed": "etl"}))
    assert wrong.status == 400
    done = Page(ada.post(f"{LIST}/{made}/revoke", {**wrong.fields, "reason": "left", "typed": made}))
    assert (done.status, "State revoked" in done.text) == (200, True)
    assert "There is nothing" not in ada.page(f"{LIST}/{made}").text
    assert not [each for each in ada.page(f"{LIST}/{made}").all("form") if "rotate" in each.get("action", "")]


def test_ones_own_token_is_ones_own_to_revoke_and_others_are_not(signed_in, root):
    ada = signed_in("ada")
    (own,) = [each["id"] for each in root("GET", "/v1/admin/tokens?principal=token:ada") if not each["parent"]]
    page = ada.page(f"{LIST}/{own}")
    offered = {each["action"]: each for each in page.all("form", method="post")}
    assert f"{LIST}/{own}/revoke?step=plan" in offered
    disabled = [each for each in page.all("button") if "disabled" in each]
    assert disabled == []
    assert [each for each in page.all("fieldset") if "disabled" in each]  # to rotate it takes the token itself
    other = root("POST", "/v1/admin/tokens", {"name": "etl"})["info"]["id"]
    assert ada.page(f"{LIST}/{other}").status == 403
    assert own in ada.page(LIST).text
    assert other not in ada.page(LIST).text


def test_who_may_not_make_tokens_sees_the_form_disabled_with_the_missing_right(signed_in):
    page = signed_in("ada").page(LIST)
    assert [each for each in page.all("fieldset") if "disabled" in each]
    assert "basalt grant add token:ada grant cluster" in page.text


def test_where_nobody_is_asked_no_token_can_be_made_and_the_page_says_why(connect):
    page = plan(Browser(connect(Settings())), MAKE, {"name": "etl"})
    assert (page.status, "auth.kinds is none" in page.text) == (409, True)


@pytest.mark.parametrize("ttl", ["soon", "9" * (NUMBER_DIGITS_MAX + 1), "-1", "\u0661"])
def test_what_is_no_number_is_refused(signed_in, root, ttl):
    ada = signed_in("ada", *GIVES)
    assert ada.post(f"{MAKE}?step=plan", {"name": "etl", "ttlMs": ttl}).status == 400
    assert root("GET", "/v1/admin/tokens?principal=token:etl") == []


def test_the_list_goes_on_by_pages_and_keeps_its_filter(signed_in, root, monkeypatch):
    monkeypatch.setattr(tokens, "PAGE_ROWS", 2)
    ada = signed_in("ada", *GIVES)
    ids = sorted(root("POST", "/v1/admin/tokens", {"name": "etl"})["info"]["id"] for _ in range(3))
    first = ada.page(f"{LIST}?principal=token:etl")
    assert [each for each in ids if f"{LIST}/{each}" in first.links] == ids[:2]
    (following,) = [each["href"] for each in first.all("a", rel="next")]
    last = ada.page(following)
    assert [each for each in ids if f"{LIST}/{each}" in last.links] == ids[2:]
    assert [each["href"] for each in last.all("a", rel="first")] == [f"{LIST}?principal=token%3Aetl"]
