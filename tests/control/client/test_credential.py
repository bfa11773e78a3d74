"""The token of a client: where it comes from, until when it is good, and that nothing shows it."""

from __future__ import annotations

import base64
import json
import logging
import traceback
from collections.abc import Iterator
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
from basalt.errors import InputError, UnauthenticatedError
from tests.control.client.scripted import ScriptedServer, problem

pytestmark = pytest.mark.usefixtures("no_token_around")

CANARY = "canary-5e1f0c77"
REFUSED = problem(401, "unauthenticated", detail="the token is expired")
NOW_MS = 1_700_000_000_000


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
