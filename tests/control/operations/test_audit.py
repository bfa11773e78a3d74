"""What was done by hand leaves a line, whatever became of it."""

from __future__ import annotations

import logging

import pytest

from basalt.errors import ConflictError, CorruptionError, InputError, UnavailableError
from basalt.operations.audit import COUNTED_AGAIN_MS, TEXT_CHARS_MAX, Audit, Author, Wanted, is_line
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable

pytestmark = pytest.mark.anyio

ALICE = Author("192.0.2.7", "curl/8", "alice")


class Desk:
    """An operator's desk: a store with its audit."""

    def __init__(self, **bounds: int) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.audit = Audit(self.store, self.clock, **bounds)

    async def act(self, what: str, error: BaseException | None = None) -> str:
        async def do() -> str:
            if error is not None:
                raise error
            (line,) = await self.audit.newest(1)
            assert (line.what, line.outcome) == (what, "unfinished"), "the line is there before the act"
            return "gone"

        return await self.audit.act("prune", what, ALICE, "full disk", "r1", do, lambda answer: f"it is {answer}")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def outcomes(audit: Audit) -> list[tuple[str, str]]:
    return [(line.what, line.outcome) for line in await audit.newest(100)]


async def test_an_act_leaves_who_what_why_and_how_it_ended(desk, caplog):
    with caplog.at_level(logging.WARNING, "basalt.audit"):
        assert await desk.act("the list") == "gone"
    (line,) = await desk.audit.newest(10)
    assert (line.at_ms, line.act, line.what, line.reason) == (desk.clock.now_ms(), "prune", "the list", "full disk")
    assert (line.address, line.agent, line.name, line.request_id) == ("192.0.2.7", "curl/8", "alice", "r1")
    assert line.outcome == "it is gone"
    assert caplog.messages == ["prune of the list by alice from 192.0.2.7: it is gone (reason: full disk)"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConflictError("it is in use"), "refused: it is in use"),
        (InputError("no"), "refused: no"),
        (UnavailableError("no store"), "failed: no store"),
        (RuntimeError("bug"), "interrupted: bug"),
    ],
)
async def test_an_act_that_came_to_nothing_leaves_a_line_too(desk, error, outcome):
    with pytest.raises(type(error)):
        await desk.act("the list", error)
    assert await outcomes(desk.audit) == [("the list", outcome)]


async def test_the_newest_lines_come_first_and_those_about_one_thing_can_be_asked_for(desk):
    for what in ("a", "b", "a"):
        await desk.act(what)
        desk.clock.advance(1)
    assert [what for what, _ in await outcomes(desk.audit)] == ["a", "b", "a"]
    assert [line.what for line in await desk.audit.newest(2)] == ["a", "b"]
    assert [line.at_ms for line in await desk.audit.about("a", 10)] == [
        desk.clock.now_ms() - 1,
        desk.clock.now_ms() - 3,
    ]


async def test_only_so_many_lines_are_kept():
    desk = Desk(entries_max=3)
    for number in range(6):
        await desk.act(str(number))
        desk.clock.advance(1)
    assert [what for what, _ in await outcomes(desk.audit)] == ["5", "4", "3"]
    desk.audit = Audit(desk.store, desk.clock, entries_max=2)  # a restart with a lower bound
    await desk.act("6")
    assert [what for what, _ in await outcomes(desk.audit)] == ["6", "5"]


async def test_no_line_is_kept_for_ever():
    desk = Desk(age_ms_max=10)
    await desk.act("old")
    desk.clock.advance(10)
    await desk.act("young")
    assert [what for what, _ in await outcomes(desk.audit)] == ["young", "old"]
    desk.clock.advance(1)
    await desk.act("new")
    assert [what for what, _ in await outcomes(desk.audit)] == ["new", "young"]


async def test_what_a_client_says_of_itself_is_cut_and_made_printable(desk):
    await desk.audit.act("prune", "x", Author("::1", "a\nb" + "c" * 600), "", "r", lambda: desk.audit.newest(1))
    (line,) = await desk.audit.newest(1)
    assert line.agent.startswith("a\ufffdb")
    assert len(line.agent) == TEXT_CHARS_MAX


@pytest.mark.parametrize("text", ["a" * (TEXT_CHARS_MAX + 1), "two\nlines", "a\0b"])
def test_a_reason_is_one_line_of_a_bounded_length(text):
    assert is_line("a" * TEXT_CHARS_MAX)
    assert not is_line(text)


async def test_a_line_that_is_damaged_is_told(desk):
    SystemTable(desk.store.table("system")).write("audit", "1", b"{}")
    with pytest.raises(CorruptionError, match="audit:1"):
        await desk.audit.newest(1)


async def test_lines_are_found_by_time_act_principal_and_what_they_are_about_page_by_page(desk):
    began_ms = desk.clock.now_ms()
    for number in range(6):
        by = Author("192.0.2.7", principal=f"token:{'ab'[number % 2]}")
        await desk.audit.act(f"act {number % 3}", f"Topic shop:t{number}", by, "", "r", lambda: desk.audit.newest(1))
        desk.clock.advance(1_000)

    async def found(limit: int = 100, **wanted: object) -> list[str]:
        lines = await desk.audit.find(Wanted(**wanted), limit)  # type: ignore[arg-type]
        return [line.what[-1] for _, line in lines]

    assert await found() == ["5", "4", "3", "2", "1", "0"]
    assert await found(from_ms=began_ms + 1_000, to_ms=began_ms + 3_000) == ["2", "1"]
    assert await found(from_ms=began_ms + 3_000, to_ms=began_ms + 3_000) == []
    assert await found(act="act 1") == ["4", "1"]
    assert await found(principal="token:b", target="SHOP:t3") == ["3"]
    assert await found(target="nothing") == []
    page = await desk.audit.find(Wanted(principal="token:a"), 2)
    assert await found(principal="token:a", after=page[-1][0]) == ["0"]
    assert await found(to_ms=began_ms + 2_000, after=page[-1][0]) == ["1", "0"]


async def test_a_member_adds_lines_and_the_leader_keeps_the_number_of_all_below_the_limit(desk):
    desk = Desk(entries_max=4)
    member = Audit(desk.store, desk.clock, entries_max=4, is_member=True)

    async def nothing() -> None:
        pass

    await desk.act("a")
    for what in "bcdef":
        await member.act("create topic", what, ALICE, "", "r", nothing)
    assert len(await outcomes(desk.audit)) == 6
    desk.clock.advance(COUNTED_AGAIN_MS)
    await desk.act("g")
    assert [what for what, _ in await outcomes(desk.audit)] == ["g", "f", "e", "d"]
