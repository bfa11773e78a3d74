"""The Python client, blocking and async: `basalt.connect(url)` and `basalt.aio.connect(url)`. Reference: docs/reference/client.md.

Bottom up: a call is a value (`calls`); a plan yields calls (`topics`, `messages`, `transactions`, `open_transaction`, `admin`,
`reading`); a conversation adds attempts and pauses (`conversation`, by the rules of `retries`); a driver does what it says over a
transport (`drivers`, `http_transport`, `async_transport`); and the two clients are tables of plans.
"""

from __future__ import annotations

from basalt.api.bodies.messages import Holder, PeekedMessage
from basalt.api.bodies.ranges import Advance, Split, StableEnd
from basalt.api.bodies.server import Part, Readiness, Version
from basalt.api.bodies.sessions import SessionInfo
from basalt.api.bodies.tables import TableInfo
from basalt.api.bodies.topics import TopicInfo, TopicStats, TopicTruncation
from basalt.api.bodies.transactions import (
    Outcome,
    TransactionInfo,
    TransactionSession,
    TransactionTable,
    TransactionTopic,
)
from basalt.api.bodies.work import PublishResponse, RecordIn
from basalt.client.async_client import AsyncClient, AsyncNamedTransaction, AsyncSession, AsyncTopic, AsyncTransaction
from basalt.client.blocking_client import Client, NamedTransaction, Session, Topic, Transaction
from basalt.client.calls.arrow import ArrowPage
from basalt.client.calls.pages import Message, Page
from basalt.client.calls.positions import Position, PositionLike
from basalt.client.calls.tables import TableRow
from basalt.client.connecting import connect, connect_async
from basalt.client.readers import AsyncReader, Reader
from basalt.client.table_handles import (
    AsyncTable,
    AsyncTransactionalTable,
    Table,
    TransactionalTable,
)
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
