"""The coordinator, to owners of consumer groups in other servers: what they want to be logged is decided by the rules, over the working state.

An owner knows claims and members, and has looked at them; what the log says it may know a moment late. So each unit of a proposal is proposed anew
here, and logged as a whole or refused: of two that acknowledge one message the first wins, whoever they asked.
docs/decisions/0077-groups-are-dealt-by-owners.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from basalt.cluster.links.frames import ErrorBody
from basalt.cluster.links.link import Handlers, Reply
from basalt.cluster.links.links import Links
from basalt.cluster.shard_gate import ShardGate
from basalt.commits.commit_stage import CommitStage
from basalt.errors import ShardMovingError, UnavailableError
from basalt.runtime.group_commit import Group
from basalt.transactions.manager import TransactionManager
from basalt.transactions.proposal_calls import PLACED, PROPOSE, Placed, Propose, Proposed, Unit
from basalt.transactions.proposing import PROPOSED
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Doomed, Edit, Proposal
from basalt_engine.errors import BasaltError, CorruptionError
from basalt_engine.stores.shards import shard_of

PLACED_MS_MAX = 10_000  # nobody waits for the answer

log = logging.getLogger("basalt.groups")


class ProposalsOfMembers:
    """Answers the calls of members about groups whose topics they own."""

    def __init__(self, manager: TransactionManager, stages: CommitStage, gate: ShardGate, links: Links) -> None:
        self._manager = manager
        self._stages = stages
        self._gate = gate
        self._links = links

    def answer_over(self, handlers: Handlers) -> None:
        """Answer the calls of members over links."""
        handlers.add(PROPOSE, self.propose)

    def propose(self, instance: str, asked: Propose) -> Awaitable[Proposed]:
        """Log what is right of it; the answer comes when that is durable, behind the entry that is pushed."""
        link = self._links.of_run(asked.member)
        if link is None or self._links.of_members.get(instance) is not link:
            raise UnavailableError(f"{asked.member} is not the member of this link; nothing was done")
        units = [(unit, unit.edits) for unit in asked.units]
        for strange in [edit for _, made in units for edit in made if not isinstance(edit, PROPOSED)]:
            raise CorruptionError(f"{type(strange).__name__} is no edit that a member proposes")

        # To acknowledge what is acknowledged changes nothing: where that entry lies the member need not know.
        is_plain = all(isinstance(edit, edits.Acknowledged) for _, made in units for edit in made)

        def stage(group: Group) -> list[ErrorBody | None]:
            place = self._manager.coming_place
            refused = [self._decide(group, asked.member, *each) for each in units]
            if is_plain:
                return refused
            try:  # before the entry is pushed: a link keeps the order
                link.send(PLACED, Placed(asked.number, place), PLACED_MS_MAX, _nothing)
            except BasaltError as error:
                log.debug("a member is not told where its proposal lies: %s", error)
            return refused

        told = Reply(self._logged)
        return told if self._manager.submit(stage, told) else self._once_known(stage)

    async def _once_known(self, stage: Callable[[Group], list[ErrorBody | None]]) -> Proposed:
        return self._logged(await self._manager.run(stage))

    def _logged(self, refused: Sequence[ErrorBody | None]) -> Proposed:
        return Proposed(self._manager.entries_durable, tuple(refused))

    def _decide(self, group: Group, member: str, unit: Unit, wanted: Sequence[Edit]) -> ErrorBody | None:
        """In the stage: apply the unit; or why it is refused."""
        try:
            for edit in wanted:
                self._check_owner(member, edit)
            found = [self._proposed(edit, unit, group.now_ms) for edit in wanted]
        except BasaltError as refusal:
            return ErrorBody.of(refusal)
        lost = next((each.refusal for each in found if each.refusal is not None), None)
        made = [edit for each in found for edit in each.edits]
        if lost is not None:  # a transaction is doomed by it, and nothing else happens
            self._stages.apply(group, [edit for edit in made if isinstance(edit, Doomed)])
            return ErrorBody.of(lost)
        self._stages.apply(group, made)
        return None

    def _check_owner(self, member: str, edit: Edit) -> None:
        table = self._manager.state.groups
        if isinstance(edit, edits.GroupMade):
            prefixes = [edit.prefix]
        else:
            numbers = edit.numbers if isinstance(edit, edits.GroupsForgotten) else (edit.number,)  # type: ignore[attr-defined]
            prefixes = [table.get(number).prefix for number in numbers]
        owners = self._gate.owners
        for prefix in prefixes:
            if owners is None or owners.owner_of(shard_of(prefix)) != member:
                raise ShardMovingError(
                    f"shard {shard_of(prefix)} has another owner by now; nothing was done",
                    hint="send the same call again after Retry-After",
                )

    def _proposed(self, edit: Edit, unit: Unit, now_ms: int) -> Proposal:
        """The same by the rules, over the state of now."""
        state = self._manager.state
        table = state.groups
        match edit:
            case edits.Acknowledged():
                return table.propose_acknowledge(edit.number, edit.spans, now_ms).proposal
            case edits.AcknowledgedIn():
                return state.acknowledge_in(edit.id, edit.number, edit.spans, now_ms)
            case edits.Returned():
                return table.propose_return(edit.number, edit.spans, edit.reason, edit.not_before_ms, now_ms)
            case edits.GroupSought():
                return table.propose_seek(edit.number, edit.floor, now_ms, edit.round, unit.force)
            case edits.GroupChanged():
                return table.propose_change(edit.number, edit.options, edit.paused, now_ms)
            case edits.GroupMade():
                return table.propose_make(
                    edit.prefix, edit.generation, edit.name, edit.options, edit.floor, now_ms, edit.round
                )
            case edits.GroupsForgotten():
                return table.propose_forget(edit.numbers, unit.force)
        raise CorruptionError(f"{type(edit).__name__} is no edit that a member proposes")


def _nothing(answer: asyncio.Future[None]) -> None:
    """Nobody waits for it; an error is noticed as one of the link is."""
    if not answer.cancelled():
        answer.exception()
