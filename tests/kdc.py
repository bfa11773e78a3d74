"""A Kerberos realm of the tests' own: a real `krb5kdc` on the loopback, with its database and keytabs in a temporary folder.

    kdc.principal("alice", "secret")          # alice@EXAMPLE.TEST, with a password
    kdc.keytab("HTTP/localhost")              # a service, and the file with its key
    kdc.ticket("alice", "secret")             # the file of a credential cache that holds a fresh ticket
    kdc.environment                           # what a process needs to be in this realm
    negotiate_token(cache, "HTTP@localhost")  # what follows `Negotiate` in a request; in a process that is in the realm

Nothing of the machine is read or written: `KRB5_CONFIG` and `KRB5_KDC_PROFILE` name files in the folder. It needs Debian's packages krb5-kdc,
krb5-admin-server, krb5-user and libkrb5-dev. Without them these tests are skipped; where CI is set they fail, so that nobody takes a skipped
test for a passed one.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from tests.ports import reserved_port

REALM = "EXAMPLE.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
SBIN = "/usr/sbin"  # where Debian has the first three, and which is in root's PATH alone
SPNEGO, KERBEROS = "1.3.6.1.5.5.2", "1.2.840.113554.1.2.2"
READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 60.0
PROGRAM_SECONDS_MAX = 60.0
# It ends when the standard input does: with this process, however that ends.
WATCHED = '"$0" "$@" & read -r _; kill "$!"; wait "$!"'

# Addresses as they are: what a name means in the DNS is nothing that a test should wait for.
CONFIGURATION = """\
[libdefaults]
    default_realm = {realm}
    dns_lookup_realm = false
    dns_lookup_kdc = false
    dns_canonicalize_hostname = false
    rdns = false
    clockskew = {clock_skew_seconds}
    udp_preference_limit = 1

[realms]
{realms}

