"""What clients of a world of members did and were told, and what must therefore be true of it in the end."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from basalt_engine.snapshot import Visibility
from tests.sim.members.hbase import TABLES, TOPICS, HBase
from tests.sim.members.ledger import Ledger, View
from tests.sim.members.reign import Page


@dataclass(slots=True, eq=False)
class Act:
    """One publish, one-shot or transaction; `texts` says where each of its messages and cells belongs."""

    texts: dict[str, str]
    sent_ms: float
    told: str = "nothing"  # or "done", "refused": nothing was done
    told_ms: float = math.inf
    writer: int | None = None
    place: int | None = None
    session: tuple[str, int] | None = None

    def tell(self, told: str, now_ms: float) -> None:
        """Note the answer."""
        self.told, self.told_ms = told, now_ms


@dataclass(slots=True)
class Reader:
    """One that follows a topic from its beginning."""

    topic: str
    is_raw: bool
    cursor: int = 0
    texts: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    held_by: int | None = None


@dataclass(slots=True)
class SnapshotRead:
    """What a transaction read by the snapshot that it began with."""

    asked_ms: float
    begun_ms: float
    writer: int
    pages: list[tuple[str, Page]] = field(default_factory=list)
    cells: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


@dataclass(slots=True)
class StableEnd:
    """One answer about where a topic is decided up to."""

    topic: str
    asked_ms: float
    told_ms: float
    place: int
    texts: tuple[str, ...]


class Final:
    """What HBase says when all is over: the log's outcomes, and what committed readers see."""

    def __init__(self, hbase: HBase) -> None:
        self.ledger = Ledger()
        for entry in hbase.log:
            self.ledger.apply(entry)  # type: ignore[arg-type]
        view: View = self.ledger.view()
        self.rows: dict[str, list[tuple[int, int | None, tuple[str, ...]]]] = {}
        for topic in TOPICS:
            seen = [(at, row) for at, row in sorted(hbase.rows[topic].items()) if not row.is_rolled_back]
            visible = [(at, row) for at, row in seen if view.judge(row.writer) is Visibility.VISIBLE]
            self.rows[topic] = [(at, row.writer, row.texts) for at, row in visible]
        self.texts = {topic: [text for _, _, texts in rows for text in texts] for topic, rows in self.rows.items()}
        self.plain = {
            topic: [text for _, w, texts in rows if w is None for text in texts] for topic, rows in self.rows.items()
        }
        self.shown: dict[str, str] = {text: topic for topic, texts in self.texts.items() for text in texts}
        self.cells: defaultdict[int, set[str]] = defaultdict(set)
        for (table, _), versions in hbase.cells.items():
            for cell in versions:
                if view.judge(cell.writer) is Visibility.VISIBLE:
                    self.shown[cell.text] = table
                    self.cells[cell.writer].add(table)


