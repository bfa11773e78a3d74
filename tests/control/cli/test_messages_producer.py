"""`basalt publish --producer` and `basalt topic producers` against a real server: a file is published once, line by line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "file-7.log"
    path.write_text("a\nb\nc\n")
    return str(path)


@pytest.fixture
def topic(cli) -> str:
    assert cli("topic", "create", "lines").code == 0
    return "lines"


@pytest.fixture
def client(cli, server_url) -> Iterator[basalt.Client]:
    """A client in the namespace of the command line."""
    with basalt.connect(server_url, namespace=os.environ["BASALT_NAMESPACE"]) as connected:
        yield connected


def lines_of(client: basalt.Client, topic: str) -> list[str]:
    return [message.text for message in client.topic(topic).read()]


def test_a_file_is_published_once_however_often_and_its_new_lines_are_added(cli, client, topic, file):
    command = ("publish", topic, "--file", file, "--lines", "--producer", "file-7")
    assert "published 3 messages" in cli(*command, "--batch", "2").out
    assert "published 0 messages" in cli(*command).out
    with Path(file).open("a") as more:
        more.write("d\ne\n")
    done = json.loads(cli(*command, "-o", "json").out)
    assert (done["messages"], done["skipped"], done["producer"]) == (2, 3, "file-7")
    assert lines_of(client, topic) == ["a", "b", "c", "d", "e"]


def test_a_dry_run_says_how_much_is_left_and_opens_nothing(cli, client, topic, file):
    command = ("publish", topic, "--file", file, "--lines", "--producer", "file-7", "--dry-run")
    assert "would publish 3 messages" in cli(*command).out
    assert client.topic(topic).producers() == []
    client.producer(topic, "file-7").publish(["a", "b"])
    assert "would publish 1 message, 1 byte" in cli(*command).out


def test_keys_and_headers_are_carried_as_without_a_producer(cli, client, topic, file):
    Path(file).write_text("k1\tone\nk2\ttwo\n")
    options = ("--lines", "--producer", "p", "--key-separator", r"\t", "--header", "from=file")
    assert cli("publish", topic, "--file", file, *options).code == 0
    found = [(message.key, message.payload, message.headers) for message in client.topic(topic).read()]
    assert found == [(b"k1", b"one", (("from", b"file"),)), (b"k2", b"two", (("from", b"file"),))]


def test_a_file_with_fewer_lines_than_were_published_is_another_file(cli, client, topic, file):
    command = ("publish", topic, "--file", file, "--lines", "--producer", "file-7")
    assert cli(*command).code == 0
    Path(file).write_text("x\n")
    done = cli(*command)
    assert done.code == 1
    assert "has published 3 lines, and here is 1" in done.err
    assert lines_of(client, topic) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "options", [["m", "--producer", "p"], ["--file", "-", "--lines", "--producer", "p", "--tx", "42"]]
)
def test_only_lines_that_are_published_are_numbered(cli, options):
    done = cli("publish", "orders", *options)
    assert (done.code, "--producer numbers lines" in done.err) == (2, True)


def test_producers_are_listed_and_deleted(cli, client, topic, file):
    assert cli("publish", topic, "--file", file, "--lines", "--producer", "file-7").code == 0
    assert cli("publish", topic, "another").code == 0
    listed = json.loads(cli("topic", "producers", "list", topic, "-o", "json").out)
    assert {(row["last_sequence"], bool(row["run"])) for row in listed} == {(2, True), (0, False)}
    delete = ("topic", "producers", "delete", topic, "file-7")
    assert "would delete producer file-7" in cli(*delete, "--dry-run").out
    assert cli(*delete).code == 2, "nobody is there to ask"
    assert "deleted producer file-7" in cli(*delete, "--yes").out
    assert cli(*delete, "--yes").code == 3
    assert client.producer(topic, "file-7").last_sequence == -1
