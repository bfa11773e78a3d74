"""`basalt serve --processes N` on a real HBase: one command, several members, and a supervisor that ends what died."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import basalt
from deploy.hbase.standalone import Gateways
from tests.hbase.server_pair import LEASE_MS, WAIT_SECONDS_MAX, Installation, Pair, install, until
from tests.hbase.tables import Tables
from tests.hbase.test_members import members
from tests.hbase.test_two_servers import NAMESPACE, Publisher, check, create
from tests.ports import reserved_port
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

PROCESSES = 3
STARTED = re.compile(r"server (\d) is process (\d+), run ([0-9a-f]{16})")


@pytest.fixture
def several(pair: Pair, guarded: Installation) -> ServerProcess:
    """Three servers of one command, one of which leads; its port is the one that they share."""
    return start(pair, guarded)


def start(pair: Pair, installation: Installation, *more: str) -> ServerProcess:
    command = pair.start("--processes", str(PROCESSES), *more, *installation.options())
    until(lambda: serves_any(command), command)
    until(lambda: len(live(command)) == PROCESSES, command)
    return command


def serves_any(command: ServerProcess) -> bool:
    return command.ask("GET", "/readyz").status == 200


def pids(command: ServerProcess) -> dict[int, int]:
    """The present process of each server, as the supervisor's log has it."""
    return {int(number): int(pid) for number, pid, _ in STARTED.findall(command.log.read_text())}


def live(command: ServerProcess) -> dict[int, str]:
    """Process and part of each live member of this command."""
    mine = pids(command).values()
    found = [(int(each["name"].rpartition(":")[2]), each) for each in members(command)]
    return {pid: each["role"] for pid, each in found if pid in mine and each["state"] == "live"}


def leader_of(command: ServerProcess) -> int:
    return next(pid for pid, role in live(command).items() if role == "leader")


def state(pid: int) -> str:
    """The kernel's letter for a process; empty for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until(is_so: Callable[[], bool], command: ServerProcess) -> float:
    """Wait while the shared port may refuse for a moment; how long that took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < WAIT_SECONDS_MAX, command.tail()
        time.sleep(0.01)
    return time.monotonic() - began


def test_all_servers_answer_at_one_port_and_each_is_a_member_at_a_port_of_its_own(several: ServerProcess):
    parts = live(several)
    assert sorted(parts.values()) == ["leader", *["standby"] * (PROCESSES - 1)]
    assert sorted(parts) == sorted(pids(several).values())
    urls = {each["url"] for each in members(several) if each["state"] == "live"}
    assert several.url not in urls
    create(several, "shared")
    for number in range(10):  # connections of their own, so they reach one server or another
        with basalt.connect(several.url, namespace=NAMESPACE) as client:
            client.topic("shared").publish(str(number))
    with basalt.connect(several.url, namespace=NAMESPACE) as client:
        assert [message.text for message in client.topic("shared").read()] == [str(number) for number in range(10)]


def test_the_leader_killed_under_load_is_followed_without_waiting_for_its_lease_and_nothing_is_lost(
    several: ServerProcess, record_property: Callable[[str, object], None]
):
    create(several, "load")
    publishers = [Publisher(several.url, "load", f"p{number}") for number in range(3)]
    for publisher in publishers:
        publisher.start()
    until(lambda: all(len(publisher.told) > 20 for publisher in publishers), several)
    killed = leader_of(several)
    told = several.log.read_text().count("serves under epoch")
    os.kill(killed, signal.SIGKILL)
    took_s = wait_until(lambda: several.log.read_text().count("serves under epoch") > told, several)
    record_property("seconds_until_another_serves", took_s)
    print(f"another serves {took_s * 1_000:.0f} ms after the kill; the lease is {LEASE_MS} ms")
    assert "freed the lease of the run" in several.log.read_text()
    before = [len(publisher.told) for publisher in publishers]
    until(
        lambda: all(len(publisher.told) > count + 20 for publisher, count in zip(publishers, before, strict=True)),
        several,
    )
    until(lambda: len(live(several)) == PROCESSES, several)  # another process took its place
    assert killed not in pids(several).values()
    assert [each["state"] for each in members(several) if each["name"].endswith(f":{killed}")] == ["dead"]
    for publisher in publishers:
        publisher.enough.set()
        publisher.join(WAIT_SECONDS_MAX)
    with basalt.connect(several.url, namespace=NAMESPACE) as client:
        check(publishers, [message.text for message in client.topic("load").read()])


def test_a_leader_that_is_only_paused_keeps_its_lease_until_it_is_over(several: ServerProcess):
    paused = leader_of(several)
    os.kill(paused, signal.SIGSTOP)
    try:
        wait_until(lambda: several.log.read_text().count("serves under epoch") > 1, several)
        assert "freed the lease" not in several.log.read_text()
        assert paused in pids(several).values()
    finally:
        os.kill(paused, signal.SIGCONT)


