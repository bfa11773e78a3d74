"""The matrix: every call of the table of operations, with every kind of credential, on what is there and what is not.

Each credential is a real one, that goes through authentication; what it may do is in the store. Calls that are let through are sent with a
parameter that no call has, so that none does anything: they answer 400. What a body names is in test_route_table_rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from basalt.access import failed_proofs
from basalt.access.policy import parse_grant
from basalt.access.proofs.token import NewToken, draw_token
from basalt.access.records import Rights, TokenRow
from basalt.access.resources import VERBS
from basalt.http.app import OPERATIONS, build_app
from basalt.http.routes.route_table import Operation
from basalt.settings import Settings
from tests.control.http.asker import ASKED, BOOTSTRAP
from tests.control.http.conftest import Client, Reply
from tests.control.http.test_route_table_rights import (
    EXAMPLES,
    IMPLYING,
    NONSENSE,
    Example,
    World,
    called,
    declared,
    filled,
    made,
    operation_of,
)

ALL = tuple(VERBS)
ELSEWHERE = (
    ("namespace:shop2", ("read", "write", "manage", "inspect", "grant")),
    ("topic:shop:orders2", ("read", "write", "manage", "inspect")),
    ("group:shop:orders:billing2", ("read", "write", "manage")),
    ("table:shop:accounts2", ("read", "write", "manage")),
    ("session:s2", ("manage", "transact")),
    ("transactions:token:other", ("transact",)),
)
Has = Callable[[str, str], bool]


class Sent(NamedTuple):
    """What a caller sends as Authorization, and whether that gives a verb on the resources of a kind; None: it proves nothing."""

    name: str
    authorization: str | None
    has: Has | None
    reason: str = ""


def having(verbs: set[str]) -> Has:
    return lambda verb, kind: verb in verbs or (verb == "observe" and bool(verbs & IMPLYING.get(kind, set())))


class Server:
    """One server that asks everybody, and its tokens."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._asks, client.services.authentication = client.services.authentication, None  # until everything is there
        client.app = build_app(client.services)

    def ask_everybody(self) -> None:
        """From now on, callers have to prove who they are."""
        self.client.services.authentication = self._asks
        self.client.app = build_app(self.client.services)

    def token(self, new: NewToken, principal: str, **more: object) -> None:
        row = TokenRow(**{"principal": principal, "digest": new.digest, "created_ms": 0, "expire_ms": None, **more})
        self.client.run(self.client.services.directory.add_token(new.id, row))

    def grant(self, principal: str, verbs: tuple[str, ...], resource: str = "*") -> None:
        self.client.run(self.client.services.directory.add_grant(parse_grant(principal, verbs, resource), "test"))


class Matrix:
    """A server that has everything, one that has nothing, and callers that both know."""

    def __init__(self, full: Client, empty: Client) -> None:
        self._servers = Server(full), Server(empty)
        self.full = made(full)
        self.empty = World(empty, self.full.names)
        self.sent = list(self._callers())
        for server in self._servers:
            server.ask_everybody()

    def _callers(self) -> Iterator[Sent]:
        yield Sent("no credential", None, None, "the call has no credential, and this server asks who calls")
        for each in ("Bearer nonsense", "Basic YTpi", f"Bearer {draw_token().text}", "Bearer", f"Bearer {BOOTSTRAP}x"):
            yield Sent(each, each, None, "the credential is invalid")
        yield self._token("expired", "token:all", None, "the token is expired", expire_ms=1)
        yield self._token("revoked", "token:all", None, "the token is revoked", revoked_ms=1)
        yield self._token("from elsewhere", "token:all", None, "the credential is invalid", networks=("10.0.0.0/8",))
        yield self._token("login of none", "token:all", None, "the token is revoked: that from which it was made is gone",
                          parent="gone", parent_is_token=True)  # fmt: skip
        self._grant("token:all", ALL)
        yield self._token("without rights", "token:nobody", having(set()))
        for resource, verbs in ELSEWHERE:
            self._grant("token:foreign", verbs, resource)
        yield self._token("foreign", "token:foreign", having(set()))
        for verb in VERBS:
            self._grant(f"token:{verb}", (verb,))
            yield self._token(f"{verb} alone", f"token:{verb}", having({verb}))
            others = set(VERBS) - {verb}
            self._grant(f"token:but-{verb}", tuple(others))
            yield self._token(f"all but {verb}", f"token:but-{verb}", having(others))
            only = (Rights((verb,), "*"),)
            yield self._token(f"limited to {verb}", "token:all", having({verb}), only=only)
            yield self._token(f"a superuser's, limited to {verb}", "token:bootstrap", having({verb}), only=only)
        yield self._token("limited to nothing", "token:all", having(set()), only=())
        yield Sent("superuser", f"bearer {BOOTSTRAP}", lambda verb, kind: True)

    def _token(self, name: str, principal: str, has: Has | None, reason: str = "", **more: object) -> Sent:
        new = draw_token()
        for server in self._servers:
            server.token(new, principal, **more)
        return Sent(name, f"Bearer {new.text}", has, reason)

    def _grant(self, principal: str, verbs: tuple[str, ...], resource: str = "*") -> None:
        for server in self._servers:
            server.grant(principal, verbs, resource)

    def ask(self, sent: Sent, method: str, path: str) -> tuple[Reply, Reply]:
        """What both answer."""
        target = path.format_map(self.full.names) + (NONSENSE if method != "OPTIONS" else "")
        headers = {} if sent.authorization is None else {"Authorization": sent.authorization}
        there, absent = (
            each.client.call(method, target, b"{", Basalt_Request_Id="r", **headers) for each in (self.full, self.empty)
        )
        return there, absent

    def stored(self) -> tuple[object, object]:
        return self.full.stored(), self.empty.stored()


