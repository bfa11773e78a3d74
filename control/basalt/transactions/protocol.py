"""The messages between the owners of topics and tables and the coordinator of transactions: small values that can be encoded as they are.

An owner gives out the places of its topics. What it knows of transactions is what it was told by these. The coordinator has the log and
all that it says, and knows of topics only who joined which, from when on. A carrier takes a commit through, from one to the other:

    Joining -> Admitted      owner to coordinator, before the first row, payload or cell of a transaction in a topic or table
    Prepare -> Prepared      carrier to owner: check what a commit brings, and keep it
    Intend -> Intended       carrier to coordinator: the log has it that rows are being placed
    Expect                   coordinator to owner: a place may come, once
    Place                    carrier to owner: take no more writes, and make rows of what is stored and was prepared
    Decide                   carrier to coordinator: the rows are durable, or will not be
    Close                    coordinator to owner: the transaction writes no more
    RollBack                 coordinator to owner: hide its rows, delete what it stored
    End                      coordinator to owner: its outcome is durable
    Settled                  coordinator to owner: the same of one-shot transactions
    Recovered                to owner: the log was read, and of what began before nothing is known but what the store says

A one-shot transaction whose topics all have the same owner needs none of these. Its owner has the pointers before:

    Lend -> LentPointers     owner to coordinator: write pointers for one-shot transactions
    DecideOneShots -> OneShotsDecided    the rows of these are durable, or will not be
    GiveBack -> GivenBack    the rest of a loan was never used

None of them can be part of a cycle, so the garbage collector need not look at them. docs/decisions/0062-owner-and-coordinator.md. Those that
the owner of another server gets are arrays: `basalt.commits.owning.owner_calls`.
"""

from __future__ import annotations

import msgspec

from basalt.api.bodies.messages import Work
from basalt.cluster.links.frames import ErrorBody
from basalt.transactions.rules.loans import OneShotInFlight
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Join, TableJoin, Transaction


class JoinedTransaction(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A transaction, as owners know it: its write pointers, ascending, and the topics and tables that it joined.

    `was_invalid`: it is being aborted from the invalid list, so owners have forgotten where its rows lie.
    """

    id: int
    pointers: tuple[int, ...]
    topics: tuple[Join, ...]
    tables: tuple[TableJoin, ...] = ()
    was_invalid: bool = False

    @classmethod
    def of(cls, transaction: Transaction) -> JoinedTransaction:
        """A transaction as the coordinator tells of it."""
        return cls(
            transaction.id, transaction.pointers, transaction.topics, transaction.tables, transaction.was_invalid
        )

    @property
    def write_pointer(self) -> int:
        """The newest of its pointers, under which a commit writes what it brings."""
        return self.pointers[-1]


class Joining(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Something of this writer is about to lie in a topic or table; with neither, it only asks whether the writer is open."""

    write_pointer: int
    topic: Join | None = None
    table: TableJoin | None = None


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The log has the join. The transaction writes until its deadline, unless the owner is told before that it is closed."""

    transaction_id: int
    deadline_ms: int


class Prepare(msgspec.Struct, frozen=True, gc=False):
    """The work that a commit is about to bring, and the transaction as the carrier knows it; None when it has ended."""

    work: Work | None
    transaction: JoinedTransaction | None


class Prepared(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Something is kept for a commit, under this number: 0 is nothing. With the topics that it writes to, each once.

    Numbers below 0 are of commits of which several owners keep something: each under a number of its own.
    """

    number: int = 0
    topics: tuple[Join, ...] = ()
    payload_bytes: int = 0


class Intend(msgspec.Struct, frozen=True, gc=False):
    """A commit, and the topics to which it brings messages. `deferred_changes`: the change set that the log does not have."""

    transaction_id: int
    topics: tuple[Join, ...] = ()
    request_id: str | None = None
    deferred_changes: frozenset[bytes] | None = None


class Intended(msgspec.Struct, frozen=True, gc=False):
    """The log has the intent: all owners of what was joined are to place, then the coordinator decides."""

    transaction: JoinedTransaction


class Expect(msgspec.Struct, frozen=True, gc=False):
    """The log has the intent of this commit."""

    transaction_id: int


class Place(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Make rows of what the transaction has stored, and of what was prepared under this number."""

    transaction: JoinedTransaction
    number: int


class Decide(msgspec.Struct, frozen=True, gc=False):
    """The rows of a commit are durable; or they are not placed, and it is to be given up."""

    transaction_id: int
    placed: bool


class Close(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The transaction writes no more: it is being rolled back, or has lost a conflict."""

    transaction_id: int


class RollBack(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """It is decided that the transaction did not happen."""

    transaction: JoinedTransaction


class End(msgspec.Struct, frozen=True, gc=False):
    """The outcome of the transaction is durable, and nothing is left to do."""

    transaction: JoinedTransaction


class Lend(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An owner wants write pointers. `ends`: its loans of before are over, for it does not know what the coordinator heard of them."""

    ends: bool = False


class LentPointers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log has the loan of these pointers."""

    first: int
    last: int


class DecideOneShots(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One-shot transactions of one group, in the order of their pointers. Not `written`: nobody knows which of their rows are there."""

    placed: tuple[OneShotInFlight, ...]
    written: bool = True


class OtherAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A one-shot transaction that was given up, by its place in the question: its request was carried out before, or why."""

    number: int
    first: Outcome | None = None
    error: ErrorBody | None = None


class OneShotsDecided(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log has the outcomes. All were committed at this time, but for the others."""

    at_ms: int
    others: tuple[OtherAnswer, ...] = ()


class GiveBack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """First and last of what is left of loans. `ends`: as in `Lend`."""

    rests: tuple[tuple[int, int], ...] = ()
    ends: bool = False


class GivenBack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first pointers of those before which something is undecided: they are to be given back later."""

    undecided: tuple[int, ...] = ()


class Settled(msgspec.Struct, frozen=True, gc=False):
    """One-shot transactions with these pointers, and of these runs (first, last), are decided or given up."""

    pointers: tuple[int, ...]
    runs: tuple[tuple[int, int], ...] = ()


class Recovered(msgspec.Struct, frozen=True, gc=False):
    """The log was read up to this pointer. The runs are those of loans, under which no rows are searched for."""

    last_pointer: int
    lent: tuple[tuple[int, int], ...]


Told = Expect | Close | End | Settled | Recovered  # whatever an owner hears of transactions
