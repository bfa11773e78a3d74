"""`basalt spark`: found by its entry point, without Spark until a job runs; and what is refused before one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.control.cli.conftest import Run, run
from tests.control.client.scripted import ScriptedServer, problem

__all__ = ["run"]

NO_SPARK = """
import sys
from basalt.cli.main import main
code = main({arguments!r})
loaded = [name for name in sys.modules if name.partition(".")[0] in {refused!r}]
assert not loaded, loaded
sys.exit(code)
"""


def in_a_process(arguments: list[str], refused: set[str]) -> subprocess.CompletedProcess[str]:
    program = NO_SPARK.format(arguments=arguments, refused=refused)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_help_names_the_jobs_and_imports_nothing_of_them():
    ran = in_a_process(["--help"], {"basalt_spark", "pyspark", "pyarrow"})
    assert ran.returncode == 0, ran.stderr
    assert "  spark " in ran.stdout


def test_help_of_a_job_imports_no_spark():
    ran = in_a_process(["spark", "archive", "--help"], {"pyspark", "pyarrow", "py4j"})
    assert ran.returncode == 0, ran.stderr


def test_without_spark_a_job_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from basalt_engine.stores.rocks import RocksStore
    from basalt_engine.system import SystemTable

    store = RocksStore.open(tmp_path / "data")
    SystemTable(store.table("system")).write("install", "facts", b'{"buckets":2,"created_ms":0,"instance":"00"}')
    store.close()
    monkeypatch.setitem(sys.modules, "pyspark", None)
    ran = run("spark", "prune-audit", "--checkpoint", str(tmp_path / "data"))
    assert ran.code == 1
    assert "pip install 'basalt-mq[spark]'" in ran.err


def test_without_its_entry_point_the_command_says_so(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_wanted: ())
    ran = run("spark", "verify", "x", "y")
    assert ran.code == 1
    assert "does not say where `basalt spark` is" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["prune-audit"], 2, "name one of --hbase and --checkpoint"),
        (["prune-audit", "--hbase", "a:1", "--checkpoint", "b"], 2, "name one of --hbase and --checkpoint"),
        (["prune-audit", "--checkpoint", "/nowhere"], 1, "no data directory"),
        (["archive", "orders", "/x"], 2, "--job-id"),
        (["archive", "orders", "/x", "--job-id", "a/b"], 1, "cannot be the id of a job"),
        (["backfill", "/nowhere", "j", "orders", "--job-id", "k"], 3, "no archive of job j"),
        (["verify", "/nowhere", "j"], 3, "no archive of job j"),
        (["replay", "orders", "orders", "--job-id", "k"], 2, "copied to itself"),
        (["replay", "a b", "orders", "--job-id", "k"], 2, "not the name of a topic"),
        (["statistics", "orders", "--url", "embedded:/x"], 2, "start a server"),
        (["statistic", "orders"], 2, "did you mean `basalt spark statistics`?"),
    ],
)
def test_what_cannot_run_is_refused_before_spark_starts(run: Run, arguments: list[str], code: int, said: str):
    ran = run("spark", *arguments)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert ran.err.count("\n") == 1


def test_scheduled_jobs_and_jobs_on_spark_are_told_apart(run: Run):
    ran = run("jobs")
    assert (ran.code, "did you mean `basalt job`?" in ran.err) == (2, True)
    assert "Audit, archive" not in run("job", "--help").out


def test_the_tasks_of_a_job_get_the_file_of_a_token_and_not_a_program_that_prints_one(run: Run, tmp_path: Path):
    server = ScriptedServer()
    server.script = [problem(401, "unauthenticated")]
    (tmp_path / "token").write_text("one")
    run("profile", "add", "file", "--url", server.url, "--token-file", str(tmp_path / "token"))
    run("profile", "add", "program", "--url", server.url, "--token-command", "echo one")
    run("profile", "add", "ticket", "--url", server.url, "--kerberos")
    ran = run("spark", "replay", "orders", "bills", "--job-id", "k", "--profile", "file", "--dry-run")
    assert (ran.code, server.seen[-1].headers.get("authorization")) == (5, "Bearer one"), ran
    for name in ("program", "ticket"):
        ran = run("spark", "replay", "orders", "bills", "--job-id", "k", "--profile", name, "--dry-run")
        assert (ran.code, "the tasks of a job use no login and no ticket" in ran.err) == (2, True), ran
    server.close()
