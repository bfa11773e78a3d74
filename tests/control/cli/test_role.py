"""`basalt role`: principals under one name, to which rights are granted."""

from __future__ import annotations

import json

from tests.control.cli.asking_server import asking, root, sent_by

__all__ = ["asking", "root", "sent_by"]


def test_members_have_the_rights_of_their_role_for_as_long_as_they_are_in_it(root, sent_by):
    token = root("token", "create", "invoices").out.strip()
    root("topic", "create", "orders")
    root("grant", "add", "role:billing", "reader", "namespace:shop")
    ran = root("role", "set", "billing", "token:invoices", "jwt-group:billing")
    assert (ran.code, ran.out) == (0, "set role billing: 2 members (+jwt-group:billing +token:invoices)\n")
    assert sent_by(token, "consume", "orders").code == 0
    assert json.loads(sent_by(token, "auth", "whoami", "-o", "json").out)["roles"] == ["role:billing"]
    dry = root("role", "set", "billing", "jwt-group:billing", "--dry-run")
    assert dry.out.splitlines() == [
        "would set role billing: 1 member (-token:invoices)",
        "  token:invoices loses observe, read on namespace:shop",
    ]
    assert sent_by(token, "consume", "orders").code == 0
    assert root("role", "set", "billing", "token:invoices", "jwt-group:billing").out.endswith("(as before)\n")
    root("role", "set", "billing", "jwt-group:billing")
    assert sent_by(token, "consume", "orders").code == 5


def test_roles_are_listed_shown_and_removed(root):
    root("role", "set", "billing", "token:invoices")
    assert [row["name"] for row in json.loads(root("role", "list", "-o", "json").out)] == ["billing"]
    assert "token:invoices" in root("role", "show", "billing").out
    assert root("role", "remove", "billing").code == 2
    assert root("role", "remove", "billing", "--dry-run").out.splitlines() == [
        "would remove role billing, which has 1 member",
        "  nobody gains or loses a right by it",
    ]
    assert root("role", "remove", "billing", "--yes").code == 0
    assert root("role", "show", "billing").code == 3
    assert root("role", "remove", "billing", "--yes").code == 3


def test_what_is_no_member_is_told(root):
    ran = root("role", "set", "billing", "role:other")
    assert (ran.code, "no kind of principal or group" in ran.err) == (1, True)
    assert root("role", "set", "billing").code == 2


def test_a_role_is_emptied_by_a_word_of_its_own_and_not_by_a_variable_that_is_empty(root):
    root("role", "set", "billing", "token:invoices")
    assert root("role", "set", "billing").code == 2
    assert root("role", "set", "billing", "token:invoices", "--no-members").code == 2
    assert "token:invoices" in root("role", "show", "billing").out
    ran = root("role", "set", "billing", "--no-members")
    assert (ran.code, ran.out) == (0, "set role billing: 0 members (-token:invoices)\n")
    assert json.loads(root("role", "show", "billing", "-o", "json").out)["members"] == []
