"""The pages of transactional tables and their cells."""

from __future__ import annotations

from base64 import b64encode

import pytest

from basalt.console.pages.tables import PAGE_ROWS, SCAN_CELLS, VALUE_CHARS, row_of
from basalt.http.routes.tables import PAGE_MAX
from tests.control.console.conftest import Api

LIST = "/console/tables"
STOCK = "/console/ns/shop/tables/stock"
API = "/v1/namespaces/shop/tables/stock"


def write(api: Api, *rows: bytes, value: bytes = b"1") -> None:
    begun = api("POST", "/v1/transactions", {"snapshot": False})["id"]
    puts = [{"row": text(row), "column": text(b"count"), "value": text(value)} for row in rows]
    api("POST", f"{API}/write", {"transaction": begun, "puts": puts})
    api("POST", f"/v1/transactions/{begun}/commit")


def text(given: bytes) -> str:
    return b64encode(given).decode()


@pytest.fixture
def stock(api: Api) -> None:
    api("PUT", API, {"conflict": "cell"})


def test_tables_of_all_namespaces_are_listed_and_filtered_by_one(browser, api, stock):
    api("PUT", "/v1/namespaces/other/tables/prices")
    page = browser.page(LIST)
    assert {STOCK, "/console/ns/other/tables/prices"} <= set(page.links)
    assert "basalt table list --all-namespaces --limit 100" in page.text
    shop = browser.page(f"{LIST}?namespace=shop")
    assert "/console/ns/other/tables/prices" not in shop.links
    assert "basalt table list --namespace shop --limit 100" in shop.text


def test_where_there_is_no_table_the_page_says_so(browser):
    assert "There is no table." in browser.page(LIST).text


def test_a_list_goes_on_to_the_next_page(browser, api):
    assert PAGE_ROWS < PAGE_MAX
    for number in range(PAGE_ROWS + 1):
        api("PUT", f"/v1/namespaces/shop/tables/t{number:03}")
    page = browser.page(f"{LIST}?namespace=shop")
    (following,) = page.all("a", rel="next")
    assert "/console/ns/shop/tables/t100" in browser.page(following["href"]).links


def test_a_table_tells_its_conflict_level_and_reads_no_cell_before_it_is_asked(browser, api, stock):
    write(api, b"chair")
    page = browser.page(STOCK)
    assert "cell: two transactions that change one cell of a row clash" in page.text
    assert "chair" not in page.text
    assert sorted(browser.get(f"{STOCK}?json=true").json()) == ["table"]


def test_cells_are_read_from_a_row_on(browser, api, stock):
    write(api, b"chair", b"desk", b"lamp")
    page = browser.page(f"{STOCK}?scan=true&from=d")
    assert "chair" not in page.text
    assert ("desk count 1" in page.text, "lamp count 1" in page.text) == (True, True)
    assert page.fields["from"] == "d"
    assert "basalt table scan stock --namespace shop --from d" in page.text
    assert "There is no cell from that row on." in browser.page(f"{STOCK}?scan=true&from=z").text


def test_cells_go_on_to_the_next_page_whatever_the_bytes_of_the_row(browser, api, stock):
    rows = [bytes((1, 255, number // 256, number % 256)) for number in range(SCAN_CELLS + 3)]
    write(api, *rows)
    page = browser.page(f"{STOCK}?scan=true")
    (following,) = page.all("a", rel="next")
    rest = browser.page(f"{STOCK}{following['href']}")
    assert [f"0x{row.hex()}" in page.text for row in rows] == [True] * SCAN_CELLS + [False] * 3
    assert [f"0x{row.hex()}" in rest.text for row in rows[SCAN_CELLS:]] == [True] * 3
    assert "--from $'\\x01\\xff\\x00\\xc8'" in rest.text


def test_hostile_rows_and_values_are_shown_as_text_and_long_ones_cut(browser, api, stock):
    hostile = "<script>alert(1)</script>\u202e\x00"
    write(api, hostile.encode(), value=hostile.encode())
    write(api, b"long", value=b"y" * 100_000)
    write(api, b"raw", value=b"\xff" * 1_000)
    page = browser.page(f"{STOCK}?scan=true")
    assert page.text.count("<script>alert(1)</script>\\u202e\\x00") == 2
    assert "y" * VALUE_CHARS + "… (100,000 bytes)" in page.text
    assert "y" * (VALUE_CHARS + 1) not in page.text
    assert "ff… (1,000 bytes)" in page.text


@pytest.mark.parametrize("path", ["/console/ns/shop/tables/none", "/console/ns/shop/tables/%3Cscript%3E"])
def test_a_table_that_does_not_exist_is_a_page_that_says_so(browser, path):
    page = browser.page(path)
    assert page.status in (400, 404)
    assert "<script>" not in browser.get(path).body.decode()
    assert browser.page(f"{path}?scan=true").status == page.status


def test_who_may_look_and_not_read_is_told_so_in_place_of_cells(signed_in, root):
    root("PUT", API)
    ada = signed_in("ada", ("observe", "table:shop:stock"))
    page = ada.page(f"{STOCK}?scan=true")
    assert page.status == 200
    assert "token:ada may not read table:shop:stock" in page.text


@pytest.mark.parametrize(
    ("given", "row"), [("", b""), ("é", "é".encode()), ("0xff00", b"\xff\x00"), ("0xz", b"0xz"), ("0x", b"")]
)
def test_a_row_is_given_as_text_or_in_hex(given, row):
    assert row_of(given) == row
