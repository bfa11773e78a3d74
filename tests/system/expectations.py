"""What the clients of a killed server were told, and what must therefore be there. Kept outside the killed process.

A message's payload names the call that sent it, its topic and its number among that call's messages there, so that a
reader's messages can be counted against the calls.
"""

from __future__ import annotations

import enum
import itertools
import time
from dataclasses import dataclass, field

from tests.system.bank import Bank

STABLE = ("a", "b", "c")  # never deleted: what is said about them holds over all kills
CHURNED = ("x", "y")  # deleted and created again and again

Messages = list[tuple[bytes, str]]  # id and name of each message


class Told(enum.Enum):
    """What a client knows of its call."""

    NOTHING = "nothing"  # no answer, or one that says that nobody knows
    DONE = "done"
    REFUSED = "refused"  # nothing was done


class How(enum.Enum):
    """In which way a call publishes."""

    PLAIN = "plain"
    ONE_SHOT = "one-shot"
    EARLY = "early"  # under a write pointer, before the commit
    STORED = "stored"  # aside, for the commit
    WORK = "work"  # in the commit's own request


class End(enum.Enum):
    """How a transaction ended, as far as its client can know."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    HIDDEN = "hidden"  # aborted, timed out, or lost a conflict


@dataclass(slots=True)
class Tx:
    """One transaction, and the commit that may have to be repeated."""

    id: str
    write_pointer: int
    asked: str = ""  # commit, abort, or nothing yet
    end: End = End.UNKNOWN
    calls: list[Call] = field(default_factory=list, repr=False)
    references: set[str] = field(default_factory=set)  # topics to which it may have published what it stored
    request_id: str = ""
    body: bytes = field(default=b"", repr=False)

    @property
    def began_ms(self) -> int:
        """When it began: the second half of its id is its first write pointer."""
        return int(self.id[16:], 16) // 1_000_000


@dataclass(slots=True)
class Call:
    """One request that carries messages to one topic or several: all of them or none. Times are monotonic seconds.

    The generations say in which incarnation of a churned topic the messages may be: from `low` to `high`.
    """

    number: int
    counts: dict[str, int]
    how: How
    tx: Tx | None
    low: dict[str, int]
    sent_at: float = 0.0
    told: Told = Told.NOTHING
    told_at: float = 0.0
    high: dict[str, int] = field(default_factory=dict)
    request_id: str = ""
    body: bytes = field(default=b"", repr=False)

    @property
    def end(self) -> End:
        return End.COMMITTED if self.tx is None else self.tx.end


@dataclass(slots=True)
class Life:
    """A churned topic: the lowest and the highest generation that it may have now, or will have next."""

    low: int = 1
    high: int = 1
    exists: bool = True
    deleting: bool = False  # a delete is under way, or its answer was lost


@dataclass(slots=True)
class View:
    """What a reader has seen, and how far it has come; it goes on behind every kill."""

    topic: str
    committed: bool
    cursor: bytes | None = None
    seen: Messages = field(default_factory=list)


class Expectations:
    """All that was sent, and what is true of what is read."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self.transactions: list[Tx] = []
        self.unresolved: list[Tx] = []
        self.lives = {topic: Life() for topic in CHURNED}
        self.by_topic: dict[str, list[Call]] = {topic: [] for topic in (*STABLE, *CHURNED)}
        self.views = [View(topic, committed) for topic in STABLE[:2] for committed in (True, False)]
        self.bank = Bank()
        self._numbers = itertools.count(1)

    def call(self, counts: dict[str, int], how: How, tx: Tx | None = None) -> Call:
        """A call that is about to be sent."""
        low = {topic: self.lives[topic].low for topic in counts if topic in self.lives}
        made = Call(next(self._numbers), counts, how, tx, low, time.monotonic())
        self.calls[made.number] = made
        for topic in counts:
            self.by_topic[topic].append(made)
        if tx is not None:
            tx.calls.append(made)
        return made

    def answered(self, call: Call, told: Told) -> None:
        """The call's answer came, or will never come."""
        call.high = {topic: self.lives[topic].high for topic in call.low}
        call.told, call.told_at = told, time.monotonic()

    # What is read.

    def check(self, topic: str, generation: int, messages: Messages, *, committed: bool) -> set[int]:
        """What one reader saw of a topic, from its oldest message on; the numbers of the calls that it saw."""
        where = f"topic {topic}, {'committed' if committed else 'all'} messages"
        ids = [message_id for message_id, _ in messages]
        assert all(map(bytes.__lt__, ids, ids[1:])), f"{where}: ids do not rise"
        found: dict[int, list[int]] = {}
        newest_sent = 0.0
        for _, name in messages:
            sender, sent_to, index = name.split(".")
            assert sent_to == topic, f"{where}: {name} was sent to another topic"
            call = self.calls[int(sender)]
            found.setdefault(call.number, []).append(int(index))
            if call.how is not How.STORED:
                assert call.told is not Told.DONE or call.told_at >= newest_sent, f"{where}: {name} comes too late"
                newest_sent = max(newest_sent, call.sent_at)
        for number, indices in found.items():
            call = self.calls[number]
            assert indices == list(range(call.counts.get(topic, 0))), f"{where}: call {call} shows {indices}"
            assert self._may_show(call, topic, generation, committed), f"{where}: {call} should be hidden"
        for call in self.by_topic[topic]:
            if call.number not in found:
                assert not self._must_show(call, topic, generation), f"{where}: {call} is gone"
        return set(found)

    def _may_show(self, call: Call, topic: str, generation: int, committed: bool) -> bool:
        if call.told is Told.REFUSED or not call.low.get(topic, 0) <= generation <= call.high.get(topic, 0):
            return False
        if call.end is not End.HIDDEN:
            return True
        if committed:
            return False
        assert call.tx is not None
        return call.how is How.EARLY or (call.how is How.STORED and topic in call.tx.references)

    def _must_show(self, call: Call, topic: str, generation: int) -> bool:
        certain = call.low.get(topic, 0) == call.high.get(topic, 0) == generation
        return certain and call.told is Told.DONE and call.end is End.COMMITTED

    def check_whole(self, shown: dict[str, set[int]]) -> None:
        """One request for several topics shows in all of them or in none."""
        for call in self.calls.values():
            topics = [topic for topic in call.counts if topic in STABLE]
            seen = [call.number in shown[topic] for topic in topics]
            assert all(seen) or not any(seen), (
                f"{call} shows in {[t for t, is_seen in zip(topics, seen, strict=True) if is_seen]}"
            )

    def check_view(self, view: View, messages: Messages) -> None:
        """Nothing changed behind a reader: what it passed is what it saw, in that order."""
        passed = [message for message in messages if view.cursor is not None and message[0] <= view.cursor]
        still = view.seen
        if not view.committed:  # clean-up removes hidden messages
            there = set(passed)
            still = [message for message in view.seen if message in there]
            lost = [message for message in view.seen if message not in there]
            gone = {self.calls[int(name.split(".")[0])].end for _, name in lost}
            assert gone <= {End.HIDDEN}, f"a reader of {view.topic} saw {lost[:3]}, which are gone"
        assert passed == still, f"history of {view.topic} changed behind a reader: {first_difference(passed, still)}"


def first_difference(left: Messages, right: Messages) -> object:
    """The first place at which two lists of messages differ."""
    return next((pair for pair in itertools.zip_longest(left, right) if pair[0] != pair[1]), None)


def payload(number: int, topic: str, index: int, size: int) -> bytes:
    """A message that names itself, `size` bytes longer than its name."""
    name = f"{number}.{topic}.{index}"
    return f"{name}|{size}|{(name * (size // len(name) + 1))[:size]}".encode()


def name_of(content: bytes) -> str:
    """The name in a payload; AssertionError when it is not what was sent."""
    name, size, filler = content.decode().split("|")
    assert filler == (name * (int(size) // len(name) + 1))[: int(size)], f"the payload of {name} was changed"
    return name
