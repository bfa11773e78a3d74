"""The real command line, in a process that kills itself at a named point, or that breaks a promise on purpose.

    BASALT_KILL_AT=NAME:N   SIGKILL at the Nth pass of the point, counted from SIGUSR1 on (recovery's points: from the start)
    BASALT_BREAK=NAME       a fault that the tests must find
    BASALT_LOG_SNAPSHOT=N   the job log-snapshot finds N log entries enough
    BASALT_SMALL_LIMITS=1   what is done, read or remembered together has room for two or three

The product knows nothing of it: its methods are wrapped from outside.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ANSWER_AHEAD_S = 0.05  # how much too early the fault `answer before the write` answers
WHOLE_GROUPS = 8  # written as they should be, before `write half of a group` strikes
GROUP_PARTS_MIN = 3  # a publish alone has one


class Point(NamedTuple):
    """Just before or after a method's call. `often`: it is passed by every write."""

    module: str
    method: str
    after: bool
    often: bool = False


LOAD = {
    "before the log is written": Point("basalt_engine.stores.rocks.database", "Database.write", False, True),
    "between log and sync": Point("basalt_engine.stores.rocks.database", "Database.write", True, True),
    "between sync and mark": Point("basalt_engine.stores.rocks.database", "Database.sync", True, True),
    "between mark and answer": Point("basalt_engine.stores.rocks.store", "SyncedFile.advance", True, True),
    "behind the answer": Point("basalt.runtime.group_commit", "GroupCommit._finish", True, True),
    "before an abort is finished": Point("basalt.commits.recovery", "Recovery.roll_back", False),
    "between roll back and abort": Point("basalt.commits.owning.owner", "Owner.roll_back", True),
    "before a topic's row is changed": Point("basalt_engine.metadata", "MetadataTable.replace", False),
    "after a topic's row was changed": Point("basalt_engine.metadata", "MetadataTable.replace", True),
    "before a log snapshot": Point("basalt.commits.coordinator", "Coordinator.write_log_snapshot", False),
    "after a log snapshot": Point("basalt.commits.coordinator", "Coordinator.write_log_snapshot", True),
    "in clean-up of generations": Point("basalt.retention.expired", "OldGenerations.sweep", True),
    "in clean-up of hidden rows": Point("basalt.retention.garbage", "GarbageRows.sweep", False),
    "in clean-up of cells": Point("basalt.retention.cells", "CellVersions._remove", False),
    "after clean-up of cells": Point("basalt.retention.cells", "CellVersions._remove", True),
    "when a session is opened": Point("basalt.commits.coordinator", "SessionCalls.open", True),
    "after clean-up of hidden rows": Point("basalt.retention.garbage", "GarbageRows.sweep", True),
}
RECOVERY = {
    "before the files are checked": Point("basalt_engine.stores.rocks.store", "SyncedFile.verify", False),
    "before RocksDB recovers": Point("basalt_engine.stores.rocks.store", "SyncedFile.verify", True),
    "after RocksDB recovered": Point("basalt_engine.stores.rocks.database", "Database.check_blob_files", False),
    "after the files are noted": Point("basalt_engine.stores.rocks.store", "SyncedFile.restart", True),
    "before the transactions are read": Point(
        "basalt.transactions.log.transaction_log", "TransactionLog.recover", False
    ),
    "after the transactions are read": Point("basalt.transactions.log.transaction_log", "TransactionLog.recover", True),
}


class _Killer:
    """Counts the passes of one point."""

    def __init__(self, number: int, armed: bool) -> None:
        self.left = number
        self.armed = armed

    def arm(self, *_: object) -> None:
        self.armed = True

    def passed(self) -> None:
        if self.armed:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)  # SIGKILL needs a moment, in which nothing more may happen


def _class_of(point: Point) -> tuple[type, str]:
    class_name, method = point.method.split(".")
    return getattr(importlib.import_module(point.module), class_name), method


