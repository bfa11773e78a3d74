"""Panels of charts: their call, their links, and what they show on a page."""

from __future__ import annotations

import shlex
from urllib.parse import parse_qs, urlsplit

import pytest

from basalt.console.copy_lines import command_of
from basalt.console.history import RANGES, Drawing, charts_panel, lag_drawings
from basalt.console.pages.transactions import DRAWINGS
from basalt.operations.series.table import FIGURES
from tests.control.console.test_copy_lines import taken

PAGE = "/console/transactions"


def watch(client, seconds: int = 5) -> None:
    for _ in range(seconds):
        client.clock.advance(1_000)
        client.app.sampler.sample(client.clock.now_ms(), client.clock.monotonic_ms())


def test_a_page_shows_how_its_figures_went(client, browser, api):
    api("POST", "/v1/transactions", {})
    watch(client)
    page = browser.page(PAGE)
    assert page.status == 200
    charts = page.all("svg", role="img")
    assert len(charts) == len(DRAWINGS)
    assert "Open 1" in page.text
    assert len({each["id"] for _, each in page.tags if "id" in each}) == len(
        [1 for _, each in page.tags if "id" in each]
    )


@pytest.mark.parametrize("wanted", RANGES)
def test_each_time_is_a_link_that_keeps_the_rest_of_the_query_and_fits_one_answer(client, browser, wanted):
    watch(client)
    page = browser.page(f"{PAGE}?range={wanted}&owner=a%26b&state=open")
    links = [each for each in page.all("a") if "range=" in each["href"]]
    assert [parse_qs(urlsplit(each["href"]).query)["range"] for each in links] == [[name] for name in RANGES]
    assert all(parse_qs(urlsplit(each["href"]).query)["owner"] == ["a&b"] for each in links)
    assert [each["href"].endswith(f"range={wanted}") for each in links if each.get("aria-current")] == [True]
    answer = browser.get(f"{PAGE}?range={wanted}&json=true&panel=history").json()["history"]
    assert answer["status"] == 200
    step_ms = answer["answer"]["stepMs"]
    assert f"step={RANGES[wanted][1]}" in answer["call"]
    assert step_ms == {"2s": 2_000, "10s": 10_000, "1m": 60_000, "5m": 300_000, "30m": 1_800_000}[RANGES[wanted][1]]
    assert 250 < len(answer["answer"]["time"]) < 400


def test_another_time_is_refused_and_the_panel_alone_has_its_links_without_itself(browser):
    assert browser.get(f"{PAGE}?range=2h").status == 400
    page = browser.page(f"{PAGE}?panel=history")
    assert all("panel" not in each for each in page.links if "range=" in each)


def test_the_call_has_a_line_that_asks_for_the_same(client, browser):
    page = browser.get(f"{PAGE}?range=6h&json=true&panel=history").json()["history"]
    query = {name: values[0] for name, values in parse_qs(urlsplit(page["call"].split(" ")[1]).query).items()}
    line = command_of("GET", "/v1/admin/series", {}, query, None)
    found = taken(line)
    assert (found["names"], found["since"], found["step_ms"]) == ((query["names"],), "-6h", 60_000)
    assert len(shlex.split(line)) == 6


def test_who_may_not_see_the_figures_gets_the_reason_and_the_rest_of_the_page(signed_in):
    page = signed_in("etl").page(f"{PAGE}?panel=history")
    assert "may not observe cluster" in page.text
    assert not page.all("svg", role="img")


def test_the_figures_of_all_charts_are_figures_and_one_chart_has_one_unit():
    units = {figure.name: figure.unit for figure in FIGURES}
    for drawing in DRAWINGS:
        assert len({units[figure] for figure, _ in drawing.lines}) == 1, drawing.title


def test_a_group_has_a_chart_of_messages_and_one_of_seconds(client, browser, api):
    api("PUT", "/v1/namespaces/shop/topics/orders", {})
    api("PUT", "/v1/namespaces/shop/topics/orders/groups/billing", {})
    watch(client)
    client.run(client.app.sampler.look_at_groups(client.clock.now_ms()))

    class Asked:
        head = type("Head", (), {"query_string": b"range=1h&a=b"})()

        @staticmethod
        def text(name):
            return {"range": "1h"}.get(name)

    panel = charts_panel(
        Asked(), "lag", "Lag", *lag_drawings("shop", "orders", "billing"), Drawing("Open", (("open", "Open"),))
    )
    reply = client.call("GET", panel.call.target)
    assert set(reply.json()["values"]) == {
        "lag_messages:shop:orders/billing",
        "lag_seconds:shop:orders/billing",
        "open",
    }
    assert panel.template == "chart"
    assert panel.extra["ranges"][0].target == "?a=b&range=10m"
