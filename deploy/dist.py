"""Builds what a release uploads, into dist: `make dist`. The wheel holds the coprocessor's jar, or none is made."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from deploy.coprocessor_jar import JAR, build
from deploy.hbase.runtime import ROOT, MavenError, RuntimeMissingError

DIST = ROOT / "dist"
PACKAGED_JAR = "basalt_engine/stores/hbase/basalt-coprocessor.jar"
PLACEHOLDER_HOST = "basalt.example"  # of pyproject.toml, until somebody publishes the source


class IncompleteError(Exception):
    """The wheel lacks something that a release must have."""


def build_packages(source: Path, folder: Path) -> Path:
    """Build the archive of the source and the wheel of a tree as it is; the wheel's path."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    for target in ("sdist", "wheel"):
        command += ["--target", target]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    return max(folder.glob("basalt_mq-*.whl"), key=lambda wheel: wheel.stat().st_mtime_ns)


def check(wheel: Path) -> list[str]:
    """Warnings for who publishes the release; `IncompleteError` without the jar."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        [metadata] = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = packed.read(metadata).decode()
    if PACKAGED_JAR not in names:
        raise IncompleteError(f"{wheel} has no {PACKAGED_JAR}: build it with `make jar`, then this again")
    if PLACEHOLDER_HOST in text:
        return [f"{wheel.name} names {PLACEHOLDER_HOST}: before you publish it, put your address into pyproject.toml"]
    return []


def main() -> int:
    """Build, check and say where it is; the exit code."""
    try:
        jar = build()
        assert jar == JAR
        wheel = build_packages(ROOT, DIST)
        for warning in check(wheel):
            print(f"warning: {warning}", file=sys.stderr)
    except (MavenError, RuntimeMissingError, IncompleteError) as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    print(wheel.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
