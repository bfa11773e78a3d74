"""The command line as its own processes, against a real server: every way in which it ends."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.ports import reserved_port
from tests.system.command_line import RUN_SECONDS_MAX, CommandLine, Ran
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all; every test has a namespace of its own."""
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    process.start("--set", "log.level=warning")
    yield process
    process.kill()


@pytest.fixture
def basalt(tmp_path: Path, server: ServerProcess, request: pytest.FixtureRequest) -> CommandLine:
    """The command line, with the server in its environment."""
    line = CommandLine(tmp_path, server.url)
    line.environment["BASALT_NAMESPACE"] = re.sub(r"\W", "-", request.node.name)[:200]
    return line


def one_line(ran: Ran) -> str:
    """The one line of an error; nothing else was written."""
    assert ran.out == ""
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith("basalt: ")
    return ran.err


def test_every_outcome_has_its_exit_code(basalt: CommandLine):
    assert basalt.run("topic", "create", "orders").code == 0
    tx = json.loads(basalt.run("tx", "begin", "-o", "json").out)["id"]
    assert basalt.run("publish", "orders", "held", "--tx", tx).code == 0
    outcomes = [
        (["topic", "create", "orders"], 4, "exists already"),
        (["topic", "create", "or ders"], 1, "is not a name"),
        (["topic", "show", "nothing"], 3, "does not exist"),
        (["consume", "nothing"], 3, "does not exist"),
        (["publish", "nothing", "text"], 3, "does not exist"),
        (["tx", "show", "17"], 3, "17"),
        (["message", "show", "orders", "00" * 20], 3, "no message"),
        (["job", "run", "retentoin"], 3, "did you mean retention?"),
        (["consume", "orders", "--from", "yesterday"], 2, "not a position"),
        (["topic", "delete", "orders"], 2, "add --yes"),
    ]
    for arguments, code, said in outcomes:
        ran = basalt.run(*arguments)
        assert ran.code == code, (arguments, ran)
        assert said in one_line(ran), arguments
    assert basalt.run("tx", "abort", tx, "--yes").code == 0
    late = basalt.run("tx", "commit", tx)
    assert late.code == 4
    assert "was aborted" in one_line(late)
    assert basalt.run("consume", "orders", "--format", "raw").out == ""


def test_payloads_go_through_files_and_pipes_unchanged(basalt: CommandLine):
    basalt.run("topic", "create", "orders")
    lines = "".join(f"line {number} \u2603\n" for number in range(2_000))
    assert basalt.run("publish", "orders", "--lines", "--file", "-", stdin=lines.encode()).code == 0
    assert basalt.run("consume", "orders", "--format", "raw").out == lines
    both = basalt.shell("basalt consume orders --format raw | basalt publish orders --lines --file - > /dev/null")
    assert both.code == 0, both
    assert basalt.shell("basalt consume orders --format raw | wc -l").out.strip() == "4000"
    documents = basalt.run("consume", "orders", "-o", "jsonl", "--limit", "2").out.splitlines()
    assert [json.loads(document)["payload"] for document in documents] == ["line 0 \u2603", "line 1 \u2603"]


def test_output_that_cannot_be_written_ends_the_command(basalt: CommandLine):
    basalt.run("topic", "create", "orders")
    basalt.run("publish", "orders", "--lines", "--file", "-", stdin=b"some text\n" * 20_000)
    full = "cannot write the output: No space left on device"
    for command in ("basalt consume orders", "basalt consume orders --format raw", "basalt topic list -o json"):
        ran = basalt.shell(f"{command} > /dev/full")
        assert ran.code == 1
        assert full in one_line(ran)
    for reader, code in (("head -1", 141), ("true", 141)):
        ran = basalt.shell(f"basalt consume orders --format raw | {reader}")
        assert (ran.code, ran.err) == (code, "")


def test_what_was_published_is_published_even_if_nobody_can_be_told(basalt: CommandLine):
    basalt.run("topic", "create", "orders")
    assert basalt.shell("basalt publish orders -o json kept > /dev/full").code == 1
    assert basalt.run("consume", "orders", "--format", "raw").out == "kept\n"


def test_a_server_that_is_not_there_is_told_with_what_to_check(basalt: CommandLine):
    with reserved_port() as nobodys:
        url = f"http://127.0.0.1:{nobodys}"
        for arguments in (["topic", "list"], ["publish", "orders", "text"], ["tx", "begin"]):
            ran = basalt.run(*arguments, "--url", url, "--timeout", "300ms")
            assert ran.code == 6
            line = one_line(ran)
            assert url in line
            assert "basalt serve" in line


