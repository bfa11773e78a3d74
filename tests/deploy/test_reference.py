"""`make reference` adds what no page tells, strikes what is gone, and leaves the words of people alone."""

from __future__ import annotations

import pytest
from prometheus_client.core import CounterMetricFamily

from basalt.access.needs import SELF
from basalt.errors import BY_CODE, BasaltError, NotFoundError
from basalt.http.app import OPERATIONS
from basalt.http.routes.route_table import Operation, Query
from deploy import reference

ERRORS = """\
| code | status | meaning, and what to do |
|---|---|---|
| `invalid_input` | 400 | words of somebody |
| `not_found` | 404 | more of them |
| `conflict` | 409 | and more |
| `protocol` | \u2013 | of the client |
"""
CALLS = """\
| call | answer |
|---|---|
| `GET /v1/admin/namespaces` | the namespaces |

Calls without a body take none, or `{}`.
"""


class LostError(NotFoundError, code=None):
    """It was here | a moment ago.

    And more that a table has no room for.
    """


async def look(request: object) -> None:
    """Look for it."""


def operation(path: str, *query: Query) -> Operation:
    return Operation(method="GET", path=path, handler=look, tag="admin", needs=SELF, query=query)


def parameter(name: str) -> Query:
    return Query(name, str, {"type": "string"}, "How far it looks")


def codes(*names: str) -> dict[str, type[BasaltError]]:
    return {name: BY_CODE[name] for name in names}


def test_the_pages_of_today_need_nothing(capsys: pytest.CaptureFixture[str]):
    assert reference.main(["--check"]) == 0, capsys.readouterr()


def test_an_error_that_no_row_tells_gets_one_under_its_status():
    known = codes("invalid_input", "not_found", "conflict", "protocol")
    page = reference.errors_page(ERRORS, {**known, "lost": LostError})
    row = "| `lost` | 404 | it was here \\| a moment ago |\n"
    assert page == ERRORS.replace("| `conflict`", row + "| `conflict`")
    assert reference.errors_page(page, {**known, "lost": LostError}) == page


def test_an_error_that_is_gone_loses_its_row_and_a_status_is_as_it_is():
    page = reference.errors_page(ERRORS.replace("404", "410"), codes("not_found", "conflict", "protocol"))
    assert page == ERRORS.replace("| `invalid_input` | 400 | words of somebody |\n", "")


def test_a_metric_that_no_row_tells_gets_one():
    metrics = [CounterMetricFamily("basalt_doors", "Doors that were opened", labels=("door",))]
    page = reference.metrics_page("| `basalt_x` | gauge | x |\n| `process_*` | | |\n", metrics)
    assert "| `basalt_doors_total` | counter; `door` | doors that were opened |\n| `process_*`" in page
    assert reference.metrics_page(page, metrics) == page


def test_a_call_that_no_page_tells_gets_a_row_with_its_parameters():
    calls = [operation("/v1/doors/{door}", parameter("depthMax"))]
    page = reference.calls_page(CALLS, CALLS, calls)
    assert "| `GET /v1/doors/{door}` | look for it. `depthMax`: how far it looks. |\n\nCalls without" in page
    assert reference.calls_page(page, page, calls) == page


def test_a_parameter_that_no_page_names_is_noted_with_its_call():
    calls = [operation("/v1/admin/namespaces", parameter("depthMax"))]
    page = reference.calls_page(CALLS, CALLS, calls)
    assert "| `GET /v1/admin/namespaces` | the namespaces. `depthMax`: how far it looks. |\n" in page


def test_a_call_that_another_page_tells_gets_no_row():
    assert reference.calls_page(CALLS, CALLS + "`GET /v1/doors/{id}`", [operation("/v1/doors/{door}")]) == CALLS


def test_the_places_of_new_rows_are_in_the_pages():
    told = {name: (reference.REFERENCE / f"{name}.md").read_text() for name in ("metrics", "http-api")}
    assert reference._METRICS_END in told["metrics"]
    assert reference._CALLS_END in told["http-api"]
    assert len(OPERATIONS) > 50
