"""Basalt before a real HBase that asks for Kerberos: gateways of each quality of protection, HBase's access control, and tickets that end.

That no byte is taken which was changed on the way is shown in tests/engine/stores/hbase, with a gateway that does so.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import basalt
from basalt.cli.failures import EXIT_CONFLICT, EXIT_UNAVAILABLE
from basalt.pruning.rule import Cause
from basalt.settings import load_settings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase.kerberos import Kerberos, KerberosLogin, Quality
from basalt_engine.stores.hbase.regions import UNKNOWN_ORIGIN, StoreFile
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_spark.jobs.audits import TABLES, HBaseRows
from tests.control.cli.conftest import Ran, Run, run
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS, failed_writer
from tests.hbase.secured import ADMINISTRATOR, HOST, OWN, QUALITIES, STRANGER, USER, SecuredHBase
from tests.hbase.server_pair import until
from tests.hbase.test_pruning import report_all
from tests.system.command_line import RUN_SECONDS_MAX
from tests.system.server_process import ServerProcess
from tests.wiring import A, Wired

__all__ = ["run"]  # the fixture is for these tests, too

pytestmark = pytest.mark.hbase

LARGE_BYTES = 500_000  # several frames of what a gateway takes at once
TICKET_SECONDS = 3
TICKETS = 4  # so many are got, one after the other, while messages are published
LEASE_MS = 6_000
JSON = {"Content-Type": "application/json", "Accept": "application/json"}

Admin = Callable[..., Ran]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def admin(run: Run, secured_hbase: SecuredHBase) -> Admin:
    """`basalt hbase …` by somebody. What it makes is gone with the HBase."""

    def command(*arguments: str, who: str, prefix: str, quality: Quality = OWN) -> Ran:
        return run("hbase", *arguments, *secured_hbase.options(prefix, who, quality))

    return command


@pytest.fixture
def tables(admin: Admin, secured_hbase: SecuredHBase) -> str:
    """The prefix of tables without the coprocessor, for the tests that do not mind each other, with the rights of a server."""
    name = "shared"
    if admin("install", "--no-coprocessor", "--dry-run", "-o", "json", who=ADMINISTRATOR, prefix=name).out.count(
        "create"
    ):
        assert admin("install", "--no-coprocessor", who=ADMINISTRATOR, prefix=name).code == 0
        granted(secured_hbase, admin("install", "--print-grants", who=USER, prefix=name))
    return name


def granted(hbase: SecuredHBase, ran: Ran) -> None:
    """An administrator enters what a command printed for the HBase shell."""
    assert ran.code == 0, ran.err
    for line in ran.out.splitlines():
        match = re.fullmatch(r"grant '(.+)', '([RWXCA]+)', '(.+)'", line)
        assert match is not None, line
        hbase.grant(match[3].encode(), match[1], match[2])


@contextmanager
def serving(folder: Path, options: list[str], **environment: str) -> Iterator[ServerProcess]:
    server = ServerProcess(folder)
    server.launch(
        "--set", "store.kind=hbase", "--set", f"leader.lease_ms={LEASE_MS}", *options, environment=environment
    )
    try:
        server.wait_until_ready()
        until(lambda: server.ask("GET", "/readyz?leader=true").status == 200, server)
        yield server
    finally:
        server.kill()


def levels(ran: Ran) -> dict[str, str]:
    return {line["name"]: line["level"] for line in json.loads(ran.out)}


@pytest.mark.parametrize("quality", QUALITIES)
def test_a_server_runs_by_the_grants_that_are_printed_for_it(
    secured_hbase: SecuredHBase, coprocessor_jar: Path, admin: Admin, quality: Quality, tmp_path: Path
):
    prefix = f"by-{quality}"
    observed = quality == OWN  # once is enough to see that coprocessors need no right of their own
    jar = ("--jar", f"file:{coprocessor_jar}", "--refresh-interval", "1s", "--report-interval", "1s")
    installing = jar if observed else ("--no-coprocessor",)
    assert admin("install", *installing, who=ADMINISTRATOR, prefix=prefix, quality=quality).code == 0
    granted(secured_hbase, admin("install", "--print-grants", who=USER, prefix=prefix, quality=quality))
    texts = ["small", "x" * LARGE_BYTES, "y" * LARGE_BYTES]
    with (
        serving(tmp_path, secured_hbase.options(prefix, USER, quality)) as server,
        basalt.connect(server.url) as client,
    ):
        client.topics.create("orders")
        client.topic("orders").publish(texts)
        with client.transaction() as transaction:
            transaction.publish("orders", ["in a transaction"])
        assert [message.text for message in client.topic("orders").read()] == [*texts, "in a transaction"]
        until(lambda: not observed or all_report(server), server)
        assert server.ask("POST", "/v1/admin/jobs/prune/run", b"{}").json()["run"]["outcome"] == "ok"
        checked = admin("check", "-o", "json", who=USER, prefix=prefix, quality=quality)
        assert "error" not in levels(checked).values(), checked.out
        assert levels(checked)["rights"] == "warning", "they are an administrator's to see"
        assert "Insufficient permissions" in checked.out
    uninstalled = admin("uninstall", "--yes", "-o", "json", who=ADMINISTRATOR, prefix=prefix, quality=quality)
    assert uninstalled.code == EXIT_CONFLICT, "the server was killed, and may lead yet"


def all_report(server: ServerProcess) -> bool:
    regions = server.ask("GET", "/v1/admin/prune/regions").json()
    return bool(regions) and all(region.get("reportMs") for region in regions)


@pytest.mark.anyio
async def test_a_writer_is_pruned_and_a_compaction_asked_for_at_the_first_gateway(
    secured_hbase: SecuredHBase, tables: str
):
    given = (*secured_hbase.options(tables)[1::2], "store.kind=hbase", "store.hbase.prune_compactions=1")
    settings = load_settings(given)
    lifetimes = replace(settings.transactions, lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS)
    store = HBaseStore.open(secured_hbase.thrift2[OWN], tables, login=KerberosLogin(secured_hbase.kerberos()))
    shop = await Wired.start(store, ManualClock(), settings=replace(settings, transactions=lifetimes))
    try:
        await shop.topics.create(A, {})
        pruner = shop.services.pruner
        await pruner.publisher.publish()  # type: ignore[union-attr]
        writer = await failed_writer(shop)
        shop.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
        regions = await report_all(shop, StoreFile("f1", UNKNOWN_ORIGIN, writer, 1, 1))
        assert (await pruner.survey()).certificate.cause(writer) is Cause.FILE
        asked = await pruner.run()
        assert (asked.pruned, asked.compactions) == ((), (regions[0],)), "the gateway took the wish for a compaction"
        await report_all(shop)
        assert (await pruner.run()).pruned == (writer,)
    finally:
        await shop.services.close()


def test_tickets_that_end_while_messages_are_published_lose_no_call(
    secured_hbase: SecuredHBase, tables: str, tmp_path: Path
):
    short = tmp_path / "krb5.conf"
    lifetime = f"[libdefaults]\n    ticket_lifetime = {TICKET_SECONDS}s\n"
    short.write_text(secured_hbase.kdc.configuration.read_text().replace("[libdefaults]\n", lifetime))
    with serving(tmp_path, secured_hbase.options(tables), KRB5_CONFIG=str(short)) as server:
        server.ask_json("PUT", "/v1/namespaces/shop/topics/tickets")
        got, sent = logins(secured_hbase), []

        def publish() -> bool:
            sent.append(f"message {len(sent)}")
            body = json.dumps({"messages": [sent[-1]]}).encode()
            reply = server.ask("POST", "/v1/namespaces/shop/topics/tickets/publish", body, JSON)
            assert reply.status == 200, (len(sent), reply.body, server.tail())
            return logins(secured_hbase) - got >= TICKETS

        until(publish, server)
        with basalt.connect(server.url, namespace="shop") as client:
            assert [message.text for message in client.topic("tickets").read()] == sent
        assert "not renewed" not in server.tail()


def logins(hbase: SecuredHBase) -> int:
    """How often the server was given a ticket by its key."""
    lines = (hbase.kdc.folder / "kdc.log").read_text().splitlines()
    return sum("AS_REQ" in line and "ISSUE" in line and f"{USER}@{hbase.kdc.realm} for" in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [("hbase", "install", "--no-coprocessor"), ("serve", "--port", "0", "--set", "store.kind=hbase")],
    ids=" ".join,
)
def test_who_has_no_ticket_is_told_what_to_set(secured_hbase: SecuredHBase, tmp_path: Path, words: tuple[str, ...]):
    given = secured_hbase.options("nobody")
    options = [
        word
        for name, setting in zip(given[::2], given[1::2], strict=True)
        if not setting.startswith(("store.hbase.principal", "store.hbase.keytab"))
        for word in (name, setting)
    ]
    command = [sys.executable, "-m", "basalt.cli.main", *words, *options]
    environment = {**secured_hbase.kdc.environment, "KRB5CCNAME": f"FILE:{tmp_path / 'none'}"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False, cwd=tmp_path
    )
    assert done.returncode == EXIT_UNAVAILABLE
    assert "there is no Kerberos ticket of anybody from the ticket cache" in done.stderr
    assert "set store.hbase.keytab and store.hbase.principal" in done.stderr


def test_an_offline_job_reads_the_tables_with_tickets_of_its_own(secured_hbase: SecuredHBase, tables: str):
    rows = pickle.loads(pickle.dumps(HBaseRows(secured_hbase.thrift2[OWN], tables, secured_hbase.kerberos())))
    assert [span.table for span in rows.spans(TABLES)] == list(TABLES)
    with pytest.raises(StoreError, match=r"does not answer|cannot be reached"):
        HBaseRows(secured_hbase.thrift2[OWN], tables, Kerberos("auth", gateway_host=HOST)).spans(TABLES)


def test_who_speaks_no_sasl_is_told_of_the_setting(secured_hbase: SecuredHBase):
    with Thrift2(secured_hbase.thrift2[OWN], timeout_ms=200) as gateway, pytest.raises(UnknownOutcomeError) as raised:
        gateway.server_type()
    assert "store.hbase.sasl" in str(raised.value.hint)


def test_another_services_ticket_is_refused_by_the_gateway(secured_hbase: SecuredHBase, tmp_path: Path):
    secured_hbase.kdc.keytab(f"other/{HOST}")
    login = KerberosLogin(replace(secured_hbase.kerberos(), service="other"))
    with pytest.raises(StoreError, match="the gateway refuses the login") as raised:
        HBaseStore.open(secured_hbase.thrift2[OWN], "any", login=login)
    assert "store.hbase.service" in str(raised.value.hint)


def test_another_quality_than_the_gateways_is_refused_and_never_taken_instead(secured_hbase: SecuredHBase):
    for quality, at in (("auth", "auth-conf"), ("auth-conf", "auth"), ("auth-int", "auth-conf")):
        login = KerberosLogin(secured_hbase.kerberos(quality=quality))
        with pytest.raises(StoreError, match=f"the gateway offers {at}, and not {quality}"):
            HBaseStore.open(secured_hbase.thrift2[at], "any", login=login)


def test_who_has_a_ticket_and_no_right_reads_nothing_and_the_check_tells_of_whoever_has_one_too_many(
    secured_hbase: SecuredHBase, admin: Admin, tables: str
):
    with pytest.raises(StoreError, match=r"AccessDenied|Insufficient permissions"):
        HBaseStore.open(secured_hbase.thrift2[OWN], tables, login=KerberosLogin(secured_hbase.kerberos(STRANGER)))
    checked = admin("check", "--user", USER, "-o", "json", who=ADMINISTRATOR, prefix=tables)
    assert levels(checked)["rights"] == "ok", checked.out
    secured_hbase.grant(f"{tables}.payload".encode(), STRANGER, "R")
    checked = admin("check", "--user", USER, "-o", "json", who=ADMINISTRATOR, prefix=tables)
    assert levels(checked)["rights"] == "warning"
    assert f"{STRANGER} has R on {tables}.payload" in checked.out
