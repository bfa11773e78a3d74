"""The whole state of the transaction manager as one immutable value: what a log snapshot holds and two states compare by."""

from __future__ import annotations

import msgspec

from basalt.transactions.rules.conflicts import CommittedSet
from basalt.transactions.rules.one_shot_topics import UsedTopic
from basalt.transactions.rules.outcomes import Outcome, Request
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.states import Transaction
from basalt_engine.snapshot import NO_INVALID, InvalidList


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The state after `edits_applied` edits since the log began.

    `leader_epoch` is that of the newest leader, 0 where there was never but one server. `transactions` ascend by id;
    `committed`, `outcomes` and `requests` are oldest first, `sessions` by their last use, `topics_used` by
    its end. `session_epoch_over` is the
    highest epoch of a forgotten session. `invalid_version` is that of `invalid`, named apart because two lists of equal
    pointers count as equal.
    """

    edits_applied: int = 0
    last_pointer: int = 0
    read_pointer: int = 0
    leader_epoch: int = 0
    invalid: InvalidList = NO_INVALID
    invalid_version: int = 0
    transactions: tuple[Transaction, ...] = ()
    committed: tuple[CommittedSet, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    requests: tuple[Request, ...] = ()
    session_epoch_over: int = 0
    sessions: tuple[Session, ...] = ()
    topics_used: tuple[UsedTopic, ...] = ()
