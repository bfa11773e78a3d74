"""Messages that are piped in, and messages that bring a key of their own."""

from __future__ import annotations

import json

import pytest

from basalt.cli.commands import messages


def published(cli, topic: str = "orders") -> list[tuple[str | None, str]]:
    """The keys and payloads in the topic."""
    rows = json.loads(cli("consume", topic, "-o", "json").out)
    return [(row.get("key"), row["payload"]) for row in rows]


def test_what_is_piped_in_is_one_message_or_with_lines_many(cli):
    cli("topic", "create", "orders")
    assert cli("publish", "orders", stdin=b"one\ntwo\n").code == 0
    assert cli("publish", "orders", "--lines", stdin=b"three\nfour").code == 0
    assert published(cli) == [(None, "one\ntwo\n"), (None, "three"), (None, "four")]


def test_messages_that_are_given_go_before_what_is_piped_in(cli):
    cli("topic", "create", "orders")
    cli("publish", "orders", "given", stdin=b"piped")
    assert published(cli) == [(None, "given")]


def test_an_empty_pipe_is_no_message_unless_it_was_named(cli):
    cli("topic", "create", "orders")
    refused = cli("publish", "orders")
    assert (refused.code, "standard input is empty" in refused.err) == (2, True)
    assert published(cli) == []
    assert cli("publish", "orders", "--file", "-").code == 0
    assert published(cli) == [(None, "")]


@pytest.mark.parametrize("more", [(), ("--lines",), ("--key-separator", ":")])
def test_on_a_terminal_nothing_is_read_that_was_not_asked_for(run, monkeypatch, more):
    monkeypatch.setattr(messages, "_is_piped", lambda: False)
    ran = run("publish", "orders", *more, stdin=b"typed")
    assert (ran.code, "there is no message to publish" in ran.err) == (2, True)


@pytest.mark.parametrize("separator", [":", "\\t", "\\x00", " => "])
def test_each_line_and_each_argument_may_have_a_key(cli, separator, tmp_path):
    cli("topic", "create", "orders")
    between = {"\\t": "\t", "\\x00": "\0"}.get(separator, separator)
    lines = between.join(("a", "one")) + "\n" + between.join(("", f"two{between}more")) + "\n"
    file = tmp_path / "lines"
    file.write_text(lines)
    assert cli("publish", "orders", "--key-separator", separator, stdin=lines.encode()).code == 0
    assert cli("publish", "orders", "--key-separator", separator, "--file", str(file)).code == 0
    expected = [("a", "one"), ("", f"two{between}more")]
    if between != "\0":  # no argument has a byte 0
        assert cli("publish", "orders", "--key-separator", separator, between.join(("c", "three"))).code == 0
        assert published(cli) == [*expected, *expected, ("c", "three")]
    else:
        assert published(cli) == [*expected, *expected]


def test_keys_go_with_headers_a_time_to_live_batches_and_transactions(cli):
    cli("topic", "create", "orders")
    told = cli("publish", "orders", "--key-separator", ":", "--header", "from=eu", "--ttl", "1h", "--batch", "1", "-o",
               "json", stdin=b"a:1\nb:2")  # fmt: skip
    assert (json.loads(told.out)["requests"], json.loads(told.out)["bytes"]) == (2, 4)
    rows = json.loads(cli("consume", "orders", "-o", "json").out)
    assert [(row["key"], row["headers"], row["ttl_ms"]) for row in rows] == [
        (key, [{"name": "from", "value": "eu"}], 3_600_000) for key in "ab"
    ]
    tx = json.loads(cli("tx", "begin", "-o", "json").out)["id"]
    cli("publish", "orders", "--key-separator", ":", "--tx", tx, stdin=b"c:3")
    assert len(published(cli)) == 2
    cli("tx", "commit", tx)
    assert published(cli)[2:] == [("c", "3")]


def test_a_line_without_a_key_is_named_and_those_before_it_are_published(cli):
    cli("topic", "create", "orders")
    refused = cli("publish", "orders", "--key-separator", ":", "--batch", "1", stdin=b"a:1\nb:2\nthree\nd:4\n")
    assert refused.code == 1
    assert "line 3 of - has no key separator ':'" in refused.err
    assert "the first 1 message is published" in refused.err  # b waits in a batch that is never whole
    assert published(cli) == [("a", "1")]
    refused = cli("publish", "orders", "--key-separator", ":", "a:1", "two")
    assert (refused.code, "message 2 has no key separator" in refused.err) == (1, True)
    assert published(cli) == [("a", "1")]
