"""Plans for named producers: who reads a file, or another system's log, and publishes it once, whatever dies meanwhile.

A producer's caller gives each message a number, such as its line in the file. The server keeps the last one, and takes messages
with numbers up to it for a repetition; so whoever comes back asks for it and goes on behind it. Opened by another run, an older
one is fenced. Routes: docs/reference/http-api.md, "Producers". The automatic ones of `topic.publish`: `basalt.client.producers`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import uuid4

from basalt.api.bodies.topics import OpenedProducer, OpenProducer, ProducerInfo, ProducerList
from basalt.client.calls.messages import encoded, publish_call
from basalt.client.calls.payloads import Beside, HeadersLike, Outgoing, Payloads, Text, chunks, each_message
from basalt.client.plans import ClientScope, Effect, Steps, TopicScope, ask, get_json, json_of, nothing, send_json
from basalt.client.producers import AFTER_HEADER, EPOCH_HEADER, PRODUCER_HEADER, SEQUENCE_HEADER
from basalt.errors import InputError, RetryError, UnknownOutcomeError


@dataclass(slots=True)
class ProducerScope:
    """A named producer that this run holds. `last_sequence` is the number of the last message that it has published; -1: none."""

    topic: TopicScope
    name: str
    run: str
    epoch: int
    last_sequence: int
    doubtful_through: int = -1  # the last number of which nobody knows whether its message is there
    publishing: threading.Lock = field(default_factory=threading.Lock)
    process: int = field(default_factory=os.getpid)

    def __str__(self) -> str:
        return f"{self.name!r} of topic {self.topic}"


def open_producer(
    scope: ClientScope, topic: str, name: str, *, run: str | None = None, namespace: str | None = None
) -> Steps[ProducerScope]:
    """Open a producer of a topic by its name, and fence every run that has it open, but for the same `run` (None: its own).

    It knows what was published under the name: `last_sequence`. The server forgets one that is not used for seven days.
    """
    title, run = scope.topic(topic, namespace=namespace), run or uuid4().hex
    what, path = f"open producer {name!r} of {title}", title.path("producers", name)
    opened = yield from send_json("POST", what, path, json_of(OpenedProducer), body=OpenProducer(run))
    return ProducerScope(title, name, run, opened.epoch, opened.last_sequence)


def publish(
    producer: ProducerScope,
    messages: Payloads,
    *,
    sequence: int | None = None,
    key: Text | None = None,
    headers: HeadersLike | None = None,
    event_time_ms: int | None = None,
    ttl_ms: int | None = None,
) -> Steps[None]:
    """Publish messages that the server has not got yet. `sequence` is the number of the first, the others count up.

    Those with numbers up to the producer's last are there already, and left out. Numbers may be left out between calls, but
    never go down. None: one more than the last. What is given beside is as with `topic.publish`.

    One call at a time. After `UnknownOutcomeError` publish the same again with its `sequence`, in parts of any size.
    `ProducerFencedError`: another run has it.
    """
    with _alone(producer):
        first = _first_of(producer, sequence)
        for run in chunks(each_message(messages, Beside(key, headers, event_time_ms, ttl_ms))):
            yield from _publish_run(producer, run, first)
            first += len(run)


def producers(scope: TopicScope) -> Steps[list[ProducerInfo]]:
    """The producers of the topic that the server remembers, by name: those that were opened, and clients' automatic ones."""
    found = yield from get_json(ProducerList, f"list producers of {scope}", scope.path("producers"))
    return list(found.producers)


def delete_producer(scope: TopicScope, name: str) -> Steps[None]:
    """Forget a producer: its next publish is refused, and one that is opened under its name begins with no number.

    `ProducerNotFoundError` when the topic knows none of the name.
    """
    what, path = f"delete producer {name!r} of {scope}", scope.path("producers", name)
    return send_json("DELETE", what, path, nothing, Effect.ONCE)


@contextmanager
def _alone(producer: ProducerScope) -> Iterator[None]:
    """Two publishes at once would number their messages alike, and those of one would be dropped as a repetition.

    So would those of a forked child.
    """
    if producer.process != os.getpid():
        raise InputError(
            f"producer {producer} was opened in another process, which goes on with its numbers",
            hint="Open it in the process that publishes.",
        )
    if not producer.publishing.acquire(blocking=False):
        raise InputError(
            f"producer {producer} is publishing", hint="One call at a time, or a producer for each thread or task."
        )
    try:
        yield
    finally:
        producer.publishing.release()


def _first_of(producer: ProducerScope, sequence: int | None) -> int:
    if sequence is not None:
        if not isinstance(sequence, int):
            raise TypeError(f"sequence is a whole number, not {sequence!r}")
        return sequence
    following = producer.last_sequence + 1
    if producer.doubtful_through >= following:
        raise InputError(
            f"whether messages {following} to {producer.doubtful_through} of producer {producer} are there is unknown",
            field="sequence",
            hint=f"Publish them again with sequence={following}, or open the producer again.",
        )
    return following


def _publish_run(producer: ProducerScope, run: list[Outgoing], first: int) -> Steps[None]:
    path, body = encoded(run, None)
    last = first + len(run) - 1
    call = publish_call(f"publish {first} to {last} of producer {producer}", producer.topic.path(*path), body)
    headers = {
        PRODUCER_HEADER: producer.name,
        EPOCH_HEADER: str(producer.epoch),
        SEQUENCE_HEADER: str(first),
        AFTER_HEADER: str(min(producer.last_sequence, first - 1)),
    }
    hint = f"Publish the same again with sequence={first}: what is there is left out."
    doubtful_before, producer.doubtful_through = producer.doubtful_through, max(last, producer.doubtful_through)
    try:
        yield from ask(replace(call, effect=Effect.NUMBERED, headers=headers, lost_hint=hint))
    except UnknownOutcomeError:
        raise
    except (InputError, RetryError):
        producer.doubtful_through = doubtful_before  # nothing came of this one
        raise
    producer.last_sequence = max(producer.last_sequence, last)
