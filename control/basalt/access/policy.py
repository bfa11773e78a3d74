"""The policy: who may do what, by grants that allow and are never taken back by others. It is pure, and never changes.

A principal's rights are the union of what is granted to it, to its groups, to roles that have it or one of these as a member, and to
everyone. No grant forbids anything, so their order means nothing, and why something is refused has one answer. Without grants,
superusers and parts of this process may do everything, and everybody may act on transactions of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from basalt.access import resources
from basalt.access.principal import EVERYONE, INTERNAL, ROLE, Principal, check_member, check_subject, check_subject_name
from basalt.access.refusals import Refusals
from basalt.access.resources import KINDS, Resource, check_verbs, covers, parse_resource
from basalt.errors import ForbiddenError

CHANGES_MAX = 100  # subjects that are told; a role has up to 10,000 members, and nobody reads more
VERDICTS_MAX = 100_000  # that are kept; when they are full, all are forgotten
KEPT_CHARS_MAX = 800  # of the names of what a kept verdict is about: no thing has longer ones, but a path may

_OF_OWN = frozenset(("observe", "transact"))


class Grant(NamedTuple):
    """Rights that a subject has on a resource."""

    subject: str
    verbs: frozenset[str]
    resource: Resource

    def allows(self, verb: str, resource: Resource) -> bool:
        """Tell whether it gives this right to its subject. Some verbs imply that one may see what one acts on."""
        if verb not in self.verbs and (verb != "observe" or self.verbs.isdisjoint(KINDS[resource.kind].implying)):
            return False
        return covers(self.resource, resource)


def parse_grant(subject: str, verbs: Iterable[str], resource: str) -> Grant:
    """The grant that these texts tell. `InputError` says what is wrong with it."""
    found = parse_resource(resource)
    return Grant(check_subject(subject), check_verbs(verbs, found.kind), found)


class GrantReader:
    """Reads many grants: most are for the same verbs on a few resources, which are parsed once."""

    def __init__(self) -> None:
        self._resources: dict[str, Resource] = {}
        self._verbs: dict[tuple[tuple[str, ...], str], frozenset[str]] = {}

    def __call__(self, subject: str, verbs: tuple[str, ...], resource: str) -> Grant:
        """The grant that these texts tell, as `parse_grant` reads it."""
        found = self._resources.get(resource)
        if found is None:
            found = self._resources[resource] = parse_resource(resource)
        key = verbs, found.kind
        checked = self._verbs.get(key)
        if checked is None:
            checked = self._verbs[key] = check_verbs(verbs, found.kind)
        return Grant(check_subject(subject), checked, found)


class Verdict(NamedTuple):
    """The answer to whether a right is there, and by what: `because` in words, and the grants that give it."""

    allowed: bool
    because: str
    grants: tuple[Grant, ...] = ()


class Policy:
    """All grants, roles and superusers of one moment. `superusers` are principals and groups; roles have both as members."""

    def __init__(
        self,
        grants: Iterable[Grant] = (),
        roles: Mapping[str, Iterable[str]] | None = None,
        superusers: Iterable[str] = (),
    ) -> None:
        self._superusers = frozenset(map(check_member, superusers))
        self._by_subject: dict[str, list[Grant]] = {}
        for grant in grants:
            self._by_subject.setdefault(grant.subject, []).append(grant)
        self._roles_of: dict[str, list[str]] = {}
        for role, members in (roles or {}).items():
            check_subject_name(role)
            for member in map(check_member, members):
                self._roles_of.setdefault(member, []).append(f"{ROLE}:{role}")
        self._verdicts: dict[tuple[Principal, str, Resource], bool] = {}
        self.uses: dict[
            Grant, set[str]
        ] = {}  # grants that allowed something, and to whom, since this policy is in force

    def allows(self, principal: Principal, verb: str, resource: Resource) -> bool:
        """Tell whether the principal has this right."""
        asked = (principal, verb, resource)
        verdict = self._verdicts.get(asked)
        if verdict is None:
            found = self.why(principal, verb, resource)
            verdict = found.allowed
            for grant in found.grants:
                self.uses.setdefault(grant, set()).add(str(principal))
            if sum(map(len, resource.parts)) > KEPT_CHARS_MAX:
                return verdict
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            self._verdicts[asked] = verdict
        return verdict

    def why(self, principal: Principal, verb: str, resource: Resource) -> Verdict:
        """Tell whether the principal has this right, and by what."""
        if principal.kind == INTERNAL:
            return Verdict(True, f"{principal} is a part of the server")
        if self.is_superuser(principal):
            return Verdict(True, f"{principal} is a superuser")
        if verb in _OF_OWN and resource == resources.transactions(principal):
            return Verdict(True, "they are its own")
        subjects = self.subjects_of(principal)
        given = (grant for subject in subjects for grant in self._by_subject.get(subject, ()))
        found = tuple(grant for grant in given if grant.allows(verb, resource))
        if found:
            return Verdict(True, "it was granted", found)
        return Verdict(False, f"no grant to {', '.join(subjects)} gives {verb} on {resource}")

    def is_superuser(self, principal: Principal) -> bool:
        """Tell whether the settings let the principal, or a group that it is in, do everything."""
        return not self._superusers.isdisjoint((str(principal), *principal.groups))

    def is_superuser_name(self, member: str) -> bool:
        """Tell whether the settings let this principal or group do everything."""
        return member in self._superusers

    def grants_of(self, subject: str) -> tuple[Grant, ...]:
        """The grants to a subject, and to the roles that it is in. Those to everyone are nobody's to give."""
        subjects = (subject, *self._roles_of.get(subject, ()))
        return tuple(grant for each in subjects for grant in self._by_subject.get(each, ()))

    def subjects_of(self, principal: Principal) -> tuple[str, ...]:
        """All subjects whose grants are the principal's: itself, its groups, the roles of these, and everyone."""
        names = (str(principal), *sorted(principal.groups))
        return (*names, *self.roles_of(principal), EVERYONE)

    def may_give_somewhere(self, principal: Principal) -> bool:
        """Tell whether it has the verb `grant` on anything."""
        given = (grant for each in self.subjects_of(principal) for grant in self._by_subject.get(each, ()))
        return (
            principal.kind == INTERNAL or self.is_superuser(principal) or any("grant" in each.verbs for each in given)
        )

    def roles_of(self, principal: Principal) -> tuple[str, ...]:
        """The roles that have the principal, or a group that it is in, as a member."""
        names = (str(principal), *sorted(principal.groups))
        return tuple(dict.fromkeys(role for name in names for role in self._roles_of.get(name, ())))


