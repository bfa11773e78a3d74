"""Roles on pages: members changed with who gains or loses what; removed."""

from __future__ import annotations

from urllib.parse import quote

from tests.control.console.conftest import Page
from tests.control.console.test_tokens import act, plan

GIVES = (("grant", "*"), ("inspect", "cluster"), ("read", "namespace:shop"))
PATH = "/console/access/role"


def test_members_come_and_go_and_the_plan_says_what_that_means(signed_in, root):
    ada = signed_in("ada", *GIVES)
    root("POST", "/v1/admin/grants", {"subject": "role:billing", "verbs": ["read"], "resource": "namespace:shop"})
    assert act(ada, f"{PATH}/set", {"name": "billing", "members": "token:a\r\n token:b \r\n\r\n"}).status == 200
    page = ada.page(f"{PATH}?name=billing")
    assert "read namespace:shop" in page.text
    planned = plan(ada, f"{PATH}/set", {"name": "billing", "members": "token:b\ntoken:c"})
    assert "loses read on namespace:shop" in planned.text
    assert "token:c gains read on namespace:shop" in planned.text
    assert Page(ada.post(f"{PATH}/set", {**planned.fields, "reason": "review"})).status == 200
    assert root("GET", "/v1/admin/roles/billing")["members"] == ["token:b", "token:c"]


def test_a_role_without_members_stays_with_what_is_granted_to_it_and_the_line_of_its_plan_says_so(signed_in, root):
    ada = signed_in("ada", *GIVES)
    root("PUT", "/v1/admin/roles/billing", {"members": ["token:b"]})
    planned = plan(ada, f"{PATH}/set", {"name": "billing", "members": " \r\n"})
    assert "basalt role set billing --no-members" in planned.text
    assert Page(ada.post(f"{PATH}/set", {**planned.fields, "reason": "review"})).status == 200
    assert root("GET", "/v1/admin/roles/billing")["members"] == []


def test_a_role_is_removed_with_its_name_typed(signed_in, root):
    ada = signed_in("ada", *GIVES)
    root("PUT", "/v1/admin/roles/billing", {"members": ["token:b"]})
    planned = plan(ada, f"{PATH}/remove", {"name": "billing"})
    fields = {**planned.fields, "reason": "gone"}
    assert Page(ada.post(f"{PATH}/remove", {**fields, "typed": "other"})).status == 400
    assert Page(ada.post(f"{PATH}/remove", {**fields, "typed": "billing"})).status == 200
    assert root("GET", "/v1/admin/roles") == []
    assert ada.page(f"{PATH}?name=billing").status == 404


def test_hostile_names_are_text_and_a_new_role_has_a_form(signed_in, root):
    ada = signed_in("ada", *GIVES)
    name = 'a"><b> &c'
    root("PUT", f"/v1/admin/roles/{quote(name)}", {"members": ["token:<i>"]})
    page = ada.page(f"{PATH}?name={quote(name)}")
    assert (page.status, f"Role {name}" in page.text) == (200, True)
    assert page.fields["name"] == name
    assert name in ada.page("/console/access").text
    assert [each["action"] for each in ada.page(PATH).all("form") if "set" in each.get("action", "")] == [
        f"{PATH}/set?step=plan"
    ]


def test_a_form_without_a_name_makes_and_removes_no_role(signed_in, root):
    ada = signed_in("ada", *GIVES)
    root("PUT", "/v1/admin/roles/-", {"members": []})
    for act_path in ("set", "remove"):
        for fields in ({}, {"name": "  "}):
            assert ada.post(f"{PATH}/{act_path}?step=plan", fields).status == 400
    assert [each["name"] for each in root("GET", "/v1/admin/roles")] == ["-"]
