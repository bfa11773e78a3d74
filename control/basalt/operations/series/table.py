"""The figures whose history a server keeps: one table, from which the rings, the API, its documentation and the console's charts are made.

What is counted and looked at, by the names in `source`, is in `basalt.http.sampler`. docs/operations/history.md.
"""

from __future__ import annotations

from basalt.operations.series.series import Figure

PER_S, BYTES_PER_S, SECONDS, BYTES, COUNT, PART = "1/s", "B/s", "s", "B", "", "%"


def _rates() -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{source}_per_s", BYTES_PER_S if source.endswith("_bytes") else PER_S, "rate", source, text)
        for source, text in (
            ("requests", "Requests that were answered"),
            ("problems", "Requests that were refused or failed"),
            ("publishes", "Calls that publish or store messages"),
            ("fetches", "Calls that read messages, and fetches of groups"),
            ("begun", "Transactions that began, without one-shots"),
            ("commits", "Transactions that were committed, with one-shots"),
            ("aborts", "Transactions that were aborted"),
            ("one_shots", "One-shot transactions"),
            ("invalidated", "Transactions that were given up: their rows stay hidden"),
            ("conflicts", "Transactions that lost a conflict"),
            ("timed_out", "Transactions that were ended because their time was up"),
            ("messages_in", "Messages that were appended to topics"),
            ("messages_in_bytes", "Bytes of their payloads"),
            ("messages_out", "Messages that readers got"),
            ("messages_out_bytes", "Bytes of their payloads"),
            ("duplicates", "Publishes of producers that were there already"),
            ("throttled", "Calls that were refused for a quota"),
            ("refused", "Calls that were refused for want of a right, or would be"),
            ("connections_refused", "Connections that were closed at once"),
            ("store_writes", "Writes of the store: one for each group of calls"),
            ("jobs_failed", "Runs of jobs that failed"),
        )
    )


def _latencies() -> tuple[Figure, ...]:
    texts = {
        "publish": "Time of a publish, from its head to its answer",
        "fetch": "Time of a fetch, with the time that it waited for a message",
        "commit": "Time from a commit's call to its durability",
    }
    return (
        *(Figure(f"{source}_p50_s", SECONDS, "p50", source, f"{text}: median") for source, text in texts.items()),
        *(Figure(f"{source}_p99_s", SECONDS, "p99", source, f"{text}: 99 of 100") for source, text in texts.items()),
    )


_GAUGES = (
    Figure("open", COUNT, "most", "open", "Transactions that have not ended"),
    Figure(
        "hanging", COUNT, "most", "hanging", "Of the oldest 200 of them: those that hold readers back, or take long"
    ),
    Figure("invalid", COUNT, "most", "invalid", "Entries of the invalid list"),
    Figure("oldest_open_s", SECONDS, "most", "oldest_open_s", "Age of the oldest transaction that has not ended"),
    Figure("oldest_blocking_s", SECONDS, "most", "oldest_blocking_s", "Age of the oldest at whose rows readers wait"),
    Figure("prune_bound_s", SECONDS, "most", "prune_bound_s", "Age of the oldest writer of the invalid list"),
    Figure("prune_held", COUNT, "most", "prune_held", "Failed writers that the last prune run could not forget"),
    Figure("sessions", COUNT, "most", "sessions", "Named sessions that are remembered"),
    Figure("producers", COUNT, "most", "producers", "Producers whose last numbers are in memory"),
    Figure("groups", COUNT, "most", "groups", "Consumer groups"),
    Figure("worst_lag_messages", COUNT, "most", "worst_lag_messages", "Lag of the group that has most messages to go"),
    Figure(
        "worst_lag_s", SECONDS, "most", "worst_lag_s", "Age of the oldest message that a group has not acknowledged"
    ),
    Figure("waiting_fetches", COUNT, "mean", "waiting_fetches", "Long polls that wait for a message"),
    Figure("connections", COUNT, "mean", "connections", "Connections of HTTP clients"),
    Figure("write_queue_bytes", BYTES, "most", "write_queue_bytes", "Bytes of calls that wait to be written"),
    Figure("answers_bytes", BYTES, "most", "answers_bytes", "Bytes of messages kept as they were answered"),
    Figure("log_bytes", BYTES, "most", "log_bytes", "Bytes of the transaction log behind its newest snapshot"),
    Figure("store_bytes", BYTES, "most", "store_bytes", "Size of the embedded store's files"),
    Figure("disk_free_bytes", BYTES, "least", "disk_free_bytes", "Free space on the disk of the data directory"),
    Figure("cpu_percent", PART, "rate", "cpu_percent", "Processor time of the server: 100 is one core"),
    Figure("memory_bytes", BYTES, "most", "memory_bytes", "Memory of the server that is in use"),
    Figure(
        "loop_lag_s",
        SECONDS,
        "most",
        "loop_lag_s",
        "By how much timers of the event loop were late: the worst of four a second",
    ),
)

FIGURES = (*_rates(), *_latencies(), *_GAUGES)
