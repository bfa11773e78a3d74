"""The table of alerts: when each fires, in which words, and where it is told what to do.

It is written once. `make monitoring` makes Prometheus' rules of it, `GET /v1/admin/alerts` says which of them are true of this server now,
and docs/operations/runbook.md has a section for each, which a test sees to. Thresholds are those of a server that nobody knows yet: change
them in the rules that you load, once you know yours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from basalt.operations.alerts.expressions import (
    HOUR_S,
    Condition,
    Increase,
    Linear,
    Quantile,
    Quotient,
    Series,
    Until,
)

Severity: TypeAlias = Literal["critical", "warning", "info"]
Unit: TypeAlias = Literal["seconds", "share", "count"]

MINUTE_S, DAY_S = 60, 24 * HOUR_S
TWO_LEASES_S = 12  # by default: within one and a little more a standby leads, and has taken all shards
FAULTS = ("internal", "corruption", "disk_full", "store_unavailable")  # codes of errors that are no caller's fault
WORDS_OF_VALUE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `text` is a sentence in which {value} and the labels' names stand for what they are.

    An alert without a `condition` is about several servers, or about one that does not answer: only Prometheus can see that, by `promql`.
    """

    name: str
    severity: Severity
    for_s: int
    text: str
    unit: Unit
    condition: Condition | None = None
    elsewhere: str = ""

    @property
    def promql(self) -> str:
        """The condition as Prometheus has it."""
        return self.elsewhere if self.condition is None else self.condition.promql

    @property
    def section(self) -> str:
        """The section of the runbook: its heading's anchor."""
        return self.name.lower()


def _events(event: str) -> Series:
    return Series("basalt_transactions_total", {"event": event})


_TRANSACTIONS = (
    Alert(
        "BasaltReadersHeldBack", "warning", MINUTE_S,
        "Readers of committed messages wait behind a transaction that has been open for {value}", "seconds",
        Condition(Series("basalt_transactions_oldest_blocking_seconds"), 60),
    ),
    Alert(
        "BasaltTransactionHangs", "warning", MINUTE_S,
        "A transaction has been open for {value} of the longest time-out that it may have", "share",
        Condition(Series("basalt_transactions_oldest_ratio"), 0.5),
    ),
    Alert(
        "BasaltRollBackFails", "warning", 5 * MINUTE_S,
        "The roll back of {value} transactions keeps failing", "count",
        Condition(Series("basalt_transactions_live", {"state": "aborting"}), 0),
    ),
    Alert(
        "BasaltTransactionsTimeOut", "warning", 5 * MINUTE_S,
        "{value} transactions timed out within 15 minutes, more than one in twenty of those that began", "count",
        Condition(Increase(_events("timed_out"), 15 * MINUTE_S), Linear(5, 0.05, Increase(_events("begun"), 15 * MINUTE_S))),
    ),
    Alert(
        "BasaltConflicts", "warning", 5 * MINUTE_S,
        "{value} transactions lost a conflict within 5 minutes, more than one for ten that committed", "count",
        Condition(Increase(_events("conflicts"), 5 * MINUTE_S), Linear(5, 0.1, Increase(_events("committed"), 5 * MINUTE_S))),
    ),
    Alert(
        "BasaltInvalidListLong", "warning", 10 * MINUTE_S,
        "The invalid list has {value} entries, and every snapshot carries them", "count",
        Condition(Series("basalt_transactions_invalid"), 10_000),
    ),
    Alert(
        "BasaltLogLong", "warning", 5 * MINUTE_S,
        "A restart would read {value} entries of the transaction log: no snapshot of it is written", "count",
        Condition(Series("basalt_transaction_log_entries"), 200_000),
    ),
    Alert(
        "BasaltCommitsSlow", "warning", 5 * MINUTE_S,
        "One commit in a hundred takes {value} or longer", "seconds",
        Condition(Quantile(0.99, "basalt_transaction_commit_seconds", 5 * MINUTE_S), 0.5),
    ),
    Alert(
        "BasaltLogAway", "critical", MINUTE_S,
        "No transaction can be decided: the log of transactions cannot be read or written. Publishing goes on", "count",
        Condition(Series("basalt_coordinator_available"), 1, below=True),
    ),
    Alert(
        "BasaltRunFenced", "info", 0,
        "{value} calls within 5 minutes came from a run that another run of its session has replaced", "count",
        Condition(Increase(Series("basalt_http_problems_total", {"code": "session_fenced"}), 5 * MINUTE_S), 0),
    ),
    Alert(
        "BasaltForcedEnd", "info", 0,
        "{value} transactions were ended by hand within an hour", "count",
        Condition(Increase(_events("forced"), HOUR_S), 0),
    ),
)  # fmt: skip

