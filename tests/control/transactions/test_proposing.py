"""What an owner wants to be logged counts here at once, and is what the log says in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from basalt.cluster.links.frames import ErrorBody
from basalt.errors import AcknowledgeConflictError, BusyError, CoordinatorUnavailableError, UnknownOutcomeError
from basalt.runtime.group_commit import Group, NotLoadedError, tell
from basalt.transactions import proposing as module
from basalt.transactions.proposal_calls import Propose, Proposed
from basalt.transactions.proposing import (
    LOADS_MAX,
    MET_MAX,
    MET_MS_MAX,
    MET_PART,
    TOGETHER_MAX,
    VAIN_RESTS,
    WAITING_MAX,
    Proposing,
)
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit, ReturnReason
from basalt.transactions.rules.transaction import TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import ManualClock
from basalt_engine.spans.spans import ZERO_ID, Spans

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def message(number: int) -> bytes:
    return number.to_bytes(20, "big")


def spans(first: int, last: int) -> Spans:
    return Spans([(message(first), message(last))])


class Owner:
    """An owner of one group, whose coordinator answers when a story says so."""

    def __init__(self) -> None:
        self.state = TransactionProposals(TransactionLimits())
        self.state.apply(edits.GroupMade(1, 1, 1, b"shop:orders:", "billing", b"{}", ZERO_ID, 7))
        self.asked: list[Propose] = []
        self.answers: asyncio.Queue[Proposed | Exception] = asyncio.Queue()
        self.lost: list[tuple[set[int], bool]] = []
        self.place = 5
        self.proposing = Proposing(ManualClock(), lambda: self.state, self.ask)
        self.proposing.lost = lambda numbers, is_refused: self.lost.append((set(numbers), is_refused))

    async def ask(self, question: Propose) -> Proposed:
        self.asked.append(question)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wants(self, *made: Edit) -> asyncio.Task[str]:
        def stage(group: Group) -> str:
            self.proposing.apply(group, made)
            return "done"

        return asyncio.ensure_future(self.proposing.run(stage))

    def answer(self, *refused: Exception | None) -> None:
        found = tuple(None if each is None else ErrorBody.of(each) for each in refused)  # type: ignore[arg-type]
        self.answers.put_nowait(Proposed(1, found))

    def logged(self, *made: Edit, place: int) -> None:
        """An entry of the log is applied."""
        is_concerned = self.proposing.is_concerned(place, made)
        if is_concerned:
            self.proposing.put_aside(self.state)
        for edit in made:
            self.state.apply(edit)
        if is_concerned:
            self.proposing.go_on(self.state, place)

    @property
    def acknowledged(self) -> Spans:
        return self.state.groups.by_number[1].acknowledged


async def turns(is_so: Callable[[], bool]) -> None:
    for _ in range(100):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("never")


async def test_edits_count_at_once_and_once_they_are_logged_they_are_what_the_log_says() -> None:
    owner = Owner()
    call = owner.wants(edits.Acknowledged(0, 1, 1, spans(0, 5)))
    await turns(lambda: bool(owner.asked))
    assert owner.acknowledged == spans(0, 5)
    assert owner.asked[0].units[0].edits == (edits.Acknowledged(0, 1, 1, spans(0, 5)),)
    owner.logged(edits.Acknowledged(0, 1, 2, spans(7, 9)), place=4)  # another's, of before a move say
    assert list(owner.acknowledged) == [*spans(0, 5), *spans(7, 9)]
    owner.proposing.placed(1, owner.place)
    owner.logged(edits.Acknowledged(0, 1, 2, spans(0, 4)), place=owner.place)
    assert list(owner.acknowledged) == [*spans(0, 4), *spans(7, 9)], "the log says less than was guessed"
    owner.answer(None)
    assert await call == "done"
    assert owner.proposing.guess is None
    assert owner.lost == []


async def test_an_attempt_is_counted_once_though_it_was_guessed_before() -> None:
    owner = Owner()
    came_back = edits.Returned(1, 1, ReturnReason.RELEASED, 1, spans(0, 5))
    call = owner.wants(came_back)
    await turns(lambda: bool(owner.asked))
    owner.logged(edits.Acknowledged(0, 1, 2, spans(7, 9)), place=4)
    owner.proposing.placed(1, owner.place)
    owner.logged(came_back, place=owner.place)
    owner.answer(None)
    await call
    (returned,) = owner.state.groups.by_number[1].returned
    assert returned.attempts == 1


async def test_what_is_refused_is_put_back_and_the_rest_of_the_proposal_is_logged() -> None:
    owner = Owner()
    back = edits.Returned(1, 1, ReturnReason.RELEASED, 1, spans(10, 12))
    calls = [owner.wants(made) for made in (edits.Acknowledged(0, 1, 1, spans(0, 2)), back)]
    await turns(lambda: bool(owner.asked))
    assert len(owner.asked[0].units) == 2
    owner.proposing.placed(1, owner.place)
    owner.logged(edits.Acknowledged(0, 1, 2, spans(0, 2)), place=owner.place)
    owner.answer(None, AcknowledgeConflictError("a transaction has it"))
    assert await calls[0] == "done"
    with pytest.raises(AcknowledgeConflictError):
        await calls[1]
    assert owner.acknowledged == spans(0, 2)
    assert not owner.state.groups.by_number[1].returned
    assert owner.lost == [({1}, True)]


async def test_plain_acknowledgements_in_one_group_are_asked_for_as_one() -> None:
    owner = Owner()
    owner.state.apply(edits.GroupMade(2, 1, 1, b"shop:orders:", "audit", b"{}", ZERO_ID, 7))
    calls = [
        owner.wants(edits.Acknowledged(0, number, 1, spans(first, first + 2)))
        for number, first in ((1, 0), (2, 0), (1, 2), (1, 8), (2, 2))
    ]
    await turns(lambda: bool(owner.asked))
    assert [each.edits for each in owner.asked[0].units] == [
        (edits.Acknowledged(0, 1, 1, Spans([*spans(0, 4), *spans(8, 10)])),),
        (edits.Acknowledged(0, 2, 1, spans(0, 4)),),
    ]
    owner.answer(None, None)
    assert await asyncio.gather(*calls) == ["done"] * 5


async def test_nothing_else_about_a_group_changes_its_place_among_the_acknowledgements() -> None:
    owner = Owner()
    plain = [edits.Acknowledged(0, 1, 1, spans(first, first + 2)) for first in (0, 2, 20, 22)]
    back = edits.Returned(1, 1, ReturnReason.RELEASED, 1, spans(10, 12))
    several = edits.Acknowledged(0, 1, 1, spans(30, 32)), edits.Acknowledged(0, 1, 1, spans(40, 42))
    calls = [owner.wants(*made) for made in ((plain[0],), (plain[1],), (back,), (plain[2],), several, (plain[3],))]
    await turns(lambda: bool(owner.asked))
    assert [each.edits for each in owner.asked[0].units] == [
        (edits.Acknowledged(0, 1, 1, spans(0, 4)),), (back,), (plain[2],), several, (plain[3],),
    ]  # fmt: skip
    owner.answer(*[None] * 5)
    await asyncio.gather(*calls)


async def test_of_several_that_are_refused_as_one_each_is_asked_for_by_itself() -> None:
    owner = Owner()
    calls = [owner.wants(edits.Acknowledged(0, 1, 1, spans(first, first + 2))) for first in (0, 2)]
    await turns(lambda: bool(owner.asked))
    owner.proposing.placed(1, owner.place)
    owner.logged(place=owner.place)
    assert not owner.acknowledged
    owner.answer(AcknowledgeConflictError("a transaction has a part of it"))
    await turns(lambda: len(owner.asked) == 2)
    assert owner.acknowledged == spans(0, 4), "it counts while it is asked for once more"
    assert [each.edits for each in owner.asked[1].units] == [
        (edits.Acknowledged(0, 1, 1, spans(first, first + 2)),) for first in (0, 2)
    ]
    assert owner.asked[1].number == 2
    assert owner.lost == []
    owner.proposing.placed(2, owner.place + 1)
    owner.logged(edits.Acknowledged(0, 1, 2, spans(0, 2)), place=owner.place + 1)
    owner.answer(None, AcknowledgeConflictError("a transaction has it"))
    assert await calls[0] == "done"
    with pytest.raises(AcknowledgeConflictError):
        await calls[1]
    assert owner.acknowledged == spans(0, 2)
    assert owner.lost == [({1}, True)]
    assert owner.proposing.guess is None


async def test_what_is_asked_for_once_more_has_no_answer_where_nothing_is_known_any_more() -> None:
    owner = Owner()
    calls = [owner.wants(edits.Acknowledged(0, 1, 1, spans(first, first + 2))) for first in (0, 2)]
    await turns(lambda: bool(owner.asked))
    owner.answer(AcknowledgeConflictError("a transaction has a part of it"))
    owner.answers.put_nowait(UnknownOutcomeError("no answer"))
    for call in calls:
        with pytest.raises(UnknownOutcomeError):
            await call
    assert not owner.acknowledged
    assert owner.lost == [({1}, False)] * 2


async def test_without_an_answer_nothing_is_guessed_any_more_and_memory_is_not_trusted() -> None:
    owner = Owner()
    call = owner.wants(edits.Acknowledged(0, 1, 1, spans(0, 2)))
    owner.answers.put_nowait(UnknownOutcomeError("no answer"))
    with pytest.raises(UnknownOutcomeError):
        await call
    assert not owner.acknowledged
    assert owner.lost == [({1}, False)]
    owner.logged(edits.Acknowledged(0, 1, 2, spans(0, 2)), place=owner.place)
    assert owner.acknowledged == spans(0, 2)


async def test_what_comes_while_a_proposal_is_under_way_goes_together_with_the_next_one() -> None:
    owner = Owner()
    first = owner.wants(edits.Acknowledged(0, 1, 1, spans(0, 2)))
    await turns(lambda: len(owner.asked) == 1)
    reason = ReturnReason.RELEASED
    others = [owner.wants(edits.Returned(1, 1, reason, 1, spans(each, each + 1))) for each in range(10, 15)]
    await asyncio.sleep(0)
    assert len(owner.asked) == 1
    owner.answer(None)
    owner.answer(*[None] * 5)
    await asyncio.gather(first, *others)
    assert [len(each.units) for each in owner.asked] == [1, 5]
    assert len(owner.asked[1].units) < TOGETHER_MAX


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposal waits for those who were answered for as long as it takes."""
    monkeypatch.setattr(module, "MET_PART", 1e9)
    monkeypatch.setattr(module, "MET_MS_MAX", 1e9)


