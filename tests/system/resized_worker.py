"""A process with some members of a keyed group, each in a thread of its own: `resized_worker.py URL`. They publish what they consume again.

It is told on its standard input who is to begin and to leave, a line each (`begin NAME`, `leave NAME`), says `begun NAME` and
`left NAME` once they have, and ends with its input. A member that fails ends the process.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

import basalt

NAMESPACE = "shop"
INPUTS, OUTPUTS = "orders", "copies"
GROUP = "copying"
BATCH = 40
LEASE_MS = 60_000  # nobody dies here: a member that is slow on a loaded machine is not to be taken for lost
FAILED = 3


def say(line: str) -> None:
    """Say one line, in one piece: `print` of two threads would mix them."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


class WorkingMember:
    """One member, until it is told to leave."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def tell_to_leave(self) -> None:
        self._leaving.set()

    def leave(self) -> None:
        self.tell_to_leave()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(FAILED)

    def _work(self) -> None:
        def handle(batch: basalt.Batch, out: basalt.Output) -> None:
            for message in batch:
                out.publish(OUTPUTS, message.payload, key=message.key, headers={"member": self._name})

        options = {"member_ms": LEASE_MS, "claim_ms": LEASE_MS, "retry_delay_ms": 10}
        with (
            basalt.connect(self._url, namespace=NAMESPACE, timeout_ms=LEASE_MS) as client,
            client.consumer(INPUTS, group=GROUP, mode="keyed", member=self._name, **options) as orders,  # type: ignore[arg-type]
        ):
            say(f"begun {self._name}")
            orders.process(handle, until=self._leaving.is_set, limit=BATCH)


def main(url: str) -> None:
    members: dict[str, WorkingMember] = {}
    for line in sys.stdin:
        told, _, name = line.strip().partition(" ")
        if told == "begin":
            members[name] = WorkingMember(url, name)
        else:
            members.pop(name).leave()
            say(f"left {name}")
    for member in members.values():
        member.tell_to_leave()
    for member in members.values():
        member.leave()


if __name__ == "__main__":
    main(sys.argv[1])
