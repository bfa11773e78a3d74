"""How a guide is read and run: on pages of a few lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides.guide import Guide, Step, matches, read_guide, run_guide

PAGE = """\
Write a file:

```python hello.py
print("hello")
```

```console
$ python hello.py | sed \\
    s/l/L/
heLlo
$ test $(wc -l < hello.py) = 1
```

```python
this is to be read, not run
```
"""


def test_files_and_commands_are_found():
    guide = read_guide(PAGE)
    assert guide.files == {"hello.py": 'print("hello")\n'}
    assert guide.steps == [
        Step("python hello.py | sed \\\n    s/l/L/", ("heLlo",)),
        Step("test $(wc -l < hello.py) = 1", ()),
    ]
    assert guide.programs >= {"python", "sed", "test", "wc"}


def test_a_command_goes_on_until_its_quotes_are_closed():
    guide = read_guide("```console\n$ echo '\na\n'\n\na\n$ echo \"it's\"\nit's\n```\n")
    assert [step.command for step in guide.steps] == ["echo '\na\n'", 'echo "it\'s"']


def test_a_page_that_is_true_passes(tmp_path: Path):
    run_guide(read_guide(PAGE), tmp_path / "run", {}, {})


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Step("echo a", ("b",)), r"-b\n\+a"),
        (Step("echo a", ()), r"\+a"),
        (Step("true", ("b",)), "-b"),
        (Step("false", ()), "ended with 1"),
        (Step("exit 3", ()), "ended early"),
    ],
)
def test_a_page_that_is_not_fails(tmp_path: Path, step: Step, message: str):
    with pytest.raises(AssertionError, match=message):
        run_guide(Guide({}, [step]), tmp_path / "run", {}, {})


def test_what_a_command_sets_is_there_for_the_next(tmp_path: Path):
    run_guide(Guide({}, [Step("NAME=4780", ()), Step("echo $NAME", ("4780",))]), tmp_path / "run", {"4780": "5"}, {})


@pytest.mark.parametrize(
    ("wanted", "lines", "expected"),
    [
        (("a … c",), ["a b c"], True),
        (("a … c",), ["a b d"], False),
        (("a", "…", "d"), ["a", "b", "c", "d"], True),
        (("a", "…", "d"), ["a", "d"], True),
        (("a", "…", "d"), ["a", "b"], False),
        ((), [], True),
        (("…",), [], True),
        (("a.c",), ["abc"], False),
    ],
)
def test_an_ellipsis_stands_for_anything(wanted: tuple[str, ...], lines: list[str], expected: bool):
    assert matches(wanted, lines) is expected