async def answered(owner: Owner, callers: int) -> None:
    """So many have an answer: one had gone first, for the others came while it was under way."""
    before = len(owner.asked)
    calls = [owner.wants(edits.Acknowledged(0, 1, 1, spans(0, 1))) for _ in range(callers)]
    await turns(lambda: len(owner.asked) > before)
    owner.answer(None)
    await asyncio.gather(*calls)


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("patient")
async def test_those_who_were_answered_are_asked_for_together_once_more() -> None:
    owner = Owner()
    await answered(owner, 3)
    calls = []
    for each in range(3):
        await some_turns()
        assert len(owner.asked) == 1
        calls.append(owner.wants(edits.Acknowledged(0, 1, 1, spans(2 * each, 2 * each + 1))))
    await turns(lambda: len(owner.asked) == 2)
    assert [each.edits for each in owner.asked[1].units] == [
        (edits.Acknowledged(0, 1, 1, Spans([*spans(0, 1), *spans(2, 3), *spans(4, 5)])),)
    ]
    owner.answer(None)
    await asyncio.gather(*calls)


@pytest.mark.usefixtures("patient")
async def test_those_who_waited_meanwhile_and_those_who_were_answered_then_are_one_proposal() -> None:
    owner = Owner()
    first = owner.wants(edits.Acknowledged(0, 1, 1, spans(0, 1)))
    await turns(lambda: len(owner.asked) == 1)
    second = owner.wants(edits.Acknowledged(0, 1, 1, spans(2, 3)))
    await asyncio.sleep(0)
    owner.answer(None)
    await first
    await some_turns()
    assert len(owner.asked) == 1, "the second one waits for the first"
    again = owner.wants(edits.Acknowledged(0, 1, 1, spans(4, 5)))
    owner.answer(None)
    await asyncio.gather(second, again)
    assert len(owner.asked) == 2