class History:
    """All that happened to clients."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        self.readers: list[Reader] = []
        self.snapshots: list[SnapshotRead] = []
        self.stable_ends: list[StableEnd] = []
        self.broken: list[str] = []
        self._texts = 0

    def text(self) -> str:
        """A text that was never used."""
        self._texts += 1
        return f"m{self._texts}"

    def act(self, texts: dict[str, str], now_ms: float) -> Act:
        """Note what a client is about to do."""
        self.acts.append(made := Act(texts, now_ms))
        return made

    def check(self, hbase: HBase) -> list[str]:
        """Every promise that is broken."""
        final = Final(hbase)
        return [
            *hbase.broken,
            *self.broken,
            *self._check_acts(final),
            *self._check_order(final),
            *self._check_sessions(final),
            *self._check_readers(final),
            *self._check_stable_ends(final),
            *self._check_snapshots(final),
        ]

    def _check_acts(self, final: Final) -> list[str]:
        """Nothing that was answered is lost, nothing is doubled, nothing torn, and the answer is the outcome."""
        broken = [
            f"{topic} has a message twice: {texts}"
            for topic, texts in final.texts.items()
            if len(set(texts)) < len(texts)
        ]
        for act in self.acts:
            shown = [final.shown.get(text) == where for text, where in act.texts.items()]
            if act.told == "done" and not all(shown):
                broken.append(f"{act} was done, and shows {shown}")
            elif act.told == "refused" and any(shown):
                broken.append(f"{act} was refused, and shows {shown}")
            elif any(shown) and not all(shown):
                broken.append(f"{act} is torn: {shown}")
            if (
                act.writer is not None
                and final.ledger.outcomes.get(act.writer, "aborted") != "committed"
                and any(shown)
            ):
                broken.append(f"{act} was not committed, and shows {shown}")
        return broken

    def _check_order(self, final: Final) -> list[str]:
        """What was answered before something else was sent comes before it."""
        broken = []
        position = {text: at for texts in final.texts.values() for at, text in enumerate(texts)}
        acts = [act for act in self.acts if act.told == "done"]
        for topic in TOPICS:
            here = [
                (act, text) for act in acts for text, where in act.texts.items() if where == topic and text in position
            ]
            for earlier, text in here:
                for later, other in here:
                    if earlier.told_ms < later.sent_ms and position[text] > position[other]:
                        broken.append(f"{text} was answered before {other} was sent, and comes after it in {topic}")
        return broken

    def _check_sessions(self, final: Final) -> list[str]:
        """A version of a session is committed once."""
        committed = [
            act.session
            for act in self.acts
            if act.session and final.ledger.outcomes.get(act.writer or 0) == "committed"
        ]
        return [f"{each} was committed twice" for each in set(committed) if committed.count(each) > 1]

    def _check_readers(self, final: Final) -> list[str]:
        """What a reader has seen is what all see, and nobody is held up for ever."""
        broken = []
        for reader in self.readers:
            expected = final.plain if reader.is_raw else final.texts
            got = reader.plain if reader.is_raw else reader.texts
            if got != expected[reader.topic]:
                kind = "raw" if reader.is_raw else "committed"
                broken.append(
                    f"a {kind} reader of {reader.topic} saw {got} of {expected[reader.topic]}, held by {reader.held_by}"
                )
        return broken

    def _check_stable_ends(self, final: Final) -> list[str]:
        """A stable end never goes back, and what comes before it never changes."""
        broken = []
        for one in self.stable_ends:
            up_to = tuple(text for at, _, texts in final.rows[one.topic] if at <= one.place for text in texts)
            if up_to != one.texts:
                broken.append(f"{one}: there is now {up_to}")
            for other in self.stable_ends:
                if one.topic == other.topic and one.told_ms < other.asked_ms and one.place > other.place:
                    broken.append(f"a stable end went back: {one}, {other}")
        return broken

    # Snapshots.

    def _check_snapshots(self, final: Final) -> list[str]:
        """A snapshot shows a transaction everywhere or nowhere: all that was answered before it, nothing that was sent after it."""
        places: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for topic, rows in final.rows.items():
            for at, writer, _ in rows:
                if writer is not None:
                    places[writer].append((topic, at))
        acts = {act.writer: act for act in self.acts if act.writer is not None}
        return [problem for read in self.snapshots for problem in _problems_of(read, places, acts, final)]


def _problems_of(
    read: SnapshotRead, places: dict[int, list[tuple[str, int]]], acts: dict[Any, Act], final: Final
) -> list[str]:
    shown = {writer for _, page in read.pages for _, writer, _ in page.rows if writer is not None}
    in_cells = {writer for _, writers in read.cells for writer in writers}
    held = {page.held_by for _, page in read.pages if page.held_by is not None}
    before = {writer for writer, act in acts.items() if act.told == "done" and act.told_ms < read.asked_ms}
    broken = [f"snapshot {read.writer} shows and holds {writer}" for writer in (shown | in_cells) & held]
    broken += [f"snapshot {read.writer} holds {writer}, answered before it" for writer in held & before]
    for writer in shown | in_cells:
        if final.ledger.outcomes.get(writer) != "committed":
            broken.append(f"snapshot {read.writer} shows {writer}, which is not committed")
        if writer in acts and acts[writer].sent_ms > read.begun_ms:
            broken.append(f"snapshot {read.writer} shows {writer}, sent after it")
    for writer in shown | in_cells | before:
        for topic, page in read.pages:
            missing = [at for where, at in places.get(writer, ()) if where == topic and at <= page.cursor]
            if missing and not any(each == writer for _, each, _ in page.rows):
                broken.append(f"snapshot {read.writer} does not show {writer} in {topic}")
        broken += [
            f"snapshot {read.writer} does not show cells of {writer} in {table}"
            for table, writers in read.cells
            if table in TABLES and table in final.cells.get(writer, ()) and writer not in writers
        ]
    return broken
