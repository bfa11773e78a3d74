"""The Python client, blocking and async: `basalt.connect(url)` and `basalt.aio.connect(url)`. Reference: docs/reference/client.md.

Bottom up: a call is a value, a plan is a generator that yields calls (`plans`), and `attempts` adds attempts and pauses. The plans
are in `calls`, one file for each resource, and in `transaction`. A driver runs them over a transport. The objects that users hold
are written once, in `asynchronous`; `blocking` is generated from it.
"""

from __future__ import annotations

from basalt.api.bodies.groups import GroupInfo, GroupOptions
from basalt.api.bodies.messages import PublishResponse
from basalt.api.bodies.operations import Readiness, ServerPart, Version
from basalt.api.bodies.ranges import Advance, Holder, PeekedMessage, Split, StableEnd
from basalt.api.bodies.tables import TableInfo
from basalt.api.bodies.topics import ProducerInfo, TopicInfo, TopicStats, TopicTruncation
from basalt.api.bodies.transactions import (
    SessionInfo,
    TransactionInfo,
    TransactionOutcome,
    TransactionSession,
    TransactionTopic,
    WrittenTable,
)
from basalt.api.positions import Position
from basalt.client.asynchronous.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncGroup,
    AsyncNamedTransaction,
    AsyncProducer,
    AsyncReader,
    AsyncSession,
    AsyncTable,
    AsyncTopic,
    AsyncTransaction,
    AsyncTransactionalTable,
)
from basalt.client.asynchronous.client import connect as connect_async
from basalt.client.blocking.client import (
    Client,
    Consumer,
    Group,
    NamedTransaction,
    Producer,
    Reader,
    Session,
    Table,
    Topic,
    Transaction,
    TransactionalTable,
    connect,
)
from basalt.client.calls.messages import ArrowPage, PositionLike
from basalt.client.calls.pages import Message, Page
from basalt.client.calls.payloads import RecordIn
from basalt.client.calls.tables import TableRow
from basalt.client.consumer.batches import Batch, ConsumedMessage
from basalt.client.consumer.processing import Output
from basalt.client.credential import BearerToken
from basalt.client.tls import Tls
from basalt.client.transaction.open_transaction import PostCommitError, TransactionAware

__all__ = [
    "Advance",
    "ArrowPage",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncGroup",
    "AsyncNamedTransaction",
    "AsyncProducer",
    "AsyncReader",
    "AsyncSession",
    "AsyncTable",
    "AsyncTopic",
    "AsyncTransaction",
    "AsyncTransactionalTable",
    "Batch",
    "BearerToken",
    "Client",
    "ConsumedMessage",
    "Consumer",
    "Group",
    "GroupInfo",
    "GroupOptions",
    "Holder",
    "Message",
    "NamedTransaction",
    "Output",
    "Page",
    "PeekedMessage",
    "Position",
    "PositionLike",
    "PostCommitError",
    "Producer",
    "ProducerInfo",
    "PublishResponse",
    "Reader",
    "Readiness",
    "RecordIn",
    "ServerPart",
    "Session",
    "SessionInfo",
    "Split",
    "StableEnd",
    "Table",
    "TableInfo",
    "TableRow",
    "Tls",
    "Topic",
    "TopicInfo",
    "TopicStats",
    "TopicTruncation",
    "Transaction",
    "TransactionAware",
    "TransactionInfo",
    "TransactionOutcome",
    "TransactionSession",
    "TransactionTopic",
    "TransactionalTable",
    "Version",
    "WrittenTable",
    "connect",
    "connect_async",
]
