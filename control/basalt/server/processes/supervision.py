"""The rules of `--processes`: where each server listens, when one that died is started again, and when the supervisor gives up. Pure.

A server that dies is started again after a pause that grows with each death, and that is short again once one has lasted. A server that never
answered is no such case: its start is wrong, and says why. After a few attempts the whole command ends, with that exit code.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit, urlunsplit

from basalt.errors import InvalidSettingError
from basalt.settings import Settings

PORT_MAX = 65_535
PAUSE_MS_MIN = 200  # a server that was killed is back within a second or two
PAUSE_MS_MAX = 30_000  # a server that dies at once takes some seconds of processor time for its start
LASTED_MS = 60_000  # who has answered for so long died of something else than the one before
# Of a server that has never answered: a port that the command before it had for a moment longer may be free by then.
STARTS_MAX = 3
STOP_MS_MAX = 10_000  # a server answers what is open for 8 s, and closes its store
USAGE = 2  # the exit code of a server whose settings are wrong: the next start would say the same


class Stage(enum.Enum):
    """The present part of one server."""

    RESTING = "rests"
    STARTING = "starts"
    ANSWERING = "answers"


@dataclass(frozen=True, slots=True)
class Child:
    """One of the servers, over all its runs. Times are those of the supervisor's monotonic clock."""

    number: int
    stage: Stage = Stage.RESTING
    since_ms: float = 0.0  # of its stage
    due_ms: float = 0.0  # it is started then, while it rests
    deaths: int = 0  # in a row, none of which came after a long life
    has_answered: bool = False  # in any of its runs

    def started(self, now_ms: float) -> Child:
        """The same once its process is there."""
        return replace(self, stage=Stage.STARTING, since_ms=now_ms)

    def answers(self, now_ms: float) -> Child:
        """The same once it said that it answers."""
        return replace(self, stage=Stage.ANSWERING, since_ms=now_ms, has_answered=True)

    def died(self, now_ms: float) -> Child:
        """The same once its process is gone."""
        lasted = self.stage is Stage.ANSWERING and now_ms - self.since_ms >= LASTED_MS
        deaths = 1 if lasted else self.deaths + 1
        return replace(self, stage=Stage.RESTING, since_ms=now_ms, due_ms=now_ms + pause_ms(deaths), deaths=deaths)

    def is_hopeless(self, exit_code: int) -> bool:
        """True when it has just died with this code, and another start would end in the same way."""
        return not self.has_answered and (exit_code == USAGE or self.deaths >= STARTS_MAX)


def pause_ms(deaths: int) -> int:
    """The pause before the next start, after so many deaths in a row."""
    doublings = min(deaths - 1, PAUSE_MS_MAX.bit_length())
    return min(PAUSE_MS_MIN << doublings, PAUSE_MS_MAX)


def to_start(children: Iterable[Child], now_ms: float) -> list[int]:
    """The numbers of those that are to be started now. Nobody follows the first one before it answers: what is wrong is said once, then."""
    children = list(children)
    opened = any(child.has_answered for child in children)
    due = [child.number for child in children if child.stage is Stage.RESTING and now_ms >= child.due_ms]
    return [number for number in due if opened or number == 1]


def next_start_ms(children: Iterable[Child], now_ms: float) -> float | None:
    """After how many milliseconds there is one to start; None: none rests."""
    waits = [child.due_ms - now_ms for child in children if child.stage is Stage.RESTING]
    return max(0.0, min(waits)) if waits else None


def exit_code(codes: Iterable[int]) -> int:
    """The exit code of the whole, by those of the servers that were asked to stop. One that had hardly begun ends by the signal itself."""
    return 0 if all(code in (0, -signal.SIGTERM) for code in codes) else 1


def check(settings: Settings, count: int) -> None:
    """Refuse several processes on a store that one has to itself."""
    if settings.store.kind != "hbase":
        raise InvalidSettingError(
            f"--processes {count} needs store.kind hbase, and it is {settings.store.kind}: such a store has one writer, and a second"
            " process could not open it",
            field="store.kind",
            hint="leave --processes out; or keep the data in HBase, where several servers share it",
        )


def how(code: int) -> str:
    """Say how a process ended, by its exit code; a signal's is negative."""
    if code >= 0:
        return f"ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def settings_of(settings: Settings, number: int) -> Settings:
    """The settings of one of the servers, from 1 on: its port is so many behind the shared one, and its other addresses accordingly."""
    server, cluster, leader = settings.server, settings.cluster, settings.leader
    if server.port:
        server = replace(server, port=_port(server.port + number, "server.port"))
    if cluster.listen is not None:
        host, _, port = cluster.listen.rpartition(":")
        cluster = replace(cluster, listen=f"{host}:{_port(int(port) + number - 1, 'cluster.listen')}")
    if leader.url is not None:
        url = urlsplit(leader.url)
        if url.port is None or not settings.server.port:
            raise InvalidSettingError(
                f"setting leader.url: {leader.url} names one server, and each of several processes has an address of its own",
                field="leader.url",
                hint="give the shared port in it, and by --port: the servers are found at the ports that follow",
            )
        at, _, _ = url.netloc.rpartition(":")
        leader = replace(leader, url=urlunsplit(url._replace(netloc=f"{at}:{_port(url.port + number, 'leader.url')}")))
    return replace(settings, server=server, cluster=cluster, leader=leader)


def _port(port: int, field: str) -> int:
    if port > PORT_MAX:
        raise InvalidSettingError(
            f"setting {field}: one of the servers would need port {port}, and {PORT_MAX} is the last one",
            field=field,
            hint="each process takes the next port: begin lower",
        )
    return port
