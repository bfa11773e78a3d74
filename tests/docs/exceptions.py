"""What does not keep to a house rule yet, or has a reason not to. The lists may only get shorter: an entry that nothing needs any more
fails, and is struck."""

from __future__ import annotations

# Modules whose tests need more than the module: a store of any kind, a region server, a Spark, a whole process.
TESTED_ELSEWHERE = {
    "control/basalt/server/process.py": "tests/system/test_starting.py",
    "engine/basalt_engine/cells/table.py": "tests/contract/test_cells.py",
    "engine/basalt_engine/stores/hbase/thrift2.py": "tests/hbase/test_store.py",
    "engine/basalt_engine/stores/memory.py": "tests/contract/test_rows.py",
    "engine/basalt_engine/stores/rocks/damage.py": "tests/engine/stores/test_rocks_damage.py",
    "engine/basalt_engine/stores/rocks/database.py": "tests/engine/stores/test_rocks_failures.py",
    "engine/basalt_engine/stores/rocks/store.py": "tests/contract/test_rows.py",
    "engine/basalt_engine/stores/rocks/table.py": "tests/contract/test_rows.py",
    "engine/basalt_engine/table.py": "tests/contract/test_writes.py",
    "pipeline/basalt_spark/jobs/job_run.py": "tests/spark/test_job_run.py",
    "pipeline/basalt_spark/sink/writers.py": "tests/spark/test_writers.py",
}

# Modules whose tests have another name, or none: to be shortened.
UNNAMED: set[str] = {
    "control/basalt/api/bodies/work.py",
    "control/basalt/api/bodies/messages.py",
    "control/basalt/catalog/catalog.py",
    "control/basalt/catalog/topics.py",
    "control/basalt/cli/commands/bench.py",
    "control/basalt/cli/commands/hbase.py",
    "control/basalt/cli/commands/messages.py",
    "control/basalt/client/aiohttp_transport.py",
    "control/basalt/client/calls/admin.py",
    "control/basalt/client/calls/tables.py",
    "control/basalt/http/openapi.py",
    "control/basalt/http/routes/route_table.py",
    "control/basalt/messaging/log/roll_back.py",
    "control/basalt/operations/prune_reports.py",
    "control/basalt/server/wiring.py",
    "control/basalt/settings/kinds.py",
    "control/basalt/settings/sources.py",
    "control/basalt/transactions/log/snapshot_format.py",
    "control/basalt/transactions/rules/refusals.py",
}

# Files of tests that are not named after a module: to be shortened.
NAMED_OTHERWISE: set[str] = {
    "tests/control/test_system_table_vectors.py",
}

# Modules of less than 60 lines that one module imports: to be shortened.
SMALL_MODULES: set[str] = set()

# Folders with more than a dozen modules, and how many there may be: a command, a resource or a rule a file, and to be lowered.
FULL_FOLDERS = {}

# Docstrings that begin with "What", "How", "Whether" or "Where", by package: to be lowered. What is not here has none.
QUESTIONING_DOCSTRINGS: dict[str, int] = {}
