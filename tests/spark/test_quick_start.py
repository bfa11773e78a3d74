"""The quick start of docs/spark/README.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "spark" / "README.md"


def test_the_quick_start_copies_each_order_once_however_often_it_runs(spark, basalt, basalt_server, tmp_path, capsys):
    [lines] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for topic in ("orders", "loud"):
        basalt.topics.create(topic)
    lines = lines.replace("http://127.0.0.1:4780", basalt_server.url)
    lines = lines.replace('"checkpoint"', f'"{tmp_path / "checkpoint"}"')
    exec(lines, {})
    assert "publish_time" in capsys.readouterr().out
    assert loud(basalt) == ["ONE ARMCHAIR", "TWO TABLES"]

    exec(lines, {})  # orders twice as many
    assert loud(basalt) == ["ONE ARMCHAIR", "TWO TABLES", "ONE ARMCHAIR", "TWO TABLES"]


def loud(client):
    return [message.text for message in client.topic("loud").read()]
