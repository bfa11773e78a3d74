"""Secrets in a query, where they do not belong: refused, and neither logged nor told again."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from basalt.http.asgi.requests import without_secrets
from basalt.server.server_log import TEXT_LINE, JsonLines
from tests.control.http.raw_line import FACES, RawLine, request

SECRET = "c4n4ry"
QUERIES = [
    f"{name}={SECRET}"
    for name in (
        "token", "secret", "password", "key", "authorization", "Token", "AUTHORIZATION", "%74oken", "%54%6f%4B%45n", "to%6ben",
        "access_token", "x-api-key", "client%5Fsecret", "+token", "%20token", "token+", "my.old_password",
    )
] + [
    f"limit=1&token={SECRET}", f"token={SECRET}&limit=1", f"limit=1;token={SECRET}", f"token%3D{SECRET}", f"limit=1%26token={SECRET}",
    f"token=={SECRET}", f"token=a%26{SECRET}", f"token=a={SECRET}", f"token={SECRET[:3]}%20{SECRET}", f"token={SECRET}&token={SECRET}",
    f"%ff=1&token={SECRET}", f"%zz&token={SECRET}", f"limit=no&key={SECRET}",
]  # fmt: skip


@pytest.fixture(params=FACES)
def line(request, connect, settings):
    return RawLine(connect(replace(settings, log=replace(settings.log, access="all"))), request.param)


TARGETS = ["/v1/admin/jobs/stats/history", "/v1", "/v1/none", "/v1/namespaces/shop/topics/orders/poll"]


def test_the_value_is_in_no_log_and_no_answer(line, caplog):
    caplog.set_level(logging.DEBUG)
    asked = [
        request(f"{method} {target}?{query}")
        for query in QUERIES
        for target in TARGETS
        for method in ("GET", "GET", "POST", "OPTIONS")
    ]
    replies = line.ask(*asked)
    assert all(400 <= reply.status < 500 for reply in replies[::4])
    access = [record for record in caplog.records if record.name == "basalt.access"]
    assert len(access) == len(asked)
    assert all(f" {target}?" in record.getMessage() for target, record in zip(TARGETS, access[::4], strict=False))
    forms = (logging.Formatter(TEXT_LINE), JsonLines())
    told = [form.format(record) for record in caplog.records for form in forms]
    told += [str(reply.headers) + reply.body.decode() for reply in replies]
    assert [text for text in told if SECRET in text] == []


def test_a_target_that_was_encoded_as_a_whole_tells_no_secret_either(line, caplog):
    caplog.set_level(logging.DEBUG)
    (reply,) = line.ask(request(f"GET /v1%3Ftoken%3D{SECRET}"))
    assert reply.status == 404
    assert SECRET not in reply.body.decode()
    assert SECRET not in caplog.text
    (reply,) = line.ask(request(f"GET /v1%3Ftoken={SECRET}%2Fx"))
    assert reply.status == 400
    assert SECRET not in reply.body.decode()


@pytest.mark.parametrize(
    "target",
    [
        "/v1?limit=3&from=ab",
        "/v1?monkey=1",
        "/v1?tokens=1",
        "/v1/keys?x=y",
        "/v1?turnkey=a",
        "/v1?a=token",
        "/v1/token/a",
    ],
)
def test_what_is_no_secret_is_logged_as_it_was_sent(line, caplog, target):
    caplog.set_level(logging.INFO, "basalt.access")
    line.ask(request(f"GET {target}"))
    assert f'"GET {target} HTTP/1.1"' in caplog.text


@pytest.mark.parametrize(
    "text", ["?" + "%26" * 22_000, "&" * 65_000, "?" + "-" * 65_000, "_key" * 16_000, "?token" * 11_000]
)
def test_looking_for_secrets_takes_no_time_that_grows_faster_than_the_target(text):
    def seconds(length: int) -> float:
        began = time.process_time()
        without_secrets(text[:length])
        return time.process_time() - began

    assert seconds(60_000) < 40 * max(min(seconds(6_000) for _ in range(3)), 0.001)
