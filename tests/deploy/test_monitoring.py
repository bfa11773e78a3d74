"""Prometheus' rules and Grafana's dashboards: as the code has them, read by promtool, and each alert tells where to read on."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from basalt.operations.alerts.rules import ALERTS
from deploy.monitoring.__main__ import FOLDER, MEND, files, main
from deploy.monitoring.cases import CASES
from deploy.monitoring.dashboards import COLUMNS, DASHBOARDS, Dashboard, model
from deploy.monitoring.rules import RUNBOOK, runbook_url
from deploy.reference import ROOT
from tests.programs import needed_program

VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}


@pytest.fixture(scope="module")
def promtool() -> str:
    return needed_program("promtool")


def check(promtool: str, *arguments: str, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def recording_rules(expressions: list[str], folder: Path) -> Path:
    """A file of rules that record these expressions: promtool parses them so, and says which it cannot."""
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(expressions)]
    file = folder / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    return file


def expressions(dashboard: Dashboard) -> list[str]:
    """Every expression of a dashboard, with something in place of Grafana's variables."""
    found = [target["expr"] for panel in model(dashboard)["panels"] for target in panel["targets"]]
    for name, value in VARIABLES.items():
        found = [each.replace(name, value) for each in found]
    return found


def test_the_files_are_as_make_monitoring_writes_them(capsys: pytest.CaptureFixture[str]):
    assert main(["--check"]) == 0, f"{capsys.readouterr().out}: {MEND}"
    assert {path.name for path in FOLDER.glob("*.json")} == {path.name for path in files() if path.suffix == ".json"}


def test_a_file_that_lags_behind_is_named_and_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    lagging = tmp_path / "rules.yml"
    lagging.write_text("old")
    monkeypatch.setattr("deploy.monitoring.__main__.files", lambda: {lagging: "new", tmp_path / "gone.json": "{}"})
    assert main(["--check"]) == 1
    assert lagging.read_text() == "old"
    assert capsys.readouterr().out.split() == ["rules.yml", "gone.json"]
    assert main([]) == 0
    assert (lagging.read_text(), (tmp_path / "gone.json").read_text()) == ("new", "{}")


def test_prometheus_reads_the_rules_and_the_example(promtool: str, tmp_path: Path):
    checked = check(promtool, "check", "rules", "rules.yml")
    assert checked.returncode == 0, checked.stderr
    for name in ("rules.yml", "prometheus.yml"):
        text = (FOLDER / name).read_text()
        (tmp_path / name).write_text(text.replace("/etc/prometheus", str(tmp_path)))
    for name in ("basalt-ca.pem", "basalt-token"):
        (tmp_path / name).write_text("")
    checked = check(promtool, "check", "config", "prometheus.yml", folder=tmp_path)
    assert checked.returncode == 0, checked.stderr


def test_each_alert_fires_where_it_should_and_nowhere_else(promtool: str):
    tested = check(promtool, "test", "rules", "rules_test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_case_that_is_wrong_is_seen(promtool: str, tmp_path: Path):
    (tmp_path / "rules.yml").write_text((FOLDER / "rules.yml").read_text().replace("> 60", "> 6000"))
    cases = yaml.safe_load((FOLDER / "rules_test.yml").read_text())
    cases["tests"] = [
        case for case in cases["tests"] if case["name"].startswith("BasaltReadersHeldBack ")
    ]  # all take seconds
    (tmp_path / "rules_test.yml").write_text(yaml.safe_dump(cases))
    tested = check(promtool, "test", "rules", "rules_test.yml", folder=tmp_path)
    assert tested.returncode != 0
    assert "BasaltReadersHeldBack fires" in tested.stdout + tested.stderr


def test_every_alert_has_a_case():
    assert list(CASES) and sorted(CASES) == sorted(alert.name for alert in ALERTS)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_prometheus_reads_each_panels_expressions(promtool: str, dashboard: Dashboard, tmp_path: Path):
    checked = check(promtool, "check", "rules", str(recording_rules(expressions(dashboard), tmp_path)))
    assert checked.returncode == 0, checked.stderr


def test_an_expression_that_is_broken_is_seen(promtool: str, tmp_path: Path):
    broken = expressions(DASHBOARDS[0])[0] + ")"
    checked = check(promtool, "check", "rules", str(recording_rules([broken], tmp_path)))
    assert checked.returncode != 0


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_has_its_section_which_says_what_to_do(alert: Any):
    page = (ROOT / RUNBOOK).read_text()
    section = re.search(rf"^### {alert.name}\n(.*?)(?=^###? |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    assert section is not None, f"{RUNBOOK} has no section {alert.name}"
    assert [word for word in ("**Means** ", "**Look** ", "**Do** ") if word not in section[1]] == []
    assert runbook_url(alert).endswith(f"/{RUNBOOK}#{alert.name.lower()}")


def test_the_runbook_has_no_section_of_an_alert_that_is_gone():
    page = (ROOT / RUNBOOK).read_text()
    assert sorted(re.findall(r"^### (\w+)$", page, flags=re.MULTILINE)) == sorted(alert.name for alert in ALERTS)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_a_dashboard_names_no_data_source_and_no_instance_of_its_own(dashboard: Dashboard):
    shown = json.loads((FOLDER / dashboard.file_name).read_text())
    assert [each["name"] for each in shown["templating"]["list"]] == ["datasource", "instance"]
    sources = [panel["datasource"]["uid"] for panel in shown["panels"]]
    sources += [target["datasource"]["uid"] for panel in shown["panels"] for target in panel["targets"]]
    assert set(sources) == {"${datasource}"}
    for panel in shown["panels"]:
        for target in panel["targets"]:
            assert 'instance=~"$instance"' in target["expr"] or "ALERTS" in target["expr"], panel["title"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_no_panel_covers_another_and_each_says_what_it_shows(dashboard: Dashboard):
    taken: dict[tuple[int, int], str] = {}
    panels = model(dashboard)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        assert panel["description"].endswith(".")
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
