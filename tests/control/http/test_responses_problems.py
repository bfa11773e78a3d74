"""Errors as problem documents: their status, their members, and what they never tell."""

from __future__ import annotations

import json
import logging

import pytest

from basalt import errors
from basalt.http.asgi.responses import DETAIL_CHARS_MAX, problem_response, status_of

NAMESPACE = "/v1/namespaces/shop/topics"


def header(answer, name):
    return dict(answer.headers).get(name)


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_every_error_has_a_status_of_its_side(code):
    kind = errors.BY_CODE[code]
    status = status_of(kind)
    if issubclass(kind, errors.InputError):
        assert 400 <= status < 500
    else:
        assert status >= 500 or kind in (errors.RequestTimeoutError, errors.ThrottledError)


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_every_error_is_told_in_a_whole_document(code):
    answer = problem_response(errors.BY_CODE[code]("what went wrong", field="limit", hint="do this"), "id-7")
    document = json.loads(answer.body)
    assert answer.content_type == b"application/problem+json"
    assert {name: document[name] for name in ("code", "detail", "field", "hint", "requestId", "status")} == {
        "code": code,
        "detail": "what went wrong",
        "field": "limit",
        "hint": "do this",
        "requestId": "id-7",
        "status": answer.status,
    }


def test_what_there_is_not_is_left_out():
    document = json.loads(problem_response(errors.InputError("no"), "id").body)
    assert not {"field", "hint", "retryAfterMs"} & set(document)


@pytest.mark.parametrize(("retry_after_ms", "seconds"), [(1, b"1"), (1_000, b"1"), (1_001, b"2"), (30_000, b"30")])
def test_an_error_worth_repeating_says_when(retry_after_ms, seconds):
    error = errors.BusyError("full")
    error.retry_after_ms = retry_after_ms
    answer = problem_response(error, "id")
    assert header(answer, b"retry-after") == seconds
    assert json.loads(answer.body)["retryAfterMs"] == retry_after_ms


def test_an_unknown_outcome_does_not_invite_to_repeat():
    answer = problem_response(errors.UnknownOutcomeError("who knows"), "id")
    assert header(answer, b"retry-after") is None


def test_a_long_or_unwritable_detail_is_told_all_the_same():
    document = json.loads(problem_response(errors.InputError("x" * 100_000), "id").body)
    assert len(document["detail"]) == DETAIL_CHARS_MAX + 1
    assert json.loads(problem_response(errors.InputError("half \ud800"), "id").body)["detail"] == "half ?"


def test_an_unexpected_error_tells_nothing_but_the_request_id_and_is_logged(client, monkeypatch, caplog):
    async def fail(namespace):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(client.services.topics.catalog, "list", fail)
    with caplog.at_level(logging.ERROR, "basalt.http"):
        reply = client.call("GET", NAMESPACE)
    assert (reply.status, reply.code) == (500, "internal")
    assert b"secret" not in reply.body
    assert b"Traceback" not in reply.body
    assert "secret detail" in caplog.text
    assert reply.header("basalt-request-id") in caplog.text


def test_an_answer_that_breaks_off_is_not_ended_as_if_it_were_whole(client, monkeypatch, caplog):
    from basalt.http.routes import polls

    path = client.topic()
    for _ in range(4):
        client.publish(path, "x" * 300_000)

    def break_off(slices):
        yield b"some"
        raise ZeroDivisionError

    monkeypatch.setattr(polls, "json_parts", break_off)
    with pytest.raises(ZeroDivisionError):
        client.poll(path)


def test_a_refusal_of_the_services_keeps_its_field_and_hint(client):
    document = client.call("GET", f"{NAMESPACE}/none").json()
    assert document["field"] == "topic"
    assert document["hint"]
    assert "shop:none" in document["detail"]
