"""One opening of the RocksDB database: its options, its column families, and every call into the binding that can fail.

The options are in RocksDB's own text format, with a reason for each, because the Python binding has no setters for some
of them. Their sections: one for the database, then one per kind of column family. `rows` holds packed rows, `large` the
values that are too large for them (docs/formats/rocks-store.md).
"""

from __future__ import annotations

import logging
import re
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rocksdict import (
    AccessType,
    Cache,
    Checkpoint,
    ColumnFamily,
    DbClosedError,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from basalt_engine.errors import BasaltError, CorruptionError
from basalt_engine.stores.rocks.damage import BlobFile, check_blob_files, damaged_offset, from_rocksdb
from basalt_engine.table import TABLE_NAMES

CACHE_BYTES = 64 << 20  # block cache of all tables together; payloads are not in it, the kernel caches their files
OPEN_FILES_MAX = 512
OPEN_FILES_MIN = 32  # fewer, and every read of a payload opens its file anew
OPEN_FILES_SHARE = 4  # of the process's limit the store takes one in so many; the rest is for connections

# The blob files of a family are collected once one in so many of their bytes is garbage, and until fewer than one in so
# many are.
GARBAGE_PART_BEGUN = 4
GARBAGE_PART_ENDED = 8

BLOB_LISTS_MAX = 20  # that one check goes through while RocksDB removes files: more than a start sees
LARGE_TABLES = ("message", "payload")  # their large values have a column family of their own

_MEMORY_ENTRIES = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")

# Lines of RocksDB's list of files. A table file: number, size, first and last key in hexadecimal digits. A blob file:
# number, bytes of its records, table files that point into it.
_TABLE_FILE = re.compile(r"^ (\d+):(\d+)\[.*?\]\['([0-9A-F]*)' .*? \.\. '([0-9A-F]*)' ", re.MULTILINE)
_BLOB_FILE = re.compile(
    r"^blob_file_number: (\d+) .*?total_blob_bytes: (\d+) .*?linked_ssts: \{([\d ]*)\}", re.MULTILINE
)

# Of RocksDB's text about writers that were held up: the sums of all causes.
_STALLS = re.compile(r"total-(delays|stops): (\d+)")

log = logging.getLogger("basalt.store")

_OPTIONS = """\
[Version]
  rocksdb_version=10.4.2
  options_file_version=1.1

[DBOptions]
  # A torn record at the end of a log is what a crash leaves and was never acknowledged. Any other damage in a log stops
  # the start; RocksDB's default would silently open with the records before it.
  wal_recovery_mode=kTolerateCorruptedTailRecords
  # A log that is gone, or shorter than when it was closed, stops the start too.
  track_and_verify_wals_in_manifest=true
  paranoid_checks=true
  # What a start after a crash replays at most, about half a second of it.
  max_total_wal_size=67108864
  # Bounds the memory of all column families together, before the block cache.
  db_write_buffer_size=134217728
  # Keeps a checksum of every table and blob file as it was written: `verification.py` compares the files with it.
  file_checksum_gen_factory=FileChecksumGenCrc32cFactory
  # Hand written data to the disk steadily, not in one burst at the end of a file.
  bytes_per_sync=1048576
  max_background_jobs=2
  max_manifest_file_size=16777216
  keep_log_file_num=2
  max_log_file_size=4194304
  # No statistics in the log or in memory that nobody reads.
  stats_dump_period_sec=0
  stats_persist_period_sec=0
  # After a failed write the store reopens the database itself, see DurableDatabase; RocksDB must not do so on its own.
  max_bgerror_resume_count=0

[CFOptions "default"]
  write_buffer_size=65536

[TableOptions/BlockBasedTable "default"]
  block_size=4096

[CFOptions "rows"]
  write_buffer_size=16777216
  max_write_buffer_number=3
  # A row that is put is looked up first; for one that is absent, as nearly all are, memory must answer.
  memtable_whole_key_filtering=true
  memtable_prefix_bloom_size_ratio=0.02
  # What was deleted is gone from the disk after a day at the latest, even where nothing is written any more.
  ttl=86400
  compression=kLZ4Compression
  # Small files make the estimate of a range's size exacter: table.py.
  target_file_size_base=4194304

[TableOptions/BlockBasedTable "rows"]
  block_size=16384
  filter_policy=bloomfilter:10:false
  # In the block cache these count against its limit; outside they would grow with the data.
  cache_index_and_filter_blocks=true
  pin_l0_filter_and_index_blocks_in_cache=true
  format_version=6
  checksum=kXXH3

[CFOptions "large"]
  # One flush makes one blob file: larger buffers mean fewer files.
  write_buffer_size=33554432
  max_write_buffer_number=3
  # What was deleted is gone from the disk after a day at the latest, even where nothing is written any more.
  ttl=86400
  enable_blob_files=true
  min_blob_size=0
  # Payloads may be compressed already, and records hold the choice per topic.
  blob_compression_type=kNoCompression
  compression=kNoCompression
  # Off until there is garbage: see `collects_garbage`.
  enable_blob_garbage_collection=false
  blob_garbage_collection_age_cutoff=0.5
  blob_garbage_collection_force_threshold=0.5
  target_file_size_base=4194304

[TableOptions/BlockBasedTable "large"]
  block_size=16384
  filter_policy=bloomfilter:10:false
  cache_index_and_filter_blocks=true
  pin_l0_filter_and_index_blocks_in_cache=true
  format_version=6
  checksum=kXXH3
"""


_VERIFY_LOGS = "track_and_verify_wals_in_manifest"


class Figures(NamedTuple):
    """The state of an open database, for its operators. Counts are since it was opened."""

    table_bytes: int
    blob_bytes: int
    pending_compaction_bytes: int
    write_delays: int
    write_stops: int
    write_stopped: bool


class RocksOptions:
    """The options of one store; its block cache lives as long as they do.

    `database` are the options of the whole, `families` those of each kind of column family: `default`, `rows`, `large`.
    """

    def __init__(self, directory: Path, cache_bytes: int, *, verify_logs: bool = True) -> None:
        """Parse the options, by way of a file in `directory`, where one can be written.

        Without `verify_logs` RocksDB does not mind that a log is gone or short: for a repair, which knows of it.
        """
        options = _OPTIONS if verify_logs else _OPTIONS.replace(f"{_VERIFY_LOGS}=true", f"{_VERIFY_LOGS}=false")
        with tempfile.TemporaryDirectory(prefix=".options-", dir=directory) as scratch:
            (Path(scratch) / "OPTIONS-000001").write_text(options)
            self.database, self.families = Options.load_latest(scratch, cache=Cache(cache_bytes))
        self.database.set_max_open_files(open_files_max(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def open_files_max(limit: int) -> int:
    """The number of files that RocksDB may keep open, when the process may have `limit` (RLIM_INFINITY: any number)."""
    if limit == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return min(OPEN_FILES_MAX, max(OPEN_FILES_MIN, limit // OPEN_FILES_SHARE))


def collects_garbage(collecting: bool, blob_bytes: int, garbage_bytes: int) -> bool:
    """Tell whether blob files with so much garbage are to be collected; `collecting` is the answer so far.

    While they are, each compaction rewrites all values in the older half of them, dead neighbours or none. Where values come
    in and none are deleted, that would be as much again as was written, and more the longer it goes on.
    """
    return 0 < blob_bytes <= garbage_bytes * (GARBAGE_PART_ENDED if collecting else GARBAGE_PART_BEGUN)


class Database:
    """RocksDB in `path`, open until `close`. Raises this package's errors, and `DbClosedError` when it is closed."""

    def __init__(self, path: Path, options: RocksOptions, *, create: bool, read_only: bool = False) -> None:
        """Open what is there, or `create` it; without `create` a family that is missing is damage.

        With `read_only` nothing is changed or locked, and others may have it open so, too.
        """
        self.path = path
        kinds = options.families
        families = dict.fromkeys(TABLE_NAMES, kinds["rows"])
        families |= {large_name(name): kinds["large"] for name in LARGE_TABLES}
        try:
            options.database.create_if_missing(create)
            options.database.create_missing_column_families(create)
            access = AccessType.read_only() if read_only else AccessType.read_write()
            self._rocks = Rdict(str(path), options.database, {"default": kinds["default"], **families}, access)
        except Exception as error:
            raise from_rocksdb(error, path) from error
        self._families = {name: self._rocks.get_column_family(name) for name in families}
        self._handles = {name: self._rocks.get_column_family_handle(name) for name in families}
        # Checking a payload takes RocksDB eight times as long as us: the binding is built without the CPU's CRC-32C.
        unchecked = ReadOptions()
        unchecked.set_verify_checksums(False)
        for name in LARGE_TABLES:
            self._families[large_name(name)].set_read_options(unchecked)
        self._checked = ReadOptions()
        self._collecting: set[str] = set()  # tables whose blob files are collected, which each opening begins without

    def rows(self, table: str) -> Rdict:
        """The family of the table's packed rows, to read from."""
        return self._families[table]

    def large(self, table: str) -> Rdict:
        """The family of the large values of one of `LARGE_TABLES`, to read from."""
        return self._families[large_name(table)]

    def handle(self, family: str) -> ColumnFamily:
        """The handle that names the family in a batch."""
        return self._handles[family]

    def get(self, family: Rdict, key: bytes, *, checked: bool = False) -> bytes | None:
        """The value under the key. With `checked` RocksDB itself verifies a large value, and names the bad file."""
        try:  # as `_call` does, which takes longer: every put of a row looks for it
            found: bytes | None = family.get(key, None, self._checked) if checked else family.get(key)
        except DbClosedError:
            raise
        except Exception as error:
            raise from_rocksdb(error, self.path) from error
        return found

    def _call(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call the binding; its errors as ours."""
        try:
            return call(*arguments)
        except DbClosedError:
            raise
        except Exception as error:
            raise from_rocksdb(error, self.path) from error
        finally:
            del call  # an iterator's, perhaps, which an error's traceback would keep: see `read`

    def read(
        self, family: Rdict, start: bytes, stop: bytes | None, *, reverse: bool = False, rows_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Keys and values from one end of start <= key < stop, and whether there may be more than these.

        Ends after `rows_max` rows, or with the row that makes their values `bytes_max` bytes.
        """
        # No lower bound: the binding (0.3.29) sets the upper one in its place.
        bounds = ReadOptions()
        if stop is not None:
            bounds.set_iterate_upper_bound(stop)
        iterator = family.iter(bounds)
        valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.next
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        try:
            if reverse:
                iterator.seek_to_last()
                step = iterator.prev
            else:
                iterator.seek(start)
            while valid():
                row = (key(), value())
                if row[0] < start:
                    return rows, False
                rows.append(row)
                size += len(row[1])
                if len(rows) >= rows_max or size >= bytes_max:
                    return rows, True
                step()
            self._call(iterator.status)  # an iterator ends in the same way for the end of the range and for a failure
            return rows, False
        finally:
            # The database stays open as long as one iterator lives, and an error's traceback would keep this one.
            del iterator, valid, key, value, step

    def sequence(self) -> int:
        """The number of changes that were ever made: each put, delete and range delete counts one."""
        return self._rocks.latest_sequence_number()

    def write(self, batch: WriteBatch) -> None:
        """Write the batch to the log and the tables; in the kernel's hands, but not yet on the disk."""
        self._call(self._rocks.write, batch)

    def sync(self) -> None:
        """Put the log on the disk. Unlike a synced write of the binding this lets other threads run."""
        self._call(self._rocks.flush_wal, True)

    def check_blob_files(self) -> None:
        """`CorruptionError` when a blob file is missing, or not what RocksDB wrote there.

        An open database collects garbage: a file that was listed may be removed, and rightly, before it is looked at.
        """
        for table in LARGE_TABLES:
            files = self._blob_files(table)
            for _ in range(BLOB_LISTS_MAX):
                try:
                    check_blob_files(files)
                    break
                except CorruptionError:
                    listed, files = files, self._blob_files(table)
                    if files == listed:
                        raise
            else:
                check_blob_files(files)

    def _blob_files(self, table: str) -> list[BlobFile]:
        return [
            BlobFile(self.path / f"{int(number):06d}.blob", int(size), frozenset(map(int, tables.split())))
            for number, size, tables in _BLOB_FILE.findall(self._files(self.large(table)))
        ]

    @staticmethod
    def _files(family: Rdict) -> str:
        return family.property_value("rocksdb.sstables") or ""

    def suspect(self, table: str, key: bytes) -> str:
        """The file at fault when the large values under a key cannot be read, as far as it can be found, for an error's text."""
        files, digits = _TABLE_FILE.findall(self._files(self.large(table))), key.hex().upper()
        tables = {int(number) for number, _, first, last in files if first <= digits <= last}
        for blob in self._blob_files(table):
            if tables & blob.table_files:
                offset = damaged_offset(blob.path)
                if offset is not None:
                    return f"{blob.path} is damaged at byte {offset}"
        names = [f"{number:06d}.sst" for number in sorted(tables)]
        return f"{self.path / ' or '.join(names)} is damaged" if names else f"no file in {self.path} has it"

    def rows_estimated(self, table: str, start: bytes, stop: bytes) -> int:
        """About how many rows have start <= key < stop: a file, or memory, that holds others too counts half."""
        rows = self.rows(table)
        in_memory = sum(rows.property_int_value(name) or 0 for name in _MEMORY_ENTRIES)
        in_files = max((rows.property_int_value("rocksdb.estimate-num-keys") or 0) - in_memory, 0)
        low, high = start.hex().upper(), stop.hex().upper()
        total_bytes = halves = 0
        for _, size, first, last in _TABLE_FILE.findall(self._files(rows)):
            total_bytes += int(size)
            if last >= low and first < high:
                halves += int(size) * (2 if low <= first and last < high else 1)
        return in_memory // 2 + in_files * halves // max(2 * total_bytes, 1)

    def figures(self) -> Figures:
        """Sizes, and how often RocksDB has held writers up; takes a tenth of a millisecond."""
        families = [*self._families.values()]

        def total(name: str) -> int:
            return sum(family.property_int_value(f"rocksdb.{name}") or 0 for family in families)

        counts = {"delays": 0, "stops": 0}
        for family in families:
            for what, count in _STALLS.findall(family.property_value("rocksdb.cf-write-stall-stats") or ""):
                counts[what] += int(count)
        return Figures(
            total("total-sst-files-size"), total("total-blob-file-size"), total("estimate-pending-compaction-bytes"),
            counts["delays"], counts["stops"], total("is-write-stopped") > 0,
        )  # fmt: skip

    def tend_garbage(self) -> None:
        """Begin or end the collection of blob files, by the garbage that compactions have found in them."""
        for table in LARGE_TABLES:
            family = self.large(table)
            blob_bytes, garbage_bytes = (
                family.property_int_value(f"rocksdb.live-blob-file-{name}") or 0 for name in ("size", "garbage-size")
            )
            collecting = table in self._collecting
            if collects_garbage(collecting, blob_bytes, garbage_bytes) != collecting:
                self._call(family.set_options, {"enable_blob_garbage_collection": str(not collecting).lower()})
                self._collecting ^= {table}

    def checkpoint(self, directory: Path) -> None:
        """A copy of the database in a new directory; files that never change are hard links where possible."""
        self._call(lambda: Checkpoint(self._rocks).create_checkpoint(str(directory)))

    def close(self) -> bool:
        """Write what is in memory to table files and let go of the database; True when all of it was written."""
        failure: BasaltError | None = None
        self._handles = {}  # each of them would keep the database open
        for family in [*self._families.values(), self._rocks]:
            try:
                self._call(family.close)
            except DbClosedError:
                pass
            except BasaltError as error:
                failure = error
        if failure is not None:
            log.warning("%s was closed, but its tables are not all in files; its log has them: %s", self.path, failure)
        return failure is None


def large_name(table: str) -> str:
    """The column family of a table's large values."""
    return f"{table}.large"
