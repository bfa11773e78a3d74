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
    for program in ("cat", "ls", "python3"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    make = str(shutil.which("make"))

    def dev() -> str:
        asked = [make, "--dry-run", f"VENV={tmp_path / 'venv'}", "dev"]
        environment = {"PATH": str(tmp_path)}
        return subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert "requirements/kerberos" not in dev()
    (tmp_path / "krb5-config").write_text("#!/bin/sh\n")
    (tmp_path / "krb5-config").chmod(0o755)
    plan = dev()
    assert plan.index("requirements/kerberos-build.txt") < plan.index("--no-build-isolation requirements/kerberos.txt")


def test_the_packages_that_tests_need_are_installed_by_name_and_without_the_words_about_them():
    plan = planned("system-packages")
    assert (
        "for package in chromium prometheus krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc libc6-dev; do" in plan
    )
    assert "make system-packages" in (ROOT / ".ci" / "run").read_text()
