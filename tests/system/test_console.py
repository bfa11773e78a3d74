"""The lines that pages have to be copied, run as whoever copies them runs them: by a shell, with curl and with the command line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import pytest
from click.testing import CliRunner

from basalt.cli.root import root as command_line
from basalt.console.acts import digest_of
from basalt.console.call import Answer, Call
from basalt.console.page import Visit
from basalt.console.pages.access import grants, quotas, roles, tokens
from basalt.console.pages.messaging import groups, topic
from tests.console_pages import FILLED_IN, Place, walk
from tests.operator_data import fill, fill_access
from tests.system.command_line import CommandLine
from tests.system.server_process import ServerProcess

BOOTSTRAP = "b" * 40
LINE = re.compile(r"<code class=\"line\" data-copy[^>]*>(.*?)</code>", re.DOTALL)
DIGEST = re.compile(r'name="digest" value="([0-9a-f]+)"')
COUNTED = re.compile(r'^basalt_topic_fetched_messages_total\{namespace="([^"]+)",topic="([^"]+)"\}', re.MULTILINE)
OF_A_KIND = 2
# The members by which plans of an act may differ that are the same, by the kinds of acts; of most none.
MOVED: tuple[frozenset[str], ...] = (
    frozenset(), grants.MOVING, roles.MOVING, quotas.MOVING, tokens.MOVING, topic.COUNTS, groups.MOVES,
    frozenset(("skipped", "repeated", "exact", "claimsRevoked", "round")), frozenset(("unparked", "exact")), frozenset(("group",)),
)  # fmt: skip
TIMES = frozenset(
    ("createdms", "expiresms", "changedms")
)  # of what a plan would make: the present, and what counts from it
# What each answer has of its own: the number of the request, and times that are counted back from a clock of another kind.
MOVING = frozenset(("requestId", "seenMs", "expiresMs", "sinceMs", "untilMs"))
# Members of answers that say which thing it is: a command's answer has them, in whatever form.
NAMES = frozenset(
    ("id", "name", "namespace", "topic", "table", "group", "session", "event", "act", "what", "state", "job")
)


class Plan(NamedTuple):
    """The page of an act's first step: its status, the digest of what would be done, and the lines that make the same plan."""

    status: int
    digest: str
    lines: list[str]
    server_url: str

    def is_told_by(self, curl: str, answer: bytes) -> bool:
        """True where the form that follows would do what this line was answered: its digest is of the very same call and answer."""
        words = shlex.split(curl.replace("$BASALT_TOKEN", ""))
        method = words[words.index("-X") + 1]
        sent = words[words.index("--data-binary") + 1] if "--data-binary" in words else ""
        call = Call(method, words[-1].removeprefix(self.server_url), None)
        visit = SimpleNamespace(request=SimpleNamespace(caller=SimpleNamespace(principal="token:bootstrap")))
        told = Answer(replace(call, body=msgspec.Raw(sent.encode()) if sent else None), 200, raw=answer)
        return self.digest in {digest_of(cast("Visit", visit), told, moving) for moving in MOVED}


