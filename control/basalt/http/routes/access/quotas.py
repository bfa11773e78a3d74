"""The calls about quotas: the rules of subjects, and what is in force for a principal. The rules: `basalt.access.quotas`."""

from __future__ import annotations

import re

from msgspec.structs import asdict

from basalt.access.needs import needs
from basalt.access.policy import Policy
from basalt.access.principal import ANONYMOUS, EVERYONE, ROLE, Principal, check_subject, parse_principal
from basalt.access.quotas import OPEN_TRANSACTIONS, QUOTAS, SESSIONS, TOPICS, QuotaLimits, QuotaRow, Ruling
from basalt.access.resources import CLUSTER as WHOLE_CLUSTER
from basalt.api.bodies import access as bodies
from basalt.errors import ConflictError, InputError, NotFoundError
from basalt.http.routes.route_table import ADMIN_PATH, AS, CLUSTER, DRY_RUN, REASON, Request, RouteTable
from basalt.settings.tree import QUOTA_MAX

SETTINGS = "settings"  # that a quota is by, where no subject's rule says anything

_QUOTAS = ADMIN_PATH + "/quotas"
_QUOTA = _QUOTAS + "/{subject}"
_CHANGE = (REASON, AS, DRY_RUN)
_ESCAPED = re.compile(r"~([012])|~")
_ESCAPES = {"0": "~", "1": "/", "2": "\\"}

route = RouteTable("access")


@route("GET", _QUOTAS, needs("inspect", CLUSTER))
async def quotas(request: Request) -> list[bodies.SubjectQuota]:
    """List the rules of subjects, sorted by subject."""
    rows = request.services.directory.entries.quotas
    return [_quota_info(subject, rows[subject]) for subject in sorted(rows)]


@route("GET", _QUOTA, needs(in_body=("inspect cluster",)))
async def quota(request: Request) -> bodies.QuotaDescription:
    """Show a subject's rule; of a principal what is in force, by whose rule, and what it uses.

    One's own takes no right. In the path a / is written ~1, a \\ is ~2, and a ~ is ~0.
    """
    subject = _quota_subject(request)
    if subject != str(request.caller.principal):
        request.caller.must("inspect", WHOLE_CLUSTER)
    row = request.services.directory.entries.quotas.get(subject)
    rule = None if row is None else _quota_rule(row.limits)
    kind = subject.partition(":")[0]
    if kind in (EVERYONE, ROLE) or kind.endswith("-group"):
        return bodies.QuotaDescription(subject, rule, (), ())
    return await _quotas_in_force(request, subject, rule)


@route("PUT", _QUOTA, needs("operate", CLUSTER), query=_CHANGE, errors=(ConflictError,))
async def set_quota(request: Request, asked: bodies.QuotaRule) -> bodies.SubjectQuota:
    """Give a subject a rule, in place of the one that it has.

    It counts for what comes from now on, at once on this server. In the path a / is written ~1, a \\ is ~2, and a ~ is ~0.
    """
    subject, limits, directory = _quota_subject(request), _quota_limits(asked), request.services.directory
    made_by, now_ms = str(request.caller.principal), request.services.clock.now_ms()
    if request.flag("dryRun"):
        return _quota_info(subject, QuotaRow(limits, now_ms, made_by))
    said = ", ".join(f"{name} {limit}" for name, limit in asdict(limits).items() if limit is not None)
    await request.services.audit.act(
        "set quota", subject, *request.act, lambda: directory.put_quota(subject, limits, made_by), lambda _: said
    )
    return _quota_info(subject, directory.quota(subject))


@route("DELETE", _QUOTA, needs("operate", CLUSTER), query=_CHANGE, errors=(NotFoundError,))
async def remove_quota(request: Request) -> bodies.SubjectQuota:
    """Remove a subject's rule. In the path a / is written ~1, a \\ is ~2, and a ~ is ~0."""
    subject, directory = _quota_subject(request), request.services.directory
    row = directory.quota(subject)
    if not request.flag("dryRun"):
        await request.services.audit.act("remove quota", subject, *request.act, lambda: directory.remove_quota(subject))
    return _quota_info(subject, row)


def _quota_subject(request: Request) -> str:
    """The subject in the path, in which no slash can be."""

    def meant(found: re.Match[str]) -> str:
        if found[1] is None:
            raise InputError(
                "the subject has a ~ that no 0, 1 or 2 follows",
                field="subject",
                hint="Write ~ as ~0, / as ~1, \\ as ~2.",
            )
        return _ESCAPES[found[1]]

    return check_subject(_ESCAPED.sub(meant, request.path["subject"]))


async def _quotas_in_force(request: Request, subject: str, rule: bodies.QuotaRule | None) -> bodies.QuotaDescription:
    """The quotas in force for a principal: by the groups that it came with, where it called of late."""
    services, principal = request.services, parse_principal(subject)
    is_own = subject == str(request.caller.principal)
    account = services.quotas.known(principal)
    groups = request.caller.principal.groups if is_own else frozenset() if account is None else account.groups
    policy = request.caller.policy or Policy()
    named = Principal(principal.kind, principal.name, groups)
    free = policy.is_superuser(named)
    rulings = (
        tuple(Ruling(None, "") for _ in QUOTAS)
        if free
        else services.quotas.rules.rulings(subject, policy.subjects_of(named)[1:-1])
    )
    now_ms, owner = services.clock.monotonic_ms(), "" if principal == ANONYMOUS else subject
    in_force = []
    for quota, ruling in zip(QUOTAS, rulings, strict=True):
        used = 0 if account is None else account.used(quota, now_ms)
        if quota is TOPICS and ruling.limit is not None:
            used += await services.topics.catalog.created_by(owner)
        elif quota is OPEN_TRANSACTIONS:
            used += services.transactions.state.open_of[owner]
        elif quota is SESSIONS:
            used += services.transactions.state.session_table.held[owner]
        by = "superuser" if free else ruling.subject or SETTINGS
        in_force.append(bodies.QuotaInForce(quota.name, ruling.limit, by, used))
    return bodies.QuotaDescription(subject, rule, tuple(sorted(groups)), tuple(in_force))


def _quota_limits(asked: bodies.QuotaRule) -> QuotaLimits:
    limits = QuotaLimits(**asdict(asked))
    for name, encoded in zip(asked.__struct_fields__, asked.__struct_encode_fields__, strict=True):
        limit = getattr(asked, name)
        if isinstance(limit, int) and not 1 <= limit <= QUOTA_MAX:
            raise InputError(
                f"{encoded} is {limit}; it must be from 1 to {QUOTA_MAX}, or off",
                field=encoded,
                hint="null says nothing of it",
            )
    if limits.is_empty:
        raise InputError("the rule says nothing of any quota", field="body", hint="give one, or DELETE the rule")
    return limits


def _quota_rule(limits: QuotaLimits) -> bodies.QuotaRule:
    return bodies.QuotaRule(**asdict(limits))


def _quota_info(subject: str, row: QuotaRow) -> bodies.SubjectQuota:
    return bodies.SubjectQuota(subject, _quota_rule(row.limits), row.changed_ms, row.made_by)
