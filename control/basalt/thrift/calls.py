"""Every call of Tephra's service, done by the coordinator. What differs from Tephra is listed in docs/reference/thrift.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from basalt.access import ownership
from basalt.access.policy import Caller
from basalt.access.quotas import OPEN_TRANSACTIONS, PUBLISH_BYTES, REQUESTS, Account, Quota, Quotas
from basalt.access.resources import CLUSTER
from basalt.commits.commit_stage import Guard
from basalt.commits.coordinator import Coordinator
from basalt.errors import (
    BasaltError,
    ChangesLostError,
    ConflictError,
    ForbiddenError,
    InputError,
    SessionFencedError,
    ThrottledError,
    TooLargeError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.operations.audit import Audit, Author
from basalt.operations.scheduler import Scheduler
from basalt.runtime.group_commit import Waiter
from basalt.thrift.deferred_change_sets import DeferredChangeSets
from basalt.thrift.metrics import ThriftMetrics
from basalt.thrift.wire import (
    INTERNAL_ERROR,
    METHODS,
    PROTOCOL_ERROR,
    RESULT_BYTES_MAX,
    ApplicationError,
    Method,
    Pieces,
    TooManyEntriesError,
    types,
)
from basalt.transactions.codec import SnapshotBytes
from basalt.transactions.rules.conflicts import NOT_YET
from basalt.transactions.rules.transaction import Kind, State, Transaction, VisibilityLevel
from basalt.transactions.rules.transaction_table import StateImage
from basalt_engine.clock import Clock
from basalt_engine.snapshot import POINTER_MAX, POINTERS_PER_MS
from basalt_engine.varints import encode_varint

EDIT_POINTERS_MAX = 10_000  # of one truncation, in one log entry: some 80 KiB
ENTRIES_MAX = 250_000  # of a set of ids to truncate: a fifth of a second, in which nobody else is served

SNAPSHOT_VERSION = 4
_SHORT, _LONG, _CHECKPOINT = 0, 1, 2  # ordinals of Tephra's InProgressType
_OPEN_STATES = (State.OPEN, State.COMMITTING, State.ABORTING)

BAD_ARGUMENT = "java.lang.IllegalArgumentException"
SIZE_EXCEEDED = "org.apache.tephra.TransactionSizeException"

T = TypeVar("T")
Arguments = dict[str, Any]  # of a call, by name
OwnerOf = Callable[[Arguments], str]
Encode = Callable[[Any], Pieces]

# The verbs on the cluster that calls take; those that are not here take `transact`, and `status` takes none: probes call it.
_VERBS: Mapping[str, str | None] = {
    "status": None,
    "getSnapshot": "observe",
    **dict.fromkeys(("truncateInvalidTx", "truncateInvalidTxBefore", "resetState", "pruneNow"), "operate"),
}
_ON_A_TRANSACTION = frozenset(
    ("canCommitTx", "canCommitOrThrow", "commitTx", "commitOrThrow", "abortTx", "invalidateTx", "checkpoint")
)

_OPERATOR = Author("thrift", "a client of the Thrift face")
_VOID: Pieces = (b"\x00",)
_TRUE: Pieces = (METHODS["commitTx"].encode(success=types.TBoolean(True)),)
_FALSE: Pieces = (METHODS["commitTx"].encode(success=types.TBoolean(False)),)
_TRANSACTION_START, _RESULT_STOP = b"\x0c\x00\x00", b"\x00"  # field 0, a struct, which brings its own end

log = logging.getLogger("basalt.tephra")


class Served(NamedTuple):
    """The parts of a server that the Thrift face needs."""

    clock: Clock
    transactions: Coordinator
    scheduler: Scheduler
    audit: Audit
    metrics: ThriftMetrics
    is_stopping: Callable[[], bool]
    caller: Callable[[], Caller]  # as whom all calls are judged, by the policy of the moment
    quotas: Quotas  # of that one, as of any other principal


class Calls:
    """Tephra's service. Arguments come as `read_arguments` answers them."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._transactions = served.transactions
        self.change_sets = DeferredChangeSets(served.transactions, served.clock)
        self._limits = served.transactions.manager.limits
        self._bytes = SnapshotBytes()
        self._pruning: asyncio.Task[None] | None = None
        self._taking_snapshot = asyncio.Lock()  # one at a time: each holds the whole state in memory twice
        self._handlers: dict[str, Callable[[Arguments], Awaitable[Pieces]]] = {
            "startLong": lambda arguments: self._start(Kind.LONG, None, ""),
            "startLongClientId": lambda arguments: self._start(Kind.LONG, None, _client_id(arguments)),
            **{name: partial(self._start_short, owner_of) for name, owner_of in _SHORT_STARTS.items()},
            "canCommitTx": lambda arguments: self._can_commit(arguments, _TRUE),
            "canCommitOrThrow": lambda arguments: self._can_commit(arguments, _VOID),
            "commitTx": lambda arguments: self._commit(arguments, _TRUE),
            "commitOrThrow": lambda arguments: self._commit(arguments, _VOID),
            "abortTx": self._abort,
            "invalidateTx": self._invalidate,
            "getSnapshot": self._get_snapshot,
            "resetState": self._reset,
            "status": self._status,
            "truncateInvalidTx": self._truncate,
            "truncateInvalidTxBefore": self._truncate_before,
            "invalidTxSize": self._invalid_size,
            "checkpoint": self._checkpoint,
            "pruneNow": self._prune_now,
        }
        assert self._handlers.keys() == METHODS.keys(), "every method of the service has a handler"
        # What every transaction calls needs no coroutine. Where these cannot, those above do the same.
        self._prompt: dict[str, Callable[[Arguments, Waiter[Any]], Pieces | Encode | None]] = {
            **{name: partial(self._begin_start, owner_of) for name, owner_of in _SHORT_STARTS.items()},
            "canCommitTx": lambda arguments, waiter: self._keep_changes(arguments, _TRUE),
            "canCommitOrThrow": lambda arguments, waiter: self._keep_changes(arguments, _VOID),
            "commitTx": lambda arguments, waiter: self._begin_commit(arguments, waiter, lambda outcome: _TRUE),
            "commitOrThrow": lambda arguments, waiter: self._begin_commit(arguments, waiter, lambda outcome: _VOID),
        }

    def entries_max(self, method: Method) -> int:
        """The most entries that the set in a call's arguments may have: write pointers, or else changes."""
        return ENTRIES_MAX if method.name == "truncateInvalidTx" else self._limits.changes_max

    def begin(self, method: Method, arguments: Arguments, waiter: Waiter[Any]) -> Pieces | Encode | None:
        """The result of one call; or how to encode it, once the waiter is told; or None, when `answer` is to do it.

        Raises what `refused` makes a result of.
        """
        prompt = self._prompt.get(method.name)
        if prompt is None or (self._caller.policy is not None and not self._transactions.manager.is_known):
            return None
        account, now_ms = self._account(method), self._served.clock.monotonic_ms()
        if account is not None and (self._must_wait(account, arguments, now_ms) or self._must_count(account, method)):
            return None
        self._judge(method, arguments)
        begun = prompt(arguments, waiter)
        if account is not None and begun is not None:
            _charge(account, arguments, now_ms)
        return begun

    async def answer(self, method: Method, arguments: Arguments) -> Pieces:
        """The result of one call. Raises what `refused` makes a result of."""
        account = self._account(method)
        if account is not None:
            await self._admit(account, arguments)
        if self._caller.policy is not None and method.name in _ON_A_TRANSACTION:
            await self._transactions.manager.ensure_known()  # whose a transaction is, the log tells
        self._judge(method, arguments)
        if account is None or not self._must_count(account, method):
            return await self._handlers[method.name](arguments)
        there = self._transactions.state.open_of[ownership.principal_of(self._caller)]
        now_ms = self._served.clock.monotonic_ms()
        with self._served.quotas.one_more(account, OPEN_TRANSACTIONS, now_ms, there):
            return await self._handlers[method.name](arguments)

    def _account(self, method: Method) -> Account | None:
        """The account that a call is charged to, where a quota limits the principal of this face. Probes are charged to nobody."""
        quotas = self._served.quotas
        if not quotas.are_on or _VERBS.get(method.name, "") is None:
            return None
        return quotas.account_of(self._caller, self._served.clock.monotonic_ms())

    async def _admit(self, account: Account, arguments: Arguments) -> None:
        """Charge one call; `ThrottledError`, kept back where its client was told to wait and came all the same."""
        quotas, now_ms = self._served.quotas, self._served.clock.monotonic_ms()
        try:
            for quota in _rates(arguments):
                quotas.admit_bytes(account, quota, now_ms)
        except ThrottledError as error:
            await asyncio.sleep(error.held_ms / 1_000)
            raise
        _charge(account, arguments, now_ms)

    @staticmethod
    def _must_wait(account: Account, arguments: Arguments, now_ms: float) -> bool:
        return any(account.wait_ms(quota, now_ms) for quota in _rates(arguments))

    @staticmethod
    def _must_count(account: Account, method: Method) -> bool:
        """Tell whether the call begins a transaction of a principal that may have so many open."""
        return method.name.startswith("start") and account.rulings[OPEN_TRANSACTIONS.place].limit is not None

    @property
    def _caller(self) -> Caller:
        return self._served.caller()

    def _judge(self, method: Method, arguments: Arguments) -> None:
        """Refuse with `ForbiddenError` what the principal of this face may not do, whatever there is of what the call names."""
        caller = self._caller
        verb = _VERBS.get(method.name, "transact")
        if caller.policy is None or verb is None:
            return
        caller.must(verb, CLUSTER)
        if method.name in _ON_A_TRANSACTION:
            transaction_id = _id(arguments)
            whose = self._transactions.state.belonging(transaction_id)
            ownership.must_act(caller, "transact", whose, str(transaction_id))

    def refused(self, method: Method, error: BaseException, arguments: Arguments) -> Pieces:
        """The result that throws an exception that the call declares; raises `ApplicationError`, or what is our bug."""
        if isinstance(error, TooManyEntriesError):
            error = TooLargeError(f"{error}; do less in one transaction")
        if not isinstance(error, BasaltError):
            raise error
        error.message = ownership.message_for(self._caller, self._transactions.manager, error)
        return self._thrown(method, error, arguments)

    # The calls.

    async def _start_short(self, owner_of: OwnerOf, arguments: Arguments) -> Pieces:
        return await self._start(Kind.SHORT, _timeout_ms(arguments), owner_of(arguments))

    async def _start(self, kind: Kind, timeout_ms: int | None, owner: str) -> Pieces:
        # Clients of this face write to stores of their own, so a time-out cannot pass for a roll back.
        principal = ownership.principal_of(self._caller)
        return self._encoded(
            await self._transactions.begin(kind, timeout_ms, owner, external_writes=True, principal=principal)
        )

    async def _can_commit(self, arguments: Arguments, result: Pieces) -> Pieces:
        await self._transactions.set_changes(_id(arguments), _needed(arguments, "changes"))
        return result

    async def _commit(self, arguments: Arguments, result: Pieces) -> Pieces:
        await self.change_sets.commit(_id(arguments), self._guard())
        return result

    async def _abort(self, arguments: Arguments) -> Pieces:
        transaction_id = _id(arguments)
        try:
            await self._transactions.abort(transaction_id)
        except TransactionNotFoundError:  # as with Tephra: nothing of it is left that an abort could change
            log.debug("abort of transaction %d, which is not known", transaction_id)
        return _VOID

    async def _invalidate(self, arguments: Arguments) -> Pieces:
        try:
            invalidated = await self._transactions.invalidate(_id(arguments))
        except (TransactionNotFoundError, TransactionEndedError):
            invalidated = False
        return (METHODS["invalidateTx"].encode(success=invalidated),)

    async def _checkpoint(self, arguments: Arguments) -> Pieces:
        transaction = await self._transactions.checkpoint(_id(arguments))
        level = arguments["tx"].get("visibilityLevel", VisibilityLevel.SNAPSHOT)
        return self._encoded(transaction, level)

    async def _truncate(self, arguments: Arguments) -> Pieces:
        invalid = self._transactions.state.invalid
        pointers = sorted(pointer for pointer in _needed(arguments, "txns") if pointer in invalid)

        async def do() -> int:
            removed = 0
            for start in range(0, len(pointers), EDIT_POINTERS_MAX):
                removed += await self._transactions.prune(pointers[start : start + EDIT_POINTERS_MAX])
            return removed

        removed = await self._audited("truncate", f"{len(pointers)} writers of the invalid list", do, _truncated)
        return _TRUE if removed else _FALSE

    async def _truncate_before(self, arguments: Arguments) -> Pieces:
        before_ms = min(max(_needed(arguments, "time"), 0), POINTER_MAX // POINTERS_PER_MS)
        what = f"the invalid list before {before_ms} ms"
        try:
            removed = await self._audited("truncate", what, lambda: self._transactions.truncate(before_ms), _truncated)
        except ConflictError as error:
            told = ownership.message_for(self._caller, self._transactions.manager, error)
            thrown = types.TInvalidTruncateTimeException(told)
            return (METHODS["truncateInvalidTxBefore"].encode(e=thrown),)
        return _TRUE if removed else _FALSE

    async def _invalid_size(self, arguments: Arguments) -> Pieces:
        return (METHODS["invalidTxSize"].encode(success=len(self._transactions.state.invalid.pointers)),)

    async def _status(self, arguments: Arguments) -> Pieces:
        works = not self._served.is_stopping()
        try:
            self._transactions.state  # noqa: B018  # raises while it reads its log
        except BasaltError:
            works = False
        return (METHODS["status"].encode(success="OK" if works else "NOTOK"),)

    async def _get_snapshot(self, arguments: Arguments) -> Pieces:
        async with self._taking_snapshot:
            await self._transactions.manager_snapshot()  # waits while the log is read
            image, told = self._transactions.state.image(), self.change_sets.all()
            encoded = await asyncio.to_thread(encode_state, image, told, self._served.clock.now_ms())
        if len(encoded) > RESULT_BYTES_MAX:
            thrown = types.TTransactionCouldNotTakeSnapshotException(
                f"the state is {len(encoded)} bytes, an answer at most {RESULT_BYTES_MAX}: take a backup of Basalt's instead"
            )
            return (METHODS["getSnapshot"].encode(e=thrown),)
        return (METHODS["getSnapshot"].encode(success=encoded),)

    async def _prune_now(self, arguments: Arguments) -> Pieces:
        if self._pruning is None or self._pruning.done():
            self._pruning = asyncio.get_running_loop().create_task(self._prune())
        return _VOID

    async def _reset(self, arguments: Arguments) -> Pieces:
        await self._audited("reset", "every transaction and session", self._transactions.sessions.reset)
        return _VOID

    # The same, at once or answered by the group commit.

    def _begin_start(self, owner_of: OwnerOf, arguments: Arguments, waiter: Waiter[Transaction]) -> Encode | None:
        principal = ownership.principal_of(self._caller)
        began = self.change_sets.begin(waiter, _timeout_ms(arguments), owner_of(arguments), principal)
        return self._encoded if began else None

    def _keep_changes(self, arguments: Arguments, result: Pieces) -> Pieces | None:
        return result if self.change_sets.tell(_id(arguments), _needed(arguments, "changes")) else None

    def _begin_commit(self, arguments: Arguments, waiter: Waiter[Any], encode: Encode) -> Encode | None:
        return encode if self.change_sets.submit_commit(waiter, _id(arguments), self._guard()) else None

    def _guard(self) -> Guard | None:
        return ownership.commit_guard(self._caller, self._transactions)

    # How.

    def _encoded(self, transaction: Transaction, level: int | None = None) -> Pieces:
        return _TRANSACTION_START, *self._bytes.pieces(transaction, level), _RESULT_STOP

    async def _audited(
        self, act: str, what: str, do: Callable[[], Awaitable[T]], told: Callable[[T], str] = lambda _: "done"
    ) -> T:
        """Do what an operator asks for, with a line in the audit."""
        caller, by = self._caller, _OPERATOR
        if caller.policy is not None:
            by = structs.replace(by, principal=str(caller.principal), credential=caller.credential)
        return await self._served.audit.act(act, what, by, "", "", do, told)

    async def _prune(self) -> None:
        try:
            await self._audited(
                "prune", "the invalid list", lambda: self._served.scheduler.run_now("prune"), lambda run: run.outcome
            )
        except BasaltError as error:
            log.warning("pruneNow came to nothing: %s", error.message)

    def _thrown(self, method: Method, error: BasaltError, arguments: Arguments) -> Pieces:
        thrown = self._exception(error, arguments)
        if isinstance(thrown, types.TTransactionConflictException) and method.name == "checkpoint":
            thrown = types.TTransactionNotInProgressException(error.message)  # doomed; the call has no other exception
        field = method.throws.get(type(thrown))
        if field is not None:
            return (method.encode(**{field: thrown}),)
        if thrown is not None and method.name in ("canCommitTx", "commitTx") and not isinstance(error, ForbiddenError):
            return _FALSE
        raise ApplicationError(INTERNAL_ERROR, _words(error)) from error

    def _sees(self, transaction_id: int) -> bool:
        return ownership.may_act(self._caller, "observe", self._transactions.state.belonging(transaction_id))

    def _exception(self, error: BasaltError, arguments: Arguments) -> Any:
        if isinstance(error, TransactionConflictError):
            transaction_id = _id(arguments)
            transaction = self._transactions.state.find(transaction_id)
            loss = None if transaction is None else transaction.doomed
            if loss is None or not self._sees(loss.winner):
                return types.TTransactionConflictException(transaction_id, "", "")
            key, client = _printable(loss.key), loss.winner_owner
            return types.TTransactionConflictException(transaction_id, key, client)
        if isinstance(error, TransactionNotFoundError | TransactionEndedError | SessionFencedError | ChangesLostError):
            return types.TTransactionNotInProgressException(error.message)
        if isinstance(error, TooLargeError):
            return types.TGenericException(_words(error), SIZE_EXCEEDED)
        if isinstance(error, InputError):
            return types.TGenericException(_words(error), BAD_ARGUMENT)
        return None


def _rates(arguments: Arguments) -> tuple[Quota, ...]:
    """The rates that a call is charged to: one with a change set brings bytes, as over HTTP."""
    return (REQUESTS, PUBLISH_BYTES) if arguments.get("changes") else (REQUESTS,)


def _charge(account: Account, arguments: Arguments, now_ms: float) -> None:
    account.charge(REQUESTS, 1, now_ms)
    changes = arguments.get("changes")
    if changes:
        account.charge(PUBLISH_BYTES, sum(map(len, changes)), now_ms)


def _needed(arguments: Arguments, name: str) -> Any:
    try:
        return arguments[name]
    except KeyError:
        raise ApplicationError(PROTOCOL_ERROR, f"the call lacks {name}") from None


def _id(arguments: Arguments) -> int:
    """The transaction that a call is about: it brings its id, or the whole of it."""
    for name in ("txId", "txid"):
        if name in arguments:
            return int(arguments[name])
    whole = _needed(arguments, "tx")
    return int(_needed(whole, "id") if isinstance(whole, dict) else whole)


def _client_id(arguments: Arguments) -> str:
    if "clientId" not in arguments:
        raise InputError("clientId must not be null", field="clientId")
    return str(arguments["clientId"])


def _timeout_ms(arguments: Arguments) -> int | None:
    return int(arguments["timeout"]) * 1_000 if "timeout" in arguments else None


def _words(error: BasaltError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _printable(key: bytes) -> str:
    r"""The key as Tephra shows it: what is not printable ASCII as \xNN."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02X}" for byte in key)


def _truncated(removed: int) -> str:
    return f"{removed} writers forgotten: rows of theirs that are left are visible now" if removed else "nothing to do"


def encode_state(image: StateImage, told: Mapping[int, Iterable[bytes]], now_ms: int) -> bytes:
    """The state in the bytes of Tephra's snapshots, taken at `now_ms`; `told` are the change sets that the image does not have.

    Written only, for tools that read them. Format: docs/formats/tephra-snapshot.md.
    """
    open_ones = [each for each in image.transactions if each.state in _OPEN_STATES and not each.was_invalid]
    sets = {each.id: told.get(each.id, each.changes) for each in open_ones}
    entries = [
        entry
        for each in open_ones
        for entry in (
            (each.id, each, _SHORT if each.kind is Kind.SHORT else _LONG, each.checkpoints),
            *((pointer, each, _CHECKPOINT, ()) for pointer in each.checkpoints),
        )
    ]
    numbers = (SNAPSHOT_VERSION, now_ms, image.read_pointer, image.last_pointer)
    return b"".join((
        *map(_number, numbers),
        _block(image.invalid.pointers, _number),
        _block(sorted(entries, key=itemgetter(0)), _in_progress),
        _block(sorted((key, changes) for key, changes in sets.items() if changes), _change_set),
        _block(sorted(_committed(image).items()), _change_set),
    ))  # fmt: skip


def _in_progress(entry: tuple[int, Transaction, int, tuple[int, ...]]) -> bytes:
    pointer, transaction, kind, checkpoints = entry
    in_progress = transaction.in_progress
    seen = in_progress[0] - 1 if in_progress else min(transaction.id - 1, transaction.read_pointer)
    numbers = (pointer, transaction.deadline_ms, seen, kind)
    return b"".join(map(_number, numbers)) + _block(checkpoints, _number)


def _committed(image: StateImage) -> dict[int, frozenset[bytes]]:
    """Change sets by the first write pointer that sees them, as Tephra keys them."""
    kept: dict[int, frozenset[bytes]] = {}
    for committed in image.committed:
        if committed.seen_from != NOT_YET:
            kept[committed.seen_from] = kept.get(committed.seen_from, frozenset()) | committed.changes
    return kept


def _change_set(item: tuple[int, Iterable[bytes]]) -> bytes:
    pointer, changes = item
    return _number(pointer) + _block(sorted(changes), lambda change: _number(len(change)) + change)


def _block(items: Sequence[T], encode: Callable[[T], bytes]) -> bytes:
    """The number of items unless it is 0; each; and the end."""
    return b"".join((_number(len(items)) if items else b"", *map(encode, items), _number(0)))


def _number(number: int) -> bytes:
    return encode_varint(number << 1)  # zigzag, of numbers that are all 0 or more


_SHORT_STARTS: dict[str, OwnerOf] = {
    "startShort": lambda _: "",
    "startShortTimeout": lambda _: "",
    "startShortClientId": _client_id,
    "startShortWithTimeout": lambda _: "",
    "startShortWithClientIdAndTimeOut": _client_id,
}
