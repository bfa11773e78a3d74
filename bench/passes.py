"""Counts the product's files and functions that one call passes through, from the client down to the store.

    python -m bench.passes [--json] [--list CALL]

The server runs in this process (`embedded:`), and every function that any thread enters between the call and a moment after its
answer is noted. A call is made several times; what each of them entered counts, so that jobs that happen to run do not. The tree
that is measured is the one that `PYTHONPATH` names, so that an older one can be counted by the same file:

    PYTHONPATH=OLD/engine:OLD/control:OLD/pipeline python -m bench.passes

Comprehensions count as functions, for Python enters them as such; generated code (a dataclass's methods) does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import basalt
import basalt_engine

ROUNDS = 5
WARM_UPS = 5
CHANGE = bytes(4 << 20)
CHANGED_BYTES = 20 << 20
SETTLE_S = 0.05  # what a server does for a call once it has answered: notes in logs, counts
ENGINE = "engine"
# The way from a caller's words to the services, and back: the front door, client, transport and codecs.
FACES = frozenset({"aio", "api", "basalt", "client", "embedded", "http", "wire"})
INNER = frozenset({"<module>"})


class Function(NamedTuple):
    """A function of the product, and the package that it counts for."""

    package: str
    file: str
    line: int
    name: str


class Count(NamedTuple):
    """Files and functions."""

    files: int
    functions: int


class Recorder:
    """Notes the code that threads enter, while it is on. It sees those that were started after it was set up."""

    def __init__(self) -> None:
        self.on = False
        self._by_place: dict[tuple[str, int, str], CodeType] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """The function that `sys.setprofile` calls."""
        if self.on and event == "call":
            code = frame.f_code
            # By its place: two functions of different files with the same code are equal.
            self._by_place[code.co_filename, code.co_firstlineno, code.co_qualname] = code

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See every thread that is started from here on, and this one."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def during(self, call: Callable[[], object]) -> list[CodeType]:
        """The code that is entered by a call, up to a moment after it."""
        self._by_place = {}
        self.on = True
        call()
        time.sleep(SETTLE_S)
        self.on = False
        return list(self._by_place.values())


def function_of(code: CodeType, roots: Iterable[Path]) -> Function | None:
    """The product's function that has this code; `roots` are the folders of its packages. None for anybody else's."""
    if code.co_name in INNER:
        return None
    path = Path(code.co_filename)
    for root in roots:
        if path.is_relative_to(root):
            inside = path.relative_to(root)
            return Function(
                package_of(root.name, inside), f"{root.name}/{inside}", code.co_firstlineno, code.co_qualname
            )
    return None


def package_of(root: str, inside: Path) -> str:
    """The part that a file counts for: the engine is one, and each package and each module at the top of the control plane."""
    if root != "basalt":
        return ENGINE if root == "basalt_engine" else root
    first = inside.parts[0]
    return "basalt" if first == "__init__.py" else first.removesuffix(".py")


def counted(functions: Iterable[Function]) -> Count:
    """The number of files and functions among these."""
    some = set(functions)
    return Count(len({function.file for function in some}), len(some))


def by_package(functions: Iterable[Function]) -> dict[str, Count]:
    """The same of each package, the one with most files first."""
    parts: dict[str, list[Function]] = defaultdict(list)
    for function in functions:
        parts[function.package].append(function)
    counts = {package: counted(some) for package, some in parts.items()}
    return dict(sorted(counts.items(), key=lambda item: (-item[1].files, item[0])))


def services_alone(functions: Iterable[Function]) -> list[Function]:
    """Those behind the faces."""
    return [function for function in functions if function.package not in FACES]


def table(passes: Mapping[str, frozenset[Function]]) -> str:
    """A column for each call: files/functions in all, of the services alone, and of each package."""
    columns = {call: by_package(functions) for call, functions in passes.items()}
    packages = sorted({package for column in columns.values() for package in column})
    rows = [("", *passes)]
    rows.append(("all", *(_cell(counted(functions)) for functions in passes.values())))
    rows.append(("services alone", *(_cell(counted(services_alone(functions))) for functions in passes.values())))
    rows += [(package, *(_cell(column.get(package)) for column in columns.values())) for package in packages]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def as_json(passes: Mapping[str, frozenset[Function]]) -> str:
    """The same for programs."""
    return json.dumps(
        {
            call: {
                "all": counted(functions)._asdict(),
                "servicesAlone": counted(services_alone(functions))._asdict(),
                "packages": {package: count._asdict() for package, count in by_package(functions).items()},
            }
            for call, functions in passes.items()
        }
    )


def _cell(count: Count | None) -> str:
    return "" if count is None else f"{count.files}/{count.functions}"


def measured(store: str = "rocks") -> dict[str, frozenset[Function]]:
    """Measure the path of each call, once it is warm."""
    roots = [Path(package.__file__).parent for package in (basalt, basalt_engine) if package.__file__]
    recorder = Recorder()
    passes: dict[str, frozenset[Function]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        recorder.installed(),
        basalt.connect(f"embedded:{folder}/data", settings={"store.kind": store}) as client,
    ):
        client.topics.create("orders")
        for name, prepare, call in _calls(client):
            rounds = []
            for number in range(WARM_UPS + ROUNDS):
                subject = prepare()
                codes = recorder.during(lambda call=call, subject=subject: call(subject))  # type: ignore[misc]
                if number >= WARM_UPS:
                    found = (function_of(code, roots) for code in codes)
                    rounds.append(frozenset(function for function in found if function is not None))
            passes[name] = frozenset.intersection(*rounds)
    return passes


def _calls(client: basalt.client.Client) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], object]]]:
    """Each call: its name, what comes before it and is not counted, and the call with what that returned."""
    orders = client.topic("orders")

    def stored() -> Any:
        begun = client.transactions.begin()
        orders.store([b"stored"], begun.write_pointer)
        return begun

    def last() -> Any:
        """A position right before a new message."""
        position = None
        while len(page := orders.poll(start=position, inclusive=position is None)):
            position = page.next_id
        orders.publish([b"new"])
        return position

    def changed() -> None:
        """Enough that the counts are saved at once, and not after some minutes."""
        orders.stats()
        for _ in range(CHANGED_BYTES // len(CHANGE)):
            orders.publish([CHANGE])

    yield "publish", lambda: None, lambda _: orders.publish([b"message"])
    yield "commit of stored", stored, lambda begun: client.transactions.commit(begun.id)
    yield "one-shot", lambda: None, lambda _: client.publish_atomically({"orders": [b"message"]})
    yield (
        "committed fetch",
        last,
        lambda position: orders.poll(start=position, inclusive=False, isolation="committed"),
    )
    yield "stats", lambda: orders.publish([b"message"]), lambda _: orders.stats()
    yield "job stats", changed, lambda _: client.admin.run_job("stats")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.passes", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--store", choices=("rocks", "memory"), default="rocks", help="the store to count with")
    parser.add_argument("--list", metavar="CALL", help="print the functions of one call instead, by file")
    arguments = parser.parse_args()
    passes = measured(arguments.store)
    if arguments.list is not None:
        if arguments.list not in passes:
            parser.error(f"no call is called {arguments.list!r}; there are {', '.join(passes)}")
        for function in sorted(passes[arguments.list]):
            print(f"{function.file}:{function.line} {function.name}")
        return 0
    print(as_json(passes) if arguments.json else table(passes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
