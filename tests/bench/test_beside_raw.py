"""Whose processor a message takes: how rounds come to one figure, and when HBase counts as resting."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench import beside_raw
from bench.beside_raw import BASALT, RAW, Account, Work, measured, wait_until_rests


def test_an_account_tells_the_middle_round_of_all_processes_and_of_each():
    account = Account(per_second=[10.0, 30.0, 20.0])
    for part, values in {"region server": [1.0, 9.0, 2.0], "gateway": [1.0, 1.0, 5.0]}.items():
        account.us_each[part] += values
    assert account.rate == 20.0
    assert account.us == 7.0  # of the sums 2, 10 and 7
    assert account.parts == {"region server": 2.0, "gateway": 1.0}
    assert account.told() == "region server 2.00, gateway 1.00"


def test_hbase_rests_once_it_takes_next_to_nothing(monkeypatch: pytest.MonkeyPatch):
    used = iter([0.0, 0.3, 0.6, 0.61, 99.0])
    monkeypatch.setattr(beside_raw, "cpu_s_of", lambda pid: next(used))
    monkeypatch.setattr("bench.beside_raw.time.sleep", lambda seconds: None)
    wait_until_rests(1)
    assert next(used) == 99.0


def test_an_hbase_that_never_rests_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(beside_raw, "REST_SECONDS_MAX", 0.0)
    monkeypatch.setattr(beside_raw, "cpu_s_of", lambda pid: 0.0)
    monkeypatch.setattr("bench.beside_raw.time.sleep", lambda seconds: pytest.fail("nothing was to be waited for"))
    wait_until_rests(1)


def test_the_sides_take_turns_and_the_first_rounds_do_not_count(monkeypatch: pytest.MonkeyPatch):
    turns: list[str] = []
    ticks = itertools.count()
    monkeypatch.setattr(beside_raw, "cpu_s_of", lambda pid: float(next(ticks)))
    monkeypatch.setattr(beside_raw, "wait_until_rests", lambda pid: None)
    sides = {RAW: {"region server": 1}, BASALT: {"region server": 1, "Basalt": 2}}
    done = (lambda number, calls: turns.append(RAW), lambda number, calls: turns.append(BASALT))
    work = Work("", 1, 4, 1.0, 1.0, done)
    with ThreadPoolExecutor(1) as pool:
        accounts = measured(pool, sides, work, 1, 4)  # type: ignore[arg-type]  # any pool does
    rounds = beside_raw.WARM_UP_ROUNDS + beside_raw.ROUNDS
    assert [turns[2 * turn : 2 * turn + 2] for turn in range(2)] == [[BASALT, RAW], [RAW, BASALT]]
    assert len(turns) == 2 * rounds
    assert len(accounts[BASALT].per_second) == beside_raw.ROUNDS
    assert set(accounts[BASALT].us_each) == {"region server", "Basalt", "clients"}
