"""The lines of the server's log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from basalt.errors import InvalidSettingError
from basalt.operations.live_settings import set_levels
from basalt.server.server_log import PROBLEMS_MAX, REPEATED_S, Repetitions, set_up_logging
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


def test_one_of_several_servers_says_its_number(capsys: pytest.CaptureFixture[str]):
    set_up_logging(LogSettings(format="text"), 2)
    logging.getLogger("basalt.try").warning("this")
    assert capsys.readouterr().err.endswith(" WARNING [2] basalt.try: this\n")
    set_up_logging(LogSettings(format="json"), 2)
    logging.getLogger("basalt.try").warning("this")
    assert json.loads(capsys.readouterr().err)["server"] == 2


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


def warned(
    text: str, *arguments: object, at_s: float, name: str = "basalt.try", error: BaseException | None = None
) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord(name, logging.WARNING, __file__, 1, text, arguments, info)
    record.created = at_s
    return record


def test_a_problem_that_goes_on_is_told_once_a_minute_with_how_often_it_was():
    repetitions = Repetitions()
    passed = [
        record.getMessage()
        for second in range(REPEATED_S * 2 + 1)
        if repetitions.filter(record := warned("the store failed after %d ms", second, at_s=second))
    ]
    assert passed == [
        "the store failed after 0 ms",
        "the store failed after 60 ms (59 more like this since 1970-01-01T00:00:00+00:00)",
        "the store failed after 120 ms (59 more like this since 1970-01-01T00:01:00+00:00)",
    ]


def test_problems_that_differ_in_more_than_numbers_are_each_told():
    repetitions = Repetitions()
    texts = ["topic a is gone", "topic b is gone", "topic a is gone"]
    assert [repetitions.filter(warned(text, at_s=1)) for text in texts] == [True, True, False]
    assert repetitions.filter(warned("topic a is gone", at_s=1, name="basalt.other"))


def raised(number: int) -> Exception:
    try:
        if number:
            raise ValueError(number)
        raise ValueError(number)
    except ValueError as error:
        return error


def test_two_bugs_that_are_logged_in_the_same_words_are_two_problems():
    repetitions = Repetitions()
    found = [
        repetitions.filter(warned("request %s failed", number, at_s=1, error=raised(number))) for number in (0, 1, 1)
    ]
    assert found == [True, True, False]


def test_lines_about_what_happened_once_are_all_told():
    repetitions = Repetitions()
    info = logging.LogRecord("basalt.try", logging.INFO, __file__, 1, "started", (), None)
    slow = [warned("GET / was answered after 3 ms", at_s=1, name="basalt.slow") for _ in range(2)]
    assert all(map(repetitions.filter, (info, info, *slow)))


def test_so_many_problems_are_told_apart():
    repetitions = Repetitions()
    for number in range(PROBLEMS_MAX + 1):
        name = "".join(chr(ord("g") + int(digit)) for digit in str(number))
        assert repetitions.filter(warned(f"topic {name} is gone", at_s=1))
    assert len(repetitions._seen) == PROBLEMS_MAX


def test_a_logger_may_have_a_level_of_its_own_from_the_start(capsys: pytest.CaptureFixture[str]):
    set_up_logging(LogSettings(format="text", level="warning", levels=("basalt.try=debug", "basalt.loud=error")))
    logging.getLogger("basalt.try").debug("this")
    logging.getLogger("basalt.loud").warning("not this")
    set_levels((), ("basalt.try=debug", "basalt.loud=error"))
    logging.getLogger("basalt.try").debug("not this either")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "basalt.try: this" in said
