"""Passwords of URLs in lines that people read: gone, whatever stands around them, and nothing else with them."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.redaction import address_without_password, without_passwords
from basalt.server.server_log import JsonLines, TextLines

PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://etl:hunter2@mq:4780/x", "http://***@mq:4780/x"),
        ("no route to https://hunter2@mq, try again", "no route to https://***@mq, try again"),
        ("postgresql://etl:hunt@er2/hunter2@db:5432/shop?a=b", "postgresql://***@db:5432/shop?a=b"),
        ("'http://etl:hunter2@mq' is none", "'http://***@mq' is none"),
        ("http://mq:4780,http://etl:hunter2@other", "http://mq:4780,http://***@other"),
        ("http://a,b:hunter2@mq", "http://***@mq"),
        ("http://etl:80hunter2@mq", "http://***@mq"),
        ("http://:hunter2@[::1]:80/", "http://***@[::1]:80/"),
        ('{"url":"http://etl:hunter2@mq","by":"me@here"}', '{"url":"http://***@mq","by":"me@here"}'),
    ],
)
def test_user_and_password_of_a_url_are_left_out(text: str, shown: str):
    assert without_passwords(text) == shown
    assert address_without_password(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "", "mail me@here", "http://mq:4780/topics/a@b", "http://mq/a@b and c@d", "http://mq?to=a@b", "http://mq#a@b",
        "http://[::1]:4780/a@b", "http://one:80,http://two:80/a@b", "topic shop:orders@2",
    ],
)  # fmt: skip
def test_an_at_sign_elsewhere_stays(text: str):
    assert without_passwords(text) == text


def test_an_address_without_a_scheme_is_taken_for_one_with_a_password():
    assert address_without_password("etl:hunter2@mq:4780") == "***@mq:4780"
    assert address_without_password("mq:4780") == "mq:4780"


@given(
    before=st.text(max_size=20),
    user=st.from_regex(r"[a-z,;.%]{0,8}", fullmatch=True),
    around=st.from_regex(r"[a-z@:/?#%,.-]{0,8}", fullmatch=True),
)
def test_no_password_of_the_form_user_colon_password_is_left_whatever_is_in_it(before: str, user: str, around: str):
    shown = without_passwords(f"{before} http://{user}:{PASSWORD}{around}@mq:4780")
    assert PASSWORD not in shown


def test_no_line_of_the_servers_log_has_one_whatever_wrote_it():
    try:
        raise ConnectionError('cannot reach "postgresql://etl:hunter2@db/shop"')
    except ConnectionError:
        record = logging.LogRecord(
            "db", logging.ERROR, "", 0, "at %s", ("http://etl:hunter2@mq",), sys.exc_info(), None
        )  # fmt: skip
    record.fields = {"target": "http://etl:hunter2@mq/x"}
    text, line = TextLines().format(record), JsonLines().format(record)
    assert PASSWORD not in text + line
    assert "at http://***@mq" in text
    read = json.loads(line)
    assert (read["message"], read["target"]) == ("at http://***@mq", "http://***@mq/x")
    assert 'reach "postgresql://***@db/shop"' in read["error"]
