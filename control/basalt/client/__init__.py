"""The Python client, blocking and async: `basalt.connect(url)` and `basalt.aio.connect(url)`. Reference: docs/reference/client.md.

Bottom up: a call is a value, a plan is a generator that yields calls, and `run_plan` adds attempts and pauses (`plans`). The
plans are in `calls`, one file for each resource, and in `transaction`. A driver runs them over a `transport`. The objects that
users hold are written once, in `asynchronous`; `blocking` is generated from it.
"""

from __future__ import annotations

from basalt.api.bodies.messages import Advance, Holder, PeekedMessage, Split, StableEnd
from basalt.api.bodies.operations import Part, Readiness, Version
from basalt.api.bodies.tables import TableInfo
from basalt.api.bodies.topics import TopicInfo, TopicStats, TopicTruncation
from basalt.api.bodies.transactions import (
    Outcome,
    SessionInfo,
    TransactionInfo,
    TransactionSession,
    TransactionTable,
    TransactionTopic,
)
from basalt.api.bodies.work import PublishResponse, RecordIn
from basalt.client.asynchronous.client import (
    AsyncClient,
    AsyncNamedTransaction,
    AsyncSession,
    AsyncTable,
    AsyncTopic,
    AsyncTransaction,
    AsyncTransactionalTable,
)
from basalt.client.asynchronous.iterators import AsyncReader
from basalt.client.blocking.client import (
    Client,
    NamedTransaction,
    Session,
    Table,
    Topic,
    Transaction,
    TransactionalTable,
)
from basalt.client.blocking.iterators import Reader
from basalt.client.calls.arrow import ArrowPage
from basalt.client.calls.pages import Message, Page
from basalt.client.calls.positions import Position, PositionLike
from basalt.client.calls.tables import TableRow
from basalt.client.connecting import connect, connect_async
from basalt.client.transaction.participants import PostCommitError, TransactionAware

__all__ = [
    "Advance",
    "ArrowPage",
    "AsyncClient",
    "AsyncNamedTransaction",
    "AsyncReader",
    "AsyncSession",
    "AsyncTable",
    "AsyncTopic",
    "AsyncTransaction",
    "AsyncTransactionalTable",
    "Client",
    "Holder",
    "Message",
    "NamedTransaction",
    "Outcome",
    "Page",
    "Part",
    "PeekedMessage",
    "Position",
    "PositionLike",
    "PostCommitError",
    "PublishResponse",
    "Reader",
    "Readiness",
    "RecordIn",
    "Session",
    "SessionInfo",
    "Split",
    "StableEnd",
    "Table",
    "TableInfo",
    "TableRow",
    "Topic",
    "TopicInfo",
    "TopicStats",
    "TopicTruncation",
    "Transaction",
    "TransactionAware",
    "TransactionInfo",
    "TransactionSession",
    "TransactionTable",
    "TransactionTopic",
    "TransactionalTable",
    "Version",
    "connect",
    "connect_async",
]
