"""The directory of one store: its tokens, grants, roles and quotas, as this server knows them, and how they change.

Rows are written first and the version behind them, by check-and-write. A server reads the version every second where others
share its store, and all rows when it has moved, and once a minute anyway: a crash between a row and the version is found by then. What is
in force is one value that never changes, and is replaced as a whole. Rows: docs/formats/system-table.md.

The rows are the leader's. A member that serves while another server leads reads them, and writes none: not even what was used when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from basalt.access.policy import Grant, GrantReader, Policy
from basalt.access.quotas import ROWS as QUOTA_ROWS
from basalt.access.quotas import QuotaLimits, QuotaRow, Quotas
from basalt.access.records import (
    GRANT_USES,
    GRANTS,
    ROLES,
    TOKEN_USES,
    TOKENS,
    VERSION,
    GrantRow,
    GrantUse,
    PolicyVersion,
    RoleRow,
    TokenRow,
    TokenUse,
    grant_id,
)
from basalt.access.sightings import Sightings
from basalt.errors import BasaltError, BusyError, ConflictError, NotFoundError
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.system import SystemTable
from basalt_engine.table import Mutation, Store

TOKENS_MAX = 10_000  # that are not over; logins count too
GRANTS_MAX = 10_000
ROLES_MAX = 1_000
QUOTAS_MAX = 10_000  # subjects that have one of their own
MEMBERS_MAX = 10_000  # of one role
LOGINS_MAX = 100  # of one principal: with more, its oldest one ends
OF_ONE_MAX = 100  # tokens that count, of a principal that rotates: with overlaps it could else make them without end
ENDED_MAX = 10_000  # tokens and logins that are over, and still kept: beyond, those that were made first go
ENDED_DROPPED = 100  # of them at once
CHECK_MS = 1_000  # from one look at the version to the next, where others may change it
READ_MS = 60_000  # from one reading of all rows to the next
REFRESH_SECONDS_MAX = 30  # for one look, which may have to wait behind a change that a slow store holds up
STALE_MS = 60_000  # without a look at the rows: who is not known yet is not let in
LOST_MS = 600_000  # and then nobody is: rights that were taken away must not hold for ever
KEPT_MS = 30 * 86_400_000  # how long a token that is over stays in lists
USE_SAVED_MS = 3_600_000  # uses of a grant are saved this often at most
USERS_MAX = 10  # principals that are kept of a grant's uses
VERSION_TRIES_MAX = 10  # of a change, where others change something at the same time

T = TypeVar("T")

log = logging.getLogger("basalt.access")


@dataclass(frozen=True, slots=True)
class Entries:
    """All rows at one moment, by name, and the policy that follows from them."""

    version: int
    tokens: Mapping[str, TokenRow]
    grants: Mapping[str, GrantRow]
    roles: Mapping[str, RoleRow]
    quotas: Mapping[str, QuotaRow]
    policy: Policy
    parsed: Mapping[str, Grant] = field(repr=False)


class Directory:
    """The entries in force, read and changed. `superusers` are principals and groups that may do everything; `quotas` go by the rows.

    `is_member`: another server changes the rows, and this one only reads them.
    """

    def __init__(
        self, store: Store, clock: Clock, superusers: Iterable[str], quotas: Quotas | None = None, *, is_member: bool = False
    ) -> None:  # fmt: skip
        self.quotas = Quotas(QuotaLimits()) if quotas is None else quotas
        self.sightings = Sightings(clock)
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._is_shared = store.remote or is_member
        self._is_member = is_member
        self._clock = clock
        self._superusers = frozenset(superusers)
        self._changing = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._must_read = False  # a change failed half-way
        self._read_ms = clock.monotonic_ms()  # when all rows were read last
        self._seen_ms = self._read_ms  # when they were last known to be the newest
        self._uses: dict[str, GrantUse] = {}
        self._saved_uses: dict[str, GrantUse] = {}
        self._token_uses: dict[str, TokenUse] = {}
        self._saved_token_uses: dict[str, TokenUse] = {}
        self._uses_are_read = False
        self.entries = Entries(0, {}, {}, {}, {}, Policy((), {}, self._superusers), {})

    # Reading.

    async def start(self) -> None:
        """Read all rows, and look for changes from now on."""
        await self.read()
        self._watch = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        """Look no more, and save what is known of the uses of grants."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
            if self._is_member:
                return
            self._take_uses()
            with suppress(BasaltError, RuntimeError):
                await self._save_uses(everything=True)

    async def read(self) -> None:
        """Read all rows, and put them in force."""
        began_ms = self._clock.monotonic_ms()
        version, tokens, grants, roles, quotas = await self._call.long(self._rows)
        self._take_uses()
        self._put_in_force(version, tokens, grants, roles, quotas)
        self._must_read = False
        self._read_ms = self._seen_ms = began_ms

    async def read_uses(self) -> None:
        """Read when grants and tokens were used last, once: nobody is let in by it, so a start does not wait for it."""
        if self._uses_are_read:
            return
        grants, tokens = await self._call.long(
            lambda: (dict(GRANT_USES.scan(self._system)), dict(TOKEN_USES.scan(self._system)))
        )
        self._saved_uses, self._saved_token_uses = grants, tokens
        self._uses = {**grants, **self._uses}
        self._token_uses = {**tokens, **self._token_uses}
        self._uses_are_read = True

    @property
    def age_ms(self) -> float:
        """The time for which nobody has seen whether there is something newer than what is in force."""
        return self._clock.monotonic_ms() - self._seen_ms if self._is_shared else 0.0

    @property
    def is_stale(self) -> bool:
        """True when it is too old to let anybody in who is not known yet."""
        return self.age_ms > STALE_MS

    async def _keep_fresh(self) -> None:
        try:
            await self.read_uses()
        except Exception as error:  # noqa: BLE001  # whoever asks for them is told; the rows below matter more
            log.warning("when tokens and grants were used cannot be read: %s", str(error) or type(error).__name__)
        while True:
            await asyncio.sleep(CHECK_MS / 1_000)
            try:
                async with asyncio.timeout(REFRESH_SECONDS_MAX):
                    await self._refresh()
            except Exception as error:  # noqa: BLE001  # whatever it is: who looks no more never learns of a revocation
                log.warning("the rows of tokens and grants cannot be read: %s", str(error) or type(error).__name__)
                if self.age_ms > LOST_MS and self.entries.version >= 0:
                    log.error("nobody is let in until they can: they were read last %d s ago", self.age_ms / 1_000)
                    self._put_in_force(-1, {}, {}, {}, {})

    async def _refresh(self) -> None:
        now_ms = self._clock.monotonic_ms()
        async with self._changing:
            if self._must_read or now_ms - self._read_ms >= READ_MS:
                await self.read()
                if not self._is_member:
                    await self._forget_old()
                    await self._save_uses()
            else:
                await self._catch_up()

    async def _catch_up(self) -> None:
        """Read what others have changed, if they have."""
        now_ms = self._clock.monotonic_ms()
        if self._must_read:
            await self.read()
        elif self._is_shared:
            stored = await self._call(VERSION.get, self._system)
            if (0 if stored is None else stored.version) != self.entries.version:
                await self.read()
            else:
                self._seen_ms = now_ms

    def _rows(
        self,
    ) -> tuple[int, dict[str, TokenRow], dict[str, GrantRow], dict[str, RoleRow], dict[str, QuotaRow]]:
        # The version first: what changes while the rows are read makes it move, and is read again.
        stored = VERSION.get(self._system)
        tokens, grants, roles = (
            dict(TOKENS.scan(self._system)), dict(GRANTS.scan(self._system)), dict(ROLES.scan(self._system)),
        )  # fmt: skip
        quotas = dict(QUOTA_ROWS.scan(self._system))
        return 0 if stored is None else stored.version, tokens, grants, roles, quotas

    def _put_in_force(
        self, version: int, tokens: Mapping[str, TokenRow], grants: Mapping[str, GrantRow], roles: Mapping[str, RoleRow],
        quotas: Mapping[str, QuotaRow],
    ) -> None:  # fmt: skip
        self.entries = _entries(version, tokens, grants, roles, quotas, self.entries, self._superusers)
        self.quotas.use({subject: row.limits for subject, row in quotas.items()})

    # Changing.

    async def add_token(self, token_id: str, row: TokenRow) -> None:
        """Keep a new token. `BusyError` where there are too many; a superuser, who is to mend that, gets one all the same."""
        async with self._changing:
            await self._catch_up()
            now_ms = self._clock.now_ms()
            count = sum(not each.is_over(now_ms) for each in self.entries.tokens.values())
            if count >= TOKENS_MAX and not self.entries.policy.is_superuser_name(row.principal):
                raise BusyError(
                    f"there are {TOKENS_MAX} tokens and logins that count, which is the limit",
                    hint="revoke some, or wait until some expire",
                )
            changed = {token_id: row}
            if row.parent:
                changed |= self._logins_to_end(row.principal, now_ms)
            await self._write_tokens(changed)

    async def change_token(self, token_id: str, row: TokenRow) -> None:
        """Keep a token in its new state."""
        async with self._changing:
            await self._catch_up()
            self._must_not_return(token_id, row)
            await self._write_tokens({token_id: row})

    async def rotate_token(self, token_id: str, ending: TokenRow, new_id: str, new: TokenRow) -> None:
        """Keep a token that ends, and the one that takes its place: both, or none is in force."""
        async with self._changing:
            await self._catch_up()
            self._must_not_return(token_id, ending)
            now_ms = self._clock.now_ms()
            others = (row for name, row in self.entries.tokens.items() if name != token_id and not row.parent)
            count = sum(row.principal == new.principal and not row.is_over(now_ms) for row in others)
            if count + 1 + (not ending.is_over(now_ms)) > OF_ONE_MAX:
                raise BusyError(
                    f"{new.principal} has {OF_ONE_MAX} tokens that count, which is the limit for one that rotates",
                    hint="revoke some, or wait until some expire",
                )
            await self._write_tokens({new_id: new, token_id: ending})

    async def add_grant(self, grant: Grant, made_by: str) -> str:
        """Keep a grant, and answer its id. One that is there already stays as it is."""
        verbs = tuple(sorted(grant.verbs))
        name = grant_id(grant.subject, verbs, str(grant.resource))
        async with self._changing:
            await self._catch_up()
            if name in self.entries.grants and await self._call(GRANTS.get, self._system, name) is not None:
                return name
            if len(self.entries.grants) >= GRANTS_MAX:
                raise ConflictError(
                    f"there are {GRANTS_MAX} grants, which is the limit",
                    hint="grant to roles, on namespaces, or with a * behind a name's beginning",
                )
            row = GrantRow(grant.subject, verbs, str(grant.resource), self._clock.now_ms(), made_by)
            await self._write([GRANTS.put(row, name)], grants={**self.entries.grants, name: row})
        return name

    async def remove_grant(self, name: str) -> None:
        """Take a grant back."""
        async with self._changing:
            await self._catch_up()
            self.grant(name)
            kept = {each: row for each, row in self.entries.grants.items() if each != name}
            await self._write([GRANTS.delete(name), GRANT_USES.delete(name)], grants=kept)
            self._uses.pop(name, None)
            self._saved_uses.pop(name, None)

    async def put_role(self, name: str, members: tuple[str, ...], made_by: str) -> None:
        """Keep a role with these members."""
        if len(members) > MEMBERS_MAX:
            raise ConflictError(f"a role has {MEMBERS_MAX} members at most, and {len(members)} were given")
        async with self._changing:
            await self._catch_up()
            if name not in self.entries.roles and len(self.entries.roles) >= ROLES_MAX:
                raise ConflictError(f"there are {ROLES_MAX} roles, which is the limit", hint="remove one")
            row = RoleRow(members, self._clock.now_ms(), made_by)
            await self._write([ROLES.put(row, name)], roles={**self.entries.roles, name: row})

    async def remove_role(self, name: str) -> None:
        """Remove a role. Its grants stay, and are nobody's until there is one of its name again."""
        async with self._changing:
            await self._catch_up()
            self.role(name)
            kept = {each: row for each, row in self.entries.roles.items() if each != name}
            await self._write([ROLES.delete(name)], roles=kept)

    async def put_quota(self, subject: str, limits: QuotaLimits, made_by: str) -> None:
        """Keep the rule of a subject."""
        async with self._changing:
            if subject not in self.entries.quotas and len(self.entries.quotas) >= QUOTAS_MAX:
                raise ConflictError(
                    f"{QUOTAS_MAX} subjects have a quota of their own, which is the limit",
                    hint="set those of groups, roles or everyone, and remove some",
                )
            row = QuotaRow(limits, self._clock.now_ms(), made_by)
            await self._write([QUOTA_ROWS.put(row, subject)], quotas={**self.entries.quotas, subject: row})

    async def remove_quota(self, subject: str) -> None:
        """Remove the rule of a subject."""
        async with self._changing:
            self.quota(subject)
            kept = {each: row for each, row in self.entries.quotas.items() if each != subject}
            await self._write([QUOTA_ROWS.delete(subject)], quotas=kept)

    def token(self, token_id: str) -> TokenRow:
        """The token of this id; `NotFoundError`."""
        return _found(self.entries.tokens, token_id, "token")

    def grant(self, name: str) -> GrantRow:
        """The grant of this id; `NotFoundError`."""
        return _found(self.entries.grants, name, "grant")

    def role(self, name: str) -> RoleRow:
        """The role of this name; `NotFoundError`."""
        return _found(self.entries.roles, name, "role")

    def quota(self, subject: str) -> QuotaRow:
        """The rule of this subject; `NotFoundError`."""
        return _found(self.entries.quotas, subject, "quota")

    def use_of(self, name: str) -> GrantUse | None:
        """The last use of a grant, about to the minute, and by whom; None: never used, as far as is known."""
        self._take_uses()
        return self._uses.get(name)

    def token_use_of(self, token_id: str) -> TokenUse | None:
        """The last use of a token, about to the second; None: never used, as far as is known."""
        self._take_uses()
        return self._token_uses.get(token_id)

    def would_be(
        self, *, grants: Mapping[str, GrantRow] | None = None, roles: Mapping[str, RoleRow] | None = None
    ) -> Policy:
        """The policy that there would be with these rows in place of those in force. Those that are not given stay."""
        now = self.entries
        return _entries(
            now.version, now.tokens, now.grants if grants is None else grants, now.roles if roles is None else roles,
            now.quotas, now, self._superusers,
        ).policy  # fmt: skip

    def _logins_to_end(self, principal: str, now_ms: int) -> dict[str, TokenRow]:
        mine = [
            (row.created_ms, name, row)
            for name, row in self.entries.tokens.items()
            if row.parent and row.principal == principal and not row.is_over(now_ms)
        ]
        ended = sorted(mine, key=lambda each: each[:2])[: max(0, len(mine) + 1 - LOGINS_MAX)]
        return {name: msgspec.structs.replace(row, revoked_ms=now_ms) for _, name, row in ended}

    def _must_not_return(self, token_id: str, row: TokenRow) -> None:
        """Refuse to write a row that was made of what was known before the token was revoked."""
        if self.token(token_id).revoked_ms is not None and row.revoked_ms is None:
            raise ConflictError(f"token {token_id} was revoked in the meantime", hint="make a new one")

    async def _write_tokens(self, changed: Mapping[str, TokenRow]) -> None:
        tokens = {**self.entries.tokens, **changed}
        mutations: list[Mutation] = [TOKENS.put(row, name) for name, row in changed.items()]
        for name in self._too_many_ended(tokens):
            del tokens[name]
            mutations += self._forget_token(name)
        await self._write(mutations, tokens=tokens)

    def _too_many_ended(self, tokens: Mapping[str, TokenRow]) -> list[str]:
        if len(tokens) <= ENDED_MAX:
            return []
        now_ms = self._clock.now_ms()
        ended = sorted((row.created_ms, name) for name, row in tokens.items() if row.is_over(now_ms))
        return [name for _, name in ended[: ENDED_DROPPED if len(ended) > ENDED_MAX else 0]]

    async def _write(
        self, mutations: list[Mutation], *, tokens: Mapping[str, TokenRow] | None = None,
        grants: Mapping[str, GrantRow] | None = None, roles: Mapping[str, RoleRow] | None = None,
        quotas: Mapping[str, QuotaRow] | None = None,
    ) -> None:  # fmt: skip
        """Write rows and then the version, and put them in force here. Those that are not given stay."""
        before = self.entries
        self._must_read = True  # unless all of it comes to pass
        version = await self._call.write(self._write_rows, mutations)
        if version != before.version + 1:
            await self.read()  # others changed something, too
            return
        self._take_uses()
        self._put_in_force(
            version,
            before.tokens if tokens is None else tokens,
            before.grants if grants is None else grants,
            before.roles if roles is None else roles,
            before.quotas if quotas is None else quotas,
        )
        self._must_read = False

    def _write_rows(self, mutations: list[Mutation]) -> int:
        self._system.write_all(mutations)
        for _ in range(VERSION_TRIES_MAX):
            stored = VERSION.get(self._system)
            new = PolicyVersion(1 if stored is None else stored.version + 1, self._clock.now_ms())
            old = None if stored is None else VERSION.encode(stored)
            if self._system.replace(VERSION.kind, VERSION.name, old, VERSION.encode(new)):
                return new.version
        raise BusyError(
            "other servers change tokens and grants at the same time; the rows are written, and count within a minute",
            hint="send the call again",
        )

    # What ends, and what is used.

    async def _forget_old(self) -> None:
        before_ms = self._clock.now_ms() - KEPT_MS
        old = [
            name
            for name, row in self.entries.tokens.items()
            if (row.revoked_ms or before_ms) < before_ms or (row.expire_ms or before_ms) < before_ms
        ]
        if old:
            kept = {name: row for name, row in self.entries.tokens.items() if name not in set(old)}
            await self._write([each for name in old for each in self._forget_token(name)], tokens=kept)

    def _forget_token(self, name: str) -> list[Mutation]:
        self._token_uses.pop(name, None)
        was_saved = self._saved_token_uses.pop(name, None) is not None
        return [TOKENS.delete(name), *([TOKEN_USES.delete(name)] if was_saved else [])]

    def _take_uses(self) -> None:
        """Note which tokens were used, and which grants allowed something under the policy in force."""
        for name, token_use in self.sightings.take_tokens().items():
            if name in self.entries.tokens:
                self._token_uses[name] = token_use
        uses, now_ms = self.entries.policy.uses, self._clock.now_ms()
        for grant, principals in uses.items():
            name = grant_id(grant.subject, grant.verbs, str(grant.resource))
            if name not in self.entries.grants:
                continue
            before = self._uses.get(name)
            known = sorted(principals) + [
                each for each in (before.principals if before else ()) if each not in principals
            ]
            self._uses[name] = GrantUse(now_ms, tuple(known[:USERS_MAX]))
        uses.clear()

    async def _save_uses(self, *, everything: bool = False) -> None:
        def is_old(use: GrantUse | TokenUse, saved: GrantUse | TokenUse | None) -> bool:
            return saved is None or use.used_ms - saved.used_ms >= USE_SAVED_MS or (everything and use != saved)

        grants = {name: use for name, use in self._uses.items() if is_old(use, self._saved_uses.get(name))}
        # Of a login nobody asks later: it lasts for hours, and there are many.
        tokens = {
            name: use
            for name, use in self._token_uses.items()
            if not self._is_login(name) and is_old(use, self._saved_token_uses.get(name))
        }
        if grants or tokens:
            puts: list[Mutation] = [GRANT_USES.put(use, name) for name, use in grants.items()]
            puts += [TOKEN_USES.put(use, name) for name, use in tokens.items()]
            await self._call.write(self._system.write_all, puts)
            self._saved_uses |= grants
            self._saved_token_uses |= tokens

    def _is_login(self, token_id: str) -> bool:
        row = self.entries.tokens.get(token_id)
        return row is None or bool(row.parent)


def _entries(
    version: int, tokens: Mapping[str, TokenRow], grants: Mapping[str, GrantRow], roles: Mapping[str, RoleRow],
    quotas: Mapping[str, QuotaRow], before: Entries, superusers: frozenset[str],
) -> Entries:  # fmt: skip
    """The entries of these rows. What was parsed before is not parsed again: there may be ten thousand grants.

    Where tokens alone have changed, as with each login, the policy stays, and what it has found.
    """
    if grants is before.grants and roles is before.roles:
        return Entries(version, tokens, grants, roles, quotas, before.policy, before.parsed)
    known, read = before.parsed, GrantReader()
    parsed = {name: known.get(name) or read(row.subject, row.verbs, row.resource) for name, row in grants.items()}
    members = {name: row.members for name, row in roles.items()}
    return Entries(version, tokens, grants, roles, quotas, Policy(parsed.values(), members, superusers), parsed)


def _found(rows: Mapping[str, T], name: str, word: str) -> T:
    found = rows.get(name)
    if found is None:
        raise NotFoundError(f"there is no {word} {name[:80]!r}", field=word, hint=f"list them: basalt {word} list")
    return found
