package io.basalt.hbase.fence;

import io.basalt.hbase.format.BigEndian;
import io.basalt.hbase.format.CellKey;
import io.basalt.hbase.format.PayloadKey;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.TopicPrefix;
import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.knowledge.Knowledge;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.ToLongFunction;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;
import org.apache.hadoop.hbase.util.Bytes;

/**
 * Refuses what is written under a transaction that is over for certain, so that a late write of a failed writer cannot
 * become visible once pruning has forgotten that writer.
 *
 * <p>A put under a write pointer is refused when the pointer is on the invalid list, or when it is older than the
 * longest life of a transaction, by this server's clock. Roll backs (a negative t), deletes, and rows of no
 * transaction pass.
 *
 * <p><b>Without a snapshot</b> neither is known. The prune rule cannot make up for that: it can tell what a region
 * holds, never what may yet arrive. But it forgets no writer that is younger than the hour which it allows for
 * clocks, so writers younger than {@link #AGE_WITHOUT_SNAPSHOT_MS} pass, whatever the longest life is; older ones are
 * asked to try again, which a server that has just started answers otherwise within seconds. Where there is no
 * snapshot row at all nothing was ever pruned, and everything passes.
 */
public final class WriteGuard {
  /** Half of the hour that the prune rule allows for clocks; the other half is left to them. */
  static final long AGE_WITHOUT_SNAPSHOT_MS = 1_800_000;

  private static final byte[] FAMILY = Bytes.toBytes("m");
  private static final byte[] WRITTEN_BY = Bytes.toBytes("t");

  private final ToLongFunction<Put> writerOf;
  private final AtomicLong longestAgeMs = new AtomicLong();

  private WriteGuard(ToLongFunction<Put> writerOf) {
    this.writerOf = writerOf;
  }

  /** For the message table, whose rows name their writer in column t. */
  public static WriteGuard ofMessages() {
    return new WriteGuard(WriteGuard::messageWriter);
  }

  /** For the payload table, whose keys name their writer. */
  public static WriteGuard ofPayloads() {
    return new WriteGuard(WriteGuard::payloadWriter);
  }

  /** For the cell table, whose keys end with their writer. */
  public static WriteGuard ofCells() {
    return new WriteGuard(WriteGuard::cellWriter);
  }

  /** The highest age of a writer whose put was let in: by whatever lifetime held then, or by none. */
  public long longestAgeMs() {
    return longestAgeMs.get();
  }

  /** Within the hook before a mini-batch, after it was noted as in flight; refuses the batch as a whole. */
  public void check(MiniBatchOperationInProgress<Mutation> batch, Knowledge known, long nowMs) throws IOException {
    for (int index = 0; index < batch.size(); index++) {
      Mutation mutation = batch.getOperation(index);
      if (mutation instanceof Put) {
        long writer = writerOf.applyAsLong((Put) mutation);
        if (writer > 0) {
          check(mutation.getRow(), writer, known, nowMs);
        }
      }
    }
  }

  private void check(byte[] row, long writer, Knowledge known, long nowMs) throws IOException {
    Snapshot snapshot = known.snapshot;
    long ageMs = nowMs - writer / WritePointers.POINTERS_PER_MS;
    if (snapshot == null) {
      if (ageMs >= AGE_WITHOUT_SNAPSHOT_MS && !known.neverPublished) {
        throw new IOException("basalt: row " + Bytes.toStringBinary(row) + " of writer " + writer
            + ", which is " + ageMs + " ms old, while this server knows no transactions yet; try again");
      }
    } else if (snapshot.isInvalid(writer)) {
      throw refused(row, writer, "it failed");
    } else if (ageMs >= snapshot.lifetimeMsMax) {
      throw refused(row, writer,
          "it is " + ageMs + " ms old, and no transaction lives longer than " + snapshot.lifetimeMsMax + " ms");
    }
    if (ageMs > longestAgeMs.get()) {
      longestAgeMs.accumulateAndGet(ageMs, Math::max);
    }
  }

  private static DoNotRetryIOException refused(byte[] row, long writer, String why) {
    return new DoNotRetryIOException(
        "basalt refused: row " + Bytes.toStringBinary(row) + " of writer " + writer + ": " + why);
  }

  /** A put could bring several cells of column t; the highest counts. */
  private static long messageWriter(Put put) {
    List<Cell> cells = put.getFamilyCellMap().get(FAMILY);
    long writer = 0;
    if (cells != null) {
      for (Cell cell : cells) {
        if (cell.getValueLength() == BigEndian.LONG_BYTES && CellUtil.matchingQualifier(cell, WRITTEN_BY)) {
          writer = Math.max(writer, Bytes.toLong(cell.getValueArray(), cell.getValueOffset()));
        }
      }
    }
    return writer;
  }

  private static long payloadWriter(Put put) {
    byte[] key = put.getRow();
    int end = TopicPrefix.end(key, key.length);
    return end == TopicPrefix.NONE || key.length != end + PayloadKey.SUFFIX_BYTES
        ? 0
        : PayloadKey.writePointer(key, end);
  }

  private static long cellWriter(Put put) {
    byte[] key = put.getRow();
    return TopicPrefix.tableEnd(key, key.length) == TopicPrefix.NONE ? 0 : CellKey.writePointer(key, key.length);
  }
}
