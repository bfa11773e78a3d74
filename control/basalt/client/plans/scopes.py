"""The scopes of plans: a client's namespace, one topic, one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from basalt.client.plans.calls import joined_path


@dataclass(frozen=True, slots=True)
class ClientScope:
    """A client's namespace, and its clock (milliseconds since 1970) for positions such as "-1h"."""

    namespace: str
    now_ms: Callable[[], int]
    table_facts: dict[TableScope, Any] = field(
        default_factory=dict, compare=False
    )  # by table what the server said of it

    def topics_path(self, namespace: str | None = None, *parts: str) -> str:
        """The path of the topics of a namespace (None: the client's own), and of what is below them."""
        return joined_path("v1", "namespaces", namespace or self.namespace, "topics", *parts)

    def topic(self, name: str, *, namespace: str | None = None) -> TopicScope:
        """A topic to publish to and read from. It need not exist yet, and nothing is asked of the server."""
        return TopicScope(namespace or self.namespace, name, self.now_ms)

    def tables_path(self, namespace: str | None = None, *parts: str) -> str:
        """The path of the tables of a namespace, and of what is below them."""
        return joined_path("v1", "namespaces", namespace or self.namespace, "tables", *parts)

    def table(self, name: str, *, namespace: str | None = None) -> TableScope:
        """A table, to read what is committed. It need not exist yet, and nothing is asked of the server."""
        return TableScope(namespace or self.namespace, name)


@dataclass(frozen=True, slots=True)
class TopicScope:
    """One topic of a namespace."""

    namespace: str
    name: str
    now_ms: Callable[[], int]

    def path(self, *parts: str) -> str:
        """The topic's path, and of what is below it."""
        return joined_path("v1", "namespaces", self.namespace, "topics", self.name, *parts)

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


@dataclass(frozen=True, slots=True)
class TableScope:
    """One transactional table of a namespace."""

    namespace: str
    name: str

    def path(self, *parts: str) -> str:
        """The table's path, and of what is below it."""
        return joined_path("v1", "namespaces", self.namespace, "tables", self.name, *parts)

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"
