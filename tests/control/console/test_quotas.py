"""Quotas on pages: what is in force for whom, by whose rule; a rule set and removed."""

from __future__ import annotations

from tests.control.console.conftest import Page
from tests.control.console.test_tokens import act, plan

OPERATES = (("operate", "cluster"), ("inspect", "cluster"))
PATH = "/console/access/quota"


def test_a_rule_is_set_shown_and_removed_also_of_a_principal_with_a_slash(signed_in, root):
    ada, subject = signed_in("ada", *OPERATES), "krb:alice/admin@EXAMPLE.ORG"
    done = act(ada, f"{PATH}/set", {"subject": subject, "requestsPerS": "1,000", "topics": "off"})
    assert (done.status, "requests per s 1,000" in done.text.lower(), "topics off" in done.text.lower()) == (
        200,
        True,
        True,
    )
    page = ada.page(f"{PATH}?subject=krb:alice/admin@EXAMPLE.ORG")
    assert page.fields["requestsPerS"] == "1000"
    assert "requests per s 1,000 krb:alice/admin@EXAMPLE.ORG 0" in page.text
    assert f"basalt quota show {subject}" in page.text
    assert subject in ada.page("/console/access").text
    planned = plan(ada, f"{PATH}/remove", {"subject": subject})
    assert Page(ada.post(f"{PATH}/remove", {**planned.fields, "reason": "x"})).status == 200
    assert root("GET", "/v1/admin/quotas") == []


def test_ones_own_are_shown_by_default_and_to_set_them_takes_a_right(signed_in):
    page = signed_in("eve").page(PATH)
    assert "Quotas of token:eve" in page.text
    assert [each for each in page.all("fieldset") if "disabled" in each]
    assert "basalt grant add token:eve operate cluster" in page.text


def test_a_rule_that_says_nothing_or_no_number_is_refused(signed_in):
    ada = signed_in("ada", *OPERATES)
    assert plan(ada, f"{PATH}/set", {"subject": "everyone"}).status == 400
    assert ada.post(f"{PATH}/set?step=plan", {"subject": "everyone", "topics": "many"}).status == 400
