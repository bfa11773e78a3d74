"""The word of a server about a call that it passes on: believed by who has the secret, for that very call, and of nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import UnavailableError
from basalt.http.asgi.passed_on import HEADER, PassedOn, passed_on
from basalt.http.asgi.requests import Head

SECRET = b"the secret of this run"
WORD = PassedOn("10.1.2.3", "https", True)


def head(method: str = "POST", target: bytes = b"/v1/topics", query: bytes = b"a=b", **headers: bytes) -> Head:
    named = {name.replace("_", "-").encode(): value for name, value in {"host": b"basalt", **headers}.items()}
    return Head(method, target.decode(), target, query, named)


def signed(asked: Head, word: PassedOn = WORD, secret: bytes = SECRET) -> Head:
    asked.headers[HEADER] = word.header(secret, asked, asked.headers.get(b"host", b""))
    return asked


clients = st.none() | st.ip_addresses().map(str)


@given(clients, st.sampled_from(["http", "https"]), st.booleans())
def test_what_is_said_comes_over(client: str | None, scheme: str, id_is_clients: bool):
    word = PassedOn(client, scheme, id_is_clients)
    asked = signed(head(authorization=b"Bearer x"), word)
    assert passed_on(SECRET, asked) == word
    assert passed_on(SECRET, asked) == word  # of a head that is known


@pytest.mark.parametrize(
    "other",
    [
        head("DELETE"), head(target=b"/v1/topics2"), head(query=b""), head(host=b"other"), head(authorization=b"Bearer y"),
        head(cookie=b"basalt=z"), head(target=b"/v1/topics\na=b", query=b""),
    ],
)  # fmt: skip
def test_it_is_good_for_no_other_call(other: Head):
    other.headers[HEADER] = signed(head()).headers[HEADER]
    with pytest.raises(UnavailableError, match="does not prove it"):
        passed_on(SECRET, other)


@pytest.mark.parametrize("secret", [b"another secret", b""])
def test_it_is_good_for_no_other_run_of_a_server(secret: bytes):
    with pytest.raises(UnavailableError):
        passed_on(secret, signed(head(), secret=b"" if secret == b"" else SECRET))


def test_what_was_found_for_one_secret_is_not_known_for_the_next():
    asked = signed(head())
    assert passed_on(SECRET, asked) == WORD
    with pytest.raises(UnavailableError):
        passed_on(b"the secret of the next run", asked)


@given(st.binary(max_size=100).filter(lambda value: b"\n" not in value))
def test_whatever_else_stands_there_is_refused(value: bytes):
    asked = head()
    asked.headers[HEADER] = value
    with pytest.raises(UnavailableError):
        passed_on(SECRET, asked)


@pytest.mark.parametrize("change", [(b"10.1.2.3", b"10.1.2.4"), (b"https", b"http"), (b" client ", b" server ")])
def test_a_word_that_was_changed_is_refused(change: tuple[bytes, bytes]):
    asked = signed(head())
    asked.headers[HEADER] = asked.headers[HEADER].replace(*change)
    with pytest.raises(UnavailableError):
        passed_on(SECRET, asked)
