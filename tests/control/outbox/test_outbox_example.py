"""The examples of docs/reference/outbox.md run as they stand, but for the server's address and an end."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import basalt

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/outbox.md"


def test_the_pages_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"embedded:{tmp_path / 'data'}"
    with basalt.connect(url) as client:
        client.topics.create("transfers")
    with sqlite3.connect("bank.db") as connection:
        connection.execute("CREATE TABLE accounts (name TEXT, amount INTEGER)")
        connection.execute("INSERT INTO accounts VALUES ('ann', 10)")
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(first.replace("http://127.0.0.1:4780", url).replace(".run()", ".run_once()"), names)
    with basalt.connect(url) as client:
        exec(second, names | {"client": client})
        assert [message.text for message in client.topic("transfers").read()] == ["ann pays 5"] * 2
    with sqlite3.connect("bank.db") as connection:
        assert connection.execute("SELECT amount FROM accounts").fetchall() == [(0,)]
