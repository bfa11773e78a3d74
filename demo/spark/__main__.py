"""`make spark-demo`: an access log from two web servers through a pipeline of Spark queries; every process is killed once."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import basalt
from basalt.client import Client
from demo.own_log import access_lines, make_requests
from demo.server_process import ServerProcess
from demo.spark.job_process import JobFailedError, JobProcess
from demo.spark.results import Hours, differences, print_hours
from demo.spark.steps import CLIENTS_TOPIC, PARSED_TOPIC, SERVERS, TOPICS, VIEWS_TOPIC
from demo.spark.web_server import WebServer

CHUNKS = 20  # of each web server's log
LOOK_S = 0.1
STEP_S_MAX = 300.0  # a bound for a hang; on an idle machine each step takes seconds


def main(words: Sequence[str] | None = None) -> int:
    """Run the demo with these arguments; 1 when the hours differ from a direct count."""
    parser = argparse.ArgumentParser(prog="make spark-demo", description=__doc__)
    parser.add_argument("log", nargs="?", type=Path, help="an access log; without one, the demo server's own requests")
    parser.add_argument("--folder", type=Path, help="an empty folder to work in; without one, a new temporary folder")
    arguments = parser.parse_args(words)
    if arguments.log is not None and not arguments.log.is_file():
        parser.error(f"{arguments.log} is not a file")
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="basalt-spark-demo-"))
    server = ServerProcess(folder)
    try:
        server.start()
        lines = _lines(server, arguments.log)
        if not lines:
            print(f"{arguments.log} is empty: there is nothing to publish", file=sys.stderr)
            return 1
        job = JobProcess(server.url, folder)
        try:
            with basalt.connect(server.url) as client:
                return Story(server, job, client, lines).play()
        except JobFailedError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            job.stop()
    finally:
        server.stop()
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


class Story:
    """The steps of the demo, in order."""

    def __init__(self, server: ServerProcess, job: JobProcess, client: Client, lines: Sequence[bytes]) -> None:
        self._server = server
        self._job = job
        self._client = client
        self._lines = lines
        size = max(1, -(-len(lines) // (CHUNKS * len(SERVERS))))
        self._webs = [WebServer(name, lines[place :: len(SERVERS)], size) for place, name in enumerate(SERVERS)]
        self._began = time.monotonic()

    def play(self) -> int:
        """Publish, kill, wait for the end, and check; the exit code."""
        first, second = self._webs
        for topic in TOPICS:
            self._client.topics.create(topic)
        self._say(f"{len(self._lines):,} lines of two web servers, which take turns; starting Spark with four queries")
        self._job.start()
        self._publish(first, CHUNKS // 4)
        self._publish(second, CHUNKS // 4)
        self._until("a Python worker runs", self._job.kill_worker)
        self._say("SIGKILL: a Python worker, in the midst of its tasks; Spark tries them again")
        self._until("first page views are parsed", lambda: self._parsed() > 0)

        self._publish(first, CHUNKS // 4)
        self._job.kill()
        self._say(f"SIGKILL: the Spark driver, with {self._parsed():,} page views parsed; another goes on where it was")
        self._job.start()
        self._publish(first)
        self._say("web server a has ended; web server b is silent, and no hour can end that it may still have lines of")
        self._until("parser a has ended", lambda: self._has_ended("parse-a"))
        held = Hours.published(self._client, VIEWS_TOPIC, CLIENTS_TOPIC)
        self._say(f"{self._parsed():,} page views are parsed, and {len(held.clients):,} hours have ended")

        self._server.kill()
        self._say(
            f"SIGKILL: the Basalt server; it is back after {self._server.start():.1f} s, and Spark did not notice"
        )
        self._publish(second)
        self._say("web server b has ended, too")
        self._until("the job has ended", self._job.ended)
        ended = all(self._client.topic(topic).markers().ended for topic in (VIEWS_TOPIC, CLIENTS_TOPIC))
        return self._check(len(held.clients), ended)

    def _check(self, hours_held: int, ended: bool) -> int:
        seen = Hours.published(self._client, VIEWS_TOPIC, CLIENTS_TOPIC)
        counted = Hours.counted(self._lines)
        print_hours(seen)
        wrong = differences(seen, counted)
        if not ended:
            wrong.append("the end of the stream did not reach the result topics")
        if hours_held and hours_held >= len(counted.clients):
            wrong.append("every hour ended while a web server was silent")
        for sentence in wrong:
            print(f"WRONG: {sentence}", file=sys.stderr)
        if wrong:
            return 1
        print(
            f"Checked against a direct count of the lines: {counted.total:,} page views, {len(counted.clients):,} hours,"
            f" {len(counted.views):,} paths in hours.\n"
            "Each hour once and whole, no line dropped as late, the end of the stream in both result topics;"
            f" 3 SIGKILLs; {time.monotonic() - self._began:.0f} s."
        )
        return 0

    def _publish(self, web: WebServer, chunks: int | None = None) -> None:
        lines = web.publish(self._client, chunks)
        self._say(f"web server {web.name} has published {lines:,} lines more")

    def _until(self, what: str, happened: Callable[[], bool]) -> None:
        """Wait for it; `JobFailedError` where the job ends badly before, or it never happens."""
        give_up_s = time.monotonic() + STEP_S_MAX
        while not happened():
            if self._job.ended() and not happened():
                raise JobFailedError(f"the Spark job ended before this: {what}")
            if time.monotonic() > give_up_s:
                raise JobFailedError(f"after {STEP_S_MAX:.0f} s this has not happened: {what}; see {self._job.log}")
            time.sleep(LOOK_S)
        self._say(what)

    def _parsed(self) -> int:
        return self._client.topic(PARSED_TOPIC).stats().messages

    def _has_ended(self, task: str) -> bool:
        return any(said.task == task and said.ended for said in self._client.topic(PARSED_TOPIC).markers().tasks)

    def _say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {sentence}", flush=True)


def _lines(server: ServerProcess, log: Path | None) -> list[bytes]:
    if log is not None:
        return log.read_bytes().splitlines()
    sent = make_requests(server.url)
    print(f"No LOG given: {sent:,} requests to the demo's own server make a log of real lines")
    return access_lines(server.log, sent)


if __name__ == "__main__":
    sys.exit(main())
