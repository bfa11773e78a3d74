"""Commands against a real server on a memory store: topics, messages, transactions, jobs, and what went wrong with them."""

from __future__ import annotations

import json

import pytest

from basalt.cli.commands import messages


def rows(ran) -> list[dict]:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def record(ran) -> dict:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def payloads(ran) -> list[str]:
    return [row["payload"] for row in rows(ran)]


def test_a_topic_is_created_shown_updated_listed_and_deleted(cli):
    created = cli("topic", "create", "orders", "--ttl", "1h", "--label", "team=billing")
    assert created.code == 0
    assert created.out.startswith("created topic test-")
    shown = record(cli("topic", "show", "orders", "-o", "json"))
    assert (shown["ttl_ms"], shown["generation"], shown["properties"], shown["messages"]) == (
        3_600_000,
        1,
        {"label.team": "billing"},
        0,
    )
    assert cli("topic", "update", "orders", "--ttl", "2d", "--unset", "label.team").code == 0
    listed = rows(cli("topic", "list", "-o", "json"))
    assert [(row["name"], row["ttl_ms"], row["properties"]) for row in listed] == [("orders", 172_800_000, {})]
    assert cli("topic", "delete", "orders", "--yes").code == 0
    assert rows(cli("topic", "list", "-o", "json")) == []
    gone = rows(cli("topic", "list", "--deleted", "-o", "json"))
    assert [(row["name"], row["generation"], row["deleted"]) for row in gone] == [("orders", 1, True)]
    assert record(cli("topic", "create", "orders", "-o", "json"))["generation"] == 2


def test_a_topic_is_shown_with_each_property_its_default_and_its_effect(cli):
    cli("topic", "create", "orders", "--ttl", "forever", "--retain-bytes", "10GiB", "--label", "team=billing")
    lines = [" ".join(line.split()) for line in cli("topic", "show", "orders").out.splitlines()]
    assert "PROPERTY VALUE DEFAULT EFFECT" in lines
    assert "ttl forever 7d how long messages are kept; a new one holds for old messages at once" in lines
    assert (
        "compression auto auto how messages are packed that are published from then on: auto compresses what shrinks"
        in lines
    )
    assert "tasks as the markers say as the markers say how many tasks give markers in the topic" in lines
    assert "label.team billing - -" in lines
    assert any(line.startswith("retainBytes 10 GiB no limit bytes of messages that the topic keeps") for line in lines)
    assert record(cli("topic", "show", "orders", "-o", "json"))["properties"]["retainBytes"] == str(10 << 30)
    assert " forever " in cli("topic", "list").out


def test_a_dry_run_tells_and_changes_nothing(cli):
    assert "would create topic" in cli("topic", "create", "orders", "--dry-run").out
    assert rows(cli("topic", "list", "-o", "json")) == []
    cli("topic", "create", "orders")
    assert cli("topic", "create", "orders", "--dry-run").code == 4
    assert "would update" in cli("topic", "update", "orders", "--ttl", "1s", "--dry-run").out
    assert "would publish 2 messages, 4 bytes" in cli("publish", "orders", "aa", "bb", "--dry-run").out
    assert "would delete topic" in cli("topic", "delete", "orders", "--dry-run").out
    assert "would begin a long transaction" in cli("tx", "begin", "--long", "--dry-run").out
    shown = record(cli("topic", "show", "orders", "-o", "json"))
    assert (shown["ttl_ms"], shown["messages"]) == (604_800_000, 0)
    assert rows(cli("tx", "list", "-o", "json")) == []


def test_what_is_not_there_is_exit_code_3_and_what_is_there_already_4(cli):
    cli("topic", "create", "orders")
    assert cli("topic", "create", "orders").code == 4
    for arguments in (
        ("topic", "show", "nothing"),
        ("topic", "update", "nothing", "--ttl", "1h"),
        ("topic", "delete", "nothing", "--yes"),
        ("publish", "nothing", "x"),
        ("consume", "nothing"),
        ("message", "show", "orders", "00" * 20),
        ("message", "peek", "nothing"),
        ("explain", "poll", "nothing"),
        ("tx", "show", "1"),
        ("tx", "commit", "1"),
        ("job", "run", "nothing"),
        ("job", "history", "nothing"),
        ("job", "pause", "nothing", "--dry-run"),
    ):
        ran = cli(*arguments)
        assert (ran.code, ran.err.count("\n")) == (3, 1), arguments


