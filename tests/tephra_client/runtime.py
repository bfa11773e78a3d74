"""The Java programs of this folder: compiled once, and the class path that they run with."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from deploy.hbase.runtime import java, run_maven

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "tephra-client"
CLASSES = BUILD / "classes"
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # a program that runs for seconds compiles less


def java_command(program: str, *arguments: str) -> list[str]:
    """The command that runs one of the programs. `RuntimeMissingError` without Java or Maven."""
    path = os.pathsep.join(map(str, [HERE / "conf", CLASSES, *_jars()]))
    # Tephra is from before Java closed its own packages.
    opened = ["--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"]
    return [str(java()), *SHORT_LIVED, *opened, "-cp", path, f"io.basalt.tephra.{program}", *arguments]


def _jars() -> list[Path]:
    known = BUILD / f"classpath-{_digest()}.txt"
    if not _is_complete(known):
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_complete(known):
                written = BUILD / "classpath.new"
                run_maven(
                    "--file", HERE / "pom.xml", f"-DbuildDirectory={BUILD}", "compile", "dependency:build-classpath",
                    f"-Dmdep.outputFile={written}",
                )  # fmt: skip
                written.replace(known)
    return _listed(known)


def _is_complete(known: Path) -> bool:
    return known.exists() and CLASSES.is_dir() and all(jar.is_file() for jar in _listed(known))


def _listed(known: Path) -> list[Path]:
    return [Path(name) for name in known.read_text().strip().split(os.pathsep)]


def _digest() -> str:
    digest = hashlib.sha256()
    for path in [HERE / "pom.xml", *sorted((HERE / "src").rglob("*.java"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
