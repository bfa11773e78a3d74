"""Answers that are encoded while they are sent."""

from __future__ import annotations

from basalt.http.asgi import responses


def test_a_coded_answer_above_the_limit_is_coded_while_it_is_sent(client, monkeypatch):
    path = client.topic()
    client.publish(path, "a" * 2_000)
    accepted = {"accept_encoding": "gzip"}
    whole = client.call("POST", f"{path}/poll", {}, **accepted)
    monkeypatch.setattr(responses, "CODED_AT_ONCE_BYTES_MAX", 3)
    parted = client.call("POST", f"{path}/poll", {}, **accepted)
    assert (whole.header("content-length") is None, parted.header("content-length")) == (False, None)
    assert parted.header("content-encoding") == "gzip"
