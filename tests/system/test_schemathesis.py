"""schemathesis against a running server and its own OpenAPI document: made up requests of every call, good and bad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from basalt.wire.bodies import PUBLISH_MESSAGES_MAX
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.system

EXAMPLES_MAX = 12  # of each of some forty calls: seconds in all; more by hand with `schemathesis run`
ORDERS = "/v1/namespaces/shop/topics/orders"

# What a schema cannot say: that a topic must exist, that a publish needs messages or a writer, that ids are known.
NOT_CHECKED = ("positive_data_acceptance", "use_after_free", "ensure_resource_availability", "ignored_auth")


@schemathesis.serializer("avro/binary", "application/x-ndjson")
def _as_bytes(ctx: Any, value: Any) -> Any:
    """Avro and JSON lines bodies are any bytes to schemathesis: malformed nearly always, which is the point."""
    return {"data": value if isinstance(value, bytes) else repr(value).encode()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("schemathesis"))
    server.start("--set", "log.level=warning")
    server.ask_json("PUT", ORDERS)
    server.ask_json("POST", f"{ORDERS}/publish", {"messages": ["kept"]})
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text(errors="replace")


@pytest.fixture(scope="module")
def api_schema(server: ServerProcess) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("api_schema")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES_MAX,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_call_answers_as_the_document_says(case: Any):
    load_all_checks()
    case.call_and_validate(excluded_checks=[CHECKS.get_one(name) for name in NOT_CHECKED], timeout=30)


def test_the_server_serves_on(server: ServerProcess):
    assert server.alive()
    assert server.ask_json("GET", "/readyz")["ready"]
    assert PUBLISH_MESSAGES_MAX > 0
