"""Any sequence of calls does to a store what it does to a dictionary of dictionaries."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from basalt_engine.table import Delete, DeleteRange, Put, TableWrite
from tests.budgets import examples
from tests.contract.stores import fast_directory

TABLES = ("message", "system")  # on rocks, one with large values apart and one without
KEYS = st.sampled_from([b"\x00", b"a", b"a\x00", b"a\xff", b"b", b"ba", b"\xff", b"\xff\xff"])
BOUNDS = KEYS | st.sampled_from([b"", b"a\x01", b"\xff\xff\xff"])
NAMES = st.sampled_from([b"a", b"b", b"c", b"\x00"])
VALUES = st.builds(
    lambda fill, length: bytes([fill]) * length, st.integers(0, 255), st.sampled_from([0, 1, 4_095, 4_096, 9_000])
)
COLUMNS = st.dictionaries(NAMES, VALUES, max_size=3)
MUTATIONS = st.lists(
    st.builds(Put, KEYS, COLUMNS)
    | st.builds(Delete, KEYS, st.none() | st.lists(NAMES, max_size=2).map(tuple))
    | st.builds(DeleteRange, BOUNDS, BOUNDS),
    max_size=6,
)


def apply(rows, mutation):
    if isinstance(mutation, Put):
        rows[mutation.key] = {**rows.get(mutation.key, {}), **mutation.columns}
    elif isinstance(mutation, Delete):
        names = rows.get(mutation.key, {}) if mutation.columns is None else mutation.columns
        rows[mutation.key] = {name: value for name, value in rows.get(mutation.key, {}).items() if name not in names}
    else:
        for key in [key for key in rows if mutation.start <= key < mutation.stop]:
            del rows[key]
    for key in [key for key, columns in rows.items() if not columns]:
        del rows[key]


def machine(opener, directory):
    class Held:
        store = opener.open(directory)  # opening one per example would take most of the time

    held = Held()

    class StoreMachine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.model = {name: {} for name in TABLES}
            for name in TABLES:
                held.store.table(name).write([DeleteRange(b"", b"\xff" * 4)])

        @rule(name=st.sampled_from(TABLES), mutations=MUTATIONS)
        def write(self, name, mutations):
            held.store.table(name).write(mutations)
            for mutation in mutations:
                apply(self.model[name], mutation)

        @rule(writes=st.lists(st.builds(TableWrite, st.sampled_from(TABLES), MUTATIONS), max_size=3))
        def write_tables(self, writes):
            held.store.write(writes)
            for name, mutations in writes:
                for mutation in mutations:
                    apply(self.model[name], mutation)

        @rule(name=st.sampled_from(TABLES), key=KEYS, column=NAMES, expected=st.none() | VALUES, columns=COLUMNS)
        def check_and_write(self, name, key, column, expected, columns):
            rows = self.model[name]
            holds = rows.get(key, {}).get(column) == expected
            assert held.store.table(name).check_and_write(key, column, expected, columns) == holds
            if holds:
                apply(rows, Put(key, columns))

        @rule(name=st.sampled_from(TABLES), start=BOUNDS, stop=BOUNDS)
        def delete_range(self, name, start, stop):
            held.store.table(name).write([DeleteRange(start, stop)])
            apply(self.model[name], DeleteRange(start, stop))

        @rule(
            name=st.sampled_from(TABLES),
            start=BOUNDS,
            stop=st.none() | BOUNDS,
            reverse=st.booleans(),
            rows_max=st.none() | st.integers(0, 5),
            bytes_max=st.none() | st.integers(1, 20_000),
        )
        def scan(self, name, start, stop, reverse, rows_max, bytes_max):
            rows = sorted(self.model[name].items(), reverse=reverse)
            rows = [(key, columns) for key, columns in rows if start <= key and (stop is None or key < stop)]
            expected = []
            size = 0
            for key, columns in rows[:rows_max]:
                if bytes_max is not None and size >= bytes_max:
                    break
                expected.append((key, columns))
                size += len(key) + sum(map(len, columns.values()))
            found = held.store.table(name).scan(start, stop, reverse=reverse, rows_max=rows_max, bytes_max=bytes_max)
            assert list(found) == expected

        @precondition(lambda self: opener.persistent)
        @rule()
        def open_again(self):
            held.store.close()
            held.store = opener.open(directory)

        @invariant()
        def every_row_is_as_in_the_model(self):
            for name, rows in self.model.items():
                table = held.store.table(name)
                assert {row.key: row.columns for row in table.scan(b"", None)} == rows
                assert all(table.get(key) == columns for key, columns in rows.items())
                assert (table.size_bytes(b"", b"\xff" * 9) > 0) == bool(rows)

    return StoreMachine, held


def test_a_store_is_a_dictionary_of_rows(opener):
    with fast_directory() as directory:
        store_machine, held = machine(opener, directory)
        try:
            run_state_machine_as_test(
                store_machine,
                settings=settings(
                    max_examples=examples(12, remote=held.store.remote),
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            held.store.close()
