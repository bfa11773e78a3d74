"""Cases of fixed work, for comparing two trees: how many messages a second, how late, and what a message, a call or a start costs.

    python -m bench.versus CASE [--quick] [--json]

`PYTHONPATH` chooses the tree whose server, client and Spark source are measured; the bench is that of the working directory, and
knows of the tree only its command line, its client and its HTTP calls as the client sends them. To pair an old tree with a new one,
name both (`OLD` and `NEW` are checkouts, each with its bytecode or both without):

    python -m bench.versus --old OLD --new NEW [--pairs 6] [--servers 3] [--quick] [CASE ...]

Of rates and latencies the best round of each tree is printed, and the ratio of the two; of costs the medians, and the ratios pair by
pair. All of them, the memory and the processor time of the load are of the same rounds. `bench/cases.py` has the cases.

A server of each then runs all the time, and they work in turns of a second or so: a machine that gets slower for a minute slows both.
After some pairs new servers take over: a process is some percent slower or quicker for as long as it lives.

A program that times whole processes in turns can be given the single runs:

    PYTHONPATH=NEW/engine:NEW/control:NEW/pipeline python -m bench.versus CASE
    PYTHONPATH=OLD/engine:OLD/control:OLD/pipeline python -m bench.versus CASE
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import median
from typing import IO

from bench.cases import CASES as SERVED
from bench.cases import Round, Rounds
from bench.lanes import BY_ROW

CASES = SERVED | BY_ROW
ROUNDS = 5  # of one tree so many are measured
QUICK = 10
PACKAGES = ("engine", "control", "pipeline")
ROUND = b"\n"  # asks a child for one round


@contextmanager
def rounds_of(case: str, quick: bool) -> Iterator[Rounds]:
    """The rounds of a case on the tree that is imported, each as it is asked for."""
    folder = Path(tempfile.mkdtemp(prefix="basalt-versus-"))
    try:
        with closing(CASES[case][0](folder, QUICK if quick else 1)) as rounds:
            yield rounds
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(case: str, quick: bool) -> list[Round]:
    """Some rounds of a case on the tree that is imported."""
    with rounds_of(case, quick) as rounds:
        return list(islice(rounds, ROUNDS))


def answer_rounds(case: str, quick: bool, asked: IO[bytes], answers: IO[bytes]) -> None:
    """Do a round for each line that is asked, and answer it in a line of JSON, until no more is asked."""
    with rounds_of(case, quick) as rounds:
        for _ in iter(asked.readline, b""):
            answers.write(json.dumps(asdict(next(rounds))).encode() + b"\n")
            answers.flush()


def paired(trees: Sequence[Child], pairs: int) -> list[list[Round]]:
    """So many rounds of each tree, which are first in turns; the first round of each is not counted."""
    found: list[list[Round]] = [[] for _ in trees]
    for turn in range(pairs + 1):
        order = list(zip(trees, found, strict=True))
        for tree, rounds in order if turn % 2 else reversed(order):
            done = tree.next_round()
            if turn:
                rounds.append(done)
    return found


class Child:
    """A process in which the packages are those of a tree, and which does a round of a case whenever it is asked."""

    def __init__(self, tree: Path, case: str, quick: bool) -> None:
        self._what = f"{case} on {tree}"
        path = os.pathsep.join(str(tree.resolve() / package) for package in PACKAGES)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.versus", case, "--answer-rounds", *(["--quick"] if quick else [])],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def next_round(self) -> Round:
        """Do a round; `RuntimeError` when the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(ROUND)
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._what} failed, with exit code {self._process.wait()}")
        return Round(**json.loads(line))

    def close(self) -> None:
        """Let it end, and wait for it."""
        self._process.communicate()


def best(rounds: Sequence[Round]) -> Round:
    """The highest rate, the least latency, the median of cost, memory and load."""
    return Round(
        median(one.cost for one in rounds),
        _of(max, [one.per_s for one in rounds]),
        _of(min, [one.p50_ms for one in rounds]),
        _of(median, [one.load_us for one in rounds]),
        _of(median, [one.rss_mib for one in rounds]),
    )


