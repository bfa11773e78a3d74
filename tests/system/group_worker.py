"""A member of a consumer group in a process of its own, which tests kill: it hands each message on to another topic, exactly once.

    python group_worker.py URL GROUP MODE WAY [TOPIC]

`WAY` is how it commits: `process`, one request a round, or `transaction`, one of its own for each batch. What it hands on has the
message's key, so that order per key can be seen behind it. A message that begins with "poison" cannot be handled. SIGTERM has it
leave in the midst of whatever it does, as an interrupt would.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import basalt
from basalt.errors import BasaltError, ConflictError, RetryError

NAMESPACE = "shop"
INPUTS = "inputs"
BATCH = 20
ATTEMPTS_MAX = 12  # a member that is killed counts too, and what can be handled must not die of it
OPTIONS: dict[str, Any] = {
    "member_ms": 1_000,  # of a member that was killed: what it held is dealt again soon
    "claim_ms": 3_000,
    "attempts_max": ATTEMPTS_MAX,
    "retry_delay_ms": 10,
    "retry_delay_ms_max": 20,
}


def outputs_of(group: str) -> str:
    return f"{group}-outputs"


def dead_of(group: str) -> str:
    return f"{group}-dead"


class PoisonError(Exception):
    """A message cannot be handled, however often."""


def _hand_on(messages: Any, publish: Callable[..., object], topic: str) -> None:
    for message in messages:
        if message.payload.startswith(b"poison"):
            raise PoisonError(message.text)
        publish(topic, message.payload, key=message.key)


def _process(consumer: Any, topic: str) -> None:
    consumer.process(lambda batch, out: _hand_on(batch, out.publish, topic), limit=BATCH, errors_max=1_000_000)


def _transactions(client: Any, consumer: Any, topic: str) -> None:
    for batch in consumer.batches(limit=BATCH):
        try:
            with client.transaction(timeout_ms=2_000) as tx:
                _hand_on(batch, tx.publish, topic)
                tx.acknowledge(batch)
        except (PoisonError, ConflictError, RetryError):
            continue  # the batch goes back


def main(url: str, group: str, mode: str, way: str, inputs: str = INPUTS) -> None:
    _ = basalt.Client  # is loaded before a signal may interrupt that: msgspec crashes where a decoder is being made
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    topic = outputs_of(group)
    while True:
        try:
            with (
                basalt.connect(url, namespace=NAMESPACE) as client,
                client.consumer(
                    inputs, group=group, mode=mode, dead_letter_topic=dead_of(group), **OPTIONS
                ) as consumer,
            ):
                if way == "process":
                    _process(consumer, topic)
                else:
                    _transactions(client, consumer, topic)
        except BasaltError as error:  # an outage that took longer than a client waits
            print(f"{group} {way}: {error!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
