"""Measures what it costs to ask who calls: of each call, with many grants, of a change, and of a start."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TypeAlias

from basalt.access.policy import parse_grant
from basalt.access.proofs.token import draw_token
from basalt.access.records import GRANTS, TOKENS, VERSION, GrantRow, PolicyVersion, TokenRow, grant_id
from basalt_engine.stores.rocks.store import RocksStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Mutation
from bench import processes
from bench.figures import Figure
from bench.load import drive, request, turns
from bench.setting_up import NAMESPACE, cpu_us_per, path, publish_request

ROUNDS = 25  # in turns, short ones: what else runs on the machine spoils some of them
CHANGES = 9
CLIENTS = 16
BOOTSTRAP = "b" * 64
MANY, FEW = 9_900, 10  # the limit is 10,000 grants, and some are added here
PRINCIPALS = 100  # that publish in turn
CHANGE_MS_MAX = 100.0

Asked: TypeAlias = tuple[processes.Process, list[bytes]]  # a server, and the requests that it gets in turn


def authorized(data: bytes, token: str) -> bytes:
    """The request with a token."""
    line, _, rest = data.partition(b"\r\n")
    return b"%s\r\nauthorization: Bearer %s\r\n%s" % (line, token.encode(), rest)


def asking(folder: Path) -> tuple[str, ...]:
    """The settings of a server that asks everybody for a token."""
    file = folder / "bootstrap-token"
    file.write_text(BOOTSTRAP)
    file.chmod(0o600)
    return "auth.kinds=token", f"auth.bootstrap_token_file={file}"


def call(server: processes.Process, method: str, target: str, body: object = None) -> object:
    """One call of the first superuser."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"authorization": f"Bearer {BOOTSTRAP}", "content-type": "application/json"}
    connection.request(method, target, b"" if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(content[:500].decode(errors="replace"))
    return json.loads(content) if content else None


def tokens(folder: Path, quick: bool) -> Iterator[Figure]:
    """Publish and poll with a token, against the same calls of a server that asks nobody."""
    calls = 400 if quick else 1_600
    with ExitStack() as stack:
        plain = stack.enter_context(processes.basalt(folder / "plain"))
        asks = stack.enter_context(processes.basalt(folder / "asks", *asking(folder)))
        body = publish_request("one", 1)
        for server, token in ((plain, ""), (asks, BOOTSTRAP)):
            puts = [request(path(topic), b"", "application/json", "PUT") for topic in ("one", "few")]
            for data in (*puts, publish_request("few", 10)):
                drive(server.port, 1, 1, authorized(data, token) if token else data)
            drive(server.port, CLIENTS, 2_000, authorized(body, token) if token else body)
        token = _token(asks, "etl", ["read", "write"], f"namespace:{NAMESPACE}")
        poll = request(path("few", "/poll"), b'{"limit":10}', "application/json")
        for what, data in (("publish", body), ("poll", poll)):
            ours, theirs = _least((asks, [authorized(data, token)]), (plain, [data]), calls)
            yield Figure(
                f"CPU per {what} with a token", ours, "us", "us without authentication", theirs, 1.03, at_most=True
            )


def _token(server: processes.Process, name: str, verbs: list[str], resource: str) -> str:
    call(server, "POST", "/v1/admin/grants", {"subject": f"token:{name}", "verbs": verbs, "resource": resource})
    made = call(server, "POST", "/v1/admin/tokens", {"name": name})
    assert isinstance(made, dict)
    return str(made["token"])


def _least(ours: Asked, theirs: Asked, calls: int) -> tuple[float, float]:
    """The processor microseconds per call of two servers, each with its requests, in the round in which least else ran beside them."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + 1):
        for which in ((0, 1), (1, 0))[turn % 2]:
            server, requests = (ours, theirs)[which]
            before_s = server.cpu_s()
            drive(server.port, CLIENTS, calls, turns(requests))
            if turn:  # the first round finds its memory
                found[which].append(cpu_us_per(server, before_s, calls))
    return min(found[0]), min(found[1])


def grants(folder: Path, quick: bool) -> Iterator[Figure]:
    """Many principals that publish, with ten thousand grants and tokens against ten; then a change, and a start, with them."""
    calls = 400 if quick else 1_600
    many = 1_000 if quick else MANY
    servers: list[Asked] = []
    with ExitStack() as stack:
        for count in (many, FEW):
            data = folder / f"grants-{count}"
            given = filled(data, count)
            server = stack.enter_context(processes.basalt(data, *asking(folder)))
            call(server, "PUT", path("one"))
            body = publish_request("one", 1)
            chosen = given[:: max(1, len(given) // PRINCIPALS)]
            servers.append((server, [authorized(body, token) for token in chosen]))
        with_many, with_few = _least(servers[0], servers[1], calls)
        yield Figure(
            f"CPU per publish, {many:,} grants and tokens, {len(servers[0][1])} callers", with_many, "us",
            f"us with {FEW}", with_few, 1.05, at_most=True,
        )  # fmt: skip
        for what, change in (("grant", _grant), ("token", _new_token)):
            times: tuple[list[float], list[float]] = ([], [])
            for number in range(CHANGES):
                for which, (server, _) in enumerate(servers):
                    start = time.perf_counter()
                    change(server, number)
                    times[which].append((time.perf_counter() - start) * 1_000)
            yield Figure(
                f"one more {what} with {many:,} grants and tokens", median(times[0]), "ms", "ms", CHANGE_MS_MAX, 1.0, at_most=True,
                note=f"{median(times[1]):.1f} ms with {FEW}",
            )  # fmt: skip
    with processes.basalt(folder / f"grants-{many}", *asking(folder)) as server:
        many_s = server.start_s
    with processes.basalt(folder / f"grants-{FEW}", *asking(folder)) as server:
        yield Figure(
            f"start with {many:,} grants and tokens", many_s, "s", f"s with {FEW}", server.start_s, 1.5, at_most=True
        )


def _grant(server: processes.Process, number: int) -> None:
    asked = {"subject": f"token:new-{number}", "verbs": ["read"], "resource": f"topic:{NAMESPACE}:one"}
    call(server, "POST", "/v1/admin/grants", asked)


def _new_token(server: processes.Process, number: int) -> None:
    call(server, "POST", "/v1/admin/tokens", {"name": f"new-{number}"})


def filled(data: Path, count: int) -> list[str]:
    """A store with so many principals, each with a token and a grant. Over HTTP each would be two synced writes."""
    store = RocksStore.open(data)
    system = SystemTable(store.table(SystemTable.name))
    rows: list[Mutation] = [VERSION.put(PolicyVersion(1, 0))]
    texts = []
    for number in range(count):
        new, subject = draw_token(), f"token:etl-{number}"
        grant = parse_grant(subject, ["read", "write"], f"namespace:{NAMESPACE}")
        verbs, resource = tuple(sorted(grant.verbs)), str(grant.resource)
        rows.append(TOKENS.put(TokenRow(subject, new.digest, 0, None), new.id))
        rows.append(
            GRANTS.put(GrantRow(subject, verbs, resource, 0, "token:bootstrap"), grant_id(subject, verbs, resource))
        )
        texts.append(new.text)
    system.write_all(rows)
    store.close()
    return texts
