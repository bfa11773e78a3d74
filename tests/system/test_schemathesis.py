"""schemathesis against a running server and its own OpenAPI document: made up requests of every call, good and bad."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test

from basalt.http.app import OPERATIONS
from basalt.http.openapi import describe
from basalt_engine.keys import NAME_PATTERN
from tests.budgets import SCHEMATHESIS_EXAMPLES, examples
from tests.system.server_process import ANSWER_SECONDS_MAX, ORDERS, ServerProcess

pytestmark = pytest.mark.system

STOCK = "/v1/namespaces/shop/tables/stock"

# What a schema cannot say: that a topic must exist, that a publish needs messages or a writer, that ids are known.
NOT_CHECKED = ("positive_data_acceptance", "use_after_free", "ensure_resource_availability", "ignored_auth")


@schemathesis.serializer("avro/binary", "application/x-ndjson", "application/vnd.apache.arrow.stream")
def _as_bytes(ctx: Any, value: Any) -> Any:
    """Bodies of Avro, JSON lines and Arrow are any bytes to schemathesis: malformed nearly always, which is the point."""
    return {"data": value if isinstance(value, bytes) else repr(value).encode()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("schemathesis"))
    server.start("--set", "log.level=warning")
    server.ask_json("PUT", ORDERS)
    server.ask_json("PUT", STOCK)
    server.ask_json("PUT", f"{ORDERS}/groups/billing")
    server.ask_json("POST", f"{ORDERS}/publish", {"messages": ["first", "second"]})
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text(errors="replace")


# Good names are replaced by those of what there is, so that made up requests get past the look-up of a topic.
NAMES = {"namespace": "shop", "topic": "orders", "table": "stock", "job": "stats", "group": "billing"}
NAMES_TO_DELETE = {**NAMES, "topic": "spare", "table": "spare", "group": "spare"}

# These answer a body only to a request with a write pointer, which OpenAPI has no words for.
SOMETIMES_EMPTY = ("/publish", "/records")
CHECKS_OF_BODIES = ("content_type_conformance", "response_schema_conformance")

# Loaded here, not from the server, so that each call is a test of its own; the first test says that they are the same.
DOCUMENT = json.loads(msgspec.json.encode(describe(OPERATIONS)))


WAIT_MS, WAITS_MS_MAX = 50, 60_000


@pytest.fixture(scope="module")
def schema() -> Any:
    return schemathesis.openapi.from_dict(DOCUMENT)


CALLS = [f"{method.upper()} {path}" for path, methods in DOCUMENT["paths"].items() for method in methods]


def test_the_document_is_the_one_that_the_server_serves(server: ServerProcess):
    assert server.ask_json("GET", "/openapi.json") == DOCUMENT


@pytest.mark.parametrize("call", CALLS)
def test_every_call_answers_as_the_document_says(call: str, schema: Any, server: ServerProcess):
    # schemathesis's own decorator makes up requests of all calls when tests are collected, which takes every process of a run 4 s.
    method, path = call.split(" ")
    load_all_checks()
    made_up = build_operation_test(
        config=schema.config,
        operation=schema[path][method],
        test_func=answer_as_the_document_says,
        given_kwargs={},
        feedback=FeedbackSources(),
    )
    made_up(server=server)


@settings(
    max_examples=examples(SCHEMATHESIS_EXAMPLES),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def answer_as_the_document_says(case: Any, server: ServerProcess) -> None:
    names = NAMES_TO_DELETE if case.method == "DELETE" else NAMES
    for name, value in case.path_parameters.items():
        if name in names and NAME_PATTERN.fullmatch(str(value)):
            case.path_parameters[name] = names[name]
    if str(case.query.get("waitMs", "")).isdecimal() and WAIT_MS < int(case.query["waitMs"]) <= WAITS_MS_MAX:
        case.query["waitMs"] = WAIT_MS  # what it waits for does not come
    response = case.call(base_url=server.url, timeout=ANSWER_SECONDS_MAX)
    excluded = [*NOT_CHECKED]
    if not response.content and case.path.endswith(SOMETIMES_EMPTY):
        excluded += CHECKS_OF_BODIES
    if (
        response.status_code == HTTPStatus.REQUEST_URI_TOO_LONG
    ):  # a refusal, though not one that the library counts as such
        excluded.append("negative_data_rejection")
    case.validate_response(response, excluded_checks=[CHECKS.get_one(name) for name in excluded])


def test_the_server_serves_on(server: ServerProcess):
    assert server.alive()
    assert server.ask_json("GET", "/readyz")["ready"]
    fresh = "/v1/namespaces/shop/topics/fresh"  # what was sent may have ended the stream of the other one
    server.ask_json("PUT", fresh, {})
    server.ask_json("POST", f"{fresh}/publish", {"messages": ["last"]})
    assert server.ask_json("POST", f"{fresh}/poll", {})[-1]["payload"] == "last"
