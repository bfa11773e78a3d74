"""How a plan becomes a method: `publish = blocking(messages.publish)`, and `awaiting(...)` for its async twin.

So each call has one signature, one docstring and one body, and both clients have it. A handle is what such methods hang on:
the plan's scope (a topic, say) and a driver.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from basalt.api.bodies.transactions import Outcome
from basalt.client.calls.sessions import SessionScope
from basalt.client.plans.calls import Steps
from basalt.client.plans.drivers import AsyncDriver, BlockingDriver
from basalt.client.plans.scopes import TopicScope
from basalt.client.transaction.named_transactions import NamedScope
from basalt.client.transaction.open_transaction import OpenTransaction

P = ParamSpec("P")
T = TypeVar("T")
ScopeT = TypeVar("ScopeT")


class Handle(Generic[ScopeT]):
    """What blocking methods hang on."""

    def __init__(self, scope: ScopeT, driver: BlockingDriver) -> None:
        self._scope = scope
        self._driver = driver


class AsyncHandle(Generic[ScopeT]):
    """What async methods hang on."""

    def __init__(self, scope: ScopeT, driver: AsyncDriver) -> None:
        self._scope = scope
        self._driver = driver


class TopicFacts:
    """What both kinds of topic handle know."""

    _scope: TopicScope

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.namespace


class SessionFacts:
    """What both kinds of session know."""

    _scope: SessionScope

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
        """The epoch that this run holds; once another run opens the session, it is over."""
        return self._scope.epoch

    @property
    def version(self) -> int | None:
        """The newest version of its work that was committed when it was opened; None: none was."""
        return self._scope.version


class TransactionFacts:
    """What both kinds of transaction know."""

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
        """Whether its session had committed this version before: leave the block's work out, there is no transaction."""
        return self._scope.committed_before

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it is open, and when that could not be learnt."""
        return self._scope.outcome


class NamedFacts:
    """What both kinds of named transaction know."""

    _scope: NamedScope

    @property
    def committed_before(self) -> bool:
        """Whether its session had committed this version before: leave the work out, there is no transaction."""
        return self._scope.id is None

    @property
    def committed_by(self) -> str | None:
        """The transaction that had committed the session's newest version then; None: this one is open."""
        return self._scope.committed_by

    @property
    def id(self) -> str:
        """Its id, which commits or aborts it. `TransactionEndedError` when its version was committed before."""
        return self._scope.described()[0]

    @property
    def write_pointer(self) -> int:
        """Its newest write pointer when it was begun or joined. Others may store under it: see `segment`."""
        return self._scope.described()[1]

    @property
    def expires_ms(self) -> int | None:
        """When the server aborts it, by its clock."""
        return self._scope.expires_ms


def blocking(plan: Callable[Concatenate[ScopeT, P], Steps[T]]) -> Callable[Concatenate[Handle[ScopeT], P], T]:
    """The method that runs this plan and returns its result."""

    @functools.wraps(plan)
    def method(handle: Handle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return handle._driver.run(plan(handle._scope, *args, **kwargs))

    return method


def awaiting(
    plan: Callable[Concatenate[ScopeT, P], Steps[T]],
) -> Callable[Concatenate[AsyncHandle[ScopeT], P], Coroutine[Any, Any, T]]:
    """The coroutine method that runs this plan and returns its result."""

    @functools.wraps(plan)
    async def method(handle: AsyncHandle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await handle._driver.run(plan(handle._scope, *args, **kwargs))

    return method
