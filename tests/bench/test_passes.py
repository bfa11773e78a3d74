"""Counting what a call passes through: `bench.passes`."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from bench.passes import Count, Function, Recorder, as_json, by_package, counted, function_of, services_alone, table

ROOTS = [Path("/tree/control/basalt"), Path("/tree/engine/basalt_engine")]
APPEND = Function("messaging", "basalt/messaging/log/append.py", 10, "append")
TAIL = Function("messaging", "basalt/messaging/log/tail.py", 3, "Tail.add")
TAIL_TRIM = Function("messaging", "basalt/messaging/log/tail.py", 9, "Tail.trim")
ROUTE = Function("http", "basalt/http/routes/messages.py", 5, "publish")
CODEC = Function("api", "basalt/api/codecs/avro.py", 5, "decode")


def code_in(path: str, source: str = "def work():\n    pass\n"):
    """The code of a function `work` that claims to stand in this file."""
    found = {}
    exec(compile(source, path, "exec"), found)
    return found["work"].__code__


def test_a_file_of_the_control_plane_counts_for_its_package():
    assert function_of(code_in("/tree/control/basalt/messaging/log/append.py"), ROOTS) == Function(
        "messaging", "basalt/messaging/log/append.py", 1, "work"
    )


def test_a_module_at_the_top_counts_for_itself_and_the_front_door_for_the_whole():
    assert function_of(code_in("/tree/control/basalt/embedded.py"), ROOTS).package == "embedded"
    assert function_of(code_in("/tree/control/basalt/__init__.py"), ROOTS).package == "basalt"


def test_the_engine_counts_as_one():
    assert function_of(code_in("/tree/engine/basalt_engine/stores/rocks/table.py"), ROOTS).package == "engine"


def test_libraries_and_generated_code_do_not_count():
    assert function_of(code_in("/usr/lib/python3/json/decoder.py"), ROOTS) is None
    assert function_of(code_in("<string>"), ROOTS) is None


def test_loading_a_module_is_no_function_of_it():
    assert function_of(compile("pass", "/tree/control/basalt/errors.py", "exec"), ROOTS) is None


def test_files_are_counted_once_however_many_of_their_functions_are_entered():
    assert counted([APPEND, TAIL, TAIL_TRIM, TAIL]) == Count(files=2, functions=3)
    assert by_package([ROUTE, APPEND, TAIL]) == {"messaging": Count(2, 2), "http": Count(1, 1)}


def test_the_services_alone_are_what_stands_behind_the_faces():
    assert services_alone([ROUTE, CODEC, APPEND]) == [APPEND]


def test_the_table_has_a_column_for_each_call_and_a_row_for_each_package():
    passes = {"publish": frozenset({ROUTE, APPEND}), "fetch": frozenset({TAIL, TAIL_TRIM})}
    assert [line.split() for line in table(passes).splitlines()] == [
        ["publish", "fetch"],
        ["all", "2/2", "1/2"],
        ["services", "alone", "1/1", "1/2"],
        ["http", "1/1"],
        ["messaging", "1/1", "1/2"],
    ]
    assert json.loads(as_json(passes))["publish"]["servicesAlone"] == {"files": 1, "functions": 1}


def test_a_recorder_sees_threads_that_are_started_after_it_and_only_while_it_is_on():
    recorder = Recorder()
    before, during = code_in("/tree/before.py"), code_in("/tree/during.py")
    calls = {"before": lambda: exec(before), "during": lambda: exec(during)}
    begun, asked, answered = threading.Event(), threading.Event(), threading.Event()

    def serve():
        calls["before"]()
        begun.set()
        asked.wait(60)
        calls["during"]()
        answered.set()

    with recorder.installed():
        thread = threading.Thread(target=serve)
        thread.start()
        assert begun.wait(60)
        codes = recorder.during(lambda: (asked.set(), answered.wait(60)))
        thread.join(60)
    assert during in {code for code in codes if code.co_filename == "/tree/during.py"}
    assert not [code for code in codes if code.co_filename == "/tree/before.py"]


def test_functions_with_the_same_code_in_two_files_are_two():
    recorder = Recorder()
    first, second = code_in("/tree/first.py"), code_in("/tree/second.py")
    with recorder.installed():
        codes = recorder.during(lambda: (exec(first), exec(second)))
    assert {"/tree/first.py", "/tree/second.py"} <= {code.co_filename for code in codes}
