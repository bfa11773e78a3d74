"""Who may do what with Basalt's tables in HBase: the grants that a server needs, and findings about those that are too wide.

HBase knows users, and nothing of Basalt's principals: whoever may read a table reads every topic in it, and whoever may alter one can have it
run other code. So nobody but Basalt's own user and HBase's should have any right there, or be able to write to the coprocessor's jar. The rights are
rows of HBase's table hbase:acl, which only its administrators may read.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from basalt.errors import StoreError
from basalt.hbase_admin.check import CheckFinding, ok, some, warning
from basalt.hbase_admin.plan import quoted
from basalt_engine.stores.hbase.tables import table_name
from basalt_engine.stores.hbase.thrift2 import Thrift2, refusal
from basalt_engine.table import TABLE_NAMES

ACL = "hbase:acl"  # the table, and in it the row of rights in all tables
NAMESPACE = "@default"  # the row of rights in all tables of the namespace
SERVER_ACTIONS = "RWC"  # read, write; and C, to be told how a table was made, and to have a region compacted
_COLUMN = b"l:"  # before the user, behind whom a family and a column may stand
_SEEN_BY_ADMINISTRATORS = (
    "run this check with a ticket of HBase's administrator and --user, or `user_permission '.*'` in the HBase shell"
)
_REVOKE = "take it away with `revoke` in the HBase shell: whoever reads a table reads every topic"
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Rights(NamedTuple):
    """Actions (of RWXCA) by user, a group with @ before it, by table, namespace, or hbase:acl for all tables."""

    by_entry: Mapping[str, Mapping[str, str]]
    fault: str = ""  # why they cannot be seen
    kept: bool = True  # False: HBase keeps none, and lets everybody do everything


def short_name(principal: str) -> str:
    """The user that HBase makes of a principal unless it has rules of its own (hadoop.security.auth_to_local): the first part."""
    return principal.partition("@")[0].partition("/")[0]


def grant_lines(prefix: str, user: str) -> list[str]:
    """Lines that an administrator enters in `hbase shell` so that a server with these tables may run as this user."""
    return [
        f"grant {quoted(user)}, {quoted(SERVER_ACTIONS)}, {quoted(table_name(prefix, name))}" for name in TABLE_NAMES
    ]


def read_rights(gateway: Thrift2) -> Rights:
    """The rows of hbase:acl, as far as this user may read them."""
    found: dict[str, dict[str, str]] = {}
    try:
        for key, columns in gateway.scan(ACL, b"", b""):
            users = found.setdefault(key.decode(errors="replace"), {})
            for column, actions in columns.items():
                user = column.removeprefix(_COLUMN).partition(b",")[0].decode(errors="replace")
                users[user] = users.get(user, "") + actions.decode(errors="replace")
    except StoreError as error:
        name = refusal(error)
        if not name:
            raise
        if name == "TableNotFoundException" or error.message.endswith(f": {ACL}"):  # then its name alone is the message
            return Rights({}, kept=False)
        return Rights({}, fault=error.message)
    return Rights(found)


def rights_findings(rights: Rights, prefix: str, expected: Sequence[str]) -> Iterator[CheckFinding]:
    """Check that nobody has rights on the tables of this prefix but the users who are expected to."""
    if not rights.kept:
        told = "HBase keeps none: everybody who has a ticket reads every topic"
        yield warning("rights", told, "switch on hbase.security.authorization, with the AccessController")
        return
    if rights.fault or not rights.by_entry:
        yield warning("rights", rights.fault or "none are shown to this user", _SEEN_BY_ADMINISTRATORS)
        return
    entries = {table_name(prefix, name): table_name(prefix, name) for name in TABLE_NAMES}
    entries |= {NAMESPACE: "all tables of the namespace default", ACL: "all tables"}
    wide = [
        f"{user} has {actions} on {place}"
        for entry, place in entries.items()
        for user, actions in rights.by_entry.get(entry, {}).items()
        if user not in expected
    ]
    if wide:
        yield warning("rights", some(wide), _REVOKE)
    else:
        yield ok("rights", f"nobody but {' and '.join(dict.fromkeys(expected))} has any on the tables")


def jar_finding(path: str) -> CheckFinding:
    """Check that nobody else could put code where region servers load the coprocessor from, as far as that is on this machine."""
    place, name = path.removeprefix("file:"), "jar file"
    file = Path("/" + place.lstrip("/"))
    if not path.startswith("file:") or not file.exists():
        return ok(
            name, f"{path} is not seen from here; see that nobody but HBase's user may write to it and its folder"
        )
    open_to_others = [str(each) for each in (file, *file.parents) if _others_may_write(each)]
    if open_to_others:
        hint = f"chmod go-w {open_to_others[0]}: region servers run what is in that file"
        return warning(name, f"others may write to {some(open_to_others)}", hint)
    return ok(name, f"nobody but the owner may write to {file}")


def _others_may_write(path: Path) -> bool:
    """Of a folder with the sticky bit nobody can take away another's files."""
    mode = path.stat().st_mode
    return bool(mode & _OTHERS) and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX)
