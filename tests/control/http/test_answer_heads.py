"""The bytes with which answers begin: each header once, those of every answer always, and no end of a line within one."""

from __future__ import annotations

import json

import pytest
from uvicorn.server import ServerState

from basalt.http.asgi.answer_heads import AnswerHeads, refusal
from basalt.http.asgi.requests import Headers


def head(headers: Headers, *, keep_alive: bool = True, chunked: bool = False) -> list[bytes]:
    """The lines of an answer's head, one after the other, without the two at the end."""
    state = ServerState()
    state.default_headers = [(b"date", b"today")]
    made = AnswerHeads(state).head(200, headers, keep_alive, chunked=chunked)
    assert made.endswith(b"\r\n\r\n")
    return made[:-4].split(b"\r\n")


def test_a_head_has_what_every_answer_has_and_its_own_headers():
    assert head([(b"content-length", b"0")]) == [
        b"HTTP/1.1 200 OK",
        b"date: today",
        b"x-content-type-options: nosniff",
        b"cache-control: no-store",
        b"content-length: 0",
    ]


def test_an_answer_that_may_be_kept_says_so_once():
    lines = head([(b"cache-control", b"max-age=60")])
    assert [line for line in lines if line.startswith(b"cache-control")] == [b"cache-control: max-age=60"]


def test_a_head_says_how_its_body_comes_and_whether_more_may_be_asked():
    assert head([], keep_alive=False, chunked=True)[-2:] == [b"connection: close", b"transfer-encoding: chunked"]


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nset-cookie: b"])
@pytest.mark.parametrize("is_value", [True, False])
def test_no_header_ends_its_line(value: bytes, is_value: bool):
    given = (b"basalt-owner", value) if is_value else (value, b"a")
    with pytest.raises(ValueError, match="end of a line"):
        head([given])


def test_the_headers_of_a_second_are_put_together_once_and_then_anew():
    state = ServerState()
    state.default_headers = [(b"date", b"one")]
    heads = AnswerHeads(state)
    assert b"date: one" in heads.head(200, [], True, chunked=False)
    kept = heads._default_lines
    assert b"date: one" in heads.head(404, [], True, chunked=False)
    assert heads._default_lines is kept
    state.default_headers = [(b"date", b"two")]
    assert b"date: two" in heads.head(200, [], True, chunked=False)


def test_what_never_became_a_request_gets_a_problem_and_the_end_of_its_connection():
    top, _, body = refusal(431, "head_too_large", "it is too long").partition(b"\r\n\r\n")
    lines = top.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 431 Request Header Fields Too Large"
    assert b"connection: close" in lines
    assert b"content-length: %d" % len(body) in lines
    assert b"x-content-type-options: nosniff" in lines
    problem = json.loads(body)
    assert (problem["status"], problem["code"], problem["detail"]) == (431, "head_too_large", "it is too long")


def test_a_request_that_nobody_answers_gets_an_answer_all_the_same():
    made = AnswerHeads(ServerState()).plain_problem(500)
    assert made.startswith(b"HTTP/1.1 500 ")
    assert b"\r\nconnection: close\r\n" in made
    assert made.endswith(b"\r\n\r\nInternal Server Error")
