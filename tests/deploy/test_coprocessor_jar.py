"""When Maven is asked for the coprocessor's jar."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from basalt_engine.stores.hbase.regions import OWN_VERSION, version_number
from deploy import coprocessor_jar
from deploy.coprocessor_jar import build, is_packaged


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only source of a project that Maven packages by copying it."""
    source = tmp_path / "src" / "main" / "Rule.java"
    source.parent.mkdir(parents=True)
    source.write_text("one")
    (tmp_path / "pom.xml").write_text("project")
    target = tmp_path / "target"
    target.mkdir()
    monkeypatch.setattr(coprocessor_jar, "COPROCESSOR", tmp_path)
    monkeypatch.setattr(coprocessor_jar, "TARGET", target)
    monkeypatch.setattr(coprocessor_jar, "JAR", tmp_path / "basalt.jar")
    monkeypatch.setattr(coprocessor_jar, "SOURCES_MARK", target / "sources")
    monkeypatch.setattr(coprocessor_jar, "run_maven", lambda *_: package(source))
    return source


def package(source: Path, later_s: float = 1.0) -> None:
    jar = coprocessor_jar.TARGET / "coprocessor-1.jar"
    jar.write_text(source.read_text())
    os.utime(jar, (0, source.stat().st_mtime + later_s))


def test_a_jar_that_was_packaged_since_the_last_change_is_taken_as_it_is(source: Path, monkeypatch: pytest.MonkeyPatch):
    package(source)
    monkeypatch.setattr(coprocessor_jar, "run_maven", lambda *_: pytest.fail("Maven was asked"))
    assert build().read_text() == "one"
    assert build().read_text() == "one"


def test_an_older_jar_is_made_anew(source: Path):
    package(source, later_s=-1.0)
    source.write_text("two")
    assert not is_packaged([source])
    assert build().read_text() == "two"


def test_a_source_that_changed_behind_the_jar_is_seen(source: Path):
    assert build().read_text() == "one"
    source.write_text("two")
    os.utime(source, (0, source.stat().st_mtime + 10))
    assert build().read_text() == "two"


def test_two_jars_of_two_versions_are_made_anew(source: Path):
    package(source)
    (coprocessor_jar.TARGET / "coprocessor-0.jar").write_text("zero")
    assert build().read_text() == "one"


def test_the_jar_of_a_tree_has_the_version_of_its_server_for_each_warns_of_another():
    project = ET.parse(coprocessor_jar.COPROCESSOR / "pom.xml").getroot()
    version = project.findtext("{http://maven.apache.org/POM/4.0.0}version")
    assert version is not None
    assert version_number(version) == OWN_VERSION