def test_sigterm_stops_all_and_none_takes_the_lead_for_its_last_moments(several: ServerProcess):
    children = pids(several).values()
    assert several.stop() == 0
    assert [state(pid) for pid in children] == [""] * PROCESSES
    text = several.log.read_text()
    assert text.count("leads under epoch") == 1
    assert text.count("all that it acknowledged is kept") == PROCESSES


def test_servers_whose_supervisor_is_killed_stop_by_themselves(several: ServerProcess):
    children = list(pids(several).values())
    several.kill()
    wait_until(lambda: all(state(pid) in ("", "Z") for pid in children), several)
    assert several.log.read_text().count("all that it acknowledged is kept") == PROCESSES


@contextmanager
def _among_reserved_ports() -> Iterator[int]:
    """A port at which somebody listens, while those around it are nobody else's: of the command, and of its first and its third server."""
    for _ in range(100):
        with ExitStack() as stack:
            taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = taken.getsockname()[1]
            try:
                for other in (-2, -1, 1):
                    stack.enter_context(reserved_port(port + other))
            except OSError:  # somebody has it
                continue
            yield port
            return
    raise AssertionError("no four ports in a row are free")


def test_a_server_that_can_never_start_ends_the_command_with_its_reason(pair: Pair, guarded: Installation):
    with _among_reserved_ports() as taken:
        first = taken - 2  # so that the second server would have the one that is taken
        server = ServerProcess(pair._folder)
        pair.servers.append(server)
        server.names_its_place = False
        server.launch("--port", str(first), "--processes", str(PROCESSES), *guarded.options())
        assert server.exit_code() == 6
    text = server.log.read_text()
    assert "server 2 cannot start: ended with exit code 6" in text
    assert f"cannot listen on 127.0.0.1 port {first + 2}" in text
    assert [state(pid) for pid in pids(server).values()] == [""] * len(pids(server))


def test_the_service_manager_hears_of_all_servers_from_one_process(pair: Pair, guarded: Installation, tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_SECONDS_MAX)
        server = ServerProcess(pair._folder)
        pair.servers.append(server)
        server.launch(
            "--processes", str(PROCESSES), *guarded.options(), environment={"NOTIFY_SOCKET": str(tmp_path / "notify")}
        )
        told = manager.recv(4_096).decode()
        while "READY=1" not in told:
            assert re.fullmatch(f"STATUS=[12] of {PROCESSES} servers answer at http://.*", told)
            told = manager.recv(4_096).decode()
        assert f"{PROCESSES} of {PROCESSES} servers answer" in told
        server.wait_until_ready()
        assert f"servers answer at {server.url}" in told
        assert server.stop() == 0
        assert manager.recv(4_096).decode().startswith("STOPPING=1")
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4_096)


def test_a_second_ctrl_c_does_not_wait_for_open_calls(several: ServerProcess):
    create(several, "waited")
    with socket.create_connection(("127.0.0.1", several.port)) as half:
        half.sendall(
            b"POST /v1/namespaces/pair/topics/waited/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        )
        assert several.process is not None
        several.process.send_signal(signal.SIGINT)
        asked = PROCESSES + 1  # the supervisor says so, too
        wait_until(lambda: several.log.read_text().count("stops because of SIGINT") >= asked, several)
        several.process.send_signal(signal.SIGINT)
        assert several.exit_code() == 0
    assert "graceful shutdown exceeded" not in several.log.read_text()


def test_in_the_background_all_have_left_the_terminal(pair: Pair, guarded: Installation, tmp_path: Path):
    log = tmp_path / "all.log"
    command = [sys.executable, "-m", "basalt.cli.main", "serve", "--port", "0", "--processes", "2", "--background"]
    given = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
    started = subprocess.run(  # which waits until nobody has its output any more
        [*command, "--set", f"log.file={log}", *guarded.options()],
        env=given,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert started.returncode == 0, started.stderr
    supervisor = int(re.findall(r"it runs as process (\d+)", started.stderr)[0])
    try:
        text = log.read_text()
        assert f"2 servers answer at {started.stdout.strip()}" in text
        assert {json.loads(line).get("server") for line in text.splitlines()} == {None, 1, 2}
    finally:
        os.kill(supervisor, signal.SIGTERM)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while state(supervisor) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "stopped, with exit code 0" in log.read_text()


@pytest.fixture
def unguarded(hbase_gateways: Gateways) -> Iterator[Installation]:
    """Tables without the coprocessor."""
    prefix = f"bare-processes-{os.getpid()}"
    try:
        yield install(hbase_gateways, prefix, "--no-coprocessor")
    finally:
        Tables(hbase_gateways.thrift2, prefix).drop()


def test_without_fences_the_lease_of_a_dead_leader_is_waited_for(pair: Pair, unguarded: Installation):
    command = start(pair, unguarded)
    killed = leader_of(command)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: "ends when its lease is over" in command.log.read_text(), command)
    wait_until(lambda: command.log.read_text().count("serves under epoch") > 1, command)
    assert "freed the lease" not in command.log.read_text()