async def test_who_does_not_come_back_in_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MET_MS_MAX < 1_000
    assert 0 < MET_PART < 1
    monkeypatch.setattr(module, "MET_PART", 1e9)
    owner = Owner()
    await answered(owner, 2)
    owner.answer(None)
    assert await owner.wants(edits.Acknowledged(0, 1, 1, spans(4, 5))) == "done"


@pytest.mark.usefixtures("patient")
async def test_after_waiting_in_vain_some_proposals_wait_for_nobody() -> None:
    owner = Owner()
    meeting = owner.proposing._meeting
    await answered(owner, 2)
    alone = owner.wants(edits.Acknowledged(0, 1, 1, spans(4, 5)))
    await turns(lambda: meeting._all_here is not None)
    tell(meeting._all_here, None)  # type: ignore[arg-type]  # the time is up
    owner.answer(None)
    assert await alone == "done"
    for _ in range(VAIN_RESTS):
        await answered(owner, 2)
        owner.answer(None)
        assert await owner.wants(edits.Acknowledged(0, 1, 1, spans(4, 5))) == "done"
    await answered(owner, 2)
    alone = owner.wants(edits.Acknowledged(0, 1, 1, spans(4, 5)))
    await turns(lambda: meeting._all_here is not None)
    await owner.proposing.close()
    with pytest.raises(CoordinatorUnavailableError):
        await alone