@pytest.mark.parametrize("name", ["a b", "../x", "a:b", "ü", "", "x" * 5_000, "a\x1b[31m", "a\u202eb"])
def test_a_name_that_is_none_is_refused_on_one_printable_line(cli, name):
    for arguments in (
        ("topic", "create", name),
        ("topic", "list", "--namespace", name or "a b"),
        ("publish", name, "x"),
    ):
        ran = cli(*arguments)
        assert ran.code in ((2,) if arguments == ("publish", "", "x") else (1, 3))
        assert ran.err.count("\n") == 1
        assert ran.err[:-1].isprintable()


def test_messages_come_from_arguments_files_and_lines_and_keep_their_order(cli, tmp_path):
    cli("topic", "create", "orders")
    cli("publish", "orders", "one", "--", "-two", "--three")
    file = tmp_path / "lines"
    file.write_bytes(b"four\n\nfive")
    assert (
        record(cli("publish", "orders", "--file", str(file), "--lines", "--batch", "2", "-o", "json"))["requests"] == 2
    )
    cli("publish", "orders", "--file", str(file))
    cli("publish", "orders", "--file", "-", "--lines", stdin=b"six\nseven\n")
    expected = ["one", "-two", "--three", "four", "", "five", "four\n\nfive", "six", "seven"]
    assert payloads(cli("consume", "orders", "-o", "json")) == expected


def test_lines_beyond_a_batch_go_in_another_request_and_one_too_long_ends_it(cli, monkeypatch):
    monkeypatch.setattr(messages, "BATCH_BYTES_MAX", 2)
    monkeypatch.setattr(messages, "MESSAGE_BYTES_MAX", 3)
    cli("topic", "create", "orders")
    ran = cli("publish", "orders", "--file", "-", "--lines", "-o", "json", stdin=b"a\nb\nc\n\nddd\ne\nfff")
    assert record(ran)["requests"] == 5
    expected = ["a", "b", "c", "", "ddd", "e", "fff"]
    assert payloads(cli("consume", "orders", "-o", "json")) == expected
    refused = cli("publish", "orders", "--file", "-", "--lines", stdin=b"gg\nhh\niiii\nj\n")
    assert (refused.code, "line 3 of" in refused.err) == (1, True), refused.err
    assert "the first 1 message is published" in refused.err
    assert payloads(cli("consume", "orders", "-o", "json"))[:8] == [*expected, "gg"]
    whole = cli("publish", "orders", "--file", "-", stdin=b"kkkk")
    assert (whole.code, "did you mean --lines?" in whole.err) == (1, True), whole.err


def test_bytes_that_are_not_text_survive_every_way_there_and_back(cli, tmp_path):
    cli("topic", "create", "orders")
    content = bytes(range(256))
    file = tmp_path / "bytes"
    file.write_bytes(content)
    cli("publish", "orders", "--file", str(file))
    assert cli("consume", "orders", "--format", "raw").raw == content + b"\n"
    assert rows(cli("consume", "orders", "--format", "hex", "-o", "json"))[0]["payload_hex"] == content.hex()
    automatic = rows(cli("consume", "orders", "-o", "json"))[0]
    assert "payload" not in automatic
    assert (
        automatic["payload_base64"]
        == rows(cli("consume", "orders", "--format", "base64", "-o", "json"))[0]["payload_base64"]
    )
    line = cli("consume", "orders").out
    assert line[:-1].isprintable()


