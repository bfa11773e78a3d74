"""`basalt auth reset`: a way in for an operator who has lost every other one, and owns the data directory."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner

from basalt.access.authentication import superusers_of
from basalt.access.directory import Directory
from basalt.access.proofs.token import prove_token, read_token
from basalt.cli.root import root
from basalt_engine.clock import SystemClock
from basalt_engine.stores.rocks import RocksStore


def test_the_new_token_may_do_everything_for_a_day(tmp_path):
    RocksStore.open(tmp_path).close()
    result = CliRunner().invoke(root, ["auth", "reset", "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = result.stdout.strip()
    store, clock = RocksStore.open(tmp_path), SystemClock()
    directory = Directory(store, clock, superusers_of(()))
    asyncio.run(directory.read())
    store.close()
    proof = prove_token(
        read_token(text), directory.entries.tokens, now_ms=clock.now_ms(), not_before_ms=0, address=None
    )
    assert directory.entries.policy.is_superuser(proof.principal)
    assert 0 < proof.until_ms - clock.now_ms() <= 86_400_000
    assert text.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_directory_that_is_not_there_is_not_made(tmp_path):
    result = CliRunner().invoke(root, ["auth", "reset", "--data", str(tmp_path / "absent")])
    assert result.exit_code == 2
    assert not (tmp_path / "absent").exists()


def test_a_store_that_a_server_has_open_is_left_alone(tmp_path):
    store = RocksStore.open(tmp_path)
    result = CliRunner().invoke(root, ["auth", "reset", "--data", str(tmp_path)])
    store.close()
    assert result.exit_code != 0
    assert "basalt_" not in result.stdout
