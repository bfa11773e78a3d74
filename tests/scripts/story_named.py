"""Named transactions as stories write them: `begin-by-name A run=monday version=7 counter_owner=q1`, and segments of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from basalt.api.bodies.messages import Work
from basalt.commits.commit_stage import Beginning
from basalt.commits.coordinator import Coordinator
from basalt.transactions.rules.sessions import WorkVersion
from basalt.transactions.rules.transaction import Kind, Transaction
from tests.scripts.story_words import Words, milliseconds
from tests.wiring import Wired

SESSION = "etl"


class NamedCommands:
    """The commands of a story for them."""

    _wired: Wired
    _transactions: dict[str, Transaction]
    _names: dict[int, str]
    _name: Callable[[str, Transaction], None]
    _name_of: Callable[[int], str]

    async def do_begin_by_name(self, words: Words) -> list[str]:
        """`begin-by-name A run=monday version=7 counter_owner=q1`; where it is joined, or was committed, that is told."""
        name, run, version = words.plain[0], words.take("run") or "", int(words.take("version") or "0")
        counter_owner, timeout = words.take("counter_owner"), words.take("timeout")
        timeout_ms = None if timeout is None else milliseconds(timeout)
        found = await _begun(self._wired.transactions, run, version, counter_owner, timeout_ms)
        if isinstance(found, int):
            return [f"committed before by {self._name_of(found)}"]
        known = self._names.get(found.id)
        if known is not None:
            self._transactions[name] = self._transactions[known]
            return [f"joined {known}"]
        self._name(name, found)
        return []

    async def do_segment(self, words: Words) -> None:
        """`segment A1 A`: what is stored with tx=A1 is one."""
        name, of = words.plain
        made = await self._wired.transactions.checkpoint(self._transactions[of].id)
        self._transactions[name], self._names[made.write_pointer] = made, self._names[made.id]


async def _begun(
    transactions: Coordinator, run: str, version: int, counter_owner: str | None, timeout_ms: int | None
) -> Transaction | int:
    """The run's transaction; or, when the version was committed before, the one that committed it."""
    asked = Beginning(Kind.LONG, timeout_ms)
    found = await transactions.sessions.begin_named(WorkVersion(SESSION, run, version, counter_owner), asked)
    return found if isinstance(found, Transaction) else found.committed_by


def with_segments(work: Work, named: str | None, transactions: Mapping[str, Transaction]) -> Work:
    """The work that publishes the segments `a,b`, and no others; `none` is none."""
    if named is None:
        return work
    names = [] if named == "none" else named.split(",")
    return Work(work.publish, work.markers, [transactions[name].write_pointer for name in names])