class Caller:
    """Who makes a call, and by which policy it is judged: by none (None), everybody may do everything.

    One object stands for all calls of a credential under one policy: what it was allowed once, it is allowed as long as it is the same.
    `only` are the rights that the credential is limited to, whatever its principal has; `refusals` notes what was missing.
    """

    __slots__ = ("credential", "noted_ms", "only", "policy", "principal", "refusals", "until_ms", "via")

    def __init__(
        self, principal: Principal, policy: Policy | None, *, credential: str = "", until_ms: int | None = None,
        only: tuple[Grant, ...] | None = None, via: Principal | None = None, refusals: Refusals | None = None,
    ) -> None:  # fmt: skip
        self.principal = principal
        self.policy = policy
        self.credential = credential  # its kind and id, for the audit
        self.until_ms = until_ms  # when that ends, since 1970
        self.only = only
        self.via = via
        self.refusals = refusals
        self.noted_ms = float("-inf")  # when its calls were last noted, for operators

    def has(self, verb: str, resource: Resource) -> bool:
        """Tell whether it has a right, enforced or not."""
        if self.policy is None:
            return True
        return self.policy.allows(self.principal, verb, resource) and self._is_within(verb, resource)

    def may(self, verb: str, resource: Resource) -> bool:
        """Tell whether it has a right; where rights are not enforced, it has all."""
        return self.has(verb, resource) or self._is_let_through(verb, resource)

    def why(self, verb: str, resource: Resource) -> Verdict:
        """Tell whether it has a right, and by what."""
        if self.policy is None:
            return Verdict(True, "nobody has to prove who they are, and everybody may do everything")
        verdict = self.policy.why(self.principal, verb, resource)
        if verdict.allowed and not self._is_within(verb, resource):
            return Verdict(False, f"the {self.credential.partition(' ')[0]} is limited to other rights")
        return verdict

    def must(self, verb: str, resource: Resource) -> None:
        """Refuse with `ForbiddenError` what it has no right to. Nobody learns from that whether the resource exists."""
        if not self.may(verb, resource):
            named = str(resource)
            shown = named if named.isprintable() else ascii(named)  # a path may hold anything
            if self.refusals is not None:
                self.refusals.note(str(self.principal), verb, shown)
            raise ForbiddenError(
                f"{self.principal} may not {verb} {shown}", hint=f"Have {verb} on it granted to {self.principal}."
            )

    def may_give(self, verbs: Iterable[str], resource: Resource) -> bool:
        """Tell whether it has all these rights, on all that the resource of a grant covers: nobody gives more than that."""
        return all(self.has(verb, resource) for verb in verbs)

    def may_act_as(self, subject: str) -> bool:
        """Tell whether it has every right that the subject has: for whoever holds a credential of it acts as it.

        What everyone has, and what every principal has on transactions of its own, a caller has too; one that is limited may not.
        """
        if self.policy is None:
            return True
        if self.policy.is_superuser_name(subject):
            return self.only is None and self.policy.is_superuser(self.principal)
        grants = self.policy.grants_of(subject)
        if self.only is not None and subject.partition(":")[0] != ROLE:
            own = Grant(subject, _OF_OWN, Resource("transactions", (subject,)))
            if not all(self._is_within(verb, own.resource) for verb in own.verbs):
                return False
            grants += self.policy.grants_of(EVERYONE)
        return all(self.may_give(grant.verbs, grant.resource) for grant in grants)

    def _is_within(self, verb: str, resource: Resource) -> bool:
        """Tell whether a right is one of those that the credential is limited to."""
        return self.only is None or any(grant.allows(verb, resource) for grant in self.only)

    def _is_let_through(self, verb: str, resource: Resource) -> bool:
        if self.refusals is None or self.refusals.enforced:
            return False
        named = str(resource)
        self.refusals.note(str(self.principal), verb, named if named.isprintable() else ascii(named))
        return True


