"""Comparing two trees: `bench.versus`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bench import versus


def test_a_comparison_tells_the_ratios_pair_by_pair():
    line = versus.comparison("publish-500", old=[10.0, 20.0, 10.0], new=[11.0, 19.0, 10.0])
    assert line.split() == [
        "publish-500", "old", "10.00", "new", "11.00", "new/old", "1.000", "(0.950", "to", "1.100)", "CPU", "us/message",
    ]  # fmt: skip


class Turns(versus.Child):
    """A child that notes whose turn it is."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def next_cost(self) -> float:
        self.seen.append(self.name)
        return float(len(self.seen))


def test_trees_take_turns_at_being_first_and_the_first_turn_of_each_is_a_warm_up():
    seen: list[str] = []
    assert versus.paired([Turns("old", seen), Turns("new", seen)], 2) == [[3.0, 6.0], [4.0, 5.0]]
    assert seen == ["new", "old", "old", "new", "new", "old"]


def test_a_tree_is_measured_with_its_own_packages(tmp_path: Path):
    package = tmp_path / "control" / "basalt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit(7)")
    child = versus.Child(tmp_path, "start", True)
    with pytest.raises(RuntimeError, match=f"start on {tmp_path} failed, with exit code 7"):
        child.next_cost()
    child.close()


def test_a_round_is_done_whenever_it_is_asked_for_and_the_case_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch):
    folders = []

    def case(folder: Path, scale: int) -> versus.Rounds:
        folders.append(folder)
        try:
            yield from (float(scale), 2.5, 3.5)
        finally:
            assert folder.exists()
            folders.append("closed")

    monkeypatch.setitem(versus.CASES, "start", (case, "CPU ms"))
    answers = io.BytesIO()
    versus.answer_rounds("start", True, io.BytesIO(b"\n\n"), answers)
    assert answers.getvalue().split() == [b"10.0", b"2.5"]
    assert folders[1:] == ["closed"]
    assert not folders[0].exists()


def test_a_child_that_fails_ends_the_comparison(tmp_path: Path):
    child = versus.Child(tmp_path, "no such case", True)
    with pytest.raises(RuntimeError, match=r"no such case on .* failed, with exit code 2"):
        child.next_cost()
    child.close()


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["--old", "somewhere"], ["--old", "a", "--new", "b", "--pairs", "0"]]
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["versus", *arguments])
    with pytest.raises(SystemExit):
        versus.main()
