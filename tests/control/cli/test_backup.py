"""`basalt backup`: every command, on a store in this process and on directories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.control.cli.conftest import Ran, Run

Cli = Run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def cli(run: Run, data: Path) -> Cli:
    """The command line on the store in the directory."""

    def ran(*arguments: str) -> Ran:
        return run(*arguments, "--url", f"embedded:{data}")

    assert ran("topic", "create", "orders").code == 0
    assert ran("publish", "orders", "one").code == 0
    assert ran("backup", "create", "nightly", "--as", "ann", "--reason", "before an upgrade").code == 0
    assert ran("publish", "orders", "two").code == 0
    return ran


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.unlink()  # it may be a hard link to the server's own
    path.write_bytes(content)


def test_backups_are_listed_verified_and_deleted_and_the_audit_has_who(cli: Cli):
    (listed,) = json.loads(cli("backup", "list", "-o", "json").out)
    assert (listed["name"], Path(listed["path"]).name) == ("nightly", "nightly")
    verified = cli("backup", "verify", "nightly")
    assert (verified.code, "nightly is whole" in verified.out) == (0, True)
    assert "would back up as " in cli("backup", "create", "weekly", "--dry-run").out
    assert cli("backup", "create", "nightly", "--dry-run").code == 4
    assert "would delete backup nightly" in cli("backup", "delete", "nightly", "--dry-run").out
    asked = cli("backup", "delete", "nightly")
    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert cli("backup", "delete", "nightly", "--yes", "--as", "bob").code == 0
    assert json.loads(cli("backup", "list", "-o", "json").out) == []
    acts = json.loads(cli("audit", "list", "-o", "json").out)
    told = [(act["act"], act["what"], act["name"], act["outcome"]) for act in acts]
    assert told == [
        ("delete backup", "backup nightly", "bob", "done"),
        ("back up", "backup nightly", "ann", "done"),
    ]
    assert acts[1]["reason"] == "before an upgrade"


def test_a_backup_that_is_not_there_is_not_found(cli: Cli):
    for arguments in (("verify", "weekly"), ("delete", "weekly", "--yes")):
        ran = cli("backup", *arguments)
        assert (ran.code, "there is no backup weekly" in ran.err) == (3, True)
    assert "there is no backup weekly" in cli("backup", "delete", "weekly", "--dry-run").out
    for name in ("../x", "a/../../b", ".hidden"):
        assert cli("backup", "delete", name, "--yes").code == 1
        assert cli("backup", "verify", name).code == 1


@pytest.mark.parametrize("pattern", ["*.sst", "CURRENT", "../SYNCED"])
def test_a_damaged_backup_is_told_here_and_by_the_server(cli: Cli, run: Run, data: Path, tmp_path: Path, pattern: str):
    path = next((data / "backups" / "nightly" / "rocks").glob(pattern))
    path.unlink() if pattern == "../SYNCED" else flip(path)
    elsewhere = shutil.copytree(data / "backups" / "nightly", tmp_path / "elsewhere")
    there, here = cli("backup", "verify", "nightly"), run("backup", "verify", "--directory", str(elsewhere))
    for ran in (there, here):
        assert ran.code == 7
        assert "is not whole: 1 fault" in ran.out
        assert (path.name in ran.err, ran.err.count("\n")) == (True, 1)
    told = json.loads(cli("backup", "verify", "nightly", "-o", "json").out)
    assert (told["whole"], len(told["faults"])) == (False, 1)
    refused = run("backup", "restore", "nightly", "--data", str(data), "--put-aside")
    assert (refused.code, path.name in refused.err) == (1, True)
    assert [message["payload"] for message in json.loads(cli("consume", "orders", "-o", "json").out)] == ["one", "two"]


def test_what_to_verify_is_named_once(cli: Cli):
    assert cli("backup", "verify").code == 2
    assert cli("backup", "verify", "nightly", "--directory", "x").code == 2


def test_a_restore_is_tried_refused_and_done(cli: Cli, run: Run, data: Path, tmp_path: Path):
    tried = run("backup", "restore", "nightly", "--data", str(data), "--dry-run")
    assert (tried.code, "would restore" in tried.out) == (0, True)
    refused = run("backup", "restore", "nightly", "--data", str(data))
    assert (refused.code, "--put-aside" in refused.err) == (1, True)
    done = run("backup", "restore", "nightly", "--data", str(data), "--put-aside", "-o", "json")
    assert done.code == 0
    aside = Path(json.loads(done.out)["aside"])
    assert aside.parent == tmp_path
    for directory, payloads in ((data, ["one"]), (aside, ["one", "two"])):
        shown = run("consume", "orders", "-o", "json", "--url", f"embedded:{directory}")
        assert [message["payload"] for message in json.loads(shown.out)] == payloads
    missing = run("backup", "restore", "/nowhere", "--data", str(data))
    assert (missing.code, missing.err.count("\n")) == (1, 1)
