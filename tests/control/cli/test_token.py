"""`basalt token`: made and printed once, kept in a file, limited, rotated with an overlap, revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.control.cli.asking_server import asking, root, sent_by

__all__ = ["asking", "root", "sent_by"]


def made(root, name: str, *options: str) -> dict[str, object]:
    ran = root("token", "create", name, *options, "-o", "json")
    assert ran.code == 0, ran
    found: dict[str, object] = json.loads(ran.out)
    return found


def test_a_token_is_alone_on_standard_output_and_the_rest_is_told_beside_it(root, sent_by):
    ran = root("token", "create", "etl")
    assert ran.code == 0
    token = ran.out.removesuffix("\n")
    assert "\n" not in token
    assert token.startswith("basalt_")
    token_id = token.split("_")[1]
    assert f"token {token_id} of token:etl, until 2" in ran.err
    assert token not in ran.err
    whoami = json.loads(sent_by(token, "auth", "whoami", "-o", "json").out)
    assert (whoami["principal"], whoami["credential"]) == ("token:etl", f"token {token_id}")


def test_programs_get_the_token_with_what_is_known_of_it(root):
    found = made(root, "etl", "--note", "nightly", "--ttl", "1h", "--network", "127.0.0.0/8")
    assert (found["principal"], found["note"], found["networks"]) == ("token:etl", "nightly", ["127.0.0.0/8"])
    assert found["expires_ms"] - found["created_ms"] == 3_600_000  # type: ignore[operator]
    assert str(found["token"]).split("_")[1] == found["id"]
    assert made(root, "ever", "--ttl", "never")["expires_ms"] is None


def test_a_token_goes_to_a_file_of_its_owners_alone_and_not_to_the_terminal(root, sent_by, tmp_path: Path):
    file = tmp_path / "etl.token"
    ran = root("token", "create", "etl", "--to-file", str(file))
    assert (ran.code, file.stat().st_mode & 0o777) == (0, 0o600)
    token = file.read_text().strip()
    assert token not in ran.out + ran.err
    assert f"token {token.split('_')[1]} of token:etl" in ran.out
    assert sent_by(token, "auth", "whoami").code == 0
    again = root("token", "create", "etl", "--to-file", str(file))
    assert (again.code, file.read_text().strip()) == (4, token)
    assert len(json.loads(root("token", "list", "-o", "json").out)) == 1  # none was made for it
    row = json.loads(root("token", "create", "etl", "--to-file", str(tmp_path / "b"), "-o", "json").out)
    assert "token" not in row


def test_a_folder_that_takes_no_file_is_told_of_before_a_token_is_made(root, tmp_path: Path):
    ran = root("token", "create", "etl", "--to-file", str(tmp_path / "nowhere" / "token"))
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert json.loads(root("token", "list", "-o", "json").out) == []


def test_a_token_that_is_refused_leaves_no_file(root, tmp_path: Path):
    assert root("token", "create", " ", "--to-file", str(tmp_path / "token")).code == 1
    assert not (tmp_path / "token").exists()


def test_a_dry_run_makes_none(root, tmp_path: Path):
    ran = root("token", "create", "etl", "--dry-run", "--to-file", str(tmp_path / "token"))
    assert (ran.code, ran.out) == (0, "would make a token of token:etl\n")
    assert not (tmp_path / "token").exists()
    assert json.loads(root("token", "list", "-o", "json").out) == []


def test_a_token_is_limited_to_fewer_rights_than_its_principal_has(root, sent_by):
    root("grant", "add", "token:etl", "owner", "namespace:shop")
    limited = str(
        made(root, "etl", "--only", "write,observe topic:shop:orders", "--only", "read topic:shop:orders")["token"]
    )
    root("topic", "create", "orders")
    root("topic", "create", "bills")
    assert sent_by(limited, "publish", "orders", "a").code == 0
    assert sent_by(limited, "publish", "bills", "a").code == 5
    shown = root("token", "show", limited.split("_")[1])
    assert "only       observe, read, write on topic:shop:orders" in shown.out


@pytest.mark.parametrize("only", ["read", "", " ", "read "])
def test_a_limit_that_is_none_is_refused(root, only):
    ran = root("token", "create", "etl", "--only", only)
    assert (ran.code, "is not VERBS RESOURCE" in ran.err) == (2, True)


def test_a_token_is_rotated_with_an_overlap_into_the_file_that_clients_read(root, sent_by, tmp_path: Path):
    file = tmp_path / "etl.token"
    root("token", "create", "etl", "--to-file", str(file))
    old = file.read_text().strip()
    ran = root("token", "rotate", old.split("_")[1], "--overlap", "1h", "--to-file", str(file))
    new = file.read_text().strip()
    assert (ran.code, new != old, file.stat().st_mode & 0o777) == (0, True, 0o600)
    assert [sent_by(token, "auth", "whoami").code for token in (old, new)] == [0, 0]
    root("token", "rotate", new.split("_")[1], "--overlap", "0ms")
    refused = sent_by(new, "auth", "whoami")
    assert (refused.code, "the token is expired" in refused.err) == (5, True)
    assert [path.name for path in tmp_path.glob(".etl*")] == []


def test_a_token_that_is_revoked_counts_no_more_and_it_is_asked_first(root, sent_by):
    token = str(made(root, "etl")["token"])
    token_id = token.split("_")[1]
    assert (root("token", "revoke", token_id).code, sent_by(token, "auth", "whoami").code) == (2, 0)
    ran = root("token", "revoke", token_id, "--dry-run")
    assert (ran.code, ran.out) == (0, f"would revoke token {token_id} of token:etl\n")
    assert sent_by(token, "auth", "whoami").code == 0
    ran = root("token", "revoke", token_id, "--yes", "--reason", "it leaked")
    assert (ran.code, ran.out) == (0, f"revoked token {token_id} of token:etl\n")
    refused = sent_by(token, "auth", "whoami")
    assert (refused.code, "the token is revoked" in refused.err) == (5, True)
    assert root("token", "show", "0" * 16).code == 3
    acts = json.loads(root("audit", "list", "-o", "json").out)
    assert any(act["act"] == "revoke token" and act["reason"] == "it leaked" for act in acts)


def test_lists_have_no_secret_and_those_that_count_no_more_only_when_asked(root):
    token = str(made(root, "etl")["token"])
    root("token", "revoke", token.split("_")[1], "--yes")
    kept = made(root, "other")
    for form in ("table", "json", "jsonl", "yaml"):
        ran = root("token", "list", "--all", "-o", form)
        assert token not in ran.out
        assert str(kept["token"]).split("_", 2)[2] not in ran.out
        assert token.split("_")[1] in ran.out
        assert token.split("_")[1] not in root("token", "list", "-o", form).out


def test_who_may_give_no_rights_makes_no_tokens(root, sent_by):
    token = str(made(root, "etl")["token"])
    ran = sent_by(token, "token", "create", "other")
    assert (ran.code, "token:etl may not grant cluster" in ran.err) == (5, True)
    assert sent_by(None, "token", "create", "other").code == 5
