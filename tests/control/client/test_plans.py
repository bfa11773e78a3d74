"""Calls as values: the paths and queries that names and arguments make, and what a call says of itself."""

from __future__ import annotations

import pytest

from basalt.client.plans import (
    Answer,
    Await,
    ClientScope,
    CoroutineRefusedError,
    act_of,
    media_type_of,
    query_of,
    send_json,
)
from basalt.errors import InputError


def test_no_name_leads_to_another_path():
    scope = ClientScope("a/b", lambda: 0)
    assert scope.topic("../x?y#z").path("groups", "ü %2F") == (
        "/v1/namespaces/a%2Fb/topics/..%2Fx%3Fy%23z/groups/%C3%BC%20%252F"
    )
    assert scope.table("t", namespace="other").path() == "/v1/namespaces/other/tables/t"


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("", InputError, "a name is empty: v1/namespaces/shop/topics/$"),
        (None, TypeError, "a name is text, not None: v1/namespaces/shop/topics/None$"),
        (b"orders", TypeError, "a name is text, not b'orders'"),
        (5, TypeError, "a name is text, not 5"),
    ],
)
def test_a_name_that_is_none_leads_nowhere(name, error, told):
    with pytest.raises(error, match=told):
        ClientScope("shop", lambda: 0).topic(name).path()


def test_a_query_has_what_is_given_in_hex_and_in_words():
    assert query_of(after=b"\x01\xff", limit=5, force=True, dry=False, none=None) == (
        ("after", "01ff"),
        ("limit", "5"),
        ("force", "true"),
        ("dry", "false"),
    )
    assert act_of("", "ada", dry_run=True) == (("as", "ada"), ("dryRun", "true"))


def test_a_call_with_a_body_says_of_what_kind_it_is_and_one_without_says_nothing():
    asked = next(send_json("PUT", "try", "/it", lambda answer: answer.body, body={"a": 1}, timeout_ms_max=5))
    assert (asked.body, asked.content_type, asked.timeout_ms_max) == (b'{"a":1}', "application/json", 5)
    bare = next(send_json("POST", "try", "/it", lambda answer: answer.body))
    assert (bare.body, bare.content_type, bare.timeout_ms_max) == (b"", None, None)


def test_a_media_type_is_read_without_its_parameters():
    assert media_type_of(Answer(200, {"content-type": " Text/HTML ; charset=utf-8"}, b"")) == "text/html"
    assert media_type_of(Answer(200, {}, b"")) == ""


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_is_refused_is_closed():
    async def handle() -> None: ...

    error = Await(handle(), "handle").refused()
    assert isinstance(error, CoroutineRefusedError)
    assert str(error) == "handle is a coroutine, which only the async client can await"