class Caller:
    """Somebody with the server's first token, who reads pages and runs what is on them."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.session = ""  # one with a hostile name
        self.login = self.ask("POST", "/v1/auth/logins", {"ttlMs": 3_600_000})["token"]

    def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        headers = {"Authorization": f"Bearer {BOOTSTRAP}", "Content-Type": "application/json"}
        reply = self.server.ask(method, path, b"" if body is None else json.dumps(body).encode(), headers)
        assert reply.status == status, (method, path, reply)
        return reply.json() if reply.body else None

    def page(self, place: Place) -> str | None:
        reply = self._get(place.target) if place.form_on is None else None
        if reply is None or not reply.headers.get("content-type", "").startswith("text/html"):
            return None
        return reply.body.decode()

    def plan(self, place: Place) -> Plan:
        """The first step of an act."""
        headers = {"Cookie": f"basalt={self.login}", "Content-Type": "application/x-www-form-urlencoded"}
        reply = self.server.ask("POST", place.target, urlencode(FILLED_IN).encode(), headers)
        html = reply.body.decode()
        lines = [unescape(each) for each in LINE.findall(html)]
        return Plan(reply.status, next(iter(DIGEST.findall(html)), ""), lines, self.server.url)

    def panels(self, place: Place) -> dict[str, Any]:
        """The calls of a page, with their answers and the lines that make them, by the name of the panel."""
        glue = "&" if urlsplit(place.target).query else "?"
        reply = self._get(f"{place.target}{glue}json=true")
        return dict(reply.json()) if reply.headers.get("content-type") == "application/json" else {}

    def wait_for_history(self) -> None:
        """Return once the history has a place for each group: the server looks once a second, and what a page shows would change by it."""
        groups = len(self.ask("GET", "/v1/admin/groups")["groups"])
        for _ in range(300):
            figures = [each["name"] for each in self.ask("GET", "/v1/admin/series")["figures"]]
            if sum(name.startswith("lag_seconds:") for name in figures) >= groups:
                return
            time.sleep(0.1)
        raise AssertionError(f"the history knows {figures}, and there are {groups} groups")

    def wait_for_rates(self) -> None:
        """Return once the history has the rates of each topic that the metrics count: they need two looks, and until then a page says that there are none."""
        for _ in range(300):
            counted = COUNTED.findall(self._get("/metrics").body.decode())
            figures = {each["name"] for each in self.ask("GET", "/v1/admin/series")["figures"]}
            missing = [title for title in map(":".join, counted) if f"fetched_per_s:{title}" not in figures]
            if counted and not missing:
                return
            time.sleep(0.1)
        raise AssertionError(f"the history knows no rates of {missing}")

    def _get(self, target: str) -> Any:
        return self.server.ask("GET", target, headers={"Cookie": f"basalt={self.login}"})


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    folder = tmp_path_factory.mktemp("console")
    secret = folder / "bootstrap"
    secret.touch(0o600)
    secret.write_text(BOOTSTRAP)
    server = ServerProcess(folder)
    server.start(
        "--set", "auth.kinds=token", "--set", f"auth.bootstrap_token_file={secret}", "--set", "log.level=warning"
    )
    found = Caller(server)
    found.session = fill(found.ask).session
    fill_access(found.ask)
    found.wait_for_history()
    yield found
    server.kill()


@pytest.fixture(scope="module")
def panels(caller: Caller) -> list[tuple[str, dict[str, Any]]]:
    """Every panel of every page, each call once; and where it is."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    places = [place for place in walk(caller.page, OF_A_KIND) if place.form_on is None]
    caller.wait_for_rates()  # also of topics that nobody had read before these pages did
    for place in places:
        for panel in caller.panels(place).values():
            found.setdefault(panel["call"], (place.target, panel))
    assert len(found) > 12
    return list(found.values())


def shell(line: str, **environment: str) -> str:
    """What a shell's line prints."""
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, env={"PATH": "/usr/bin:/bin", **environment}, check=False
    )
    assert done.returncode == 0, (line, done)
    return done.stdout.decode("utf-8", "surrogateescape")


def test_every_line_for_curl_answers_what_the_page_shows(caller: Caller, panels: list[tuple[str, dict[str, Any]]]):
    for place, panel in panels:
        answered = json.loads(shell(panel["curl"], BASALT_TOKEN=caller.login))
        later = caller.panels(Place(place))
        again = next(each for each in later.values() if each["call"] == panel["call"])["answer"]
        assert without_moving(answered, panel["answer"], again) == without_moving(
            panel["answer"], panel["answer"], again
        )


def without_moving(value: Any, before: Any, after: Any) -> Any:
    """The value without what moved between two looks at it, such as ages, and what only one of them has, such as an id of the request."""
    if isinstance(value, dict) and "pid" in value:
        return value["pid"]  # the rest is how the process is at that moment
    if isinstance(before, dict) and isinstance(after, dict) and isinstance(value, dict):
        return {
            name: without_moving(each, before.get(name), after.get(name))
            for name, each in value.items()
            if name not in MOVING
        }
    if (
        isinstance(before, list)
        and isinstance(after, list)
        and isinstance(value, list)
        and len(before) == len(after) == len(value)
    ):
        return [without_moving(*each) for each in zip(value, before, after, strict=True)]
    return value if before == after else None


