"""The Python client, blocking and async: `basalt.connect(url)` and `basalt.aio.connect(url)`. Reference: docs/reference/client.md.

Bottom up: a call is a value (`calls`); a plan yields calls (`topics`, `messages`, `transactions`, `open_transaction`, `admin`,
`reading`); a conversation adds attempts and pauses (`conversation`, by the rules of `retries`); a driver does what it says over a
transport (`drivers`, `http_transport`, `async_transport`); and the two clients are tables of plans.
"""

from __future__ import annotations

from basalt.client.admin import Part, Readiness, Version
from basalt.client.async_client import AsyncClient, AsyncSession, AsyncTopic, AsyncTransaction
from basalt.client.blocking_client import Client, Session, Topic, Transaction
from basalt.client.connecting import connect, connect_async
from basalt.client.pages import Message, Page
from basalt.client.participants import PostCommitError, TransactionAware
from basalt.client.positions import Position, PositionLike
from basalt.client.readers import AsyncReader, Reader
from basalt.client.sessions import SessionInfo
from basalt.client.table_handles import (
    AsyncTable,
    AsyncTransactionalTable,
    Table,
    TransactionalTable,
)
from basalt.client.tables import TableInfo, TableRow
from basalt.client.topic_facts import Holder, PeekedMessage, TopicStats
from basalt.client.topics import TopicInfo
from basalt.client.transaction_info import (
    Outcome,
    TransactionInfo,
    TransactionSession,
    TransactionTable,
    TransactionTopic,
)
from basalt.wire.bodies import PublishResponse, RecordIn

__all__ = [
    "AsyncClient",
    "AsyncReader",
    "AsyncSession",
    "AsyncTable",
    "AsyncTopic",
    "AsyncTransaction",
    "AsyncTransactionalTable",
    "Client",
    "Holder",
    "Message",
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
    "Table",
    "TableInfo",
    "TableRow",
    "Topic",
    "TopicInfo",
    "TopicStats",
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
