"""A data frame of a server that asks who calls: the token is in a file of each process, and in no plan."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import basalt
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.spark


@pytest.fixture
def first_token(tmp_path: Path) -> Path:
    """The file of the first token, as an operator makes it."""
    file = tmp_path / "first.token"
    file.write_text(secrets.token_hex(32))
    file.chmod(0o600)
    return file


@pytest.fixture
def asking(tmp_path: Path, first_token: Path) -> Iterator[ServerProcess]:
    """A server that asks callers who they are."""
    server = ServerProcess(tmp_path)
    server.start("--set", "auth.kinds=token", "--set", f"auth.bootstrap_token_file={first_token}")
    yield server
    server.stop()


def test_a_token_comes_from_a_file_and_shows_in_no_plan(
    spark: SparkSession, asking: ServerProcess, first_token: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "spark.token"
    with basalt.connect(asking.url, namespace="shop", token=first_token) as operator:
        operator.topics.create("orders")
        operator.topic("orders").publish(["one", "two"])
        operator.topics.create("bills")
        operator.grants.add("token:spark", ["observe", "read"], "namespace:shop")
        token = operator.tokens.create("spark").token
    assert token is not None
    file.write_text(token)
    options = {"server": asking.url, "namespace": "shop", "tokenFile": str(file)}
    frame = spark.read.format("basalt").options(**options, topic="orders").load()
    assert sorted(bytes(row.value) for row in frame.select("value").collect()) == [b"one", b"two"]
    frame.explain("extended")
    plans = capsys.readouterr().out + str(frame._jdf.queryExecution().toString())  # type: ignore[attr-defined]
    assert "Plan" in plans
    assert token not in plans
    with pytest.raises(Exception, match="token:spark may not") as refused:  # Spark's own class
        frame.select("value").write.format("basalt").options(
            **options, topic="bills", txnAppId="x", txnVersion="0"
        ).mode("append").save()
    assert token not in str(refused.value)
    wrong_file = tmp_path / "wrong.token"
    wrong_file.write_text(f"{token}x")
    options["tokenFile"] = str(wrong_file)
    with pytest.raises(Exception, match="the credential is invalid") as wrong:
        spark.read.format("basalt").options(**options, topic="orders", callTimeout="5 seconds").load().collect()
    assert token not in str(wrong.value)