class Consequence(NamedTuple):
    """The verbs, in alphabetical order, that a subject gains and loses on each resource."""

    subject: str
    gains: tuple[tuple[Resource, tuple[str, ...]], ...]
    loses: tuple[tuple[Resource, tuple[str, ...]], ...]


class Consequences(NamedTuple):
    """The subjects for which something changes, in alphabetical order, and how many more were not looked at."""

    told: tuple[Consequence, ...]
    left_out: int = 0


def consequences(before: Policy, after: Policy, subjects: Iterable[str], grants: Iterable[Grant]) -> Consequences:
    """The consequences for these subjects of one policy in place of the other, which differ in these grants or in who has them.

    A right that somebody has by something else as well is neither gained nor lost. Of a group nobody here knows who is in it.
    """
    named, asked = sorted(set(subjects)), [(each.resource, sorted(each.verbs)) for each in dict.fromkeys(grants)]
    told = (_consequence(before, after, subject, asked) for subject in named[:CHANGES_MAX])
    return Consequences(tuple(each for each in told if each.gains or each.loses), max(0, len(named) - CHANGES_MAX))


def _consequence(
    before: Policy, after: Policy, subject: str, asked: Sequence[tuple[Resource, Sequence[str]]]
) -> Consequence:
    gains, loses = [], []
    for resource, verbs in asked:
        had, has = (
            frozenset(verb for verb in verbs if _has(policy, subject, verb, resource)) for policy in (before, after)
        )
        if has - had:
            gains.append((resource, tuple(sorted(has - had))))
        if had - has:
            loses.append((resource, tuple(sorted(had - has))))
    return Consequence(subject, tuple(gains), tuple(loses))


def _has(policy: Policy, subject: str, verb: str, resource: Resource) -> bool:
    """Tell whether a subject by itself has a right on all that the resource of a grant covers."""
    if policy.is_superuser_name(subject):
        return True
    given = (*policy.grants_of(subject), *(() if subject == EVERYONE else policy.grants_of(EVERYONE)))
    return any(grant.allows(verb, resource) for grant in given)
