"""The SQL as each parameter style wants it."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import pytest

from basalt.errors import InputError
from basalt.outbox.tables import Statements, driver_of


class Seeing:
    """A cursor that keeps what it is given."""

    def execute(self, *given):
        self.given = given


@pytest.mark.parametrize(
    ("style", "text", "parameters"),
    [
        ("qmark", "UPDATE t SET a = ? WHERE b = ?", (1, 2)),
        ("format", "UPDATE t SET a = %s WHERE b = %s", (1, 2)),
        ("numeric", "UPDATE t SET a = :1 WHERE b = :2", (1, 2)),
        ("named", "UPDATE t SET a = :p1 WHERE b = :p2", {"p1": 1, "p2": 2}),
        ("pyformat", "UPDATE t SET a = %(p1)s WHERE b = %(p2)s", {"p1": 1, "p2": 2}),
    ],
)
def test_each_style_has_its_marks(style, text, parameters):
    cursor = Seeing()
    Statements("t", SimpleNamespace(paramstyle=style)).run(cursor, "UPDATE {outbox} SET a = ? WHERE b = ?", 1, 2)
    assert cursor.given == (text, parameters)


def test_a_style_that_is_none_is_refused():
    with pytest.raises(InputError):
        Statements("t", SimpleNamespace(paramstyle="guess")).run(Seeing(), "SELECT ?", 1)


@pytest.mark.parametrize("table", ["", "a b", "a;b", "a.b.c", "1a", "a" * 42, "x'--"])
def test_a_table_must_have_a_plain_name(table):
    with pytest.raises(InputError):
        Statements(table, sqlite3)


def test_a_schema_may_stand_before_it():
    made = Statements("app.outbox", SimpleNamespace(paramstyle="format")).create()
    assert "app.outbox (" in made[0]
    assert "outbox_batch ON app.outbox" in made[1]


def test_the_driver_is_found_by_the_connection():
    connection = sqlite3.connect(":memory:")
    assert driver_of(connection) is driver_of(connection.cursor()) is sqlite3
    with pytest.raises(InputError, match="DB-API"):
        driver_of(object())