@pytest.mark.usefixtures("patient")
async def test_of_many_nobody_waits_for_another() -> None:
    owner = Owner()
    await answered(owner, MET_MAX + 1)
    owner.answer(None)
    assert await owner.wants(edits.Acknowledged(0, 1, 1, spans(4, 5))) == "done"


async def test_pending_messages_of_a_transaction_are_put_back_too() -> None:
    owner = Owner()
    begun = owner.state.begin(1)
    for edit in begun.edits:
        owner.state.apply(edit)
    call = owner.wants(edits.AcknowledgedIn(begun.transaction_id, 1, 1, spans(0, 2)))
    await turns(lambda: bool(owner.asked))
    assert owner.state.groups.pending_of(begun.transaction_id) == {1: spans(0, 2)}
    owner.answers.put_nowait(UnknownOutcomeError("no answer"))
    with pytest.raises(UnknownOutcomeError):
        await call
    assert owner.state.groups.pending_of(begun.transaction_id) == {}


async def test_a_stage_that_needs_something_is_run_again_when_that_is_there_and_not_for_ever() -> None:
    owner, loaded = Owner(), 0

    async def load() -> Callable[[], None]:
        nonlocal loaded
        loaded += 1
        return lambda: None

    def stage(_: Group) -> int:
        if loaded < 2:
            raise NotLoadedError(load)
        return loaded

    assert await owner.proposing.run(stage) == 2

    def never(_: Group) -> int:
        raise NotLoadedError(load)

    with pytest.raises(BusyError):
        await owner.proposing.run(never)
    assert loaded == 2 + LOADS_MAX


async def test_more_than_a_member_may_have_waiting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WAITING_MAX > TOGETHER_MAX
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    owner = Owner()
    calls = [owner.wants(edits.Acknowledged(0, 1, 1, spans(each, each + 1))) for each in range(4)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(done.pop().exception(), BusyError)
    await owner.proposing.close()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_what_waits_while_a_member_stops_is_refused_and_not_cancelled() -> None:
    owner = Owner()
    loading = asyncio.Event()

    async def load() -> Callable[[], None]:
        loading.set()
        await asyncio.Event().wait()
        raise AssertionError("it never ends")

    def stage(_: Group) -> int:
        raise NotLoadedError(load)

    loads = asyncio.ensure_future(owner.proposing.run(stage))
    await loading.wait()
    queued = asyncio.ensure_future(owner.proposing.run(stage))
    await asyncio.sleep(0)
    await owner.proposing.close()
    for call in (loads, queued):
        with pytest.raises(CoordinatorUnavailableError):
            await call


async def test_what_is_the_coordinators_alone_is_not_proposed() -> None:
    owner = Owner()
    with pytest.raises(CoordinatorUnavailableError):
        await owner.wants(edits.Began(1, 1, 1, "", False, None, 1))  # type: ignore[arg-type]
    assert owner.asked == []
