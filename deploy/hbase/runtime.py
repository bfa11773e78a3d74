"""The jars that HBase runs from, resolved once by Maven from deploy/hbase/pom.xml, and a Java."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
BUILD = ROOT / "build" / "hbase-runtime"
RESOLVE_TIMEOUT_S = 900.0  # the first time some 190 jars, 115 MB, come over the network
OUTPUT_CHARS_MAX = 4_000  # of Maven's output in an error: its last lines say what is wrong


class RuntimeMissingError(RuntimeError):
    """There is no Java or no Maven here."""


class MavenError(RuntimeError):
    """Maven failed; the message has the end of its output."""


def java() -> Path:
    """The java command: that of JAVA_HOME, else the one on the path."""
    if home := os.environ.get("JAVA_HOME"):
        named = Path(home, "bin", "java")
        if named.exists():
            return named
    found = shutil.which("java")
    if found is None:
        raise RuntimeMissingError(
            "HBase needs Java 11 or 17, and there is no java command; install a JDK (17) and Maven"
        )
    return Path(found)


def run_maven(*arguments: str | Path) -> None:
    """Run Maven quietly; `MavenError` with what it said when it fails."""
    java()
    command = shutil.which("mvn")
    if command is None:
        raise RuntimeMissingError(
            "HBase and the coprocessor come from Maven, and there is no mvn command; install Maven"
        )
    words = [command, "--batch-mode", "--quiet", *map(str, arguments)]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MavenError(f"{' '.join(words)} took more than {RESOLVE_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-OUTPUT_CHARS_MAX:]
        raise MavenError(f"{' '.join(words)} failed with exit code {done.returncode}:\n{said}")


def classpath() -> list[Path]:
    """HBase's configuration and the jars. Asks Maven only when the pom has changed, or a jar is gone."""
    known = BUILD / f"classpath-{_digest()}.txt"
    if not _is_complete(known):
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one Maven at a time
            written = BUILD / "classpath.new"
            run_maven("--file", POM, "dependency:build-classpath", f"-Dmdep.outputFile={written}")
            written.replace(known)
    return [HERE / "conf", *_listed(known)]


def _is_complete(known: Path) -> bool:
    return known.exists() and all(jar.is_file() for jar in _listed(known))


def _listed(known: Path) -> list[Path]:
    return [Path(name) for name in known.read_text().strip().split(os.pathsep)]


def _digest() -> str:
    return hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
