"""What the clients of a simulation were told, and what must therefore be true. Kept outside the simulated process."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from basalt.catalog.topics import TopicName


class Told(enum.Enum):
    """What a client knows of its call."""

    NOTHING = "nothing"  # no answer, or one that says that nobody knows
    DONE = "done"
    REFUSED = "refused"


@dataclass(slots=True)
class Sent:
    """One message: `sent` and `told_at` are moments in the order of all that clients did.

    A topic may be created anew while a call is under way: the message is of a generation from `generation` (when it was
    sent) to `told_generation` (when it was answered).
    """

    text: str
    title: TopicName
    generation: int
    sent: int
    tx: int | None
    told: Told = Told.NOTHING
    told_at: int = 0
    told_generation: int = 1 << 30

    def is_of(self, title: TopicName, generation: int) -> bool:
        """Whether it may be in this generation."""
        return self.title == title and self.generation <= generation <= self.told_generation

    def is_only_of(self, title: TopicName, generation: int) -> bool:
        """Whether it can be in this generation only."""
        return self.title == title and self.generation == generation == self.told_generation


@dataclass(slots=True)
class Ending:
    """One transaction: what its client asked for last, and what it was told."""

    asked: str = ""
    told: Told = Told.NOTHING
    may_lack: bool = False  # a call under it failed, so that its client cannot say what it holds


@dataclass(slots=True)
class History:
    """All that clients did, by message text and by transaction id."""

    moment: int = 0
    sent: dict[str, Sent] = field(default_factory=dict)
    transactions: dict[int, Ending] = field(default_factory=dict)
    pointers: list[int] = field(default_factory=list)
    generations: dict[TopicName, int] = field(default_factory=dict)

    def now(self) -> int:
        self.moment += 1
        return self.moment

    def visible_for_sure(self, message: Sent) -> bool:
        """Whether a reader of committed messages must see it, in its generation."""
        if message.told is not Told.DONE:
            return False
        if message.tx is None:
            return True
        ending = self.transactions[message.tx]
        return ending.asked == "commit" and ending.told is Told.DONE

    def hidden_for_sure(self, message: Sent) -> bool:
        """Whether no reader of committed messages may ever see it."""
        if message.told is Told.REFUSED:
            return True
        if message.tx is None:
            return False
        ending = self.transactions[message.tx]
        if ending.asked == "commit":
            return ending.told is Told.REFUSED
        return True  # aborted, or never ended by its client: a time-out ends it

    def check_read(self, title: TopicName, texts: list[str], *, committed: bool) -> None:
        """What one reader saw of a topic from its oldest message on."""
        generation = self.generations.get(title, 0)
        # A transaction that was rolled back stays in the sight of plain readers, and its client may have sent it again.
        twice = [text for text in texts if texts.count(text) > 1 and (committed or self.sent[text].tx is None)]
        assert not twice, f"{title}: {twice} came twice"
        for text in texts:
            message = self.sent[text]
            assert message.is_of(title, generation), f"{title}: {text} is of another generation"
            if committed:
                assert not self.hidden_for_sure(message), f"{title}: {text} should be hidden"
            elif message.tx is None:
                assert message.told is not Told.REFUSED, f"{title}: {text} was refused"
        seen = set(texts)
        for message in self.sent.values():
            if message.is_only_of(title, generation) and self.visible_for_sure(message):
                assert message.text in seen, f"{title}: {message.text} was acknowledged and is gone"
        self._check_order(title, texts)

    def _check_order(self, title: TopicName, texts: list[str]) -> None:
        """If one plain publish was answered before another was sent, it comes first."""
        newest_sent = 0
        for text in texts:
            message = self.sent[text]
            if message.tx is not None:
                continue
            assert not message.told_at or message.told_at >= newest_sent, f"{title}: {text} comes too late"
            newest_sent = max(newest_sent, message.sent)

    def check_all_or_nothing(self, committed: dict[TopicName, list[str]]) -> None:
        """A transaction shows all that was accepted under it, in all topics that still stand, or nothing."""
        seen = {text for texts in committed.values() for text in texts}
        accepted: dict[int, list[bool]] = {}
        for message in self.sent.values():
            if message.tx is None or not message.is_only_of(message.title, self.generations.get(message.title, 0)):
                continue
            if message.told is Told.DONE or message.text in seen:
                accepted.setdefault(message.tx, []).append(message.text in seen)
        for tx, shown in accepted.items():
            assert all(shown) or not any(shown) or self.transactions[tx].may_lack, f"transaction {tx} is torn"
