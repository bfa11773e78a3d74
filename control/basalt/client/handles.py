"""Handles: what the objects of both clients have in common, and the facts that they tell without asking the server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from basalt.api.bodies.groups import GroupOptions
from basalt.api.bodies.transactions import CommittedBefore, TransactionOutcome
from basalt.client.calls.groups import GroupScope
from basalt.client.calls.producers import ProducerScope
from basalt.client.calls.reading import FollowCursor, TopicCursor
from basalt.client.calls.transactions import NamedTransactionScope, SessionScope
from basalt.client.consumer.open_consumer import OpenConsumer
from basalt.client.plans import NamedScope
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.client.transaction.transactional_table import TableInUse

P = ParamSpec("P")
T = TypeVar("T")
DriverT = TypeVar("DriverT")
HandleT = TypeVar("HandleT")
ScopeT = TypeVar("ScopeT")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])
ScopeT_co = TypeVar("ScopeT_co", covariant=True)
NamedT_co = TypeVar("NamedT_co", bound=NamedScope, covariant=True)
HeldT_co = TypeVar("HeldT_co", bound=SessionScope | ProducerScope, covariant=True)


class Handle(Generic[ScopeT_co, DriverT]):
    """An object of the client's user, with methods that are plans: what the plans work on (a topic, say), and what runs them."""

    def __init__(self, scope: ScopeT_co, driver: DriverT) -> None:
        self._scope = scope
        self._driver = driver


def signed(method: MethodT, plan: Callable[..., Any], returns: object = None) -> MethodT:
    """The method with the signature that its user sees: of the plan, but on `self`, and with what comes out of running it."""
    shown = signature(plan)
    first, *others = shown.parameters.values()
    if returns is None:
        answer = str(shown.return_annotation)
        assert answer.startswith("Steps["), f"{plan.__name__} is no plan: it returns {answer}"
        returns = answer.removeprefix("Steps[").removesuffix("]")
    itself = Parameter("self", first.kind)
    seen: Any = method
    seen.__signature__ = Signature([itself, *others], return_annotation=returns)
    seen.__annotations__ = {each.name: each.annotation for each in others if each.annotation is not each.empty}
    seen.__annotations__["return"] = returns
    return method


def making(
    kind: Callable[[T, DriverT], HandleT], scoped: Callable[Concatenate[ScopeT, P], T]
) -> Callable[Concatenate[Handle[ScopeT, DriverT], P], HandleT]:
    """Make the method that returns a handle, or an iterator, of what this function returns. It asks nothing of the server."""

    @functools.wraps(scoped)
    def method(handle: Handle[ScopeT, DriverT], /, *args: P.args, **kwargs: P.kwargs) -> HandleT:
        return kind(scoped(handle._scope, *args, **kwargs), handle._driver)

    return signed(method, scoped, kind)


class NamedFacts(Generic[NamedT_co]):
    """Of a topic, or a table."""

    _scope: NamedT_co

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.namespace


class TransactionalTableFacts:
    """Of a table within a transaction."""

    _scope: TableInUse

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.scope.namespace


class TransactionFacts:
    """Of a transaction in a `with` block."""

    _scope: OpenTransaction

    @property
    def id(self) -> str:
        """Its id, as the server and its operators know it."""
        return self._scope.described().id

    @property
    def write_pointer(self) -> int:
        """The pointer that it writes under, for writes elsewhere."""
        return self._scope.described().write_pointer

    @property
    def committed_before(self) -> bool:
        """True if its session had committed this version before: leave the block's work out, there is no transaction."""
        return self._scope.committed_before

    @property
    def outcome(self) -> TransactionOutcome | None:
        """The transaction's end; None while it is open, and when the end could not be learnt."""
        return self._scope.outcome


class GroupFacts:
    """Of a consumer group."""

    _scope: GroupScope

    @property
    def name(self) -> str:
        """Its name among the groups of its topic."""
        return self._scope.name

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self._scope.topic.name

    @property
    def namespace(self) -> str:
        """The namespace that its topic is in."""
        return self._scope.topic.namespace


