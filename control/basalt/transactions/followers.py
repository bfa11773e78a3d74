"""The coordinator's side of those that follow its log: each entry goes to them once it is durable, just as the log has it.

The log is what counts, and links only make it quick. So nothing is kept for a member that does not take its entries in time: it gets no more of
them, hears where the log stands once it has taken what is under way, and reads what it missed from the store. Where nobody follows, nothing
is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from basalt.cluster.links.link import Link, Reply
from basalt.cluster.links.links import Links
from basalt.errors import BasaltError, CoordinatorUnavailableError, UnavailableError
from basalt.runtime.group_commit import Waiter
from basalt.transactions.follow_calls import (
    ASK,
    ENTRIES,
    FOLLOW,
    JOIN,
    MOMENT,
    Ask,
    Entries,
    Follow,
    Joined,
    Moment,
    Standing,
    Taken,
)
from basalt.transactions.log_state import ManagerSnapshot
from basalt.transactions.protocol import Admitted, Joining

UNDER_WAY_BYTES_MAX = 8 << 20  # not taken by one member: seconds of a busy log, and a quarter of what its link holds
TAKEN_MS_MAX = 10_000  # for a call's answer: a link whose beats are not answered is closed long before
TOLD_AGAIN_MS = 250  # until a member whose link is full is told anew where the log stands


class _Follower:
    """One member, over one link. While it is `behind` it gets nothing, and is told where the log stands once it has taken all."""

    __slots__ = ("behind", "link", "taken", "under_way_bytes")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.behind = False
        self.under_way_bytes = 0
        self.taken = 0


class Followers:
    """The members that follow the log of one term, and the calls that they make."""

    def __init__(
        self,
        links: Links,
        epoch: int,
        join: Callable[[Joining, Waiter[Admitted]], Awaitable[Admitted] | None],
        snapshot: Callable[[], Awaitable[ManagerSnapshot]],
    ) -> None:
        """`join` tells a waiter, where it returns nothing to wait for."""
        self._links = links
        self._epoch = epoch
        self._join = join
        self._snapshot = snapshot
        self._loop = asyncio.get_running_loop()
        self._is_known = False  # the coordinator knows what the log holds
        self._entries = 0  # that are durable
        self._of_members: dict[str, _Follower] = {}
        self.dropped = 0  # how often one was left behind
        links.handlers.add(FOLLOW, self._follow)
        links.handlers.add(ASK, self._asked)
        links.handlers.add(JOIN, self._join_asked)
        links.handlers.add(MOMENT, self._moment_asked)

    def close(self) -> None:
        """The term is over: nobody is told of anything any more."""
        for kind in (FOLLOW, ASK, JOIN, MOMENT):
            self._links.handlers.remove(kind)
        self._of_members.clear()
        self._is_known = False

    @property
    def entries(self) -> int:
        """So many entries are durable."""
        return self._entries

    def __len__(self) -> int:
        return len(self._of_members)

    # What the coordinator tells.

    def begin(self, entries: int) -> None:
        """The log was read, and holds so many entries. What came without this server's knowledge was not pushed."""
        self._is_known = True
        if entries != self._entries:
            self._entries = entries
            for each in list(self._of_members.items()):
                self._leave_behind(*each)

    def forget(self) -> None:
        """A write failed: it is not known what the log holds."""
        self._is_known = False

    def add(self, place: int, entry: bytes | None) -> None:
        """This entry is durable. Without its bytes members read it from the store. Whatever is sent to a member later comes behind it."""
        self._entries = place + 1
        for instance, follower in list(self._of_members.items()) if self._of_members else ():
            if not follower.link.is_open:
                del self._of_members[instance]
            elif entry is None:
                self._leave_behind(instance, follower)
            elif not follower.behind:
                self._push(instance, follower, Entries(place, (entry,)), len(entry))

    def bound(self, visibility_upper_bound: int) -> int:
        """The same, with the readers of members."""
        oldest = self._links.oldest_view_of_members()
        return visibility_upper_bound if oldest is None else min(visibility_upper_bound, oldest)

    # What members ask.

    def _standing(self) -> Standing:
        if not self._is_known:
            raise CoordinatorUnavailableError(
                "the coordinator is reading its log", hint="send the same call again after Retry-After"
            )
        return Standing(self._epoch, self._entries)

    def _follow(self, instance: str, asked: Follow) -> Standing:
        standing = self._standing()
        link = self._links.of_members.get(instance)
        if link is None:
            raise UnavailableError("the link is not there any more", hint="follow over the next one")
        # Who has none yet will have transactions under whose snapshots it may read after they have ended here: nothing is new enough for them.
        self._links.beats.views(instance, asked.oldest_view or 1)
        self._of_members[instance] = _Follower(link)
        return standing

    def _asked(self, instance: str, asked: Ask) -> Standing:
        return self._standing()

    async def _moment_asked(self, instance: str, asked: Ask) -> Moment:
        self._standing()
        found = await self._snapshot()
        return Moment(found.visibility_upper_bound, self._standing().entries)

    def _join_asked(self, instance: str, joining: Joining) -> Awaitable[Joined]:
        told = Reply(self._joined)  # it leaves with the entry that is pushed
        later = self._join(joining, told)
        return told if later is None else self._join_later(later)

    async def _join_later(self, admitted: Awaitable[Admitted]) -> Joined:
        return self._joined(await admitted)

    def _joined(self, admitted: Admitted) -> Joined:
        return Joined(admitted.transaction_id, admitted.deadline_ms, self._entries)

    # Pushing.

    def _push(self, instance: str, follower: _Follower, call: Entries, size_bytes: int) -> None:
        if follower.under_way_bytes + size_bytes > UNDER_WAY_BYTES_MAX:
            self._leave_behind(instance, follower)
            return
        follower.under_way_bytes += size_bytes
        try:
            follower.link.send(ENTRIES, call, TAKEN_MS_MAX, partial(self._taken, instance, follower, size_bytes))
        except BasaltError:  # too many wait already
            follower.under_way_bytes -= size_bytes
            self._leave_behind(instance, follower)

    def _taken(self, instance: str, follower: _Follower, size_bytes: int, answer: asyncio.Future[Taken]) -> None:
        follower.under_way_bytes -= size_bytes
        if answer.cancelled() or (error := answer.exception()) is not None:
            self._stop(instance, follower, None if answer.cancelled() else error)
            return
        follower.taken = answer.result().entries
        if follower.behind and not follower.under_way_bytes:
            self._tell(instance, follower)

    def _stop(self, instance: str, follower: _Follower, error: BaseException | None) -> None:
        """It takes no entries. Nobody would tell it what it misses, so the link goes, and it follows anew over the next one."""
        if self._of_members.get(instance) is follower:
            del self._of_members[instance]
        if not isinstance(
            error, UnavailableError
        ):  # else it answers no such call any more, for its services have ended
            follower.link.close(f"it did not take entries of the log: {error}")

    def _leave_behind(self, instance: str, follower: _Follower) -> None:
        if not follower.behind:
            follower.behind = True
            self.dropped += 1
        if not follower.under_way_bytes:
            self._tell(instance, follower)

    def _tell(self, instance: str, follower: _Follower) -> None:
        """Tell it where the log stands: from there on it gets entries again."""
        if self._of_members.get(instance) is not follower or not follower.link.is_open:
            return
        follower.behind = False
        try:
            follower.link.send(
                ENTRIES, Entries(self._entries, ()), TAKEN_MS_MAX, partial(self._taken, instance, follower, 0)
            )
        except BasaltError:
            follower.behind = True
            self._loop.call_later(TOLD_AGAIN_MS / 1_000, self._tell, instance, follower)
