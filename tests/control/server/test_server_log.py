"""The lines of the server's log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from basalt.errors import InvalidSettingError
from basalt.server.server_log import set_up_logging
from basalt.settings import LogSettings


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """The log of the tests themselves is as it was, afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers, root.level = handlers, level


def test_where_no_terminal_is_each_line_is_one_json_object(capsys: pytest.CaptureFixture[str]):
    set_up_logging(LogSettings())
    logging.getLogger("basalt.try").info("two\nlines", extra={"fields": {"requestId": "7"}})
    event = json.loads(capsys.readouterr().err)
    assert event.pop("time").endswith("+00:00")
    assert event == {"level": "info", "logger": "basalt.try", "message": "two\nlines", "requestId": "7"}


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]):
    set_up_logging(LogSettings(format="text", level="warning"))
    logging.getLogger("basalt.try").info("not this")
    logging.getLogger("basalt.try").warning("this")
    said = capsys.readouterr().err
    assert said.endswith(" WARNING basalt.try: this\n")
    assert "not this" not in said


def test_a_log_file_that_is_moved_away_is_begun_anew(tmp_path: Path):
    file, log = tmp_path / "basalt.log", logging.getLogger("basalt.try")
    set_up_logging(LogSettings(file=str(file)))
    log.info("first")
    file.rename(tmp_path / "basalt.log.1")  # as logrotate does
    log.info("second")
    messages = [json.loads((tmp_path / name).read_text())["message"] for name in ("basalt.log.1", "basalt.log")]
    assert messages == ["first", "second"]


def test_a_log_file_is_added_to(tmp_path: Path):
    file = tmp_path / "basalt.log"
    file.write_text("of an earlier run\n")
    set_up_logging(LogSettings(file=str(file), format="text"))
    logging.getLogger("basalt.try").info("of this one")
    first, second = file.read_text().splitlines()
    assert first == "of an earlier run"
    assert second.endswith("of this one")


def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(InvalidSettingError, match=r"nowhere/basalt\.log cannot be written: No such file") as refused:
        set_up_logging(LogSettings(file=str(tmp_path / "nowhere" / "basalt.log")))
    assert refused.value.field == "log.file"
