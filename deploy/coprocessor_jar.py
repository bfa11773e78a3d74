"""Builds the coprocessor's jar into the place from which the package carries it: `make jar`, or `python -m deploy.coprocessor_jar`."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.hbase.runtime import ROOT, MavenError, RuntimeMissingError, run_maven

COPROCESSOR = ROOT / "coprocessor"
TARGET = COPROCESSOR / "target"
JAR = ROOT / "engine" / "basalt_engine" / "stores" / "hbase" / "basalt-coprocessor.jar"
SOURCES_MARK = TARGET / "basalt-coprocessor.sources"  # the digest of the sources that JAR was built from


def build() -> Path:
    """The jar of the sources as they are now. Maven is asked only when they have changed since the last time."""
    with _alone():
        digest = _digest()
        if JAR.exists() and SOURCES_MARK.exists() and SOURCES_MARK.read_text() == digest:
            return JAR
        if not is_packaged(_sources()):
            for old in TARGET.glob("*.jar"):
                old.unlink()
            run_maven("--file", COPROCESSOR / "pom.xml", "package", "-Dmaven.test.skip=true")
        [built] = TARGET.glob("*.jar")
        new = JAR.with_suffix(".new")
        shutil.copyfile(built, new)
        new.replace(JAR)
        SOURCES_MARK.write_text(digest)
        return JAR


def is_packaged(sources: Iterable[Path]) -> bool:
    """True when Maven has made a jar since any of these changed, as `make java` does: it need not be asked again."""
    made_ns = [jar.stat().st_mtime_ns for jar in TARGET.glob("*.jar")]
    return len(made_ns) == 1 and all(path.stat().st_mtime_ns < made_ns[0] for path in sources)


def _sources() -> list[Path]:
    """All that the jar is made of."""
    files = (path for path in (COPROCESSOR / "src" / "main").rglob("*") if path.is_file())
    return [COPROCESSOR / "pom.xml", *sorted(files)]


def _digest() -> str:
    """The digest of all that the jar is made of."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(COPROCESSOR)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def _alone() -> Iterator[None]:
    """Two Mavens at once would write over each other's classes; the tests' Java side holds the same lock."""
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build it and say where it is; the exit code."""
    try:
        print(build().relative_to(ROOT))
    except (MavenError, RuntimeMissingError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
