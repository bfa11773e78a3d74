"""Basalt: transactional messaging on HBase, with an embedded default.

`basalt.connect(url)` makes a client, `basalt.aio.connect(url)` an async one. Importing this package loads neither: what is named
here beside them (`basalt.errors`, `basalt.RecordIn`, the classes of what the client answers) is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from basalt_engine import __version__

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from basalt import client, errors, outbox
    from basalt.client import (
        Advance,
        ArrowPage,
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
        Batch,
        BearerToken,
        Client,
        ConsumedMessage,
        Consumer,
        Group,
        GroupInfo,
        GroupOptions,
        Holder,
        Message,
        NamedTransaction,
        Output,
        Page,
        PeekedMessage,
        Position,
        PositionLike,
        PostCommitError,
        Producer,
        ProducerInfo,
        PublishResponse,
        Reader,
        Readiness,
        RecordIn,
        ServerPart,
        Session,
        SessionInfo,
        Split,
        StableEnd,
        Table,
        TableInfo,
        TableRow,
        Tls,
        Topic,
        TopicInfo,
        TopicStats,
        TopicTruncation,
        Transaction,
        TransactionalTable,
        TransactionAware,
        TransactionInfo,
        TransactionOutcome,
        TransactionSession,
        TransactionTopic,
        Version,
        WrittenTable,
    )
    from basalt.client.credential import Token

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
    "__version__",
    "aio",
    "client",
    "connect",
    "errors",
    "outbox",
]

_MODULES = frozenset({"client", "errors", "outbox"})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    found: object = getattr(import_module(f"{__name__}.client"), name)
    globals()[name] = found  # the next look finds it at once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def connect(
    url: str,
    *,
    namespace: str = "default",
    timeout_ms: int = 30_000,
    attempts_max: int | None = None,
    token: Token | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | Tls | None = None,
    kerberos: bool = False,
    settings: Mapping[str, str] | None = None,
    dedup: bool = True,
) -> Client:
    """A client of the server at `http://HOST:PORT`, or of a store in this process: `embedded:DIRECTORY`.

    Of servers that share a store name several, with commas between them: a call goes to the one that leads.

    Topic names are in `namespace` unless a call says otherwise. Each call is tried for `timeout_ms`, again only where that
    is safe, and at most `attempts_max` times if that is given. `token` proves who calls: text, a `pathlib.Path` of a file
    that holds it, or a callable that returns it; without one that of BASALT_TOKEN or BASALT_TOKEN_FILE in the environment. With `kerberos` it is
    the ticket of whoever runs this process that does (`kinit`).
    `headers` go with every request; `tls` is for https: files with certificates (`basalt.Tls`), or a context. An embedded
    store asks for none of these. `settings` are those of an embedded server, such as `{"store.kind": "memory"}`. With
    `dedup` messages are numbered, so that a publish whose answer is lost is sent again and there once. Nothing is sent yet;
    an embedded store is opened.

    `InputError` for a URL that is neither; what a server would say at its start when a store cannot be opened.
    """
    if url.startswith("embedded:"):
        from basalt import embedded

        return embedded.connect(url, namespace, timeout_ms, attempts_max, headers or {}, settings or {}, dedup=dedup)
    from basalt import client
    from basalt.client.credential import hidden

    token = hidden(token)
    return client.connect(
        url,
        namespace=namespace,
        timeout_ms=timeout_ms,
        attempts_max=attempts_max,
        token=token,
        headers=headers,
        tls=tls,
        kerberos=kerberos,
        dedup=dedup,
    )


class aio:  # noqa: N801  # it is used as a module would be
    """The async client's door, so that `import basalt` is enough for it: `async with basalt.aio.connect(url) as client:`."""

    @staticmethod
    def connect(
        url: str,
        *,
        namespace: str = "default",
        timeout_ms: int = 30_000,
        attempts_max: int | None = None,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | Tls | None = None,
        kerberos: bool = False,
        settings: Mapping[str, str] | None = None,
        dedup: bool = True,
    ) -> AsyncClient:
        """The async twin of `basalt.connect`, with the same arguments.

        A client belongs to the event loop in which it is first used.
        """
        if url.startswith("embedded:"):
            from basalt import embedded

            return embedded.connect_async(
                url, namespace, timeout_ms, attempts_max, headers or {}, settings or {}, dedup=dedup
            )
        from basalt import client
        from basalt.client.credential import hidden

        token = hidden(token)
        return client.connect_async(
            url,
            namespace=namespace,
            timeout_ms=timeout_ms,
            attempts_max=attempts_max,
            token=token,
            headers=headers,
            tls=tls,
            kerberos=kerberos,
            dedup=dedup,
        )
