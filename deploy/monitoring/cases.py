"""For each alert a case in which it fires and one in which it must not, in the words of `promtool test rules`: `0+2x40` rises by 2 forty times.

A case that must not fire is close to the bound, and not an empty one: an alert that can never fire would pass that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERY_S = 30  # between two samples
HERE = {"instance": "a:4780", "job": "basalt"}


@dataclass(frozen=True, slots=True)
class Case:
    """Series by which an alert fires at this time, with these labels and this value in its text; and some by which it does not."""

    at: str
    fires: dict[str, str]
    quiet: dict[str, str]
    shown: str
    labels: Mapping[str, str]


def _series(metric: str, /, **labels: str) -> str:
    pairs = ", ".join(f'{key}="{value}"' for key, value in {**HERE, **labels}.items())
    return f"{metric}{{{pairs}}}"


def _one(metric: str, at: str, fires: str, quiet: str, shown: str, /, **labels: str) -> Case:
    """A case of one series, whose labels the alert has."""
    series = _series(metric, **labels)
    return Case(at, {series: fires}, {series: quiet}, shown, {**HERE, **labels})


def _risen(metric: str, at: str, fires: str, quiet: str, shown: str, /, **labels: str) -> Case:
    """A case of one counter, whose labels are summed up."""
    series = _series(metric, **labels)
    return Case(at, {series: fires}, {series: quiet}, shown, HERE)


def _events(at: str, shown: str, fires: Mapping[str, str], quiet: Mapping[str, str]) -> Case:
    def both(values: Mapping[str, str]) -> dict[str, str]:
        return {_series("basalt_transactions_total", event=event): rising for event, rising in values.items()}

    return Case(at, both(fires), both(quiet), shown, HERE)


def _leaders(at: str, fires: tuple[str, ...], quiet: tuple[str, ...], shown: str) -> Case:
    def of(values: tuple[str, ...]) -> dict[str, str]:
        return {
            f'basalt_leader{{instance="{name}:4780", job="basalt"}}': each
            for name, each in zip("ab", values, strict=False)
        }

    return Case(at, of(fires), of(quiet), shown, {"job": "basalt"})


def _commits(fast: str, slow: str) -> dict[str, str]:
    buckets = {"0.25": fast, "0.5": fast, "1.0": slow, "+Inf": slow}
    return {_series("basalt_transaction_commit_seconds_bucket", le=le): values for le, values in buckets.items()}


_DISK = tuple(_series(f"basalt_store_disk{name}_bytes") for name in ("_free", ""))
_GROUP = {"namespace": "shop", "topic": "orders", "group": "billing"}

CASES: dict[str, Case] = {
    "BasaltServerDown": _one("up", "3m", "1 0x10", "1 0 1x10", ""),
    "BasaltNoLeader": _leaders("3m", ("1 0x10", "0x10"), ("1 0x10", "0 1x10"), ""),
    "BasaltTwoLeaders": _leaders("3m", ("1x10", "0 1x10"), ("1x10", "0 1 0x10"), "2"),
    "BasaltStandbyMissing": _one("basalt_cluster_servers_missing", "20m", "0x5 1x60", "1x19 0 1x60", "1"),
    "BasaltShardsUnowned": _one("basalt_cluster_shards_unowned", "2m", "0 512x10", "0 512 0x10", "512"),
    "BasaltEventLoopLags": _one("basalt_event_loop_lag_max_seconds", "10m", "0.6x30", "0.6x12 0.4 0.6x20", "600ms"),
    "BasaltDiskFull": Case(
        "10m", {_DISK[0]: "8x30", _DISK[1]: "100x30"}, {_DISK[0]: "11x30", _DISK[1]: "100x30"}, "8%", HERE
    ),
    "BasaltWritesStopped": _one("basalt_store_write_stopped", "3m", "0 1x10", "0 1 0x10", ""),
    "BasaltServerFails": _one("basalt_http_problems_total", "10m", "0x10 2x20", "2x30", "2", code="internal"),
    "BasaltJobFails": _one("basalt_job_failures", "5m", "3x10", "2x10", "3", name="prune"),
    "BasaltGroupLags": _one("basalt_group_lag_seconds", "10m", "900x30", "600x30", "15m 0s", **_GROUP),
    "BasaltMessagesParked": _one("basalt_group_unacknowledged", "5m", "4x10", "0x10", "4", **_GROUP, state="parked"),
    "BasaltReadersHeldBack": _one("basalt_transactions_oldest_blocking_seconds", "4m", "30 60 90+30x10", "0 30 60 90 0x10", "4m 30s"),
    "BasaltTransactionHangs": _one("basalt_transactions_oldest_ratio", "3m", "0.6x10", "0.5x10", "60%"),
    "BasaltRollBackFails": _one("basalt_transactions_live", "10m", "2x30", "2x12 0 2x30", "2", state="aborting"),
    "BasaltTransactionsTimeOut": _events(
        "30m", "60", {"timed_out": "0+2x80", "begun": "0+10x80"}, {"timed_out": "0+2x80", "begun": "0+40x80"}
    ),
    "BasaltConflicts": _events(
        "20m", "50", {"conflicts": "0+5x80", "committed": "0+10x80"}, {"conflicts": "0+5x80", "committed": "0+50x80"}
    ),
    "BasaltInvalidListLong": _one("basalt_transactions_invalid", "15m", "12000x40", "10000x40", "12k"),
    "BasaltLogLong": _one("basalt_transaction_log_entries", "10m", "250000x30", "200000x30", "250k"),
    "BasaltCommitsSlow": Case("15m", _commits("0x40", "0+10x40"), _commits("0+1000x40", "0+1001x40"), "995ms", HERE),
    "BasaltLogAway": _one("basalt_coordinator_available", "3m", "1 0x10", "1 0 1x10", ""),
    "BasaltRunFenced": _risen("basalt_http_problems_total", "10m", "0+1x30", "7x30", "10", code="session_fenced"),
    "BasaltForcedEnd": _risen("basalt_transactions_total", "2h", "0+1x300", "5x300", "120", event="forced"),
    "BasaltRegionSnapshotOld": _one("basalt_region_snapshot_age_seconds", "5m", "360x20", "300x20", "6m 0s"),
    "BasaltCoprocessorOld": _one(
        "basalt_coprocessor_jar", "2h", "1x300", "1x100 _x20 1x100", "", region_server="rs1:16020", version="0.0.9", state="older"
    ),
    "BasaltPruneHeld": _one("basalt_prune_held_writers", "7h", "2000x900", "2000x400 1000 2000x500", "2k"),
    "BasaltCertificateEnds": _one("basalt_tls_certificate_not_after_seconds", "5m", "864300x20", "1209900x20", "10d 0h 0m 0s"),
    "BasaltCertificateRefused": _risen("basalt_tls_reloads_total", "10m", "0+1x30", "3x30", "10", outcome="failed"),
    "BasaltPolicyStale": _one("basalt_policy_age_seconds", "5m", "45x20", "30x20", "45s"),
    "BasaltKeysStale": _one("basalt_jwks_age_seconds", "5m", "5400x20", "3600x20", "1h 30m 0s"),
    "BasaltRefusals": Case(
        "10m",
        {_series("basalt_refused_total", verb=verb, kind="topic"): "0+2x30" for verb in ("read", "write")},
        {_series("basalt_refused_total", verb=verb, kind="topic"): "0+1x30" for verb in ("read", "write")},
        "40",
        HERE,
    ),
}  # fmt: skip
