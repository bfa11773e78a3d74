"""The Python client before the front of a server: by the machine's name, by a stranger's, and inside the process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

import basalt
from basalt.errors import WrongHostError
from tests.control.cli.conftest import served, services_with_jobs


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(services_with_jobs) as url:
        yield url


def test_a_client_goes_by_the_machines_name(url):
    with basalt.connect(url, headers={"Host": f"{socket.gethostname()}:4780"}) as client:
        client.topics.create("orders")
        client.topic("orders").publish("a")
        assert [message.text for message in client.topic("orders").poll()] == ["a"]


def test_a_client_that_goes_by_another_name_is_told_which_setting_lists_it(url):
    with (
        basalt.connect(url, headers={"Host": "evil.example"}) as client,
        pytest.raises(WrongHostError, match=r"evil\.example") as caught,
    ):
        client.topics.create("more")
    assert "http.hosts" in (caught.value.hint or "")

    async def story() -> None:
        async with basalt.aio.connect(url, headers={"Host": "evil.example"}) as client:
            with pytest.raises(WrongHostError, match=r"evil\.example"):
                await client.topics.create("more")

    asyncio.run(story())
    with basalt.connect(url) as client:
        assert "more" not in client.topics.list()


def test_an_embedded_client_has_no_host_and_needs_none(tmp_path):
    with basalt.connect(f"embedded:{tmp_path}") as client:
        client.topics.create("orders")
        assert client.topics.list() == ["orders"]
