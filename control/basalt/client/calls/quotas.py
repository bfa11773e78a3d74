"""Plans about quotas: how much of a server a principal may use. Rules: docs/operations/security.md."""

from __future__ import annotations

from basalt.api.bodies.access import QuotaDescription, QuotaLimit, QuotaRule, SubjectQuota
from basalt.client.plans import Call, ClientScope, Effect, Steps, act_of, ask, get_json, joined_path, json_of, send_json

QUOTAS = "/v1/admin/quotas"
# No path may have an encoded slash or backslash, and names of principals may: they are written as JSON pointers write a slash.
_ESCAPES = str.maketrans({"~": "~0", "/": "~1", "\\": "~2"})


def list_quotas(scope: ClientScope) -> Steps[list[SubjectQuota]]:
    """The rules of all subjects that have one, sorted by subject."""
    return get_json(list[SubjectQuota], "list quotas", QUOTAS)


def describe_quota(scope: ClientScope, subject: str) -> Steps[QuotaDescription]:
    """The rule of a subject; of a principal also what is in force for it, by whose rule, and what it has used."""
    return get_json(QuotaDescription, f"show the quotas of {subject}", _path(subject))


def set_quota(
    scope: ClientScope,
    subject: str,
    *,
    requests_per_s: QuotaLimit = None,
    publish_bytes_per_s: QuotaLimit = None,
    fetch_bytes_per_s: QuotaLimit = None,
    open_transactions: QuotaLimit = None,
    sessions: QuotaLimit = None,
    topics: QuotaLimit = None,
    waiting_fetches: QuotaLimit = None,
    reason: str = "",
    by: str = "",
    dry_run: bool = False,
) -> Steps[SubjectQuota]:
    """Give a subject this rule, in place of the one that it has. "off": without limit; None: the rule says nothing of it."""
    rule = QuotaRule(
        requests_per_s, publish_bytes_per_s, fetch_bytes_per_s, open_transactions, sessions, topics, waiting_fetches
    )
    what, query = f"set the quotas of {subject}", act_of(reason, by, dry_run=dry_run)
    return send_json("PUT", what, _path(subject), json_of(SubjectQuota), body=rule, query=query)


def remove_quota(
    scope: ClientScope, subject: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[SubjectQuota]:
    """Remove a subject's rule, and tell what it was."""
    what, query = f"remove the quotas of {subject}", act_of(reason, by, dry_run=dry_run)
    return ask(Call(what, "DELETE", _path(subject), json_of(SubjectQuota), Effect.ONCE, query))


def _path(subject: str) -> str:
    return QUOTAS + joined_path(subject.translate(_ESCAPES))