_SERVERS = (
    Alert(
        "BasaltServerDown", "critical", MINUTE_S,
        "{instance} does not answer Prometheus", "count", elsewhere='up{job="basalt"} == 0',
    ),
    Alert(
        "BasaltNoLeader", "critical", MINUTE_S,
        "None of the servers on one store leads: nothing is served", "count", elsewhere="sum by (job) (basalt_leader) == 0",
    ),
    Alert(
        "BasaltTwoLeaders", "critical", MINUTE_S,
        "{value} servers on one store say that they lead; the store takes writes of one of them", "count",
        elsewhere="sum by (job) (basalt_leader) > 1",
    ),
    Alert(
        "BasaltStandbyMissing", "warning", 10 * MINUTE_S,
        "Fewer servers are live than cluster.servers_min says, by {value}", "count",
        Condition(Series("basalt_cluster_servers_missing"), 0),
    ),
    Alert(
        "BasaltShardsUnowned", "critical", TWO_LEASES_S,
        "Nobody serves {value} of the shards: their owner is no member any more", "count",
        Condition(Series("basalt_cluster_shards_unowned"), 0),
    ),
    Alert(
        "BasaltEventLoopLags", "warning", 5 * MINUTE_S,
        "The event loop stood still for up to {value}, in each of the last minutes", "seconds",
        Condition(Series("basalt_event_loop_lag_max_seconds"), 0.5),
    ),
    Alert(
        "BasaltDiskFull", "critical", 5 * MINUTE_S,
        "{value} of the data directory's disk is free", "share",
        Condition(Quotient(Series("basalt_store_disk_free_bytes"), Series("basalt_store_disk_bytes")), 0.1, below=True),
    ),
    Alert(
        "BasaltWritesStopped", "critical", MINUTE_S,
        "RocksDB lets nobody write: compaction or the disk is behind", "count",
        Condition(Series("basalt_store_write_stopped"), 0),
    ),
    Alert(
        "BasaltServerFails", "warning", 0,
        "{value} calls within 5 minutes failed for a fault of the server or its store: {code}", "count",
        Condition(Increase(Series("basalt_http_problems_total", among={"code": FAULTS}), 5 * MINUTE_S), 0),
    ),
    Alert(
        "BasaltJobFails", "warning", 0,
        "The job {name} has failed {value} times in a row", "count",
        Condition(Series("basalt_job_failures"), 2),
    ),
    Alert(
        "BasaltGroupLags", "warning", 5 * MINUTE_S,
        "The group {group} of {namespace}/{topic} is behind: its oldest message has waited for {value}", "seconds",
        Condition(Series("basalt_group_lag_seconds"), 600),
    ),
    Alert(
        "BasaltMessagesParked", "warning", 0,
        "{value} messages of the group {group} of {namespace}/{topic} are parked: they failed too often, and no topic takes them", "count",
        Condition(Series("basalt_group_unacknowledged", {"state": "parked"}), 0),
    ),
)  # fmt: skip

_PRUNING = (
    Alert(
        "BasaltRegionSnapshotOld", "warning", MINUTE_S,
        "Region servers go by a snapshot that is {value} old", "seconds",
        Condition(Series("basalt_region_snapshot_age_seconds"), 300),
    ),
    Alert(
        "BasaltPruneHeld", "warning", 6 * HOUR_S,
        "{value} failed writers could not be forgotten, though their lifetime is over", "count",
        Condition(Series("basalt_prune_held_writers"), 1_000),
    ),
    Alert(
        "BasaltCoprocessorOld", "warning", HOUR_S,
        "{region_server} runs version {version} of the coprocessor, which is older than this server", "count",
        Condition(Series("basalt_coprocessor_jar", {"state": "older"}), 0),
    ),
)  # fmt: skip

_ACCESS = (
    Alert(
        "BasaltCertificateEnds", "warning", MINUTE_S,
        "The server's certificate ends in {value}", "seconds",
        Condition(Until(Series("basalt_tls_certificate_not_after_seconds")), 14 * DAY_S, below=True),
    ),
    Alert(
        "BasaltCertificateRefused", "warning", 0,
        "New files of the certificate, its key or its CAs are no good: the old ones are in force", "count",
        Condition(Increase(Series("basalt_tls_reloads_total", {"outcome": "failed"}), 5 * MINUTE_S), 0),
    ),
    Alert(
        "BasaltPolicyStale", "critical", MINUTE_S,
        "Tokens and grants were last read {value} ago; beyond a minute nobody new is let in", "seconds",
        Condition(Series("basalt_policy_age_seconds"), 30),
    ),
    Alert(
        "BasaltKeysStale", "warning", MINUTE_S,
        "The identity provider's keys were last read {value} ago; beyond a day no JWT counts", "seconds",
        Condition(Series("basalt_jwks_age_seconds"), HOUR_S),
    ),
    Alert(
        "BasaltRefusals", "warning", 0,
        "{value} calls within 5 minutes were refused for want of a right, or would be", "count",
        Condition(Increase(Series("basalt_refused_total"), 5 * MINUTE_S, without=("verb", "kind")), 20),
    ),
)  # fmt: skip

ALERTS: tuple[Alert, ...] = (*_SERVERS, *_TRANSACTIONS, *_PRUNING, *_ACCESS)


def windows_s(alerts: Sequence[Alert] = ALERTS) -> dict[str, int]:
    """The series that their conditions ask about over time, and the longest of the times of each."""
    longest: dict[str, int] = {}
    for alert in alerts:
        for name, window_s in ({} if alert.condition is None else alert.condition.windows_s()).items():
            longest[name] = max(window_s, longest.get(name, 0))
    return longest


def sentence(alert: Alert, labels: Mapping[str, str], value: float) -> str:
    """The alert's text about these values."""
    words = {**labels, "value": value_text(value, alert.unit)}
    return WORDS_OF_VALUE.sub(lambda word: words.get(word[1], "?"), alert.text)


def value_text(value: float, unit: Unit) -> str:
    """A value with its unit, to be read by people."""
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "count":
        return f"{round(value):,}"
    if abs(value) < 1:
        return f"{1_000 * value:.0f} ms"
    for size_s, name in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if abs(value) >= 2 * size_s:
            return f"{value / size_s:.0f} {name}"
    return f"{value:.0f} s"
