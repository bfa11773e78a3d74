"""Quotas: the buckets of rates against a naive reference, whose rule holds, and accounts that do not grow without end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.access.policy import Caller, Policy
from basalt.access.principal import ANONYMOUS, Principal, internal, parse_principal
from basalt.access.quotas import (
    ACCOUNTS_MAX,
    BURST_S,
    FETCH_BYTES,
    HELD_MS,
    OFF,
    OPEN_TRANSACTIONS,
    PUBLISH_BYTES,
    QUOTAS,
    RATES,
    REQUESTS,
    ROWS,
    SHARED_MAX,
    TOPICS,
    WAITING_FETCHES,
    Account,
    Bucket,
    QuotaLimits,
    QuotaRow,
    QuotaRules,
    Quotas,
    Ruling,
)
from basalt.errors import ThrottledError

ETL, ALICE = parse_principal("token:etl"), Principal("jwt", "alice", frozenset(("jwt-group:data",)))
NOW = 5_000_000.0

TIMES = st.integers(0, 10_000)
CHARGES = st.lists(st.tuples(TIMES, st.integers(1, 50_000)), max_size=12).map(sorted)


def caller_of(principal: Principal, policy: Policy | None = None) -> Caller:
    return Caller(principal, policy)


def quotas_of(defaults: QuotaLimits | None = None, /, **rows: QuotaLimits) -> Quotas:
    """Quotas by these defaults, and the rows of subjects whose colon is written as two low lines."""
    quotas = Quotas(defaults or QuotaLimits())
    quotas.use({subject.replace("__", ":"): row for subject, row in rows.items()})
    return quotas


def opened(quotas: Quotas, principal: Principal = ETL, now_ms: float = NOW, policy: Policy | None = None) -> Account:
    account = quotas.account_of(caller_of(principal, policy), now_ms)
    assert account is not None
    return account


# The bucket of a rate.


def used_naively(charges: Sequence[tuple[int, int]], per_s: int, now_ms: int) -> int:
    """Of all stretches of time up to now, the one in which the most was charged beyond what it pays back; in thousandths."""
    return max(
        0,
        *(
            sum(1_000 * amount for _, amount in charges[first:]) - per_s * (now_ms - charges[first][0])
            for first in range(len(charges))
        ),
        0,
    )


@settings(max_examples=300, deadline=None)
@given(CHARGES, st.integers(1, 20_000), st.integers(0, 5_000))
def test_a_bucket_holds_what_is_not_paid_back_of_the_worst_stretch_of_time(
    charges: list[tuple[int, int]], per_s: int, later_ms: int
) -> None:
    bucket = Bucket()
    for at_ms, amount in charges:
        bucket.take(amount, per_s, at_ms)
    now_ms = (charges[-1][0] if charges else 0) + later_ms
    expected = used_naively(charges, per_s, now_ms)
    assert bucket.used_milli(per_s, now_ms) == expected
    assert (bucket.wait_ms(per_s, now_ms) == 0) == (expected < BURST_S * 1_000 * per_s)


@settings(max_examples=300, deadline=None)
@given(CHARGES, st.integers(1, 20_000))
def test_the_wait_that_is_told_is_the_shortest_that_helps(charges: list[tuple[int, int]], per_s: int) -> None:
    bucket = Bucket()
    for at_ms, amount in charges:
        bucket.take(amount, per_s, at_ms)
    now_ms = charges[-1][0] if charges else 0
    wait_ms = bucket.wait_ms(per_s, now_ms)
    assert bucket.wait_ms(per_s, now_ms + wait_ms) == 0
    if wait_ms:
        assert bucket.wait_ms(per_s, now_ms + wait_ms - 1) == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5_000)), min_size=1, max_size=60), st.integers(1, 5_000))
def test_over_any_time_no_more_passes_than_the_rate_a_bucket_and_what_the_last_call_overdraws(
    asked: list[tuple[int, int]], per_s: int
) -> None:
    bucket, now_ms, passed = Bucket(), 0, []
    for pause_ms, amount in asked:
        now_ms += pause_ms
        if not bucket.wait_ms(per_s, now_ms):
            bucket.take(amount, per_s, now_ms)
            passed.append((now_ms, amount))
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            took_ms = passed[last][0] - passed[first][0]
            amounts = [amount for _, amount in passed[first : last + 1]]
            assert 1_000 * sum(amounts) <= per_s * (1_000 * BURST_S + took_ms) + 1_000 * amounts[-1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-100_000, 100_000), st.integers(0, 5_000)), min_size=1, max_size=20),
    st.integers(1, 5_000),
)
def test_a_clock_that_is_set_pays_back_no_more_than_it_went_on_and_makes_nobody_wait_longer_than_they_used(
    steps: list[tuple[int, int]], per_s: int
) -> None:
    bucket, now_ms, used = Bucket(), 1_000_000, 0
    bucket.take(0, per_s, now_ms)
    for step_ms, amount in steps:
        now_ms += step_ms
        used = max(0, used - max(0, step_ms) * per_s) + 1_000 * amount
        bucket.take(amount, per_s, now_ms)
        assert bucket.used_milli(per_s, now_ms) == used
        wait_ms = bucket.wait_ms(per_s, now_ms)
        assert wait_ms <= used // per_s + 1
        assert bucket.wait_ms(per_s, now_ms + wait_ms) == 0


def test_a_new_rate_finds_the_same_part_of_a_bucket_used() -> None:
    quotas = quotas_of(token__etl=QuotaLimits(publish_bytes_per_s=1_000))
    opened(quotas).charge(PUBLISH_BYTES, 3_000, NOW)
    quotas.use({"token:etl": QuotaLimits(publish_bytes_per_s=10)})
    account = opened(quotas)
    assert account.used(PUBLISH_BYTES, NOW) == 30
    assert account.wait_ms(PUBLISH_BYTES, NOW) == 1_001  # as before: not the five minutes that 3,000 bytes would take
    quotas.use({"token:etl": QuotaLimits(publish_bytes_per_s=1_000)})
    assert opened(quotas).used(PUBLISH_BYTES, NOW) == 3_000


def test_who_comes_with_other_groups_each_time_gets_no_new_bucket() -> None:
    policy = Policy()
    quotas = Quotas(QuotaLimits())
    quotas.use({"jwt-group:a": QuotaLimits(requests_per_s=20), "jwt-group:b": QuotaLimits(requests_per_s=10)})
    admitted = 0
    for number in range(200):
        group = "jwt-group:a" if number % 2 else "jwt-group:b"
        account = opened(quotas, Principal("jwt", "bob", frozenset((group,))), NOW, policy)
        if not account.wait_ms(REQUESTS, NOW):
            quotas.admit(account, NOW)
            admitted += 1
    assert admitted <= 40


# Whose rule holds.


def test_its_own_rule_comes_before_its_groups_these_before_everyone_and_the_settings_are_last() -> None:
    defaults = QuotaLimits(requests_per_s=1, topics=4)
    rows = {
        "token:etl": QuotaLimits(requests_per_s=7),
        "role:batch": QuotaLimits(requests_per_s=100, publish_bytes_per_s=50),
        "jwt-group:data": QuotaLimits(requests_per_s=60, publish_bytes_per_s=70),
        "everyone": QuotaLimits(requests_per_s=5, publish_bytes_per_s=5, sessions=2),
    }
    found = QuotaRules(defaults, rows).rulings("token:etl", ("jwt-group:data", "role:batch"))
    assert found[REQUESTS.place] == Ruling(7, "token:etl")
    assert found[PUBLISH_BYTES.place] == Ruling(70, "jwt-group:data")
    assert found[4] == Ruling(2, "everyone")
    assert found[TOPICS.place] == Ruling(4, "")
    assert found[FETCH_BYTES.place] == Ruling(None, "")


def test_principals_without_a_rule_of_their_own_share_their_rulings_and_others_do_not() -> None:
    rules = QuotaRules(QuotaLimits(topics=1), {"token:etl": QuotaLimits(topics=2), "role:a": QuotaLimits(topics=3)})
    for number in range(2 * SHARED_MAX):
        assert rules.rulings("token:a", (f"role:{number}",)) is rules.rulings("token:b", (f"role:{number}",))
    assert len(rules._shared) <= SHARED_MAX
    found = [
        rules.rulings(*who)[TOPICS.place].limit
        for who in (("token:a", ()), ("token:a", ("role:a",)), ("token:etl", ()))
    ]
    assert found == [1, 3, 2]


def test_off_is_more_than_any_number_and_lifts_what_the_settings_say() -> None:
    rules = QuotaRules(
        QuotaLimits(requests_per_s=1),
        {"role:a": QuotaLimits(requests_per_s=OFF), "role:b": QuotaLimits(requests_per_s=9)},
    )
    assert rules.ruling(REQUESTS, "token:etl", ("role:b", "role:a")) == Ruling(None, "role:a")
    assert rules.ruling(REQUESTS, "token:etl", ("role:b",)) == Ruling(9, "role:b")
    assert rules.ruling(REQUESTS, "token:etl") == Ruling(1, "")


LIMITS = st.one_of(st.none(), st.just(OFF), st.integers(1, 9))
SUBJECTS = ("token:etl", "jwt-group:a", "jwt-group:b", "role:r", "everyone", "")


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(SUBJECTS), LIMITS), st.permutations(["jwt-group:a", "jwt-group:b", "role:r"]))
def test_rulings_are_those_of_a_naive_reference_in_any_order(said: dict[str, Any], others: list[str]) -> None:
    rows = {subject: QuotaLimits(topics=limit) for subject, limit in said.items() if subject}
    found = QuotaRules(QuotaLimits(topics=said.get("")), rows).ruling(TOPICS, "token:etl", others)
    for layer in (["token:etl"], others, ["everyone"], [""]):
        limits = [said[subject] for subject in layer if said.get(subject) is not None]
        if limits:
            assert found.limit == (None if OFF in limits else max(limits))
            break
    else:
        assert found == Ruling(None, "")


def test_groups_and_roles_come_from_who_calls_and_its_policy() -> None:
    policy = Policy(roles={"batch": ["jwt-group:data"]})
    quotas = quotas_of(role__batch=QuotaLimits(requests_per_s=3))
    assert opened(quotas, ALICE, policy=policy).rulings[0] == Ruling(3, "role:batch")
    assert quotas.account_of(caller_of(parse_principal("jwt:bob"), policy), NOW) is None


def test_a_role_that_one_leaves_limits_no_more_once_the_policy_has_changed() -> None:
    quotas = quotas_of(role__batch=QuotaLimits(requests_per_s=3))
    assert opened(quotas, policy=Policy(roles={"batch": ["token:etl"]})).rulings[0].limit == 3
    quotas.use(quotas.rules.rows)
    assert quotas.account_of(caller_of(ETL, Policy()), NOW) is None


def test_superusers_and_parts_of_the_server_have_no_quota() -> None:
    quotas = quotas_of(QuotaLimits(requests_per_s=1), token__etl=QuotaLimits(requests_per_s=1))
    policy = Policy(superusers=["token:etl", "jwt-group:data"])
    assert quotas.account_of(caller_of(ETL, policy), NOW) is None
    assert quotas.account_of(caller_of(ALICE, policy), NOW) is None
    assert quotas.account_of(caller_of(internal("jobs")), NOW) is None
    assert opened(quotas, ANONYMOUS).rulings[0] == Ruling(1, "")


def test_without_a_limit_quotas_are_off_and_keep_no_accounts() -> None:
    quotas = quotas_of(token__etl=QuotaLimits(requests_per_s=OFF))
    assert not quotas.are_on
    quotas.use({"token:etl": QuotaLimits(requests_per_s=4)})
    assert quotas.are_on
    opened(quotas)
    quotas.use({})
    assert (quotas.are_on, len(quotas)) == (False, 0)


# What an account admits.


def test_a_bucket_of_requests_is_used_up_and_fills_again() -> None:
    quotas = quotas_of(token__etl=QuotaLimits(requests_per_s=10))
    account = opened(quotas)
    for _ in range(10 * BURST_S):
        quotas.admit(account, NOW)
    with pytest.raises(
        ThrottledError, match="token:etl has used up its quota requests_per_s: 10 requests a second, by its own rule"
    ) as told:
        quotas.admit(account, NOW)
    assert (told.value.retry_after_ms, told.value.field) == (1, "requests_per_s")
    assert quotas.throttled == {"requests_per_s": 1}
    quotas.admit(account, NOW + told.value.retry_after_ms)
    assert account.wait_ms(REQUESTS, NOW + told.value.retry_after_ms) == 100  # what was refused has cost nothing


def test_a_large_body_overdraws_and_all_behind_it_wait_until_it_is_paid_back() -> None:
    quotas = quotas_of(token__etl=QuotaLimits(publish_bytes_per_s=1_000_000))
    account = opened(quotas)
    quotas.admit_bytes(account, PUBLISH_BYTES, NOW)
    account.charge(PUBLISH_BYTES, 10_000_000, NOW)
    with pytest.raises(ThrottledError) as told:
        quotas.admit_bytes(account, PUBLISH_BYTES, NOW)
    assert told.value.retry_after_ms == 8_001
    quotas.admit_bytes(account, FETCH_BYTES, NOW)
    quotas.admit_bytes(account, PUBLISH_BYTES, NOW + 8_001)


def test_the_refusal_says_whose_rule_it_is() -> None:
    quotas = quotas_of(QuotaLimits(topics=1), everyone=QuotaLimits(waiting_fetches=1))
    account = opened(quotas)
    with (
        pytest.raises(ThrottledError, match="topics: 1 topics that it created, by the settings") as told,
        quotas.one_more(account, TOPICS, NOW, 1),
    ):
        pass
    assert told.value.retry_after_ms == 60_000
    with (
        quotas.one_more(account, WAITING_FETCHES, NOW),
        pytest.raises(ThrottledError, match="by the rule of everyone") as told,
    ):
        with quotas.one_more(account, WAITING_FETCHES, NOW):
            pass
    assert told.value.retry_after_ms == 1_000


def test_places_that_are_held_count_with_those_that_are_there_and_are_given_back_however_it_ends() -> None:
    quotas = quotas_of(token__etl=QuotaLimits(open_transactions=3))
    account = opened(quotas)
    with (
        pytest.raises(OSError),
        quotas.one_more(account, OPEN_TRANSACTIONS, NOW, 1),
        quotas.one_more(account, OPEN_TRANSACTIONS, NOW, 1),
    ):
        with pytest.raises(ThrottledError), quotas.one_more(account, OPEN_TRANSACTIONS, NOW, 1):
            pass
        raise OSError
    assert account.is_idle(NOW)
    with quotas.one_more(account, OPEN_TRANSACTIONS, NOW, 2):
        pass
    with quotas.one_more(None, OPEN_TRANSACTIONS, NOW, 1_000_000):
        pass


def test_accounts_of_idle_principals_go_as_others_come_and_those_in_use_stay() -> None:
    quotas = quotas_of(QuotaLimits(requests_per_s=10, waiting_fetches=1))
    waiting = opened(quotas, parse_principal("token:waiting"))
    with quotas.one_more(waiting, WAITING_FETCHES, NOW):
        for number in range(5_000):
            quotas.admit(opened(quotas, parse_principal(f"token:{number}"), NOW + number), NOW + number)
        assert len(quotas) < 500  # a request is paid back in 100 ms, in which 100 others come
        assert quotas.known(parse_principal("token:waiting")) is waiting


def test_no_more_accounts_than_the_limit_are_kept_whatever_they_have_used() -> None:
    quotas = Quotas(QuotaLimits(requests_per_s=1), accounts_max=100)
    for number in range(1_000):
        quotas.admit(opened(quotas, parse_principal(f"token:{number}")), NOW)
    assert len(quotas) == 100
    assert quotas.known(parse_principal("token:999")) is not None
    assert ACCOUNTS_MAX == 100_000


def test_an_account_is_idle_once_a_new_one_would_be_the_same() -> None:
    quotas = quotas_of(token__etl=QuotaLimits(requests_per_s=10))
    account = opened(quotas)
    assert account.is_idle(NOW)
    quotas.admit(account, NOW)
    assert not account.is_idle(NOW + 99)
    assert account.is_idle(NOW + 100)


def test_a_row_keeps_what_it_says() -> None:
    limits = QuotaLimits(requests_per_s=5, sessions=OFF)
    row = QuotaRow(limits, 7, "token:root")
    assert ROWS.decode(ROWS.encode(row)) == row
    assert not limits.is_empty
    assert QuotaLimits().is_empty
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"topics":"on"}', type=QuotaLimits)


def test_every_quota_has_a_limit_of_its_name_in_its_place() -> None:
    assert tuple(quota.name for quota in QUOTAS) == QuotaLimits.__struct_fields__
    assert [quota.place for quota in QUOTAS] == list(range(len(QUOTAS)))
    assert QUOTAS[: len(RATES)] == RATES


def test_who_comes_before_the_time_it_was_told_waits_for_its_refusal_and_who_obeys_does_not() -> None:
    quotas = quotas_of(token__etl=QuotaLimits(requests_per_s=1))
    account, now_ms = opened(quotas), NOW

    def refusal() -> ThrottledError:
        with pytest.raises(ThrottledError) as told:
            while True:
                quotas.admit(account, now_ms)
        return told.value

    first = refusal()
    assert (first.held_ms, first.retry_after_ms) == (0, 1)
    again = refusal()
    assert (again.held_ms, again.retry_after_ms) == (HELD_MS, 1)
    now_ms += 1
    obeyed = refusal()  # behind one that passed
    assert (obeyed.held_ms, obeyed.retry_after_ms) == (0, 1_000)
    now_ms += 999
    assert refusal().held_ms == HELD_MS
    now_ms -= 3_600_000  # the clock was set back: that is no fault of the caller's
    assert refusal().held_ms == 0


def test_no_caller_is_held_for_longer_than_its_bucket_takes_to_fill() -> None:
    assert HELD_MS <= BURST_S * 1_000
