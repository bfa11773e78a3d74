"""The sink as it is, and what kills it at named points: a format of its own, so that the product knows no fault.

Python workers load this module by its name, and find in the options what is to go wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from basalt.errors import SessionNotFoundError, UnavailableError
from basalt_spark.data_source import BasaltDataSource
from basalt_spark.sink import commit as sink_commit
from basalt_spark.sink.commit import SegmentStored, SinkWork
from basalt_spark.sink.writers import BasaltStreamWriter

FAULTY = "basalt_faulty"
FAULT = "fault"
PIPE = "pipe"  # a file: one that tells that something happens once, or a named pipe to tell that it has
KILLED = 9


class FaultySource(BasaltDataSource):
    """`format("basalt_faulty")`, with `fault` and `pipe` as options of its own."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.fault, self.pipe = options.get(FAULT, ""), options.get(PIPE, "")
        super().__init__({name: text for name, text in options.items() if name.lower() not in (FAULT, PIPE)})

    @classmethod
    def name(cls) -> str:
        return FAULTY

    def streamWriter(self, schema, overwrite):
        return FaultyStreamWriter(schema, overwrite, self.options, self.fault, self.pipe)


class FaultyStreamWriter(BasaltStreamWriter):
    """Dies, or loses what it is told, where the fault says so."""

    def __init__(self, schema, overwrite, options, fault: str, pipe: str) -> None:
        super().__init__(schema, overwrite, options)
        self.fault, self.pipe = fault, pipe

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SegmentStored:
        if self.fault == "a worker dies" and self._is_first():
            self._stores_half(iterator)
            os._exit(KILLED)
        if self.fault == "all tasks fail":
            self._stores_half(iterator)
            raise RuntimeError("all tasks fail")
        if self.fault == "one task fails" and TaskContext.get().partitionId() == 1:
            raise RuntimeError("one task fails")
        return super().write(iterator)

    def commit(self, messages: Any, batch_id: int) -> None:
        if self.fault == "the driver's process dies before the commit":
            os._exit(KILLED)
        if self.fault == "the answer is lost":
            client = self._client()
            self._client = lambda: LostAnswers(client)  # type: ignore[return-value]
        super().commit(messages, batch_id)
        if self.fault == "the driver's process dies after the commit":
            os._exit(KILLED)
        if self.fault == "the driver hangs after the commit":
            Path(self.pipe).write_text("committed")
            while True:
                os.read(os.open(self.pipe, os.O_RDONLY), 1)  # until it is killed

    def _stores_half(self, iterator: Iterator[pa.RecordBatch]) -> None:
        first = next(iterator)
        super().write(iter([first.slice(0, first.num_rows // 2)]))

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self.pipe, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class LostAnswers:
    """A client whose commit is made, and whose answers do not come."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.transactions = self

    def commit_segments(self, *given: Any) -> None:
        self._client.transactions.commit_segments(*given)
        raise UnavailableError("the answer is lost")


class WithoutLedgerSource(FaultySource):
    """A planted fault: each run counts its batches for itself."""

    @classmethod
    def name(cls) -> str:
        return "basalt_without_ledger"

    def streamWriter(self, schema, overwrite):
        return WithoutLedgerWriter(schema, overwrite, self.options, self.fault, self.pipe)


class WithoutLedgerWriter(FaultyStreamWriter):
    """The writer of it."""

    def join(self, client, work):
        return super().join(
            client, SinkWork(f"{work.app_id}-{work.run[-36:]}", work.run, work.version, work.counter_owner)
        )


class UndoingSource(FaultySource):
    """A planted fault: an abort takes back what is known of a commit."""

    @classmethod
    def name(cls) -> str:
        return "basalt_undoing"

    def streamWriter(self, schema, overwrite):
        return UndoingWriter(schema, overwrite, self.options, self.fault, self.pipe)


class UndoingWriter(FaultyStreamWriter):
    """The writer of it."""

    def abort(self, messages: Any, batch_id: int) -> None:
        super().abort(messages, batch_id)
        try:
            self._client().sessions.delete(self.app_id)
        except SessionNotFoundError:
            return


class AllSegmentsSource(FaultySource):
    """A planted fault: whatever any attempt stored is published."""

    @classmethod
    def name(cls) -> str:
        return "basalt_all_segments"

    def streamWriter(self, schema, overwrite):
        return AllSegmentsWriter(schema, overwrite, self.options, self.fault, self.pipe)


class AllSegmentsWriter(FaultyStreamWriter):
    """The writer of it."""

    def commit(self, messages: Any, batch_id: int) -> None:
        transaction = sink_commit.verdict(sink_commit.stored(messages)).transaction
        self._client().transactions.commit(transaction)


SOURCES = (FaultySource, WithoutLedgerSource, UndoingSource, AllSegmentsSource)
