"""What `make test` runs, told by `make --dry-run`: everything, or the tests that were asked for and nothing beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from deploy.reference import ROOT

CHECKS = ("ruff", "mypy", "lint-imports", "mvn ")


def planned(*arguments: str) -> str:
    """The commands that make would run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--dry-run", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_all_tests_come_with_all_checks():
    plan = planned("test")
    assert [check for check in CHECKS if check not in plan] == []
    assert "--numprocesses auto" in plan


def test_some_tests_come_without_checks_and_without_maven():
    plan = planned("test", "PYTEST=-k retention")
    assert [check for check in CHECKS if check in plan] == []
    assert "-m pytest -k retention" in plan


def test_the_reference_has_a_command_of_its_own():
    assert "-m deploy.reference" in planned("reference")


def test_gssapi_is_installed_where_it_can_be_compiled_and_nowhere_else(tmp_path: Path):
    assert "requirements/kerberos" not in planned_with(tmp_path)
    plan = planned_with(tmp_path, "krb5-config")
    assert plan.index("requirements/kerberos-build.txt") < plan.index("--no-build-isolation requirements/kerberos.txt")


def test_the_packages_that_tests_need_are_installed_by_name_and_without_the_words_about_them():
    plan = planned("system-packages")
    assert (
        "for package in chromium prometheus krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc libc6-dev; do" in plan
    )
    assert "make system-packages" in (ROOT / ".ci" / "run").read_text()


def test_what_drives_a_browser_is_installed_where_there_is_one(tmp_path: Path):
    assert "requirements/browser" not in planned_with(tmp_path)
    assert "requirements/browser.txt" in planned_with(tmp_path, "chromium")


def planned_with(folder: Path, *programs: str) -> str:
    """The commands of `make dev` in a new environment, on a machine that has these programs beside the usual ones."""
    for program in ("cat", "ls", "python3"):
        (folder / program).unlink(missing_ok=True)
        (folder / program).symlink_to(str(shutil.which(program)))
    for program in programs:
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    asked = [str(shutil.which("make")), "--dry-run", f"VENV={folder / 'venv'}", "dev"]
    environment = {"PATH": str(folder)}
    return subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
