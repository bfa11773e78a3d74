"""A real server looks at itself once a second, and ends as before while it does."""

from __future__ import annotations

import time

import pytest

from tests.system.server_process import ANSWER_SECONDS_MAX, ORDERS, ServerProcess

pytestmark = pytest.mark.system

NAMES = ("connections", "store_bytes", "disk_free_bytes", "memory_bytes", "loop_lag_s", "requests_per_s", "cpu_percent")
LAG = "lag_messages:shop:orders/billing"


def newest(server: ServerProcess, *names: str) -> list[float | None]:
    """The newest value of each figure."""
    page = server.ask_json("GET", f"/v1/admin/series?names={','.join(names)}&from=-30s", status=200)
    return [next((value for value in reversed(page["values"][name]) if value is not None), None) for name in names]


def test_a_server_keeps_its_figures_and_the_lag_of_a_group(server: ServerProcess) -> None:
    server.ask_json("PUT", f"{ORDERS}/groups/billing", {})
    server.ask_json("POST", f"{ORDERS}/publish", {"messages": ["a", "b"]})
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while server.ask("GET", f"/v1/admin/series?names={LAG}").status != 200:  # until the group was looked at
        assert time.monotonic() < deadline, server.tail()
        time.sleep(0.1)
    while None in (found := newest(server, *NAMES, LAG)) or found[-1] != 2:
        assert time.monotonic() < deadline, (found, server.tail())
        time.sleep(0.1)
    assert server.stop() == 0
    assert "were not noted" not in server.tail()
    assert "was not noted" not in server.tail()
