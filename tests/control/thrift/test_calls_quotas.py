"""Quotas of the principal of the Thrift face: its calls are charged as over HTTP, and probes are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from thriftpy2.thrift import TApplicationException

from basalt.access.quotas import BURST_S, REQUESTS, QuotaLimits
from basalt.settings import Settings
from basalt.settings.tree import QuotaSettings, ThriftSettings
from tests.control.thrift.conftest import Serving
from tests.control.thrift.test_calls_rights import FACE, PROVING, granted, judge_by


@pytest.fixture
def serving() -> Iterator[Serving]:
    with Serving(Settings(auth=PROVING, thrift=ThriftSettings(principal=FACE))) as started:
        judge_by(started, granted("transact cluster"))
        yield started


def limit(serving: Serving, **limits: int) -> None:
    serving.services.quotas.use({FACE: QuotaLimits(**limits)})


def throttled(call, *arguments) -> str:
    with pytest.raises(TApplicationException) as caught:
        call(*arguments)
    return str(caught.value.message)


def test_a_client_may_have_so_many_transactions_open_and_one_that_ends_makes_room(serving):
    limit(serving, open_transactions=2)
    with serving.client() as client:
        first, _ = client.startShort(), client.startLong()
        for start in (client.startShort, client.startLong):
            assert f"{FACE} has used up its quota open_transactions: 2" in throttled(start)
        assert client.canCommitTx(first, set())
        assert client.commitTx(first)
        client.startShort()
        assert "open_transactions" in throttled(client.startLong)


def test_calls_beyond_the_rate_are_refused_until_they_are_paid_back_and_probes_go_on(serving, monkeypatch):
    monkeypatch.setattr("basalt.access.quotas.HELD_MS", 0)
    limit(serving, requests_per_s=2)
    with serving.client() as client:
        begun = [client.startShort() for _ in range(2 * BURST_S)]
        for call in (client.startShort, client.invalidTxSize):
            assert f"{FACE} has used up its quota requests_per_s" in throttled(call)
        assert client.status() == "OK"
        assert "requests_per_s" in throttled(client.abortTx, begun[0])
        limit(serving)
        client.abortTx(begun[0])
    assert serving.services.quotas.throttled["requests_per_s"] == 3


@pytest.mark.parametrize("more", [{}, {"open_transactions": 1_000}])
def test_each_call_is_charged_once_whichever_way_it_is_answered(serving, more):
    limit(serving, requests_per_s=1_000, **more)
    with serving.client() as client:
        one = client.startShort()
        client.canCommitTx(one, {b"a"})
        client.commitTx(one)
        client.invalidTxSize()
        client.status()
    now_ms = serving.clock.monotonic_ms()
    account = serving.services.quotas.account_of(serving.services._thrift_caller(), now_ms)
    assert account is not None
    assert account.used(REQUESTS, now_ms) == 4


def test_change_sets_are_bytes_that_are_published(serving):
    limit(serving, publish_bytes_per_s=10)
    with serving.client() as client:
        one, other = client.startShort(), client.startShort()
        client.canCommitTx(one, {b"x" * 50})
        assert f"{FACE} has used up its quota publish_bytes_per_s" in throttled(client.canCommitTx, other, {b"y"})
        assert client.canCommitTx(other, set())
        assert client.commitTx(one)


def test_without_quotas_there_is_no_account(serving):
    serving.services.quotas.use({})
    with serving.client() as client:
        client.abortTx(client.startShort())
    assert len(serving.services.quotas) == 0


def test_where_nobody_is_asked_the_settings_limit_everybody():
    settings = replace(Settings(), thrift=ThriftSettings(), quota=QuotaSettings(open_transactions=1))
    with Serving(settings) as serving, serving.client() as client:
        client.startShort()
        assert "anonymous has used up its quota open_transactions" in throttled(client.startShort)
