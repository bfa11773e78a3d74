"""Secrets that are planted where people put them, and looked for in everything that comes out again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.command_line import CommandLine
from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system

CANARY = "canary-5e1f0c77"
URL = f"http://etl:{CANARY}@127.0.0.1:4780"
# A shell keeps its history, and a process list shows arguments: there only paths and names of variables belong.
SERVER_PLANTS = ("BASALT__STORE__HBASE__PREFIX_FILE", "BASALT_CANARY_TOKEN")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that logs all that it can, with a setting out of a file of its own and a secret in its environment."""
    file = tmp_path / "prefix"
    file.write_text(f"{CANARY}\n")
    file.chmod(0o600)
    process = ServerProcess(tmp_path)
    process.launch(
        "--set", "log.level=debug", "--set", "log.access=all",
        environment={name: str(file) if name.endswith("_FILE") else CANARY for name in SERVER_PLANTS},
    )  # fmt: skip
    process.wait_until_ready()
    yield process
    process.kill()


def test_no_secret_that_a_server_holds_or_is_sent_comes_out_again(server: ServerProcess, tmp_path: Path):
    server.ask_json("PUT", ORDERS)
    sent = {"Authorization": f"Bearer {CANARY}", "Cookie": f"session={CANARY}", "Content-Type": "application/json"}
    answers = [
        server.ask(method, target, body, sent)
        for method, target, body in (
            (
                "POST",
                f"{ORDERS}/publish",
                b'{"messages": ["%s"]}' % CANARY.encode(),
            ),  # a payload is nobody else's either
            ("POST", f"{ORDERS}/publish", b'{"messages": [{"value": "%s", "bogus"' % CANARY.encode()),
            *(
                ("PATCH", "/v1/admin/settings", b'{"%s": "%s"}' % (key, URL.encode()))
                for key in (b"leader.url", b"log.level", b"store.hbase.thrift")
            ),
            ("GET", f"{ORDERS}?token={CANARY}", b""),
            ("POST", f"{ORDERS}/poll?x-api-%6bey={CANARY}&access_token={CANARY}", b"{}"),
            ("GET", f"{URL}/v1", b""),
            ("GET", "/nowhere", b""),
            *(("GET", path, b"") for path in ("/metrics", "/openapi.json", "/v1", "/readyz", "/v1/admin/store")),
            *(("GET", f"/v1/admin/{path}", b"") for path in ("settings", "audit", "jobs", "backups")),
            ("GET", f"{ORDERS}/stats", b""),
        )
    ]
    assert [answer.status for answer in answers] == [200, 400, 400, 400, 400, 400, 400, 400, 404, *[200] * 9, 200]
    line = CommandLine(tmp_path, server.url)
    line.environment.update({name: str(tmp_path / "prefix") for name in SERVER_PLANTS if name.endswith("_FILE")})
    shown = [
        line.run(*command.split())
        for command in (
            "config show --server --origin", "config show --origin", "config show --origin -o json", "config check",
            f"doctor --data {server.data}", "explain poll orders --namespace shop", "audit list", "job list", "topic show orders --namespace shop",
            "config set log.level=info", "config set log.access=errors", "top --once",
        )
    ]  # fmt: skip
    assert [(ran.code, ran.err) for ran in shown] == [(0, "")] * len(shown)
    settings = {each["key"]: each for each in server.ask_json("GET", "/v1/admin/settings")}
    prefix = settings["store.hbase.prefix"]
    assert (prefix["value"], prefix["origin"]) == (
        "(secret)",
        f"environment {SERVER_PLANTS[0]} ({tmp_path / 'prefix'})",
    )
    assert server.process is not None
    process = Path(f"/proc/{server.process.pid}")
    seen = [server.log.read_text(), (process / "cmdline").read_text(), *(ran.out for ran in shown)]
    seen += [f"{answer.headers} {answer.body.decode()}" for answer in answers]
    assert "POST" in seen[0]  # the log has its requests
    assert CANARY in (process / "environ").read_text()  # it was planted
    assert [text for text in seen if CANARY in text] == []


