"""Java programs of tests and benchmarks: compiled once by Maven, and run with the class path that it resolved."""

from __future__ import annotations

import fcntl
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from deploy.hbase.runtime import java, run_maven


@dataclass(frozen=True, slots=True)
class JavaPrograms:
    """What a folder's `pom.xml` builds from its `src`; the pom takes `buildDirectory`, where all that is built goes."""

    home: Path
    build: Path

    def command(self, program: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
        """The command that runs a class, with options of the Java machine; its configuration comes from the folder's `conf`.

        `RuntimeMissingError` without Java or Maven, `MavenError` when it fails.
        """
        path = os.pathsep.join(map(str, [self.home / "conf", self.build / "classes", *self._jars()]))
        return [str(java()), *options, "-cp", path, program, *arguments]

    def _jars(self) -> list[Path]:
        known = self.build / f"classpath-{self._digest()}.txt"
        if not self._is_complete(known):
            self.build.mkdir(parents=True, exist_ok=True)
            with (self.build / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # one Maven at a time
                if not self._is_complete(known):
                    self._compile(known)
        return _listed(known)

    def _compile(self, known: Path) -> None:
        written = self.build / "classpath.new"
        run_maven(
            "--file", self.home / "pom.xml", f"-DbuildDirectory={self.build}", "compile", "dependency:build-classpath",
            f"-Dmdep.outputFile={written}",
        )  # fmt: skip
        written.replace(known)

    def _is_complete(self, known: Path) -> bool:
        return known.exists() and (self.build / "classes").is_dir() and all(jar.is_file() for jar in _listed(known))

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for path in [self.home / "pom.xml", *sorted((self.home / "src").rglob("*.java"))]:
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]


def _listed(known: Path) -> list[Path]:
    return [Path(name) for name in known.read_text().strip().split(os.pathsep)]
