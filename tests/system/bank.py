"""Money that clients of a killed server move between rows of a table, and versions of a job that they commit in a session.

Each move is told by a message of the same transaction, and so is each version: whoever looks, in whatever committed view,
finds the balances that the messages say. What clients were told is kept here, outside the killed process.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

TABLE = "accounts"
MOVES, VERSIONS = "moves", "versions"  # topics
SESSION = "job"
ACCOUNTS = ("one", "two", "three", "four")
OPENING = 100


@dataclass(slots=True)
class Bank:
    """What must be in the table, in the two topics, and in the session."""

    done: set[str] = field(default_factory=set)  # messages whose commit was told
    gone: set[str] = field(default_factory=set)  # and those that nobody may ever see
    attempts: dict[int, list[str]] = field(default_factory=dict)  # messages by version
    version_done: int = 0  # the newest that somebody was told
    epoch: int = 0
    compared: int = 0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def attempt(self, version: int) -> str:
        """The message of one more try to commit a version."""
        text = f"{version}:{next(self.numbers)}"
        self.attempts.setdefault(version, []).append(text)
        return text

    def check_view(self, balances: Mapping[str, int], moves: Collection[str]) -> None:
        """One committed view of the table and of the topic."""
        expected = balances_after(moves)
        assert balances == expected, f"the table says {balances}, {len(moves)} messages say {expected}"
        self.compared += 1

    def check(self, moves: Collection[str], versions: Collection[str]) -> None:
        """All committed messages, after a kill. What is not there now, of which nobody heard, will never be."""
        for topic, texts in ((MOVES, moves), (VERSIONS, versions)):
            twice = [text for text, count in Counter(texts).items() if count > 1]
            assert not twice, f"{topic}: {twice} came twice"
        seen = {*moves, *versions}
        assert self.done <= seen, f"{sorted(self.done - seen)[:5]} were committed and are gone"
        assert not self.gone & seen, f"{sorted(self.gone & seen)[:5]} should be hidden"
        for version, tries in self.attempts.items():
            there = seen.intersection(tries)
            assert len(there) <= 1, f"version {version} was committed by {there}"
            self.gone.update(set(tries) - there)
        self.done |= seen


def balances_after(moves: Iterable[str]) -> dict[str, int]:
    """What the accounts hold after these moves: each is number>from>to>amount."""
    balances = dict.fromkeys(ACCOUNTS, OPENING)
    for move in moves:
        _, one, other, amount = move.split(">")
        balances[one] -= int(amount)
        balances[other] += int(amount)
    return balances
