"""The Java programs of this folder."""

from __future__ import annotations

from pathlib import Path

from deploy.hbase.runtime import ROOT
from deploy.java_programs import JavaPrograms

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # a program that runs for seconds compiles less
# Tephra is from before Java closed its own packages.
OPENED = ("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED")
PROGRAMS = JavaPrograms(Path(__file__).resolve().parent, ROOT / "build" / "tephra-client")


def java_command(program: str, *arguments: str) -> list[str]:
    """The command that runs one of the programs. `RuntimeMissingError` without Java or Maven."""
    return PROGRAMS.command(f"io.basalt.tephra.{program}", *arguments, options=(*SHORT_LIVED, *OPENED))
