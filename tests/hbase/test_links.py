"""Links of real servers on one real HBase: who is linked, and what a stop, a kill, a pause, a cut and a wrong secret make of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, Installation, Pair, names, serves, until
from tests.hbase.test_members import members, name_of, states_of
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]


def secret_file(folder: Path, name: str) -> list[str]:
    """Options of a server that has a secret of this name."""
    path = folder / f"{name}.secret"
    path.touch(0o600)
    path.write_text(f"{name}: the secret of the servers on these tables")
    return ["--set", f"cluster.secret_file={path}"]


def started(pair: Pair, guarded: Installation, *options: str) -> ServerProcess:
    return pair.start(*guarded.options(), *options)


def linked(leader: ServerProcess) -> dict[str, Any]:
    """Whether each living member is linked, by the end of its name."""
    return {":" + each["name"].rsplit(":", 1)[1]: each for each in members(leader) if each["state"] != "dead"}


def is_linked(leader: ServerProcess, member: ServerProcess) -> bool:
    told = linked(leader).get(name_of(member))
    return told is not None and told["linked"] is True and told["rttUs"] is not None


def log_of(server: ServerProcess) -> str:
    return server.log.read_text(errors="replace")


@pytest.fixture
def three(pair: Pair, guarded: Installation, tmp_path: Path) -> list[ServerProcess]:
    """A leader and two standbys, all with one secret, and linked."""
    secret = secret_file(tmp_path, "one")
    leader = started(pair, guarded, *secret)
    until(lambda: serves(leader), leader)
    standbys = [started(pair, guarded, *secret) for _ in range(2)]
    until(lambda: all(is_linked(leader, each) for each in standbys), leader)
    return [leader, *standbys]


def test_links_follow_the_lead_and_a_killed_server_is_not_linked_at_once(three: list[ServerProcess]):
    leader, second, third = three
    assert linked(leader)[name_of(leader)]["linked"] is None
    metrics = leader.ask("GET", "/metrics").body.decode()
    assert "basalt_cluster_links 2.0" in metrics
    assert "basalt_cluster_link_rtt_seconds" in metrics
    second.kill()
    instance = linked(leader)[name_of(second)]["instance"]
    until(lambda: linked(leader)[name_of(second)]["linked"] is False, leader)
    until(lambda: states_of(leader, name_of(second)) == ["dead"], leader)
    said = log_of(leader)
    broken = said.index(f"the link with the member {instance} is over")
    ended = said.index(f"ended the membership {instance}")
    assert broken < ended, "the link tells before the row is missed"
    assert leader.stop() == 0
    until(lambda: serves(third), third, TAKE_OVER_SECONDS_MAX)
    assert "is over: the other server goes" in log_of(third)
    assert third.ask("GET", "/v1/cluster").json()["epoch"] > 1


def test_a_leader_that_is_killed_is_followed_when_its_lease_is_over_and_links_go_to_the_next(
    three: list[ServerProcess],
):
    leader, *standbys = three
    leader.kill()
    for each in standbys:
        until(lambda each=each: "the link with the leader" in log_of(each), each)  # type: ignore[misc]
    until(lambda: any(serves(each) for each in standbys), standbys[0], TAKE_OVER_SECONDS_MAX)
    next_leader, other = standbys if serves(standbys[0]) else reversed(standbys)
    until(lambda: is_linked(next_leader, other), next_leader)
    assert sum(serves(each) for each in standbys) == 1


def test_a_member_that_is_paused_loses_its_link_and_has_it_again(three: list[ServerProcess]):
    leader, second, third = three
    assert second.process is not None
    second.process.send_signal(signal.SIGSTOP)
    until(lambda: linked(leader)[name_of(second)]["linked"] is False, leader)
    second.process.send_signal(signal.SIGCONT)
    until(lambda: is_linked(leader, second), leader)
    assert serves(leader)
    assert is_linked(leader, third)


def test_a_wrong_secret_is_told_in_both_logs_and_the_member_is_ended_and_comes_again(
    pair: Pair, guarded: Installation, tmp_path: Path
):
    leader = started(pair, guarded, *secret_file(tmp_path, "one"))
    until(lambda: serves(leader), leader)
    other = started(pair, guarded, *secret_file(tmp_path, "another"))
    until(lambda: names(other, leader), other)
    for each in (leader, other):
        until(lambda each=each: "the two do not have the same secret" in log_of(each), each)  # type: ignore[misc]
    until(lambda: states_of(leader, name_of(other)) == ["live"], leader)
    until(lambda: sorted(states_of(leader, name_of(other))) == ["dead", "live"], leader, TAKE_OVER_SECONDS_MAX)
    assert "has had no link to the leader for too long" in log_of(leader)
    assert serves(leader)


def test_beyond_this_machine_a_server_without_a_secret_does_not_start(
    pair: Pair, guarded: Installation, tmp_path: Path
):
    options = ["--set", "server.host=0.0.0.0", "--set", "auth.kinds=none"]
    with pytest.raises(AssertionError, match=r"cluster\.secret_file is not given"):
        started(pair, guarded, *options)
    server = started(pair, guarded, *options, *secret_file(tmp_path, f"{os.getpid()}"))
    until(lambda: serves(server), server)
