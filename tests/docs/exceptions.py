"""What does not keep to a house rule yet, or has a reason not to. The lists may only get shorter: an entry that nothing needs any more
fails, and is struck."""

from __future__ import annotations

# Modules whose tests need more than the module: a store of any kind, a region server, a Spark, a whole process.
TESTED_ELSEWHERE = {
    "control/basalt/server/process.py": "tests/system/test_starting.py",
    "control/basalt/server/processes/supervisor.py": "tests/hbase/test_processes.py",
    "engine/basalt_engine/cells/table.py": "tests/contract/test_cells.py",
    "engine/basalt_engine/stores/hbase/thrift2.py": "tests/hbase/test_store.py",
    "engine/basalt_engine/stores/memory.py": "tests/contract/test_rows.py",
    "engine/basalt_engine/stores/rocks/damage.py": "tests/engine/stores/test_rocks_damage.py",
    "engine/basalt_engine/stores/rocks/store.py": "tests/contract/test_rows.py",
    "engine/basalt_engine/table.py": "tests/contract/test_writes.py",
    "pipeline/basalt_spark/jobs/job_run.py": "tests/spark/test_job_run.py",
    "pipeline/basalt_spark/sink/writers.py": "tests/spark/test_writers.py",
}

# Modules whose tests have another name, or none: to be shortened.
UNNAMED: set[str] = {
    "control/basalt/api/bodies/messages.py",
    "control/basalt/cli/commands/bench.py",
    "control/basalt/client/aiohttp_transport.py",
    "control/basalt/client/calls/admin.py",
    "control/basalt/client/calls/tables.py",
    "control/basalt/http/openapi.py",
    "control/basalt/messaging/log/roll_back.py",
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
SMALL_MODULES: set[str] = {
    "control/basalt/console/app.py",
    "control/basalt/console/pages/messaging/pipelines.py",
}

# Folders with more than a dozen modules, and how many there may be: a command, a resource or a rule a file, and to be lowered.
FULL_FOLDERS = {}

# Docstrings that begin with "What", "How", "Whether" or "Where", by package: to be lowered. What is not here has none.
QUESTIONING_DOCSTRINGS: dict[str, int] = {}

# Limits that no test names: to be shortened. Many are crossed all the same, by a number or through a setting.
UNNAMED_LIMITS: set[str] = {
    "basalt.api.bodies.messages.INT_MAX",
    "basalt.api.bodies.messages.RECORD_HEADERS_MAX",
    "basalt.api.bodies.messages.SEGMENTS_MAX",
    "basalt.api.bodies.messages.SEQUENCE_MAX",
    "basalt.api.bodies.messages.WORK_ENTRIES_MAX",
    "basalt.api.codecs.avro_values.VARINT_BYTES_MAX",
    "basalt.api.codecs.json_bodies.OBJECT_FIELDS_MAX",
    "basalt.api.codecs.json_bodies.SHOWN_CHARS_MAX",
    "basalt.api.codecs.json_records.RECORD_VALUES_MAX",
    "basalt.api.markers.TASK_CHARS_MAX",
    "basalt.api.markers.TEXT_CHARS_MAX",
    "basalt.api.positions.SPEC_CHARS_MAX",
    "basalt.api.positions.TIME_MS_MAX",
    "basalt.api.positions._SHOWN_CHARS_MAX",
    "basalt.cli.commands.bench.MESSAGES_MAX",
    "basalt.cli.commands.bench.SECONDS_MAX",
    "basalt.cli.commands.bench.SINGLE_CALLS_MAX",
    "basalt.cli.commands.diagnosis.SMALL_FILE_BYTES_MAX",
    "basalt.cli.commands.messages.BATCH_MESSAGES_MAX",
    "basalt.cli.commands.messages.PEEK_MESSAGES_MAX",
    "basalt.cli.commands.operations.HISTORY_RUNS_MAX",
    "basalt.cli.failures._LINE_CHARS_MAX",
    "basalt.cli.options.ATTEMPTS_MAX",
    "basalt.cli.options.NAME_CHARS_MAX",
    "basalt.cli.output._TIME_MS_MAX",
    "basalt.client.aiohttp_transport.CONNECTIONS_MAX",
    "basalt.client.attempts.SHOWN_CHARS_MAX",
    "basalt.client.http_transport.CONNECT_MS_MAX",
    "basalt.client.http_transport.IDLE_MS_MAX",
    "basalt.embedded.CLOSE_SECONDS_MAX",
    "basalt.hbase_admin.check.CLOCK_SKEW_MS_MAX",
    "basalt.hbase_admin.check.LATENCY_MS_MAX",
    "basalt.hbase_admin.check.METADATA_AGE_MS_MAX",
    "basalt.hbase_admin.check.REPORTS_MISSED_MAX",
    "basalt.hbase_admin.check.SNAPSHOT_AGE_MS_MAX",
    "basalt.http.asgi.requests._FIELD_CHARS_MAX",
    "basalt.http.asgi.responses.TARGET_BYTES_MAX",
    "basalt.http.routes.pruning.HISTORY_MAX",
    "basalt.http.routes.route_table.MS_MAX",
    "basalt.messaging.peek.BYTES_MAX",
    "basalt.messaging.ranges.SPLITS_MAX",
    "basalt.settings.kinds.SHOWN_CHARS_MAX",
    "basalt.settings.sources.FILE_BYTES_MAX",
    "basalt.settings.sources.SECRET_BYTES_MAX",
    "basalt.settings.tree.INTERVAL_MS_MAX",
    "basalt.settings.tree.TIMEOUT_MS_MAX",
    "basalt.thrift.discovery.RETRY_MS_MAX",
    "basalt.thrift.discovery.STOP_S_MAX",
    "basalt.thrift.wire.ANSWER_BYTES_MAX",
    "basalt.thrift.wire.JOIN_BYTES_MAX",
    "basalt.thrift.wire.NAME_BYTES_MAX",
    "basalt.thrift.wire.UNKNOWN_DEPTH_MAX",
    "basalt.thrift.wire.UNKNOWN_VALUES_MAX",
    "basalt.transactions.codec._SHARED_IDS_MAX",
    "basalt.transactions.codec._SHARED_LISTS_MAX",
    "basalt.transactions.log.transaction_log.PARTS_MAX",
    "basalt.transactions.rules.transaction.CLOCK_MS_MAX",
    "basalt.transactions.rules.transaction.COUNTER_OWNER_CHARS_MAX",
    "basalt.transactions.rules.transaction.SESSION_CHARS_MAX",
    "basalt_engine.keys.BUCKETS_MAX",
    "basalt_engine.keys.MILLISECONDS_MAX",
    "basalt_engine.stores.hbase.gateway._TEXT_CHARS_MAX",
    "basalt_engine.stores.hbase.table.ROW_BYTES_MAX",
    "basalt_engine.stores.rocks.data_directory._PID_BYTES_MAX",
    "basalt_engine.table.COLUMN_NAME_BYTES_MAX",
    "basalt_engine.table.VALUE_BYTES_MAX",
    "basalt_engine.varints.VARINT_BYTES_MAX",
    "basalt_spark.jobs.copies.COUNTER_OWNER_CHARS_MAX",
    "basalt_spark.option_table.FETCH_BYTES_MAX",
    "basalt_spark.option_table.NAME_CHARS_MAX",
    "basalt_spark.option_table.NUMBER_MAX",
    "basalt_spark.option_table.PARTITIONS_MAX",
    "basalt_spark.sink.commit.OWNER_CHARS_MAX",
}
