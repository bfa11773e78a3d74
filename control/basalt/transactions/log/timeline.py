"""The steps of one transaction with their times, told from the edits that made them: `basalt tx timeline`.

The journal keeps the newest durable edits as they were logged: a group costs one append, and a step is only made when
somebody asks. After a restart it begins with what the log still holds, the entries behind its newest snapshot. What came
before is known no more; a timeline says from when on it is complete.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.pointers import POINTERS_PER_MS
from basalt.transactions.rules.states import State, Transaction
from basalt_engine.cells.names import change_text

JOURNAL_EDITS_MAX = 100_000  # some 15 MiB; half a minute of a busy server, days of a quiet one
JOURNAL_AGE_MS_MAX = 86_400_000  # who asks later asks the audit lines and the logs
POINTERS_A_WEIGHT = 8  # so many pointers or ids within one edit count as one more edit

_HEAVY = {edits.Changed, edits.Invalidated, edits.Pruned, edits.Restored}


class ToldChanges(NamedTuple):
    """The size of a change set, which the journal keeps in its place: a set may have 10 MiB."""

    id: int
    outside: bool
    changes: int


class Entry(NamedTuple):
    """The edits of one group. `exact` is false where the time is only the latest that is known to have passed."""

    at_ms: int
    edits: Sequence[Any]
    weight: int
    exact: bool


class Step(NamedTuple):
    """One thing that happened to a transaction."""

    at_ms: int
    exact: bool
    event: str
    detail: dict[str, Any]


class Timeline(NamedTuple):
    """The steps of a transaction in their order. `since_ms`: all steps from then on are here; `whole`: all there are."""

    steps: list[Step]
    since_ms: int
    whole: bool


class Journal:
    """The newest edits of all transactions, bounded in count and age. Fed from one thread at a time."""

    def __init__(self, edits_max: int = JOURNAL_EDITS_MAX, age_ms_max: int = JOURNAL_AGE_MS_MAX) -> None:
        self._edits_max = edits_max
        self._age_ms_max = age_ms_max
        # Plain tuples, for there are many; whoever asks gets each as an `Entry`.
        self._entries: deque[tuple[int, Sequence[Any], int, bool]] = deque()
        self._next_edit = 0
        self._last_ms = 0
        self.weight = 0  # how many edits it holds, large ones counted several times

    def add(self, at_ms: int, group: Sequence[Edit]) -> None:
        """The edits of a group became durable at this time."""
        self._append(at_ms, True, group)

    def recovering(self, first_edit: int, after_ms: int) -> None:
        """The log is read again from this edit on, which was made after this time.

        What is known before it stays, if nothing is missing in between.
        """
        if first_edit > self._next_edit:
            self._entries.clear()
            self.weight = 0
            self._next_edit, self._last_ms = first_edit, after_ms

    def replayed(self, first_edit: int, group: Sequence[Edit]) -> None:
        """An entry that was read from the log. What is known of it already stays as it is."""
        if first_edit < self._next_edit:
            return
        times = [at_ms for edit in group if (at_ms := _time_in(edit)) is not None]
        self._append(max(times, default=self._last_ms), bool(times), group)

    def since_ms(self, now_ms: int) -> int:
        """From when on every edit is here; now, when it holds none that tells its time."""
        return next((at_ms for at_ms, _, _, exact in self._entries if exact), now_ms)

    def entries(self) -> list[Entry]:
        """A copy, oldest first; may be asked for, and looked through, on any thread."""
        return [Entry(*entry) for entry in list(self._entries)]

    def _append(self, at_ms: int, exact: bool, group: Sequence[Edit]) -> None:
        weight = len(group)
        if not _HEAVY.isdisjoint(map(type, group)):
            group, weight = _lightened(group)
        self._last_ms = at_ms
        self._next_edit += len(group)
        self.weight += weight
        entries = self._entries
        entries.append((at_ms, group, weight, exact))
        oldest_ms = at_ms - self._age_ms_max
        while entries and (self.weight > self._edits_max or entries[0][0] < oldest_ms):
            self.weight -= entries.popleft()[2]


def timeline_of(
    pointers: Sequence[int], entries: Sequence[Entry], known: Transaction | Outcome | None, since_ms: int
) -> Timeline:
    """The steps of the transaction with these write pointers. What the entries lack is added from what is `known`."""
    steps = [step for entry in entries for edit in entry.edits for step in _steps_of(edit, entry, pointers)]
    if not _is_invalid(known) and not any(step.event == "invalidated" for step in steps):
        steps = [step for step in steps if step.event != "truncated"]  # only what is on the invalid list leaves it
    whole = bool(steps) and steps[0].event in ("begun", "one_shot")
    if not whole:
        steps = [*_remembered_start(known, pointers[0]), *steps]
    if isinstance(known, Outcome) and not any(step.event in _ENDS for step in steps):
        steps.append(Step(known.at_ms, True, _END_NAMES[known.state], {"timedOut": True} if known.timed_out else {}))
        steps.sort(key=lambda step: step.at_ms)
    return Timeline(steps, since_ms, whole)


def _is_invalid(known: Transaction | Outcome | None) -> bool:
    return known is not None and known.state is State.INVALID


def _remembered_start(known: Transaction | Outcome | None, transaction_id: int) -> Iterator[Step]:
    if isinstance(known, Transaction):
        yield Step(
            known.began_ms, True, "begun", _without_empty({"owner": known.owner, "kind": known.kind.name.lower()})
        )
    elif isinstance(known, Outcome):
        # A write pointer holds the time at which it was given out, unless many were given out at once.
        began_ms = transaction_id // POINTERS_PER_MS
        yield Step(began_ms, False, "begun", _without_empty({"owner": known.owner, "kind": known.kind.name.lower()}))


def _steps_of(edit: Any, entry: Entry, pointers: Sequence[int]) -> Iterator[Step]:
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
    elif getattr(edit, "id", None) == pointers[0] and kind is not edits.ChangesUnlogged:  # which is no step by itself
        describe = _DETAILS.get(kind)
        detail = {} if describe is None else _without_empty(describe(edit))
    else:
        return
    yield Step(entry.at_ms, entry.exact, _NAMES.get(kind, kind.__name__.lower()), detail)


def _holds(ascending: Sequence[int], wanted: int) -> bool:
    at = bisect_left(ascending, wanted)
    return at < len(ascending) and ascending[at] == wanted


def _time_in(edit: Any) -> int | None:
    """When it was made, if the edit itself says so."""
    if type(edit) is edits.Checkpointed:
        return int(edit.write_pointer // POINTERS_PER_MS)
    for name in ("ended_ms", "at_ms", "began_ms"):
        at_ms: int | None = getattr(edit, name, None)
        if at_ms is not None:
            return at_ms
    return None


def _lightened(group: Sequence[Edit]) -> tuple[Sequence[Any], int]:
    """The edits with their change sets counted instead of kept; and what they weigh."""
    kept: list[Any] = []
    weight = 0
    for edit in group:
        pointers: Sequence[int] = ()
        if isinstance(edit, edits.Changed):
            kept.append(ToldChanges(edit.id, edit.outside, len(edit.changes)))
        else:
            kept.append(edit)
            pointers = getattr(edit, "pointers", ()) or getattr(edit, "ids", ())
        weight += 1 + len(pointers) // POINTERS_A_WEIGHT
    return kept, weight


def _without_empty(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if value not in ("", None, False)}


def key_text(key: bytes) -> str:
    """A changed key as people read it: the row or cell of a table, text where it is some, else hex."""
    text = change_text(key)
    if text is not None:
        return text
    text = key.decode("utf-8", "replace")
    return text if text.isprintable() and "\ufffd" not in text else key.hex()


_LISTS = (edits.Invalidated, edits.Pruned, edits.Restored)
_NAMES: dict[type, str] = {
    edits.Began: "begun",
    edits.OneShot: "one_shot",
    edits.Checkpointed: "checkpoint",
    edits.Joined: "topic_joined",
    edits.TableJoined: "table_joined",
    edits.SessionBegan: "in_session",
    ToldChanges: "changes_told",
    edits.Doomed: "conflict_lost",
    edits.Committing: "committing",
    edits.Committed: "committed",
    edits.Aborting: "abort_decided",
    edits.Aborted: "aborted",
    edits.Invalidated: "invalidated",
    edits.Pruned: "pruned",
    edits.Truncated: "truncated",
    edits.Restored: "restored",
    edits.Reset: "reset",
}
_ENDS = ("one_shot", "committed", "aborted", "invalidated")
_END_NAMES = {State.COMMITTED: "committed", State.ABORTED: "aborted", State.INVALID: "invalidated"}
_DETAILS: dict[type, Callable[[Any], dict[str, Any]]] = {
    edits.Began: lambda edit: {
        "owner": edit.owner,
        "kind": edit.kind.name.lower(),
        "outsideWrites": edit.outside,
        "expiresMs": edit.deadline_ms,
    },
    edits.OneShot: lambda edit: {"owner": edit.owner},
    edits.Checkpointed: lambda edit: {"writePointer": edit.write_pointer},
    edits.Joined: lambda edit: {"topic": edit.join.topic.decode().rstrip(":")},
    edits.TableJoined: lambda edit: {"table": edit.join.table.decode().rstrip(":").replace("~", "")},
    edits.SessionBegan: lambda edit: {"session": edit.session.name, "epoch": edit.session.epoch},
    ToldChanges: lambda edit: {"changes": edit.changes or None, "outsideWrites": edit.outside},
    edits.Doomed: lambda edit: {
        "winner": edit.loss.winner,
        "winnerOwner": edit.loss.winner_owner,
        "key": key_text(edit.loss.key),
    },
    edits.Aborting: lambda edit: {"timedOut": edit.timed_out},
    edits.Aborted: lambda edit: {"timedOut": edit.timed_out},
}
