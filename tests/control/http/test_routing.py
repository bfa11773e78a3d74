"""Which operation a head asks for: the table of routes, and what it remembers."""

from __future__ import annotations

import pytest

from basalt.access.policy import Caller
from basalt.access.quotas import QuotaLimits, Quotas
from basalt.errors import MethodNotAllowedError, RouteNotFoundError
from basalt.http import routing
from basalt.http.app import ANYBODY, OPERATIONS
from basalt.http.asgi.front import Front
from basalt.http.asgi.requests import BodyBudget, Head
from basalt.http.routes.route_table import Request
from basalt.http.routing import Routes


class Local:
    """The way to a client of which nothing is asked."""

    internal, is_admitted, id_is_clients, scheme = False, False, True, "http"


def asking(path: str, method: str = "GET", query: bytes = b"", caller: Caller = ANYBODY) -> Request:
    head = Head(method, path, path.encode(), query, {b"host": b"localhost"})
    return Request(None, None, None, BodyBudget(1), caller, head, Local(), 0.0, None, None)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_each_operation_is_found_by_its_method_and_path(operation):
    values = {}
    segments = []
    for number, segment in enumerate(operation.path.split("/")):
        if segment.startswith("{"):
            values[segment[1:-1]] = segment = f"v{number}"
        segments.append(segment)
    request = asking("/".join(segments), operation.method)
    found = Routes(OPERATIONS, Front(), Quotas(QuotaLimits())).find(request)
    assert (found.route, found.path, request.route) == (operation.path, values, operation.path)
    assert operation.handler.__name__ in repr(found.handler)


@pytest.mark.parametrize(
    "path", ["", "/", "/v1/", "//v1", "/v1/namespaces//topics", "/v1/nothing", "/v1/transactions/", "v1"]
)
def test_a_path_that_no_call_has_is_told_so(path):
    with pytest.raises(RouteNotFoundError, match="no call has the path"):
        Routes(OPERATIONS, Front(), Quotas(QuotaLimits())).find(asking(path))


def test_a_word_of_a_path_goes_before_a_parameter():
    routes = Routes(OPERATIONS, Front(), Quotas(QuotaLimits()))
    assert routes.find(asking("/v1/transactions/sessions")).path == {}
    assert routes.find(asking("/v1/transactions/other")).path == {"transaction": "other"}


def test_a_head_remembers_what_was_found_and_another_table_finds_anew():
    routes, request = Routes(OPERATIONS, Front(), Quotas(QuotaLimits())), asking("/v1")
    found = routes.find(request)
    assert routes.find(request) is found
    assert Routes(OPERATIONS, Front(), Quotas(QuotaLimits())).find(request) is not found


def test_a_head_that_is_refused_is_refused_again():
    routes, request = Routes(OPERATIONS, Front(), Quotas(QuotaLimits())), asking("/v1", "PATCH")
    for _ in range(2):
        with pytest.raises(MethodNotAllowedError):
            routes.find(request)
        assert request.route == "/v1"


def test_the_paths_that_are_remembered_have_a_limit_in_number_and_length(monkeypatch):
    monkeypatch.setattr(routing, "KNOWN_PATHS_MAX", 2)
    monkeypatch.setattr(routing, "KNOWN_PATH_CHARS_MAX", len("/v1/transactions/12"))
    routes = Routes(OPERATIONS, Front(), Quotas(QuotaLimits()))
    for name, known in [("1", 1), ("12", 2), ("123", 2), ("13", 1), ("1", 2)]:
        assert routes.find(asking(f"/v1/transactions/{name}")).path == {"transaction": name}
        assert len(routes._known) == known
