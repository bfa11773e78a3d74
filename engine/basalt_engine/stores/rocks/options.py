"""How RocksDB is set up.

The options are in RocksDB's own text format, with a reason for each, because the Python binding has no setters for some
of them. Their sections: one for the database, then one per kind of column family. `rows` holds packed rows, `large` the
values that are too large for them (docs/formats/rocks-store.md).
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

from rocksdict import Cache, Options

CACHE_BYTES = 64 << 20  # block cache of all tables together; payloads are not in it, the kernel caches their files
OPEN_FILES_MAX = 512
OPEN_FILES_MIN = 32  # fewer, and every read of a payload opens its file anew
OPEN_FILES_SHARE = 4  # of the process's limit the store takes one in so many; the rest is for connections

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
  # Hand written data to the disk steadily, not in one burst at the end of a file.
  bytes_per_sync=1048576
  max_background_jobs=2
  max_manifest_file_size=16777216
  keep_log_file_num=2
  max_log_file_size=4194304
  # No statistics in the log or in memory that nobody reads.
  stats_dump_period_sec=0
  stats_persist_period_sec=0
  # After a failed write the store reopens the database itself, see database.py; RocksDB must not do so on its own.
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
  # Small files make the estimate of a range's size exacter: size_estimate.py.
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
  enable_blob_garbage_collection=true
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


class RocksOptions:
    """The options of one store; its block cache lives as long as they do.

    `database` are the options of the whole, `families` those of each kind of column family: `default`, `rows`, `large`.
    """

    def __init__(self, directory: Path, cache_bytes: int) -> None:
        """Parse the options, by way of a file in `directory`, where one can be written."""
        with tempfile.TemporaryDirectory(prefix=".options-", dir=directory) as scratch:
            (Path(scratch) / "OPTIONS-000001").write_text(_OPTIONS)
            self.database, self.families = Options.load_latest(scratch, cache=Cache(cache_bytes))
        self.database.set_max_open_files(open_files_max(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def open_files_max(limit: int) -> int:
    """How many files RocksDB may keep open, when the process may have `limit` (RLIM_INFINITY: any number)."""
    if limit == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return min(OPEN_FILES_MAX, max(OPEN_FILES_MIN, limit // OPEN_FILES_SHARE))
