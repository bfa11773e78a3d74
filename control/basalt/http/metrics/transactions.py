"""What Prometheus is told of transactions. docs/reference/metrics.md; what to alert on: docs/operations/transactions.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from basalt.errors import BasaltError
from basalt.http.metrics.series import gauge
from basalt.services import Services
from basalt.transactions.rules.states import State

LIVE = (State.OPEN, State.COMMITTING, State.ABORTING)


def transaction_series(services: Services) -> Iterator[Metric]:
    """Every series there is of them. The gauges are left out while the manager reads its log."""
    transactions = services.transactions
    totals = transactions.totals
    events = CounterMetricFamily("basalt_transactions", "Transactions by what happened to them", labels=("event",))
    for event, count in totals.events.items():
        events.add_metric((event,), count)
    yield events
    commits = HistogramMetricFamily("basalt_transaction_commit_seconds", "Time from a commit's call to its durability")
    commits.add_metric((), totals.commits.buckets(), totals.commits.sum_s)
    yield commits
    entries, entry_bytes = transactions.manager.log_length
    yield gauge("basalt_transaction_log_entries", "Entries behind the log's newest snapshot", entries)
    yield gauge("basalt_transaction_log_bytes", "Bytes of those entries", entry_bytes)
    yield gauge("basalt_transaction_journal_edits", "Edits kept for timelines", transactions.journal.weight)
    try:
        yield from _gauges(services)
    except BasaltError:  # it reads its log; they come back with it
        return


def _gauges(services: Services) -> Iterator[Metric]:
    state = services.transactions.state
    listed = state.transactions()
    now_ms = services.clock.now_ms()
    live = [transaction for transaction in listed if not transaction.was_invalid]
    counts = Counter(transaction.state for transaction in listed)
    by_state = GaugeMetricFamily("basalt_transactions_live", "Transactions that have not ended", labels=("state",))
    for each in LIVE:
        by_state.add_metric((each.name.lower(),), counts[each])
    yield by_state
    yield gauge("basalt_transactions_in_progress", "Write pointers in progress", state.in_progress_count)
    yield gauge("basalt_transactions_invalid", "Entries of the invalid list", len(state.invalid))
    yield gauge("basalt_sessions", "Named sessions that are remembered", len(state.sessions.known()))
    oldest_ms = min((transaction.began_ms for transaction in live), default=now_ms)
    yield gauge(
        "basalt_transactions_oldest_seconds", "Age of the oldest that has not ended", (now_ms - oldest_ms) / 1_000
    )
    blocking = [transaction.began_ms for transaction in live if services.blocking.surely(transaction)]
    text = "Age of the oldest at whose rows readers of committed messages wait"
    yield gauge("basalt_transactions_oldest_blocking_seconds", text, (now_ms - min(blocking, default=now_ms)) / 1_000)
