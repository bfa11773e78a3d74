"""The table of topics' properties, and what follows from it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from basalt.api.topic_properties import (
    BY_NAME,
    GENERATION,
    PROPERTIES,
    SIZE_MAX,
    SPREAD_MAX,
    TTL_SECONDS_MAX,
    Duration,
    Size,
    TopicProperties,
    properties_sent,
    unknown_property,
)
from basalt.errors import InvalidPropertyError


def test_the_clients_arguments_are_the_properties_of_the_table():
    arguments = {each.argument for each in PROPERTIES} | {GENERATION}
    assert set(TopicProperties.__annotations__) == arguments, "give TopicProperties a line for each of PROPERTIES"


def test_every_default_is_a_value_of_its_property_and_is_told():
    for each in PROPERTIES:
        assert each.default is None or each.read(each.default) == each.default
        assert each.default_text
        assert each.effect


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("ttll", "ttl"), ("TTL", "ttl"), ("tt", "ttl"), ("Ttl", "ttl"), ("retention.ms", "ttl"), ("maxAge", "ttl"),
        ("on_invalid", "onInvalid"), ("oninvalid", "onInvalid"), ("task", "tasks"), ("compresion", "compression"),
        ("compression.type", "compression"), ("Spread", "spread"),
    ],
)  # fmt: skip
def test_a_name_near_a_known_one_is_answered_with_that(given, meant):
    refused = unknown_property(given)
    assert refused.message == f"{given} is no property of topics; did you mean {meant}?"
    assert refused.field == given


@pytest.mark.parametrize("name", ["owner", "labels", "partitions", "x" * 300])
def test_any_other_name_is_answered_with_the_way_out(name):
    refused = unknown_property(name)
    assert "did you mean" not in refused.message
    assert f"as in label.{name[:40]}" in refused.hint
    assert "ttl" in refused.hint
    assert len(str(refused)) < 250


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("1", "1", "1s"), ("60", "60", "1m"), ("1d", "86400", "1d"), ("7d", "604800", "7d"), ("1w", "604800", "7d"),
        ("1d12h", "129600", "1d12h"), ("90m", "5400", "1h30m"), ("forever", str(TTL_SECONDS_MAX), "forever"),
        ("36525d", str(TTL_SECONDS_MAX), "forever"),
    ],
)  # fmt: skip
def test_durations(text, seconds, shown):
    assert Duration().read(text) == seconds
    assert Duration().show(seconds) == shown


@pytest.mark.parametrize("text", ["", "0", "0s", "1D", "1 d", "d", "1.5h", "-1d", "500ms", "Forever", "1y", "36526d"])
def test_what_is_no_duration(text):
    assert Duration().read(text) is None


@pytest.mark.parametrize(
    ("text", "size_bytes", "shown"),
    [
        ("1", "1", "1 B"), ("1024", "1024", "1 KiB"), ("10GiB", str(10 << 30), "10 GiB"), ("1TiB", str(1 << 40), "1 TiB"),
        ("1500B", "1500", "1500 B"), ("1536MiB", str(1536 << 20), "1536 MiB"),
    ],
)  # fmt: skip
def test_sizes(text, size_bytes, shown):
    assert Size().read(text) == size_bytes
    assert Size().show(size_bytes) == shown


def test_the_largest_values_are_taken_and_no_larger_ones():
    spread, size = BY_NAME["spread"].kind, Size()
    for kind, most in ((spread, SPREAD_MAX), (size, SIZE_MAX), (Duration(), TTL_SECONDS_MAX)):
        assert kind.read(str(most)) == str(most)
        assert kind.read(str(most + 1)) is None


@pytest.mark.parametrize("text", ["", "0", "0B", "-1", "1GB", "1 GiB", "1.5GiB", "GiB", "9999999999999999999"])
def test_what_is_no_size(text):
    assert Size().read(text) is None


def test_arguments_become_properties():
    sent = properties_sent({"ttl": timedelta(days=1), "on_invalid": "retain", "spread": None}, {"team": "billing"})
    assert sent == {"ttl": 86_400, "onInvalid": "retain", "label.team": "billing"}
    assert properties_sent({"ttl": "forever", "ttll": 5}, None) == {"ttl": "forever", "ttll": 5}


def test_a_timedelta_that_is_not_whole_seconds_is_refused():
    with pytest.raises(InvalidPropertyError, match=r"ttl is 0:00:01\.500000, which is not whole seconds"):
        properties_sent({"ttl": timedelta(milliseconds=1_500)}, None)


def test_a_property_without_its_row_in_the_docs_fails_the_check_of_pages():
    from deploy.reference import MEND, REFERENCE, properties_page

    page = (REFERENCE / "http-api.md").read_text()
    row = next(line for line in page.splitlines(keepends=True) if line.startswith("| `ttl` |"))
    assert properties_page(page.replace(row, ""), PROPERTIES) == page
    assert properties_page(page, PROPERTIES[1:]) == page.replace(row, "")
    assert BY_NAME["ttl"].effect in row
    assert "make reference" in MEND
