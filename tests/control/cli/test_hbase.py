"""`basalt hbase` without HBase: where the coprocessor's jar comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from basalt.cli.commands import hbase
from basalt.cli.failures import CommandFailure


def test_an_installation_without_the_jar_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hbase, "packaged_jar", lambda: None)
    with pytest.raises(CommandFailure, match="came without the coprocessor's jar") as refused:
        hbase.coprocessor_jar("packaged", None, None)
    assert refused.value.hint is not None
    assert "make jar" in refused.value.hint
    assert "a released wheel holds it" in refused.value.hint


def test_the_jar_of_the_installation_is_found_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(hbase, "packaged_jar", lambda: tmp_path / "basalt-coprocessor.jar")
    assert hbase.coprocessor_jar("packaged", None, None).path == f"file:{tmp_path}/basalt-coprocessor.jar"