[domain_realm]
{domains}
"""
PROFILE = """\
[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = "127.0.0.1:{port}"

[realms]
    {realm} = {{
        database_name = {folder}/principal
        key_stash_file = {folder}/stash
        acl_file = {folder}/acl
        max_life = 10h
        supported_enctypes = aes256-cts-hmac-sha1-96:normal
    }}

[logging]
    kdc = FILE:{folder}/kdc.log
"""


class Kdc:
    """One realm, and its key distribution centre in a process."""

    def __init__(self, folder: Path, realm: str = REALM) -> None:
        self.folder = folder
        self.realm = realm
        self.port = 0
        self.configuration = folder / "krb5.conf"
        self._process: subprocess.Popen[bytes] | None = None
        self._others: dict[str, int] = {}
        self._domains = {"localhost": realm, "127.0.0.1": realm}
        self._made = 0

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which a process is in this realm."""
        return {"KRB5_CONFIG": str(self.configuration), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}

    def start(self, port: int) -> None:
        """Make the database, and let the server listen on this port of 127.0.0.1: it does when this ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port
        (self.folder / "kdc.conf").write_text(PROFILE.format(realm=self.realm, folder=self.folder, port=self.port))
        (self.folder / "acl").write_text("")
        self._write_configuration()
        self._run("kdb5_util", "create", "-s", "-r", self.realm, "-P", "of the master key")
        command = ["sh", "-c", WATCHED, _program("krb5kdc"), "-n", "-r", self.realm, "-P", str(self.folder / "pid")]
        with (self.folder / "kdc.out").open("wb") as output:
            self._process = subprocess.Popen(
                command, env=self._variables(), stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        self._wait_until_it_listens()

    def stop(self) -> None:
        """End the server, and wait until it has."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_SECONDS_MAX)
            finally:
                process.kill()

    def trust(self, other: Kdc, host: str) -> None:
        """Tickets of this realm's users count in the other, where this host is, as they do between realms of one company."""
        key = f"between {self.realm} and {other.realm}"
        for realm in (self, other):
            realm.principal(f"krbtgt/{other.realm}@{self.realm}", key)
        self.know(other, host)
        other.know(self)

    def know(self, other: Kdc, host: str | None = None) -> None:
        """Where the other realm's server is; and that this host is in it."""
        self._others[other.realm] = other.port
        if host is not None:
            self._domains[host] = other.realm
        self._write_configuration()

    def principal(self, name: str, password: str) -> str:
        """Make a principal with this password; its whole name."""
        self._admin("add_principal", "-pw", password, name)
        return name if "@" in name else f"{name}@{self.realm}"

    def keytab(self, *names: str, path: Path | None = None) -> Path:
        """Make principals with random keys, and a file with all of them."""
        path = path or self._file("keytab")
        for name in names:
            self._admin("add_principal", "-randkey", name)
            self.add_key(path, name)
        return path

    def change_key(self, name: str) -> None:
        """Give a service another key; no keytab has it yet."""
        self._admin("change_password", "-randkey", name)

    def add_key(self, keytab: Path, name: str) -> None:
        """Put the key that a service has now into this keytab."""
        self._admin("ktadd", "-k", str(keytab), "-norandkey", name)

    def ticket(
        self, name: str, password: str | None = None, *, keytab: Path | None = None, life_seconds: int = 3_600
    ) -> Path:
        """Log in, by password or with a key; the file of the credential cache."""
        cache = self._file("cache")
        options = ["-c", f"FILE:{cache}", "-l", f"{life_seconds}s"]
        if keytab is not None:
            options += ["-k", "-t", str(keytab)]
        self._run("kinit", *options, name, given=None if password is None else f"{password}\n")
        return cache

    def _admin(self, *query: str) -> None:
        quoted = " ".join(f'"{part}"' for part in query)
        said = self._run("kadmin.local", "-r", self.realm, "-q", quoted)
        refused = [line for line in said.splitlines() if line.startswith(("kadmin.local:", query[0] + ":"))]
        assert not refused, said  # its exit code tells nothing

    def _run(self, program: str, *arguments: str, given: str | None = None) -> str:
        done = subprocess.run(
            [_program(program), *arguments],
            env=self._variables(),
            input=given or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PROGRAM_SECONDS_MAX,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout}"
        return done.stdout

    def _variables(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("KRB5")}
        return {**ours, **self.environment}

    def _file(self, kind: str) -> Path:
        self._made += 1
        return self.folder / f"{kind}-{self._made}"

    def _write_configuration(self) -> None:
        places = {self.realm: self.port, **self._others}
        realms = "\n".join(
            f"    {realm} = {{\n        kdc = 127.0.0.1:{port}\n    }}" for realm, port in places.items()
        )
        domains = "\n".join(f"    {host} = {realm}" for host, realm in self._domains.items())
        text = CONFIGURATION.format(realm=self.realm, realms=realms, domains=domains, clock_skew_seconds=300)
        self.configuration.write_text(text)

    def _wait_until_it_listens(self) -> None:
        assert self._process is not None
        limit = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < limit and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            time.sleep(0.02)
        self.stop()
        raise AssertionError(f"krb5kdc does not listen: {(self.folder / 'kdc.out').read_text()}")


def negotiate_token(
    cache: Path, service: str = "HTTP@localhost", *, end_point: bytes | None = None, bare: bool = False
) -> bytes:
    """A fresh token by a ticket of this cache, for the service on a host: SPNEGO's, or the bare one of Kerberos in it."""
    from gssapi import raw

    found = raw.acquire_cred_from({b"ccache": f"FILE:{cache}".encode()}, usage="initiate").creds
    mechanism = raw.OID.from_int_seq(KERBEROS if bare else SPNEGO)
    target = raw.import_name(service.encode(), raw.NameType.hostbased_service)
    bound = None if end_point is None else raw.ChannelBindings(application_data=b"tls-server-end-point:" + end_point)
    flags = raw.RequirementFlag.mutual_authentication
    made = raw.init_sec_context(target, found, mech=mechanism, flags=flags, channel_bindings=bound)
    assert made.token is not None
    return made.token


def with_clock_ahead(cache: Path, seconds: int) -> Path:
    """A copy of the cache whose user's clock seems to be ahead: its tickets are sent with the time of such a clock."""
    content = bytearray(cache.read_bytes())
    assert content[:8] == bytes.fromhex("0504000c00010008"), "version 4, with the offset of the clock in its head"
    content[8:12] = seconds.to_bytes(4, "big", signed=True)
    ahead = cache.with_name(f"{cache.name}-{seconds}")
    ahead.write_bytes(content)
    return ahead


@contextmanager
def running_kdc(folder: Path, realm: str = REALM) -> Iterator[Kdc]:
    """A realm whose server runs until the block ends."""
    require_kerberos()
    kdc = Kdc(folder, realm)
    with reserved_port() as port:
        try:
            kdc.start(port)
            yield kdc
        finally:
            kdc.stop()


@pytest.fixture(scope="session")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """The realm EXAMPLE.TEST. All tests of the run share it: take names of principals of your own."""
    with running_kdc(tmp_path_factory.mktemp("kdc")) as running:
        yield running


def require_kerberos() -> None:
    """Skip, or in CI fail, where MIT Kerberos or gssapi is missing."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        _cannot(f"there is no {', '.join(missing)}; run `make system-packages` as root")
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        _cannot(f"{error}; run `make system-packages` as root, and then `make dev`")


def _cannot(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, and so the tests of Kerberos must run: {reason}", pytrace=False)
    pytest.skip(f"needs Kerberos: {reason}")


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), SBIN))


def _program(name: str) -> str:
    found = shutil.which(name, path=_path())
    assert found is not None, name
    return found
