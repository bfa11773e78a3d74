"""A server that does not lead, as a browser meets it; and one that stops to lead while a page of it is open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.visitor import Visitor
from tests.browser.window import REFRESH_MS, Window


class TwoServers:
    """Two servers of one store, one of which leads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.urls = process.stdout.readline().split()

    def lead(self, number: int) -> None:
        """Have this one lead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "leads\n"


@pytest.fixture(scope="module")
def two() -> Iterator[TwoServers]:
    command = [sys.executable, "-m", "tests.browser.two_servers"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield TwoServers(process)
        process.kill()


def test_a_standby_shows_how_it_is_and_the_way_to_the_same_page_of_its_leader(chromium: Any, two: TwoServers):
    two.lead(0)
    with Visitor.at(chromium, two.urls[1]) as visitor:
        answer = visitor.go("/console/transactions?state=open")
        assert answer.status == 503
        assert visitor.violations() == visitor.refused() == visitor.sideways() == []
        assert [each for each in visitor.faults if "503" not in each] == []
        assert f"standby: {two.urls[0]} leads" in visitor.page.inner_text("main")
        visitor.page.click("main a")
        visitor.page.wait_for_selector("#panel-transactions")
        assert visitor.page.url == f"{two.urls[0]}/console/transactions?state=open"


def test_the_leader_lists_its_standby_with_state_and_version(chromium: Any, two: TwoServers):
    two.lead(0)
    two.lead(1)  # whoever leads has looked at all members by now
    with Visitor.at(chromium, two.urls[1]) as visitor:
        assert visitor.go("/console/cluster").status == 200
        rows = visitor.page.locator("#panel-cluster_members tbody tr").all_inner_texts()
        assert sorted(row.split()[1:4] for row in rows) == sorted(
            [[two.urls[0], "standby", "live"], [two.urls[1], "leader", "live"]]
        )
        assert visitor.violations() == visitor.refused() == visitor.sideways() == []


def test_a_page_says_that_another_leads_and_goes_on_when_its_own_server_does_again(chromium: Any, two: TwoServers):
    two.lead(0)
    with Visitor.at(chromium, two.urls[0]) as visitor:
        window = Window(visitor)
        window.go("/console/transactions?owner=a")
        two.lead(1)
        window.renew()
        window.page.wait_for_selector("#stale a")
        assert "this server is a standby" in window.page.inner_text("#stale")
        assert window.page.get_attribute("#stale a", "href") == f"{two.urls[1]}/console/transactions?owner=a"
        two.lead(0)
        window.let_pass(3 * REFRESH_MS)
        window.page.wait_for_selector("#stale", state="hidden")
        assert window.said() == "The page is up to date again."
