"""The command that makes a call, by the call's method and path: shown on every panel, to be copied.

A word in braces stands for a name in the path, a query parameter or a member of the body. A part in brackets is there where its words are. A test runs
each line that a page shows, and compares what it answers with the page.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

NO_COMMAND = "there is no command for this call"

# In the order of the routes. None: the command line has nothing for it, and the panel says so.
COMMANDS: Mapping[tuple[str, str], str | None] = {
    ("GET", "/readyz"): "doctor",
    ("GET", "/v1/admin/topics"): "topic list --all [--namespace {namespace}]",
    ("GET", "/v1/namespaces/{namespace}/topics"): "topic list --namespace {namespace}",
    ("GET", "/v1/admin/jobs"): "jobs list",
    ("GET", "/v1/admin/audit"): "audit list [--limit {limit}]",
    ("GET", "/v1/transactions"): "tx list",
    ("GET", "/v1/admin/snapshot"): "snapshot show",
    ("GET", "/v1/admin/store"): None,
    ("GET", "/v1/auth/whoami"): "auth whoami",
}

_OPTIONAL = re.compile(r" ?\[([^\]]*)\]")
_WORD = re.compile(r"\{(\w+)\}")


def command_of(method: str, path: str, names: Mapping[str, str], query: Mapping[str, str], body: Any) -> str | None:
    """The command line that makes the call; None where there is none."""
    template = COMMANDS.get((method, path))
    if template is None:
        return None
    given = {**names, **query, **(body if isinstance(body, dict) else {})}

    def optional(match: re.Match[str]) -> str:
        return f" {match[1]}" if all(word in given for word in _WORD.findall(match[1])) else ""

    line = _OPTIONAL.sub(optional, template)
    return "basalt " + _WORD.sub(lambda match: shlex.quote(str(given[match[1]])), line)
