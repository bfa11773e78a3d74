"""Problem documents and other answers that are not 2xx, as exceptions."""

from __future__ import annotations

import msgspec
import pytest

from basalt import errors
from basalt.client.attempts import error_of
from basalt.client.plans import Answer, Call, Effect, nothing

CALL = Call("try it", "GET", "/", nothing, Effect.NONE)


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_every_code_comes_back_as_its_class(code):
    answer = Answer(400, {}, msgspec.json.encode({"code": code, "detail": "why"}))
    error = error_of(CALL, answer)
    assert type(error) is errors.BY_CODE[code]
    assert error.message == "why"


def test_the_request_id_of_the_header_is_taken_when_the_document_has_none():
    answer = Answer(400, {"basalt-request-id": "abc"}, b'{"code": "invalid_input"}')
    assert error_of(CALL, answer).request_id == "abc"


def test_an_unknown_code_is_shown():
    error = error_of(CALL, Answer(409, {}, b'{"code": "brand_new", "detail": "why"}'))
    assert str(error) == "why (code brand_new)"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b"null",
        b'{"code": 5}',
        b'{"code": null}',
        b'{"code": "busy", "detail": 1}',
        b"\xff",
    ],
)
def test_what_is_no_problem_document_is_a_protocol_error(body):
    assert type(error_of(CALL, Answer(400, {}, body))) is errors.ProtocolError


def test_a_long_foreign_answer_is_cut():
    error = error_of(CALL, Answer(400, {}, b"x" * 1_000_000))
    assert len(str(error)) < 500
