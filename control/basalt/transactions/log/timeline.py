"""The steps of one transaction with their times, told from the edits that made them: `basalt tx timeline`.

A step is only made when somebody asks, from what the journal holds (transaction_log.py). What came before is known no
more; a timeline says from when on it is complete.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from basalt.api.bodies.transactions import TimelineStep
from basalt.transactions.log.transaction_log import LogEntry, ToldChanges
from basalt.transactions.rules import edits
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import State, Transaction
from basalt_engine.cells.names import change_text
from basalt_engine.snapshot import POINTERS_PER_MS


class LogTimeline(NamedTuple):
    """The steps of a transaction in their order. `since_ms`: all steps from then on are here; `whole`: all there are."""

    steps: list[TimelineStep]
    since_ms: int
    whole: bool


def timeline_of(
    pointers: Sequence[int], entries: Sequence[LogEntry], last_state: Transaction | Outcome | None, since_ms: int
) -> LogTimeline:
    """The steps of the transaction with these write pointers. What the entries lack is added from `last_state`."""
    steps = [step for entry in entries for edit in entry.edits for step in _steps_of(edit, entry, pointers)]
    is_invalid = last_state is not None and last_state.state is State.INVALID
    if not is_invalid and not any(step.event == "invalidated" for step in steps):
        steps = [step for step in steps if step.event != "truncated"]  # only what is on the invalid list leaves it
    whole = bool(steps) and steps[0].event in ("begun", "one_shot")
    if not whole:
        steps = [*_remembered_start(last_state, pointers[0]), *steps]
    if isinstance(last_state, Outcome) and not any(step.event in _ENDS for step in steps):
        steps.append(
            TimelineStep(
                last_state.at_ms, True, _END_NAMES[last_state.state], {"timedOut": True} if last_state.timed_out else {}
            )
        )
        steps.sort(key=lambda step: step.at_ms)
    return LogTimeline(steps, since_ms, whole)


def _remembered_start(last_state: Transaction | Outcome | None, transaction_id: int) -> Iterator[TimelineStep]:
    if last_state is None:
        return
    # A write pointer holds the time at which it was given out, unless many were given out at once.
    exact = isinstance(last_state, Transaction)
    began_ms = last_state.began_ms if isinstance(last_state, Transaction) else transaction_id // POINTERS_PER_MS
    yield TimelineStep(
        began_ms, exact, "begun", _without_empty({"owner": last_state.owner, "kind": last_state.kind.name.lower()})
    )


def _steps_of(edit: Any, entry: LogEntry, pointers: Sequence[int]) -> Iterator[TimelineStep]:
    kind = type(edit)
    if kind in _LISTS:
        ids: Sequence[int] = edit.ids if kind is edits.Invalidated else edit.pointers
        if not any(_holds(ids, pointer) for pointer in pointers):
            return
        detail = {"timedOut": True} if kind is edits.Invalidated and edit.timed_out else {}
    elif kind is edits.Truncated:
        if pointers[0] >= edit.before:
            return
        detail = {}
    elif _transaction_of(edit) == pointers[0] and kind not in _NO_STEPS:
        describe = _DETAILS.get(kind)
        detail = {} if describe is None else _without_empty(describe(edit))
    else:
        return
    yield TimelineStep(entry.at_ms, entry.exact, _NAMES.get(kind, kind.__name__.lower()), detail)


def _transaction_of(edit: Any) -> int | None:
    """The one transaction that an edit is about."""
    found: int | None = edit.writer if type(edit) is edits.Acknowledged else getattr(edit, "id", None)
    return found


def _holds(ascending: Sequence[int], wanted: int) -> bool:
    at = bisect_left(ascending, wanted)
    return at < len(ascending) and ascending[at] == wanted


def _without_empty(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if value not in ("", None, False)}


def key_text(key: bytes) -> str:
    """A changed key as people read it: the row or cell of a table, text where it is some, else hex."""
    text = change_text(key)
    if text is not None:
        return text
    text = key.decode("utf-8", "replace")
    return text if text.isprintable() and "\ufffd" not in text else key.hex()


_NO_STEPS = (edits.ChangesUnlogged, edits.ForOneShot, edits.Owned)  # they belong to a begin
_LISTS = (edits.Invalidated, edits.Pruned, edits.Restored)
_NAMES: dict[type, str] = {  # the others are called as their class
    edits.Began: "begun",
    edits.OneShot: "one_shot",
    edits.Checkpointed: "checkpoint",
    edits.Joined: "topic_joined",
    edits.TableJoined: "table_joined",
    edits.SessionBegan: "in_session",
    edits.AcknowledgedIn: "acknowledged",
    ToldChanges: "changes_told",
    edits.Doomed: "conflict_lost",
    edits.Aborting: "abort_decided",
}
_ENDS = ("one_shot", "committed", "aborted", "invalidated")
_END_NAMES = {State.COMMITTED: "committed", State.ABORTED: "aborted", State.INVALID: "invalidated"}
_DETAILS: dict[type, Callable[[Any], dict[str, Any]]] = {
    edits.Began: lambda edit: {
        "owner": edit.owner,
        "kind": edit.kind.name.lower(),
        "externalWrites": edit.external_writes,
        "expiresMs": edit.deadline_ms,
    },
    edits.OneShot: lambda edit: {"owner": edit.owner},
    edits.Checkpointed: lambda edit: {"writePointer": edit.write_pointer},
    edits.Joined: lambda edit: {"topic": edit.join.topic.decode().rstrip(":")},
    edits.TableJoined: lambda edit: {"table": edit.join.table.decode().rstrip(":").replace("~", "")},
    edits.SessionBegan: lambda edit: {"session": edit.session.name, "epoch": edit.session.epoch},
    ToldChanges: lambda edit: {"changes": edit.changes or None, "externalWrites": edit.external_writes},
    edits.Doomed: lambda edit: {
        "winner": edit.loss.winner,
        "winnerOwner": edit.loss.winner_owner,
        "key": key_text(edit.loss.key),
    },
    edits.Acknowledged: lambda edit: {"group": edit.number, "spans": len(edit.spans)},
    edits.AcknowledgedIn: lambda edit: {"group": edit.number, "spans": len(edit.spans)},
    edits.Aborting: lambda edit: {"timedOut": edit.timed_out},
    edits.Aborted: lambda edit: {"timedOut": edit.timed_out},
}
