"""Servers on one store with real links between them: who is linked, what a break and a farewell make them do, and what the rows say then.

The time of leases passes only where a story lets it; what goes over a connection takes as long as it takes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import pytest

from basalt.cluster.links import links as module
from basalt.cluster.links.beats import BEAT, BEAT_MS, LONELY_MS, UNLINKED_MS, Beat, Held
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Dial, Hello
from basalt.cluster.links.link import Link, opened
from basalt.cluster.links.link_tls import CONNECT_SECONDS_MAX
from basalt.cluster.links.links import (
    HELLO_SECONDS_MAX,
    HELLOS_MAX,
    LINKS_MAX,
    REDIAL_MS_MAX,
    REDIAL_MS_MIN,
    RESTS_LEASES,
    SILENT_MS,
    TOLD_AGAIN_MS,
)
from basalt.cluster.members import MEMBER
from basalt.errors import UnavailableError
from basalt_engine.system import FACTS
from tests.control.cluster.links.link_pair import HANG_S, until
from tests.control.cluster.links.linked_servers import LEASE_MS, SECRET, Server, World, run, three


def test_a_members_link_is_found_by_the_name_that_the_map_of_owners_has():
    async def story(world: World) -> None:
        leader, standby, _ = await three(world)
        name = standby.leadership.candidate.instance
        await world.until(lambda: leader.links.of_run(name) is not None)
        assert leader.links.of_run(name) is leader.links.of_members[standby.membership.instance]
        assert leader.links.of_run(leader.leadership.candidate.instance) is None
        await standby.stop()
        await world.until(lambda: leader.links.of_run(name) is None)

    run(story)


def test_the_leader_hears_of_the_shards_that_a_member_serves_while_it_is_linked():
    async def story(world: World) -> None:
        leader, standby, other = await three(world)
        name = standby.leadership.candidate.instance
        standby.links.holds = lambda: Held(((2, 3), (7, 7)), 1)
        await world.until(lambda: leader.links.hears_of(name, 2))
        assert [shard for shard in range(10) if leader.links.hears_of(name, shard)] == [2, 3, 7]
        assert not other.links.hears_of(name, 2), "beats come to the leader alone"
        assert not leader.links.hears_of("nobody-1", 2)
        standby.links.holds = Held
        await world.until(lambda: not leader.links.hears_of(name, 2))
        standby.links.holds = lambda: Held(((2, 3),), 2)
        await world.until(lambda: leader.links.hears_of(name, 2))
        await standby.stop()
        await world.until(lambda: not leader.links.hears_of(name, 2))

    run(story)


def test_a_member_hears_from_the_leader_which_of_those_that_are_silent_to_it_serve(monkeypatch: pytest.MonkeyPatch):
    async def story(world: World) -> None:
        leader, standby, other = await three(world)
        name = standby.leadership.candidate.instance
        standby.links.holds = lambda: Held(((2, 3),), 1)
        await world.until(lambda: leader.links.hears_of(name, 2))
        assert other.membership.silent() == []
        monkeypatch.setattr(standby.membership, "step", lambda: 0.0)  # renews its row no more
        await world.until(lambda: other.links.hears_of(name, 2))
        assert other.membership.silent() == [name]
        assert not other.links.hears_of("nobody-1", 2)
        standby.links.holds = Held
        await world.until(lambda: not other.links.hears_of(name, 2))
        standby.links.holds = lambda: Held(((2, 3),), 1)
        await world.until(lambda: other.links.hears_of(name, 2))
        await leader.stop()
        assert not other.links.hears_of(name, 2), "nobody tells it any more"

    run(story)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_members_are_linked_to_the_leader_and_beat(secret: str | None):
    async def story(world: World) -> None:
        leader = await world.add("first", secret)
        await world.until(lambda: leader.leadership.is_leader)
        standby = await world.add("second", secret)
        await world.until_linked(leader, standby)
        standby.links.holds, standby.links.calls = lambda: Held(((0, 3),), 7), 5

        def told() -> Beat | None:
            return leader.links.beats.heard[standby.membership.instance].beat

        await world.until(lambda: (beat := told()) is not None and beat.calls == 5)
        await world.until(lambda: (beat := told()) is not None and beat.calls == 0 and beat.rtt_us > 0)
        beat = told()
        assert beat is not None
        assert (beat.shards, beat.map_version) == (((0, 3),), 7)
        assert beat.count >= 3
        record = MEMBER.get(world.system, standby.membership.instance)
        assert record is not None
        assert record.link == standby.where

    run(story)


def test_a_server_with_another_secret_gets_no_link_and_both_logs_say_so(caplog: pytest.LogCaptureFixture):
    async def story(world: World) -> None:
        leader = await world.add("first")
        await world.until(lambda: leader.leadership.is_leader)
        standby = await world.add("second", SECRET + "!")
        await world.until(lambda: standby.links.refusals["secret"] > 1)
        assert leader.links.refusals["secret"] > 1
        assert (leader.links.linked(), standby.is_linked) == ([], False)
        lines = [each.message for each in caplog.records if "cluster.secret_file" in each.message]
        assert len(lines) == 2, "one line of each a minute"
        assert sum(leader.where in line for line in lines) == 1
        world.clock.advance(TOLD_AGAIN_MS)
        before = standby.links.refusals["secret"]
        await world.until(lambda: standby.links.refusals["secret"] > before)
        assert len([each for each in caplog.records if "cluster.secret_file" in each.message]) > 2

    with caplog.at_level(logging.WARNING):
        run(story)


def test_a_server_of_another_installation_gets_no_link(caplog: pytest.LogCaptureFixture):
    async def story(world: World) -> None:
        leader = await world.add("first")
        await world.until(lambda: leader.leadership.is_leader)
        standby = await world.add("second")
        standby.membership.installation = "another"
        await world.until(lambda: standby.links.refusals["installation"] > 0)
        assert leader.links.linked() == []
        assert "another installation" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(story)


async def dialed(leader: Server, epoch: int, installation: str) -> Link:
    """What became of a hello by this epoch."""
    hello = Hello(
        VERSION, installation, "stranger", leader.leadership.candidate.instance, epoch, LEADER, bytes(NONCE_BYTES)
    )
    link = Link(Dial(SECRET.encode(), hello, leader.where), leader.links.handlers)
    host, port = leader.where.split(":")
    await asyncio.get_running_loop().create_connection(lambda: link, host, int(port))
    await opened(link, HANG_S)
    return link


def test_a_lower_epoch_is_refused_and_a_higher_one_too():
    async def story(world: World) -> None:
        leader, *_ = await three(world)
        facts = FACTS.get(world.system)
        assert facts is not None
        epoch = leader.leadership.epoch
        for known, why in ((epoch - 1, "stale"), (epoch + 1, "not_leader")):
            link = await dialed(leader, known, facts.instance)
            assert link.refused is not None
            assert link.refused.why == why
        link = await dialed(leader, epoch, facts.instance)
        assert link.is_open
        link.close("done")

    run(story)


def test_a_leader_that_stops_is_followed_at_once():
    """No time of leases passes from the stop until the next server leads: it would have looked half a second later."""

    async def story(world: World) -> None:
        leader, second, third = await three(world)
        stopped_ms = world.clock.monotonic_ms()
        await leader.stop()

        async with asyncio.timeout(HANG_S):
            while not (second.leadership.is_leader or third.leadership.is_leader):
                await world.step()
        assert world.clock.monotonic_ms() == stopped_ms
        assert [each.links.broken for each in world.servers] == [0, 0, 0], "they parted with a word"
        next_leader, other = (second, third) if second.leadership.is_leader else (third, second)
        await world.until_linked(next_leader, other)

    run(story)


def test_a_link_that_breaks_makes_both_sides_look_at_the_rows():
    async def story(world: World) -> None:
        leader, second, third = await three(world)
        looked = [each.membership.looked_ms for each in (leader, second)]
        world.clock.advance(10)
        assert second.links.to_leader is not None
        transport = second.links.to_leader._transport
        assert transport is not None
        transport.abort()
        async with asyncio.timeout(HANG_S):
            while not all(
                each.membership.looked_ms != before for each, before in zip((leader, second), looked, strict=True)
            ):
                await world.step()
        assert second.links.broken == 1
        assert leader.leadership.is_leader, "the rows decide, and they say that it leads"
        await world.until_linked(leader, second, third)

    run(story)


def test_a_member_whose_links_are_cut_is_ended_and_begins_another_membership(caplog: pytest.LogCaptureFixture):
    async def story(world: World) -> None:
        leader, second, third = await three(world)
        former = second.membership.instance
        second.links._dialed = None
        second.links._follow = lambda now_ms: None  # type: ignore[method-assign]
        assert second.links.to_leader is not None
        second.links.to_leader.close("the network is cut")
        await world.pass_ms(UNLINKED_MS - BEAT_MS)
        assert second.membership.instance == former
        await world.until(lambda: second.membership.instance != former)
        record = MEMBER.get(world.system, former)
        assert record is not None
        assert record.is_over
        assert "has had no link to the leader for too long" in caplog.text
        assert leader.leadership.is_leader
        assert third.is_linked

    with caplog.at_level(logging.WARNING):
        run(story)


def test_a_leader_that_lost_most_of_its_links_leaves_the_lead_to_another_server():
    async def story(world: World) -> None:
        leader, second, third = await three(world)
        for each in (second, third):
            link = each.links.to_leader
            assert link is not None
            assert link._transport is not None
        leader_accepts, leader.links._accept = leader.links._accept, None  # type: ignore[method-assign, assignment]
        leader.links._accepting.cancel()  # type: ignore[union-attr]
        for link in list(leader.links.of_members.values()):
            link._transport.abort()  # type: ignore[union-attr]
        await world.pass_ms(LONELY_MS - 2 * BEAT_MS)
        assert leader.leadership.is_leader
        await world.until(lambda: second.leadership.is_leader or third.leadership.is_leader)
        assert not leader.leadership.is_leader
        assert "fewer than half" in (leader.terms[-1].over or "")
        await world.pass_ms(RESTS_LEASES * LEASE_MS)
        assert not leader.leadership.is_leader
        assert leader_accepts is not None

    run(story)


def test_a_lonely_leader_that_nobody_follows_leads_again_after_its_rest():
    async def story(world: World) -> None:
        leader, second, third = await three(world)
        for each in (second, third):
            each.leadership._seeking = False
            each.links._follow = lambda now_ms: None  # type: ignore[method-assign]
            each.links.to_leader.close("the network is cut")  # type: ignore[union-attr]
        await world.until(lambda: not leader.leadership.is_leader)
        gave_up_ms = world.clock.monotonic_ms()
        leader.leadership.seek()
        await world.until(lambda: leader.leadership.is_leader)
        assert world.clock.monotonic_ms() - gave_up_ms >= (RESTS_LEASES - 1) * LEASE_MS
        await world.pass_ms(2 * LONELY_MS)
        assert leader.leadership.is_leader, "in this term it had no links that it could have lost"

    run(story)


def test_a_leader_that_hears_nothing_over_an_open_link_closes_it():
    async def story(world: World) -> None:
        leader, second, _ = await three(world)
        second.links.tend = lambda: None  # type: ignore[method-assign]
        instance = second.membership.instance
        await world.pass_ms(SILENT_MS - BEAT_MS)
        assert instance in leader.links.of_members
        await world.until(lambda: instance not in leader.links.of_members)

    run(story)


def test_a_member_that_dials_again_has_one_link():
    async def story(world: World) -> None:
        leader, second, third = await three(world)
        second.links.to_leader._transport.abort()  # type: ignore[union-attr]
        await world.until(lambda: second.links.broken == 1)
        await world.until_linked(leader, second, third)
        assert len(leader.links.of_members) == 2

    run(story)


def test_a_leader_that_is_not_there_is_dialed_ever_more_seldom(caplog: pytest.LogCaptureFixture):
    async def story(world: World) -> None:
        leader = await world.add("first")
        await world.until(lambda: leader.leadership.is_leader)
        leader.links._accepting.cancel()  # type: ignore[union-attr]
        await until(lambda: leader.listener.fileno() < 0)
        standby = await world.add("second")
        await world.until(lambda: standby.links._redial_ms == REDIAL_MS_MAX)
        assert len([each for each in caplog.records if "no link to the leader" in each.message]) == 1
        assert leader.leadership.is_leader

    assert REDIAL_MS_MIN < REDIAL_MS_MAX
    assert CONNECT_SECONDS_MAX < HELLO_SECONDS_MAX
    with caplog.at_level(logging.WARNING):
        run(story)


def test_a_member_is_linked_again_after_what_it_did_with_a_new_link_failed(caplog: pytest.LogCaptureFixture):
    async def story(world: World) -> None:
        leader = await world.add("first")
        await world.until(lambda: leader.leadership.is_leader)
        member = await world.add("second")
        fails = [True]

        def call() -> None:
            if fails:
                fails.pop()
                raise AssertionError("a bug")

        member.links.when_linked(call)
        await world.until(lambda: not fails)
        assert member.links.to_leader is None
        await world.until_linked(leader, member)
        assert [each.message for each in caplog.records if each.exc_info] == ["the link to the leader was given up"]

    run(story)


def test_connections_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch):
    async def story(world: World) -> None:
        leader = await world.add("first")
        await world.until(lambda: leader.leadership.is_leader)
        strangers = []
        for _ in range(HELLOS_MAX + 10):
            strangers.append(await asyncio.open_connection(*leader.where.split(":")))
        await until(lambda: sum(leader.links.refusals.values()) >= 10)
        assert len(leader.links._hellos) <= HELLOS_MAX
        standby = await world.add("second")
        await world.until_linked(leader, standby)
        for _, writer in strangers:
            writer.close()

    run(story)


def test_a_server_that_has_no_more_files_for_a_moment_takes_links_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def story(world: World) -> None:
        loop, fails = asyncio.get_running_loop(), [True, True]
        accept = loop.sock_accept

        async def sock_accept(listener: socket.socket) -> tuple[socket.socket, object]:
            if fails:
                fails.pop()
                raise OSError(errno.EMFILE, "Too many open files")
            return await accept(listener)

        monkeypatch.setattr(loop, "sock_accept", sock_accept)
        monkeypatch.setattr(module, "ACCEPT_AGAIN_SECONDS", 0)
        leader = await world.add("first")
        await world.until(lambda: leader.leadership.is_leader)
        await world.until_linked(leader, await world.add("second"))
        assert not fails
        assert "no link can be taken for a moment: [Errno 24] Too many open files" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(story)


def test_links_have_a_limit(monkeypatch: pytest.MonkeyPatch):
    async def story(world: World) -> None:
        assert LINKS_MAX >= 1
        monkeypatch.setattr(module, "LINKS_MAX", 1)
        leader = await world.add("first")
        await world.until(lambda: leader.leadership.is_leader)
        one = await world.add("second")
        await world.until_linked(leader, one)
        other = await world.add("third")
        await world.until(lambda: other.links.refusals["full"] > 0)
        assert len(leader.links.of_members) == 1

    run(story)


def test_a_server_that_leads_no_more_answers_no_beat_and_its_links_stay_until_it_says_that_it_goes():
    async def story(world: World) -> None:
        leader, second, _ = await three(world)
        link = second.links.to_leader
        assert link is not None
        leader.is_stopped = second.is_stopped = True
        leader.leadership.release()
        with pytest.raises(UnavailableError, match="leads no more"):
            await link.call(BEAT, Beat(1), HANG_S * 1_000)
        await second.links._beat(link)
        assert link.is_open, "it says that it goes once its lease is free"
        leader.is_stopped = second.is_stopped = False

    run(story)


def test_the_leader_hears_of_the_oldest_view_of_each_member_and_holds_all_until_it_has_heard_them():
    async def story(world: World) -> None:
        leader = await world.add("first")
        assert leader.links.oldest_view_of_members() == 0, "it does not lead"
        await world.until(lambda: leader.leadership.is_leader)
        await world.until(lambda: leader.links.oldest_view_of_members() is None)
        standby = await world.add("second")
        linked: list[int] = []
        standby.links.when_linked(call := lambda: linked.append(1))
        standby.links.oldest_view = lambda: 77
        await world.until_linked(leader, standby)
        await world.until(lambda: leader.links.oldest_view_of_members() == 77)
        assert linked == [1]
        standby.links.forget(call)
        assert standby.links.to_leader is not None
        standby.links.to_leader.close("broken")
        await world.until(lambda: not standby.is_linked)
        assert leader.links.oldest_view_of_members() == 77
        await world.until_linked(leader, standby)
        assert linked == [1]
        await standby.stop()
        await world.until(lambda: leader.links.oldest_view_of_members() is None)

    run(story)
