"""The container images, as far as they can be looked at without an engine: their recipe, and the package built of what it copies."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import yaml

from basalt.server.listening import listen_address
from basalt.settings import load_settings
from deploy.hbase.runtime import ROOT
from tests.docs.test_dependencies import locked, normalised

TEXT = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", TEXT, re.MULTILINE | re.DOTALL))
VERSION = re.compile(r"FROM (?P<name>[a-z-]+):\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})? AS \w+")


def copied(stage: str) -> list[tuple[list[str], str]]:
    """Paths that a stage takes from the context, and where to."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", STAGES[stage], re.MULTILINE)
    return [(line.split()[:-1], line.split()[-1]) for line in lines]


def in_context(path: str) -> bool:
    """True where .dockerignore lets it through: nothing but what is named."""
    named = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    return any(path == each or path.startswith(f"{each}/") for each in named)


def test_each_base_is_pinned_to_a_whole_version():
    bases = re.findall(r"^FROM .*$", TEXT, re.MULTILINE)
    assert len(bases) == 4
    assert [base for base in bases if not VERSION.fullmatch(base)] == []


def test_all_that_is_copied_is_there_and_in_the_context():
    paths = [path for stage in STAGES for sources, _ in copied(stage) for path in sources]
    assert len(paths) > 10
    assert [path for path in paths if not ((ROOT / path).exists() and in_context(path))] == []


def test_the_image_can_speak_kerberos_and_has_no_compiler():
    assert set(locked(ROOT / "requirements" / "kerberos.txt")) - set(locked(ROOT / "requirements" / "image.txt")) == {
        "gssapi", "decorator",
    }  # fmt: skip
    assert "--no-deps gssapi decorator" in STAGES["build"]
    assert "libgssapi-krb5-2" in STAGES["basalt"]
    assert "gcc" not in STAGES["basalt"]
    assert "kerberos-build" not in STAGES["basalt"]


def test_the_image_holds_arrow_and_tephra_and_no_tool():
    lock = locked(ROOT / "requirements" / "image.txt")
    assert {normalised(name) for name in ("pyarrow", "kazoo", "thriftpy2", "happybase", "rocksdict")} <= set(lock)
    assert not {"pyspark", "pytest", "hatchling"} & set(lock)
    assert "requirements/dev.txt" not in TEXT


@pytest.mark.parametrize(("status", "code"), [(200, 0), (400, 0), (500, 1), (503, 1), (None, 1)])
def test_a_container_is_healthy_while_its_process_answers(status: int | None, code: int):
    """With TLS the answer to this plain request is 400."""
    [check] = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", STAGES["basalt"], re.MULTILINE)
    program = json.loads(check)[2]
    assert "'127.0.0.1', 4780" in program
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            line, _ = listening.accept()
            with line:
                asked.append(line.recv(4_096).decode().partition(" HTTP")[0])
                if status is not None:
                    line.sendall(f"HTTP/1.1 {status} It Is\r\nContent-Length: 0\r\n\r\n".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        program = program.replace("4780", str(listening.getsockname()[1]))
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        thread.join()
    assert (ended.returncode, asked) == (code, ["GET /livez"])


def test_the_package_is_built_of_what_the_build_stage_copies(tmp_path: Path):
    for sources, target in copied("build"):
        for source in sources:
            to = tmp_path / target / (Path(source).name if target.endswith("/") else "")
            to.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__", "*.jar"))
            else:
                shutil.copy(ROOT / source, to)
    (tmp_path / "engine/basalt_engine/stores/hbase/basalt-coprocessor.jar").write_bytes(b"of the stage before")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."]
    subprocess.run(command, cwd=tmp_path, check=True)
    [wheel] = (tmp_path / "dist").glob("basalt_mq-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert "basalt_engine/stores/hbase/basalt-coprocessor.jar" in packed.namelist()
        assert "basalt_spark/__init__.py" in packed.namelist()


def test_compose_builds_stages_that_there_are_and_publishes_to_this_machine_alone():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name, service in compose["services"].items():
        assert service["build"]["target"] in STAGES, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        if service.get("ports"):
            given = dict(service["environment"])
            linked = given.pop("BASALT__CLUSTER__SECRET_FILE", None)
            settings = load_settings((), given)
            assert (linked is not None) == (settings.store.kind == "hbase"), (
                name
            )  # else it does not start: it listens beyond its container
            assert settings.http.hosts == (name,), name  # as other containers call it
            assert settings.leader.url == (f"http://{name}:4780" if settings.store.kind == "hbase" else None), name


def test_who_runs_the_image_says_that_it_is_open_and_the_image_does_not_say_it_for_them():
    [command] = re.findall(r"^CMD (\[.*\])$", STAGES["basalt"], re.MULTILINE)
    assert json.loads(command)[:1] == ["serve"]
    assert "0.0.0.0" in json.loads(command)
    assert "AUTH__KINDS" not in STAGES["basalt"]
    assert "auth.kinds" not in command


def test_compose_says_that_its_servers_are_open():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    servers = {name: each for name, each in compose["services"].items() if each.get("ports")}
    assert set(servers) == {"basalt", "basalt-2", "embedded"}
    for name, each in servers.items():
        given = {name: value for name, value in each["environment"].items() if name != "BASALT__CLUSTER__SECRET_FILE"}
        loaded = load_settings(["server.host=0.0.0.0"], given)
        assert not listen_address(loaded).is_loopback, name
