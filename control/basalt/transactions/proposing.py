"""Proposals of the owner of groups: edits that count here at once, and for good once the log has them.

A stage runs here as it does at the coordinator, over the state that this server follows. Its edits are true in that state from then on, though only as
a *guess*: whatever the log says of groups first puts back what was there before them. One proposal is under way at a time; all that comes meanwhile goes with
the next one. The coordinator decides about each unit of it anew, by the same rules over its own state, so what this server did not know yet does no harm.
docs/decisions/0077-groups-are-dealt-by-owners.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from basalt.errors import BusyError, CoordinatorUnavailableError
from basalt.runtime.group_commit import Group, NotLoadedError, tell
from basalt.transactions.proposal_calls import Propose, Proposed, Unit
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.groups import SavedGroup
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.spans.spans import Spans

TOGETHER_MAX = 256  # stages in one proposal: some milliseconds of the event loop, here and at the coordinator
WAITING_MAX = 10_000  # stages that wait for the proposal under way: more than members of a thousand groups ask at once
LOADS_MAX = 8  # how often one stage is run again for something that was not in memory
# Callers that come back soon after an answer are waited for, see `_Meeting`:
MET_MAX = 16  # as many; of more the cost of a proposal is small for each
# Of the time that the last proposal took: for as long as waiting for the one under way would take on average.
MET_PART = 0.5
MET_MS_MAX = 5  # however long that is
VAIN_RESTS = 8  # proposals that wait for nobody, once not all had come back

log = logging.getLogger("basalt.groups")

T = TypeVar("T")

# Edits that count at once. A group that is made gets its number from the coordinator; one that is forgotten is gone once that is durable.
_GUESSED = (edits.Acknowledged, edits.AcknowledgedIn, edits.Returned, edits.GroupSought, edits.GroupChanged)
PROPOSED = (*_GUESSED, edits.GroupMade, edits.GroupsForgotten)
_CONCERN_GROUPS = (
    *PROPOSED, edits.Committed, edits.Aborting, edits.Aborted, edits.Invalidated, edits.Reset,
)  # fmt: skip


class Guess:
    """Edits of one proposal that are in the state, and what was there before them."""

    def __init__(self, number: int, made: Iterable[Edit] = ()) -> None:
        self.number = number
        self.place: int | None = None  # of the entry that will hold them; None: it is not known
        self._edits: list[Edit] = [*made]
        self._saved: dict[int, SavedGroup] = {}

    def add(self, state: TransactionProposals, edit: Edit) -> None:
        """Make it true for now."""
        if isinstance(edit, _GUESSED):
            self._try(state, edit)
            self._edits.append(edit)

    def _try(self, state: TransactionProposals, edit: Any) -> None:
        if edit.number not in self._saved:
            self._saved[edit.number] = state.groups.saved(edit.number)
        state.apply_more(edit)

    def undo(self, state: TransactionProposals) -> None:
        """Put back what was there."""
        for saved in self._saved.values():
            state.groups.restore(saved)
        self._saved = {}

    def redo(self, state: TransactionProposals) -> None:
        """The same edits over what is there now, as far as that allows them."""
        for edit in self._edits:
            if edit.number in state.groups.by_number:  # type: ignore[attr-defined]
                try:
                    self._try(state, edit)
                except BasaltError as error:  # the coordinator will refuse it, too
                    log.debug("what was guessed does not hold any more: %s", error)


class _Proposal:
    """The part of one stage: what it wants to be logged. There is a group for each stage."""

    __slots__ = ("edits", "force", "group", "loads", "numbers", "result", "stage", "told")

    def __init__(self, stage: Callable[[Group], Any], told: asyncio.Future[Any]) -> None:
        self.stage = stage
        self.told = told
        self.loads = 0
        self.edits: list[Edit] = []
        self.numbers: set[int] = set()
        self.force = False
        self.group: Group
        self.result: Any = None


class _Asked:
    """The question of one unit: the edits of a stage, or plain acknowledgements in one group of several stages."""

    __slots__ = ("proposals",)

    def __init__(self, *proposals: _Proposal) -> None:
        self.proposals = [*proposals]

    def unit(self) -> Unit:
        """As it is sent."""
        first = self.proposals[0]
        if len(self.proposals) == 1:
            return Unit.of(first.edits, force=first.force)
        plain: list[edits.Acknowledged] = [each.edits[0] for each in self.proposals]  # type: ignore[misc]
        spans = Spans.union([each.spans for each in plain])
        return Unit.of([edits.Acknowledged(0, plain[0].number, plain[0].at_ms, spans)], force=False)


def _together(asked: Sequence[_Proposal]) -> list[_Asked]:
    """The units of these stages. Plain acknowledgements in one group are one, unless something else about the group comes between them.

    Consumers that meet in one proposal mostly have neighbouring messages: what is encoded, sent, decided and logged is one span.
    """
    units, plain = list[_Asked](), dict[int, _Asked]()
    for each in asked:
        edit = each.edits[0]
        is_plain = len(each.edits) == 1 and isinstance(edit, edits.Acknowledged) and not edit.writer
        if is_plain and (known := plain.get(edit.number)) is not None:  # type: ignore[attr-defined]
            known.proposals.append(each)
            continue
        units.append(made := _Asked(each))
        for number in each.numbers:
            plain.pop(number, None)
        if is_plain:
            plain[edit.number] = made  # type: ignore[attr-defined]
    return units


class _Meeting:
    """The callers that the last proposal answered, and those that waited for it: the next one waits for all of them, for a short time.

    Consumers mostly ask again as soon as they have an answer. Without this they fall into two halves: one half's calls come back just after the proposal
    of the other half has left, and wait for all of its way. Then twice as many proposals are made, and each caller waits for two of them.
    Where callers do not come back so soon it is left alone for some proposals.
    """

    def __init__(self) -> None:
        self._expected = 0
        self._until_s = 0.0  # of the event loop's clock
        self._rests = 0
        self._all_here: asyncio.Future[None] | None = None

    def answered(self, callers: int, took_s: float, now_s: float) -> None:
        """So many have an answer, or wait for the next proposal, by the event loop's clock."""
        self._expected = callers if callers <= MET_MAX else 0
        self._until_s = now_s + min(MET_PART * took_s, MET_MS_MAX / 1_000)

    def came(self, waiting: int) -> None:
        """Somebody asks: so many wait now."""
        if self._all_here is not None and waiting >= self._expected:
            tell(self._all_here, None)

    async def wait(self, queue: Collection[object]) -> None:
        """Return once all are in the queue, or have taken too long."""
        loop = asyncio.get_running_loop()
        if len(queue) >= self._expected or loop.time() >= self._until_s:
            return
        if self._rests:
            self._rests -= 1
            return
        self._all_here = loop.create_future()
        late = loop.call_at(self._until_s, tell, self._all_here, None)
        try:
            await self._all_here
        finally:
            late.cancel()
            self._all_here = None
        if len(queue) < self._expected:
            self._rests = VAIN_RESTS


