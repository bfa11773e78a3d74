"""What pages do with a script: they renew themselves, say when they are old, show times in any zone, and take keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from basalt.console.pages.overview import SOON
from tests.browser.conftest import ASKS, BOOTSTRAP, Shop, ask_as, login
from tests.browser.visitor import Visitor
from tests.browser.window import PANELS, REFRESH_MS, TABS_MAX, Window
from tests.operator_data import ORDERS

COMMAND = "Copied: basalt "


@pytest.fixture(scope="module")
def live(servers: Any, stored: Any) -> Shop:
    """A server whose pages renew themselves, and change."""
    data, installation = stored
    return Shop(servers("live", *ASKS, "--set", f"console.refresh_ms={REFRESH_MS}", data=data), installation)


@pytest.fixture
def window(chromium: Any, live: Shop) -> Iterator[Window]:
    with Visitor.at(
        chromium,
        live.server.url,
        live.root,
        timezone_id="Asia/Kolkata",
        permissions=["clipboard-read", "clipboard-write"],
    ) as visitor:
        yield Window(visitor)
        assert visitor.refused() == []


@pytest.fixture
def root(live: Shop) -> Callable[..., Any]:
    return ask_as(live.server, BOOTSTRAP)


def holds_back(root: Callable[..., Any], owner: str = "etl") -> str:
    """A transaction that holds the readers of shop:orders back."""
    begun = root("POST", "/v1/transactions", {"snapshot": False, "owner": owner, "timeoutMs": 300_000})
    root("POST", f"{ORDERS}/publish", {"transactionWritePointer": begun["writePointer"], "messages": ["x"]})
    return str(begun["id"])


def test_with_keys_alone_from_the_overview_to_aborting_a_hanging_transaction(window: Window, root: Any):
    hanging = holds_back(root)
    window.go("/console")
    window.press("g", "x")
    window.page.wait_for_url("**/console/transactions")
    window.press("j", "j", "k")
    for _ in range(TABS_MAX):
        if window.focused() == f"/console/transactions/{hanging}":
            break
        window.press("j")
    window.press("Enter")
    window.page.wait_for_url(f"**/console/transactions/{hanging}")
    window.tab_to('form[action$="/abort?step=plan"] button')
    window.press("Enter")
    window.page.wait_for_selector("#reason")
    assert "Would be ABORTED" in window.text()
    window.tab_to("#reason")
    window.page.keyboard.type("its client is gone. j k c g x ?")
    window.press("Enter")
    window.page.wait_for_selector("#done")
    assert "Is ABORTED" in window.text()
    assert root("GET", f"/v1/transactions/{hanging}")["state"] == "ABORTED"
    assert root("GET", "/v1/admin/audit?limit=1")[0]["reason"] == "its client is gone. j k c g x ?"


def test_the_focus_stays_where_it_is_when_a_panel_is_renewed(window: Window, root: Any):
    first = holds_back(root)
    window.go("/console/transactions")
    link = f'#panel-hanging a[href="/console/transactions/{first}"]'
    window.page.focus(link)
    other = holds_back(root, "late")
    window.renew()
    window.page.wait_for_selector(f'#panel-hanging a[href="/console/transactions/{other}"]')
    assert window.focused() == f"/console/transactions/{first}"
    root("POST", f"/v1/transactions/{first}/abort")
    window.renew()
    window.page.wait_for_selector(link, state="detached")
    assert window.page.evaluate("document.activeElement.closest('#panel-hanging') !== null"), (
        "and not at the page's top"
    )


def test_a_selected_row_and_what_is_open_stay_so(window: Window, root: Any):
    first = holds_back(root)
    window.go(f"/console/transactions/{first}")
    window.page.focus("#panel-transaction summary")
    window.press("Enter")
    window.go("/console/transactions")
    window.press("j")
    chosen = window.focused()
    window.page.evaluate("document.querySelector('#panel-hanging summary').click()")
    other = holds_back(root, "late")
    window.renew()
    window.page.wait_for_selector(f'#panel-hanging a[href="/console/transactions/{other}"]')
    assert window.page.evaluate("document.querySelector('#panel-hanging details.copy').open")
    assert window.page.get_attribute("tr[aria-selected=true] th a", "href") == chosen == window.focused()


def test_text_that_is_selected_is_not_taken_away(window: Window, root: Any):
    holds_back(root)
    window.go("/console/transactions")
    window.page.evaluate("getSelection().selectAllChildren(document.querySelector('#panel-hanging p'))")
    selected = str(window.page.evaluate("String(getSelection())"))
    holds_back(root, "late")
    window.renew()
    window.renew()
    still, counted = str(window.page.evaluate("String(getSelection())")), selected.partition(" should")[0]
    assert still.startswith(counted)
    assert " open" in counted


def test_a_page_that_nobody_sees_asks_for_nothing_and_is_renewed_when_it_is_seen(window: Window):
    window.go("/console")
    window.page.evaluate(
        "Object.defineProperty(document, 'hidden', { get: () => window.isHidden, configurable: true }); window.isHidden = true"
    )
    window.let_pass(20 * REFRESH_MS)
    assert window.renewals == []
    with window.page.expect_response(re.compile(PANELS)):
        window.page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_a_page_that_is_held_stays_as_it_is(window: Window):
    window.go("/console")
    window.press(".")
    assert window.said() == "The page is held as it is."
    assert window.page.get_attribute("[data-act=hold]", "aria-pressed") == "true"
    window.let_pass(20 * REFRESH_MS)
    assert window.renewals == []
    with window.page.expect_response(re.compile(PANELS)):
        window.page.click("[data-act=hold]")


def test_all_panels_whose_turn_it_is_are_renewed_by_one_request(window: Window):
    window.go("/console")
    for _ in range(SOON):
        window.renew()
    asked = [set(each.partition(PANELS)[2].split("%2C")) for each in window.renewals]
    assert asked[:-1] == [{"manager"}] * (SOON - 1)
    assert {"readiness", "hanging", "manager", "jobs", "audit"} <= asked[-1]


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_wants_to_be_left_alone_is_left_alone(window: Window, status: int):
    window.go("/console")
    problem = {"status": status, "code": "x", "detail": "come back later <b>"}
    window.page.route(
        f"**/*{PANELS}*",
        lambda route: route.fulfill(
            status=status, headers={"retry-after": "40"}, json=problem, content_type="application/problem+json"
        ),
    )
    window.renew()
    window.page.wait_for_selector("#stale:visible")
    assert window.page.inner_text("#stale").endswith("come back later <b>")
    window.let_pass(39_000)
    assert len(window.renewals) == 1
    window.page.unroute(f"**/*{PANELS}*")
    with window.page.expect_response(re.compile(PANELS)):
        window.let_pass(10_000)
    window.page.wait_for_selector("#stale", state="hidden")
    assert window.said() == "The page is up to date again."


def test_a_server_that_is_away_is_asked_less_and_less_often_and_the_page_says_so(window: Window):
    window.go("/console")
    window.page.evaluate("Math.random = () => 0.5")  # of the fifth by which each page waits longer
    window.page.route(f"**/*{PANELS}*", lambda route: route.abort("connectionrefused"))
    for number, wait_s in enumerate((5, 11, 22, 44, 66, 66)):
        window.let_pass(1_000 * wait_s - 10)
        assert len(window.renewals) == number, wait_s
        with window.page.expect_event("requestfailed"):
            window.let_pass(10)
        window.page.wait_for_selector("#stale:visible")
    assert "the server does not answer" in window.page.inner_text("#stale")
    assert window.page.get_attribute("#panel-jobs", "data-stale") == "true"
    window.page.unroute(f"**/*{PANELS}*")
    with window.page.expect_response(re.compile(PANELS)):
        window.let_pass(66_000)
    window.page.wait_for_selector("#stale", state="hidden")
    assert window.page.get_attribute("#panel-jobs", "data-stale") is None


def test_who_is_signed_out_meanwhile_is_told_so_and_comes_back(window: Window, live: Shop):
    window.page.context.clear_cookies()
    mine = login(live.server, BOOTSTRAP)
    window.page.context.add_cookies([{"name": "basalt", "value": mine, "url": live.server.url}])
    window.go("/console/sessions?after=a")
    ask_as(live.server, mine)("DELETE", "/v1/auth/logins")
    window.renew()
    window.page.wait_for_selector("#stale a")
    assert "your login is over" in window.page.inner_text("#stale")
    window.page.click("#stale a")
    assert window.page.input_value("input[name=next]") == "/console/sessions?after=a"


def test_times_are_in_the_zone_of_who_looks_or_in_utc_and_that_stays_so(window: Window):
    window.go("/console/jobs/retention")
    moment = window.page.locator("main time:not(.age)").first
    utc = moment.get_attribute("title")
    assert utc
    assert utc.endswith(" UTC")
    assert moment.text_content() != utc
    assert window.page.text_content("[data-zone]") == "Asia/Calcutta"
    window.press("u")
    assert (moment.text_content(), window.page.text_content("[data-zone]")) == (utc, "UTC")
    window.page.reload()
    assert window.page.text_content("[data-zone]") == "UTC"
    window.page.click("[data-act=zone]")
    assert window.page.text_content("[data-zone]") == "Asia/Calcutta"


def test_ages_go_on(window: Window, root: Any):
    holds_back(root)
    window.go("/console/transactions")
    window.press(".")
    age = window.page.locator("#panel-hanging time.age").last
    before = age.text_content()
    window.let_pass(3_600_000)
    assert before != age.text_content()
    assert "h" in (age.text_content() or "")


def test_help_opens_on_a_key_and_closes_on_another(window: Window):
    window.go("/console")
    window.press("?")
    assert window.page.is_visible("#help")
    window.press("j", ".")
    assert window.said() == "", "keys are no keys while it is open"
    window.press("Escape")
    assert window.page.is_hidden("#help")


def test_nothing_in_the_help_is_in_the_way_of_who_cannot_see_or_point(window: Window):
    window.visitor.go("/console")  # axe waits, and so time goes on
    window.press("?")
    window.page.wait_for_selector("#help:visible")
    assert window.visitor.violations() == []


def test_keys_are_switched_off_in_one_place_and_stay_so(window: Window):
    window.go("/console")
    window.press("?")
    window.page.uncheck("#keys-on")
    window.press("Escape")
    window.press("?", ".", "u")
    assert (window.page.is_hidden("#help"), window.said()) == (True, "")
    window.page.reload()
    window.press(".")
    assert window.said() == ""
    window.page.click("[data-act=help]")
    window.page.check("#keys-on")
    window.press("Escape", ".")
    assert window.said() == "The page is held as it is."


def test_the_command_of_the_panel_in_which_one_is_is_copied(window: Window):
    window.go("/console")
    window.page.focus("#panel-jobs summary")
    window.press("c")
    window.page.wait_for_function("document.getElementById('said').textContent !== ''")
    assert window.said() == f"{COMMAND}job list"
    assert window.page.evaluate("navigator.clipboard.readText()") == "basalt job list"


def test_where_nothing_may_be_copied_the_command_is_selected(window: Window):
    window.go("/console")
    window.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    window.press("c")
    window.page.wait_for_function("document.getElementById('said').textContent !== ''")
    assert window.page.evaluate("String(getSelection())").strip() == "basalt doctor"


def test_a_search_is_entered_and_left_by_keys_and_its_address_has_what_was_filled_in(window: Window):
    window.go("/console/transactions")
    window.press("/")
    assert window.page.evaluate("document.activeElement.name") == "owner"
    window.page.keyboard.type("jk.u?")
    assert window.page.input_value("input[name=owner]") == "jk.u?"
    window.press("Escape")
    assert window.page.evaluate("document.activeElement === document.body")
    window.press("/")
    window.page.keyboard.type("etl?")
    window.press("Enter")
    window.page.wait_for_url("**/console/transactions?owner=etl%3F")
