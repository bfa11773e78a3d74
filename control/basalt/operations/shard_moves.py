"""The leader deals the shards: planned moves, what members that ended had, what members do not serve though the map gives it to them, and balance.

A planned move is a release, a row of the map, and a take, at whichever members. Nobody loses anything and nobody is refused, where it takes under a second.
Before the map is written a move can be called off. From then on there is no way back, for the map may have been written by a write whose answer was lost:
writing it is tried until it has succeeded or the term is over. Each new map is told to all members that are linked; the others read it.

A shard goes to another member only when its owner has said that it does not have it any more, or when the owner's membership has ended. So an answer that is lost moves nothing:
if the member did release the shard, its beats do not report it, and after two seconds it is asked once more, to give up whatever it has, and the shard is granted anew.
While nobody can ask the member, nobody knows that it does not serve, and its membership decides. Decision 0072.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from basalt.cluster.balance import WAVE_EVERY_MS, Move
from basalt.cluster.links.beats import Beat
from basalt.cluster.links.fellows import Fellows
from basalt.cluster.links.shard_calls import Left, Release
from basalt.cluster.owners import OwnersMap, deal
from basalt.cluster.reigns import Phase
from basalt.cluster.shard_targets import ShardTargets, Weighed
from basalt.errors import (
    BasaltError,
    BusyError,
    ConflictError,
    InputError,
    StoppingError,
    UnknownOutcomeError,
)
from basalt.operations.shard_holding import (
    RELEASE_MS_MAX,
    TRY_AGAIN_S_MAX,
    TRY_AGAIN_S_MIN,
    ShardHolding,
    measured,
    named,
)
from basalt_engine.clock import Clock, Durations
from basalt_engine.errors import FencedError
from basalt_engine.stores.shards import SHARDS, Epochs
from basalt_engine.table import Store

ANSWER_MS_MAX = (
    20_000  # a fence to a region that does not answer takes 15 s to fail; whoever asked for the move hears of it then
)
TAKE_MS_MAX = (
    2_000  # that a member may need to take: then another is given the shards. A fence takes some hundredths of a second
)
BALANCE_LOOK_MS = (
    1_000  # between two looks at loads, which are measured anew as often: with a hundred members a look takes 4 ms
)
LOOK_MS = 250  # between two looks at what members hold: as often as they tell it
RELEASE_CALL_MS = RELEASE_MS_MAX + 1_000  # the member calls its release off before its answer is given up
WITHDRAW_MS = 1_000  # a member answers it at once

# Why shards moved.
PLANNED, CALLED_OFF, ENDED, MISSING = "planned", "called_off", "ended", "missing"
LEFT, DRAINED, BALANCE = "left", "drained", "balance"
WHYS = (PLANNED, CALLED_OFF, ENDED, MISSING, LEFT, DRAINED, BALANCE)

T = TypeVar("T")

log = logging.getLogger("basalt.shards")


class Lead(NamedTuple):
    """The term in which this server deals the shards, and its name in the map."""

    member: str
    epoch: int


class Draining(NamedTuple):
    """A member that is to have no shards, or might be: how many it has still."""

    drained: bool
    left: int


class Moved(NamedTuple):
    """The epochs of shards before and after a move, and for how long nobody served them."""

    before: Epochs
    after: Epochs
    took_ms: float


class ShardMoves:
    """Who is to have the shards, as the leader says. Of one shard there is one change at a time."""

    def __init__(self, store: Store, clock: Clock, holding: ShardHolding) -> None:
        self._store = store
        self._clock = clock
        self.holding = holding
        self.gate = holding.gate
        self.balances = True  # by itself, as the settings say
        self.leader_share = 50  # hundredths of a full share, too
        self._lead: Lead | None = None
        self._fellows: Fellows | None = None
        self._targets: ShardTargets | None = None
        self._owners: OwnersMap | None = None  # as this server wrote it last
        self._dealt_in: list[int] = [
            0
        ] * SHARDS  # the version of the map that granted a shard, or that of the term's first one
        self._missing_ms: dict[tuple[int, int], float] = {}  # since when nobody reports this shard under this epoch
        self._under_way: set[int] = set()  # shards that are being dealt
        self._were_under_way: set[int] = set()  # as of the last look at what nobody serves
        self._telling: set[str] = set()  # members that are being told of the map again
        self._leads_since_ms = self._wave_ms = 0.0
        self._balance_ms = -float("inf")  # when loads were looked at
        self._moving: asyncio.Task[Moved] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self.moves: Counter[str] = Counter(dict.fromkeys(WHYS, 0))  # shards, by why
        self._phases = {"release": Durations(), "map": Durations(), "take": Durations()}
        self.gaps = Durations()  # of whole moves: for how long calls waited

    @property
    def phases(self) -> dict[str, Durations]:
        """Durations of the parts of moves, those of releases and takes here among them."""
        return {**self.holding.phases, **self._phases}

    def lead(
        self, owners: OwnersMap, member: str, epoch: int, fellows: Fellows | None = None,
        given_up: dict[int, int] | None = None,
    ) -> None:  # fmt: skip
        """This server leads, and the map is that of its term's beginning, whose shards it has fenced. It deals them from now on.

        Without `fellows` it has all of them. `given_up` as in `ShardHolding.begin`.
        """
        self.holding.begin(member, owners, given_up)
        self._lead, self._fellows, self._owners = Lead(member, epoch), fellows, owners
        self._dealt_in = [owners.version] * SHARDS
        self._targets = ShardTargets(self._store, member, fellows, self.holding.loads)
        self._targets.weight, self._targets.leader_share = self.holding.weight, self.leader_share
        self._leads_since_ms = self._clock.monotonic_ms()
        if fellows is not None:
            self._start(self._look_again())
            self._tell_all(owners)

    # What operators ask for.

    def plan(self, shards: frozenset[int], to: str) -> Epochs:
        """The epochs that these shards have; refuses what `move` would refuse at once."""
        targets, owners = self._dealer()
        if to not in targets.serving():
            raise ConflictError(
                f"shards cannot move to member {to[:80]!r}: no such member is linked to the leader and serves",
                field="to",
                hint=f"look at `basalt cluster members`; the leader itself is {self.name}",
            )
        unknown = sorted(shard for shard in shards if not 0 <= shard < SHARDS)
        if unknown or not shards:
            what = f"there is no shard {unknown[0]}" if unknown else "no shard is named"
            raise InputError(f"{what}; they are numbered from 0 to {SHARDS - 1}", field="shards")
        return {shard: owners.epochs[shard] for shard in sorted(shards)}

    async def move(self, shards: frozenset[int], to: str) -> Moved:
        """Move shards; on return they are served again. `ConflictError`: called off, and they are served as before.

        `UnknownOutcomeError` when the store does not let it end for long: it goes on.
        """
        self.plan(shards, to)
        if self._stopping:
            raise StoppingError("the server is shutting down", hint="send the call again to the next server")
        if self._moving is not None or self._under_way & shards:
            raise BusyError("another move is under way", hint="send the same call again after Retry-After")
        self._check_served(shards)
        task = self._moving = self._start(self._move(dict.fromkeys(shards, to), PLANNED))
        task.add_done_callback(self._move_ended)
        return await self._ended_in_time(task)

    def _check_served(self, shards: Collection[int]) -> None:
        """`BusyError` for what nobody has served for long: it is about to be dealt anew, and moves that are asked for again and again would put that off."""
        assert self._owners is not None
        now_ms, epochs = self._clock.monotonic_ms(), self._owners.epochs
        since_ms = {shard: self._missing_ms.get((shard, epochs[shard]), now_ms) for shard in shards}
        late = [shard for shard in sorted(shards) if now_ms - since_ms[shard] >= TAKE_MS_MAX]
        if late:
            raise BusyError(
                f"the owner of shard {late[0]} does not serve it, and the leader is about to deal it anew",
                hint="send the same call again after Retry-After",
            )

    async def _ended_in_time(self, task: asyncio.Task[Moved]) -> Moved:
        """The move's end. Who gives up waiting stops no move."""
        done, _ = await asyncio.wait([task], timeout=ANSWER_MS_MAX / 1_000)
        if not done:
            raise UnknownOutcomeError(
                f"the move has not ended within {ANSWER_MS_MAX} ms; it goes on until the store lets it end",
                hint="look at the metric basalt_cluster_moves_total, and whether all region servers answer",
            )
        if task.cancelled():
            raise UnknownOutcomeError(
                "this server stops serving: the next leader takes the shards", hint="look who leads"
            )
        return task.result()

    def planned_drain(self, member: str) -> Draining:
        """The shards that a drain of this member would have moved. Refuses one after which nobody could have them."""
        targets, owners = self._dealer()
        if member not in (known := targets.serving() | set(owners.members)):
            raise ConflictError(
                f"there is no member {member[:80]!r} that has shards or could have some",
                field="member",
                hint=f"there are {', '.join(sorted(known))}"[:200],
            )
        if not targets.members().keys() - {member}:
            raise ConflictError(
                f"no other server could have the shards of {member}", field="member", hint="start one, or take one back"
            )
        return self.draining(member)

    async def drain(self, member: str, is_drained: bool = True) -> Draining:
        """A member is to have no shards from now on, or may have some again. What it has moves away in the background, all at once."""
        targets, _ = self._dealer()
        if is_drained:
            self.planned_drain(member)
        await targets.drain(member, is_drained)
        self._wave_ms = -WAVE_EVERY_MS  # at once
        return self.draining(member)

    def draining(self, member: str) -> Draining:
        """The shards of a member, and that it is to have none, if it is."""
        targets, owners = self._dealer()
        return Draining(targets.is_out(member), len(owners.shards_of(member)))

    def weighed(self) -> Weighed | None:
        """The loads of all shards, and how members stand by them; None: this server deals none."""
        if self._targets is None or self._owners is None:
            return None
        return self._targets.weighed(self._owners, self._clock.monotonic_ms())

    def planned_balance(self) -> list[Move]:
        """The moves of the wave that `balance` would make now."""
        targets, owners = self._dealer()
        if self._fellows is None:
            return []
        if targets.drained is None:
            raise BusyError("the leader does not know yet who is drained", hint="send the call again")
        return targets.wave(owners, self._clock.monotonic_ms(), *[-float("inf")] * 2)

    async def balance(self, moves: Sequence[Move]) -> None:
        """Make these moves, which were planned a moment ago, whether or not the leader would make any by itself."""
        await self._ended_in_time(self._start(self._move({move.shard: move.to for move in moves}, BALANCE)))

    async def let_go(self, member: str) -> Left:
        """A member stops: have others take all that it has."""
        targets, owners = self._dealer()
        targets.leaves(member)
        theirs = owners.shards_of(member)
        to = targets.dealt(owners, theirs, self._clock.monotonic_ms())
        to = {shard: whom for shard, whom in to.items() if whom != member}
        if not to:
            return Left(0, len(theirs))
        moved = await self._ended_in_time(self._start(self._move(to, LEFT)))
        return Left(len(moved.after), len(theirs) - len(moved.after))

    async def close(self) -> None:
        """Let a move that is under way go: the next leader takes the shards."""
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self.holding.close()

    @property
    def name(self) -> str:
        """The name of this server, which leads, in the map."""
        assert self._lead is not None
        return self._lead.member

    def _dealer(self) -> tuple[ShardTargets, OwnersMap]:
        if self._targets is None or self._owners is None:
            raise ConflictError(
                "the store is open in this server alone: it has every shard, and none can move", field="to"
            )
        return self._targets, self._owners

    def _move_ended(self, _: object) -> None:
        self._moving = None

    # Planned moves.

    async def _move(self, to: Mapping[int, str], why: str) -> Moved:
        """Release the shards where they are, and have those members take them that they are to go to. What is being dealt already is left out."""
        with self._taken_up(to) as mine:
            if not mine:
                raise BusyError(
                    "these shards are being moved already", hint="send the same call again after Retry-After"
                )
            assert self._owners is not None
            began_ms, before = self._clock.monotonic_ms(), self._owners
            with measured(self._clock, self._phases["release"]):
                released, failure = await self._release(before, mine)
            self.moves[CALLED_OFF] += len(mine) - len(released)
            if not released:
                assert failure is not None, "what was asked for was released, or failed"
                raise failure
            after = await self._deal({shard: to[shard] for shard in released})
        took_ms = self._clock.monotonic_ms() - began_ms
        self.gaps.add(took_ms / 1_000)
        self.moves[why] += len(released)
        log.info("moved %s within %.0f ms (%s)", named(released), took_ms, why)
        if failure is not None:
            raise failure
        return Moved({shard: before.epochs[shard] for shard in sorted(released)}, after, took_ms)

    async def _deal(self, to: Mapping[int, str]) -> Epochs:
        """Of shards that nobody has: write the map, and have them taken; the epochs that they have then."""
        await self._take(to, await self._grant(to))
        assert self._owners is not None
        return {shard: self._owners.epochs[shard] for shard in sorted(to)}

    @contextmanager
    def _taken_up(self, shards: Collection[int]) -> Iterator[set[int]]:
        """Those of the shards that nobody else deals, which this one does until the end."""
        mine = set(shards) - self._under_way
        self._under_way |= mine
        try:
            yield mine
        finally:
            self._under_way -= mine

    # Release.

    async def _release(self, before: OwnersMap, shards: Collection[int]) -> tuple[set[int], BasaltError | None]:
        """Those of the shards that nobody has any more, and why others are not among them."""
        by_owner: dict[str, list[int]] = {}
        for shard in sorted(shards):
            by_owner.setdefault(before.owner_of(shard), []).append(shard)
        released: set[int] = set()
        failure: BasaltError | None = None
        results = await asyncio.gather(
            *(self._release_at(owner, {shard: before.epochs[shard] for shard in theirs}) for owner, theirs in by_owner.items()),
            return_exceptions=True,
        )  # fmt: skip
        for result in results:
            if isinstance(result, BasaltError):
                failure = result
            elif isinstance(result, BaseException):
                raise result
            else:
                released.update(result)
        return released, failure

    async def _release_at(self, owner: str, epochs: Epochs) -> Collection[int]:
        assert self._lead is not None
        if owner == self._lead.member:
            return await self.holding.release(epochs)
        assert self._fellows is not None, "another member owns shards"
        asked = Release(self._lead.epoch, tuple(epochs.items()))
        try:
            answer = await self._fellows.release(owner, asked, RELEASE_CALL_MS)
        except ConflictError:
            raise
        except BasaltError as error:  # it may have released them: then its beats do not report them
            raise ConflictError(
                f"the move was called off: {owner}, which has the shards, did not release them: {error.message}",
                hint="send the same call again later",
            ) from error
        return [shard for shard, epoch in answer.shards if epochs.get(shard) == epoch]

    async def _withdraw(self, owner: str, epochs: Epochs) -> bool:
        """Have a member give up what it does not serve; False: it does not say so."""
        assert self._lead is not None
        if owner == self._lead.member:
            self.holding.withdraw(epochs)
            return True
        assert self._fellows is not None
        asked = Release(self._lead.epoch, tuple(epochs.items()), at_once=True)
        try:
            answer = await self._fellows.release(owner, asked, WITHDRAW_MS)
        except BasaltError as error:
            log.warning("%s does not serve %s, and does not answer: %s", owner, named(epochs), error.message)
            return False
        return epochs.items() <= dict(answer.shards).items()

    # The map.

    async def _grant(self, to: Mapping[int, str]) -> OwnersMap:
        """Write the map, tried until it has succeeded; `FencedError` once another leader has written it. `close` ends it."""
        assert self._lead is not None
        member, epoch = self._lead
        with measured(self._clock, self._phases["map"]):
            owners = await self._until_done(lambda: deal(self._store, lambda _: to, member, epoch))
        for shard in to:
            self._dealt_in[shard] = owners.version
        if (
            self._owners is None or owners.version > self._owners.version
        ):  # of two at a time the later one may be told first
            self._owners = owners
        self.holding.follow(owners)
        return owners

    async def _until_done(self, call: Callable[[], T]) -> T:
        pause_s = TRY_AGAIN_S_MIN
        while True:
            try:
                return await asyncio.to_thread(call)
            except FencedError:
                raise
            except BasaltError as error:
                log.warning("cannot write the map of owners, and nobody serves what moves until it succeeds: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, TRY_AGAIN_S_MAX)

    # Take.

    async def _take(self, to: Mapping[int, str], owners: OwnersMap) -> None:
        """Tell all members the map, and wait until these have taken what it gives them. One that does not is replaced by the leader."""
        assert self._lead is not None
        own, targets = self._lead.member, set(to.values())
        with measured(self._clock, self._phases["take"]):
            self._tell_all(owners, but=targets)
            answers = await asyncio.gather(*(self._taken_by(target, owners) for target in sorted(targets - {own})))
            late = {
                shard: target
                for target, held in zip(sorted(targets - {own}), answers, strict=True)
                for shard, to_whom in to.items()
                if to_whom == target and shard not in held
            }
            back = {shard: target for shard, target in late.items() if await self._gives_up(target, late, owners)}
            if back:
                log.warning("members did not take %s within %d ms: the leader has them", named(back), TAKE_MS_MAX)
                self._tell_all(await self._grant(dict.fromkeys(back, own)))
            if own in targets or back:
                await self.holding.taken()

    async def _gives_up(self, target: str, late: Mapping[int, str], owners: OwnersMap) -> bool:
        return await self._withdraw(target, {shard: owners.epochs[shard] for shard, to in late.items() if to == target})

    async def _taken_by(self, target: str, owners: OwnersMap) -> set[int]:
        """The shards that the member holds after it was told of the map; none where it did not say so in time."""
        assert self._fellows is not None
        try:
            answer = await self._fellows.tell(target, owners.encode(), TAKE_MS_MAX)
        except BasaltError as error:
            log.warning("the member %s has not taken what the map gives it: %s", target, error.message)
            return set()
        if answer.map_version < owners.version:
            return set()
        return {shard for first, last in answer.held for shard in range(first, last + 1)}

    def _tell_all(self, owners: OwnersMap, but: Collection[str] = ()) -> None:
        """Tell the map to all that are linked; who does not hear of it reads it soon."""
        if self._fellows is not None:
            for target in self._fellows.serving().keys() - set(but):
                self._start(self._taken_by(target, owners))

    def _tell_who_lags(self) -> None:
        """Tell the map to those whose beats say that they do not know it: the last time it was lost, or they were not linked then."""
        assert self._fellows is not None
        assert self._owners is not None
        for target, beat in self._fellows.serving().items():
            if beat.map_version < self._owners.version and target not in self._telling:
                self._start(self._tell_again(target, self._owners))

    async def _tell_again(self, target: str, owners: OwnersMap) -> None:
        self._telling.add(target)
        try:
            await self._taken_by(target, owners)
        finally:
            self._telling.discard(target)

    # What nobody has.

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_MS / 1_000)
            try:
                await self.look()
            except FencedError as error:
                log.warning("deals no shards any more: %s", error.message)
                return
            except BasaltError as error:
                log.warning("cannot look after the shards, and tries again: %s", error.message)

    async def look(self) -> None:
        """Begin to deal what nobody has, and what is to be elsewhere. It waits for no member."""
        if self._fellows is None or self._stopping:
            return
        self._tell_who_lags()
        self._replace_ended()
        self._replace_missing()
        assert self._targets is not None
        await self._targets.read()
        self._move_what_is_due()

    def _replace_ended(self) -> None:
        """Deal what members had that ended."""
        assert self._fellows is not None
        assert self._targets is not None
        assert self._owners is not None
        live, owners = self._fellows.live(), self._owners
        if live is None:
            return
        there = live | {self.name}
        ended = {place for place, member in enumerate(owners.members) if member not in there}
        lost = {shard for shard, place in enumerate(owners.owners) if place in ended} - self._under_way if ended else ()
        if lost:  # before it is known who is drained, all of it is the leader's
            targets = self._targets
            known = targets.drained is not None
            to = targets.dealt(owners, lost, self._clock.monotonic_ms()) if known else dict.fromkeys(lost, self.name)
            self._start(self._replace(to, ENDED))

    def _replace_missing(self) -> None:
        """Have those asked that do not serve what the map gives them; what they give up is the leader's."""
        assert self._owners is not None
        for owner, epochs in self._late().items():
            self._start(self._replace_late(owner, epochs))

    async def _replace_late(self, owner: str, epochs: Epochs) -> None:
        with self._taken_up(epochs) as mine:
            late = {shard: epochs[shard] for shard in mine}
            if late and await self._withdraw(owner, late):
                await self._deal(dict.fromkeys(late, self.name))
                self.moves[MISSING] += len(late)
                log.warning("took %s, which %s did not serve", named(late), owner)

    async def _replace(self, to: Mapping[int, str], why: str) -> None:
        with self._taken_up(to) as mine:
            if mine:
                await self._deal({shard: to[shard] for shard in mine})
                self.moves[why] += len(mine)
                log.info("dealt %s anew (%s)", named(mine), why)

    def _move_what_is_due(self) -> None:
        """Move what those have that are to have none, else what balance asks for: a wave at a time."""
        assert self._targets is not None
        assert self._owners is not None
        now_ms, owners, targets = self._clock.monotonic_ms(), self._owners, self._targets
        if now_ms - self._wave_ms < WAVE_EVERY_MS or self._under_way:
            return
        out = [shard for theirs in targets.out_with_shards(owners).values() for shard in theirs]
        if out:
            to, why = targets.dealt(owners, out, now_ms), DRAINED
        elif self.balances and now_ms - self._balance_ms >= BALANCE_LOOK_MS:
            self._balance_ms = now_ms
            wave = targets.wave(owners, now_ms, self._wave_ms, self._leads_since_ms)
            to, why = {move.shard: move.to for move in wave}, BALANCE
        else:
            return
        to = {shard: whom for shard, whom in to.items() if owners.owner_of(shard) != whom}
        if to:
            self._wave_ms = now_ms
            self._start(self._move(to, why))

    def _late(self) -> dict[str, dict[int, int]]:
        """By owner, the shards that it has not been serving for as long as a take may last, though the map gives them to it; and their epochs."""
        assert self._fellows is not None
        assert self._owners is not None
        assert self._lead is not None
        owners, now_ms, missing = self._owners, self._clock.monotonic_ms(), dict[tuple[int, int], float]()
        beats = self._fellows.beats()
        late: dict[str, dict[int, int]] = {}
        for owner, epochs in owners.by_owner().items():
            if owner == self._lead.member:
                served = self._served_here(epochs)
            elif owner in beats:
                served = self._reported(beats[owner])
            else:
                continue  # nobody can ask it: its membership decides
            for shard in epochs.keys() - served:
                key = shard, epochs[shard]
                if shard not in self._under_way:
                    missing[key] = self._missing_ms.get(key, now_ms)
                    # What was released until a moment ago, and is served again, the next beat reports.
                    if now_ms - missing[key] >= TAKE_MS_MAX and shard not in self._were_under_way:
                        late.setdefault(owner, {})[shard] = epochs[shard]
                elif key in self._missing_ms:  # moves that are called off put nothing off
                    missing[key] = self._missing_ms[key]
        self._missing_ms, self._were_under_way = missing, set(self._under_way)
        return late

    def _served_here(self, epochs: Epochs) -> set[int]:
        """The shards that are served here, or being taken: nobody else would be quicker with those."""
        reigns = self.gate.reigns
        return {
            shard
            for shard, epoch in epochs.items()
            if reigns[shard].phase is not Phase.ABSENT and reigns[shard].epoch == epoch
        }

    def _reported(self, beat: Beat) -> set[int]:
        held = (shard for first, last in beat.shards for shard in range(first, min(last + 1, SHARDS)))
        return {shard for shard in held if beat.map_version >= self._dealt_in[shard]}

    # Tasks.

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BasaltError):
            log.info("shards were not dealt: %s", error.message)
        elif error is not None:
            log.error("dealing shards failed", exc_info=error)
