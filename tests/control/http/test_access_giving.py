"""Nobody rises by giving: whatever callers do over HTTP, nobody gains a right that the one who acted did not have.

A machine of Hypothesis lets principals give, take, make tokens, rotate, log in, and put members into roles. Before and after each act it
asks what each credential may do: what is new must be a part of what the credential that acted could do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from basalt.access import failed_proofs
from basalt.access.policy import Caller
from basalt.access.resources import KINDS, VERBS, parse_resource
from basalt.errors import UnauthenticatedError
from basalt.server.wiring import open_services
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from tests.control.http.asker import ASKED, BOOTSTRAP
from tests.control.http.conftest import Client, Reply

NAMES = st.sampled_from(["a", "b", "c", "*"])
SUBJECTS = st.sampled_from(["token:a", "token:b", "token:c", "role:r", "role:s", "everyone"])
MEMBERS = st.lists(st.sampled_from(["token:a", "token:b", "token:c"]), max_size=2)
THINGS = [
    "cluster", "namespace:n", "topic:n:a", "topic:n:ab", "topic:m:a", "table:n:a", "session:a", "session:ab",
    "transactions:token:a", "transactions:token:b", "*",
]  # fmt: skip
GIVEN = st.sampled_from(
    [*THINGS, "namespace:*", "topic:n:*", "topic:n:a*", "session:*", "transactions:*", "transactions:token:*"]
)
ACTORS = st.integers(0, 7)
UNIVERSE = tuple(
    (verb, parse_resource(thing)) for thing in THINGS for verb in VERBS if verb in KINDS[thing.partition(":")[0]].verbs
)
OWN = {
    f"token:{name}": {(verb, parse_resource(f"transactions:token:{name}")) for verb in ("observe", "transact")}
    for name in "abc"
}


def rights_on(verbs: Any, resource: str) -> dict[str, object]:
    return {
        "verbs": sorted(set(verbs) & set(KINDS[resource.partition(":")[0]].verbs)) or ["grant"],
        "resource": resource,
    }


GRANTS = st.builds(rights_on, st.sets(st.sampled_from(sorted(VERBS)), min_size=1, max_size=3), GIVEN)
ONLY = st.one_of(st.none(), st.none(), st.lists(GRANTS, max_size=2))


@pytest.fixture(autouse=True, scope="module")
def every_credential_is_looked_at() -> Iterator[None]:
    """However many bad ones an address sends: that limit has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failed_proofs, "FAILED_PER_S_MAX", 1_000_000)
        yield


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        services = self.runner.run(open_services(ASKED, None, store=MemoryStore(), clock=self.clock))
        self.client = Client(services, self.runner)
        self.credentials: list[str] = []

    def teardown(self) -> None:
        self.runner.run(self.client.services.close())
        self.runner.close()

    def ask(self, token: str, method: str, path: str, body: object = b"") -> Reply:
        return self.client.call(method, path, body, Authorization=f"Bearer {token}")

    def caller(self, token: str) -> Caller | None:
        headers = {b"authorization": f"Bearer {token}".encode()}
        authentication = self.client.services.authentication
        assert authentication is not None
        try:
            return authentication.identify(headers, None, self.client.clock.monotonic_ms()).caller
        except UnauthenticatedError:
            return None

    def rights(self, token: str) -> set[Any]:
        caller = self.caller(token)
        return set() if caller is None else {right for right in UNIVERSE if caller.has(*right)}

    def act(self, actor: int, method: str, path: str, body: object = b"") -> Reply:
        """One act; the reply, once it is sure that nobody has gained what the actor does not have."""
        token = self.credentials[actor % len(self.credentials)]
        acting = self.caller(token)
        own, before = self.rights(token), {each: self.rights(each) for each in self.credentials}
        if (
            acting is not None and acting.only is None
        ):  # whoever makes a principal's tokens acts on its transactions, too
            own = own.union(*OWN.values())
        reply = self.ask(token, method, path, body)
        assert reply.status < 500, reply.body
        if reply.status == 200 and "token" in reply.json():
            made = reply.json()["token"]
            before[made] = set()
            self.credentials.append(made)
        for each, had in before.items():
            gained = self.rights(each) - had
            assert gained <= own, f"{method} {path} {body} gave {gained - own}"
            assert reply.status == 200 or not gained
        return reply

    @initialize(grants=st.lists(st.tuples(SUBJECTS, GRANTS), min_size=1, max_size=6), roles=st.tuples(MEMBERS, MEMBERS),
                limits=st.tuples(ONLY, ONLY, ONLY))  # fmt: skip
    def what_superusers_give(self, grants: Any, roles: Any, limits: Any) -> None:
        for subject, rights in [*grants, ("token:a", rights_on({"grant"}, "cluster"))]:
            assert self.ask(BOOTSTRAP, "POST", "/v1/admin/grants", {"subject": subject, **rights}).status == 200
        for name, members in zip("rs", roles, strict=True):
            assert self.ask(BOOTSTRAP, "PUT", f"/v1/admin/roles/{name}", {"members": members}).status == 200
        for name, only in (
            *((name, None) for name in "abc"),
            *zip("abc", limits, strict=True),
            ("bootstrap", limits[0] or []),
        ):
            made = self.ask(BOOTSTRAP, "POST", "/v1/admin/tokens", {"name": name, "only": only})
            self.credentials.append(made.json()["token"])

    @rule(actor=ACTORS, subject=SUBJECTS, rights=GRANTS)
    def give(self, actor: int, subject: str, rights: dict[str, object]) -> None:
        self.act(actor, "POST", "/v1/admin/grants", {"subject": subject, **rights})

    @rule(actor=ACTORS, which=st.integers(0, 9))
    def take(self, actor: int, which: int) -> None:
        grants = sorted(self.client.services.directory.entries.grants)
        if grants:
            self.act(actor, "DELETE", f"/v1/admin/grants/{grants[which % len(grants)]}")

    @rule(actor=ACTORS, name=st.one_of(NAMES, st.just("bootstrap")), only=ONLY)
    def make_token(self, actor: int, name: str, only: object) -> None:
        self.act(actor, "POST", "/v1/admin/tokens", {"name": name, "only": only})

    @rule(actor=ACTORS, which=st.integers(0, 9), overlap_ms=st.sampled_from([0, 1_000]))
    def rotate(self, actor: int, which: int, overlap_ms: int) -> None:
        token_id = self.credentials[which % len(self.credentials)].split("_")[1]
        self.act(actor, "POST", f"/v1/admin/tokens/{token_id}/rotate", {"overlapMs": overlap_ms})

    @rule(actor=ACTORS, which=st.integers(0, 9))
    def revoke(self, actor: int, which: int) -> None:
        if len(self.credentials) > 7:  # who have none do nothing
            self.act(
                actor, "DELETE", f"/v1/admin/tokens/{self.credentials[which % len(self.credentials)].split('_')[1]}"
            )

    @rule(actor=ACTORS)
    def log_in(self, actor: int) -> None:
        self.act(actor, "POST", "/v1/auth/logins", {"ttlMs": 5_000})

    @rule(actor=ACTORS, name=st.sampled_from(["r", "s", "t"]), members=MEMBERS)
    def put_role(self, actor: int, name: str, members: list[str]) -> None:
        self.act(actor, "PUT", f"/v1/admin/roles/{name}", {"members": members})

    @rule(actor=ACTORS, name=st.sampled_from(["r", "s", "t"]))
    def remove_role(self, actor: int, name: str) -> None:
        self.act(actor, "DELETE", f"/v1/admin/roles/{name}")

    @rule(ms=st.integers(1, 3_000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis.settings(max_examples=60, stateful_step_count=20, deadline=None)
