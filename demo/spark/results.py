"""The contents of the two result topics, their difference from a direct count of the lines, and the printed tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from basalt.client import Client
from demo.pages import PATH_CHARS, TOP_PATHS, bars
from demo.spark.views import views_of

KeyT = TypeVar("KeyT", str, tuple[str, str])


@dataclass(slots=True)
class Hours:
    """Views of each path in each hour; views, and different clients, of each hour. `twice` are results that came again."""

    views: dict[tuple[str, str], int] = field(default_factory=dict)
    clients: dict[str, tuple[int, int]] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)

    @classmethod
    def published(cls, client: Client, views_topic: str, clients_topic: str) -> Hours:
        """The messages that a reader of committed messages gets."""
        hours = cls()
        for row in _rows(client, views_topic):
            place = (row["hour"], row["path"])
            if place in hours.views:
                hours.twice.append(f"{row['hour']} {row['path']}")
            hours.views[place] = row["views"]
        for row in _rows(client, clients_topic):
            if row["hour"] in hours.clients:
                hours.twice.append(row["hour"])
            hours.clients[row["hour"]] = (row["views"], row["clients"])
        return hours

    @classmethod
    def counted(cls, lines: Iterable[bytes]) -> Hours:
        views = views_of(lines)
        clients: defaultdict[str, set[str]] = defaultdict(set)
        for view in views:
            clients[view.hour].add(view.client)
        totals = Counter(view.hour for view in views)
        return cls(
            dict(Counter((view.hour, view.path) for view in views)),
            {hour: (totals[hour], len(seen)) for hour, seen in clients.items()},
        )

    @property
    def total(self) -> int:
        """All page views."""
        return sum(self.views.values())


def differences(seen: Hours, counted: Hours) -> list[str]:
    """In which way the results are wrong, in sentences; empty when they are right."""
    wrong = []
    if seen.twice:
        wrong.append(f"{len(seen.twice)} results were published twice, the first: {seen.twice[0]}")
    wrong += _unequal("views per hour", seen.views, counted.views)
    wrong += _unequal("clients per hour", seen.clients, counted.clients)
    return wrong


def _unequal(what: str, seen: Mapping[KeyT, object], counted: Mapping[KeyT, object]) -> list[str]:
    wrong = []
    for which, keys in (
        ("missing", counted.keys() - seen.keys()),
        ("that should not be", seen.keys() - counted.keys()),
        ("with other numbers", {key for key in counted.keys() & seen.keys() if counted[key] != seen[key]}),
    ):
        if keys:
            wrong.append(f"{what}: {len(keys)} results {which}, the first: {min(map(str, keys))}")
    return wrong


def print_hours(hours: Hours) -> None:
    """The days, with a bar for each hour, and the paths that were viewed most."""
    highest = max((views for views, _ in hours.clients.values()), default=0)
    days = Table("day", "page views", "most clients in an hour", "hour by hour", box=box.SIMPLE_HEAD)
    for day in sorted({hour[:10] for hour in hours.clients}):
        of_day = [hours.clients.get(f"{day} {number:02}h", (0, 0)) for number in range(24)]
        views = [count for count, _ in of_day]
        most = max(clients for _, clients in of_day)
        days.add_row(day, f"{sum(views):,}", f"{most:,}", bars(views, highest))
    paths: Counter[str] = Counter()
    for (_, path), views_there in hours.views.items():
        paths[path] += views_there
    top = Table("most viewed path", "page views", "hours", box=box.SIMPLE_HEAD)
    for path, count in sorted(paths.items(), key=lambda item: (-item[1], item[0]))[:TOP_PATHS]:
        shown = path if len(path) <= PATH_CHARS else path[: PATH_CHARS - 1] + "…"
        top.add_row(shown, f"{count:,}", f"{sum(1 for _, there in hours.views if there == path):,}")
    console = Console(markup=False, highlight=False)
    for table in (days, top):
        for column in table.columns[1:3]:
            column.justify = "right"
        console.print(table)


def _rows(client: Client, topic: str) -> Iterable[dict]:  # type: ignore[type-arg]
    return (json.loads(message.payload) for message in client.topic(topic).read(isolation="committed"))
