"""The write pointers under which an owner takes rows, payloads and cells: join before rows, and nothing once a pointer is closed.

The first write of a transaction to a topic or table asks the coordinator, and waits until the log has the join: who reads the
log later finds all rows by it. Later ones go by this memory: by the deadline that came along, and by what the owner was told since.
Nothing here looks at the coordinator's state.

Where the store is atomic, rows and join are one batch, and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from basalt.catalog.topics import Topic
from basalt.runtime.group_commit import Group, NotLoadedError
from basalt.transactions.log_state import LogState
from basalt.transactions.protocol import Admitted, Joining
from basalt.transactions.rules.transaction import Join, TableJoin
from basalt_engine.stores.shards import shard_of

JoinKey = tuple[bytes, int]  # prefix and generation of a topic or table


class _OpenTransaction:
    """A transaction that has joined something here, until the owner is told of its end."""

    __slots__ = ("deadline_ms", "is_closed", "joined", "pointers")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.is_closed = False
        self.joined: set[JoinKey] = set()
        self.pointers: set[int] = set()


class OpenPointers:
    """The open pointers of one owner. They are as many as the coordinator lets be in progress, and each joined something here.

    Stages of the lane of topics and tables ask; what becomes of a transaction is told by the coordinator and by roll backs.
    """

    def __init__(self, manager: LogState, *, external: bool = False) -> None:
        """`external`: transactions are managed elsewhere, and pointers are taken as given."""
        self._manager = manager
        self._external = external
        self._atomic = manager.atomic
        self._transactions: dict[int, _OpenTransaction] = {}
        self._by_pointer: dict[int, _OpenTransaction] = {}

    # In a stage that writes, before it changes anything.

    def join(self, group: Group, write_pointer: int, topic: Topic, from_ms: int) -> None:
        """The topic takes part in the transaction of this pointer. `NotLoadedError` until the log has it, or to tell why it does not take part."""
        if self._external:
            return
        join = Join(topic.keys.prefix, topic.generation, from_ms)
        if self._atomic:
            self._manager.join_in_log(group, write_pointer, join)
        elif not self._knows(group, write_pointer, join.key):
            raise NotLoadedError(partial(self._ask, Joining(write_pointer, join)))

    def join_table(self, group: Group, write_pointer: int, table: TableJoin) -> None:
        """The table takes part in it, in the same way."""
        if self._atomic:
            self._manager.join_in_log(group, write_pointer, table)
        elif not self._knows(group, write_pointer, (table.table, table.generation)):
            raise NotLoadedError(partial(self._ask, Joining(write_pointer, table=table)))

    def check_open(self, group: Group, write_pointer: int) -> None:
        """The pointer is of an open transaction, in the same way."""
        if self._external:
            return
        if self._atomic:
            self._manager.admit(group, Joining(write_pointer))
        elif not self._knows(group, write_pointer, None):
            raise NotLoadedError(partial(self._ask, Joining(write_pointer)))

    def _knows(self, group: Group, write_pointer: int, key: JoinKey | None) -> bool:
        """True when this may be written by memory alone. False: ask the coordinator, who says why not, if so."""
        known = self._by_pointer.get(write_pointer)
        if known is None or known.is_closed or group.now_ms >= known.deadline_ms:
            return False
        return key is None or key in known.joined

    async def _ask(self, joining: Joining) -> Callable[[], None]:
        await self._manager.join(joining, self._admitted)
        return _nothing_is_held

    def _admitted(self, joining: Joining, admitted: Admitted) -> None:
        known = self._transactions.get(admitted.transaction_id)
        if known is None:
            known = self._transactions[admitted.transaction_id] = _OpenTransaction(admitted.deadline_ms)
        known.pointers.add(joining.write_pointer)
        self._by_pointer[joining.write_pointer] = known
        if joining.topic is not None:
            known.joined.add(joining.topic.key)
        if joining.table is not None:
            known.joined.add((joining.table.table, joining.table.generation))

    # What the owner is told.

    def close(self, transaction_id: int) -> None:
        """Nothing is written under its pointers any more, also where the answer to its first join is still on its way."""
        known = self._transactions.get(transaction_id)
        if known is not None:
            known.is_closed = True
        elif not self._atomic:
            self._transactions[transaction_id] = closed = _OpenTransaction(0)
            closed.is_closed = True

    def end(self, transaction_id: int) -> None:
        """The transaction is over: the coordinator refuses whoever asks for it now."""
        known = self._transactions.pop(transaction_id, None)
        for pointer in () if known is None else known.pointers:
            del self._by_pointer[pointer]

    def leave(self, shards: Collection[int]) -> None:
        """These shards are another reign's from now on: whoever writes to their topics and tables asks again."""
        for known in self._transactions.values():
            known.joined = {key for key in known.joined if shard_of(key[0]) not in shards}

    def forget(self) -> None:
        """The log is read anew: what this owner was told may not be true. Whoever writes asks again."""
        self._transactions.clear()
        self._by_pointer.clear()

    def __len__(self) -> int:
        return len(self._by_pointer)


def _nothing_is_held() -> None:
    """Do nothing: the coordinator's answer is kept until the transaction ends."""