class ConsumerFacts:
    """Of a consumer."""

    _scope: OpenConsumer

    @property
    def group(self) -> str:
        """The name of its group."""
        return self._scope.group.name

    @property
    def topic(self) -> str:
        """The name of the topic that it consumes."""
        return self._scope.group.topic.name

    @property
    def member(self) -> str:
        """The name that it has joined under."""
        return self._scope.member.name

    @property
    def made_group(self) -> bool:
        """True if the group was not there, and this consumer has made it."""
        return self._scope.made_group

    @property
    def options(self) -> GroupOptions:
        """The group's options as they were when it joined."""
        return self._scope.joined().options

    @property
    def waiting_for(self) -> str | None:
        """The reason why the last fetch brought nothing: `no_messages`, `held ID`, `paused`, …; None: it brought messages."""
        return self._scope.waiting_for


class HeldFacts(Generic[HeldT_co]):
    """Of what one run holds until another one opens it: a session, or a named producer."""

    _scope: HeldT_co

    @property
    def name(self) -> str:
        """Its name."""
        return self._scope.name

    @property
    def run(self) -> str:
        """The run that opened it: this one."""
        return self._scope.run

    @property
    def epoch(self) -> int:
        """The epoch that this run holds; once another run opens it, that is over."""
        return self._scope.epoch


class SessionFacts(HeldFacts[SessionScope]):
    """Of a session."""

    @property
    def version(self) -> int | None:
        """The newest version of its work that was committed when it was opened; None: none was."""
        return self._scope.version


class ProducerFacts(HeldFacts[ProducerScope]):
    """Of a named producer."""

    @property
    def last_sequence(self) -> int:
        """The number of the last message that it has published, as far as this run knows; -1: none. Go on behind it."""
        return self._scope.last_sequence


class NamedTransactionFacts:
    """Of a named transaction."""

    _scope: NamedTransactionScope

    @property
    def committed_before(self) -> bool:
        """True if its session had committed this version before: leave the work out, there is no transaction."""
        return isinstance(self._scope.begun, CommittedBefore)

    @property
    def committed_by(self) -> str | None:
        """The transaction that had committed the session's newest version then; None: this one is open."""
        return self._scope.begun.committed_by if isinstance(self._scope.begun, CommittedBefore) else None

    @property
    def id(self) -> str:
        """Its id, which commits or aborts it. `TransactionEndedError` when its version was committed before."""
        return self._scope.described().id

    @property
    def write_pointer(self) -> int:
        """Its newest write pointer when it was begun or joined. Others may store under it: see `segment`."""
        return self._scope.described().write_pointer

    @property
    def expires_ms(self) -> int | None:
        """The time at which the server aborts it, by its clock."""
        return None if isinstance(self._scope.begun, CommittedBefore) else self._scope.begun.expires_ms


class ReaderFacts:
    """Of the place of a reader."""

    _cursor: TopicCursor

    @property
    def next_id(self) -> bytes | None:
        """The id after which the next page begins, exclusively; None before the first page."""
        return self._cursor.next_id

    @property
    def held_by(self) -> str | None:
        """The id of the open transaction at which the last page ended, if one did that."""
        return self._cursor.held_by

    @property
    def view_age_ms(self) -> int | None:
        """The age (ms) of what the server knew of that transaction, where the coordinator did not answer it; else None."""
        return self._cursor.view_age_ms


class FollowerFacts:
    """Of the place of a follower."""

    _cursor: FollowCursor

    @property
    def position(self) -> str:
        """Behind the message that was handed out last: a text with all that is known there, for `follow` to go on."""
        return str(self._cursor.position)

    @property
    def watermark_ms(self) -> int | None:
        """Up to where event time has come, as `on_watermark` was told last."""
        return self._cursor.watermark_ms

    @property
    def ended(self) -> bool:
        """True once every expected task has ended."""
        return self._cursor.ended
