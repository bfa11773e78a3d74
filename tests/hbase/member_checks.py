"""Compare what clients of several servers were told with what is in the topics: nothing lost, doubled, torn, or out of order.

Pure: texts of messages are `NAME.NUMBER`, each client has a name and counts upwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

Message = tuple[str, str]  # id in hex, text


def name_of(text: str) -> str:
    """The client that sent it."""
    return text.partition(".")[0]


def number_of(text: str) -> int:
    return int(text.partition(".")[2])


def check_once(texts: Sequence[str]) -> None:
    """No message is there twice."""
    seen: set[str] = set()
    doubled = [text for text in texts if text in seen or seen.add(text)]  # type: ignore[func-returns-value]
    assert not doubled, f"messages came twice: {doubled[:10]}"


def check_places(messages: Sequence[Message]) -> None:
    """Positions never go back."""
    ids = [each for each, _ in messages]
    back = [pair for pair in pairwise(ids) if pair[0] >= pair[1]]
    assert not back, f"positions went back: {back[:3]}"


def check_order(texts: Sequence[str], done: Collection[str]) -> None:
    """Who was answered before the next message was sent comes first. What was not answered may have come later than what followed it."""
    highest: dict[str, int] = {}
    for text in texts:
        name, number = name_of(text), number_of(text)
        if text in done:
            assert number > highest.get(name, -1), (
                f"{text} was answered before {name}.{highest[name]} was sent, and is behind it"
            )
        highest[name] = max(number, highest.get(name, -1))


def check_there(texts: Collection[str], done: Collection[str], unknown: Collection[str]) -> None:
    """All that was acknowledged is there, and of the rest at most what nobody knows of."""
    there = set(texts)
    lost = sorted(set(done) - there)
    assert not lost, f"{len(lost)} acknowledged messages are gone: {lost[:10]}"
    extra = sorted(there - set(done) - set(unknown))
    assert not extra, f"{len(extra)} messages are there that were refused or aborted: {extra[:10]}"


def check_whole(texts: Mapping[str, Sequence[str]], names: Collection[str]) -> None:
    """What these clients send to all topics is in all, or in none."""
    by_topic = {topic: {text for text in each if name_of(text) in names} for topic, each in texts.items()}
    (first, one), *others = by_topic.items()
    for topic, other in others:
        torn = sorted(one ^ other)
        assert not torn, f"{len(torn)} transactions are not whole in {first} and {topic}: {torn[:10]}"


def check_committed_reader(seen: Sequence[Message], found: Sequence[Message]) -> None:
    """What it has seen is what there is, from the start on: it saw nothing that was aborted, and nothing turned up behind it."""
    place = next((at for at, pair in enumerate(zip(seen, found, strict=False)) if pair[0] != pair[1]), None)
    if place is not None:
        raise AssertionError(f"at {place} a committed reader saw {seen[place]}, and there is {found[place]}")
    assert len(seen) <= len(found), f"a committed reader saw {seen[len(found) :][:10]}, which are not there"


def check_raw_reader(seen: Sequence[Message], raw: Sequence[Message], found: Sequence[Message]) -> None:
    """Only what was rolled back may be gone since; nothing turned up behind it."""
    if seen:
        there, kept = set(raw), [message for message in seen if message in set(raw)]
        passed = [message for message in raw if message[0] <= seen[-1][0]]
        assert kept == passed, f"behind a raw reader turned up {sorted(set(passed) - set(kept))[:10]}"
        gone = [message for message in found if message[0] <= seen[-1][0] and message not in set(seen)]
        assert not gone, f"a raw reader has passed {gone[:10]} without seeing them"
        assert set(found) <= there
