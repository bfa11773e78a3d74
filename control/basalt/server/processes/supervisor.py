"""The supervisor of `--processes`: it has the shared socket, starts the servers, and does for a dead one what it can no longer do itself.

It serves nothing. Each server is a fresh interpreter: a fork would copy threads, connections and an event loop that it may not use. The kernel tells
when one is gone (`waitpid`), which a pause or a hang is not; only then is its run ended. docs/operations/running.md, "Several processes".
"""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from basalt.server.authentication import check_authentication
from basalt.server.listening import link_address, listen_address
from basalt.server.process import listen, tell_service_manager, url_of, write_port
from basalt.server.processes import supervision as rules
from basalt.server.processes.endings import Endings
from basalt.server.processes.supervised import ANSWERS, LOOK, Order
from basalt.server.processes.supervision import Child, Stage
from basalt.server.server_log import set_up_logging
from basalt.server.stop_signals import StopSignals
from basalt.server.wiring import open_store
from basalt.settings import Settings
from basalt.thrift.face import check_thrift
from basalt_engine.clock import SystemClock

WAIT_MS = 1_000  # a death whose signal was merged with another one's is noticed after it
COMMAND = (sys.executable, "-P", "-m", "basalt.cli.main", "serve", "--supervised")

log = logging.getLogger("basalt.supervisor")


class _Run:
    """One run of one server: its process, and the two pipes to it."""

    def __init__(self, number: int, settings: Settings, shared: socket.socket, log_file: str | None) -> None:
        self.number = number
        self.name = secrets.token_hex(8)
        self.tells, tells = os.pipe()
        order = Order(number, self.name, settings, shared.fileno(), tells, log_file)
        given = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        try:
            # A session of its own: the terminal's Ctrl-C is for the supervisor, which passes it on.
            self.process = subprocess.Popen(  # noqa: S603  # this program itself
                COMMAND, stdin=subprocess.PIPE, pass_fds=(shared.fileno(), tells), start_new_session=True, env=given
            )
        except OSError:
            os.close(self.tells)
            raise
        finally:
            os.close(tells)
        self._lock = threading.Lock()  # a number that was closed may be another file's in the next moment
        self._closed = False
        assert self.process.stdin is not None
        self._told = self.process.stdin.fileno()
        with suppress(BrokenPipeError):  # it died at once, which is noticed as every death is
            os.write(self._told, order.encode())  # fits into any pipe
        os.set_blocking(self._told, False)

    def look(self) -> None:
        """Have it look at lease and members. One that is paused for long reads no more, and need not."""
        with self._lock, suppress(BrokenPipeError, BlockingIOError):
            if not self._closed:
                os.write(self._told, LOOK)

    def close(self) -> None:
        assert self.process.stdin is not None
        with self._lock, suppress(BrokenPipeError):
            self._closed = True
            self.process.stdin.close()
        os.close(self.tells)