def test_every_line_for_the_command_line_answers_what_the_page_shows(
    caller: Caller, panels: list[tuple[str, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BASALT_URL", caller.server.url)
    monkeypatch.setenv("BASALT_TOKEN", BOOTSTRAP)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ran = 0
    for place, panel in panels:
        if panel["cli"] is None:
            continue
        words = [each for each in shell(panel["cli"].replace("basalt", r"printf '%s\0'", 1)).split("\0") if each]
        told = CliRunner().invoke(command_line, [*words, "--output", "json"])
        assert (told.exit_code == 0) == (panel["status"] == 200), (place, words, told.output[-500:])
        missing = (
            [name for name in names_in(panel["answer"]) if name not in told.output] if panel["status"] == 200 else []
        )
        assert missing == [], (place, words)
        ran += 1
    assert ran > 10


def test_every_line_of_a_plan_makes_the_plan_that_the_form_would_do(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BASALT_URL", caller.server.url)
    monkeypatch.setenv("BASALT_TOKEN", BOOTSTRAP)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    caller.ask(
        "POST", "/v1/admin/jobs/stats/pause"
    )  # it moves the floors of groups on, and might do so between two plans
    ran = 0
    for place in walk(caller.page, OF_A_KIND):
        if place.form_on is None:
            continue
        plan = caller.plan(place)
        assert bool(plan.digest) == (plan.status == 200), place
        answered: Any = None
        for line in sorted(plan.lines, key=lambda line: not line.startswith("curl")):
            assert "dryRun=true" in line or "--dry-run" in line, (place, line)
            if line.startswith("curl"):
                answer = shell(line, BASALT_TOKEN=BOOTSTRAP)
                answered = json.loads(answer)
                assert ("code" not in answered) == (plan.status == 200), (place, line, answered)
                assert plan.status != 200 or plan.is_told_by(line, answer.encode()), (place, line, answered)
            else:
                words = [each for each in shell(line.replace("basalt", r"printf '%s\0'", 1)).split("\0") if each]
                told = CliRunner().invoke(command_line, [*words, "--output", "json"])
                assert (told.exit_code == 0) == (plan.status == 200), (place, words, told.output[-500:])
                if plan.status == 200:
                    mine, its = leaves(json.loads(told.output)), leaves(answered)
                    both = mine.keys() & its.keys() - TIMES
                    assert both - {"dryrun"}, (place, words)
                    assert {name: mine[name] for name in both} == {name: its[name] for name in both}, (place, words)
            ran += 1
    assert ran > 30


def leaves(answer: Any, name: str = "") -> dict[str, list[Any]]:
    """The values in an answer by the names that they have, as the API and the command line write these alike; in order."""
    found: dict[str, list[Any]] = {}
    parts = (
        answer.items()
        if isinstance(answer, dict)
        else [(name, each) for each in answer]
        if isinstance(answer, list)
        else ()
    )
    for key, each in parts:
        for inner, values in leaves(each, key).items():
            found.setdefault(inner, []).extend(values)
    if not isinstance(answer, dict | list) and answer is not None:
        found[name.replace("_", "").casefold()] = [answer]
    return found


def names_in(answer: Any) -> Iterator[str]:
    """What the answer is about, as the command line writes it."""
    if isinstance(answer, list):
        for each in answer:
            yield from names_in(each)
    elif isinstance(answer, dict) and not answer.get("deleted"):  # the command leaves those out, and so does the page
        for name, value in answer.items():
            if name in NAMES and isinstance(value, str):
                yield json.dumps(value, ensure_ascii=False)[1:-1]
            yield from names_in(value)


def test_a_line_runs_by_the_program_itself_whatever_is_in_it(caller: Caller, tmp_path: Path):
    panel = caller.panels(Place(f"/console/sessions/{quote(caller.session, safe='')}"))["session"]
    program = CommandLine(tmp_path, caller.server.url)
    program.environment["BASALT_TOKEN"] = BOOTSTRAP
    done = program.shell(panel["cli"])
    assert (done.code, caller.session in done.out) == (0, True), done
