"""What the code imports is declared in pyproject.toml, and what is declared is locked, with hashes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.docs.syntax import nodes_of

OURS = {"basalt", "basalt_engine", "basalt_spark", "pyspark_basalt"}
# What a module is called where that differs from its distribution.
DISTRIBUTIONS = {
    "Hbase_thrift": "happybase",
    "jwt": "pyjwt",
    "opentelemetry": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
    "yaml": "pyyaml",
}


def normalised(requirement: str) -> str:
    """The name in a requirement, as registries compare them."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def locked(page: Path) -> dict[str, str]:
    """Version by name, of a lock file."""
    pins = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==(\S+)", page.read_text(), flags=re.MULTILINE)
    return {normalised(name): version for name, version in pins}


def test_every_library_that_the_packages_import_is_declared(product: dict[str, ast.Module], project: dict[str, Any]):
    declared = {normalised(each) for each in project["dependencies"]}
    extras = ("server", "hbase", "spark", "tephra", "jwt", "kerberos", "otel")
    declared |= {normalised(each) for extra in extras for each in project["optional-dependencies"][extra]}
    imported = {
        name.split(".")[0]
        for tree in product.values()
        for node in nodes_of(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    libraries = {DISTRIBUTIONS.get(name, normalised(name)) for name in imported - OURS - sys.stdlib_module_names}
    assert sorted(libraries - declared) == []


def test_a_server_needs_no_library_of_an_extra_before_its_settings_do(project: dict[str, Any]):
    extras = [
        project["optional-dependencies"][extra]
        for extra in ("hbase", "tephra", "arrow", "jwt", "kerberos", "otel", "spark")
    ]
    modules = {"opentelemetry-sdk": "opentelemetry"} | {
        distribution: module for module, distribution in DISTRIBUTIONS.items()
    }
    names = {normalised(each) for extra in extras for each in extra} - {"basalt-mq"}
    missing = sorted(modules.get(name, name) for name in names)
    assert "thriftpy2" in missing
    without = f"import sys; sys.modules.update(dict.fromkeys({missing}))"  # to import one of them is an error
    imports = "import basalt.server.process, basalt.http.app, basalt.cli.main"
    subprocess.run([sys.executable, "-c", f"{without}; {imports}"], check=True)


LOCKS = {  # by file, the extras that it is for
    "runtime.txt": ("server", "hbase", "tephra"),
    "image.txt": ("server", "hbase", "tephra", "arrow", "jwt", "otel"),
    "kerberos.txt": ("server", "kerberos"),
    "dev.txt": ("server", "hbase", "tephra", "arrow", "jwt", "otel", "spark", "dev"),
}


@pytest.mark.parametrize("name", LOCKS)
def test_every_declared_library_is_locked(root: Path, project: dict[str, Any], name: str):
    declared = [
        *project["dependencies"],
        *(each for extra in LOCKS[name] for each in project["optional-dependencies"][extra]),
    ]
    present = {*locked(root / "requirements" / name), "basalt-mq"}
    assert [each for each in declared if normalised(each) not in present] == []


def test_what_runs_basalt_is_far_from_what_develops_it(root: Path):
    runtime, dev = (locked(root / "requirements" / name) for name in ("runtime.txt", "dev.txt"))
    assert not {"pyspark", "pyarrow", "pytest", "mypy"} & set(runtime)
    assert len(runtime) < len(dev) / 2


def test_the_tools_are_locked_on_the_same_versions_as_the_server(root: Path):
    dev = locked(root / "requirements" / "dev.txt")
    for lock in ("runtime.txt", "image.txt", "build.txt"):
        smaller = locked(root / "requirements" / lock)
        assert {name: dev.get(name) for name in smaller} == smaller


def test_a_server_with_kerberos_has_the_versions_of_one_without(root: Path):
    dev, kerberos = (locked(root / "requirements" / name) for name in ("dev.txt", "kerberos.txt"))
    assert {name for name, version in kerberos.items() if dev.get(name) != version} == {"gssapi", "decorator"}


@pytest.mark.parametrize("name", ["build", "kerberos-build", "browser"])
def test_every_group_that_is_for_making_or_testing_is_locked(root: Path, name: str):
    group = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"][name]
    assert {normalised(each) for each in group} <= set(locked(root / "requirements" / f"{name}.txt"))


def test_what_drives_a_browser_goes_beside_the_tools(root: Path):
    dev, browser = (locked(root / "requirements" / name) for name in ("dev.txt", "browser.txt"))
    assert {name: version for name, version in browser.items() if dev.get(name, version) != version} == {}


def test_every_locked_version_has_its_hashes(root: Path):
    for name in ("build.txt", "kerberos-build.txt", "browser.txt", *LOCKS):
        text = (root / "requirements" / name).read_text()
        entries = re.split(r"\n(?=\S)", text.strip())
        assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
