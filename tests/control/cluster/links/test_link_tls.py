"""Links by TLS over real connections: who is taken, who is refused and what both sides say of it, and that nobody holds up anybody."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from basalt.cluster.links import link as link_module
from basalt.cluster.links import link_tls as module
from basalt.cluster.links import links as links_module
from basalt.cluster.links.frames import HELLO_BYTES_MAX, FrameReader, Kind
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Dial, Hello, RefusedError, Why, fingerprint
from basalt.cluster.links.link import QUEUE_BYTES_MAX, Link, opened
from basalt.cluster.links.link_tls import (
    CONNECT_SECONDS_MAX,
    HANDSHAKE_SECONDS_MAX,
    WRONG_BYTES_MAX,
    LinkAddress,
    LinkTls,
    Shown,
    link_text,
)
from basalt.cluster.links.links import HELLOS_MAX
from basalt.cluster.members import MEMBER
from basalt.errors import BusyError
from tests.certificates import Authority, Issued
from tests.control.cluster.links.link_pair import COUNT, ECHO, HANG_S, until
from tests.control.cluster.links.linked_servers import SECRET, Server, World, world

URL = "https://127.0.0.1:4780"
HANDSHAKE = b"\x16"
MEGABYTE = 1 << 20

Story = Callable[[World], Awaitable[None]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def issued(authority: Authority) -> Issued:
    return authority.server()


def shown(issued: Issued) -> Shown:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    return Shown(context, fingerprint(issued.der))


def tls_of(authority: Authority, issued: Issued | None) -> LinkTls:
    """TLS of a server that trusts this authority and has this certificate, or none."""
    made = None if issued is None else shown(issued)
    return LinkTls(str(authority.file), None if made is None else lambda: made)


def run(story: Story, loop: Callable[..., object] = uvloop.run) -> None:
    async def all_of_it() -> None:
        async with world() as made:
            await story(made)

    loop(all_of_it())


async def leading(world: World, tls: LinkTls | None, url: str = URL) -> Server:
    leader = await world.add("first", tls=tls, url=url)
    await world.until(lambda: leader.leadership.is_leader)
    return leader


async def two(world: World, leaders: LinkTls, members: LinkTls) -> tuple[Server, Server, Link]:
    """A leader, a member that is linked, and its link."""
    leader = await leading(world, leaders)
    member = await world.add("second", tls=members, url=URL)
    await world.until_linked(leader, member)
    assert member.links.to_leader is not None
    return leader, member, member.links.to_leader


async def check_refused(world: World, leader: Server, member: Server, why: Why, leaders: Why) -> None:
    """The two get no link, and each counts why."""
    await world.until(
        lambda: member.is_linked or (member.links.refusals[why] > 0 and leader.links.refusals[leaders] > 0)
    )
    assert (leader.links.linked(), member.is_linked) == ([], False)
    assert set(member.links.refusals) == {why}
    assert set(leader.links.refusals) == {leaders}


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_servers_with_tls_are_linked_by_it_and_calls_go_both_ways(
    authority: Authority, issued: Issued, loop: Callable[..., object]
):
    async def story(world: World) -> None:
        tls = tls_of(authority, issued)
        leader, member, link = await two(world, tls, tls)
        other = leader.links.of_members[member.membership.instance]
        assert link.is_secure
        assert other.is_secure
        for each in (leader, member):
            each.links.handlers.add(ECHO, lambda _, question: question)
        large = b"x" * (10 * MEGABYTE)
        assert await link.call(ECHO, large, HANG_S * 1_000) == large
        assert await other.call(ECHO, large, HANG_S * 1_000) == large
        many = await asyncio.gather(*(link.call(ECHO, b"%d" % each, HANG_S * 1_000) for each in range(1_000)))
        assert many == [b"%d" % each for each in range(1_000)]
        record = MEMBER.get(world.system, leader.membership.instance)
        assert record is not None
        assert record.link == leader.where
        assert record.link.startswith("tls://127.0.0.1:")
        await leader.stop()
        assert await link.closed == "the other server goes", "it was told, before TLS was closed"
        assert member.links.broken == 0

    run(story, loop)


def test_servers_without_tls_are_linked_without(authority: Authority):
    async def story(world: World) -> None:
        tls = tls_of(authority, None)
        leader, _, link = await two(world, tls, tls)
        assert not link.is_secure
        assert leader.where.startswith("127.0.0.1:")

    run(story)


def expired(authority: Authority) -> Issued:
    return authority.server("expired", starts_days=-3, ends_days=-1)


def to_come(authority: Authority) -> Issued:
    return authority.server("to-come", starts_days=1)


def of_another_name(authority: Authority) -> Issued:
    return authority.issue("other", "other", dns=("other.example",), addresses=("127.0.0.2",))


def of_another_authority(authority: Authority) -> Issued:
    return Authority(authority.file.parent / "other", "other").server()


REFUSED: list[tuple[Callable[[Authority], Issued], Why]] = [
    (expired, "expired"), (to_come, "expired"), (of_another_name, "another_name"), (of_another_authority, "untrusted"),
]  # fmt: skip


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(("certificate", "why"), REFUSED)
def test_a_leader_whose_certificate_does_not_count_gets_no_link_and_both_logs_say_so(
    authority: Authority, issued: Issued, certificate: Callable[[Authority], Issued], why: Why,
    loop: Callable[..., object], caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, certificate(authority)))
        member = await world.add("second", tls=tls_of(authority, issued))
        await check_refused(world, leader, member, why, "handshake")
        lines = [each.message for each in caplog.records if "no link with" in each.message]
        assert any("a link from" in line and "the log of that side says so" in line for line in lines)
        assert any(leader.where in line and ("cluster.ca" in line or "its certificate" in line) for line in lines)

    with caplog.at_level(logging.WARNING):
        run(story, loop)


@pytest.mark.parametrize(
    ("url", "is_linked"),
    [("https://127.0.0.1", True), ("https://localhost:4780", True), ("https://db.example:4780", False), ("", False)],
)
def test_the_name_in_the_certificate_must_be_that_of_the_leaders_url(
    authority: Authority, issued: Issued, url: str, is_linked: bool
):
    async def story(world: World) -> None:
        tls = tls_of(authority, issued)
        await leading(world, tls, url or "https://")
        member = await world.add("second", tls=tls)
        await world.until(lambda: member.is_linked or member.links.refusals["another_name"] > 0)
        assert member.is_linked == is_linked

    run(story)


@pytest.mark.parametrize("certificate", [each for each, _ in REFUSED])
def test_without_verification_these_checks_would_fail(
    authority: Authority, issued: Issued, certificate: Callable[[Authority], Issued], monkeypatch: pytest.MonkeyPatch
):
    """A planted fault: who dials believes every certificate. It would be linked."""

    def trusting(_self: LinkTls, _where: str) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, certificate(authority)))
        member = await world.add("second", tls=tls_of(authority, issued))
        with pytest.raises(AssertionError):
            await check_refused(world, leader, member, "untrusted", "handshake")
        assert member.is_linked

    monkeypatch.setattr(LinkTls, "_trusting", trusting)
    run(story)


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_a_server_with_tls_dials_no_leader_without_and_both_say_why(
    authority: Authority, issued: Issued, loop: Callable[..., object], caplog: pytest.LogCaptureFixture
):
    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, None), "http://127.0.0.1:4780")
        member = await world.add("second", tls=tls_of(authority, issued))
        await check_refused(world, leader, member, "plain", "plain")
        lines = [each.message for each in caplog.records if "set tls.certificate on all servers" in each.message]
        assert any("a link from" in line for line in lines)
        assert any(leader.where in line for line in lines)

    with caplog.at_level(logging.WARNING):
        run(story, loop)


def test_a_server_without_tls_is_linked_by_it_to_a_leader_that_speaks_it_and_trusts_nobody_else(authority: Authority):
    """So servers can be changed to TLS one after the other: a step towards it is no downgrade."""

    async def story(world: World) -> None:
        leader, member, link = await two(world, tls_of(authority, authority.server()), tls_of(authority, None))
        assert link.is_secure
        assert not member.where.startswith("tls://")
        other = await world.add("third", tls=LinkTls(str(Authority(authority.file.parent / "x").file)))
        await world.until(lambda: other.links.refusals["untrusted"] > 0)
        assert len(leader.links.of_members) == 1

    run(story)


def test_a_leader_with_tls_takes_no_plain_link_and_says_so_without_a_word_about_itself(
    authority: Authority, issued: Issued, caplog: pytest.LogCaptureFixture
):
    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, issued))
        address = LinkAddress.read(leader.where)
        link = Link(dial_of(leader), leader.links.handlers)
        await asyncio.get_running_loop().create_connection(lambda: link, address.host, address.port)
        await opened(link, HANG_S)
        assert link.refused is not None
        assert link.refused.why == "plain"
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        (frame,) = FrameReader(HELLO_BYTES_MAX).feed(await reader.read())
        assert (frame.kind, frame.number) == (Kind.REFUSED, 0)
        writer.close()
        await until(lambda: leader.links.refusals["plain"] == 2)
        assert "set tls.certificate on all servers" in caplog.text

    assert WRONG_BYTES_MAX > HELLO_BYTES_MAX, "a hello is taken as a whole"
    with caplog.at_level(logging.WARNING):
        run(story)


def dial_of(leader: Server) -> Dial:
    membership = leader.membership
    hello = Hello(
        VERSION, membership.installation, "stranger", leader.leadership.candidate.instance, leader.leadership.epoch,
        LEADER, bytes(NONCE_BYTES),
    )  # fmt: skip
    return Dial(SECRET.encode(), hello, "a test")


@pytest.mark.parametrize("says", ["tls", "plain"])
def test_somebody_between_the_two_with_a_certificate_that_counts_gets_no_link_by_passing_hellos_on(
    authority: Authority, issued: Issued, says: str
):
    """They end TLS of both, and know no secret. Without the certificate in the hello the link would be theirs to read and to change."""

    async def story(world: World) -> None:
        tls = tls_of(authority, issued)
        leader = await leading(world, tls)
        leaders, theirs = LinkAddress.read(leader.where), shown(authority.server("theirs")).context

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(MEGABYTE):
                writer.write(data)
            writer.close()

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(leaders.host, leaders.port, ssl=authority.trusting())
            await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)

        relay = await asyncio.start_server(between, "127.0.0.1", 0, ssl=theirs)
        where = link_text(f"127.0.0.1:{relay.sockets[0].getsockname()[1]}", is_secure=says == "tls")
        link = Link(dial_of(leader), leader.links.handlers)
        await tls.dial(link, where, "127.0.0.1")
        assert link.is_secure, "their certificate counts"
        assert not await opened(link, HANG_S)
        assert link.refused is not None
        assert link.refused.why == "certificate"
        await until(lambda: leader.links.refusals["certificate"] == 1)
        relay.close()

    run(story)


def test_a_certificate_that_is_renewed_counts_for_new_links_and_those_that_are_open_go_on(authority: Authority):
    async def story(world: World) -> None:
        now = [shown(authority.server("old"))]
        leader, member, link = await two(
            world, LinkTls(None, lambda: now[0]), tls_of(authority, authority.server("members"))
        )
        member.links.handlers.add(COUNT, lambda _, question: question + 1)
        renewed = authority.server("new")
        now[0] = shown(renewed)
        other = leader.links.of_members[member.membership.instance]
        assert await other.call(COUNT, 1, HANG_S * 1_000) == 2
        link.close("the test wants a new one")
        await world.until(lambda: not member.is_linked)
        await world.until_linked(leader, member)
        assert member.links.to_leader is not None
        transport = member.links.to_leader._transport
        assert transport is not None
        assert transport.get_extra_info("ssl_object").getpeercert(True) == renewed.der
        assert not leader.links.refusals

    run(story)


def test_authorities_are_read_anew_for_each_link(authority: Authority, issued: Issued):
    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, issued))
        right, file = authority.file.read_bytes(), authority.file
        file.write_bytes(Authority(file.parent / "other").pem)
        member = await world.add("second", tls=tls_of(authority, None))
        await world.until(lambda: member.links.refusals["untrusted"] > 0)
        file.unlink()
        before = member.links.refusals["untrusted"]
        await world.until(lambda: member.links.refusals["untrusted"] > before)
        file.write_bytes(right)
        await world.until_linked(leader, member)

    run(story)


async def strangers(
    leader: Server, first: bytes, count: int
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address, made = LinkAddress.read(leader.where), []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(first)
        made.append((reader, writer))
    return made


@pytest.mark.parametrize("first", [b"", HANDSHAKE])
def test_handshakes_that_never_end_keep_nobody_out_and_are_ended_themselves(
    authority: Authority, issued: Issued, first: bytes, monkeypatch: pytest.MonkeyPatch
):
    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, issued))
        made = await strangers(leader, first, HELLOS_MAX + 10)
        await until(lambda: sum(leader.links.refusals.values()) >= 10)
        assert len(leader.links._hellos) <= HELLOS_MAX
        async with asyncio.timeout(HANG_S):
            for reader, _ in made[:10]:
                assert await reader.read() == b"", "the oldest ones are closed, and not left to their time"
        member = await world.add("second", tls=tls_of(authority, issued))
        await world.until_linked(leader, member)
        for _, writer in made:
            writer.close()

    monkeypatch.setattr(module, "HANDSHAKE_SECONDS_MAX", 10 * HANG_S)
    run(story)


@pytest.mark.parametrize(("first", "why"), [(b"", "no_hello"), (HANDSHAKE, "handshake")])
def test_a_handshake_has_its_time(
    authority: Authority, issued: Issued, first: bytes, why: str, monkeypatch: pytest.MonkeyPatch
):
    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, issued))
        ((reader, writer),) = await strangers(leader, first, 1)
        async with asyncio.timeout(HANG_S):
            assert await reader.read() == b""
        await until(lambda: leader.links.refusals[why] == 1)
        assert not leader.links._hellos
        writer.close()

    assert CONNECT_SECONDS_MAX < HANDSHAKE_SECONDS_MAX
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS_MAX", 0.05)
    run(story)


def test_who_makes_the_handshake_and_says_no_hello_has_no_more_time_than_without_tls(
    authority: Authority, issued: Issued, monkeypatch: pytest.MonkeyPatch
):
    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, issued))
        address = LinkAddress.read(leader.where)
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=authority.trusting())
        async with asyncio.timeout(HANG_S):
            assert await reader.read() == b""
        await until(lambda: leader.links.refusals["no_hello"] == 1)
        writer.close()

    monkeypatch.setattr(links_module, "HELLO_SECONDS_MAX", 0.05)
    run(story)


def test_a_leader_that_never_makes_its_handshake_is_dialed_in_vain_and_again(
    authority: Authority, issued: Issued, monkeypatch: pytest.MonkeyPatch
):
    async def story(_world: World) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:  # which accepts nobody
            link = Link(Dial(b"", Hello(1, "", "", "", 1, LEADER, b""), "a test"), link_module.Handlers())
            where = link_text(f"127.0.0.1:{listener.getsockname()[1]}", is_secure=True)
            with pytest.raises((RefusedError, TimeoutError)):
                await tls_of(authority, issued).dial(link, where, "127.0.0.1")

    monkeypatch.setattr(module, "HANDSHAKE_SECONDS_MAX", 0.05)
    run(story)


def test_nobody_is_reached_where_nobody_listens(authority: Authority, issued: Issued):
    async def story(_world: World) -> None:
        link = Link(Dial(b"", Hello(1, "", "", "", 1, LEADER, b""), "a test"), link_module.Handlers())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await tls_of(authority, issued).dial(link, f"tls://127.0.0.1:{port}", "127.0.0.1")

    run(story)


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_a_member_that_takes_nothing_and_does_not_close_its_tls_does_not_hold_up_a_stop(
    authority: Authority, issued: Issued, loop: Callable[..., object], monkeypatch: pytest.MonkeyPatch
):
    """Nothing waits for its end of TLS: by these limits the test would hang."""

    async def story(world: World) -> None:
        tls = tls_of(authority, issued)
        leader, member, link = await two(world, tls, tls)
        other = leader.links.of_members[member.membership.instance]
        link._transport.pause_reading()  # type: ignore[union-attr]
        for _ in range(8):
            other.send(ECHO, bytes(MEGABYTE), HANG_S * 10_000, lambda answer: answer.exception())
        leader.is_stopped = member.is_stopped = True
        async with asyncio.timeout(HANG_S):
            await leader.links.close()
        assert not link.closed.done(), "it has read nothing of that"
        link._abort("the test is over")
        other._transport.abort()  # type: ignore[union-attr]
        await member.links.close()

    for each in (module, link_module):
        monkeypatch.setattr(each, "CLOSE_SECONDS_MAX", 10 * HANG_S)
    run(story, loop)


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_what_a_slow_side_has_not_taken_is_bounded_by_tls_too(
    authority: Authority, issued: Issued, loop: Callable[..., object]
):
    async def story(world: World) -> None:
        tls = tls_of(authority, issued)
        leader, member, link = await two(world, tls, tls)
        other = leader.links.of_members[member.membership.instance]
        link._transport.pause_reading()  # type: ignore[union-attr]
        sent_bytes = 0
        with pytest.raises(BusyError):
            for _ in range(1_000):
                other.send(ECHO, bytes(8 * MEGABYTE), HANG_S * 10_000, lambda answer: answer.exception())
                sent_bytes += 8 * MEGABYTE
                await asyncio.sleep(0)
        # What the system keeps for both ends, and one write that is encrypted already, come on top.
        assert sent_bytes <= 3 * QUEUE_BYTES_MAX
        leader.is_stopped = member.is_stopped = True
        for each in (link, other):
            each._abort("the test is over")
        for server in (leader, member):
            await server.links.close()

    run(story, loop)


def test_addresses_are_read_as_they_are_written():
    for text, address in (
        ("tls://10.0.0.1:4790", LinkAddress("10.0.0.1", 4790, True)),
        ("10.0.0.1:4790", LinkAddress("10.0.0.1", 4790, False)),
        ("tls://[fd00::7]:4790", LinkAddress("fd00::7", 4790, True)),
    ):
        assert LinkAddress.read(text) == address
        assert link_text(text.removeprefix("tls://"), is_secure=address.is_secure) == text
    with pytest.raises(ValueError, match="invalid literal"):
        LinkAddress.read("nowhere")


def test_a_link_that_was_given_up_while_its_connection_was_made_takes_no_connection(
    authority: Authority, issued: Issued
):
    async def story(world: World) -> None:
        leader = await leading(world, tls_of(authority, issued))
        link = Link(dial_of(leader), leader.links.handlers)
        link.close("given up")
        await tls_of(authority, None).dial(link, leader.where, "127.0.0.1")
        await until(lambda: not leader.links._hellos)
        assert leader.links.linked() == []

    run(story)
