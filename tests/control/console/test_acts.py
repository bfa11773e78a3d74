"""Acts from a page: what is seen is what is done, by who may do it, with a reason, or nothing is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from basalt.console.acts import AUDIT_LINES_MAX, REASON_CHARS_MAX
from basalt.console.forms import FIELDS_MAX
from basalt.settings import Settings
from basalt.settings.tree import ConsoleSettings
from tests.control.console.conftest import Api, Browser, Page

OPERATES = (
    ("observe", "cluster"),
    ("operate", "cluster"),
    ("inspect", "cluster"),
    ("observe", "transactions:token:bootstrap"),
)
LOOKS = OPERATES[:1] + OPERATES[3:]
DIGEST = re.compile("[0-9a-f]{32}")


def begin(api: Api, **wanted: object) -> str:
    return api("POST", "/v1/transactions", {"snapshot": False, **wanted})["id"]


def abort_path(transaction: str) -> str:
    return f"/console/transactions/{transaction}/abort"


def state_of(api: Api, transaction: str) -> str:
    return api("GET", f"/v1/transactions/{transaction}")["state"]


def test_what_a_page_offers_leads_to_the_plan_and_from_there_to_the_act_without_a_script(browser, api):
    name = begin(api)
    page = browser.page(f"/console/transactions/{name}")
    offered = [each["action"] for each in page.all("form", method="post") if "step=plan" in each["action"]]
    assert offered == [f"{abort_path(name)}?step=plan", f"/console/transactions/{name}/invalidate?step=plan"]
    plan = Page(browser.post(offered[0]))
    (form,) = [each for each in plan.all("form", method="post") if each["action"] != "/console/logout"]
    assert form["action"] == abort_path(name)
    assert sorted(plan.fields) == ["digest", "reason"]
    assert DIGEST.fullmatch(plan.fields["digest"])
    done = Page(browser.post(form["action"], {**plan.fields, "reason": "gone"}))
    assert (done.status, state_of(api, name)) == (200, "ABORTED")
    assert f"/console/transactions/{name}" in done.links


def test_a_plan_that_would_be_another_by_now_is_shown_anew_and_nothing_is_done(client, browser, api):
    client.topic()
    name = begin(api)
    plan = browser.plan(abort_path(name))
    api("POST", f"/v1/transactions/{name}/participants", {"kind": "topic", "namespace": "shop", "topic": "orders"})
    late = Page(browser.post(abort_path(name), {**plan.fields, "reason": "gone"}))
    assert late.status == 409
    assert "it has changed meanwhile. Nothing was done." in late.text
    assert "Wrote to shop:orders" in late.text
    assert (late.fields["reason"], late.fields["digest"] != plan.fields["digest"]) == ("gone", True)
    assert state_of(api, name) == "OPEN"
    assert api("GET", "/v1/admin/audit") == []
    assert Page(browser.post(abort_path(name), late.fields)).status == 200
    assert state_of(api, name) == "ABORTED"


def test_an_act_that_is_sent_twice_is_done_once(browser, api):
    name = begin(api)
    fields = {**browser.plan(abort_path(name)).fields, "reason": "gone"}
    assert [Page(browser.post(abort_path(name), fields)).status for _ in range(2)] == [200, 409]
    assert len(api("GET", "/v1/admin/audit")) == 1


def test_the_digest_of_another_plan_is_none_of_this_one(browser, api):
    mine, other = begin(api), begin(api)
    stolen = browser.plan(abort_path(other)).fields["digest"]
    invalidates = browser.plan(f"/console/transactions/{mine}/invalidate").fields["digest"]
    for digest in (stolen, invalidates, "", "x" * 32, "é"):
        assert Page(browser.post(abort_path(mine), {"reason": "gone", "digest": digest})).status == 409
    assert state_of(api, mine) == "OPEN"


def test_another_ones_digest_is_none_of_mine(signed_in, root):
    name = begin(root)
    ada, eve = signed_in("ada", *OPERATES), signed_in("eve", *OPERATES)
    seen = ada.plan(abort_path(name)).fields
    assert Page(eve.post(abort_path(name), {**seen, "reason": "gone"})).status == 409
    assert Page(ada.post(abort_path(name), {**seen, "reason": "gone"})).status == 200


@pytest.mark.parametrize("reason", ["", "   ", "a\nb", "\u202e", "x" * (REASON_CHARS_MAX + 1)])
def test_nothing_is_done_without_a_reason_that_the_audit_can_keep(browser, api, reason):
    name = begin(api)
    page = browser.act(abort_path(name), reason=reason)
    assert (page.status, "Say why, in one line" in page.text) == (400, True)
    assert state_of(api, name) == "OPEN"
    assert Page(browser.post(abort_path(name), {**page.fields, "reason": "x" * REASON_CHARS_MAX})).status == 200


def test_a_reason_that_was_given_is_in_the_form_again_as_text(browser, api):
    page = browser.act(f"/console/transactions/{begin(api)}/invalidate", reason='"><script>', typed="another")
    assert page.fields["reason"] == '"><script>'


def test_who_lacks_the_right_sees_the_act_disabled_with_the_command_that_gives_it(signed_in, root):
    name = begin(root)
    page = signed_in("ada", *LOOKS).page(f"/console/transactions/{name}")
    (button, _) = [each for each in page.all("button") if "disabled" in each]
    assert button["aria-describedby"] in [each.get("id") for each in page.all("p")]
    assert "token:ada has no right to operate on cluster." in page.text
    assert "basalt grant add token:ada operate cluster" in page.text
    allowed = signed_in("bob", *OPERATES).page(f"/console/transactions/{name}")
    assert [each for each in allowed.all("button") if "disabled" in each] == []


def test_a_form_that_is_sent_all_the_same_is_refused_by_the_call_itself(signed_in, root):
    name, ada = begin(root), signed_in("ada", *LOOKS)
    for path in (f"{abort_path(name)}?step=plan", abort_path(name)):
        page = Page(ada.post(path, {"reason": "x", "digest": "0" * 32}))
        assert page.status == 403
        assert "token:ada may not operate cluster" in page.text
        assert "basalt grant add token:ada operate cluster" in page.text
    assert state_of(root, name) == "OPEN"


def test_a_right_that_is_taken_between_plan_and_form_is_gone(signed_in, root):
    name, ada = begin(root), signed_in("ada", *OPERATES)
    plan = ada.plan(abort_path(name))
    assert plan.status == 200
    (grant,) = [each["id"] for each in root("GET", "/v1/admin/grants") if "operate" in each["verbs"]]
    root("DELETE", f"/v1/admin/grants/{grant}")
    page = Page(ada.post(abort_path(name), {**plan.fields, "reason": "gone"}))
    assert (page.status, "Nothing was done" in page.text) == (403, True)
    assert state_of(root, name) == "OPEN"


def test_a_login_that_is_over_between_plan_and_form_ends_in_the_sign_in(signed_in, asked, root):
    name, ada = begin(root, kind="long", timeoutMs=7_200_000), signed_in("ada", *OPERATES)
    plan = ada.plan(abort_path(name))
    asked.clock.advance(3_600_001)
    reply = ada.post(abort_path(name), {**plan.fields, "reason": "gone"})
    assert (reply.status, reply.header("location")) == (303, "/console/login")
    assert state_of(root, name) == "OPEN"


def test_the_audit_names_the_principal_and_the_login_and_the_address(signed_in, root):
    name, ada = begin(root), signed_in("ada", *OPERATES)
    done = ada.act(abort_path(name), reason="gone")
    line = next(each for each in root("GET", "/v1/admin/audit") if each["act"] == "forced abort")
    assert (line["principal"], line["address"], line["credential"].split()[0]) == ("token:ada", "192.0.2.7", "login")
    assert "token:ada" in done.text
    assert "by token:ada" in ada.page(f"/console/transactions/{name}").text


def test_who_may_not_read_the_audit_is_told_so_beside_what_was_done(signed_in, root):
    name = begin(root)
    ada = signed_in("ada", *(each for each in OPERATES if each[0] != "inspect"))
    done = ada.act(abort_path(name), reason="gone")
    assert (done.status, "Is ABORTED" in done.text) == (200, True)
    assert "token:ada may not inspect cluster" in done.text


def test_the_line_of_the_act_is_found_among_those_of_others(browser, api):
    begun = [begin(api) for _ in range(5)]
    assert len(begun) < AUDIT_LINES_MAX
    for name in begun[1:]:
        api("POST", f"/v1/admin/transactions/{name}/abort?reason=another")
    done = browser.act(abort_path(begun[0]), reason="this one")
    assert "this one" in done.text
    assert "another" not in done.text


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}],
)  # fmt: skip
def test_a_form_of_another_origin_is_refused_by_the_front(browser, api, headers):
    name = begin(api)
    fields = {**browser.plan(abort_path(name)).fields, "reason": "gone"}
    reply = browser.post(abort_path(name), fields, **headers)
    assert (reply.status, reply.code) == (403, "cross_origin")
    assert browser.post(f"{abort_path(name)}?step=plan", **headers).status == 403
    assert state_of(api, name) == "OPEN"
    assert browser.post(abort_path(name), fields, Origin="http://localhost", Sec_Fetch_Site="same-origin").status == 200


def test_a_link_does_nothing(browser, api):
    name = begin(api)
    assert browser.get(abort_path(name)).status in (404, 405)
    assert browser.get(f"{abort_path(name)}?step=plan").status in (400, 404, 405)
    assert state_of(api, name) == "OPEN"


def test_a_form_in_another_form_than_a_browsers_is_refused(client, api):
    name = begin(api)
    for body, media_type in ((b"{}", "application/json"), (b"reason=a&reason=b", None), (b"a=1", "text/plain")):
        assert client.call("POST", abort_path(name), body, media_type).status in (400, 415)
    form = "application/x-www-form-urlencoded"
    many = "&".join(f"f{number}=1" for number in range(FIELDS_MAX + 1)).encode()
    for body in (b"reason=a&reason=b", many, b"\xff=1"):
        assert client.call("POST", abort_path(name), body, form).status == 400
    assert state_of(api, name) == "OPEN"


def test_a_console_that_only_shows_offers_nothing_and_does_nothing(connect):
    client = connect(replace(Settings(), console=ConsoleSettings(read_only=True)))
    api, browser = Api(client), Browser(client)
    name = begin(api)
    page = browser.page(f"/console/transactions/{name}")
    assert "This console only shows: console.read_only is true." in page.text
    assert all(
        "disabled" in each
        for each in page.all("button")
        if not each.get("type") and each.get("name") is None and "class" in each
    )
    for path in (f"{abort_path(name)}?step=plan", abort_path(name)):
        refused = Page(browser.post(path, {"reason": "x", "digest": "0" * 32}))
        assert refused.status == 403
        assert "console.read_only is true" in refused.text
    assert state_of(api, name) == "OPEN"
    assert api("POST", f"/v1/admin/transactions/{name}/abort")["state"] == "ABORTED", "the API is as before"


def test_an_act_that_changes_nothing_says_so_beforehand(browser, api):
    name = begin(api)
    browser.act(abort_path(name), reason="gone")
    plan = browser.plan(abort_path(name))
    assert "nothing changes: it was ABORTED before" in plan.text


def test_what_failed_halfway_is_not_said_to_have_been_left_undone(monkeypatch, client, browser, api):
    name = begin(api)
    plan = browser.plan(abort_path(name))

    async def broken(*given: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(client.services.transactions, "abort", broken)
    page = Page(browser.post(abort_path(name), {**plan.fields, "reason": "gone"}))
    assert (page.status, "It is not known whether it was done" in page.text) == (500, True)


def test_an_operator_who_may_not_look_at_a_transaction_ends_it_and_learns_no_more(signed_in, root):
    root("PUT", "/v1/namespaces/shop/topics/orders")
    name = begin(root, owner="payroll")
    root("POST", f"/v1/transactions/{name}/participants", {"kind": "topic", "namespace": "shop", "topic": "orders"})
    ada = signed_in("ada", *(each for each in OPERATES if each[0] != "observe"), ("observe", "cluster"))
    path = f"/console/transactions/{name}"
    for page in (
        ada.page(path),
        ada.page("/console/transactions"),
        ada.plan(f"{path}/abort"),
        ada.act(f"{path}/abort", reason="gone"),
    ):
        assert page.status == 200
        assert "payroll" not in page.text
        assert "shop:orders" not in page.text
    assert state_of(root, name) == "ABORTED"
    bob = signed_in("bob", *OPERATES)
    other = begin(root, owner="payroll")
    assert "payroll" in bob.plan(abort_path(other)).text
