"""Members of consumer groups as cheap load: connections that fetch, work and acknowledge, with bodies encoded as far as can be."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import uvloop

from basalt.api.bodies.messages import ConsumeRequest, Work, WorkAcknowledge, WorkPublish
from basalt.api.codecs.avro import encode_consume_request, encode_work
from basalt.api.codecs.avro_values import END_OF_ARRAY
from bench.load import Connection, request
from bench.readers import BATCHES, Reader, next_position
from bench.setting_up import BATCH, MESSAGE_BYTES, NAMESPACE, messages, path

JSON = "application/json"
NOTHING_MADE = encode_work(Work())
NOTHING_BEFORE = 2 * len(END_OF_ARRAY)  # of a Work that only acknowledges: no topics, and no markers
_CLAIM = re.compile(rb"^basalt-claim: *(\d+)\r$", re.IGNORECASE | re.MULTILINE)
_EPOCH = re.compile(rb"^basalt-member-epoch: *(\d+)\r$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """A topic that is read, and the group that reads it; `mode` and options go with the group when it is made."""

    topic: str
    group: str

    def fetch(self, body: bytes = b"", member: str = "", epoch: int = 0, limit: int = BATCH, more: str = "") -> bytes:
        """The request that carries out a Work, if there is one, and claims the next messages."""
        query = f"?limit={limit}{more}" + (f"&member={member}&epoch={epoch}" if member else "")
        return request(path(self.topic, f"/groups/{self.group}/fetch{query}"), body, accept=BATCHES)

    def acknowledge(self, claim: int, member: str = "", epoch: int = 0) -> WorkAcknowledge:
        """The entry of a Work that acknowledges a claim."""
        return WorkAcknowledge(NAMESPACE, self.topic, self.group, member=member, epoch=epoch, claims=(claim,))

    def put(self, **options: object) -> bytes:
        """The request that makes the group."""
        return request(path(self.topic, f"/groups/{self.group}"), json.dumps(options).encode(), JSON, "PUT")


def claim_of(head: bytes) -> int | None:
    """The claim that an answer tells; None: nothing was claimed."""
    found = _CLAIM.search(head)
    return None if found is None else int(found[1])


class Member:
    """A member's connections, the messages that it was dealt, and its claim."""

    def __init__(self, reader: Reader, caller: Connection, source: Source, name: str = "") -> None:
        self.reader = reader  # fetches, whose messages are counted and not kept
        self.caller = caller
        self.source = source
        self.name = name
        self.epoch = 0
        self.claim: int | None = None

    @classmethod
    async def connect(cls, port: int, source: Source, name: str = "") -> Member:
        """One that has not called yet."""
        loop = asyncio.get_running_loop()
        _, reader = await loop.create_connection(Reader, "127.0.0.1", port)
        _, caller = await loop.create_connection(Connection, "127.0.0.1", port)
        return cls(reader, caller, source, name)

    def close(self) -> None:
        self.reader.close()
        self.caller.close()

    @property
    def messages(self) -> int:
        """The messages that it was dealt, by their bytes."""
        return self.reader.body_bytes // MESSAGE_BYTES

    async def fetch(self, body: bytes = b"", limit: int = BATCH, more: str = "") -> bool:
        """Carry a Work out and claim the next messages; False when there are none."""
        head = await self.reader.call(self.source.fetch(body, self.name, self.epoch, limit, more))
        if self.name and (found := _EPOCH.search(head)):
            self.epoch = int(found[1])
        self.claim = claim_of(head)
        return self.claim is not None

    def work(self, made: bytes = NOTHING_MADE) -> bytes:
        """The Work that acknowledges its claim, and publishes what was made (`outputs`)."""
        if self.claim is None:
            return made
        acknowledge = (self.source.acknowledge(self.claim, self.name, self.epoch),)
        return made[: -len(END_OF_ARRAY)] + encode_work(Work(acknowledge=acknowledge))[NOTHING_BEFORE:]

    async def leave(self) -> None:
        """Acknowledge what it was dealt, and leave the group: its slots go to others."""
        if self.claim is not None:
            asked = json.dumps({"claims": [self.claim], "member": self.name, "epoch": self.epoch}).encode()
            group = path(self.source.topic, f"/groups/{self.source.group}/acknowledge")
            await self.caller.call(request(group, asked, JSON))
        where = path(self.source.topic, f"/groups/{self.source.group}/members/{self.name}?epoch={self.epoch}")
        await self.caller.call(request(where, b"", JSON, "DELETE"))


def outputs(topic: str, count: int) -> bytes:
    """What a consumer makes of so many messages, as many and of the same size: a Work that is encoded but for what it acknowledges."""
    return encode_work(Work(publish=[WorkPublish(NAMESPACE, topic, messages(count))]))


def timed(
    port: int, source: Source, names: Sequence[str], work: Callable[[Member], Awaitable[None]]
) -> tuple[float, int]:
    """Let members do this at the same time: the seconds that it takes, and the messages that they were dealt."""

    async def whole() -> tuple[float, int]:
        members = [await Member.connect(port, source, name) for name in names]
        start = time.perf_counter()
        await asyncio.gather(*map(work, members))
        seconds = time.perf_counter() - start
        for member in members:
            member.close()
        return seconds, sum(member.messages for member in members)

    return uvloop.run(whole())


async def transform_in_one_call(member: Member, made: bytes, limit: int = BATCH) -> None:
    """Fetch, publish and acknowledge until nothing is left: each round is one call, which commits and claims."""
    more = await member.fetch(limit=limit)
    while more:
        more = await member.fetch(member.work(made), limit)


async def transform_in_two_calls(member: Member, made: bytes, limit: int = BATCH) -> None:
    """The same with a one-shot transaction and a fetch."""
    while await member.fetch(limit=limit):
        await member.caller.call(request("/v1/transactions", member.work(made)))


async def transform_in_three_calls(member: Member, made: bytes, limit: int = BATCH) -> None:
    """The same with a begin, a commit and a fetch."""
    while await member.fetch(limit=limit):
        begun = await member.caller.call(request("/v1/transactions", b'{"snapshot":false}', JSON))
        transaction = json.loads(begun.partition(b"\r\n\r\n")[2])["id"]
        await member.caller.call(request(f"/v1/transactions/{transaction}/commit", member.work(made)))


async def acknowledge_all(member: Member, limit: int = BATCH) -> None:
    """Fetch and acknowledge until nothing is left, one call a round."""
    more = await member.fetch(limit=limit)
    while more:
        more = await member.fetch(member.work(), limit)


async def poll_all(reader: Reader, topic: str) -> None:
    """Read a topic to its end as a committed reader does, in pages of as many messages as a claim has."""
    position: bytes | None = None
    poll = path(topic, "/poll?isolation=committed")
    while True:
        body = encode_consume_request(ConsumeRequest(position, position is None, BATCH, None))
        found = next_position(await reader.call(request(poll, body, accept=BATCHES)))
        if found in (None, position):
            return
        position = found
