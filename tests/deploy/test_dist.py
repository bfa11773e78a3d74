"""The wheel as a release uploads it: built of a copy of the tree, and looked into."""

from __future__ import annotations

import re
import shutil
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from deploy.dist import PACKAGED_JAR, PLACEHOLDER_HOST, IncompleteError, build_packages, check
from deploy.hbase.runtime import ROOT

PARTS = ("pyproject.toml", "README.md", "LICENSE", "deploy", "engine", "control", "pipeline")
LINKS = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is made of, with a jar in it."""
    copy = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.jar"))
        else:
            shutil.copy(ROOT / part, copy / part)
    (copy / "engine" / PACKAGED_JAR).write_bytes(b"a jar")
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_packages(source, tmp_path_factory.mktemp("dist"))


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        [name] = (name for name in packed.namelist() if name.endswith("/METADATA"))
        return message_from_string(packed.read(name).decode())


def test_the_wheel_and_the_source_hold_the_jar_and_all_packages(wheel: Path):
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        assert packed.read(PACKAGED_JAR) == b"a jar"
    for needed in ("basalt/__init__.py", "basalt/thrift/tephra.thrift", "basalt_spark/__init__.py", "basalt/py.typed"):
        assert needed in names
    assert not [name for name in names if name.startswith(("tests", "deploy", "demo", "bench"))]
    [archive] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        assert any(name.endswith(PACKAGED_JAR) for name in packed.getnames())


def test_a_reader_of_the_release_finds_the_source_and_no_dead_link(wheel: Path):
    metadata = metadata_of(wheel)
    urls = dict(each.split(", ") for each in metadata.get_all("Project-URL", ()))
    assert set(urls) == {"Source", "Documentation", "Changelog"}
    assert all(url.startswith("https://") for url in urls.values())
    links = LINKS.findall(str(metadata.get_payload()))
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_base_is_the_client_and_each_extra_that_serves_has_the_server(wheel: Path):
    requires = metadata_of(wheel).get_all("Requires-Dist", ())
    base = {re.split(r"[<>=]", each)[0] for each in requires if "extra ==" not in each}
    assert base == {"aiohttp", "click", "msgspec", "pyyaml", "yarl"}
    for extra in ("server", "hbase", "tephra", "arrow", "spark"):
        assert any(each.startswith("rocksdict") and f"extra == '{extra}'" in each for each in requires)


def test_a_wheel_without_the_jar_is_no_release(source: Path, wheel: Path, tmp_path: Path):
    lean = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(lean, "w") as without:
        for name in packed.namelist():
            if name != PACKAGED_JAR:
                without.writestr(name, packed.read(name))
    with pytest.raises(IncompleteError, match="make jar"):
        check(lean)


def test_a_release_without_an_address_of_its_own_is_told_so(wheel: Path):
    told = check(wheel)
    text = (ROOT / "pyproject.toml").read_text()
    assert bool(told) is (PLACEHOLDER_HOST in text)
