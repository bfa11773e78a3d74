"""Counting the tree: `bench.house`."""

from __future__ import annotations

from pathlib import Path

from bench import house


def test_a_module_is_named_after_its_path_below_its_folder():
    assert house.module_name(Path("control/basalt/http/app.py")) == "basalt.http.app"
    assert house.module_name(Path("engine/basalt_engine/__init__.py")) == "basalt_engine"


def test_a_module_with_one_importer_is_found_however_it_is_imported():
    modules = {
        "basalt.a": "from basalt.b import thing\nfrom basalt import c\n",
        "basalt.b": "import basalt.d\n",
        "basalt.c": "def later():\n    from basalt.d import other\n",
        "basalt.d": "",
    }
    assert house.imported_once(modules) == {"basalt.b": "basalt.a", "basalt.c": "basalt.a"}


def test_a_package_is_no_module_of_one_importer():
    modules = {"basalt.jobs": "", "basalt.jobs.stats": "", "basalt.server": "from basalt.jobs import build"}
    assert house.imported_once(modules) == {}


def test_what_a_module_imports_of_itself_or_of_others_does_not_count():
    assert house.imported_once({"basalt.a": "import basalt.a, json\nfrom os import path\n"}) == {}


def test_a_folder_is_full_with_thirteen_files_beside_its_own():
    names = [f"basalt/http/file{number}.py" for number in range(12)]
    assert house.full_folders(dict.fromkeys([*names, "basalt/http/__init__.py"])) == []
    assert house.full_folders(dict.fromkeys([*names, "basalt/http/one_more.py"])) == ["basalt/http 13"]


def test_a_function_of_51_lines_is_too_long():
    longest = "def fits():\n" + "    pass\n" * 49
    assert house.long_functions(longest) == []
    assert house.long_functions("class A:\n    async def fits(self):\n" + "        pass\n" * 50) == ["2 fits 51"]


def test_a_tree_is_examined_and_reported(tmp_path: Path):
    package = tmp_path / "control" / "basalt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text("from basalt.small import VALUE\nfrom basalt.large import work\n")
    (package / "small.py").write_text("VALUE = 1\n")
    (package / "large.py").write_text("def work():\n    pass\n" + "\n" * 699)
    java = tmp_path / "coprocessor" / "src" / "main" / "java" / "io"
    java.mkdir(parents=True)
    (java / "Rule.java").write_text("class Rule {\n}\n")

    found = house.examined(tmp_path)

    assert (found.python_files, found.python_lines, found.java_files, found.java_lines) == (4, 704, 1, 2)
    assert found.imported_once_and_small == ["control/basalt/small.py (1) <- basalt.server"]
    assert found.imported_once[0] == "control/basalt/large.py <- basalt.server"
    assert found.long_files == found.very_long_files == ["control/basalt/large.py 701"]
    assert "of those, under 60 lines: 1\n    control/basalt/small.py (1) <- basalt.server" in house.report(found)
