"""Quotas: how much of a server one principal may use, and the accounts of what each has used. For operators: docs/operations/security.md.

A rate is kept by a bucket of two seconds, which is charged after the fact: a call may overdraw it by the size of its body, and the calls
behind it wait until that is paid back. So a large message passes, nothing of a body is read in vain, and over time the rate holds. Who
does not wait is refused late: docs/decisions/0050-refusals-are-kept-back.md. A
count is compared with what there is. For each quota the closest rule says how much: that of the principal itself, else the most generous
of its groups and roles, else that of everyone, else the settings. Time is an argument, in milliseconds of a clock that need not
be steady.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from basalt.access.policy import Caller
from basalt.access.principal import EVERYONE, INTERNAL, Principal
from basalt.errors import ThrottledError
from basalt_engine.system import SystemRecord

SHARED_MAX = 1_000  # different lists of groups and roles whose rulings are at hand; beyond, they are found anew
BURST_S = 2  # of a rate may be used at once: clients send in bursts, and this is the longest that one holds up the next
ACCOUNTS_MAX = (
    100_000  # principals whose use is in memory, some 80 MB; beyond, the longest unseen begins with nothing used
)
LOOKED_AT = 2  # accounts that are looked at for each new one: those of idle principals go faster than others come
COUNT_RETRY_MS = 1_000  # after which a place may be free again that ends by itself: a wait, a transaction
HELD_MS = (
    1_000  # for which a caller waits for the refusal that comes before the time it was told: refusing takes time, too
)
KEPT_RETRY_MS = 60_000  # the same where somebody must delete something: longer than clients try again by themselves

OFF: Literal["off"] = "off"  # no limit
Limit: TypeAlias = int | Literal["off"] | None  # None: the rule says nothing of this quota

_MILLI = 1_000


class Quota(NamedTuple):
    """One quota: its place among all, its name, what it limits; whether so much a second, or so many at a time."""

    place: int
    name: str
    meaning: str
    per_second: bool = False
    retry_ms: int = COUNT_RETRY_MS


REQUESTS = Quota(0, "requests_per_s", "requests a second", per_second=True)
PUBLISH_BYTES = Quota(1, "publish_bytes_per_s", "bytes a second that it publishes", per_second=True)
FETCH_BYTES = Quota(2, "fetch_bytes_per_s", "bytes a second that it reads", per_second=True)
OPEN_TRANSACTIONS = Quota(3, "open_transactions", "open transactions")
SESSIONS = Quota(4, "sessions", "named sessions", retry_ms=KEPT_RETRY_MS)
TOPICS = Quota(5, "topics", "topics that it created", retry_ms=KEPT_RETRY_MS)
WAITING_FETCHES = Quota(6, "waiting_fetches", "fetches that wait")
QUOTAS = (REQUESTS, PUBLISH_BYTES, FETCH_BYTES, OPEN_TRANSACTIONS, SESSIONS, TOPICS, WAITING_FETCHES)
RATES = tuple(quota for quota in QUOTAS if quota.per_second)


class QuotaLimits(Struct, frozen=True):
    """One rule: of each quota a number, `off` for no limit, or None for nothing."""

    requests_per_s: Limit = None
    publish_bytes_per_s: Limit = None
    fetch_bytes_per_s: Limit = None
    open_transactions: Limit = None
    sessions: Limit = None
    topics: Limit = None
    waiting_fetches: Limit = None

    def of(self, quota: Quota) -> Limit:
        """The part about one quota."""
        limit: Limit = getattr(self, quota.name)
        return limit

    @property
    def is_empty(self) -> bool:
        """True when it says nothing at all."""
        return all(self.of(quota) is None for quota in QUOTAS)

    @property
    def limits_something(self) -> bool:
        """True when a number is in it."""
        return any(isinstance(self.of(quota), int) for quota in QUOTAS)


class QuotaRow(Struct, frozen=True):
    """The rule of a subject, as it is kept."""

    limits: QuotaLimits
    changed_ms: int
    made_by: str


ROWS = SystemRecord("quota", "", QuotaRow)  # by subject; docs/formats/system-table.md


class Ruling(NamedTuple):
    """The limit of one quota for a principal (None: there is none), and the subject whose rule says so; "": the settings do."""

    limit: int | None
    subject: str


class QuotaRules:
    """All rules of one moment: the rows by subject, and what the settings say for who has none. What it says never changes."""

    def __init__(self, defaults: QuotaLimits, rows: Mapping[str, QuotaLimits] | None = None) -> None:
        self.rows: Mapping[str, QuotaLimits] = rows or {}
        self._defaults = defaults
        self._shared: dict[tuple[str, ...], tuple[Ruling, ...]] = {}  # by groups and roles
        self.limit_something = any(each.limits_something for each in (defaults, *self.rows.values()))

    def ruling(self, quota: Quota, principal: str, others: Sequence[str] = ()) -> Ruling:
        """The limit of a principal that is in these groups and roles."""
        for subjects in ((principal,), others, (EVERYONE,)):
            said = [(limit, each) for each in subjects if (limit := self._said(quota, each)) is not None]
            if said:
                return _most_generous(said)
        default = self._defaults.of(quota)
        return Ruling(default if isinstance(default, int) else None, "")

    def rulings(self, principal: str, others: Sequence[str] = ()) -> tuple[Ruling, ...]:
        """The same of each quota, in the order of `QUOTAS`. Principals without a rule of their own share theirs, for memory."""
        if principal in self.rows:
            return tuple(self.ruling(quota, principal, others) for quota in QUOTAS)
        key = tuple(others)
        found = self._shared.get(key)
        if found is None:
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            found = self._shared[key] = tuple(self.ruling(quota, principal, others) for quota in QUOTAS)
        return found

    def _said(self, quota: Quota, subject: str) -> Limit:
        row = self.rows.get(subject)
        return None if row is None else row.of(quota)


def _most_generous(said: Iterable[tuple[Limit, str]]) -> Ruling:
    limit, subject = max(said, key=lambda each: math.inf if each[0] == OFF else each[0] or 0)
    return Ruling(limit if isinstance(limit, int) else None, subject)


class Bucket:
    """The use of a rate that is not paid back yet. It shrinks by the rate; who has used a bucket full or more waits."""

    __slots__ = ("_at_ms", "_used_milli")

    def __init__(self) -> None:
        self._used_milli = 0.0  # thousandths: at a whole rate, whole milliseconds pay back whole ones
        self._at_ms = 0.0

    def wait_ms(self, per_s: int, now_ms: float) -> int:
        """The time until a call is admitted; 0: now."""
        over = self.used_milli(per_s, now_ms) - BURST_S * _MILLI * per_s
        return 0 if over < 0 else int(over // per_s) + 1

    def take(self, amount: int, per_s: int, now_ms: float) -> None:
        """Charge what was used, however much is left."""
        self._used_milli = self.used_milli(per_s, now_ms) + amount * _MILLI
        self._at_ms = now_ms

    def used_milli(self, per_s: int, now_ms: float) -> float:
        """The use that is not paid back, in thousandths. A clock that was set back pays nothing back by that, and goes on from there."""
        passed_ms = now_ms - self._at_ms
        if passed_ms < 0:
            self._at_ms = now_ms
            return self._used_milli
        return max(0.0, self._used_milli - passed_ms * per_s)

    def scale(self, before: int, after: int) -> None:
        """The rate has changed: what is used stays the same part of a bucket. So no change of rules is a new bucket."""
        self._used_milli = self._used_milli * after / before


_FREE = tuple(Ruling(None, "") for _ in QUOTAS)


class Account:
    """The limits of a principal, what it has used of its rates, and what it holds or is about to make of what is counted."""

    __slots__ = ("_buckets", "_judged_by", "_told_to_wait_until_ms", "groups", "held", "is_limited", "name", "rulings")

    def __init__(self, name: str) -> None:
        self.name = name
        self.rulings = _FREE
        self.is_limited = False
        self.held = [0] * len(QUOTAS)
        self._told_to_wait_until_ms: dict[int, float] = {}  # by the quota's place
        self._buckets: list[Bucket | None] = [None] * len(RATES)
        self.groups: frozenset[str] = frozenset()
        self._judged_by: tuple[int, int] = (0, 0)  # numbers, not the rules themselves, which an idle account would keep

    def judge(self, caller: Caller, rules: QuotaRules, version: int) -> None:
        """Have the limits that these rules give to the caller. Where they are those of last time, nothing is done."""
        principal, policy = caller.principal, caller.policy
        judged_by = version, id(policy)
        if self._judged_by == judged_by and self.groups == principal.groups:
            return
        self._judged_by, self.groups, before = judged_by, principal.groups, self.rulings
        if policy is not None and policy.is_superuser(principal):
            self.rulings = _FREE
        else:
            others = () if policy is None else policy.subjects_of(principal)[1:-1]  # without itself and everyone
            self.rulings = rules.rulings(self.name, others)
        self.is_limited = any(ruling.limit is not None for ruling in self.rulings)
        for quota in RATES:
            old, new, bucket = before[quota.place].limit, self.rulings[quota.place].limit, self._buckets[quota.place]
            if bucket is not None and old and new and old != new:
                bucket.scale(old, new)

    def wait_ms(self, quota: Quota, now_ms: float) -> int:
        """The time until a call is admitted under this rate; 0: now."""
        limit, bucket = self.rulings[quota.place].limit, self._buckets[quota.place]
        return 0 if limit is None or bucket is None else bucket.wait_ms(limit, now_ms)

    def charge(self, quota: Quota, amount: int, now_ms: float) -> None:
        """Charge what was used of a rate. Where that has no limit, nothing is kept."""
        limit = self.rulings[quota.place].limit
        if limit is None:
            return
        bucket = self._buckets[quota.place]
        if bucket is None:
            bucket = self._buckets[quota.place] = Bucket()
        bucket.take(amount, limit, now_ms)

    def used(self, quota: Quota, now_ms: float) -> int:
        """The use of a rate that is not paid back; of what is counted, the places that it holds."""
        if not quota.per_second:
            return self.held[quota.place]
        limit, bucket = self.rulings[quota.place].limit, self._buckets[quota.place]
        return 0 if limit is None or bucket is None else math.ceil(bucket.used_milli(limit, now_ms) / _MILLI)

    def told_to_wait(self, quota: Quota, wait_ms: int, now_ms: float) -> bool:
        """Note until when it is told to wait; and tell whether it was told that before, and came all the same."""
        until_ms = self._told_to_wait_until_ms.get(quota.place, now_ms)
        self._told_to_wait_until_ms[quota.place] = now_ms + wait_ms
        return now_ms < until_ms <= now_ms + KEPT_RETRY_MS  # else the clock was set back meanwhile

    def is_idle(self, now_ms: float) -> bool:
        """Tell whether a new account would be the same."""
        return not any(self.used(quota, now_ms) for quota in QUOTAS)


class Quotas:
    """The accounts of all principals under the rules in force. Where these limit nothing, `are_on` is False, and nobody need ask."""

    def __init__(self, defaults: QuotaLimits, accounts_max: int = ACCOUNTS_MAX) -> None:
        self._defaults = defaults
        self._accounts_max = accounts_max
        self.throttled: Counter[str] = Counter()  # calls that were refused, by quota
        self._accounts: OrderedDict[tuple[str, str], Account] = OrderedDict()  # the longest unseen first
        self._version = 0
        self.use({})

    def use(self, rows: Mapping[str, QuotaLimits]) -> None:
        """Go by these rows from now on, and by the roles of the callers' policy, which has changed with them."""
        self.rules = QuotaRules(self._defaults, rows)
        self.are_on = self.rules.limit_something
        self._version += 1
        if not self.are_on:
            self._accounts.clear()

    def __len__(self) -> int:
        return len(self._accounts)

    def account_of(self, caller: Caller, now_ms: float) -> Account | None:
        """The account that the caller's requests are charged to; None where nothing limits it: superusers, parts of the server."""
        principal = caller.principal
        if principal.kind == INTERNAL:
            return None
        key = principal.kind, principal.name
        account = self._accounts.get(key)
        if account is None:
            account = self._opened(key, principal, now_ms)
        else:
            self._accounts.move_to_end(key)
        account.judge(caller, self.rules, self._version)
        return account if account.is_limited else None

    def known(self, principal: Principal) -> Account | None:
        """The account of a principal that called of late."""
        return self._accounts.get((principal.kind, principal.name))

    def admit(self, account: Account, now_ms: float) -> None:
        """Charge one request; `ThrottledError` when the principal has to wait, and nothing is charged."""
        self.admit_bytes(account, REQUESTS, now_ms)
        account.charge(REQUESTS, 1, now_ms)

    def admit_bytes(self, account: Account, quota: Quota, now_ms: float) -> None:
        """`ThrottledError` when the principal has to wait until what it used is paid back. Bytes are charged when they are known."""
        wait_ms = account.wait_ms(quota, now_ms)
        if wait_ms:
            raise self._refusal(account, quota, wait_ms, now_ms)

    @contextmanager
    def one_more(self, account: Account | None, quota: Quota, now_ms: float, there: int = 0) -> Iterator[None]:
        """Hold a place of what is counted: while it lasts, or while it is made and not yet among those that are `there`.

        `ThrottledError` when these, and those that are held, are as many as the principal may have.
        """
        if account is None:
            yield
            return
        limit, held = account.rulings[quota.place].limit, account.held
        if limit is not None and there + held[quota.place] >= limit:
            raise self._refusal(account, quota, quota.retry_ms, now_ms)
        held[quota.place] += 1
        try:
            yield
        finally:
            held[quota.place] -= 1

    def _opened(self, key: tuple[str, str], principal: Principal, now_ms: float) -> Account:
        accounts = self._accounts
        for _ in range(min(LOOKED_AT, len(accounts))):
            oldest = next(iter(accounts))
            if accounts[oldest].is_idle(now_ms):
                del accounts[oldest]
            else:
                accounts.move_to_end(oldest)
        if len(accounts) >= self._accounts_max:
            accounts.popitem(last=False)
        account = accounts[key] = Account(str(principal))
        return account

    def _refusal(self, account: Account, quota: Quota, wait_ms: int, now_ms: float) -> ThrottledError:
        self.throttled[quota.name] += 1
        limit, subject = account.rulings[quota.place]
        whose = (
            "the settings" if not subject else "its own rule" if subject == account.name else f"the rule of {subject}"
        )
        error = ThrottledError(
            f"{account.name} has used up its quota {quota.name}: {limit} {quota.meaning}, by {whose}",
            field=quota.name,
            hint=f"Wait and send it again. `basalt quota show {shlex.quote(account.name)}` tells more; `basalt quota set` changes it.",
        )
        if account.told_to_wait(quota, wait_ms, now_ms):
            error.held_ms = HELD_MS
        error.retry_after_ms = max(1, wait_ms - error.held_ms)
        return error
