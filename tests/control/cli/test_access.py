"""`basalt access`: roles and grants as a file, exported, reviewed and applied."""

from __future__ import annotations

import json
from pathlib import Path

from basalt.cli.commands.access.access_file import FILE_BYTES_MAX
from tests.control.cli.asking_server import asking, root, sent_by

__all__ = ["asking", "root", "sent_by"]


def test_what_is_exported_changes_nothing_when_it_is_applied(root, tmp_path: Path):
    root("role", "set", "billing", "token:invoices", "jwt-group:billing")
    root("grant", "add", "role:billing", "reader", "namespace:shop")
    root("grant", "add", "everyone", "observe", "topic:shop:*")
    root("quota", "set", "everyone", "--requests-per-s", "500", "--topics", "off")
    token = root("token", "create", "invoices", "--note", 'says "hello"').out.strip()
    ran = root("access", "export")
    assert (ran.code, ran.err) == (0, "")
    assert token not in ran.out
    assert token.split("_")[1] in ran.out
    assert root("access", "export").out == ran.out
    file = tmp_path / "access.toml"
    file.write_text(ran.out)
    for options in ((), ("--prune",), ("--prune", "--dry-run")):
        again = root("access", "apply", str(file), *options)
        assert (again.code, again.out, again.err) == (0, "", "basalt: all is as the file has it\n")
    assert root("access", "apply", "-", stdin=ran.out.encode()).code == 0


def test_a_file_makes_and_prunes_what_it_says(root, tmp_path: Path):
    root("role", "set", "old", "token:a")
    root("role", "set", "billing", "token:a", "token:b")
    root("grant", "add", "token:a", "reader", "namespace:shop")
    root("quota", "set", "token:a", "--topics", "5")
    file = tmp_path / "access.toml"
    file.write_text(
        '[roles]\nbilling = ["token:b", "token:c"]\n\n'
        '[[grants]]\nsubject = "role:billing"\nverbs = ["read", "observe"]\nresource = "namespace:shop"\n'
        '[quotas."token:b"]\ntopics = 7\nrequests_per_s = "off"\n'
    )
    told = [
        "role billing: -token:a",
        "grant observe, read on namespace:shop to role:billing",
        "take back observe, read on namespace:shop from token:a",
        "role billing: +token:c",
        "remove role old",
        "quotas of token:b: requests_per_s off, topics 7",
        "remove the quotas of token:a",
    ]
    dry = root("access", "apply", str(file), "--prune", "--dry-run")
    assert (dry.code, dry.out.splitlines(), dry.err) == (0, told, "basalt: 7 changes would be done\n")
    assert json.loads(root("access", "apply", str(file), "--prune", "--dry-run", "-o", "json").out)["changes"] == told
    assert [row["name"] for row in json.loads(root("role", "list", "-o", "json").out)] == ["billing", "old"]
    kept = root("access", "apply", str(file))
    assert (kept.code, kept.out.splitlines()) == (0, [told[0], told[1], told[3], told[5]])
    asked = root("access", "apply", str(file), "--prune")
    assert (asked.code, "nobody is there to ask" in asked.err.lower()) == (2, True)
    done = root("access", "apply", str(file), "--prune", "--yes", "--reason", "review 12")
    assert (done.code, done.out.splitlines()) == (0, [told[2], told[4], told[6]])
    assert json.loads(root("grant", "list", "-o", "json").out)[0]["subject"] == "role:billing"
    assert json.loads(root("audit", "list", "-o", "json").out)[0]["reason"] == "review 12"


def test_a_change_that_fails_tells_how_far_it_came(root, sent_by, tmp_path: Path):
    root("grant", "add", "token:lead", "grant,observe,read", "namespace:shop")
    token = root("token", "create", "lead").out.strip()
    file = tmp_path / "access.toml"
    file.write_text(
        '[[grants]]\nsubject = "token:etl"\nverbs = ["read"]\nresource = "namespace:shop"\n'
        '[[grants]]\nsubject = "token:etl"\nverbs = ["write"]\nresource = "namespace:shop"\n'
    )
    ran = sent_by(token, "access", "apply", str(file))
    assert ran.code == 5
    assert "1 of 2 changes are made; this one failed: grant write on namespace:shop to token:etl" in ran.err
    assert "you see what concerns yourself alone, and no quotas" in ran.err
    root("grant", "add", "token:lead", "grant", "cluster")
    assert "you see no quotas" in sent_by(token, "access", "export").err


def test_a_file_that_is_wrong_is_named_and_nothing_is_done(root, tmp_path: Path):
    file = tmp_path / "access.toml"
    for content in (b"roles = 1\n", b"\xff", b"#" * (FILE_BYTES_MAX + 1)):
        file.write_bytes(content)
        ran = root("access", "apply", str(file))
        assert (ran.code, ran.err.count("\n"), str(file) in ran.err) == (2, 1, True), ran.err[:200]
    assert root("access", "apply", str(tmp_path / "nowhere")).code == 2