class Proposing:
    """The proposals of one member."""

    def __init__(
        self,
        clock: Clock,
        state: Callable[[], TransactionProposals],
        ask: Callable[[Propose], Awaitable[Proposed]],
    ) -> None:
        self._clock = clock
        self._state = state
        self._ask = ask
        self.member: Callable[[], str | None] = _nobody  # by which name the map knows this server
        self.lost: Callable[[Collection[int], bool], None] = (
            _nobody_hears  # of groups of which memory may say what the log does not
        )
        self.guess: Guess | None = None
        self._number = 0
        self._running: _Proposal | None = None
        self._queue: deque[_Proposal] = deque()
        self._meeting = _Meeting()
        self._working: asyncio.Task[None] | None = None
        self._loading: set[asyncio.Task[None]] = set()
        self._closed = False
        self.total = self.refused_total = self.lost_total = 0

    async def run(self, stage: Callable[[Group], T]) -> T:
        """Run the stage, and return what it returned once the log has what it wants."""
        if self._closed or len(self._queue) >= WAITING_MAX:
            raise BusyError(
                f"{len(self._queue)} calls about consumer groups wait for the coordinator; nothing was done",
                hint="send the same call again after Retry-After",
            )
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Proposal(stage, told))
        self._meeting.came(len(self._queue))
        self._work_on()
        return await told

    def runs(self, group: Group) -> bool:
        """True in a stage of this group."""
        return self._running is not None and self._running.group is group

    def apply(self, group: Group, made: Sequence[Edit]) -> None:
        """In a stage: have these edits logged, and count with them from now on."""
        running, state = self._running, self._state()
        assert running is not None
        for edit in made:
            if isinstance(edit, edits.Doomed):
                continue  # the coordinator finds that, too
            if not isinstance(edit, PROPOSED):
                raise CoordinatorUnavailableError(
                    f"this server does not coordinate transactions, and {type(edit).__name__} is for the coordinator; nothing was done"
                )
            if isinstance(edit, edits.GroupsForgotten):
                numbers: tuple[int, ...] = edit.numbers
            else:
                numbers = () if isinstance(edit, edits.GroupMade) else (edit.number,)
            if isinstance(edit, edits.GroupSought | edits.GroupsForgotten):
                running.force |= any(state.groups.pending_in(number) for number in numbers)
            running.numbers.update(numbers)
            running.edits.append(edit)
            if self.guess is None:
                self._number += 1
                self.guess = Guess(self._number)
            self.guess.add(state, edit)

    def placed(self, number: int, place: int) -> None:
        """The entry at this place will hold the proposal of this number."""
        if self.guess is not None and self.guess.number == number:
            self.guess.place = place

    # While the log goes on.

    def is_concerned(self, place: int, made: Sequence[Edit]) -> bool:
        """True for an entry before which the guess is to be put aside."""
        return self.guess is not None and (
            self.guess.place == place or any(isinstance(edit, _CONCERN_GROUPS) for edit in made)
        )

    def put_aside(self, state: TransactionProposals) -> None:
        """Before such an entry."""
        if self.guess is not None:
            self.guess.undo(state)

    def go_on(self, state: TransactionProposals, place: int) -> None:
        """Behind it: if it was the one that holds the proposal, the guess has come true."""
        if self.guess is None:
            return
        if self.guess.place == place:
            self.guess = None
        else:
            self.guess.redo(state)

    def forget(self) -> None:
        """The state is another one: nothing is guessed about it."""
        self.guess = None

    async def close(self) -> None:
        """Propose nothing any more. What waits is refused."""
        self._closed = True
        tasks = [task for task in (self._working, *self._loading) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for each in self._queue:
            tell(
                each.told, _stopping()
            )  # one that is cancelled takes the call that waits for it along, which then has no answer
        self._queue.clear()

    # How.

    def _work_on(self) -> None:
        if self._working is None and not self._closed:
            self._working = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._queue:
                await self._meeting.wait(self._queue)
                asked = self._staged()
                if asked:
                    await self._propose(asked)
                else:
                    await asyncio.sleep(0)
        finally:
            self._working = None

    def _staged(self) -> list[_Proposal]:
        """Run the stages that wait; those that want something to be logged. All others are answered."""
        asked, others = list[_Proposal](), list[_Proposal]()
        for _ in range(min(len(self._queue), TOGETHER_MAX)):
            each = self._queue.popleft()
            if each.told.done():
                continue
            if self._run_one(each):
                (asked if each.edits else others).append(each)
        for each in others:
            self._end(_Asked(each), None)
        return asked

    def _run_one(self, each: _Proposal) -> bool:
        each.group, self._running = Group(self._clock.now_ms()), each
        try:
            each.result = each.stage(each.group)
        except NotLoadedError as missing:
            self._load(each, missing)
            return False
        except Exception as refusal:  # noqa: BLE001  # it is raised where the stage was asked for
            tell(each.told, refusal)
            return bool(each.edits)
        finally:
            self._running = None
        return True

    def _load(self, each: _Proposal, missing: NotLoadedError) -> None:
        each.loads += 1
        if each.loads > LOADS_MAX:
            tell(each.told, BusyError("what this call needs is let go of again and again", hint="send it again"))
            return
        task = asyncio.get_running_loop().create_task(self._load_and_queue(each, missing))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _load_and_queue(self, each: _Proposal, missing: NotLoadedError) -> None:
        try:
            release = await missing.load()
        except asyncio.CancelledError:
            tell(each.told, _stopping())
            raise
        except Exception as error:  # noqa: BLE001  # likewise
            tell(each.told, error)
            return
        each.told.add_done_callback(lambda _: release())
        self._queue.appendleft(each)
        self._work_on()

    async def _propose(self, asked: list[_Proposal]) -> None:
        for each in asked:
            each.group.writing()
        loop = asyncio.get_running_loop()
        units, began_s = _together(asked), loop.time()
        while units:
            units = await self._decided(units)
        now_s = loop.time()
        self._meeting.answered(len(asked) + len(self._queue), now_s - began_s, now_s)

    async def _decided(self, units: list[_Asked]) -> list[_Asked]:
        """Have the units decided, and answer those whose they are. A unit of several stages that is refused is asked for once more, a unit for each."""
        guess: Guess | None = None
        self.total += 1
        try:
            guess = self._guessed(units)
            question = Propose(self.member() or "", guess.number, tuple([each.unit() for each in units]))
            answer = await self._ask(question)
        except BaseException as error:
            if guess is not None:
                self._put_back(guess)
            self.lost_total += 1
            why = error if isinstance(error, BasaltError) else _stopping()
            for each in units:
                self._end(each, why, is_refused=False)
            if not isinstance(error, BasaltError):
                raise
            return []
        self._put_back(guess)
        apart: list[_Asked] = []
        for each, refused in zip(units, answer.refused, strict=True):
            if refused is not None and len(each.proposals) > 1:
                apart += map(_Asked, each.proposals)
            else:
                self._end(each, None if refused is None else refused.error())
        return apart

    def _guessed(self, units: list[_Asked]) -> Guess:
        """The guess of what is asked: made in the stages, or once more where a unit comes apart."""
        if self.guess is None:
            again = [edit for each in units for proposal in each.proposals for edit in proposal.edits]
            self._number += 1
            self.guess = guess = Guess(self._number, again)
            guess.redo(self._state())
        return self.guess

    def _put_back(self, guess: Guess) -> None:
        """Guess no more: what is known of the entry is in the state by now."""
        if self.guess is guess:
            guess.undo(self._state())
            self.guess = None

    def _end(self, asked: _Asked, error: BasaltError | None, *, is_refused: bool = True) -> None:
        for each in asked.proposals:
            if error is not None:
                self.refused_total += 1
                self.lost(each.numbers, is_refused)
            each.group.written(is_durable=error is None)
            tell(each.told, each.result if error is None else error)


def _stopping() -> CoordinatorUnavailableError:
    return CoordinatorUnavailableError("this server stops", hint="send the same call again to the next one")


def _nobody() -> None:
    """It is in no map yet."""


def _nobody_hears(_: Collection[int], _is_refused: bool) -> None:
    """No groups are here yet."""
