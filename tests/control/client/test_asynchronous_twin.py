"""The two clients are the same tables of the same plans, and importing Basalt loads neither."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import assert_type

import pytest

import basalt
from basalt.client import RecordIn
from basalt.client.attempts import TIMEOUT_MS_DEFAULT
from basalt.client.blocking.client import NAMESPACE_DEFAULT
from basalt.errors import InputError, SessionFencedError
from basalt.outbox import Relay

PAIRS = [
    (member, getattr(importlib.import_module(f"basalt.client.asynchronous.{module}"), f"Async{name}"))
    for module in ("client", "driver", "transport")
    for name, member in vars(importlib.import_module(f"basalt.client.blocking.{module}")).items()
    if inspect.isclass(member) and member.__module__ == f"basalt.client.blocking.{module}"
]


def methods(of: type) -> dict[str, inspect.Signature]:
    """The public methods and their parameters."""
    return {
        name: inspect.signature(member).replace(return_annotation=inspect.Signature.empty)
        for name, member in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_")
    }


def test_the_clients_and_their_iterators_are_compared():
    assert len(PAIRS) == 29


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_they_have_the_same_methods(blocking, asynchronous):
    assert methods(blocking) == methods(asynchronous)


@pytest.mark.parametrize("each", [kind for pair in PAIRS for kind in pair])
def test_every_method_is_described(each):
    described = {name: inspect.getdoc(getattr(each, name)) for name in methods(each)}
    assert [name for name, text in described.items() if not text] == []


def test_the_two_doors_take_the_same():
    parameters = inspect.signature(basalt.connect).parameters
    assert parameters == inspect.signature(basalt.aio.connect).parameters
    # They are written out there, for importing Basalt must not load the client.
    assert parameters["timeout_ms"].default == TIMEOUT_MS_DEFAULT
    assert parameters["attempts_max"].default is None
    assert parameters["namespace"].default == NAMESPACE_DEFAULT


def test_importing_basalt_loads_no_client():
    code = (
        "import sys, basalt; basalt.__version__; "
        "print([name for name in sys.modules if name.startswith(('basalt.', 'msgspec', 'http.client', 'asyncio'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_blocking_client_loads_no_async_library():
    code = (
        "import sys, basalt; basalt.connect('http://localhost:1').close(); "
        "print([name for name in sys.modules if name in ('aiohttp', 'asyncio', 'basalt.server', 'rocksdict')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_public_name_is_there_before_the_first_connect():
    answered = set(basalt.client.__all__) - {"connect", "connect_async"}
    assert set(basalt.__all__) == {"__version__", "aio", "client", "connect", "errors", "outbox", *answered}
    code = (
        "import sys, basalt; found = [name for name in basalt.__all__ if getattr(basalt, name, None) is None]; "
        "print(found, basalt.errors.InputError.code, sorted(set(basalt.__all__) - set(dir(basalt))))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[] invalid_input []\n"
    assert basalt.RecordIn is basalt.client.RecordIn
    with pytest.raises(AttributeError, match="module 'basalt' has no attribute 'Recordin'"):
        basalt.Recordin  # type: ignore[attr-defined]  # noqa: B018


def test_the_public_names_are_those_of_the_types() -> None:
    """`make check` reads this with mypy: what is loaded late must be known to it all the same."""
    assert_type(basalt.RecordIn, type[RecordIn])
    assert_type(basalt.errors.SessionFencedError("x"), SessionFencedError)
    assert_type(basalt.outbox.Relay, type[Relay])
    with basalt.connect("embedded:", settings={"store.kind": "memory"}) as client:
        assert_type(client, basalt.Client)
        assert_type(client.topics.create("orders"), basalt.TopicInfo)
        orders = assert_type(client.topic("orders"), basalt.Topic)
        assert_type(orders.publish_records([basalt.RecordIn(b"1")]), basalt.PublishResponse | None)
        assert [assert_type(message, basalt.Message).payload for message in orders.read()] == [b"1"]
        with assert_type(client.transaction(), basalt.Transaction) as tx:
            assert_type(tx.id, str)


def test_the_async_door_is_there_without_importing_it():
    code = "import basalt; print(basalt.aio.connect.__module__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "basalt\n"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "ftp://localhost",
        "http://",
        "http://localhost:99999",
        "http://[::1",
        "http://localhost?x=1",
        "http://user:secret@localhost",
        "ftp://user:secret@localhost",
        "http://user:secret@localhost:99999",
        "http://user:secret/x@localhost",
        "user:secret@localhost:4780",
        "http://user:secret@[::1",
        "http://user:secret@\uff0flocalhost",
        "http://local host",
        "http://löcal",
        "http://localhost\n",
        "embedded:",
    ],
)
@pytest.mark.parametrize("connect", [basalt.connect, basalt.aio.connect])
def test_a_url_that_is_none_is_refused(connect, url):
    with pytest.raises(InputError) as raised:
        connect(url)
    assert raised.value.field == "url"
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("arguments", [{"timeout_ms": 0}, {"attempts_max": 0}])
def test_limits_that_allow_nothing_are_refused(arguments):
    with pytest.raises(InputError) as raised:
        basalt.connect("http://localhost", **arguments)
    assert raised.value.field in arguments
