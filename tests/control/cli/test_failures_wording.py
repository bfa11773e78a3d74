"""What errors and results say: the id that was asked for, names with their capitals, and no date for a time that is none."""

from __future__ import annotations

import json

import click
import pytest

from basalt.cli.failures import one_line
from basalt.cli.output import time_text


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("URL 'x' is not that of an HTTP server", "URL 'x' is not that of an HTTP server"),
        ("HBase does not answer", "HBase does not answer"),
        ("Missing argument 'TOPIC'", "missing argument 'TOPIC'"),
        ("A profile keeps no passwords", "a profile keeps no passwords"),
    ],
)
def test_an_error_begins_in_lower_case_but_for_names_in_capitals(message, told):
    assert one_line(click.UsageError(message)).startswith(told)


def test_a_url_that_is_none_is_called_url(run):
    told = run("topic", "list", "--url", "ftp://x").err
    assert told.startswith("basalt: URL 'ftp://x' is not")


def test_zero_is_no_time(cli):
    assert time_text(0) == "-"
    cli("topic", "create", "orders")
    cli("topic", "watermark", "orders", "map-0", "0")
    assert "1970" not in cli("topic", "markers", "orders").out
    for before in ("@0", "-99999w"):
        told = cli("topic", "truncate", "orders", "--before", before, "--dry-run")
        assert (told.code, "is before every message" in told.err) == (2, True)


def test_what_a_transaction_keeps_since_no_time_has_no_date(cli):
    from basalt.cli.commands.tx import held_text

    held = {"visibility": True, "pruning": True, "change_sets": 0, "changes": 0}
    assert held_text({**held, "visibility_bound": 0, "decided": 0}) == (
        "compactions keep all that was replaced; pruning forgets nobody"
    )
    since = held_text({**held, "visibility_bound": 1_795_432_568_385_000_000, "decided": 1_795_432_568_385_000_000})
    assert since.startswith("compactions keep all that was replaced since 2026-11-23T11:16:08.385Z; pruning forgets")


def test_an_error_names_a_transaction_by_the_id_that_was_asked_for(cli):
    begun = json.loads(cli("tx", "begin", "-o", "json").out)
    cli("topic", "create", "orders")
    cli("table", "create", "stock")
    unknown = begun["id"][:16] + "0000000000000011"
    for asked in (unknown, "17"):
        for arguments in (
            ("tx", "show", asked),
            ("tx", "commit", asked),
            ("tx", "abort", asked, "--yes"),
            ("tx", "describe", asked),
            ("tx", "timeline", asked),
            ("explain", "tx", asked),
            ("publish", "orders", "x", "--tx", asked),
            ("table", "get", "stock", "row", "--tx", asked),
        ):
            ran = cli(*arguments)
            assert (ran.code, f"transaction {asked} " in ran.err) == (3, True), ran.err
    cli("tx", "commit", begun["id"])
    assert f"transaction {begun['id']} was committed" in cli("tx", "abort", begun["id"], "--yes").err
    pointer = str(begun["write_pointer"])
    assert f"transaction {pointer} was committed" in cli("tx", "abort", pointer, "--yes").err
