"""The token of a client: where it comes from, when it is asked for again, where it is sent, and that nothing shows it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import basalt
from basalt.client import BearerToken
from basalt.client.credential import (
    ASKED_AGAIN_MS,
    FILE_KEPT_MS,
    RENEWED_AHEAD_MS,
    TOKEN_CHARS_MAX,
    KeptToken,
    credential_of,
    jwt_expires_ms,
    token_source,
)
from basalt.client.plans import CoroutineRefusedError
from basalt.errors import AuthenticationUnavailableError, BasaltError, InputError, UnauthenticatedError
from tests.control.client.scripted import ScriptedServer, answer, problem

CANARY = "canary-5e1f0c77"
REFUSED = problem(401, "unauthenticated", detail="the token is expired")
TOPIC = b'{"name": "orders", "properties": {"ttl": "60", "generation": "1"}}'
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _no_token_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASALT_TOKEN", "BASALT_TOKEN_FILE", "BASALT_CA_FILE", "BASALT_CERT_FILE", "BASALT_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def opened(side) -> Callable[..., Any]:
    """A client through the front door, as a program opens it."""

    def opens(url: str, **options: Any) -> Any:
        connect = basalt.connect if side.name == "blocking" else basalt.aio.connect
        return side.keep(connect(url, **{"attempts_max": 1, **options}))

    return opens


def told(error: BaseException) -> str:
    """An error as debuggers and reporters of errors show it: with the local variables of each frame of Basalt's."""
    trace = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert trace.__cause__ is None
    assert trace.__context__ is None or trace.__suppress_context__
    frames = [frame for frame in trace.stack if "/control/basalt/" in frame.filename]
    assert frames
    return f"{error!r} {error} {vars(error)} {[frame.locals for frame in frames]}"


def jwt(expires_s: object) -> str:
    parts = ({"alg": "RS256"}, {"sub": "etl", "exp": expires_s})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*coded, "c2ln"])


def sent(server: ScriptedServer) -> list[str | None]:
    return [each.headers.get("authorization") for each in server.seen]


def publish(client: Any) -> Any:
    return client.topic("orders").publish(b"a")


def test_a_token_goes_with_each_request(side, server, opened):
    client = opened(server.url, token="one")
    side.do(publish(client))
    side.do(publish(client))
    assert sent(server) == ["Bearer one"] * 2


def test_a_token_in_the_environment_is_for_a_client_that_is_given_none(side, server, opened, monkeypatch, tmp_path):
    monkeypatch.setenv("BASALT_TOKEN", "one\n")
    side.do(publish(opened(server.url)))
    side.do(publish(opened(server.url, token="two")))
    side.do(publish(opened(server.url, headers={"authorization": "Basic three"})))
    monkeypatch.delenv("BASALT_TOKEN")
    (tmp_path / "token").write_text("four\n")
    monkeypatch.setenv("BASALT_TOKEN_FILE", str(tmp_path / "token"))
    side.do(publish(opened(server.url)))
    assert sent(server) == ["Bearer one", "Bearer two", "Basic three", "Bearer four"]


def test_an_embedded_store_asks_for_none(side, opened, monkeypatch):
    monkeypatch.setenv("BASALT_TOKEN", CANARY)
    client = opened("embedded:", settings={"store.kind": "memory"}, token=CANARY, tls=basalt.Tls(ca_file="/nowhere"))
    assert side.do(client.auth.whoami()).principal == "internal:embedded"


@pytest.mark.parametrize(
    ("token", "environment", "says"),
    [
        ("", {}, "the token is empty"),
        (f"{CANARY} x", {}, "the token has characters that no token has"),
        (f"{CANARY}\r\nX-Evil: 1", {}, "the token has characters that no token has"),
        (f"{CANARY}é", {}, "the token has characters that no token has"),
        (CANARY + "x" * TOKEN_CHARS_MAX, {}, f"the token has more than {TOKEN_CHARS_MAX} characters"),
        (f"/run/{CANARY}", {}, "the token is text that looks like the path of a file"),
        (f"~/{CANARY}", {}, "the token is text that looks like the path of a file"),
        (None, {"BASALT_TOKEN": " "}, "environment variable BASALT_TOKEN is empty"),
        (None, {"BASALT_TOKEN": f"{CANARY}\x01"}, "environment variable BASALT_TOKEN has characters"),
        (None, {"BASALT_TOKEN": CANARY, "BASALT_TOKEN_FILE": "/x"}, "BASALT_TOKEN and BASALT_TOKEN_FILE are both set"),
    ],
)
def test_what_is_no_token_is_refused_without_being_repeated(monkeypatch, token, environment, says):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as raised:
        basalt.connect("http://127.0.0.1:1", token=token)
    assert raised.value.field == "token"
    assert raised.value.message.startswith(says)
    assert CANARY not in told(raised.value)


def test_a_token_and_a_header_authorization_are_one_too_many():
    with pytest.raises(InputError, match="both token and a header Authorization"):
        credential_of("one", {"AUTHORIZATION": "Bearer two"})


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {CANARY}\n"},
        {"x-key": f"{CANARY}\r\nX-Evil: 1"},
        {"x-key": f"{CANARY}é"},
        {"x\n": CANARY},
    ],
)
@pytest.mark.parametrize("connect", [basalt.connect, basalt.aio.connect])
def test_a_header_that_is_none_is_refused_without_its_value(connect, headers):
    with pytest.raises(InputError) as raised:
        connect("http://127.0.0.1:1", headers=headers)
    assert raised.value.field == "headers"
    assert CANARY not in str(raised.value)


