"""The client's transport: when a token is asked for again, by whom, and to which servers it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import basalt
from basalt.client import BearerToken
from basalt.client.credential import RENEWED_AHEAD_MS
from basalt.client.plans import CoroutineRefusedError
from basalt.errors import AuthenticationUnavailableError, BasaltError, UnauthenticatedError
from tests.control.client.scripted import ScriptedServer, answer, problem
from tests.control.client.test_credential import CANARY, REFUSED, jwt, publish, sent

pytestmark = pytest.mark.usefixtures("no_token_around")

TOPIC = b'{"name": "orders", "properties": {"ttl": "60", "generation": "1"}}'


# Whatever the call: nothing was done.
@pytest.mark.parametrize(
    ("call", "done"),
    [
        (publish, answer()),
        (lambda client: client.topics.create("orders"), answer(200, TOPIC)),
        (lambda client: client.live(), answer()),
    ],
)
def test_a_file_is_read_again_after_a_refusal_and_the_call_sent_again(side, server, opened, tmp_path, call, done):
    file = tmp_path / "token"
    file.write_text("one")
    client = opened(server.url, token=file)
    side.do(publish(client))
    file.write_text("two")
    server.script = [answer(), REFUSED, done]
    side.do(call(client))
    assert sent(server) == ["Bearer one", "Bearer one", "Bearer two"]
    assert server.seen[1].target == server.seen[2].target
    assert server.seen[1].headers["basalt-request-id"] == server.seen[2].headers["basalt-request-id"]
    assert server.seen[1].body == server.seen[2].body


def test_a_callable_is_asked_once_again_after_a_refusal(side, server, opened):
    tokens = iter(["one", "two", "three"])
    server.script = [REFUSED]
    client = opened(server.url, token=lambda: next(tokens), attempts_max=5)
    with pytest.raises(UnauthenticatedError, match="the token is expired"):
        side.do(publish(client))
    assert sent(server) == ["Bearer one", "Bearer two"]


def test_the_same_token_is_not_sent_again(side, server, opened):
    server.script = [REFUSED]
    for token in ("one", lambda: "one"):
        with pytest.raises(UnauthenticatedError):
            side.do(publish(opened(server.url, token=token)))
    assert sent(server) == ["Bearer one"] * 2


def test_a_callable_whose_source_is_away_is_asked_until_the_deadline(side, server, opened):
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        if len(asked) < 3:
            raise ConnectionRefusedError(f"http://idp/?secret={CANARY}")
        return "one"

    side.do(publish(opened(server.url, token=token, attempts_max=None)))
    assert (len(asked), sent(server)) == (3, ["Bearer one"])


def test_a_source_that_stays_away_is_told_without_what_it_said(side, server, opened):
    def token() -> str:
        raise OSError(f"http://idp/?secret={CANARY}")

    with pytest.raises(AuthenticationUnavailableError, match="asking for one failed: OSError") as raised:
        side.do(publish(opened(server.url, token=token)))
    assert CANARY not in "".join(traceback.format_exception(raised.value))
    assert server.seen == []


def test_a_fault_of_the_callable_is_raised_as_it_is(side, server, opened):
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        raise LookupError("no such secret")

    with pytest.raises(LookupError, match="no such secret"):
        side.do(publish(opened(server.url, token=token, attempts_max=5)))
    assert asked == [1]


@pytest.mark.parametrize("given", [None, b"one", 7])
def test_a_callable_that_returns_no_text_is_told_what_it_returned(side, server, opened, given):
    with pytest.raises(TypeError, match=type(given).__name__):
        side.do(publish(opened(server.url, token=lambda: given)))


def test_a_coroutine_function_is_for_the_async_client(side, server, opened):
    async def token() -> BearerToken:
        await asyncio.sleep(0)
        return BearerToken("one")

    client = opened(server.url, token=token)
    if side.name == "async":
        side.do(publish(client))
        assert sent(server) == ["Bearer one"]
        return
    with pytest.raises(CoroutineRefusedError):
        side.do(publish(client))


def test_a_callable_that_blocks_does_not_hold_up_the_event_loop(server):
    turned, leave = threading.Event(), threading.Event()

    def token() -> str:
        turned.wait(60)
        assert leave.wait(60)
        return "one"

    async def story() -> None:
        async with basalt.aio.connect(server.url, token=token, attempts_max=1) as client:
            publishing = asyncio.create_task(client.topic("orders").publish(b"a"))
            await asyncio.sleep(0)  # it is asked by now, on a thread; the loop turns
            turned.set()
            leave.set()
            await publishing

    asyncio.run(story())
    assert sent(server) == ["Bearer one"]


def test_many_threads_ask_a_callable_once_and_alone(server):
    alone: list[bool] = []

    def token() -> str:
        alone.append(credential._lock.locked())  # so that no other thread is in here
        return f"token-{len(alone)}"

    with basalt.connect(server.url, token=token, attempts_max=1) as client, ThreadPoolExecutor(8) as pool:
        credential: Any = client._driver._transport._credential  # type: ignore[attr-defined]
        list(pool.map(lambda _: publish(client), range(40)))
    assert alone == [True]
    assert set(sent(server)) == {"Bearer token-1"}


def test_many_tasks_that_are_refused_ask_a_callable_once_more(server):
    asked: list[str] = []

    async def token() -> str:
        asked.append(f"token-{len(asked) + 1}")
        await asyncio.sleep(0)
        return asked[-1]

    async def story() -> None:
        async with basalt.aio.connect(server.url, token=token, attempts_max=1) as client:
            await client.topic("orders").publish(b"a")
            server.script = [REFUSED]
            refused = await asyncio.gather(
                *(client.topic("orders").publish(b"a") for _ in range(8)), return_exceptions=True
            )
            assert {type(each) for each in refused} == {UnauthenticatedError}

    asyncio.run(story())
    assert (
        2 <= len(asked) <= 1 + 8
    )  # those whose call was on its way by then are refused with the second one, and ask for a third


def test_a_client_in_a_fork_asks_though_a_thread_was_asking(server):
    """A lock that is held while a process forks is held for ever in the child."""
    inside, leave = threading.Event(), threading.Event()
    parent = os.getpid()

    def token() -> str:
        if os.getpid() == parent:
            inside.set()
            assert leave.wait(60)
        return "one"

    with basalt.connect(server.url, token=token, attempts_max=1) as client:
        thread = threading.Thread(target=publish, args=(client,))
        thread.start()
        assert inside.wait(60)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                publish(client)
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        leave.set()
        thread.join()
    assert sent(server) == ["Bearer one"] * 2


def test_a_token_that_is_about_to_expire_goes_on_when_there_is_no_other(side, server, opened, caplog):
    expires_s = time.time() + RENEWED_AHEAD_MS / 2_000  # it is time to ask, and it still counts
    given = [jwt(expires_s)]
    client = opened(server.url, token=lambda: given.pop())
    credential = client._driver._transport._credential
    with caplog.at_level(logging.WARNING, "basalt.client"):
        for _ in range(3):
            side.do(publish(client))
            credential._kept.ask_at_ms = 0
    assert len(set(sent(server))) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the client's token cannot be had anew (IndexError); the one it has is sent"
    ]


def test_a_redirect_is_not_followed(side, server, opened):
    other = ScriptedServer()
    server.script = [answer(307, location=f"{other.url}/v1")]
    with pytest.raises(BasaltError):
        side.do(publish(opened(server.url, token="one")))
    assert other.seen == []
    other.close()


@pytest.fixture
def stranger() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.mark.parametrize("options", [{"token": "one"}, {"headers": {"X-Api-Key": "one"}}])
def test_no_credential_goes_to_a_leader_whom_only_a_standby_has_named(side, server, stranger, opened, options):
    server.script = [problem(503, "not_leader", leader=stranger.url)]
    with pytest.raises(basalt.errors.NotLeaderError, match="to which this client sends no credential") as raised:
        side.do(publish(opened(server.url, **options)))
    assert stranger.url in raised.value.message
    assert raised.value.leader_url == stranger.url
    # Asked again it could have passed the call on, and has the last word.
    assert [seen.headers.get("basalt-direct") for seen in server.seen] == ["1", None]
    assert stranger.seen == []
    side.do(publish(opened(f"{server.url},{stranger.url}", **options)))  # it was given
    assert len(stranger.seen) == 1


@pytest.mark.parametrize("options", [{"token": "one"}, {"headers": {"X-Api-Key": "one"}}])
def test_where_a_client_may_not_go_to_the_leader_its_calls_are_passed_on(side, server, stranger, opened, options):
    server.script = [problem(503, "not_leader", leader=stranger.url), answer()]
    client = opened(server.url, **options)
    for _ in range(2):
        side.do(publish(client))
    assert [seen.headers.get("basalt-direct") for seen in server.seen] == ["1", None, None]
    assert server.seen[0].headers["basalt-request-id"] == server.seen[1].headers["basalt-request-id"]
    assert len(set(sent(server))) == 1
    assert stranger.seen == []


def test_a_client_that_sends_no_credential_follows_a_stranger(side, server, stranger, opened):
    server.script = [problem(503, "not_leader", leader=stranger.url)]
    side.do(publish(opened(server.url)))
    assert len(stranger.seen) == 1


def test_a_leader_that_goes_by_another_name_is_found_among_those_that_were_given(side, server, stranger, opened):
    server.script = [problem(503, "not_leader", leader=stranger.url.replace("127.0.0.1", "localhost"))]
    side.do(publish(opened(f"{server.url},{stranger.url}", token="one")))
    assert sent(stranger) == ["Bearer one"]