@pytest.mark.parametrize(
    ("file", "reason"), [("/nowhere/at/all", "No such file or directory"), ("/", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_named(cli, file, reason):
    cli("topic", "create", "orders")
    for more in ((), ("--lines",)):
        ran = cli("publish", "orders", "--file", file, *more)
        assert (ran.code, ran.err) == (1, f"basalt: cannot read {file}: {reason}\n")


def test_a_message_over_the_limit_is_refused_before_it_is_sent(cli, tmp_path):
    cli("topic", "create", "orders")
    file = tmp_path / "large"
    file.write_bytes(b"ok\n" + b"x" * (10 * 1024 * 1024 + 1))
    whole = cli("publish", "orders", "--file", str(file))
    assert (whole.code, "--lines" in whole.err) == (1, True)
    lines = cli("publish", "orders", "--file", str(file), "--lines")
    assert (lines.code, "line 2 of" in lines.err) == (1, True)


def test_a_range_starts_at_its_start_and_stops_before_its_stop(cli):
    cli("topic", "create", "orders")
    cli("publish", "orders", "a", "b", "c", "d")
    ids = [row["id"] for row in rows(cli("consume", "orders", "-o", "json"))]

    def read(*arguments: str) -> list[str]:
        return payloads(cli("consume", "orders", *arguments, "-o", "json"))

    assert read("--from", ids[1], "--to", ids[3]) == ["b", "c"]
    assert read("--after", ids[1]) == ["c", "d"]
    assert read("--after", ids[3]) == []
    assert read("--limit", "2") == ["a", "b"]
    assert read("--from", "-1h", "--to", "now", "--limit", "1") == ["a"]
    assert read("--from", "-2h", "--to", "-1h") == []
    assert read("--from", "end") == []
    assert read("--from", "@0", "--to", "end") == ["a", "b", "c", "d"]
    assert read("--from", "@2020-01-01T00:00:00+01:00", "--limit", "1") == ["a"]


def test_follow_goes_on_until_its_limit(cli):
    cli("topic", "create", "orders")
    cli("publish", "orders", "a", "b")
    assert payloads(cli("consume", "orders", "--follow", "--limit", "2", "-o", "json")) == ["a", "b"]


def test_keys_headers_and_ttls_go_with_messages(cli):
    cli("topic", "create", "orders")
    published = cli("publish", "orders", "x", "--key", "k", "--header", "a=1", "--header", "b=2", "--ttl", "1h")
    assert published.code == 0, published.err
    (read,) = rows(cli("consume", "orders", "-o", "json"))
    assert read["payload"] == "x"
    shown = record(cli("message", "show", "orders", read["id"], "-o", "json"))
    assert (shown["key"], shown["ttl_ms"], shown["headers"]) == (
        "k",
        3_600_000,
        [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}],
    )
    assert "a=1 b=2" in cli("message", "show", "orders", read["id"]).out
    assert {name: read[name] for name in ("key", "headers", "ttl_ms")} == {
        name: shown[name] for name in ("key", "headers", "ttl_ms")
    }
    assert cli("consume", "orders").out.endswith("Z  key=k a=1 b=2  x\n")


def test_keys_and_headers_go_with_messages_of_a_transaction(cli):
    cli("topic", "create", "orders")
    begun = record(cli("tx", "begin", "-o", "json"))
    stored = cli("publish", "orders", "x", "--tx", begun["id"], "--key", "k", "--header", "a=1", "--ttl", "1h")
    assert stored.code == 0, stored.err
    assert cli("tx", "commit", begun["id"]).code == 0
    (read,) = rows(cli("consume", "orders", "-o", "json"))
    assert (read["key"], read["headers"], read["ttl_ms"]) == ("k", [{"name": "a", "value": "1"}], 3_600_000)
    cli("publish", "orders", "plain")
    assert set(rows(cli("consume", "orders", "-o", "json"))[1]) == {"id", "publish_ms", "payload"}


def test_what_is_stored_under_a_transaction_is_seen_when_it_commits(cli):
    cli("topic", "create", "orders")
    begun = record(cli("tx", "begin", "--owner", "nightly", "--expires", "1m", "-o", "json"))
    assert cli("publish", "orders", "in", "--tx", begun["id"]).code == 0
    assert payloads(cli("consume", "orders", "-o", "json")) == []
    assert [(row["id"], row["owner"]) for row in rows(cli("tx", "list", "-o", "json"))] == [(begun["id"], "nightly")]
    cli("publish", "orders", "out")
    assert "OPEN" in cli("tx", "commit", begun["id"], "--dry-run").out
    assert record(cli("tx", "commit", begun["id"], "-o", "json"))["state"] == "COMMITTED"
    assert payloads(cli("consume", "orders", "-o", "json")) == ["out", "in"]
    assert cli("tx", "commit", begun["id"]).code == 0
    assert cli("tx", "abort", begun["id"], "--yes").code == 4
    assert "committed" in record(cli("explain", "tx", begun["id"], "-o", "json"))["meaning"]
    ended = cli("publish", "orders", "late", "--tx", begun["id"])
    assert ended.code == 4


def test_an_aborted_transaction_leaves_nothing(cli):
    cli("topic", "create", "orders")
    begun = record(cli("tx", "begin", "-o", "json"))
    cli("publish", "orders", "never", "--tx", begun["id"])
    asked = cli("tx", "abort", begun["id"])
    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert record(cli("tx", "abort", begun["id"], "--yes", "-o", "json"))["state"] == "ABORTED"
    assert payloads(cli("consume", "orders", "--isolation", "uncommitted", "-o", "json")) == []


@pytest.fixture
def without_retention(cli):
    """The job of the server that would remove what was rolled back, once a minute, does not."""
    assert cli("job", "pause", "retention").code == 0
    yield
    assert cli("job", "resume", "retention").code == 0


@pytest.mark.usefixtures("without_retention")
def test_explain_names_the_transaction_at_which_a_reader_stops(cli, server_url):
    import os

    import basalt

    cli("topic", "create", "orders")
    assert "get to the end" in cli("explain", "poll", "orders").out
    cli("publish", "orders", "before")
    with basalt.connect(server_url, namespace=os.environ["BASALT_NAMESPACE"]) as client:
        begun = client.transactions.begin(owner="importer", timeout_ms=60_000)
        client.topic("orders").publish(["held"], write_pointer=begun.write_pointer)
        cli("publish", "orders", "after")
        stopped = cli("consume", "orders")
        assert stopped.out.split()[2:] == ["before"]
        assert begun.id in stopped.err
        told = record(cli("explain", "poll", "orders", "-o", "json"))
        assert (told["held_by"], told["owner"], told["state"]) == (begun.id, "importer", "OPEN")
        assert payloads(
            cli("consume", "orders", "--from", told["at_id"], "--isolation", "uncommitted", "-o", "json")
        ) == [
            "held",
            "after",
        ]
        assert 0 < told["expires_in_ms"] <= 60_000
        assert f"basalt tx abort {begun.id}" in cli("explain", "poll", "orders").out
        states = [(row["payload"], row["state"]) for row in rows(cli("message", "peek", "orders", "-o", "json"))]
        assert states == [("before", "plain"), ("held", "open"), ("after", "plain")]
        assert payloads(cli("consume", "orders", "--isolation", "uncommitted", "-o", "json")) == [
            "before",
            "held",
            "after",
        ]
        client.transactions.abort(begun)
    assert payloads(cli("consume", "orders", "-o", "json")) == ["before", "after"]
    peeked = rows(cli("message", "peek", "orders", "-o", "json"))
    seen = [(row["payload"], row["state"]) for row in peeked]
    assert seen == [("before", "plain"), ("held", "rolled back"), ("after", "plain")]
    assert record(cli("message", "show", "orders", peeked[1]["id"], "-o", "json"))["payload"] == "held"


def test_namespaces_are_listed_and_a_profile_names_one(cli, run, server_url, monkeypatch):
    import os

    namespace = os.environ["BASALT_NAMESPACE"]
    cli("topic", "create", "orders")
    assert {"name": namespace} in rows(cli("namespace", "list", "-o", "json"))
    monkeypatch.delenv("BASALT_URL")
    monkeypatch.delenv("BASALT_NAMESPACE")
    run("profile", "add", "here", "--url", server_url, "--namespace", namespace)
    assert [row["name"] for row in rows(run("topic", "list", "-o", "json"))] == ["orders"]
    assert rows(run("topic", "list", "--namespace", "elsewhere", "-o", "json")) == []
    assert namespace in run("topic", "list", "--all-namespaces").out


def test_jobs_are_listed_run_paused_and_resumed_with_history(cli):
    names = [row["name"] for row in rows(cli("job", "list", "-o", "json"))]
    assert {"retention", "log-snapshot", "stats"} <= set(names)
    assert "would run" in cli("job", "run", "stats", "--dry-run").out
    assert "would resume job stats: nothing changes" in cli("job", "resume", "stats", "--dry-run").out
    assert "ran job stats: ok in" in cli("job", "run", "stats", "--reason", "a try", "--as", "ada").out
    (line,) = rows(cli("audit", "list", "--limit", "1", "-o", "json"))
    assert (line["act"], line["name"], line["reason"]) == ("run job", "ada", "a try")
    assert json.loads(cli("job", "show", "stats", "-o", "json").out)["last_outcome"] == "ok"
    assert "every" in cli("job", "show", "stats").out
    assert len(rows(cli("job", "history", "stats", "-o", "json"))) >= 1
    assert cli("job", "pause", "stats").code == 0
    assert [row["paused"] for row in rows(cli("job", "list", "-o", "json")) if row["name"] == "stats"] == [True]
    assert cli("job", "resume", "stats").code == 0
    assert [row["paused"] for row in rows(cli("job", "list", "-o", "json")) if row["name"] == "stats"] == [False]
    assert cli("job", "list").out.splitlines()[0].split()[:4] == ["NAME", "ENABLED", "PAUSED", "RUNNING"]
    assert "ok" in cli("job", "history", "stats").out.splitlines()[1]


def test_a_server_tells_whether_others_share_its_store(cli):
    assert json.loads(cli("cluster", "show", "-o", "json").out)["shared"] is False
    assert "lease age" in cli("cluster", "show").out


def test_the_server_tells_its_settings(cli):
    shown = {row["key"]: row for row in rows(cli("config", "show", "--server", "--origin", "-o", "json"))}
    assert (shown["store.kind"]["value"], shown["store.kind"]["origin"]) == ("memory", "--set")
    assert cli("config", "show", "--server", "--changed").out.splitlines()[1:] == ["store.kind  memory"]


def test_a_setting_of_the_running_server_is_changed_and_the_answer_tells_how_to_keep_it(cli):
    would = cli("config", "set", "messaging.fetch_messages_max=9999", "--dry-run")
    assert would.out.startswith("would set messaging.fetch_messages_max from 10000 to 9999, until the server stops; ")
    done = cli("config", "set", "messaging.fetch_messages_max=9999", "jobs.stats.enabled=true", "--reason", "a test")
    assert done.out == (
        "set messaging.fetch_messages_max from 10000 to 9999, jobs.stats.enabled from true to true, until the server stops;"
        " to keep it, write fetch_messages_max = 9999 under [messaging] and enabled = true under [jobs.stats] in its"
        " settings file\n"
    )
    shown = {row["key"]: row for row in rows(cli("config", "show", "--server", "--origin", "-o", "json"))}
    assert (shown["messaging.fetch_messages_max"]["value"], shown["messaging.fetch_messages_max"]["origin"]) == (
        "9999",
        "config set",
    )
    acts = rows(cli("audit", "list", "-o", "json"))
    assert "setting messaging.fetch_messages_max" in [act["what"] for act in acts]
    assert cli("config", "set", "messaging.fetch_messages_max=10000").code == 0


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        (["log.level"], 2, "not NAME=VALUE"),
        (["log.level=info", "log.level=debug"], 2, "given twice"),
        (["log.levle=info"], 2, "did you mean log.level?"),
        (["store.sync=false"], 4, "write sync = false under [store]"),
    ],
)
def test_a_change_of_settings_that_cannot_be_is_refused(cli, changes, code, says):
    refused = cli("config", "set", *changes)
    assert refused.code == code
    assert says in refused.err