def test_something_else_is_no_token():
    with pytest.raises(TypeError, match="not bytes"):
        token_source(b"one")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (CANARY.encode() + b"\n" + CANARY.encode(), "has characters that no token has"),
        (CANARY.encode() + b"\xff", "has characters that no token has"),
        (CANARY.encode() * 1_000, "has more than"),
    ],
)
def test_a_token_file_that_holds_none_is_named(side, server, opened, tmp_path, content, says):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UnauthenticatedError) as raised:
        side.do(publish(opened(server.url, token=file)))
    assert raised.value.message.startswith(f"token file {file} {says}")
    assert CANARY not in str(raised.value)
    assert server.seen == []


def test_a_token_that_is_given_for_the_path_of_a_file_is_not_repeated(side, server, opened):
    for mistaken in (f"basalt_{CANARY}", f"eyJ{CANARY}.{CANARY}.{CANARY}"):
        with pytest.raises(UnauthenticatedError) as raised:
            side.do(publish(opened(server.url, token=Path(mistaken))))
        assert CANARY not in str(raised.value)


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


def kept(token: Any = lambda: "one") -> KeptToken:
    source = token_source(token)
    assert source is not None
    return KeptToken(source)


def test_a_token_is_asked_for_at_first_and_then_kept():
    state = kept()
    assert state.ask_at_ms < NOW_MS
    state.take("one", NOW_MS)
    assert (state.header, state.ask_at_ms) == ("Bearer one", float("inf"))


def test_a_file_is_read_again_after_a_while():
    state = kept(Path("/token"))
    state.take("one", NOW_MS)
    assert state.ask_at_ms == NOW_MS + FILE_KEPT_MS
    assert state.may_wait(NOW_MS + 10 * FILE_KEPT_MS)


def test_one_that_expires_is_asked_for_ahead_of_that():
    state = kept()
    for given in (jwt((NOW_MS + 600_000) // 1_000), BearerToken("opaque", NOW_MS + 600_000)):
        state.take(given, NOW_MS)
        assert state.ask_at_ms == NOW_MS + 600_000 - RENEWED_AHEAD_MS
        assert state.may_wait(NOW_MS + 599_999)
        assert not state.may_wait(NOW_MS + 600_000)


def test_one_that_expires_at_once_is_not_asked_for_with_every_call():
    state = kept()
    state.take(jwt(NOW_MS // 1_000 + 1), NOW_MS)
    assert state.ask_at_ms == NOW_MS + ASKED_AGAIN_MS


@pytest.mark.parametrize(
    "token", ["opaque", "a.b", "a.b.c", "a.bm90anNvbg.c", "a.W10.c", *map(jwt, (None, True, "1700000000", [], float("inf"), float("nan"), 10**400)), f"a.{'W1' * 2_000}.c"]
)  # fmt: skip
def test_what_tells_no_end_has_none(token):
    assert jwt_expires_ms(token) is None


def test_a_jwt_tells_its_end():
    assert jwt_expires_ms(jwt(1_700_000_000)) == NOW_MS
    assert jwt_expires_ms(jwt(1_700_000_000.5)) == NOW_MS + 500


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


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://127.0.0.1:1", False),
        ("http://localhost:1,http://[::1]:2", False),
        ("https://basalt.example", False),
        ("http://localhost:1,http://basalt.example:4780", True),
    ],
)
def test_a_credential_in_the_open_is_warned_of(opened, caplog, url, warned):
    with caplog.at_level(logging.WARNING, "basalt.client"):
        opened(url)
        assert caplog.records == []
        opened(url, token=CANARY)
    assert len(caplog.records) == warned
    assert all("http://basalt.example:4780 without TLS" in record.getMessage() for record in caplog.records)
    assert CANARY not in caplog.text


def test_nothing_that_a_client_shows_has_the_token_in_it(side, server, opened, tmp_path, caplog, monkeypatch):
    """Also not its frames, as debuggers and reporters of errors print them."""
    file = tmp_path / "token"
    file.write_text(CANARY)
    monkeypatch.setenv("BASALT_TOKEN", CANARY)
    given: list[dict[str, Any]] = [
        {"token": CANARY}, {"token": file}, {"token": lambda: CANARY}, {"token": lambda: BearerToken(CANARY)},
        {}, {"headers": {"Authorization": f"Bearer {CANARY}"}},
    ]  # fmt: skip
    shown = [repr(BearerToken(CANARY)), str(BearerToken(CANARY))]
    with caplog.at_level(logging.DEBUG):
        for options in given:
            server.seen.clear()
            server.script = [problem(401, "unauthenticated")]
            client = opened(server.url, **options)
            with pytest.raises(UnauthenticatedError) as raised:
                side.do(publish(client))
            assert sent(server)[0] == f"Bearer {CANARY}"
            shown.append(told(raised.value))
            shown += everything_of(client)
    shown += [record.getMessage() for record in caplog.records] + [caplog.text]
    assert [text for text in shown if CANARY in text] == []


def everything_of(found: Any, seen: set[int] | None = None) -> Iterator[str]:
    """The `repr` of an object, and of all that it holds."""
    seen = set() if seen is None else seen
    if id(found) in seen:
        return
    seen.add(id(found))
    yield repr(found)
    if type(found).__module__.startswith("basalt."):
        names = [
            *getattr(found, "__dict__", {}),
            *(name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ())),
        ]
        for name in names:
            yield from everything_of(getattr(found, name, None), seen)
