"""Exit codes for whatever a server (or something that is none) may answer, and for output that cannot be written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from basalt.cli.failures import exit_code, one_line
from basalt.errors import BY_CODE

ROOT = Path(__file__).parents[3]


class Canned(BaseHTTPRequestHandler):
    """Answers every request with what the server was given."""

    def answer(self) -> None:
        status, content_type, body = self.server.canned  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def canned() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Canned)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


PROBLEMS = [
    (404, "topic_not_found", 3),
    (404, "transaction_not_found", 3),
    (404, "job_not_found", 3),
    (404, "table_not_found", 3),
    (404, "some_new_code", 3),
    (409, "topic_exists", 4),
    (409, "table_exists", 4),
    (409, "transaction_conflict", 4),
    (400, "invalid_name", 1),
    (400, "invalid_property", 1),
    (401, "unauthenticated", 5),
    (401, "some_new_code", 5),
    (403, "forbidden", 5),
    (403, "some_new_code", 5),
    (403, "cross_origin", 1),
    (429, "throttled", 6),
    (503, "authentication_unavailable", 6),
    (413, "too_large", 1),
    (503, "busy", 6),
    (503, "stopping", 6),
    (503, "outcome_unknown", 6),
    (507, "disk_full", 6),
    (500, "internal", 1),
    (500, "corruption", 1),
]


@pytest.mark.parametrize(("status", "code", "expected"), PROBLEMS)
def test_a_problem_becomes_the_exit_code_of_its_kind_and_one_line_with_its_hint(run, canned, status, code, expected):
    problem = {"code": code, "detail": "it is\nso\x1b[31m", "hint": "Do this next.", "retryAfterMs": 1}
    canned.canned = (status, "application/problem+json", json.dumps(problem).encode())
    ran = run("topic", "create", "orders", "--url", url_of(canned), "--timeout", "300ms")
    assert (ran.code, ran.out) == (expected, "")
    assert ran.err.startswith("basalt: it is\\nso\\x1b[31m")
    # What to do about a call of unknown outcome the client knows best: it knows which call it was.
    assert ("look whether it did" if code == "outcome_unknown" else "do this next") in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>welcome to your router</html>"),
        (200, b""),
        (200, b'{"name": 5}'),
        (200, b"\xff\xfe"),
        (401, b"<html>who are you?</html>"),
        (302, b"elsewhere"),
        (502, b"<html>bad gateway</html>"),
    ],
)
def test_something_that_is_not_basalt_is_told_so_without_a_traceback(run, canned, status, body):
    canned.canned = (status, "text/html", body)
    ran = run("topic", "show", "orders", "--url", url_of(canned), "--timeout", "300ms")
    assert ran.code == (5 if status == 401 else 1)
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


def test_a_server_that_is_not_there_is_exit_code_6_and_says_what_to_check(run):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take the port
        ran = run("topic", "list", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert ran.code == 6
    assert "basalt serve" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("url", ["", "127.0.0.1", "ftp://x", "http://", "http://x:port", "http://u:p@x", "http://a b"])
def test_a_url_that_is_none_is_refused(run, url):
    ran = run("topic", "list", "--url", url or "http:")
    assert ran.code == 2
    assert ran.err.count("\n") == 1


def test_every_error_class_has_an_exit_code_and_fits_on_one_line():
    for kind in BY_CODE.values():
        error = kind("something\nwent wrong.", hint="try\nthis.")
        error.add_note("after 3 attempts")
        assert exit_code(error) in (1, 2, 3, 4, 5, 6)
        assert one_line(error) == "something\\nwent wrong (after 3 attempts); try\\nthis"


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    """A real shell with a real process: what becomes of file descriptors cannot be seen from inside."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
    environment["PYTHONPATH"] = f"{ROOT / 'engine'}:{ROOT / 'control'}"
    program = f"{sys.executable} -m basalt.cli.main"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command.replace('basalt', program, 1)}"],
        capture_output=True,
        env=environment,
        timeout=60,
        check=False,
    )


def test_a_full_disk_under_the_output_is_exit_code_1_and_one_line():
    for command in (
        "basalt config show -o json > /dev/full",
        "basalt --version > /dev/full",
        "basalt --help >/dev/full",
    ):
        ran = shell(command)
        assert (ran.returncode, ran.stderr) == (1, b"basalt: cannot write the output: No space left on device\n")


def test_a_closed_pipe_ends_the_command_without_a_word():
    ran = shell("basalt config show -o json | true")
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_an_error_that_cannot_be_written_keeps_its_exit_code():
    assert shell("basalt topic crate 2> /dev/full").returncode == 2


def test_a_name_that_is_not_utf_8_is_shown_as_an_escape():
    ran = shell("basalt $'\\xff\\x1b[31m'")
    assert ran.returncode == 2
    assert ran.stderr.startswith(b"basalt: no such command '\\udcff\\x1b[31m'")


def test_help_loads_neither_rich_nor_a_server_nor_a_client():
    code = (
        "import sys; from basalt.cli.main import main; main(['--help']);"
        "print(sorted({'rich', 'uvicorn', 'starlette', 'rocksdict', 'yaml', 'msgspec', 'basalt.client', 'asyncio', 'aiohttp'}"
        " & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'engine'}:{ROOT / 'control'}"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=60, check=True)
    assert ran.stderr == b"[]\n"