@pytest.fixture(autouse=True, scope="module")
def every_credential_is_looked_at() -> Iterator[None]:
    """However many bad ones an address sends: that limit has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failed_proofs, "FAILED_PER_S_MAX", 1_000_000)
        yield


@pytest.fixture(scope="module")
def matrix(open_client: Callable[[Settings, bool], Client]) -> Matrix:
    return Matrix(open_client(ASKED, True), open_client(ASKED, True))


def expected(operation: Operation, sent: Sent) -> int:
    """The status of the answer to this caller."""
    if sent.has is None:
        return 400 if operation.needs.is_public and sent.authorization is None else 401
    rights = [(right.verb, right.kind) for right in operation.needs.rights]
    on_transaction = getattr(operation.needs, "on_transaction", None)
    if on_transaction is not None:
        rights.append((on_transaction, "transactions"))
    return 400 if all(sent.has(*right) for right in rights) else 403


@pytest.mark.parametrize("operation", OPERATIONS, ids=called)
def test_every_caller_is_answered_as_the_table_says_and_who_is_refused_learns_and_changes_nothing(
    operation: Operation, matrix: Matrix
):
    before = matrix.stored()
    for sent in matrix.sent:
        for method in (operation.method, *(["HEAD"] if operation.method == "GET" else [])):
            replies = there, absent = matrix.ask(sent, method, operation.path)
            status = expected(operation, sent)
            assert [each.status for each in replies] == [status, status], (sent.name, method)
            challenge = 'Bearer realm="basalt"' if status == 401 else None
            assert [each.header("www-authenticate") for each in replies] == [challenge] * 2, sent.name
            if status == 400:
                continue
            assert there == absent, sent.name
            assert matrix.stored() == before, sent.name
            if method != "HEAD":
                shown = there.json()
                assert shown["code"] == ("unauthenticated" if status == 401 else "forbidden"), sent.name
                assert status == 403 or shown["detail"] == sent.reason, sent.name
    assert matrix.stored() == before


@pytest.mark.parametrize("path", sorted({each.path for each in OPERATIONS}))
def test_methods_are_told_to_everybody_but_who_brings_a_bad_credential(path: str, matrix: Matrix):
    for sent in matrix.sent:
        is_bad = sent.has is None and sent.authorization is not None
        assert [each.status for each in matrix.ask(sent, "OPTIONS", path)] == [401 if is_bad else 204] * 2, sent.name


def test_paths_and_methods_that_are_none_are_told_to_who_proves_who_they_are(matrix: Matrix):
    for sent in matrix.sent:
        for method, path, status in (("GET", "/v1/no/such/call", 404), ("PATCH", "/v1/auth/whoami", 405)):
            wanted = 401 if sent.has is None else status
            assert [each.status for each in matrix.ask(sent, method, path)] == [wanted] * 2, sent.name


# What a body names: exactly the rights that are declared are enough.


class Own(NamedTuple):
    """A world whose server asks everybody, and a caller there."""

    world: World
    server: Server

    def may_do(self, rights: set[str]) -> str:
        """A token of somebody who has these rights and no other."""
        new = draw_token()
        principal = f"token:{new.id}"
        self.server.token(new, principal)
        for right in sorted(rights):
            verb, resource = right.split(" ")
            self.server.grant(principal, (verb,), resource)
        return new.text

    def ask(self, example: Example, token: str) -> Reply:
        method, path = example.call.split(" ")
        body = filled(example.body, self.world.names)
        media_type = "avro/binary" if isinstance(body, bytes) and body else None
        target = path.format_map(self.world.names) + example.query.format_map(self.world.names)
        return self.world.client.call(method, target, body, media_type, Authorization=f"Bearer {token}")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each.call} {each.rights[0]}")
def test_the_rights_that_are_declared_are_enough_and_with_one_less_nothing_is_done(
    example: Example, connect: Callable[[Settings], Client]
):
    client = connect(ASKED)
    server = Server(client)
    own = Own(made(client), server)
    server.ask_everybody()
    rights = {*declared(operation_of(example), own.world.names), *example.rights}
    if example.call.endswith("/commit"):
        rights |= {"write topic:shop:orders", "write table:shop:accounts", "read group:shop:orders:billing",
                   "read topic:shop:orders"}  # fmt: skip  # what was done in the transaction before
    for missing in sorted(rights):
        token = own.may_do(rights - {missing})
        before = own.world.stored()
        reply = own.ask(example, token)
        if missing.startswith("observe") and reply.status == 200:
            continue  # which another one implies
        assert (reply.status, reply.code) == (403, "forbidden"), (missing, reply.body)
        assert " transactions:" in missing or f" may not {missing}" in reply.json()["detail"]
        assert own.world.stored() == before
    token = own.may_do(rights)
    reply = own.ask(example, token)
    assert reply.status == 200 or reply.code in ("claim_lost", "conflict", "group_exists"), reply.body
