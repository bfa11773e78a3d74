"""The unit of deploy/systemd as systemd reads it, and the settings that it names."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from basalt.server.listening import listen_address
from basalt.settings import load_settings
from deploy.hbase.runtime import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "basalt.service"
EXPOSURE_MAX = 2.0  # of 10, as systemd counts what a service may do

analyzed = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(UNIT)
    return parser


@analyzed
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path):
    installed = tmp_path / "basalt.service"  # with a program that is on this machine
    installed.write_text(UNIT.read_text().replace("/opt/basalt/bin/basalt", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(installed)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@analyzed
def test_systemd_finds_the_service_well_shut_in():
    command = ["systemd-analyze", "security", "--offline=true", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "offline" in done.stderr:
        pytest.skip("this systemd cannot look at a unit that is not loaded")
    score = re.search(r"Overall exposure level for basalt.service: ([\d.]+)", done.stdout)
    assert score is not None, done.stdout + done.stderr
    assert float(score[1]) <= EXPOSURE_MAX


def test_the_unit_waits_for_word_of_the_server_and_starts_it_with_its_settings():
    service = unit()["Service"]
    assert service["Type"] == "notify"
    assert service["ExecStart"] == "/opt/basalt/bin/basalt serve --config /etc/basalt/basalt.toml"
    assert service["RestartPreventExitStatus"] == "2"  # how the command line says that a setting is wrong
    loaded = load_settings((), {}, FOLDER / "basalt.toml")
    assert loaded.server.data == f"/var/lib/{service['StateDirectory']}/data"
    assert (loaded.server.host, loaded.server.port) == ("127.0.0.1", 4780)
    assert listen_address(loaded).is_loopback
    # Nobody else may look at the payloads, whatever made the files.
    assert (service["StateDirectoryMode"], service["UMask"]) == ("0700", "0077")


def test_the_user_of_the_unit_is_the_one_that_is_made():
    [line] = [line for line in (FOLDER / "basalt.sysusers").read_text().splitlines() if not line.startswith("#")]
    assert line.split()[:2] == ["u", unit()["Service"]["User"]]