def _wrapped(original: Callable[..., Any], point: Point, passed: Callable[[], None]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def waiting(*arguments: Any, **options: Any) -> Any:
            if not point.after:
                passed()
            result = await original(*arguments, **options)
            if point.after:
                passed()
            return result

        return waiting

    @functools.wraps(original)
    def calling(*arguments: Any, **options: Any) -> Any:
        if not point.after:
            passed()
        result = original(*arguments, **options)
        if point.after:
            passed()
        return result

    return calling


def kill_at(name: str, number: int) -> None:
    """Have the process end at the `number`th pass of the point."""
    point = {**LOAD, **RECOVERY}[name]
    owner, method = _class_of(point)
    killer = _Killer(number, armed=name in RECOVERY)
    signal.signal(signal.SIGUSR1, killer.arm)
    setattr(owner, method, _wrapped(getattr(owner, method), point, killer.passed))


def _answer_before_the_write() -> None:
    from basalt.runtime.group_commit import Group, GroupCommit

    write = GroupCommit._write
    late: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def write_later() -> None:
        while True:
            call = late.get()
            time.sleep(ANSWER_AHEAD_S)
            call()

    threading.Thread(target=write_later, daemon=True).start()

    def put_off(commit: GroupCommit, group: Group) -> None:
        late.put(lambda: write(commit, group))

    GroupCommit._write = put_off  # type: ignore[method-assign]


def _forget_what_was_aborted() -> None:
    """An abort is answered, and neither are its rows hidden nor is its end logged."""
    from basalt.commits.coordinator import Coordinator

    commit = Coordinator.commit

    async def commit_instead(coordinator: Coordinator, transaction_id: int) -> Any:
        return await commit(coordinator, transaction_id)

    Coordinator.abort = commit_instead  # type: ignore[method-assign]


def _write_half_of_a_group() -> None:
    """What one decision writes to several rows is written in two writes, and the process dies between them."""
    from basalt_engine.stores.rocks import RocksStore
    from basalt_engine.table import TableWrite

    write = RocksStore.write
    whole = itertools.count(1)

    def halves(store: RocksStore, writes: list[TableWrite]) -> None:
        parts = [TableWrite(part.table, [mutation]) for part in writes for mutation in part.mutations]
        if len(parts) >= GROUP_PARTS_MIN and next(whole) == WHOLE_GROUPS:
            write(store, parts[: len(parts) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write(store, writes)

    RocksStore.write = halves  # type: ignore[method-assign,assignment]


def _forget_request_ids() -> None:
    """A repeated one-shot transaction is done again."""
    from basalt.transactions.rules.transaction_proposals import TransactionProposals

    begin = TransactionProposals.begin_committed

    def anew(state: TransactionProposals, now_ms: int, owner: str = "", request_id: str | None = None) -> Any:
        return begin(state, now_ms, owner, None)

    TransactionProposals.begin_committed = anew  # type: ignore[method-assign]


def _show_aborted_cells() -> None:
    """The abort of a writer of cells leaves it out of the invalid list."""
    from basalt.transactions.rules import edits
    from basalt.transactions.rules.edits import Proposal
    from basalt.transactions.rules.transaction_proposals import TransactionProposals
    from basalt.transactions.rules.transaction_table import TransactionTable

    abort = TransactionProposals.abort

    def only_end(state: TransactionProposals, transaction_id: int, now_ms: int) -> Any:
        found = state.find(transaction_id)
        if found is None or not found.tables:
            return abort(state, transaction_id, now_ms)
        return Proposal((edits.Aborted(transaction_id, now_ms, False),), transaction_id)

    TransactionProposals.abort = only_end  # type: ignore[method-assign,assignment]
    TransactionTable._undone = lambda ledger, transaction: transaction  # type: ignore[method-assign]


def _forget_versions() -> None:
    """What version a session has committed is known until the log is read again."""
    from basalt.transactions.log.transaction_log import TransactionLog
    from basalt.transactions.rules.sessions import SessionTable

    committed, recover = SessionTable.committed, TransactionLog.recover

    def read_without(log: TransactionLog, *given: Any) -> Any:
        SessionTable.committed = lambda *_: None  # type: ignore[method-assign]
        try:
            return recover(log, *given)
        finally:
            SessionTable.committed = committed  # type: ignore[method-assign]

    TransactionLog.recover = read_without  # type: ignore[method-assign]


def _forget_acknowledgements() -> None:
    """What groups have acknowledged is known until the log is read again."""
    from basalt.transactions.log.transaction_log import TransactionLog
    from basalt.transactions.rules.groups import GroupTable

    acknowledge, recover = GroupTable._acknowledge, TransactionLog.recover

    def read_without(log: TransactionLog, *given: Any) -> Any:
        GroupTable._acknowledge = lambda *_: None  # type: ignore[method-assign]
        try:
            return recover(log, *given)
        finally:
            GroupTable._acknowledge = acknowledge  # type: ignore[method-assign]

    TransactionLog.recover = read_without  # type: ignore[method-assign]


FAULTS = {
    "answer before the write": _answer_before_the_write,
    "commit what is aborted": _forget_what_was_aborted,
    "write half of a group": _write_half_of_a_group,
    "forget request ids": _forget_request_ids,
    "show aborted cells": _show_aborted_cells,
    "forget versions": _forget_versions,
}
GROUP_FAULTS = {
    "forget acknowledgements": _forget_acknowledgements,
}


def main() -> int:
    """The command line, with what the environment asks for."""
    asked = os.environ.pop("BASALT_KILL_AT", "")
    if asked:
        name, _, number = asked.rpartition(":")
        kill_at(name, int(number))
    fault = os.environ.pop("BASALT_BREAK", "")
    if fault:
        {**FAULTS, **GROUP_FAULTS}[fault]()
    entries = os.environ.pop("BASALT_LOG_SNAPSHOT", "")
    if entries:
        from basalt.operations import jobs

        jobs.SNAPSHOT_ENTRIES_MIN = int(entries)
    if os.environ.pop("BASALT_SMALL_LIMITS", ""):
        sys.path.append(str(Path(__file__).parents[2]))
        from tests import small_limits

        small_limits.of_a_server()
    from basalt.cli.main import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