def test_doctor_checks_the_server_and_a_data_directory(cli, tmp_path):
    checks = {row["name"]: row["ok"] for row in rows(cli("doctor", "-o", "json"))}
    assert checks["server"]
    assert checks["part store"]
    missing = cli("doctor", "--data", str(tmp_path / "none"), "--no-server", "-o", "json")
    assert (missing.code, json.loads(missing.out)[0]["ok"]) == (1, False)
    unreachable = cli("doctor", "--url", "http://127.0.0.1:1", "-o", "json")
    assert (unreachable.code, json.loads(unreachable.out)[0]["ok"]) == (6, False)


def test_bench_measures_and_takes_its_topic_away_again(cli):
    parts = rows(cli("bench", "--messages", "40", "--batch", "10", "--size", "100", "--seconds", "60", "-o", "json"))
    assert [row["messages"] for row in parts] == [40, 40, 40, 120]
    assert all(row["messages_per_s"] > 0 for row in parts)
    assert rows(cli("topic", "list", "-o", "json")) == []


def test_backup_of_a_memory_store_is_refused(cli):
    ran = cli("backup", "create", "nightly")
    assert ran.code in (1, 4)
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "yaml"])
def test_consume_writes_every_format(cli, form):
    import yaml

    cli("topic", "create", "orders")
    cli("publish", "orders", "a", "b")
    out = cli("consume", "orders", "-o", form).out
    if form == "table":
        assert [line.split()[2] for line in out.splitlines()] == ["a", "b"]
    elif form == "jsonl":
        assert [json.loads(line)["payload"] for line in out.splitlines()] == ["a", "b"]
    else:
        assert [row["payload"] for row in yaml.safe_load(out)] == ["a", "b"]
