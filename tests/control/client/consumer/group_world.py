"""A server with one group, for plans of consumers: it deals, acknowledges and forgets as the rules say, and fails when it is told to.

Plans are run here without a driver. What happens is kept as words: `story`. No time passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from basalt.api.bodies import json
from basalt.api.bodies.groups import (
    Acknowledged,
    AcknowledgeRequest,
    GroupInfo,
    GroupOptions,
    MemberRequest,
    MemberStanding,
    Released,
    ReleaseRequest,
)
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import Work, WorkAcknowledge
from basalt.api.bodies.transactions import TransactionInfo, TransactionOutcome
from basalt.api.codecs import avro, batches
from basalt.client.consumer import open_consumer
from basalt.client.consumer.open_consumer import OpenConsumer
from basalt.client.plans import Answer, Await, Call, ClientScope, Rest, Steps
from basalt.errors import ClaimLostError, GroupNotFoundError, MemberFencedError, TransactionConflictError

NOW_MS = 1_700_000_000_000
PLACE = "/v1/namespaces/shop/topics/orders/groups/billing"


def id_at(number: int) -> bytes:
    return number.to_bytes(20)


class GroupWorld:
    """The group `billing` of topic `orders`, with these messages."""

    def __init__(self, *payloads: bytes) -> None:
        self.messages = {id_at(number): payload for number, payload in enumerate(payloads, 1)}
        self.options: GroupOptions | None = None
        self.waiting = [*self.messages]  # to be dealt, in order
        self.claimed: dict[int, list[bytes]] = {}
        self.others: set[bytes] = set()  # claimed by another member
        self.acknowledged: list[bytes] = []
        self.rejected: dict[bytes, str] = {}
        self.published: list[tuple[str, bytes]] = []
        self.returned: list[tuple[bytes, bool, str]] = []  # what came back, whether it counted, and why
        self.round = 0
        self.epochs: dict[str, int] = {}
        self.claims = 0
        self.fails: dict[str, list[BaseException | None]] = {}  # by the word of the story: what its next calls raise
        self.before: dict[str, Callable[[], object]] = {}  # by the word: what happens elsewhere before its next call
        self.empty = "no_messages"
        self.story: list[str] = []
        self.lines: list[str] = []
        self.rests_ms: list[float] = []
        self.works: list[Work] = []
        self.calls: list[Call[Any]] = []
        self.extended: list[tuple[int, ...]] = []
        self.scope = ClientScope("shop", lambda: NOW_MS)

    def consumer(self, member: str = "m1", **options: Any) -> OpenConsumer:
        """A consumer that has joined."""
        consumer = open_consumer.consumer(self.scope, "orders", group="billing", member=member, **options)
        self.run(open_consumer.enter(consumer))
        self.story.clear()
        return consumer

    def run(self, steps: Steps[Any]) -> Any:
        """Run a plan to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    result = self._step(step)
                except BaseException as error:  # the plan is to judge
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as stop:
            return stop.value

    def fence(self, member: str = "m1") -> None:
        """Let another process join under this name."""
        self.epochs[member] += 1

    def restart(self) -> None:
        """Forget what lives in memory: claims and members."""
        self.waiting = sorted({*self.waiting, *(each for ids in self.claimed.values() for each in ids), *self.others})
        self.claimed.clear()
        self.others.clear()

    def texts(self, ids: list[bytes] | dict[bytes, str]) -> list[str]:
        return [self.messages[each].decode() for each in ids]

    def _step(self, step: Call[Any] | Await | Rest) -> Any:
        if isinstance(step, Rest):
            self.lines += [] if step.line is None else [step.line]
            self.rests_ms.append(step.duration_ms)
            return None
        if isinstance(step, Await):
            return asyncio.run(_awaited(step))
        return step.parse(self._answer(step))

    def _answer(self, call: Call[Any]) -> Answer:
        self.calls.append(call)
        word, answer = self._route(call)
        self.story.append(word)
        self.before.pop(word, lambda: None)()
        planned = self.fails.get(word)
        if planned and (error := planned.pop(0)) is not None:
            raise error
        return answer(call)

    def _route(self, call: Call[Any]) -> tuple[str, Callable[[Call[Any]], Answer]]:
        path = call.path.removeprefix(PLACE)
        if path.startswith("/v1/transactions"):
            return self._transaction_route(call)
        if path.startswith("/members/"):
            return ("leave", self._leave) if call.method == "DELETE" else ("renew", self._renew)
        word = {"": call.method.lower()}.get(path, path.removeprefix("/"))
        if word == "fetch" and call.body:
            word = "work+fetch"
        return word, getattr(self, "_fetch" if word == "work+fetch" else f"_{word}")

    def _transaction_route(self, call: Call[Any]) -> tuple[str, Callable[[Call[Any]], Answer]]:
        info = TransactionInfo("7", 7, "OPEN")
        if call.path.endswith("/commit"):
            return "commit", self._one_shot
        if call.path.endswith("/abort"):
            return "abort", lambda _call: _json(TransactionOutcome("7", 7, "ABORTED"))
        if call.content_type == "application/json":
            return "begin", lambda _call: _json(info)
        return "one-shot", self._one_shot

    def _get(self, _call: Call[Any]) -> Answer:
        if self.options is None:
            raise GroupNotFoundError("no group")
        return self._info()

    def _put(self, call: Call[Any]) -> Answer:
        self.options = json.decode(call.body, GroupOptions)
        return self._info()

    def _info(self) -> Answer:
        assert self.options is not None
        floor = HexMessageId(bytes(20))
        return _json(GroupInfo("shop", "orders", 1, "billing", 1, self.options, False, self.round, floor, 0, 0, 0, 0))

    def _renew(self, call: Call[Any]) -> Answer:
        asked, member = json.decode(call.body, MemberRequest), call.path.rpartition("/")[2]
        self._check(member, asked.epoch)
        self.epochs[member] = asked.epoch or self.epochs.get(member, 0) + 1
        self.extended.append(asked.extend)
        return _json(MemberStanding(self.epochs[member], self.round, 0, tuple(self.claimed)))

    def _leave(self, _call: Call[Any]) -> Answer:
        self.restart()
        return Answer(204, {}, b"")

    def _fetch(self, call: Call[Any]) -> Answer:
        query = dict(call.query)
        member = query["member"]
        self._check(member, int(query.get("epoch", 0)))
        if call.body:
            self._do(avro.decode_work(call.body))
        limit = int(query.get("limit", 100))
        ids, self.waiting = self.waiting[:limit], self.waiting[limit:]
        headers = {"content-type": "application/vnd.basalt.batches", "basalt-member-epoch": str(self.epochs[member])}
        if not ids:
            return Answer(200, {**headers, "basalt-waiting-for": self.empty}, batches.START + batches.END)
        self.claims += 1
        self.claimed[self.claims] = ids
        headers |= {"basalt-claim": str(self.claims), "basalt-attempt": "1", "basalt-round": str(self.round)}
        listed = batches.encode_list(ids, [self.messages[each] for each in ids])
        return Answer(200, headers, b"".join([batches.START, listed, batches.END]))

    def _acknowledge(self, call: Call[Any]) -> Answer:
        asked = json.decode(call.body, AcknowledgeRequest)
        self._check(asked.member, asked.epoch)
        ids = self._meant(asked.claims, asked.ids, asked.round)
        self._note(ids)
        return _json(Acknowledged(len(ids), 0))

    def _release(self, call: Call[Any]) -> Answer:
        asked = json.decode(call.body, ReleaseRequest)
        ids = self._meant(asked.claims, asked.ids, asked.round)
        self._end_claims(ids)
        self.returned += [(each, asked.counts, asked.reason) for each in ids]
        return _json(Released(len(ids)))

    def _one_shot(self, call: Call[Any]) -> Answer:
        if call.body:
            self._do(avro.decode_work(call.body))
        return _json(TransactionOutcome("7", 7, "COMMITTED"))

    def _do(self, work: Work) -> None:
        self.works.append(work)
        meant = [self._entry(entry) for entry in work.acknowledge]
        if any(each in self.acknowledged for ids in meant for each in ids):
            raise TransactionConflictError("acknowledged by another")
        for ids, entry in zip(meant, work.acknowledge, strict=True):
            self._note(ids)
            self.rejected |= {each.id: each.reason for each in entry.reject}
        self.published += [(each.topic, bytes(message)) for each in work.publish for message in each.messages]

    def _entry(self, entry: WorkAcknowledge) -> list[bytes]:
        self._check(entry.member, entry.epoch)
        named = [*entry.ids, *(each.id for each in entry.reject)]
        return list(dict.fromkeys(self._meant(entry.claims, named, entry.round)))

    def _meant(self, claims: Any, ids: Any, round_number: int) -> list[bytes]:
        if any(each not in self.claimed for each in claims):
            raise ClaimLostError("no such claim")
        named = list(map(bytes, ids))
        if named and (round_number != self.round or self.others.intersection(named)):
            raise ClaimLostError("another has it")
        return [*(each for claim in claims for each in self.claimed[claim]), *named]

    def _note(self, ids: list[bytes]) -> None:
        self._end_claims(ids)
        self.waiting = [each for each in self.waiting if each not in ids]
        self.acknowledged += ids

    def _end_claims(self, ids: list[bytes]) -> None:
        self.claimed = {
            claim: left for claim, held in self.claimed.items() if (left := [each for each in held if each not in ids])
        }

    def _check(self, member: str, epoch: int) -> None:
        if epoch and epoch < self.epochs.get(member, 0):
            raise MemberFencedError(f"another process is {member} by now")


async def _awaited(step: Await) -> Any:
    return await step.awaitable


def _json(body: object) -> Answer:
    return Answer(200, {"content-type": "application/json"}, json.encode(body))
