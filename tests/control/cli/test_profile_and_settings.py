"""Commands that need no server: config, init, completion."""

from __future__ import annotations

import json

import pytest
import yaml


def test_config_show_lists_every_setting_and_with_origin_where_it_came_from(run, monkeypatch, tmp_path):
    file = tmp_path / "basalt.toml"
    file.write_text('[store]\nkind = "memory"\n')
    monkeypatch.setenv("BASALT__LOG__LEVEL", "debug")
    ran = run("config", "show", "--origin", "--config", str(file), "--set", "store.sync=false", "-o", "json")
    rows = {row["key"]: row for row in json.loads(ran.out)}
    assert rows["store.kind"] == {"key": "store.kind", "value": "memory", "origin": f"file {file}"}
    assert rows["log.level"]["origin"] == "environment BASALT__LOG__LEVEL"
    assert rows["store.sync"]["origin"] == "--set"
    assert rows["http.body_bytes_max"] == {"key": "http.body_bytes_max", "value": "10MiB", "origin": "default"}


def test_config_show_changed_leaves_defaults_out(run):
    ran = run("config", "show", "--changed", "--set", "store.kind=memory")
    assert ran.out.splitlines() == ["KEY         VALUE", "store.kind  memory"]


@pytest.mark.parametrize("name", ["BASALT_CONFIG", None])
def test_config_check_tells_every_problem_on_a_line_of_its_own_with_exit_code_2(run, monkeypatch, tmp_path, name):
    file = tmp_path / "basalt.toml"
    file.write_text("[store]\nkind = 7\n[log]\nlevel = 1\n")
    if name:
        monkeypatch.setenv(name, str(file))
        ran = run("config", "check")
    else:
        ran = run("config", "check", str(file))
    assert ran.code == 2
    assert [line.split(":")[1].strip() for line in ran.err.splitlines()] == ["setting store.kind", "setting log.level"]
    assert ran.out == ""


def test_config_check_of_a_good_file_is_0(run, tmp_path):
    file = tmp_path / "basalt.toml"
    file.write_text("")
    assert run("config", "check", str(file)).code == 0


def test_config_check_tells_of_an_address_that_would_be_open_to_others_by_accident(run, tmp_path):
    file = tmp_path / "basalt.toml"
    file.write_text('[server]\nhost = "0.0.0.0"\n')
    ran = run("config", "check", str(file))
    assert ran.code == 2
    assert "setting auth.kinds is not given" in ran.err
    assert run("config", "check", str(file), "--set", "auth.kinds=none").code == 0
    # The server may run elsewhere, where this is a name.
    assert run("config", "check", str(file), "--set", "server.host=nobody.invalid").code == 0


def test_config_check_tells_of_links_beyond_this_machine_without_a_secret(run, tmp_path):
    file = tmp_path / "basalt.toml"
    file.write_text(
        '[server]\nhost = "10.0.0.7"\n[auth]\nkinds = ["none"]\n[store]\nkind = "hbase"\n[store.hbase]\nthrift = "h:9090"\nthrift2 = "h:9091"\n'
    )
    ran = run("config", "check", str(file))
    assert ran.code == 2
    assert "setting cluster.secret_file is not given" in ran.err
    assert run("config", "check", str(file), "--set", "cluster.listen=127.0.0.1:4790").code == 0


def test_init_writes_a_file_that_check_accepts_and_does_not_replace_it_without_yes(run, tmp_path):
    file = tmp_path / "basalt.toml"
    assert run("init", str(file), "--dry-run").code == 0
    assert not file.exists()
    assert run("init", str(file)).code == 0
    assert run("config", "check", str(file)).code == 0
    file.write_text("mine")
    again = run("init", str(file))
    assert (again.code, file.read_text()) == (4, "mine")
    assert "--yes" in again.err
    assert run("init", str(file), "--yes").code == 0
    assert "fetch_messages_max" in file.read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(run, shell):
    ran = run("completion", shell)
    assert ran.code == 0
    assert "_BASALT_COMPLETE" in ran.out


def test_completion_answers_the_shell_without_loading_a_command(run, monkeypatch):
    monkeypatch.setenv("_BASALT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "basalt prof")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run().out == "plain,profile\n"


def test_yaml_and_jsonl_say_the_same_as_json(run):
    as_json = json.loads(run("config", "show", "-o", "json").out)
    assert yaml.safe_load(run("config", "show", "-o", "yaml").out) == as_json
    assert [json.loads(line) for line in run("config", "show", "-o", "jsonl").out.splitlines()] == as_json


def test_the_output_option_may_stand_before_the_command_and_the_later_one_wins(run):
    before = run("-o", "jsonl", "config", "show")
    assert before.out == run("config", "show", "-o", "jsonl").out
    assert run("-o", "json", "config", "show", "-o", "jsonl").out == before.out
