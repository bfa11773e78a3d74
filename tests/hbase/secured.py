"""A standalone HBase that asks everybody for Kerberos: between its parts, at its gateways, and with its access control on.

It is one HBase with a gateway of the first kind (auth-conf) and one of the second for each quality of protection, in a realm of the tests' own. Java
reads host names from a file, so that the gateways' host is `gateway.test` on every machine: it is in their principal, and no part of their address.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from basalt_engine.errors import BasaltError
from basalt_engine.stores.hbase import definitions
from basalt_engine.stores.hbase.kerberos import Kerberos, KerberosLogin, Quality
from basalt_engine.stores.hbase.thrift2 import Thrift2
from deploy.hbase.companion import running_hbase
from deploy.hbase.java_process import JavaProcess
from deploy.hbase.runtime import java
from deploy.hbase.standalone import QUALITY, gateway_role, java_options, write_configuration
from tests.hbase.gateways import SETTINGS, SHORT_LIVED_JAVA
from tests.kdc import Kdc
from tests.ports import reserved_port

HOST = "gateway.test"
SERVICE = f"hbase/{HOST}"  # whom HBase and its gateways run as; its first part is HBase's superuser
ADMINISTRATOR = "hbase/admin"  # a person who may act as that
USER = "basalt"
STRANGER = "stranger"  # has tickets, and no rights
QUALITIES: tuple[Quality, ...] = ("auth", "auth-int", "auth-conf")
OWN: Quality = "auth-conf"  # of the gateways that the standalone HBase itself starts
READY_SECONDS_MAX = 120.0
ACL = b"hbase:acl"
_ACCESS = "org.apache.hadoop.hbase.security.access.AccessController"
# Ends the gateway when the tests' process ends, however that does: its standard input is closed then.
_COMPANION = (
    "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL); sys.stdin.read(); p.kill()"
)


class SecuredHBase(NamedTuple):
    """Where it listens, and who may come."""

    kdc: Kdc
    thrift: str
    thrift2: Mapping[str, str]  # by quality
    keytabs: Mapping[str, Path]  # by principal

    def login(self, who: str = USER, quality: str = OWN) -> KerberosLogin | None:
        """Tickets of somebody, for the gateway of a quality."""
        return None if quality == "off" else KerberosLogin(self.kerberos(who, cast("Quality", quality)))

    def kerberos(self, who: str = USER, quality: Quality = OWN) -> Kerberos:
        return Kerberos(quality, f"{who}@{self.kdc.realm}", str(self.keytabs[who]), gateway_host=HOST)

    def options(self, prefix: str, who: str = USER, quality: Quality = OWN) -> list[str]:
        """What a command or a server is started with."""
        settings = {
            "store.hbase.thrift": self.thrift, "store.hbase.thrift2": self.thrift2[quality], "store.hbase.prefix": prefix,
            "store.hbase.buckets": "1", "store.hbase.sasl": quality, "store.hbase.principal": f"{who}@{self.kdc.realm}",
            "store.hbase.keytab": str(self.keytabs[who]), "store.hbase.gateway_host": HOST,
        }  # fmt: skip
        return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def grant(self, entry: bytes, user: str, actions: str) -> None:
        """What `grant` of the HBase shell does: the superuser writes a row, which region servers go by from then on."""
        types = definitions()
        cell = types.TColumnValue(family=b"l", qualifier=user.encode(), value=actions.encode())
        with Thrift2(self.thrift2[OWN], login=KerberosLogin(self.kerberos(ADMINISTRATOR))) as gateway:
            gateway._call("put", ACL, types.TPut(row=entry, columnValues=[cell]))


@pytest.fixture(scope="module")
def secured_hbase(hbase_runtime: None, kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredHBase]:
    """All tests of a file share it: take a table prefix of your own."""
    short_lived = SHORT_LIVED_JAVA["JDK_JAVA_OPTIONS"]
    with running_secured_hbase(tmp_path_factory.mktemp("secured"), kdc, QUALITIES, short_lived) as hbase:
        yield hbase


@contextmanager
def running_secured_hbase(
    folder: Path, kdc: Kdc, qualities: Sequence[str], java_options: str = ""
) -> Iterator[SecuredHBase]:
    """One with a gateway of the second kind for each of these, while the block runs; this process is in the realm then.

    `off` is a gateway that asks nobody, as whoever reaches it is whom it is itself.
    """
    kdc.know(kdc, HOST)
    service = kdc.keytab(SERVICE, path=folder / "hbase.keytab")
    keytabs = {
        name: kdc.keytab(name, path=folder / f"{name.replace('/', '-')}.keytab")
        for name in (ADMINISTRATOR, USER, STRANGER)
    }
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 {HOST} localhost {socket.gethostname()}\n")
    options = f"-Djava.security.krb5.conf={kdc.configuration} -Djdk.net.hosts.file={hosts}"
    settings = SETTINGS | _settings(f"{SERVICE}@{kdc.realm}", service)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JDK_JAVA_OPTIONS", f"{java_options} {options}")
            own = stack.enter_context(running_hbase(folder / "hbase", settings | {QUALITY: OWN}))
            others = {
                quality: stack.enter_context(
                    _gateway(
                        folder / quality,
                        settings if quality == "off" else settings | {QUALITY: quality},
                        own.zookeeper_port,
                    )
                )
                for quality in qualities
                if quality != OWN
            }
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("KRB5_CONFIG", str(kdc.configuration))
        hbase = SecuredHBase(kdc, own.thrift, {OWN: own.thrift2, **others}, keytabs)
        for quality in hbase.thrift2:
            _wait_until_it_answers(hbase, quality)
        yield hbase


def _settings(principal: str, keytab: Path) -> dict[str, str]:
    roles = ("master", "regionserver", "thrift")
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "hbase.security.authentication": "kerberos",
        "hbase.security.authorization": "true",
        **{f"hbase.{role}.kerberos.principal": principal for role in roles},
        **{f"hbase.{role}.keytab.file": str(keytab) for role in roles},
        # A gateway acts as the user who comes to it.
        "hadoop.proxyuser.hbase.hosts": "*",
        "hadoop.proxyuser.hbase.groups": "*",
        "hbase.coprocessor.master.classes": _ACCESS,
        "hbase.coprocessor.regionserver.classes": _ACCESS,
        "hbase.coprocessor.region.classes": f"org.apache.hadoop.hbase.security.token.TokenProvider,{_ACCESS}",
    }


@contextmanager
def _gateway(directory: Path, settings: Mapping[str, str], zookeeper_port: int) -> Iterator[str]:
    """One more gateway of the second kind."""
    directory.mkdir()
    write_configuration(directory / "conf", settings)
    process = JavaProcess(directory, "thrift2")
    with reserved_port() as port, (directory / "gateway.log").open("wb") as log:
        role = gateway_role("thrift2", 2, port)
        command = [
            str(java()),
            *process._marks(),
            f"-Xmx{role.heap_mb}m",
            *java_options(directory / "conf", zookeeper_port),
            *role.main,
        ]
        companion = subprocess.Popen(
            [sys.executable, "-c", _COMPANION, *command], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=directory
        )
        assert companion.stdin is not None
        try:
            yield f"127.0.0.1:{port}"
        finally:
            companion.stdin.close()
            companion.wait()


def _wait_until_it_answers(hbase: SecuredHBase, quality: str) -> None:
    limit = time.monotonic() + READY_SECONDS_MAX
    login = hbase.login(ADMINISTRATOR, quality)
    while True:
        try:
            with Thrift2(hbase.thrift2[quality], login=login) as gateway:
                gateway.get(ACL.decode(), ACL)
                return
        except BasaltError as error:
            assert time.monotonic() < limit, error
            time.sleep(0.1)
