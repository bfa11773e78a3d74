"""Grafana's dashboards: a table of panels, and the classic JSON model made of it. Data source and instances are variables of each dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

# Of Grafana: seconds, 0.0 to 1.0, bytes, operations and bytes a second, a plain number, and a time in milliseconds since 1970.
Unit: TypeAlias = Literal["s", "percentunit", "bytes", "ops", "Bps", "short", "dateTimeFromNow"]
Kind: TypeAlias = Literal["timeseries", "stat"]

COLUMNS = 24  # of Grafana's grid
HEIGHTS: dict[Kind, int] = {"timeseries": 8, "stat": 4}
SCHEMA_VERSION = 39  # of Grafana 10; later ones read it, too
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. `queries` are expressions, each with its legend; `$i` in them chooses the instances."""

    title: str
    text: str
    queries: Sequence[tuple[str, str]]
    unit: Unit = "short"
    kind: Kind = "timeseries"
    width: int = 8


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard, and the metric whose instances it lets choose."""

    uid: str
    title: str
    chosen_by: str
    panels: Sequence[Panel]

    @property
    def file_name(self) -> str:
        return f"grafana-{self.uid.removeprefix('basalt-')}.json"


HERE = 'instance=~"$instance"'
RANGE = "$__rate_interval"


def _rate(metric: str, by: str = "instance", labels: str = "") -> str:
    chosen = f"{HERE}, {labels}" if labels else HERE
    return f"sum by ({by}) (rate({metric}{{{chosen}}}[{RANGE}]))"


def _p(quantile: float, histogram: str, by: str = "instance") -> str:
    return f"histogram_quantile({quantile}, sum by ({by}, le) (rate({histogram}_bucket{{{HERE}}}[{RANGE}])))"


def _now(metric: str, labels: str = "") -> str:
    return f"{metric}{{{HERE}, {labels}}}" if labels else f"{metric}{{{HERE}}}"


def _both(histogram: str, by: str = "instance", legend: str = "{{instance}}") -> list[tuple[str, str]]:
    return [(_p(quantile, histogram, by), f"p{round(100 * quantile)} {legend}") for quantile in (0.5, 0.99)]


OVERVIEW = Dashboard("basalt-overview", "Basalt: overview", "basalt_event_loop_lag_max_seconds", (
    Panel("Alerts that fire", "Of the shipped rules.", [('count(ALERTS{alertname=~"Basalt.*", alertstate="firing"}) or vector(0)', "alerts")], kind="stat", width=4),
    Panel("Servers that answer", "As Prometheus sees them.", [('sum(up{job="basalt", instance=~"$instance"})', "servers")], kind="stat", width=4),
    Panel("Published", "Messages appended to topics.", [(_rate("basalt_published_messages_total", "job"), "")], "ops", "stat", 4),
    Panel("Disk free", "Of the data directory's disk; the least of all.", [("min(" + _now("basalt_store_disk_free_bytes") + " / " + _now("basalt_store_disk_bytes") + ")", "")], "percentunit", "stat", 4),
    Panel("Oldest transaction", "Age of the oldest that has not ended.", [("max(" + _now("basalt_transactions_oldest_seconds") + ")", "")], "s", "stat", 4),
    Panel("Worst lag of a group", "Age of the oldest message that a group has not acknowledged.", [("max(" + _now("basalt_group_lag_seconds") + ") or vector(0)", "")], "s", "stat", 4),
    Panel("Messages", "Published, and got by readers.", [(_rate("basalt_published_messages_total"), "published {{instance}}"), (_rate("basalt_fetched_messages_total"), "read {{instance}}")], "ops"),
    Panel("Bytes", "Of their payloads.", [(_rate("basalt_published_bytes_total"), "published {{instance}}"), (_rate("basalt_fetched_bytes_total"), "read {{instance}}")], "Bps"),
    Panel("Busiest topics", "Messages published, of the ten busiest topics that have series.", [("topk(10, " + _rate("basalt_topic_published_messages_total", "namespace, topic") + ")", "{{namespace}}/{{topic}}")], "ops"),
    Panel("Requests", "By class of their status.", [(_rate("basalt_http_request_duration_seconds_count", "status"), "{{status}}")], "ops"),
    Panel("Time of requests", "Half of them, and all but one in a hundred, were answered within this time.", _both("basalt_http_request_duration_seconds"), "s"),
    Panel("Problems", "Calls that were refused or failed, by error code.", [(_rate("basalt_http_problems_total", "code"), "{{code}}")], "ops"),
    Panel("Event loop lag", "The worst of the last minute: everybody waits as long.", [(_now("basalt_event_loop_lag_max_seconds"), "{{instance}}")], "s"),
    Panel("Store writes", "Mean time of one write, which all calls of a group share.", [(_rate("basalt_store_write_seconds_sum") + " / " + _rate("basalt_store_write_seconds_count"), "{{instance}}")], "s"),
    Panel("Calls in a group commit", "Mean number of calls that share a write.", [(_rate("basalt_group_commit_calls_sum") + " / " + _rate("basalt_group_commit_calls_count"), "{{instance}}")]),
    Panel("Wait for a group commit", "Of each group's first call.", _both("basalt_group_commit_wait_seconds"), "s"),
    Panel("Reads out of memory", "Share of the reads of topics for which the tail cache had the rows.", [(_rate("basalt_tail_cache_reads_total", labels='outcome="hit"') + " / " + _rate("basalt_tail_cache_reads_total"), "{{instance}}")], "percentunit"),
    Panel("Memory of caches", "The tail cache, and messages as they were answered.", [(_now("basalt_tail_cache_bytes"), "tail {{instance}}"), (_now("basalt_answers_bytes"), "answers {{instance}}")], "bytes"),
    Panel("Connections", "Of HTTP clients, long polls that wait, and pages that follow a topic.", [(_now("basalt_connections"), "connections {{instance}}"), (_now("basalt_waiting_fetches"), "waiting {{instance}}"), (_now("basalt_http_open_streams"), "streams {{instance}}")]),
    Panel("Process", "CPU: 1 is one core.", [(f"rate(process_cpu_seconds_total{{{HERE}}}[{RANGE}])", "CPU {{instance}}")]),
    Panel("Memory", "Resident.", [(_now("process_resident_memory_bytes"), "{{instance}}")], "bytes"),
    Panel("Disk", "Of the embedded store.", [(_now("basalt_store_bytes"), "{{kind}} {{instance}}"), (_now("basalt_store_pending_compaction_bytes"), "to compact {{instance}}"), (_now("basalt_store_disk_free_bytes"), "free {{instance}}")], "bytes"),
    Panel("Jobs that fail", "Runs that have failed in a row.", [(_now("basalt_job_failures") + " > 0", "{{name}} {{instance}}")]),
    Panel("Last success of jobs", "How long ago each job last ended well.", [("time() - " + _now("basalt_job_last_success_timestamp_seconds"), "{{name}} {{instance}}")], "s"),
    Panel("Refused", "For want of a right, for a quota, for a credential.", [(_rate("basalt_refused_total", "verb"), "no right to {{verb}}"), (_rate("basalt_throttled_total", "quota"), "quota {{quota}}"), (_rate("basalt_authentications_total", "kind", 'outcome="refused"'), "credential {{kind}}")], "ops"),
))  # fmt: skip

TRANSACTIONS = Dashboard("basalt-transactions", "Basalt: transactions", "basalt_transactions_in_progress", (
    Panel("Oldest", "Age of the oldest that has not ended.", [("max(" + _now("basalt_transactions_oldest_seconds") + ")", "")], "s", "stat", 6),
    Panel("Oldest that holds readers back", "Age of the oldest at whose rows readers of committed messages wait.", [("max(" + _now("basalt_transactions_oldest_blocking_seconds") + ")", "")], "s", "stat", 6),
    Panel("Invalid list", "Failed writers that are not forgotten yet.", [("max(" + _now("basalt_transactions_invalid") + ")", "")], kind="stat", width=6),
    Panel("In progress", "Write pointers.", [("sum(" + _now("basalt_transactions_in_progress") + ")", "")], kind="stat", width=6),
    Panel("Events", "What happened to transactions.", [(_rate("basalt_transactions_total", "event"), "{{event}}")], "ops"),
    Panel("Time of commits", "From a commit's call to its durability.", _both("basalt_transaction_commit_seconds"), "s"),
    Panel("Share that conflicts", "Conflicts for each commit.", [(_rate("basalt_transactions_total", labels='event="conflicts"') + " / " + _rate("basalt_transactions_total", labels='event="committed"'), "{{instance}}")], "percentunit"),
    Panel("Live", "Those that have not ended.", [(f"sum by (state) ({_now('basalt_transactions_live')})", "{{state}}")]),
    Panel("Ages", "As a share of the longest time-out of their kind, and in seconds.", [(_now("basalt_transactions_oldest_ratio"), "share {{instance}}")], "percentunit"),
    Panel("Time-outs and ends by hand", "Transactions ended because their time was up, and by an operator.", [(_rate("basalt_transactions_total", labels='event="timed_out"'), "timed out {{instance}}"), (_rate("basalt_transactions_total", labels='event="forced"'), "by hand {{instance}}")], "ops"),
    Panel("Invalid list over time", "Its length, and those that the last prune run could not forget.", [(_now("basalt_transactions_invalid"), "invalid {{instance}}"), (_now("basalt_prune_held_writers"), "held {{instance}}")]),
    Panel("Pruned", "Failed writers that were forgotten.", [(_rate("basalt_pruned_writers_total"), "{{instance}}")], "ops"),
    Panel("Transaction log", "Entries behind its newest snapshot: what a start would read.", [(_now("basalt_transaction_log_entries"), "{{instance}}")]),
    Panel("Its bytes", "Of these entries.", [(_now("basalt_transaction_log_bytes"), "{{instance}}")], "bytes"),
    Panel("Sessions", "Named sessions that are remembered.", [(_now("basalt_sessions"), "{{instance}}")]),
    Panel("Fenced runs", "Calls of runs that another run has replaced.", [(_rate("basalt_http_problems_total", labels='code="session_fenced"'), "{{instance}}")], "ops"),
))  # fmt: skip

HBASE = Dashboard("basalt-hbase", "Basalt: HBase", "basalt_hbase_connections_max", (
    Panel("Leads", "1 on the server that leads.", [(_now("basalt_leader"), "{{instance}}")], kind="stat", width=8),
    Panel("Age of the lease", "Since when its record is as it is.", [(_now("basalt_leader_lease_age_seconds"), "{{instance}}")], "s", "stat", 8),
    Panel("Age of the region snapshot", "What region servers go by.", [(_now("basalt_region_snapshot_age_seconds"), "{{instance}}")], "s", "stat", 8),
    Panel("Calls", "Of HBase's gateway, by method; each try counts.", [(_rate("basalt_hbase_calls_total", "pool, method"), "{{pool}} {{method}}")], "ops"),
    Panel("Time of calls", "Of each try.", _both("basalt_hbase_call_seconds", "pool", "{{pool}}"), "s"),
    Panel("Calls that failed", "Refused by HBase, or their connection was lost.", [(_rate("basalt_hbase_calls_total", "pool, outcome", 'outcome!="answered"'), "{{pool}} {{outcome}}")], "ops"),
    Panel("Connections lent", "As a share of those that the pool may have.", [(f"sum without (state) ({_now('basalt_hbase_connections', 'state=' + chr(34) + 'lent' + chr(34))}) / {_now('basalt_hbase_connections_max')}", "{{pool}} {{instance}}")], "percentunit"),
    Panel("Waits for a connection", "Calls for which none was free at once.", [(_rate("basalt_hbase_connection_waits_total", "pool"), "{{pool}}")], "ops"),
    Panel("Store writes", "Mean time of one group's write.", [(_rate("basalt_store_write_seconds_sum") + " / " + _rate("basalt_store_write_seconds_count"), "{{instance}}")], "s"),
    Panel("Rows dropped", "By coprocessors, and why; as the reports of regions tell it every ten minutes.", [(_rate("basalt_coprocessor_counts_total", "count", 'count=~"rowsDropped.*"'), "{{count}}")], "ops"),
    Panel("Writes refused", "By coprocessors: of former leaders, and of writers whose time is over.", [(_rate("basalt_coprocessor_counts_total", "count", 'count=~"writes.*"'), "{{count}}")], "ops"),
    Panel("Faults of coprocessors", "Hooks that did nothing, and refreshes that failed.", [(_rate("basalt_coprocessor_counts_total", "region_server, count", 'count=~"hookFailures|refreshFailures"'), "{{count}} {{region_server}}")], "ops"),
    Panel("Age of region reports", "The oldest of each region server.", [(_now("basalt_region_report_age_seconds"), "{{region_server}}")], "s"),
    Panel("Epoch", "It rises with each change of the leader.", [(_now("basalt_leader_epoch"), "{{instance}}")]),
    Panel("Terms", "How often a server has taken the lead.", [(_now("basalt_leader_terms_total"), "{{instance}}")]),
    Panel("Shards", "By the state of their owner, as each server sees it: nobody serves those of one that is dead.", [(_now("basalt_cluster_shards"), "{{state}} {{instance}}")]),
    Panel("Map of owners", "The version that each server knows: it rises with each grant.", [(_now("basalt_cluster_map_version"), "{{instance}}")]),
))  # fmt: skip

GROUPS = Dashboard("basalt-groups", "Basalt: consumer groups", "basalt_groups", (
    Panel("Groups", "Of all topics.", [("sum(" + _now("basalt_groups") + ")", "")], kind="stat", width=6),
    Panel("Worst lag", "Age of the oldest message that is not acknowledged.", [("max(" + _now("basalt_group_lag_seconds") + ") or vector(0)", "")], "s", "stat", 6),
    Panel("Messages behind", "Of all groups that have series.", [("sum(" + _now("basalt_group_lag_messages") + ") or vector(0)", "")], kind="stat", width=6),
    Panel("Parked", "Messages that failed too often, and that no topic takes.", [("sum(" + _now("basalt_group_unacknowledged", 'state="parked"') + ") or vector(0)", "")], kind="stat", width=6),
    Panel("Lag in time", "Of the ten worst.", [("topk(10, max by (namespace, topic, group) (" + _now("basalt_group_lag_seconds") + "))", "{{namespace}}/{{topic}} {{group}}")], "s", width=12),
    Panel("Lag in messages", "Of the ten worst.", [("topk(10, max by (namespace, topic, group) (" + _now("basalt_group_lag_messages") + "))", "{{namespace}}/{{topic}} {{group}}")], width=12),
    Panel("Acknowledged", "Of the ten busiest.", [("topk(10, " + _rate("basalt_group_acknowledged_total", "namespace, topic, group") + ")", "{{namespace}}/{{topic}} {{group}}")], "ops", width=12),
    Panel("Dealt", "Messages given to members.", [("topk(10, " + _rate("basalt_group_fetched_total", "namespace, topic, group") + ")", "{{namespace}}/{{topic}} {{group}}")], "ops", width=12),
    Panel("Came back", "Unacknowledged, and why.", [(_rate("basalt_group_returned_total", "reason"), "{{reason}}")], "ops"),
    Panel("Dead letters", "Messages that failed too often and were moved.", [(_rate("basalt_group_dead_lettered_total", "namespace, topic, group"), "{{namespace}}/{{topic}} {{group}}")], "ops"),
    Panel("Conflicts", "Acknowledgements that were refused, for another had the message.", [(_rate("basalt_group_conflicts_total", "namespace, topic, group"), "{{namespace}}/{{topic}} {{group}}")], "ops"),
    Panel("Not acknowledged", "Messages that were dealt, by what they wait for.", [(f"sum by (state) ({_now('basalt_group_unacknowledged')})", "{{state}}")]),
    Panel("Members", "Heard of within their lease.", [("topk(10, " + _now("basalt_group_members") + ")", "{{namespace}}/{{topic}} {{group}}")]),
    Panel("Pieces", "In which what is acknowledged lies; many mean that it is done far out of order.", [("topk(10, " + _now("basalt_group_spans") + ")", "{{namespace}}/{{topic}} {{group}}")]),
))  # fmt: skip

DASHBOARDS = (OVERVIEW, TRANSACTIONS, HBASE, GROUPS)


def model(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["basalt"],
        "editable": True,
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": list(_variables(dashboard))},
        "annotations": {"list": []},
        "links": [
            {"type": "dashboards", "title": "Basalt", "tags": ["basalt"], "asDropdown": True, "keepTime": True, "includeVars": True}
        ],
        "panels": list(_placed(dashboard.panels)),
    }  # fmt: skip


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    yield {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": {"query": f"label_values({dashboard.chosen_by}, instance)", "refId": "instance"},
        "refresh": 2,  # also when the time range changes: an instance may have gone
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    """The panels from left to right; a new row where one does not fit, or is of another height."""
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > COLUMNS or (x and height != HEIGHTS[panel.kind]):
            x, y = 0, y + height
        height = HEIGHTS[panel.kind]
        yield _panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": height})
        x += panel.width


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": DATA_SOURCE, "expr": expression, "legendFormat": legend or panel.title}
        for index, (expression, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }
