"""The output of the demo: the table of page views, and the commands to try next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from demo.report import Views

BARS = " ▁▂▃▄▅▆▇█"
TOP_PATHS = 6
PATH_CHARS = 48
CONSOLE = "http://127.0.0.1:4780/console"  # of a server that is started without a word about its place


def print_views(views: Views) -> None:
    """Page views and unique clients: by day, with a bar for each hour, and of the most viewed paths."""
    days = Table("day", "page views", "unique clients", "hour by hour", box=box.SIMPLE_HEAD)
    highest = max((max(hours) for _, _, hours in views.by_day()), default=0)
    for day, group, hours in views.by_day():
        days.add_row(day, f"{group.views:,}", f"{len(group.clients):,}", bars(hours, highest))
    days.add_row("all", f"{views.total:,}", f"{len(views.clients):,}", "")
    paths = Table("most viewed path", "page views", "unique clients", box=box.SIMPLE_HEAD)
    for path, group in views.top_paths(TOP_PATHS):
        shown = path.encode(errors="backslashreplace").decode()
        shown = shown if len(shown) <= PATH_CHARS else shown[: PATH_CHARS - 1] + "…"
        paths.add_row(shown, f"{group.views:,}", f"{len(group.clients):,}")
    console = Console(markup=False, highlight=False)
    for table in (days, paths):
        for column in table.columns[1:3]:
            column.justify = "right"
        console.print(table)
    if views.skipped:
        console.print(
            f"{views.skipped:,} lines are not access log lines; they were published and read, but not counted"
        )


def bars(values: list[int], highest: int) -> str:
    """One sign for each value, as high as its part of `highest`; any value above zero is seen."""
    steps = len(BARS) - 1
    return "".join(BARS[-(-value * steps // highest)] if highest else BARS[0] for value in values)


def print_next_steps(data: Path, settings: Sequence[str], first_step: str | None) -> None:
    """The commands that show the same data from other sides."""
    first = f"  {first_step}\n" if first_step else ""
    options = "".join(f" --set {setting}" for setting in settings)
    command = "basalt" if shutil.which("basalt") else str(_shortened(Path(sys.executable).with_name("basalt")))
    print(
        f"\nTry next, and look at {CONSOLE} in a browser (make demo OPEN=1 leaves its own server running for that):\n{first}"
        f"  {command} serve --data {data}{options} &\n"
        f"  {command} topic list\n"
        f"  {command} consume access-log --limit 3\n"
        f"  {command} group show visits visit-counters\n"
        f"  {command} tx list\n"
        f"  {command} doctor"
    )


def print_console(url: str, process_id: int, hanging: str) -> None:
    """The address of the console of a server that goes on, what is to be seen there, and how it is stopped."""
    print(
        f"\nThe server goes on, with all of this in it. Its console is at {url}/console\n"
        f"In it a transaction hangs and holds the readers of access-log back: {url}/console/transactions/{hanging}\n"
        f"There it can be aborted; in five minutes the server does so by itself. Stop the server with: kill {process_id}"
    )


def _shortened(path: Path) -> Path:
    """The path from here, when it is below here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