# Of long ones an error shows the beginning: up to just before the @, by which a password is known.
@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (["topic", "list", "--url", URL], {}),
        (["topic", "list", "--url", f"ftp://etl:{CANARY}@host"], {}),
        (["topic", "list", "--url", f"http://etl:{CANARY}@host:99999"], {}),
        (["topic", "list", "--url", f"http://etl:{CANARY}/x@host"], {}),
        (["topic", "list", "--url", f"etl:{CANARY}@host:4780"], {}),
        (["topic", "list", "--url", f"http://host:4780/?token={CANARY}"], {}),
        (["topic", "list"], {"BASALT_URL": URL}),
        (["doctor"], {"BASALT_URL": f"http://host:1,{URL}"}),
        (["wait"], {"BASALT_URL": f"{URL}:x"}),
        (["topic", URL], {}),
        (["topic", "list", "--limit", URL], {}),
        (["profile", "add", "dev", "--url", URL], {}),
        (["profile", "add", "dev", "--url", f"{'http://host:4780,' * 10}ftp://{'e' * 8}:{CANARY}@host"], {}),
        (["profile", "add", "dev", "--url", f"http://host:4780?token={CANARY}"], {}),
        (["config", "show", "--set", f"leader.url={URL}"], {}),
        (["config", "check", "--set", f"leader.url={'x' * 45}://etl:{CANARY}@host"], {}),
        (["config", "check", "--set", f"store.hbase.thrift=etl:{CANARY}@host:1"], {}),
        (["config", "check"], {"BASALT__LEADER__URL": URL}),
        (["config", "check"], {"BASALT__HTTP__HOSTS": URL}),
        (["config", "check", "--set", f"http.cors_origins=http://host,https://{'e' * 36}:{CANARY}@host"], {}),
        (["config", "check", "bad.toml"], {}),
        (["config", "check", "not.toml"], {}),
        (["serve", "--data", "data", "--port", "0"], {"BASALT__LEADER__URL": URL}),
        (["serve", "--data", "data", "--port", "0"], {"BASALT__LOG__LEVEL_FILE": "level"}),
    ],
)
def test_no_command_repeats_a_password_that_it_refuses(tmp_path: Path, command: list[str], environment: dict[str, str]):
    (tmp_path / "bad.toml").write_text(f'[leader]\nurl = "{URL}"\n')
    (tmp_path / "not.toml").write_text(f"[leader]\nurl = {URL}\n")
    (tmp_path / "level").write_text(CANARY)
    ran = CommandLine(tmp_path).run(*command, **environment)
    assert ran.code in (1, 2), ran
    assert ran.err.count("\n") == 1, ran
    assert CANARY not in ran.out + ran.err


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that asks callers who they are, and logs all that it can."""
    file = tmp_path / "bootstrap"
    file.write_text(f"{CANARY}{'0' * 32}\n")
    file.chmod(0o600)
    process = ServerProcess(tmp_path)
    process.launch(
        "--set", "log.level=debug", "--set", "log.access=all", "--set", "auth.kinds=token",
        environment={"BASALT__AUTH__BOOTSTRAP_TOKEN_FILE": str(file)},
    )  # fmt: skip
    process.wait_until_ready()
    yield process
    process.kill()


def test_no_token_comes_out_again_wherever_it_is_kept(asking: ServerProcess, tmp_path: Path):
    """In the environment, in files, printed by a program, in a login; good ones, and bad ones."""
    line = CommandLine(tmp_path, asking.url)
    boot = tmp_path / "bootstrap"
    line.environment |= {"BASALT_TOKEN_FILE": str(boot), "BASALT_NAMESPACE": "shop"}
    made = [line.run("topic", "create", "orders"), line.run("grant", "add", "token:etl", "reader", "namespace:shop")]
    files = {name: tmp_path / f"{name}.token" for name in ("etl", "ops")}
    made += [line.run("token", "create", name, "--to-file", str(file)) for name, file in files.items()]
    made.append(line.run("token", "rotate", files["etl"].read_text().split("_")[1], "--to-file", str(files["etl"])))
    (tmp_path / "bad.token").write_text(f"basalt_{CANARY}")
    (tmp_path / "login.sh").write_text(f"#!/bin/sh\ncat {files['ops']}\n")
    (tmp_path / "login.sh").chmod(0o700)
    del line.environment["BASALT_TOKEN_FILE"]
    made += [
        line.run("profile", "add", name, "--url", asking.url, *where)
        for name, where in {
            "file": ("--token-file", str(files["etl"])),
            "command": ("--token-command", str(tmp_path / "login.sh")),
            "bad": ("--token-file", str(tmp_path / "bad.token")),
        }.items()
    ]
    made.append(line.run("auth", "login", "--profile", "command"))
    assert [ran.code for ran in made] == [0] * len(made), made
    etl = files["etl"].read_text().strip()
    shown = [*made]
    for command in (
        "auth whoami -o json", "token list --all -o json", "profile list -o json", "consume orders", "access export",
    ):  # fmt: skip
        shown += [line.run(*command.split(), "--profile", name) for name in ("command", "bad")]
        shown.append(line.run(*command.split(), BASALT_TOKEN=etl))
    shown.append(line.run("auth", "whoami", BASALT_TOKEN=f"basalt_{CANARY}"))
    shown.append(line.run("top", "--once", BASALT_TOKEN_FILE=str(boot)))
    shown.append(line.run("topic", "list", BASALT_TOKEN=CANARY, BASALT_TOKEN_FILE=str(boot)))
    shown.append(line.run("topic", "list", "--token", CANARY))
    shown.append(line.run("auth", "logout", "--profile", "command"))
    following = line.start("consume", "orders", "--follow", "--profile", "file")
    processes = [Path(f"/proc/{each.pid}/cmdline") for each in (following, asking.process) if each is not None]
    listed = [each.read_text() for each in processes]
    following.terminate()
    following.communicate()
    sent = [{"Authorization": f"Bearer {token}"} for token in (etl, f"{etl}x", f"basalt_{CANARY}", CANARY)]
    sent += [{"Authorization": f"Basic {CANARY}"}, {"Cookie": f"token={CANARY}"}]
    answers = [
        asking.ask("GET", path, b"", headers)
        for headers in sent
        for path in (
            "/v1/auth/whoami",
            "/metrics",
            "/v1/admin/tokens",
            "/v1/admin/settings",
            "/openapi.json",
            f"/{CANARY[:6]}",
        )
    ]
    asking.kill()  # what it has on its disk stays as it is while that is read
    secrets = [CANARY, *(file.read_text().strip().split("_", 2)[2] for file in files.values())]
    seen = [f"{ran.out} {ran.err}" for ran in shown] + listed + [f"{each.headers} {each.body!r}" for each in answers]
    seen += [asking.log.read_text(), *(path.read_text() for path in (tmp_path / "config" / "basalt").glob("profiles*"))]
    seen += [path.read_bytes().decode("latin-1") for path in asking.data.rglob("*") if path.is_file()]
    assert {ran.code for ran in shown} >= {0, 5}
    assert [text[:2_000] for text in seen for secret in secrets if secret in text] == []