def _of(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return choose(found) if found else None


def line_of(case: str, rounds: Sequence[Round]) -> str:
    """A line: what a case costs on one tree."""
    one = best(rounds)
    return _joined(
        case,
        one.per_s and f"{one.per_s:,.0f}/s",
        one.p50_ms and f"p50 {one.p50_ms:.2f} ms",
        f"{one.cost:.2f} {CASES[case][1]}",
        one.load_us and f"load {one.load_us:.1f} us",
        one.rss_mib and f"RSS {one.rss_mib:.0f} MiB",
    )


def comparison(case: str, old: Sequence[Round], new: Sequence[Round]) -> str:
    """A line: old, new and their ratio; of the cost the least, middle and greatest ratio of the pairs."""
    ratios = sorted(ours.cost / theirs.cost for ours, theirs in zip(new, old, strict=True))
    theirs, ours = best(old), best(new)
    return _joined(
        case,
        theirs.per_s and ours.per_s and f"{theirs.per_s:,.0f} -> {ours.per_s:,.0f}/s = {ours.per_s / theirs.per_s:.2f}",
        theirs.p50_ms
        and ours.p50_ms
        and f"p50 {theirs.p50_ms:.2f} -> {ours.p50_ms:.2f} ms = {ours.p50_ms / theirs.p50_ms:.2f}",
        f"{theirs.cost:.2f} -> {ours.cost:.2f} {CASES[case][1]} = {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
        theirs.load_us and ours.load_us and f"load {theirs.load_us:.1f}, {ours.load_us:.1f} us",
        theirs.rss_mib and ours.rss_mib and f"RSS {theirs.rss_mib:.0f} -> {ours.rss_mib:.0f} MiB",
    )


def _joined(case: str, *parts: object) -> str:
    return f"{case:20} " + "   ".join(str(part) for part in parts if part)


def compared(case: str, arguments: argparse.Namespace) -> tuple[list[Round], list[Round]]:
    """The rounds of a case on both trees, over all pairs and servers."""
    both: tuple[list[Round], list[Round]] = ([], [])
    for _ in range(arguments.servers):
        with ExitStack() as stack:
            trees = [Child(tree, case, arguments.quick) for tree in (arguments.old, arguments.new)]
            for tree in trees:
                stack.callback(tree.close)
            for rounds, found in zip(both, paired(trees, arguments.pairs), strict=True):
                rounds.extend(found)
    return both


def as_json(case: str, **rounds: Sequence[Round]) -> str:
    return json.dumps(
        {"case": case, "unit": CASES[case][1], **{name: list(map(asdict, of)) for name, of in rounds.items()}}
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--old", type=Path, help="the tree to compare with")
    parser.add_argument("--new", type=Path, help="the tree that is compared")
    parser.add_argument("--pairs", type=int, default=6, help="counted rounds of each server")
    parser.add_argument("--servers", type=int, default=3, help="servers of each tree, one after the other")
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK}th of the work")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    # How it starts itself for a tree.
    parser.add_argument("--answer-rounds", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := [case for case in arguments.cases if case not in CASES]:
        parser.error(f"no case is called {unknown[0]}; there are {', '.join(CASES)}")
    if (arguments.old is None) != (arguments.new is None) or min(arguments.pairs, arguments.servers) < 1:
        parser.error("name both --old and --new, and one pair and one server at least")
    if arguments.answer_rounds:
        answers, sys.stdout = sys.stdout.buffer, sys.stderr  # whatever else is printed is no answer
        answer_rounds(arguments.cases[0], arguments.quick, sys.stdin.buffer, answers)
        return 0
    for case in arguments.cases or CASES:
        if arguments.old is not None:
            old, new = compared(case, arguments)
            line = as_json(case, old=old, new=new) if arguments.json else comparison(case, old, new)
        else:
            rounds = measured(case, arguments.quick)
            line = as_json(case, rounds=rounds) if arguments.json else line_of(case, rounds)
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
