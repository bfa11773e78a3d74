"""`make bench`: run the measurements named, or all; print JSON lines, then a table.

python -m bench [--quick] [--json FILE] [NAME ...]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench import (
    access,
    arrow,
    at_members,
    beside_raw,
    compacting,
    consuming,
    elsewhere,
    flooding,
    footprint,
    hbase_lanes,
    lanes,
    member_calls,
    numbering,
    observing,
    on_hbase,
    passing,
    proving,
    publishing,
    ranging,
    reading,
    relaying,
    sampling,
    securing,
    sharing,
    spark,
    spreading,
    tables,
    tephra,
    ticketing,
    transacting,
    waiting,
)
from bench.figures import Figure, table

MEASUREMENTS: dict[str, Callable[[Path, bool], Iterator[Figure]]] = {
    "batches": publishing.batches,
    "singles": publishing.singles,
    "poll": reading.poll,
    "delivery": reading.delivery,
    "arrow": arrow.arrow,
    "ranges": ranging.ranges,
    "one-shots": transacting.one_shots,
    "transactions": transacting.batches,
    "owners": transacting.owners,
    "tables": tables.row_and_message,
    "relay": relaying.relay,
    "commits": waiting.commits,
    "held": waiting.held,
    "flood": flooding.flood,
    "tephra": tephra.transactions,
    "tephra-5000": partial(tephra.transactions, invalid=5_000),
    "tephra-100000": partial(tephra.transactions, invalid=100_000),
    "tokens": access.tokens,
    "grants": access.grants,
    "memory": publishing.memory,
    "topics": publishing.topics,
    "invalid": publishing.invalid,
    "start": publishing.start,
    "jwt": proving.jwts,
    "commands": footprint.commands,
    "cold-start": footprint.cold_start,
    "idle": footprint.idle,
    "sampling": sampling.sampling,
    "hbase": on_hbase.rates,
    "raw-hbase": beside_raw.beside_raw,
    "member-calls": member_calls.member_calls,
    "lanes": lanes.lanes,
    "topic-lanes": lanes.topic_lanes,
    "hbase-topic-lanes": hbase_lanes.topic_lanes,
    "numbered": numbering.numbered,
    "transforming": consuming.transforming,
    "acknowledging": consuming.acknowledging,
    "keyed": consuming.keyed,
    "pending": consuming.held,
    "start-groups": consuming.start_with_groups,
    "hbase-groups": on_hbase.groups,
    "hbase-kerberos": ticketing.kerberos,
    "compaction": compacting.compaction,
    "secured": securing.secured,
    "passed-on": passing.passed,
    "ranges-elsewhere": elsewhere.elsewhere,
    "ranges-spread": spreading.spreading,
    "sharing": sharing.sharing,
    "observed": observing.observed,
    "at-members": at_members.at_members,
    "spark-read": spark.read,
    "spark-sink": spark.sink,
    "spark-floor": spark.floor,
    "spark-memory": spark.memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(MEASUREMENTS)}")
    parser.add_argument("--quick", action="store_true", help="smaller runs, to see that all work")
    parser.add_argument("--json", type=Path, help="also write the JSON lines to this file")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no measurement is called {unknown[0]}; there are {', '.join(MEASUREMENTS)}")
    figures: list[Figure] = []
    for name in arguments.names or MEASUREMENTS:
        folder = Path(tempfile.mkdtemp(prefix="basalt-bench-"))
        try:
            for figure in MEASUREMENTS[name](folder, arguments.quick):
                print(figure.json_line(), flush=True)
                figures.append(figure)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if arguments.json is not None:
        arguments.json.write_text("".join(f"{figure.json_line()}\n" for figure in figures))
    print("\n" + table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
