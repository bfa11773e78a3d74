"""Measures consumer groups: consuming, transforming and producing, against the calls that one call is instead of, and bare polls.

Members are cheap load (`bench.members`). Each round reads the same topic from its start, as a new group; so rounds of both sides of a
ratio do the same work, in turns.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import uvloop

import basalt
from basalt.api.bodies.messages import RecordIn, RecordsRequest
from basalt.api.codecs.avro import encode_records_request
from bench import processes
from bench.figures import Figure
from bench.load import drive, request, turns
from bench.members import (
    JSON,
    Member,
    Source,
    acknowledge_all,
    outputs,
    poll_all,
    timed,
    transform_in_one_call,
    transform_in_three_calls,
    transform_in_two_calls,
)
from bench.processes import Process
from bench.setting_up import (
    BATCH,
    NAMESPACE,
    create_topics,
    messages,
    one_shot_request,
    path,
    publish_request,
)

ROUNDS = 5
SINGLE_CLIENTS = 8
KEYED_MEMBERS = 4
KEYS = 1_000
RESIZES = (10, 3, 12)  # members, one after the other
SPANS = 90_000  # below the highest unackedMax, so that messages behind them are still dealt
IDS_A_REQUEST = 100
PENDING_S = 4
GROUPS = 10_000
WAITING = "&waitMs=20"  # a member whose slots have nothing now is not to ask all the time
TOPICS_OF_GROUPS = 100
CREATORS = 8

Work = Callable[[Member], Awaitable[None]]
_numbers = count()


def _group(server: Process, topic: str, **options: object) -> Source:
    """A new group that begins at the topic's start."""
    source = Source(topic, f"group-{next(_numbers)}")
    drive(server.port, 1, 1, source.put(**options))
    return source


