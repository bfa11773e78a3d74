"""Grants on pages: listed with their uses; given and taken back, with who gains or loses what."""

from __future__ import annotations

from dataclasses import replace

from basalt.console.pages.access.grants import UNUSED_DAYS_MAX
from tests.control.console.conftest import ASKED, BOOTSTRAP, Api, Browser, Page
from tests.control.console.test_tokens import act, plan

GIVES = (("grant", "*"), ("inspect", "cluster"), ("read", "namespace:shop"), ("write", "namespace:shop"))
LIST, ADD = "/console/access/grants", "/console/access/grants/add"


def test_the_plan_of_a_grant_says_who_gains_what_and_the_act_gives_it(signed_in, root):
    ada = signed_in("ada", *GIVES)
    root("PUT", "/v1/admin/roles/billing", {"members": ["token:a", "token:b"]})
    root("POST", "/v1/admin/grants", {"subject": "token:a", "verbs": ["read"], "resource": "topic:shop:orders"})
    fields = {"subject": "role:billing", "verbs": "read, write", "resource": "topic:shop:orders"}
    planned = plan(ada, ADD, fields)
    assert "token:a gains write on topic:shop:orders" in planned.text
    assert "token:b gains read, write on topic:shop:orders" in planned.text
    done = Page(ada.post(ADD, {**planned.fields, "reason": "ticket 9"}))
    assert done.status == 200
    (given,) = root("GET", "/v1/admin/grants?subject=role:billing")
    assert (given["verbs"], given["madeBy"]) == (["read", "write"], "token:ada")
    assert "role:billing" in ada.page(LIST).text


def test_taking_a_grant_back_says_who_loses_what_and_who_used_it(signed_in, root):
    ada = signed_in("ada", *GIVES)
    grant = root("POST", "/v1/admin/grants", {"subject": "token:a", "verbs": ["read"], "resource": "topic:shop:x"})[
        "id"
    ]
    path = f"{LIST}/{grant}/remove"
    assert f"{path}?step=plan" in [each["action"] for each in ada.page(LIST).all("form", method="post")]
    planned = plan(ada, path, {})
    assert "loses read on topic:shop:x" in planned.text
    assert Page(ada.post(path, {**planned.fields, "reason": "left"})).status == 200
    assert root("GET", "/v1/admin/grants?subject=token:a") == []
    assert Page(ada.post(path, {**planned.fields, "reason": "left"})).status == 404


def test_a_plan_that_means_something_else_by_now_is_shown_anew(signed_in, root):
    ada = signed_in("ada", *GIVES)
    root("PUT", "/v1/admin/roles/billing", {"members": ["token:a"]})
    planned = plan(ada, ADD, {"subject": "role:billing", "verbs": "read", "resource": "topic:shop:orders"})
    root("PUT", "/v1/admin/roles/billing", {"members": ["token:a", "token:eve"]})
    late = Page(ada.post(ADD, {**planned.fields, "reason": "x"}))
    assert (late.status, "token:eve gains read" in late.text) == (409, True)
    assert root("GET", "/v1/admin/grants?subject=role:billing") == []


def test_nobody_gives_more_than_they_have_from_a_page_either(signed_in, root):
    ada = signed_in("ada", *GIVES)
    page = plan(ada, ADD, {"subject": "token:ada", "verbs": "operate", "resource": "cluster"})
    assert (page.status, "token:ada may not operate cluster" in page.text) == (403, True)
    assert act(ada, ADD, {"subject": "token:b", "verbs": "read", "resource": "topic:shop:x"}).status == 200


def test_who_may_give_on_a_namespace_alone_is_offered_the_form(signed_in):
    bob = signed_in("bob", ("grant", "namespace:shop"), ("read", "namespace:shop"))
    assert not [each for each in bob.page(LIST).all("fieldset") if "disabled" in each]
    assert [each for each in signed_in("eve").page(LIST).all("fieldset") if "disabled" in each]


def test_the_list_is_filtered_by_subject_and_by_want_of_use(signed_in, root, asked):
    ada = signed_in("ada", *GIVES)
    root("POST", "/v1/admin/grants", {"subject": "token:a", "verbs": ["read"], "resource": "topic:shop:alpha"})
    assert "topic:shop:alpha" not in ada.page(f"{LIST}?subject=token:b").text
    assert "topic:shop:alpha" not in ada.page(f"{LIST}?unusedDays=1").text
    assert ada.get(f"{LIST}?unusedDays={UNUSED_DAYS_MAX + 1}").status == 400


def test_hostile_names_are_text(signed_in, root):
    ada = signed_in("ada", *GIVES)
    root("POST", "/v1/admin/grants", {"subject": 'token:"><script>', "verbs": ["read"], "resource": "topic:shop:x"})
    assert 'token:"><script>' in ada.page(LIST).text


def test_a_grant_that_one_may_not_take_back_has_a_button_that_cannot_be_pressed(signed_in, root):
    root("POST", "/v1/admin/grants", {"subject": "token:bob", "verbs": ["read"], "resource": "topic:other:x"})
    root("POST", "/v1/admin/grants", {"subject": "token:bob", "verbs": ["read"], "resource": "topic:shop:x"})
    ada = signed_in("ada", ("grant", "namespace:shop"), ("inspect", "cluster"))
    page = ada.page(f"{LIST}?subject=token:bob")
    disabled = {each["aria-label"]: "disabled" in each for each in page.all("button") if "aria-label" in each}
    taking = "Take back read on topic:{}:x from token:bob"
    assert disabled == {taking.format("other"): True, taking.format("shop"): False}
    assert "taking-back" in [each.get("id") for each in page.all("p")]


def test_to_look_at_what_one_may_do_is_no_use_of_the_right_to_it(signed_in, root):
    begun = root("POST", "/v1/transactions", {})["id"]
    ada = signed_in("ada", ("operate", "cluster"), ("observe", "cluster"), ("observe", "transactions:token:bootstrap"))
    page = ada.page(f"/console/transactions/{begun}")
    assert not [each for each in page.all("button") if "disabled" in each]
    used = {(each["verbs"][0]): each["usedMs"] for each in root("GET", "/v1/admin/grants?subject=token:ada")}
    assert (used["operate"], used["observe"] is None) == (None, False)


def test_a_console_that_only_shows_offers_nothing_and_does_nothing(connect):
    client = connect(replace(ASKED, console=replace(ASKED.console, read_only=True)))
    root = Api(client, BOOTSTRAP)
    made = root("POST", "/v1/admin/grants", {"subject": "token:bob", "verbs": ["read"], "resource": "topic:shop:x"})[
        "id"
    ]
    ada = Browser(client, root("POST", "/v1/auth/logins", {})["token"])
    for path in (LIST, "/console/access/tokens", "/console/access/role", "/console/access/quota?subject=token:bob"):
        page = ada.page(path)
        assert all("disabled" in each for each in page.all("fieldset"))
        assert "console.read_only is true" in page.text
    assert plan(ada, f"{LIST}/{made}/remove", {}).status == 403
    assert plan(ada, "/console/access/tokens/make", {"name": "etl"}).status == 403
    assert len(root("GET", "/v1/admin/grants")) == 1
