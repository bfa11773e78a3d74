"""Quotas of who looks at pages: each call of a page is charged, by its bytes and what it holds, and no page is torn for their number."""

from __future__ import annotations

import pytest

from basalt.access.quotas import BURST_S
from tests.control.console.conftest import Browser

INSPECTS = (("inspect", "cluster"), ("observe", "cluster"))


@pytest.fixture
def ada(signed_in) -> Browser:
    return signed_in("ada", *INSPECTS, ("transact", "cluster"))


def limit(root, **limits: int) -> None:
    root("PUT", "/v1/admin/quotas/token:ada", limits)


def used(root, quota: str) -> int:
    found = {each["quota"]: each["used"] for each in root("GET", "/v1/admin/quotas/token:ada")["inForce"]}
    return found[quota]


def test_a_page_is_whole_and_its_calls_are_charged_with_it(ada, root, asked):
    limit(root, requestsPerS=2)
    page = ada.page("/console")
    panels = len(page.all("section"))
    assert (page.status, panels > 2 * BURST_S, "throttled" in page.text) == (200, True, False)
    assert used(root, "requests_per_s") >= panels  # the page itself; of its calls probes alone are free
    refused = ada.get("/console")
    assert (refused.status, refused.code) == (429, "throttled")
    asked.clock.advance(1_000 * panels)
    assert ada.get("/console").status == 200


def test_what_a_page_reads_is_charged_and_a_panel_says_when_it_is_used_up(ada, root, asked):
    root("PUT", "/v1/namespaces/shop/tables/stock", {})
    root("POST", "/v1/admin/grants", {"subject": "token:ada", "verbs": ["read"], "resource": "table:shop:stock"})
    path = "/console/ns/shop/tables/stock?scan=true"
    limit(root, fetchBytesPerS=10)
    assert "throttled" not in ada.page(path).text
    assert used(root, "fetch_bytes_per_s") > 10 * BURST_S
    page = ada.page(path)
    assert page.status == 200
    assert "token:ada has used up its quota fetch_bytes_per_s" in page.text
    asked.clock.advance(60_000)
    assert "throttled" not in ada.page(path).text


def test_who_has_no_quota_has_no_account(ada, root):
    ada.page("/console")
    assert used(root, "requests_per_s") == 0
