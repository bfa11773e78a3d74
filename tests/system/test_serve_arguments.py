"""What `basalt serve` refuses before it opens anything: exit code 2, one line with key, value and reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from basalt.cli.commands.server import PROCESSES_MAX
from tests.system.command_line import CommandLine

pytestmark = pytest.mark.system

ON_HBASE = [
    flag for place in ("kind=hbase", "hbase.thrift=localhost:1", "hbase.thrift2=localhost:1") for flag in ("--set", f"store.{place}")
]  # fmt: skip
# Flags, lines of a settings file, environment, and what is said.
BAD: list[tuple[list[str], bytes | None, dict[str, str], str]] = [
    (["--port", "65536"], None, {}, "not in the range"),
    (["--port", "http"], None, {}, "not a valid integer"),
    (["--prot", "1"], None, {}, "no such option --prot; did you mean --host or --port?"),
    (["--host", "a", "--host", "b"], None, {}, "option --host is given 2 times"),
    (["--set", "store.kind"], None, {}, "is not KEY=VALUE"),
    (["--set", "store.kind=rock"], None, {}, "not one of memory, rocks, hbase"),
    (["--set", "store.knid=rocks"], None, {}, "did you mean store.kind?"),
    (["--set", "store.sync=yes"], None, {}, "store.sync"),
    (["--set", "http.body_bytes_max=10MB"], None, {}, "http.body_bytes_max"),
    (["--set", "http.body_bytes_max=1"], None, {}, "out of range"),
    (["--set", "transactions.timeout_ms_default=0"], None, {}, "out of range"),
    (["--set", "transactions.timeout_ms_default=20m"], None, {}, "transactions.timeout_ms_default"),
    (["--set", "jobs.retention.window=25:00-26:00"], None, {}, "jobs.retention.window"),
    (["--set", "log.level=loud"], None, {}, "not one of debug, info, warning, error"),
    (["--set", "log.level=info", "--set", "log.level=debug"], None, {}, "given twice"),
    (["--set", "store.kind=hbase"], None, {}, "store.kind"),
    ([], b"[store]\nkind = 5\n", {}, "store.kind"),
    ([], b"[store]\nkind = \n", {}, "line 2"),
    ([], b"[store]\nkind = 'rocks'\nkind = 'memory'\n", {}, "line 3"),
    ([], b"store = 'rocks'\n", {}, "is a section"),
    ([], b"[stroe]\nkind = 'rocks'\n", {}, "did you mean store?"),
    ([], b"[transactions]\ntimeout_ms_default = 1.5\n", {}, "transactions.timeout_ms_default"),
    ([], b"\xff\xfe[\x00", {}, "UTF-8"),
    ([], b"[log]\nlevel = ''\n", {}, "log.level"),
    (["--host", "0.0.0.0"], None, {}, "setting auth.kinds is not given, and server.host is 0.0.0.0"),
    (["--host", "::", "--set", "thrift.port=0"], None, {}, "setting auth.kinds is not given, and server.host is ::"),
    (["--host", "0.0.0.0", "--background"], None, {}, "setting auth.kinds is not given"),
    (
        ["--host", "0.0.0.0", "--set", "auth.kinds=token"],
        None,
        {},
        "setting tls.certificate is not given",
    ),
    (
        ["--host", "0.0.0.0", "--set", "auth.kinds=password"],
        None,
        {},
        "has 'password' in it, which this version does not know",
    ),
    ([], b"[server]\nhost = '0.0.0.0'\n[auth]\nkinds = []\n", {}, "setting auth.kinds is not given"),
    (["--host", "0.0.0.0", *ON_HBASE], None, {}, "setting auth.kinds is not given"),
    (
        ["--processes", "2"],
        None,
        {},
        "--processes 2 needs store.kind hbase, and it is rocks: such a store has one writer",
    ),
    (["--processes", "2", "--set", "store.kind=memory"], None, {}, "such a store has one writer"),
    (["--processes", str(PROCESSES_MAX + 1), *ON_HBASE], None, {}, "is not in the range 1<=x<=64"),
    ([], None, {"BASALT__STORE__KIND": ""}, "BASALT__STORE__KIND"),
    ([], None, {"BASALT__STORE__KNID": "rocks"}, "did you mean BASALT__STORE__KIND?"),
    ([], None, {"BASALT__LOG__LEVEL_FILE": "nowhere"}, "nowhere"),
    ([], b"[log]\nlevel = 'info'\n", {"BASALT__LOG__LEVEL": "loud"}, "BASALT__LOG__LEVEL"),
]


@pytest.mark.parametrize(
    ("flags", "file", "environment", "said"),
    BAD,
    ids=[f"{number} {said}" for number, (*_, said) in enumerate(BAD, 1)],
)
def test_a_bad_start_is_refused_before_anything_is_opened(
    tmp_path: Path, flags: list[str], file: bytes | None, environment: dict[str, str], said: str
):
    if file is not None:
        (tmp_path / "basalt.toml").write_bytes(file)
        flags = [*flags, "--config", "basalt.toml"]
    port = [] if "--port" in flags or "--host" in flags else ["--port", "0"]
    ran = CommandLine(tmp_path).run("serve", "--data", "data", *port, "--port-file", "port", *flags, **environment)
    assert ran.code == 2, ran
    assert (ran.out, ran.err.count("\n")) == ("", 1), ran
    assert ran.err.startswith("basalt: ")
    assert said in ran.err
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "port").exists()


def test_a_settings_file_that_is_not_there_is_named(tmp_path: Path):
    ran = CommandLine(tmp_path).run("serve", "--data", "data", "--config", "nowhere.toml")
    assert ran.code == 2
    assert "nowhere.toml" in ran.err
    assert not (tmp_path / "data").exists()
