"""The rights that a call needs, declared where its route is. The page of all of them: docs/reference/rights.md.

A call without a declaration cannot be made. What the path names is judged before anything else of the request is looked at: the query,
the body, and whether there is such a thing. What a query or a body names, the handler judges (`in_body`), before it looks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from basalt.access.policy import Caller
from basalt.access.resources import Resource, check_verbs, shape

READING = frozenset(("observe", "read", "inspect"))

_PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource whose names are parameters of the path, in braces, or as they are."""

    verb: str
    kind: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.verb} {':'.join((self.kind, *self.names))}"

    def resource(self, path: Mapping[str, str]) -> Resource:
        """The resource with what the path has for the parameters."""
        return Resource(self.kind, tuple(path[name[1:-1]] if name[0] == "{" else name for name in self.names))


@dataclass(frozen=True, slots=True)
class Needs:
    """The rights that a call needs, all of them.

    `in_body` and `filters` are a verb and a kind of resource each: those that the handler must ask for of what the query or the body
    names, and the one without which something is left out of a list. `on_transaction` is the verb that it takes on the transaction
    that the path names, whosever that is.
    """

    rights: tuple[Right, ...] = ()
    in_body: tuple[str, ...] = ()
    filters: str | None = None
    is_public: bool = False
    on_transaction: str | None = None

    def __and__(self, other: Needs) -> Needs:
        assert not other.is_public
        assert not (self.filters and other.filters)
        filters = self.filters or other.filters
        on_transaction = self.on_transaction or other.on_transaction
        return Needs(
            (*self.rights, *other.rights), (*self.in_body, *other.in_body), filters, on_transaction=on_transaction
        )

    @property
    def is_reading(self) -> bool:
        """True where the call only looks at something: an answer that took long is not given to who may not have it any more."""
        in_body = (each.split() for each in self.in_body)
        return (
            bool(self.rights)
            and all(right.verb in READING for right in self.rights)
            and all(verb in READING or kind == "transactions" for verb, kind in in_body)  # under which it looks
        )

    @property
    def parameters(self) -> frozenset[str]:
        """The parameters of the path that it names."""
        return frozenset(_PARAMETER.findall(" ".join(self.shown)))

    @property
    def shown(self) -> tuple[str, ...]:
        """The rights on what the path names, for people."""
        of_transaction = () if self.on_transaction is None else (f"{self.on_transaction} transaction:{{transaction}}",)
        return (*map(str, self.rights), *of_transaction)

    def judge(self, caller: Caller, path: Mapping[str, str]) -> None:
        """Refuse the call with `ForbiddenError` where the caller lacks one of the rights."""
        if caller.policy is not None:
            for right in self.rights:
                caller.must(right.verb, right.resource(path))


def needs(
    verb: str | None = None, resource: str = "", *, in_body: tuple[str, ...] = (), filters: str | None = None
) -> Needs:
    """The declaration of a right, as `needs("write", "topic:{namespace}:{topic}")`; several are joined by `&`."""
    for of_handler in (*in_body, *((filters,) if filters else ())):
        of_verb, kind = of_handler.split()
        check_verbs((of_verb,), kind)
    if verb is None:
        return Needs((), in_body, filters)
    kind, *names = resource.split(":")
    check_verbs((verb,), kind)
    assert len(names) == shape(kind).count(":"), resource
    return Needs((Right(verb, kind, tuple(names)),), in_body, filters)


def acting_on_transaction(verb: str, *, in_body: tuple[str, ...] = ()) -> Needs:
    """The declaration of a verb on the transaction that the path names as `{transaction}`, whosever that is."""
    check_verbs((verb,), "transactions")
    return needs(in_body=in_body) & Needs(on_transaction=verb)


PUBLIC = Needs(is_public=True)  # for everybody, whether they say who they are or not
SELF = Needs()  # for every principal: it is about themselves
