"""All links of one server: it takes those of the members that it leads, and as a member has one to whoever leads it.

Links stand for watches. One that breaks, or whose other end says that it goes, makes this server look at the rows at once, and the rows decide: a
lease that was given up is taken then and not half a second later. As the leader it hears beats, and what follows from silence is in `beats`: the
membership ends members by it, and the leadership gives the lead up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import LeaseRecord
from basalt.cluster.links.beats import BEAT, BEAT_MS, LINKED_MS, SILENT_MAX, Beat, BeatAnswer, Beats, Held, ToldLoads
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Accept, Acceptor, Dial, Hello, RefusedError
from basalt.cluster.links.link import Handlers, Link, opened
from basalt.cluster.links.link_tls import LinkTls, Shown
from basalt.cluster.members import MEMBERS_MAX
from basalt.cluster.membership import Membership
from basalt.cluster.shard_loads import ShardLoads
from basalt.errors import BasaltError, UnavailableError
from basalt_engine.clock import Clock

HELLO_SECONDS_MAX = 5.0  # four small frames, and a server that is busy with a start
# Connections that have proved nothing yet. One more ends the oldest: a hello takes a round trip, so who holds them open keeps nobody out.
HELLOS_MAX = 64
ACCEPT_AGAIN_SECONDS = 0.1  # after this process had no more files: others may be closed by then
LINKS_MAX = (
    2 * MEMBERS_MAX
)  # that are proved, at a time: each member has one, and those of the dead are not noticed at once
REDIAL_MS_MIN = BEAT_MS  # after a failure; it doubles with each
REDIAL_MS_MAX = 4_000  # well below the 30 s after which a member without a link is ended
SILENT_MS = 2 * LINKED_MS  # an open link without a beat for so long is closed: the member dials again, if it lives
RESTS_LEASES = 4  # for which a leader that gave up for loneliness leaves the lead to others
TOLD_AGAIN_MS = 60_000  # the same kind of refusal fills one line of the log a minute, however often it comes
HOLDS_NOTHING = Held()

log = logging.getLogger("basalt.links")


class Links:
    """The links of one server. `start` it with a socket that listens; what it answers is added to `handlers` before."""

    def __init__(self, clock: Clock, leadership: Leadership, membership: Membership, secret: str | None) -> None:
        self.handlers = Handlers()
        self.handlers.add(BEAT, self._hear)
        self.beats: Beats = membership.beats
        self.to_leader: Link | None = None
        self.of_members: dict[str, Link] = {}
        self.refusals: Counter[str] = Counter()  # hellos that came to nothing here, by the reason
        self.broken = 0  # links that ended without a word
        # The link over which the last answered beat went, and when: what the leader had sent by then has come.
        self.answered: tuple[Link | None, float] = (None, 0.0)
        self._serving: frozenset[str] = frozenset()  # silent members that the leader hears, by its last answer
        self.rtt_us = 0  # of the last beat that was answered; 0: none was on this link
        self.holds: Callable[[], Held] = lambda: HOLDS_NOTHING  # asked before each beat, and told with it
        self.oldest_view: Callable[[], int] = _no_view  # in use by readers of this member, told with each beat
        self._when_linked: list[Callable[[], None]] = []
        self.loads = ShardLoads()  # of the shards of this process, whatever services it has
        self.calls = self.bytes = 0  # done for clients since the last beat; whoever does them adds to it
        self._secret = secret
        self._clock = clock
        self._leadership = leadership
        self._membership = membership
        self._loop = asyncio.get_running_loop()
        self._tls = LinkTls()
        self._accepting: asyncio.Task[None] | None = None
        self._hellos: dict[Link, None] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._dialed: tuple[str, int, str] | None = (
            None  # whom this server has dialed, or dials: instance, epoch, and as whom
        )
        self._dialing: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._giving_up: asyncio.Task[None] | None = None
        self._dial_at_ms, self._redial_ms = 0.0, float(REDIAL_MS_MIN)
        self._beats_sent = 0
        self._told_ms: dict[str, float] = {}

    async def start(self, listener: socket.socket, tls: LinkTls | None = None) -> None:
        """Take links there, and have one to the leader, until `close`. `tls`: None: this server speaks none."""
        self._tls = tls or LinkTls()
        listener.setblocking(False)
        self._accepting = self._loop.create_task(self._accept_all(listener))
        self._running = self._loop.create_task(self._run())

    async def close(self) -> None:
        """End all links, and say so to the other sides."""
        for task in (self._running, self._dialing, self._beating, self._giving_up):
            if task is not None:
                task.cancel()
        if self._accepting is not None:
            self._accepting.cancel()
            self._tasks.add(self._accepting)
        self.end_term("the server stops")
        if self.to_leader is not None:
            self.to_leader.close("the server stops", bye=True)
        for link in list(self._hellos):
            link.close("the server stops")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HELLO_SECONDS_MAX)

    def end_term(self, why: str) -> None:
        """This server leads no more, and the lease says so: those that it led look at the lease at once."""
        self.beats.end()
        for link in list(self.of_members.values()):
            link.close(why, bye=True)

    def linked(self) -> list[str]:
        """The members that are linked to this server, which leads."""
        return self.beats.linked(self._clock.monotonic_ms())

    def of_run(self, run: str) -> Link | None:
        """The link of the member that the map of owners knows by this name: of its memberships only the last one is linked."""
        for instance, link in self.of_members.items():
            seen = self._membership.seen.get(instance)
            if seen is not None and seen.record.run == run and link.is_open:
                return link
        return None

    def hears_of(self, run: str, shard: int) -> bool:
        """True while the member that the map knows by this name tells the leader that it serves the shard; to others the leader says that it serves some."""
        if self.to_leader is not None:
            return self.to_leader.is_open and run in self._serving
        return any(first <= shard <= last for first, last in self._told_by(run))

    def _told_by(self, run: str) -> tuple[tuple[int, int], ...]:
        """The shards that a member tells this server, which leads, that it serves."""
        row = self._membership.row_of(run)
        if row is None or not self.beats.is_linked(row, self._clock.monotonic_ms()):
            return ()
        beat = self.beats.heard[row].beat
        return () if beat is None else beat.shards

    def when_linked(self, call: Callable[[], None]) -> None:
        """Call each time that there is a new link to the leader, until `forget`."""
        self._when_linked.append(call)

    def forget(self, call: Callable[[], None]) -> None:
        """Call it no more."""
        self._when_linked.remove(call)

    def oldest_view_of_members(self) -> int | None:
        """The oldest view that readers of other members may use, as far as this leader knows. None: they use none; 0: it is not known yet."""
        membership = self._membership
        if not self._leadership.is_leader or self.beats.epoch != self._leadership.epoch or membership.looked_ms is None:
            return 0
        return self.beats.oldest_view(membership.others_reading())

    def tend(self) -> None:
        """Do what is due; called four times a second."""
        if self._leadership.is_leader:
            self._lead(self._clock.monotonic_ms())
        else:
            self._follow(self._clock.monotonic_ms())

    async def _run(self) -> None:
        while True:
            try:
                self.tend()
            except Exception:  # without beats, and without a word, the member would be ended
                log.exception("the links could not be looked after")
            await asyncio.sleep(BEAT_MS / 1_000)

    # As the leader.

    def _lead(self, now_ms: float) -> None:
        leadership, membership, beats = self._leadership, self._membership, self.beats
        if beats.epoch != leadership.epoch:
            self.end_term("a new term begins")
            beats.begin(leadership.epoch, now_ms)
        self._dialed = None
        if self._dialing is not None:  # it closes its link
            self._dialing.cancel()
        live = [
            each
            for each, seen in membership.seen.items()
            if each != membership.instance and seen.state(now_ms) == "live"
        ]
        if beats.look(live, leadership.candidate.lease_ms, now_ms) and self._giving_up is None:
            self._giving_up = self._loop.create_task(self._give_up(len(live)))
        for instance, link in list(self.of_members.items()):
            heard = beats.heard.get(instance)
            if heard is not None and now_ms - heard.since_ms >= SILENT_MS:
                link.close(f"no beat came for {now_ms - heard.since_ms:.0f} ms")

    async def _give_up(self, others: int) -> None:
        """Leave the lead to a server that others can reach."""
        try:
            why = (
                f"it has had links to fewer than half of {others + 1} servers for {self.beats.lonely_ms / 1_000:.0f} s"
            )
            await asyncio.to_thread(
                self._leadership.release, why, rest_ms=RESTS_LEASES * self._leadership.candidate.lease_ms
            )
            self.end_term(why)
        finally:
            self._giving_up = None

    def _hear(self, instance: str, beat: Beat) -> BeatAnswer:
        if not self._leadership.is_leader:
            raise UnavailableError("this server leads no more")
        self.beats.hear(instance, beat, self._clock.monotonic_ms())
        return BeatAnswer(self._leadership.epoch, tuple(run for run in beat.silent if self._told_by(run)))

    async def _accept_all(self, listener: socket.socket) -> None:
        try:
            while True:
                try:
                    connection, address = await self._loop.sock_accept(listener)
                except OSError as error:
                    self._tell("accept", f"no link can be taken for a moment: {error}")
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                else:
                    self._accept(connection, f"{address[0]}:{address[1]}")
        finally:
            listener.close()

    def _accept(self, connection: socket.socket, address: str) -> None:
        shown = self._tls.shown()
        own = partial(self._own, b"" if shown is None else shown.certificate)
        link = Link(Accept(secrets.token_bytes(NONCE_BYTES), address), self.handlers, own)
        link.address = address
        while len(self._hellos) >= HELLOS_MAX:
            oldest = next(iter(self._hellos))
            del self._hellos[oldest]
            oldest.close("too many connections wait for their hello")
        self._hellos[link] = None
        self._keep(self._loop.create_task(self._take(link, connection, shown)))

    def _own(self, certificate: bytes) -> Acceptor:
        leadership = self._leadership
        secret = self._secret or leadership.candidate.secret
        return Acceptor(
            secret.encode(), self._membership.installation, leadership.candidate.instance,
            leadership.epoch if leadership.is_leader else 0, leadership.epoch, len(self.of_members) >= LINKS_MAX,
            certificate,
        )  # fmt: skip

    async def _connect(self, link: Link, connection: socket.socket, shown: Shown | None) -> None:
        """Have the connection be this link's, unless it is closed before: then nobody waits for a handshake that may never end."""
        connecting = self._loop.create_task(self._tls.accept(link, connection, shown))
        try:
            await asyncio.wait((connecting, link.closed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            connecting.cancel()
        await asyncio.wait((connecting,))
        error = None if connecting.cancelled() else connecting.exception()
        if isinstance(error, RefusedError):
            link.refused = error
            link.close(error.message)
        elif error is not None:
            link.close(f"no connection came about: {str(error) or 'it said nothing in time'}")

    async def _take(self, link: Link, connection: socket.socket, shown: Shown | None) -> None:
        try:
            await self._connect(link, connection, shown)
            if not await opened(link, HELLO_SECONDS_MAX):
                self._refused(link, link.address)
                return
        finally:
            self._hellos.pop(link, None)
        instance, now_ms = link.peer, self._clock.monotonic_ms()
        if not self._leadership.is_leader or link.opened.result().epoch != self.beats.epoch:
            self.tend()  # the term is a moment old, or over since a moment
            if link.opened.result().epoch != self.beats.epoch:
                link.close("the term is over", bye=True)
                return
        former = self.of_members.get(instance)
        if former is not None:
            former.close("the member has a newer link")
        self.of_members[instance] = link
        self.beats.opened(instance, now_ms)
        log.info("the member %s is linked, from %s", instance, link.address)
        why = await link.closed
        if self.of_members.get(instance) is link:
            del self.of_members[instance]
            self.beats.closed(instance)
        self._ended(link, f"the member {instance}", why)
        self._membership.look()

    # As a member.

    def _follow(self, now_ms: float) -> None:
        if self.beats.epoch:
            self.beats.end()  # who ended the term tells the members, once the row says so
        lease, link = self._leadership.leader, self.to_leader
        whom = None if lease is None or not lease.link else (lease.instance, lease.epoch, self._membership.instance)
        if whom != self._dialed:
            self._dialed, self._dial_at_ms, self._redial_ms = whom, now_ms, float(REDIAL_MS_MIN)
            if self._dialing is not None:
                self._dialing.cancel()
                self._dialing = None
            if link is not None:
                link.close("the lease has changed", bye=True)
        elif link is not None and link.is_open and self._beating is None:
            self._beating = self._loop.create_task(self._beat(link))
        if whom is not None and self._dialing is None and now_ms >= self._dial_at_ms and self._membership.is_on:
            assert lease is not None
            self._dialing = self._loop.create_task(self._dial(lease, whom))

    async def _beat(self, link: Link) -> None:
        """Tell the leader that this member is there. A beat that is not answered in time ends the link."""
        self._beats_sent += 1
        calls, self.calls, sent_bytes, self.bytes = self.calls, 0, self.bytes, 0
        held = self.holds()
        # While it serves nothing, as between two terms, it keeps what it has measured.
        loads = self.loads.told(held.shards, self._clock.monotonic_ms()) if held.map_version else ToldLoads()
        beat, began_ms = (
            Beat(
                self._beats_sent,
                held.shards,
                calls,
                sent_bytes,
                self.oldest_view(),
                self.rtt_us,
                *held[1:],
                *loads,
                silent=tuple(self._membership.silent()[:SILENT_MAX]),
            ),
            self._clock.monotonic_ms(),
        )
        try:
            answer = await link.call(BEAT, beat, LINKED_MS)
            self.answered, self._serving = (link, began_ms), frozenset(answer.serving)
            self.rtt_us = max(1, round(1_000 * (self._clock.monotonic_ms() - began_ms)))
            if answer.epoch != link.opened.result().epoch:
                link.close(f"the leader is at epoch {answer.epoch} now")
        except UnavailableError:
            self._look()  # it leads no more, and says that it goes once the lease says so
        except BasaltError as error:
            link.close(f"a beat was not answered: {error.message}")
        finally:
            self._beating = None

    async def _dial(self, lease: LeaseRecord, whom: tuple[str, int, str]) -> None:
        """Make one link to the leader, and stay with it until it ends."""
        try:
            link = await self._connected(lease, whom)
            if link is None:
                self._dial_at_ms = self._clock.monotonic_ms() + self._redial_ms
                self._redial_ms = min(2 * self._redial_ms, REDIAL_MS_MAX)
                return
            self.to_leader, self.rtt_us, self._redial_ms = link, 0, float(REDIAL_MS_MIN)
            self._serving = frozenset()
            log.info("is linked to the leader at %s", lease.link)
            try:
                self.tend()  # the first beat
                for call in list(self._when_linked):
                    call()
                self._ended(link, f"the leader at {lease.link}", await asyncio.shield(link.closed))
            finally:
                link.close("the lease has changed", bye=True)
                if self.to_leader is link:
                    self.to_leader = None
            self._look()
            self._dial_at_ms = self._clock.monotonic_ms() + REDIAL_MS_MIN
        except Exception:  # a bug, but the member must be linked again
            log.exception("the link to the leader was given up")
            self._dial_at_ms = self._clock.monotonic_ms() + REDIAL_MS_MAX
        finally:
            if self._dialing is asyncio.current_task():
                self._dialing = None

    async def _connected(self, lease: LeaseRecord, whom: tuple[str, int, str]) -> Link | None:
        installation, secret = self._membership.installation, self._secret or lease.secret
        if not installation or not secret:
            return None
        instance, epoch, own = whom
        hello = Hello(VERSION, installation, own, instance, epoch, LEADER, secrets.token_bytes(NONCE_BYTES))
        link = Link(Dial(secret.encode(), hello, lease.link), self.handlers)
        try:
            await self._tls.dial(link, lease.link, urlsplit(lease.url).hostname or "")
        except RefusedError as error:
            link.refused = error
            link.close(error.message)
        except (OSError, TimeoutError) as error:
            self._tell("unreachable", f"no link to the leader at {lease.link}: {str(error) or 'no answer'}")
            self._look()
            return None
        try:
            if await opened(link, HELLO_SECONDS_MAX):
                return link
        except asyncio.CancelledError:
            link.close("the lease has changed")
            raise
        self._refused(link, lease.link)
        self._look()
        return None

    # Both.

    def _look(self) -> None:
        """Look at the rows, which may have changed: they decide, and no link does."""
        self._leadership.look()
        self._membership.look()

    def _refused(self, link: Link, where: str) -> None:
        error: RefusedError | None = link.refused
        why = "no_hello" if error is None else error.why
        self.refusals[why] += 1
        self._tell(why, f"no link with {where}: {link.closed.result() if error is None else error.message}")

    def _ended(self, link: Link, who: str, why: str) -> None:
        if link.said_bye:
            log.info("the link with %s is over: %s", who, why)
        else:
            self.broken += 1
            self._tell("broken", f"the link with {who} is over: {why}")

    def _tell(self, kind: str, line: str) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms.get(kind, -TOLD_AGAIN_MS) >= TOLD_AGAIN_MS:
            self._told_ms[kind] = now_ms
            log.warning("%s", line)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _no_view() -> int:
    """Nobody reads here."""
    return 0
