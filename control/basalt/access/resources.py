"""Resources and verbs: what a right is about, what it allows, and which verb goes with which kind of resource.

`cluster`, `namespace:N` (all in it), `topic:N:T`, `group:N:T:G`, `table:N:B`, `session:S`, `transactions:PRINCIPAL`, and `*`, which is
everything. In a grant the last part may end in `*`, and stands for every name that begins so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from basalt.access.principal import parse_principal
from basalt.errors import InputError
from basalt_engine.keys import NAME_EXPRESSION, NAME_PATTERN

EVERYTHING = "*"
SESSION_CHARS_MAX = 255

# What each verb allows, in the words of the reference.
VERBS: Mapping[str, str] = {
    "observe": "know that it exists, and see its properties, figures, markers, ends and holder",
    "read": "poll, read records, ranges and cells; of a group: join it, fetch and acknowledge",
    "write": "publish, store, roll back, emit markers, write cells",
    "inspect": "look at single messages, hidden ones too; of the cluster: audit and settings",
    "manage": "create, update, truncate and delete; seek, pause and change a group",
    "transact": "begin; of a session: open it and begin in it; of transactions: act on those of that principal; of a topic,"
    " where transactions are managed elsewhere: write and roll back under a pointer",
    "operate": "run and pause jobs, prune, restore, back up, end transactions by hand",
    "grant": "give and take rights",
}

_OF_DATA = ("observe", "read", "write", "inspect", "manage", "grant")
# Where transactions are managed elsewhere nobody knows whose a write pointer is: then the right is one on the topic.
_OF_MESSAGES = (*_OF_DATA, "transact")
_WHICH_OBSERVE = frozenset(("read", "write", "manage"))


class Kind(NamedTuple):
    """A kind of resource: its parts, the verbs that it takes, and those of them that imply `observe`."""

    parts: tuple[str, ...]
    verbs: tuple[str, ...]
    implying: frozenset[str] = frozenset()


KINDS: Mapping[str, Kind] = {
    "cluster": Kind((), ("observe", "inspect", "transact", "operate", "grant")),
    "namespace": Kind(("NAMESPACE",), _OF_MESSAGES, _WHICH_OBSERVE),
    "topic": Kind(("NAMESPACE", "TOPIC"), _OF_MESSAGES, _WHICH_OBSERVE),
    "group": Kind(("NAMESPACE", "TOPIC", "GROUP"), _OF_DATA, _WHICH_OBSERVE),
    "table": Kind(("NAMESPACE", "TABLE"), _OF_DATA, _WHICH_OBSERVE),
    "session": Kind(("SESSION",), ("observe", "manage", "transact", "grant"), frozenset(("manage", "transact"))),
    "transactions": Kind(("PRINCIPAL",), ("observe", "transact", "grant"), frozenset(("transact",))),
    EVERYTHING: Kind((), tuple(VERBS)),
}
_IN_NAMESPACE = frozenset(("topic", "group", "table"))
_NAME_START = re.compile(f"({NAME_EXPRESSION})?")


class Resource(NamedTuple):
    """One thing, or in a grant perhaps several: its kind, and its names from the outermost on."""

    kind: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ":".join((self.kind, *self.parts))


CLUSTER = Resource("cluster")


def topic(namespace: str, name: str) -> Resource:
    """The resource that a topic is."""
    return Resource("topic", (namespace, name))


def group(namespace: str, topic_name: str, name: str) -> Resource:
    """The resource that a consumer group is."""
    return Resource("group", (namespace, topic_name, name))


def table(namespace: str, name: str) -> Resource:
    """The resource that a transactional table is."""
    return Resource("table", (namespace, name))


def session(name: str) -> Resource:
    """The resource that a named session is."""
    return Resource("session", (name,))


def transactions(principal: object) -> Resource:
    """The transactions of a principal."""
    return Resource("transactions", (str(principal),))


def covers(granted: Resource, asked: Resource) -> bool:
    """Tell whether what is granted on the one is granted on the other: whether that is it, or in it."""
    if granted.kind == EVERYTHING:
        return True
    names = asked.parts
    if granted.kind != asked.kind:
        if granted.kind != "namespace" or asked.kind not in _IN_NAMESPACE:
            return False
        names = names[:1]
    if not granted.parts:
        return True
    last = granted.parts[-1]
    if granted.parts[:-1] != names[:-1]:
        return False
    return names[-1].startswith(last[:-1]) if last.endswith("*") else names[-1] == last


def parse_resource(text: str) -> Resource:
    """The resource of this text; its last part may end in `*`. `InputError` says what is wrong with it."""
    name, colon, rest = text.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        raise _no_resource(text, f"there is no kind of resource {_shown(name)}", f"kinds are {', '.join(KINDS)}")
    # The name of a session or a principal may have colons of its own.
    parts = tuple(rest.split(":", len(kind.parts) - 1)) if kind.parts and colon else (rest,) if colon else ()
    if len(parts) != len(kind.parts):
        raise _no_resource(text, f"it has {len(parts)} of {len(kind.parts)} names", f"write {shape(name)}")
    for number, part in enumerate(parts, 1):
        _check_part(text, name, part, is_last=number == len(parts))
    return Resource(name, parts)


def check_verbs(verbs: Iterable[str], kind: str) -> frozenset[str]:
    """The verbs of a grant on a resource of this kind. `InputError` names one that is none, or that means nothing there."""
    found = frozenset(verbs)
    if not found:
        raise InputError("the grant has no verb", field="verbs", hint=f"verbs are {', '.join(VERBS)}")
    for verb in sorted(found):
        if verb not in VERBS:
            raise InputError(f"there is no verb {_shown(verb)}", field="verb", hint=f"verbs are {', '.join(VERBS)}")
        if verb not in KINDS[kind].verbs:
            raise InputError(
                f"{verb} means nothing on {shape(kind)}", field="verb", hint=f"it takes {', '.join(KINDS[kind].verbs)}"
            )
    return found


def shape(kind: str) -> str:
    """The form of a kind's resources, for people: `topic:NAMESPACE:TOPIC`."""
    return ":".join((kind, *KINDS[kind].parts))


def _check_part(text: str, kind: str, part: str, *, is_last: bool) -> None:
    starts = is_last and part.endswith("*")
    name = part[:-1] if starts else part
    if kind == "session":
        if (not name and not starts) or len(name) > SESSION_CHARS_MAX or "/" in name or not name.isprintable():
            raise _no_resource(text, f"{_shown(part)} is no name of a session", f"write {shape(kind)}")
    elif kind == "transactions":
        if not starts:
            parse_principal(name)
    elif (_NAME_START if starts else NAME_PATTERN).fullmatch(name) is None:
        hint = "a name may be A-Z a-z 0-9 _ - and ., not first a dot; only the last one may end in *"
        raise _no_resource(text, f"{_shown(part)} is no name", hint)


def _no_resource(text: str, reason: str, hint: str) -> InputError:
    return InputError(f"{_shown(text)} is no resource: {reason}", field="resource", hint=hint)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:80] + "…")
