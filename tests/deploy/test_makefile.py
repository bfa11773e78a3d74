"""What `make test` runs, told by `make --dry-run`: everything, or the tests that were asked for and nothing beside them."""

from __future__ import annotations

import os
import subprocess

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
