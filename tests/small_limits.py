"""The product's limits, so small that a simulation, or some clients of a real server, cross each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

from basalt.commits.owning import owner
from basalt.messaging import index, markers, ranges, topic_stats
from basalt.messaging.log import merged_rows, roll_back, stored_log, tails
from basalt.messaging.log.topic_log import LogLimits
from basalt.messaging.read import first_unstable, log_reader
from basalt.pruning import prune
from basalt.retention import expired, garbage, job
from basalt.runtime import group_commit
from basalt.server import process, wiring
from basalt.tables import garbage_cells, tables
from basalt.transactions.log import snapshot_format
from basalt.transactions.rules import session_rules, transaction, transaction_proposals
from basalt_engine import snapshot
from basalt_engine.cells import table
from basalt_engine.stores import memory

# What is done together, read together, passed together or remembered has room for two or three.
SMALL: tuple[tuple[ModuleType, dict[str, Any]], ...] = (
    (owner, {"REMOVED_TOGETHER_MAX": 2}),
    (expired, {"GROUP_TOPICS": 2, "OLD_TOPICS_MAX": 2, "PAYLOAD_LOOKS_MAX": 2, "TOPICS_REMEMBERED_MAX": 2}),
    (first_unstable, {"ROWS_MAX": 2}),
    (garbage, {"GROUP_ROWS": 2, "NOTES_MAX": 2, "ROWS_MAX": 3}),
    (garbage_cells, {"TABLES_REMEMBERED_MAX": 2}),
    (group_commit, {"GROUP_BYTES_MAX": 1_500}),
    (index, {"BLOCK_MESSAGES": 2, "BLOCK_SKIPPED_MAX": 2, "BUCKETS_MAX": 3}),
    (job, {"TOPICS_PAGE": 2}),
    (log_reader, {"LOOK_ROWS_MAX": 2, "PAGE_ROWS": 2, "ROWS_MAX": 3}),
    (markers, {"SAVE_TOPICS_MAX": 2}),
    (memory, {"SCAN_CHUNK_ROWS": 2}),
    (merged_rows, {"MERGED_ROWS_MIN": 2, "RUNS_WAITING_MAX": 2}),
    (prune, {"EDIT_POINTERS_MAX": 2, "GONE_REPORTS_MAX": 2, "NOTES_MAX": 2}),
    (ranges, {"SCAN_ROWS_MAX": 3, "SKIPS_MAX": 2}),
    (roll_back, {"GROUP_ROWS_MAX": 2, "LOCKED_PAGES_MAX": 2}),
    (session_rules, {"FORGOTTEN_MAX": 2, "IDLE_LOOKED_AT_MAX": 2}),
    (snapshot, {"SEARCHED_MAX": 2}),
    (snapshot_format, {"PIECE_BYTES_MIN": 3}),
    (stored_log, {"PAGE_ROWS": 2}),
    (table, {"CHUNK_ROWS": 2, "FIRST_ROWS": 2, "NEAR_ROWS": 2, "PASSED_MAX": 2}),
    (tables, {"LONG_LOOKS_MAX": 2, "SHORT_ROWS_MAX": 2, "SHORT_SCANS_MAX": 2}),
    (tails, {"DEAD_ROWS_MAX": 2, "MERGED_MESSAGES_MAX": 5}),
    (topic_stats, {"LAST_ROWS_MAX": 2, "SAVE_GROUP_TOPICS": 2}),
    (transaction, {"CHUNK_POINTERS_MAX": 2}),
    (transaction_proposals, {"EXPIRED_MAX": 2}),
)
# Beyond these a caller is refused: the worlds know that, the clients of a server do not.
REFUSING: tuple[tuple[ModuleType, dict[str, Any]], ...] = (
    (transaction_proposals, {"CHECKPOINTS_MAX": 2, "TABLES_MAX": 2, "TOPICS_MAX": 2}),
)


def of_a_server() -> None:
    """Set them in this process, for good; of topic logs and writers two are remembered."""
    process.open_services = partial(wiring.open_services, memory=LogLimits(logs=2, detailed=2, writers=2))  # type: ignore[attr-defined]
    for module, limits in SMALL:
        for name, limit in limits.items():
            assert hasattr(module, name), (module, name)
            setattr(module, name, limit)


@contextmanager
def of_a_simulation() -> Iterator[None]:
    """Set all of them for a while."""
    with ExitStack() as stack:
        for module, limits in SMALL + REFUSING:
            stack.enter_context(patch.multiple(module, **limits))
        yield
