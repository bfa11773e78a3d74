"""The audit: one durable line for each act of an operator, kind `audit` of docs/formats/system-table.md.

The line is written before the act, as `unfinished`, and again after it with its outcome: a crash in between leaves a trace.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from basalt.errors import BasaltError, ConflictError, InputError
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.system import SystemRecord, SystemTable, number_name
from basalt_engine.table import Store

ENTRIES_MAX = 10_000  # some 4 MiB; beyond, the oldest go of whoever has most
LOGINS_PART = 10  # of these, logins may be one of so many: everybody logs in, every day
LOGIN_ACTS = frozenset(("log in", "log out"))
AGE_MS_MAX = 366 * 86_400_000  # "what did we do at this time last year"
COUNTED_AGAIN_MS = 600_000  # other servers add lines, too, and the one that leads keeps the number below the limit
TEXT_CHARS_MAX = 300  # of a reason or a name: both fit into a request's line however they are written

_LOGINS = "log in"  # no principal has this name

T = TypeVar("T")
log = logging.getLogger("basalt.audit")


class Author(msgspec.Struct, frozen=True):
    """The author of an act: the address that the call came from, the program, and the name that was given, if any.

    `principal` is who was proved to call, `credential` the kind and id of the proof, `via` the proxy that vouched for them.
    """

    address: str
    agent: str = ""
    name: str = ""
    principal: str = ""
    credential: str = ""
    via: str = ""


By: TypeAlias = tuple[Author, str, str]  # the author of an act, the reason that was given, the id of the request


class Line(msgspec.Struct, frozen=True):
    """One act: the body of an `audit` entry. `outcome` is `unfinished` until it is known."""

    at_ms: int
    act: str
    what: str
    reason: str
    address: str
    agent: str
    name: str
    request_id: str
    outcome: str
    principal: str
    credential: str
    via: str


LINES = SystemRecord("audit", "", Line)  # by time; docs/formats/system-table.md


class Wanted(NamedTuple):
    """The lines that somebody looks for: of a time, `from_ms` included and `to_ms` not; of an act and of a principal, both whole; about something
    that has `target` in its name; and those that come behind the line `after`, which are older. What is left out lets all pass.
    """

    from_ms: int = 0
    to_ms: int | None = None
    act: str = ""
    principal: str = ""
    target: str = ""
    after: str = ""

    @property
    def stop(self) -> str:
        """The name before which they lie; empty: there is none."""
        ends = ([] if self.to_ms is None else [number_name(self.to_ms)]) + ([self.after] if self.after else [])
        return min(ends, default="")

    def has(self, line: Line) -> bool:
        """Tell whether a line is one of them, wherever it lies."""
        return (
            self.act in ("", line.act)
            and self.principal in ("", line.principal)
            and self.target.casefold() in line.what.casefold()
        )


class Audit:
    """The lines of one store. `is_member`: another server leads, and removes what is old or too much."""

    def __init__(
        self, store: Store, clock: Clock, *, entries_max: int = ENTRIES_MAX, age_ms_max: int = AGE_MS_MAX, is_member: bool = False
    ) -> None:  # fmt: skip
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._entries_max = entries_max
        self._age_ms_max = age_ms_max
        self._is_member = is_member
        self._counted_ms = 0.0  # when, by the monotonic clock
        self._counts: Counter[str] | None = None  # lines, by principal; those of logins together
        self._numbers = itertools.count()  # lines of one millisecond keep their order
        self._run = secrets.token_hex(4)  # and those of a server whose clock was set back replace none

    async def act(
        self, act: str, what: str, author: Author, reason: str, request_id: str,
        do: Callable[[], Awaitable[T]], outcome_text: Callable[[T], str] = lambda _: "done",
    ) -> T:  # fmt: skip
        """Do it, with a line about it. Nothing is done when the line cannot be written."""
        line = Line(
            self._clock.now_ms(), act, _cut(what), _cut(reason), author.address, _cut(author.agent), _cut(author.name),
            request_id, "unfinished", author.principal, author.credential, author.via,
        )  # fmt: skip
        name = f"{number_name(line.at_ms)}:{next(self._numbers):08x}{self._run}"
        await self._call.write(self._write, name, line, True)
        try:
            done = await do()
        except BaseException as error:
            outcome = f"{_verdict(error)}: {error}"
            await self._finish(name, line, outcome)
            raise
        await self._finish(name, line, outcome_text(done))
        return done

    async def newest(self, limit: int) -> list[Line]:
        """The newest lines, newest first."""
        return await self._call(self._read, limit, "")

    async def find(self, wanted: Wanted, limit: int) -> list[tuple[str, Line]]:
        """The newest lines of those that are looked for, newest first, with their names."""
        return await self._call.long(self._find, wanted, limit)

    async def about(self, what: str, limit: int) -> list[Line]:
        """The newest lines about one thing, newest first."""
        return await self._call.long(self._read, limit, what)

    async def _finish(self, name: str, line: Line, outcome: str) -> None:
        line = msgspec.structs.replace(line, outcome=_cut(outcome))
        who = (line.principal if line.credential else "") or line.name or line.agent or "somebody"
        log.warning(
            "%s of %s by %s from %s: %s (reason: %s)", line.act, line.what, who, line.address, line.outcome,
            line.reason or "none given", extra={"fields": _fields(line)},
        )  # fmt: skip
        try:
            await self._call.write(self._write, name, line, False)
        except BasaltError as error:  # what was done is done; the line above says so, and the entry stays unfinished
            log.error("the outcome of that is not kept: %s", error)  # the error is all there is to tell

    def _write(self, name: str, line: Line, new: bool) -> None:
        LINES.write(self._system, line, name)
        if not new or self._is_member:
            return
        oldest, now_ms = number_name(max(line.at_ms - self._age_ms_max, 0)), self._clock.monotonic_ms()
        if self._counts is None or now_ms - self._counted_ms >= COUNTED_AGAIN_MS:
            self._counted_ms = now_ms
            self._counts = Counter(_share(each) for _, each in LINES.scan(self._system))
        else:
            self._counts[_share(line)] += 1
        for old, each in LINES.scan(self._system, rows_max=self._entries_max):
            if old >= oldest:
                break
            self._remove(old, each, self._counts)
        if self._counts.total() > self._entries_max:
            # Else who may do one thing, such as to log in, could push out what there is about all others.
            most = max(self._counts, key=self._counts.__getitem__)
            if self._counts[_LOGINS] > self._entries_max // LOGINS_PART:
                most = _LOGINS
            of_most = ((old, each) for old, each in LINES.scan(self._system) if _share(each) == most)
            for old, each in itertools.islice(of_most, self._counts.total() - self._entries_max):
                self._remove(old, each, self._counts)

    def _remove(self, name: str, line: Line, counts: Counter[str]) -> None:
        LINES.remove(self._system, name)
        counts[_share(line)] -= 1

    def _find(self, wanted: Wanted, limit: int) -> list[tuple[str, Line]]:
        stop = wanted.stop
        start = number_name(wanted.from_ms)
        if stop and stop <= start:
            return []
        lines = LINES.scan(self._system, start, stop=stop, reverse=True)
        return list(itertools.islice(((name, line) for name, line in lines if wanted.has(line)), limit))

    def _read(self, limit: int, what: str) -> list[Line]:
        found: list[Line] = []
        for _, line in LINES.scan(self._system, reverse=True):
            if len(found) == limit:
                break
            if not what or line.what == what:
                found.append(line)
        return found


def _share(line: Line) -> str:
    """Whose share of all lines it counts for: its principal's, or that of all logins."""
    return _LOGINS if line.act in LOGIN_ACTS else line.principal


def is_line(text: str) -> bool:
    """Tell whether it may be a name or a reason: printable text of a bounded length."""
    return len(text) <= TEXT_CHARS_MAX and text.isprintable()


def _fields(line: Line) -> dict[str, str]:
    """The line for logs of JSON lines, under names as theirs; they have a time of their own."""
    named: dict[str, str] = {**msgspec.structs.asdict(line), "client": line.address, "requestId": line.request_id}
    return {name: value for name, value in named.items() if name not in ("at_ms", "address", "request_id")}


def _verdict(error: BaseException) -> str:
    if isinstance(error, ConflictError | InputError):
        return "refused"
    return "failed" if isinstance(error, BasaltError) else "interrupted"


def _cut(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:TEXT_CHARS_MAX])
