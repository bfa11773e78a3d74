"""The calls that the event loop makes of a store: at once when it is local, on a thread when it waits for a network.

A region of a remote store may stop answering, and each read of it then keeps a thread for 10 to 15 s. So the threads of a
remote store are shared out. Writes have a thread of their own, which reads never take. A topic has at most
`OWNER_READS_MAX` threads at a time, and so has a service for what it reads of no topic. Topics whose rows lie in the same
bucket have at most `REGION_READS_MAX` together, because they are stuck with the same region; reads of no topic (metadata,
notes) have as many together. A read that must wait for a thread waits on the event loop, in a bounded queue and for a
bounded time; beyond either its caller gets `BusyError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from basalt.errors import BusyError
from basalt_engine.cells.keys import TableKeys
from basalt_engine.clock import stage
from basalt_engine.keys import TABLE_MARK, TopicKeys, base_bucket, is_table_prefix
from basalt_engine.table import Store

READ_THREADS = 24  # each needs a connection: READ_CONNECTIONS_MAX of the HBase store
REGION_READS_MAX = 8  # one stuck region leaves two thirds of the threads to all others
OWNER_READS_MAX = 6  # one stuck topic leaves a part of its bucket's share to the bucket's other topics
WAITING_READS_MAX = 256  # beside the reads that have a thread; at 20 ms a read the last waits for about a second
WAIT_MS_MAX = 10_000  # after which a client had better be told

WRITER_THREAD = "basalt-write"

P = ParamSpec("P")
T = TypeVar("T")
Keys: TypeAlias = TopicKeys | TableKeys


class StoreCalls:
    """Makes the calls of one service to a store, so that they never hold up the event loop for long."""

    def __init__(self, store: Store) -> None:
        self._threads = _threads_of(store) if store.remote else None
        self._writer: ThreadPoolExecutor | None = None  # for `begin_write`, made by the first

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's result. A local store answers in microseconds, less than a thread would cost.

        A call that is given a topic, or the keys of one, counts as that topic's; any other as this service's.
        """
        return await self.about(_topic_keys(args), call, *args, **kwargs)

    async def about(self, keys: Keys | None, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a call that counts as the topic's, or table's, of these keys; None: as this service's."""
        if self._threads is None:
            return call(*args, **kwargs)
        if keys is None:
            shares = self._threads.shares(self, "what belongs to no topic", None)
        else:
            shares = self._threads.shares(keys.prefix, _name(keys.prefix), base_bucket(keys.prefix, keys.buckets))
        with stage("read"):
            return await self._threads.read(shares, lambda: call(*args, **kwargs))

    async def long(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a call that reads much, or waits for the disk: it is made on a thread for a local store too."""
        if self._threads is None:
            with stage("read"):
                return await asyncio.to_thread(call, *args, **kwargs)
        return await self(call, *args, **kwargs)

    async def write(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a call of the store's one writer, made on a thread for a local store too.

        Raises `RuntimeError` when the interpreter is about to end and starts no thread any more; nothing was tried then.
        """
        if self._threads is None:
            return await asyncio.to_thread(call, *args, **kwargs)
        return await self._threads.write(lambda: call(*args, **kwargs))

    def begin_write(self, call: Callable[[], None]) -> None:
        """Have a thread of this caller's own make the call, which tells by itself what became of it. Raises as `write` does.

        So of two lanes one is written while the other waits. A task that waits for the thread costs as much as the hand-over itself.
        """
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix=WRITER_THREAD)
        self._writer.submit(call)


def _name(prefix: bytes) -> str:
    """The name of the topic or table with this prefix, as errors say it."""
    name = prefix.decode("ascii").rstrip(":")
    return f"table {name.replace(TABLE_MARK, '')}" if is_table_prefix(prefix) else f"topic {name}"


def _topic_keys(args: Sequence[object]) -> TopicKeys | None:
    """The keys of the topic among the arguments of a call."""
    for arg in args:
        keys = arg if isinstance(arg, TopicKeys) else getattr(arg, "keys", None)
        if isinstance(keys, TopicKeys):
            return keys
    return None


class _Share:
    """The reads that one topic, one service or one bucket has under way."""

    def __init__(self, key: Hashable, name: str, reads_max: int) -> None:
        self.key = key
        self.name = name
        self.reads_max = reads_max
        self.reads = 0  # with a thread, or waiting for one
        self.turns = asyncio.Semaphore(reads_max)


class _StoreThreads:
    """The threads on which one remote store is called. Used from one event loop."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="basalt-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=WRITER_THREAD)
        self._shares: dict[Hashable, _Share] = {}  # those with reads under way

    def shares(self, owner: Hashable, name: str, bucket: int | None) -> list[_Share]:
        """The shares that a read of this owner, in this bucket (None: of no topic), needs a turn in."""
        region = "what belongs to no topic" if bucket is None else f"the topics in bucket {bucket}"
        return [
            self._shares.get(("owner", owner)) or _Share(("owner", owner), name, OWNER_READS_MAX),
            self._shares.get(("bucket", bucket)) or _Share(("bucket", bucket), region, REGION_READS_MAX),
        ]

    async def read(self, shares: list[_Share], call: Callable[[], T]) -> T:
        """The result of a read, made on a thread once each share has a turn for it."""
        for share in shares:
            if share.reads >= share.reads_max + WAITING_READS_MAX:
                raise BusyError(
                    f"{share.reads - share.reads_max} reads of {share.name} wait for the store, the limit is {WAITING_READS_MAX}",
                    hint="send the same call again after Retry-After",
                )
        for share in shares:
            share.reads += 1
            self._shares[share.key] = share
        held: list[_Share] = []
        try:
            async with asyncio.timeout(WAIT_MS_MAX / 1_000):
                for share in shares:
                    await share.turns.acquire()
                    held.append(share)
            future = self._readers.submit(copy_context().run, call)  # what the caller set goes with it, as in asyncio
        except TimeoutError:
            self._leave(shares, held)
            raise BusyError(
                f"a read of {shares[0].name} had no turn within {WAIT_MS_MAX} ms: the store is slow to answer those before it",
                hint="send the same call again after Retry-After",
            ) from None
        except BaseException:
            self._leave(shares, held)
            raise
        # Give the turns back when the thread is free, and not when the caller gives up: it cannot take the thread with it.
        loop = asyncio.get_running_loop()

        def ended(_future: object) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits for a turn
                loop.call_soon_threadsafe(self._leave, shares, shares)

        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)

    def _leave(self, shares: list[_Share], held: list[_Share]) -> None:
        for share in held:
            share.turns.release()
        for share in shares:
            share.reads -= 1
            if not share.reads:
                del self._shares[share.key]

    async def write(self, call: Callable[[], T]) -> T:
        """The result of a write, made on the writer's thread."""
        return await asyncio.wrap_future(self._writer.submit(copy_context().run, call))


# All services of a store share its threads. An entry goes with its store; threads that have nothing to do end then.
_THREADS: WeakKeyDictionary[Store, _StoreThreads] = WeakKeyDictionary()


def _threads_of(store: Store) -> _StoreThreads:
    threads = _THREADS.get(store)
    if threads is None:
        threads = _THREADS[store] = _StoreThreads()
    return threads