class Router(BaseHTTPRequestHandler):
    """Something else that speaks HTTP."""

    def answer(self) -> None:
        body = b"<html><title>Welcome to your router</title></html>"
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_server_that_is_none_of_ours_is_told_as_such(basalt: CommandLine):
    router = ThreadingHTTPServer(("127.0.0.1", 0), Router)
    thread = threading.Thread(target=router.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{router.server_address[1]}"
    try:
        for arguments in (["topic", "show", "orders"], ["consume", "orders"], ["tx", "begin"], ["job", "list"]):
            ran = basalt.run(*arguments, "--url", url)
            assert ran.code == 1, (arguments, ran)
            assert "router" in one_line(ran)
    finally:
        router.shutdown()
        thread.join()
        router.server_close()


@pytest.fixture
def port() -> Iterator[int]:
    """Nobody else listens there while the server that had it is dead."""
    with reserved_port() as number:
        yield number


def launch(server: ServerProcess, port: int) -> None:
    server.launch("--set", "log.level=warning", port=port)
    server.wait_until_ready()


def test_a_server_that_dies_under_a_command_is_told_with_what_got_through(tmp_path: Path, port: int):
    server = ServerProcess(tmp_path)
    launch(server, port)
    line = CommandLine(tmp_path, server.url)
    assert line.run("topic", "create", "orders").code == 0
    follower = line.start("consume", "orders", "--follow", "--format", "raw", "--timeout", "20s")
    publisher = line.start("publish", "orders", "--lines", "--file", "-", "--batch", "1", "--timeout", "20s")
    assert publisher.stdin is not None
    assert follower.stdout is not None
    publisher.stdin.write("first\n" * 5_000)
    publisher.stdin.flush()
    assert follower.stdout.readline() == "first\n"
    server.kill()
    try:
        publisher.stdin.write("more\n" * 100_000)
        publisher.stdin.close()
    except BrokenPipeError:  # it has noticed, and reads no more
        publisher.stdin = None
    publisher.stdin = None
    _, err = publisher.communicate(timeout=RUN_SECONDS_MAX)
    assert publisher.returncode == 6, err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    told = re.search(r"the first ([0-9]+) message", err)
    through = 0 if told is None else int(told[1])
    follower.kill()  # it would wait for a new server
    follower.communicate()
    kept = line.run("consume", "orders", "--format", "raw", "--url", f"embedded:{server.data}").out.count("\n")
    assert kept in (through, through + 1)  # the one whose answer was lost may be there


def test_who_follows_a_topic_waits_for_its_server_and_goes_on(tmp_path: Path, port: int):
    server = ServerProcess(tmp_path)
    launch(server, port)
    line = CommandLine(tmp_path, server.url)
    assert line.run("topic", "create", "orders").code == 0
    follower = line.start("consume", "orders", "--follow", "--format", "raw")
    assert follower.stdout is not None
    assert follower.stderr is not None
    try:
        assert line.run("publish", "orders", "before").code == 0
        assert follower.stdout.readline() == "before\n"
        server.kill()
        waits = follower.stderr.readline()
        assert re.fullmatch(r"basalt: poll default:orders: .+; waiting until it is back\n", waits)
        launch(server, port)
        assert line.run("publish", "orders", "after").code == 0
        assert follower.stdout.readline() == "after\n"
        assert follower.stderr.readline() == "basalt: poll default:orders: goes on\n"
    finally:
        follower.kill()
        server.kill()
    assert follower.communicate() == ("", "")


def test_an_operator_finds_a_reader_that_stands_still_and_frees_it(basalt: CommandLine, server: ServerProcess):
    topics = f"/v1/namespaces/{basalt.environment['BASALT_NAMESPACE']}/topics"
    basalt.run("topic", "create", "orders")
    begun = json.loads(basalt.run("tx", "begin", "--owner", "etl", "--expires", "5m", "-o", "json").out)
    early = {"messages": ["early"], "transactionWritePointer": begun["write_pointer"]}
    server.ask_json("POST", f"{topics}/orders/publish", early)
    assert basalt.run("publish", "orders", "late", "later").code == 0
    assert basalt.run("consume", "orders", "--format", "raw").out == ""

    hanging = basalt.run("tx", "find-hanging", "--topic", "orders", "-o", "json")
    assert (hanging.code, hanging.err) == (7, "")
    (found,) = json.loads(hanging.out)
    assert (found["id"], found["reasons"], found["blocks"][0]["messages"]) == (begun["id"], ["holds readers back"], 2)
    explained = basalt.run("explain", "poll", "orders")
    assert begun["id"] in explained.out
    assert "2 messages behind it" in explained.out
    assert "etl" in basalt.run("explain", "tx", begun["id"]).out

    freed = basalt.run("tx", "abort", begun["id"], "--yes", "--reason", "its client is gone", USER="alice")
    assert freed.code == 0, freed.err
    assert basalt.run("tx", "find-hanging", "--topic", "orders").code == 0
    assert basalt.run("consume", "orders", "--format", "raw").out == "late\nlater\n"


def test_what_was_done_by_hand_is_known_after_a_crash(tmp_path: Path):
    process = ServerProcess(tmp_path)
    process.start("--set", "log.level=warning")
    try:
        line = CommandLine(tmp_path, process.url)
        begun = json.loads(line.run("tx", "begin", "--owner", "etl", "-o", "json").out)
        assert line.run("tx", "invalidate", begun["id"], "--yes", "--reason", "lost", "--as", "bob").code == 0
        before = line.run("tx", "timeline", begun["id"], "-o", "json").out
        process.kill()
        process.start("--set", "log.level=warning")
        line.environment["BASALT_URL"] = process.url
        assert line.run("tx", "timeline", begun["id"], "-o", "json").out == before
        steps = json.loads(before)["steps"]
        assert [step["event"] for step in steps] == ["begun", "forced_invalidate", "invalidated"]
        (act,) = json.loads(line.run("audit", "list", "-o", "json").out)
        assert (act["act"], act["name"], act["reason"], act["outcome"]) == (
            "forced invalidate", "bob", "lost", "INVALID",
        )  # fmt: skip
        assert "1 write pointer of it is on the invalid list" in line.run("explain", "tx", begun["id"]).out
    finally:
        process.kill()
