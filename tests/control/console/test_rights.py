"""The page of access: a right asked for, who was seen, what was refused."""

from __future__ import annotations

from dataclasses import replace

from basalt.console.pages.access.rights import VERBS
from tests.control.console.conftest import ASKED, BOOTSTRAP, Api, Browser

PATH = "/console/access"


def test_a_right_is_asked_for_and_the_grant_that_gives_it_is_told(signed_in, root):
    ada = signed_in("ada", ("inspect", "cluster"))
    root("POST", "/v1/admin/grants", {"subject": "token:etl", "verbs": ["write"], "resource": "topic:shop:*"})
    asked = f"{PATH}?principal=token:etl&verb=write&resource=topic:shop:orders"
    page = ada.page(asked)
    assert "token:etl may write on topic:shop:orders" in page.text
    assert "token:etl has write on topic:shop:*" in page.text
    assert "token:etl may not read" in ada.page(asked.replace("verb=write", "verb=read")).text
    assert "may not operate on cluster" in ada.page(f"{PATH}?verb=operate&resource=cluster").text
    assert ada.page(f"{PATH}?verb=fly&resource=cluster").status == 200
    assert {"read", "write", "grant", "transact"} <= set(VERBS)


def test_who_was_seen_and_what_was_refused_are_there_for_who_may_inspect(signed_in):
    eve = signed_in("eve")
    eve.page("/console/sessions")
    page = signed_in("ada", ("inspect", "cluster")).page(PATH)
    assert "token:eve" in page.text
    plain = eve.page(PATH)
    assert plain.text.count("token:eve may not inspect cluster") == 3
    assert "Principal token:eve" in plain.text


def test_where_rights_are_not_enforced_the_page_says_what_would_be_refused(connect):
    client = connect(replace(ASKED, auth=replace(ASKED.auth, enforce=False)))
    made = Api(client, BOOTSTRAP)("POST", "/v1/admin/tokens", {"name": "etl"})["token"]
    Api(client, made)("GET", "/v1/admin/store")
    page = Browser(client, Api(client, made)("POST", "/v1/auth/logins", {})["token"]).page(PATH)
    assert "What would be refused, once auth.enforce is true" in page.text
    assert "token:etl observe cluster 1" in page.text
    assert "let through" in page.text