class Supervisor:
    """The servers of one command. `run` returns its exit code."""

    def __init__(
        self, settings: Settings, count: int, signals: StopSignals, *, port_file: Path | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._of = {number: rules.settings_of(settings, number) for number in range(1, count + 1)}
        self._signals = signals
        self._port_file = port_file
        self._tell = tell
        self._clock = SystemClock()
        self._children = {number: Child(number) for number in self._of}
        self._runs: dict[int, _Run] = {}
        self._codes: dict[int, int] = {}  # of those that were asked to stop
        self._ready = False
        self._stop_at_ms: float | None = None  # what is left then is killed; None: nobody asked it to stop
        self._gave_up: int | None = None
        self._asked: list[int] = []  # signals that came: a handler must not meet a half-made run
        self._selector = selectors.DefaultSelector()
        self._endings = Endings(lambda: open_store(settings, None), self._clock, settings.leader.lease_ms, self._look)

    def run(self) -> int:
        """Keep the servers until a signal stops them, or one can never start; the exit code."""
        settings = self._settings
        set_up_logging(settings.log)
        check_thrift(settings)
        check_authentication(settings)
        link_address(settings)
        self._shared = listen(listen_address(settings), settings.server.port)
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._signals.drain_by(self._asked.append)
        if settings.tls.certificate is not None:
            self._signals.reload_by(self._reload)
        log.info("supervisor, process %d: starts %d servers", os.getpid(), len(self._children))
        self._endings.start()
        try:
            while not self._is_over():
                self._step(woken)
        finally:
            self._endings.close()
        code = rules.exit_code(self._codes.values()) if self._gave_up is None else self._gave_up
        log.info("stopped, with exit code %d", code)
        return code

    def _is_over(self) -> bool:
        return self._stop_at_ms is not None and not self._runs

    def _step(self, woken: socket.socket) -> None:
        if self._stop_at_ms is None:
            for number in rules.to_start(self._children.values(), self._now_ms()):
                self._start(number)
        for key, _ in self._selector.select(self._wait_ms() / 1_000):
            if key.fileobj is woken:
                woken.recv(4_096)
            else:
                self._hear(key.data)
        while self._asked:
            self._stop(self._asked.pop(0))
        for run in list(self._runs.values()):
            if run.process.poll() is not None:
                self._bury(run)
        if self._stop_at_ms is not None and self._now_ms() >= self._stop_at_ms:
            for run in self._runs.values():
                log.warning("server %d did not stop in time, and is killed", run.number)
                run.process.kill()
            self._stop_at_ms = float("inf")

    def _wait_ms(self) -> float:
        waits = [float(WAIT_MS)]
        if self._stop_at_ms is not None:
            waits.append(max(0.0, self._stop_at_ms - self._now_ms()))
        elif (next_ms := rules.next_start_ms(self._children.values(), self._now_ms())) is not None:
            # Those that wait for the first one are due all the time: its word wakes the selector.
            waits.append(max(next_ms, rules.PAUSE_MS_MIN / 2))
        return min(waits)

    def _start(self, number: int) -> None:
        log_file = None if self._tell is None else self._settings.log.file
        child = self._children[number] = self._children[number].started(self._now_ms())
        try:
            run = _Run(number, self._of[number], self._shared, log_file)
        except OSError as error:  # no memory, no more processes: as if it had died
            log.error("server %d cannot be started now: %s", number, error.strerror)
            self._children[number] = child.died(self._now_ms())
            return
        self._runs[number] = run
        self._selector.register(run.tells, selectors.EVENT_READ, run)
        log.info("server %d is process %d, run %s", number, run.process.pid, run.name)

    def _hear(self, run: _Run) -> None:
        told = os.read(run.tells, len(ANSWERS))
        if told != ANSWERS:
            self._selector.unregister(run.tells)  # closed: it is about to end
            return
        self._children[run.number] = self._children[run.number].answers(self._now_ms())
        self._say_state()

    def _say_state(self) -> None:
        answering = sum(child.stage is Stage.ANSWERING for child in self._children.values())
        url = url_of(self._settings, self._shared)
        status = f"STATUS={answering} of {len(self._children)} servers answer at {url}"
        if self._ready or answering < len(self._children):
            tell_service_manager(status)
            return
        self._ready = True
        log.info("%d servers answer at %s", answering, url)
        tell_service_manager(f"READY=1\n{status}")
        if self._port_file is not None:
            write_port(self._port_file, self._shared.getsockname()[1])
        if self._tell is not None:
            self._tell(url)

    def _bury(self, run: _Run) -> None:
        """Take note of a process that is gone: the kernel says so, and its number is free from here on."""
        code, number = run.process.returncode, run.number
        self._endings.end(run.name)
        with suppress(KeyError):
            self._selector.unregister(run.tells)
        run.close()
        del self._runs[number]
        child = self._children[number] = self._children[number].died(self._now_ms())
        if self._stop_at_ms is not None:
            self._codes[number] = code
            return
        if child.is_hopeless(code):
            log.error("server %d cannot start: %s; see its last words above", number, rules.how(code))
            self._gave_up = code if code > 0 else 1
            self._stop(signal.SIGTERM)
            return
        pause_ms = child.due_ms - self._now_ms()
        log.warning(
            "server %d, process %d, %s; it is started again in %d ms",
            number,
            run.process.pid,
            rules.how(code),
            pause_ms,
        )
        self._say_state()

    def _look(self) -> None:
        """Called on the thread of the endings."""
        for run in list(self._runs.values()):
            run.look()

    def _stop(self, number: int) -> None:
        """Have all of them stop; a second Ctrl-C reaches them as a second one."""
        if self._stop_at_ms is None:
            tell_service_manager("STOPPING=1\nSTATUS=the servers answer what is open, then stop")
            self._stop_at_ms = self._now_ms() + rules.STOP_MS_MAX
        for run in self._runs.values():
            answers = self._children[run.number].stage is Stage.ANSWERING
            run.process.send_signal(signal.SIGINT if answers and number == signal.SIGINT else signal.SIGTERM)

    def _reload(self) -> None:
        for run in list(self._runs.values()):
            if self._children[run.number].stage is Stage.ANSWERING:  # one that starts would end
                run.process.send_signal(signal.SIGHUP)

    def _now_ms(self) -> float:
        return self._clock.monotonic_ms()
