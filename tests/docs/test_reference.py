"""What the real objects offer, the pages mention: routes, commands, settings, error codes, metrics, formats. A failure says what mends it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import click

from basalt.cli.root import root as command_root
from basalt.errors import BY_CODE
from basalt.http.app import OPERATIONS
from basalt.settings.tree import keys
from deploy.reference import MEND, exposed_name, metrics_of_a_server, pages, tells

RULES = {"retention.md"}  # shared with Java like a format, but not bytes
HEX_EXAMPLE = re.compile(r"\b(?:[0-9a-f]{2}[ \n]?){8,}")


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, under its whole name."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from commands(child, f"{path} {name}")


def test_the_pages_are_as_make_reference_writes_them():
    assert [str(path) for path, wanted in pages().items() if path.read_text() != wanted] == [], MEND


def test_every_route_is_documented_with_its_method(documentation: str):
    missing = [f"{each.method} {each.path}" for each in OPERATIONS if not tells(documentation, each)]
    assert missing == [], MEND


def test_every_query_parameter_is_documented(documentation: str):
    names = {query.name for operation in OPERATIONS for query in operation.query}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", documentation)) == [], MEND


def test_every_command_is_documented(documentation: str):
    assert [name for name, _ in commands(command_root, "basalt") if name not in documentation] == [], MEND


def test_every_option_of_a_command_is_documented(documentation: str):
    options = {
        f"{name} {option}"
        for name, command in commands(command_root, "basalt")
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
        if option.startswith("--") and not re.search(rf"{option}\b", documentation)
    }
    assert sorted(options) == [], MEND


def test_every_setting_is_documented(documentation: str):
    assert [name for name in keys() if f"`{name}`" not in documentation] == [], MEND


def test_every_error_code_is_documented(root: Path):
    page = (root / "docs/reference/errors.md").read_text()
    assert [code for code in BY_CODE if f"`{code}`" not in page] == [], MEND


def test_the_errors_page_has_no_code_that_is_gone(root: Path):
    page = (root / "docs/reference/errors.md").read_text()
    assert [
        code for code in re.findall(r"^\| `(\w+)` \| (?:\d{3}|\W) \|", page, flags=re.MULTILINE) if code not in BY_CODE
    ] == [], MEND


def test_every_metric_is_documented(root: Path):
    page = (root / "docs/reference/metrics.md").read_text()
    names = [exposed_name(metric) for metric in asyncio.run(metrics_of_a_server())]
    assert [name for name in names if f"`{name}`" not in page] == [], MEND


def test_every_part_is_in_the_tour(root: Path):
    tour = (root / "docs/architecture.md").read_text()
    parts = [
        f"{package.name}.{path.stem}"
        for package in (root / "engine/basalt_engine", root / "control/basalt")
        for path in package.iterdir()
        if path.name[0] not in "_." and (path.suffix == ".py" or (path / "__init__.py").exists())
    ]
    assert len(parts) > 2
    assert [part for part in sorted(parts) if f"`{part}`" not in tour] == []


def test_every_format_page_has_an_example_that_is_a_test_vector(root: Path):
    vectors = "".join(path.read_text() for path in (root / "tests/vectors").rglob("*.tsv"))
    without = []
    for page in sorted((root / "docs/formats").glob("*.md")):
        if page.name in RULES:
            continue
        examples = [re.sub(r"\s", "", found) for found in HEX_EXAMPLE.findall(page.read_text())]
        if not any(example in vectors for example in examples):
            without.append(page.name)
    assert without == []
