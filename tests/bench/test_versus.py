"""Comparing two trees: `bench.versus`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import versus


def test_a_comparison_tells_the_ratios_pair_by_pair():
    line = versus.comparison("publish-500", old=[10.0, 20.0, 10.0], new=[11.0, 19.0, 10.0])
    assert line.split() == [
        "publish-500", "old", "10.00", "new", "11.00", "new/old", "1.000", "(0.950", "to", "1.100)", "CPU", "us/message",
    ]  # fmt: skip


def test_trees_take_turns_and_the_first_turn_of_each_is_a_warm_up(monkeypatch: pytest.MonkeyPatch):
    turns = []

    def measured_on(tree: Path, case: str, quick: bool) -> float:
        turns.append(tree.name)
        return float(len(turns))

    monkeypatch.setattr(versus, "_measured_on", measured_on)
    assert versus.paired("start", (Path("old"), Path("new")), 2, True) == [[3.0, 5.0], [4.0, 6.0]]
    assert turns == ["old", "new"] * 3


def test_a_tree_is_measured_with_its_own_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    seen = {}

    def run(command, env, **_):
        seen.update(command=command, path=env["PYTHONPATH"].split(":"))
        return type("Done", (), {"stdout": 'noise\n{"case": "start", "value": 12.5, "unit": "CPU ms"}\n'})

    monkeypatch.setattr("subprocess.run", run)
    assert versus._measured_on(tmp_path, "start", True) == 12.5
    assert seen["path"] == [str(tmp_path / package) for package in ("engine", "control", "pipeline")]
    assert seen["command"][-3:] == ["start", "--json", "--quick"]


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["--old", "somewhere"], ["--old", "a", "--new", "b", "--pairs", "0"]]
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["versus", *arguments])
    with pytest.raises(SystemExit):
        versus.main()