def _fill(server: Process, topic: str, total: int) -> None:
    create_topics(server, topic, "made")
    drive(server.port, 2, total // BATCH, publish_request(topic, BATCH))


class Rates:
    """Messages per second of some kinds of work in turns, and the server's processor time for each message."""

    def __init__(self, server: Process, total: int) -> None:
        self._server = server
        self._total = total
        self._rates: dict[str, list[float]] = {}
        self._cpu_us: dict[str, list[float]] = {}

    def round(self, name: str, run: Callable[[], tuple[float, int]]) -> None:
        """Do one round; it must have come to the end."""
        before_s = self._server.cpu_s()
        seconds, dealt = run()
        assert dealt >= self._total, f"{name}: {dealt} of {self._total} messages were dealt"
        self._rates.setdefault(name, []).append(self._total / seconds)
        self._cpu_us.setdefault(name, []).append((self._server.cpu_s() - before_s) * 1e6 / self._total)

    def rounds(self, number: int, kinds: dict[str, Callable[[], tuple[float, int]]]) -> None:
        """Do so many rounds of each, after one that is not counted."""
        for turn in range(number + 1):
            for name, run in kinds.items():
                self.round(name if turn else f"warm-up of {name}", run)

    def figure(self, title: str, name: str, yardstick: str, of: str, target: float) -> Figure:
        note = f"the yardstick takes {median(self._cpu_us[of]):.2f} us of the server's processor"
        return Figure(
            title, median(self._rates[name]), "msg/s", yardstick, median(self._rates[of]), target,
            cpu_us=median(self._cpu_us[name]), note=note,
        )  # fmt: skip


def _by(
    server: Process, topic: str, names: Sequence[str], work: Work, **options: object
) -> Callable[[], tuple[float, int]]:
    """A round of work by members of a new group."""
    return lambda: timed(server.port, _group(server, topic, **options), names, work)


def _polls(server: Process, topic: str) -> tuple[float, int]:
    source = Source(topic, "none")
    return timed(server.port, source, ("",), lambda member: poll_all(member.reader, topic))


def transforming(folder: Path, quick: bool) -> Iterator[Figure]:
    """Consume, transform and produce, 500 a transaction with one client, and 1 with eight; on the embedded store."""
    with processes.basalt(folder / "data") as server:
        yield from _transforming_batches(server, 20_000 if quick else 100_000)
        yield from _transforming_singles(server, 1_500 if quick else 8_000)


def _transforming_batches(server: Process, total: int) -> Iterator[Figure]:
    _fill(server, "whole", total)
    made, rates = outputs("made", BATCH), Rates(server, total)
    rates.rounds(
        ROUNDS,
        {
            "one": _by(server, "whole", ("",), partial(transform_in_one_call, made=made)),
            "two": _by(server, "whole", ("",), partial(transform_in_two_calls, made=made)),
        },
    )
    yield rates.figure(
        "consume-transform-produce, 500 per transaction, 1 client", "one", "msg/s in two calls", "two", 1.1
    )


def _transforming_singles(server: Process, total: int) -> Iterator[Figure]:
    create_topics(server, "singles")
    drive(server.port, SINGLE_CLIENTS, total, publish_request("singles", 1))
    made, rates, names = outputs("made", 1), Rates(server, total), ("",) * SINGLE_CLIENTS
    rates.rounds(
        ROUNDS,
        {
            "one": _by(server, "singles", names, partial(transform_in_one_call, made=made, limit=1)),
            "three": _by(server, "singles", names, partial(transform_in_three_calls, made=made, limit=1)),
        },
    )
    yield rates.figure(
        "consume-transform-produce, 1 per transaction, 8 clients", "one", "msg/s in three calls", "three", 1.5
    )


def on_one_shots(server: Process, total: int, where: str) -> Iterator[Figure]:
    """Consume, transform and produce against one-shot transactions that publish as much and consume nothing."""
    _fill(server, "whole", total)
    made, rates = outputs("made", BATCH), Rates(server, total)
    one_shots = one_shot_request(BATCH, "made")
    rates.rounds(
        ROUNDS,
        {
            "one": _by(server, "whole", ("",), partial(transform_in_one_call, made=made)),
            "one-shots": lambda: (drive(server.port, 1, total // BATCH, one_shots).seconds, total),
        },
    )
    yield rates.figure(
        f"{where}consume-transform-produce, 500 per transaction", "one", "msg/s of one-shots", "one-shots", 0.8
    )


def acknowledging(folder: Path, quick: bool) -> Iterator[Figure]:
    """Fetch and acknowledge 500 at a time against bare polls; with very many spans; and random ids."""
    total = 50_000 if quick else 200_000
    with processes.basalt(folder / "data", "subscriptions.unacked_max=100000") as server:
        _fill(server, "whole", total)
        rates = Rates(server, total)
        rates.rounds(
            ROUNDS,
            {
                "fetch": _by(server, "whole", ("",), acknowledge_all),
                "poll": partial(_polls, server, "whole"),
            },
        )
        yield rates.figure("fetch + acknowledge, 500 a call", "fetch", "msg/s of bare polls", "poll", 0.7)
        yield from _random_ids(server, total)
        yield from _many_spans(server, 2 * (SPANS // 10 if quick else SPANS), total)


def _random_ids(server: Process, total: int) -> Iterator[Figure]:
    """Messages that are acknowledged by their ids, in no order."""
    ids = _ids(server, "whole")
    rates, cpu_us, chance = [], [], random.Random(7)
    for turn in range(ROUNDS + 1):
        source = _group(server, "whole", unackedMax=100_000)
        chance.shuffle(ids)
        where = path("whole", f"/groups/{source.group}/acknowledge")
        requests = [
            request(where, json.dumps({"ids": ids[start : start + IDS_A_REQUEST]}).encode(), JSON)
            for start in range(0, total, IDS_A_REQUEST)
        ]
        before_s = server.cpu_s()
        rate = drive(server.port, 4, len(requests), turns(requests)).per_second * IDS_A_REQUEST
        if turn:
            rates.append(rate)
            cpu_us.append((server.cpu_s() - before_s) * 1e6 / total)
    yield Figure(
        "acknowledge 100 random ids a request, 4 clients", median(rates), "msg/s", "msg/s", 100_000, 1.0,
        cpu_us=median(cpu_us),
    )  # fmt: skip


def _ids(server: Process, topic: str) -> list[str]:
    with basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE) as client:
        found, start = list[str](), None
        while len(page := client.topic(topic).poll(start, inclusive=start is None)):
            found += [bytes(each).hex() for each in page.ids()]
            start = page.next_id
    return found


def _many_spans(server: Process, scattered: int, total: int) -> Iterator[Figure]:
    """Processor time of fetch and acknowledge, behind every second message of very many and behind none."""
    create_topics(server, "scattered")
    drive(server.port, 2, scattered // BATCH, publish_request("scattered", BATCH))
    ids = _ids(server, "scattered")
    drive(server.port, 2, total // BATCH, publish_request("scattered", BATCH))
    cpu_us: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(ROUNDS + 1):
        for with_spans in (False, True):
            source = _group(server, "scattered", unackedMax=100_000)
            (_acknowledge_every_second if with_spans else _acknowledge_ids)(server, source, ids)
            before_s = server.cpu_s()
            _, dealt = timed(server.port, source, ("",), acknowledge_all)
            assert dealt >= total, (dealt, total)
            if turn:
                cpu_us[with_spans].append((server.cpu_s() - before_s) * 1e6 / total)
    yield Figure(
        f"fetch + acknowledge behind {len(ids) // 2:,} spans", median(cpu_us[True]), "CPU us/msg", "CPU us/msg behind none",
        median(cpu_us[False]), 1.3, at_most=True,
    )  # fmt: skip


def _acknowledge_ids(server: Process, source: Source, ids: Sequence[str]) -> None:
    where = path(source.topic, f"/groups/{source.group}/acknowledge")
    requests = [
        request(where, json.dumps({"ids": ids[start : start + BATCH]}).encode(), JSON)
        for start in range(0, len(ids), BATCH)
    ]
    drive(server.port, 2, len(requests), turns(requests))


def _acknowledge_every_second(server: Process, source: Source, ids: Sequence[str]) -> None:
    """Claim these messages, acknowledge every second one, and keep the others: each lies alone between spans."""

    async def run(member: Member) -> None:
        where = path(source.topic, f"/groups/{source.group}/acknowledge")
        for start in range(0, len(ids), BATCH):
            await member.fetch()
            asked = {"claims": [member.claim], "except": ids[start : start + BATCH : 2]}
            answer = await member.caller.call(request(where, json.dumps(asked).encode(), JSON))
            done = json.loads(answer.partition(b"\r\n\r\n")[2])["acknowledged"]
            assert done == BATCH // 2, f"{done} were acknowledged: the ids are of another claim"

    timed(server.port, source, ("",), run)


def keyed(folder: Path, quick: bool) -> Iterator[Figure]:
    """A keyed group with four members against a shared one; and while its members become more and fewer."""
    total = 20_000 if quick else 100_000
    with processes.basalt(folder / "data") as server:
        create_topics(server, "keyed")
        requests = [_keyed_request("keyed", number) for number in range(8)]
        drive(server.port, 2, total // BATCH, turns(requests))
        rates = Rates(server, total)
        rates.rounds(
            ROUNDS,
            {
                "keyed": lambda: _together(server, total, "keyed"),
                "shared": lambda: _together(server, total, "shared"),
                "resized": lambda: _resized(server, total),
            },
        )
        yield rates.figure("keyed group, 4 members", "keyed", "msg/s of a shared one", "shared", 0.5)
        yield rates.figure(
            f"keyed group while resized {' -> '.join(map(str, RESIZES))}", "resized", "msg/s of 4 members", "keyed", 0.8
        )


def _keyed_request(topic: str, number: int) -> bytes:
    chance = random.Random(number)
    records = [RecordIn(payload, b"key-%d" % chance.randrange(KEYS)) for payload in messages(BATCH)]
    return request(path(topic, "/records"), encode_records_request(RecordsRequest(None, records)))


class Together:
    """Members that share a group until all of them together were dealt everything."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.dealt = 0
        self.leaving: set[Member] = set()

    async def work(self, member: Member) -> None:
        """Fetch and acknowledge."""
        body, seen = b"", 0
        while member not in self.leaving and (self.dealt < self.total or member.claim is not None):
            await member.fetch(body, more=WAITING if self.dealt < self.total else "")
            self.dealt += member.messages - seen
            seen, body = member.messages, b"" if member.claim is None else member.work()
        if member in self.leaving:
            await member.leave()


def _together(server: Process, total: int, mode: str) -> tuple[float, int]:
    names = tuple(f"m{number}" for number in range(KEYED_MEMBERS))
    return timed(server.port, _group(server, "keyed", mode=mode), names, Together(total).work)


def _resized(server: Process, total: int) -> tuple[float, int]:
    """Members that come and leave while others work: a change at the beginning, and once each third was dealt."""
    source, together = _group(server, "keyed", mode="keyed"), Together(total)

    async def run() -> tuple[float, int]:
        everybody, tasks = list[Member](), list[asyncio.Task[None]]()
        start = time.perf_counter()
        for turn, size in enumerate(RESIZES, 1):
            working = [member for member in everybody if member not in together.leaving]
            together.leaving.update(working[size:])
            for _ in range(size - len(working)):
                everybody.append(await Member.connect(server.port, source, f"m{len(everybody)}"))
                tasks.append(asyncio.ensure_future(together.work(everybody[-1])))
            while together.dealt < total * turn // len(RESIZES):
                await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        seconds = time.perf_counter() - start
        for member in everybody:
            member.close()
        return seconds, together.dealt

    return uvloop.run(run())


def held(folder: Path, quick: bool) -> Iterator[Figure]:
    """While a transaction keeps 500 messages pending for four seconds, all others are delivered."""
    total = 20_000 if quick else 100_000
    with processes.basalt(folder / "data") as server:
        _fill(server, "whole", total)
        source = _group(server, "whole")

        async def run() -> tuple[int, float]:
            holder, other = await Member.connect(server.port, source), await Member.connect(server.port, source)
            begun = await holder.caller.call(request("/v1/transactions", b'{"snapshot":false}', JSON))
            transaction = json.loads(begun.partition(b"\r\n\r\n")[2])["id"]
            await holder.fetch()
            asked = json.dumps({"claims": [holder.claim], "transaction": transaction}).encode()
            await holder.caller.call(request(path("whole", f"/groups/{source.group}/acknowledge"), asked, JSON))
            start = time.perf_counter()
            await asyncio.wait_for(acknowledge_all(other), PENDING_S)
            seconds = time.perf_counter() - start
            await holder.caller.call(request(f"/v1/transactions/{transaction}/abort", b"", JSON))
            return other.messages // BATCH * BATCH, seconds

        delivered, seconds = uvloop.run(run())
        yield Figure(
            "delivered while 500 are pending", delivered, "messages", "all others", total - BATCH, 1.0,
            note=f"within {seconds:.2f} s of {PENDING_S}",
        )  # fmt: skip


def start_with_groups(folder: Path, quick: bool) -> Iterator[Figure]:
    """From exec to ready with 10,000 groups, against none."""
    groups = GROUPS // 10 if quick else GROUPS
    for name, number in (("with", groups), ("without", 0)):
        with processes.basalt(folder / name) as server:
            topics = [f"topic-{each}" for each in range(TOPICS_OF_GROUPS)]
            create_topics(server, *topics)
            puts = [Source(topics[each % len(topics)], f"group-{each}").put() for each in range(number)]
            if puts:
                drive(server.port, CREATORS, len(puts), turns(puts))
    ours, theirs = list[float](), list[float]()
    for _ in range(ROUNDS):
        for name, times in (("with", ours), ("without", theirs)):
            with processes.basalt(folder / name) as server:
                times.append(server.start_s * 1_000)
    yield Figure(f"start with {groups:,} groups", median(ours), "ms", "ms without", median(theirs), 1.5, at_most=True)
