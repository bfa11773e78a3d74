"""The rules of `--processes`: places, pauses, when it gives up, and the exit code."""

from __future__ import annotations

import signal

import pytest

from basalt.errors import InvalidSettingError
from basalt.server.process import GRACE_S
from basalt.server.processes.supervision import (
    LASTED_MS,
    PAUSE_MS_MAX,
    PAUSE_MS_MIN,
    PORT_MAX,
    STARTS_MAX,
    STOP_MS_MAX,
    USAGE,
    Child,
    Stage,
    check,
    exit_code,
    how,
    next_start_ms,
    pause_ms,
    settings_of,
    to_start,
)
from basalt.settings import Settings, load_settings

HBASE = ("store.kind=hbase", "store.hbase.thrift=localhost:1", "store.hbase.thrift2=localhost:2")


def settings(*flags: str) -> Settings:
    return load_settings((*HBASE, *flags))


def test_the_pause_doubles_with_each_death_up_to_its_limit():
    pauses = [pause_ms(deaths) for deaths in range(1, 12)]
    assert pauses[:3] == [PAUSE_MS_MIN, 2 * PAUSE_MS_MIN, 4 * PAUSE_MS_MIN]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause_ms(1_000_000) == PAUSE_MS_MAX


def test_a_server_that_died_young_waits_longer_each_time_and_one_that_lasted_does_not():
    child, now_ms = Child(2), 0.0
    for deaths in (1, 2, 3):
        child = child.started(now_ms).answers(now_ms)
        now_ms += LASTED_MS - 1
        child = child.died(now_ms)
        assert (child.deaths, child.due_ms) == (deaths, now_ms + pause_ms(deaths))
    child = child.started(now_ms).answers(now_ms).died(now_ms + LASTED_MS)
    assert (child.deaths, child.due_ms) == (1, now_ms + LASTED_MS + PAUSE_MS_MIN)


def test_a_long_start_is_no_long_life():
    assert Child(1, deaths=1).started(0).died(2 * LASTED_MS).deaths == 2


def test_a_server_that_never_answered_is_given_up_after_a_few_starts():
    child = Child(1)
    for _ in range(STARTS_MAX - 1):
        child = child.started(0).died(1)
        assert not child.is_hopeless(1)
    assert child.started(0).died(1).is_hopeless(1)


def test_wrong_settings_are_given_up_at_once_and_a_server_that_has_answered_never():
    assert Child(1).started(0).died(1).is_hopeless(USAGE)
    child = Child(1).started(0).answers(0)
    for _ in range(2 * STARTS_MAX):
        child = child.died(1).started(1)
    assert not child.died(1).is_hopeless(USAGE)


def test_the_first_one_starts_alone_until_it_has_answered():
    children = [Child(number) for number in (1, 2, 3)]
    assert to_start(children, 0) == [1]
    children[0] = children[0].started(0)
    assert to_start(children, 0) == []
    children[0] = children[0].answers(5)
    assert to_start(children, 5) == [2, 3]
    children[0] = children[0].died(6)  # the others do not wait for it again
    assert to_start(children, 6) == [2, 3]
    assert to_start(children, 6 + PAUSE_MS_MIN) == [1, 2, 3]


def test_the_next_start_is_that_of_the_first_that_rests():
    assert next_start_ms([Child(1, Stage.STARTING)], 0) is None
    assert next_start_ms([Child(1, due_ms=30), Child(2, due_ms=20), Child(3, Stage.ANSWERING)], 5) == 15
    assert next_start_ms([Child(1, due_ms=3)], 5) == 0


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, -signal.SIGTERM], 0), ([0, 1], 1), ([-signal.SIGKILL, 0], 1), ([], 0)],
)
def test_the_whole_stops_well_when_all_did(codes: list[int], expected: int):
    assert exit_code(codes) == expected


def test_an_end_is_told_in_words_also_by_a_signal_without_a_name():
    assert [how(2), how(-9), how(-40)] == ["ended with exit code 2", "was ended by SIGKILL", "was ended by signal 40"]


def test_a_server_has_more_time_to_stop_than_it_leaves_to_open_requests():
    assert STOP_MS_MAX > GRACE_S * 1_000


def test_each_server_has_the_next_port_and_any_free_one_where_the_shared_one_is_free():
    given = settings("server.port=4780", "cluster.listen=127.0.0.1:4790")
    places = [settings_of(given, number) for number in (1, 2)]
    assert [(each.server.port, each.cluster.listen) for each in places] == [
        (4781, "127.0.0.1:4790"),
        (4782, "127.0.0.1:4791"),
    ]
    free = settings_of(settings("server.port=0"), 2)
    assert (free.server.port, free.cluster.listen) == (0, None)


def test_the_address_for_others_counts_on_in_the_same_way():
    given = settings("server.port=4780", "leader.url=http://[fe80::1]:14780")
    assert settings_of(given, 3).leader.url == "http://[fe80::1]:14783"


@pytest.mark.parametrize(
    "flags",
    [
        ("leader.url=http://broker",),
        ("leader.url=http://broker:1", "server.port=0"),
        (f"server.port={PORT_MAX}",),
        (f"cluster.listen=127.0.0.1:{PORT_MAX}",),
        (f"leader.url=http://broker:{PORT_MAX}",),
    ],
)
def test_addresses_that_there_are_not_enough_of_are_refused(flags: tuple[str, ...]):
    with pytest.raises(InvalidSettingError):
        settings_of(settings(*flags), 2)


@pytest.mark.parametrize("kind", ["rocks", "memory"])
def test_a_store_of_one_process_refuses_several(kind: str):
    with pytest.raises(InvalidSettingError, match="such a store has one writer"):
        check(load_settings((f"store.kind={kind}",)), 2)
    check(settings(), 2)
