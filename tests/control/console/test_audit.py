"""The audit on a page: filtered, by pages, and as CSV that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io

import pytest

from basalt.api.bodies.operations import AuditLine
from basalt.console.pages import audit
from basalt.console.pages.audit import CSV_LINES_MAX, cell, table_of, time_ms
from basalt.errors import InputError
from basalt.http.routes.server import AUDIT_MAX

PATH = "/console/audit"
INSPECTS = ("inspect", "cluster")


@pytest.fixture
def ada(signed_in, root, asked):
    ada = signed_in("ada", INSPECTS)
    for number in range(4):
        asked.clock.advance(60_000)
        root("PUT", f"/v1/admin/roles/role-{number}?reason=%3Dcmd()", {"members": []})
    return ada


def test_lines_are_found_by_act_principal_target_and_time(ada, asked):
    assert "role role-3" in ada.page(PATH).text
    page = ada.page(f"{PATH}?act=set%20role&principal=token:bootstrap&target=ROLE-2")
    assert ("role role-2" in page.text, "role role-3" in page.text) == (True, False)
    assert "Nobody has done anything" in ada.page(f"{PATH}?principal=token:nobody").text
    at = "2023-11-14T22:15:20"  # the first minute of the test's clock is 22:13:20
    early = ada.page(f"{PATH}?act=set%20role&to={at}")
    late = ada.page(f"{PATH}?act=set%20role&from={at}")
    assert [each for each in range(4) if f"role role-{each}:" in early.text] == [0]
    assert [each for each in range(4) if f"role role-{each}:" in late.text] == [1, 2, 3]
    assert early.all("input", name="to")[0]["value"] == at
    assert "basalt audit list --to @1700000120000 --act 'set role'" in early.text


def test_the_list_goes_on_by_pages(ada, monkeypatch):
    monkeypatch.setattr(audit, "PAGE_ROWS", 3)
    first = ada.page(f"{PATH}?act=set%20role")
    (following,) = [each["href"] for each in first.all("a", rel="next")]
    last = ada.page(following)
    assert [each for each in range(4) if f"role role-{each}:" in last.text] == [0]
    assert last.all("a", rel="next") == []


def test_the_csv_has_all_lines_and_no_formula(ada, monkeypatch):
    assert CSV_LINES_MAX == AUDIT_MAX
    monkeypatch.setattr(audit, "CSV_PAGE_LINES", 3)
    (link,) = [each for each in ada.page(f"{PATH}?act=set%20role").links if ".csv" in each]
    reply = ada.get(link)
    assert (reply.status, reply.header("content-type")) == (200, "text/csv; charset=utf-8; header=present")
    assert reply.header("content-disposition") == 'attachment; filename="audit.csv"'
    assert (reply.header("cache-control"), reply.header("x-content-type-options")) == ("no-store", "nosniff")
    rows = list(csv.DictReader(io.StringIO(reply.body.decode())))
    assert [each["what"][:11] for each in rows] == [f"role role-{number}" for number in (3, 2, 1, 0)]
    assert {each["reason"] for each in rows} == {"'=cmd()"}
    assert rows[3]["time"].startswith("2023-11-14T22:14:20")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_what_a_spreadsheet_would_run_is_text(text):
    assert cell(text) == f"'{text}"
    line = AuditLine(0, text, "a,b", 'say "x"', "two\nlines", *[""] * 7)
    (row,) = list(csv.reader(io.StringIO(table_of([line]))))[1:]
    assert row[2:6] == [f"'{text}", "a,b", 'say "x"', "two\nlines"]


def test_what_is_none_stays_as_it_is():
    assert [cell(each) for each in ("a=b", "", 17, "'=1")] == ["a=b", "", "17", "'=1"]


@pytest.mark.parametrize("text", ["soon", "2026-13-01", "9" * 300, "=1"])
def test_what_is_no_time_is_told_by_its_name(ada, text):
    with pytest.raises(InputError, match="which is no time"):
        time_ms(text, "from")
    assert ada.get(f"{PATH}?from={text}").status == 400
    assert time_ms("2023-11-14T22:13:20", "from") == time_ms("2023-11-14T23:13:20+01:00", "to") == 1_700_000_000_000


def test_who_may_not_read_the_audit_gets_neither_page_nor_csv(signed_in, asked):
    eve = signed_in("eve")
    assert "token:eve may not inspect cluster" in eve.page(PATH).text
    assert eve.page(f"{PATH}.csv").status == 403
    assert asked.call("GET", f"{PATH}.csv").status == 303
