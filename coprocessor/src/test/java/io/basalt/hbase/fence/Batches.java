package io.basalt.hbase.fence;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;
import org.apache.hadoop.hbase.regionserver.OperationStatus;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hadoop.hbase.wal.WALEdit;

/** Mutations and the mini-batches that HBase makes of them, for tests. */
public final class Batches {
  public static final byte[] FAMILY = Bytes.toBytes("m");

  private Batches() {}

  public static MiniBatchOperationInProgress<Mutation> of(Mutation... mutations) {
    return part(0, mutations.length, mutations);
  }

  /** What HBase makes of a batch that it splits: a window over all of its mutations. */
  static MiniBatchOperationInProgress<Mutation> part(int start, int stop, Mutation... mutations) {
    OperationStatus[] statuses = new OperationStatus[mutations.length];
    Arrays.fill(statuses, OperationStatus.NOT_RUN);
    return new MiniBatchOperationInProgress<>(
        mutations, statuses, new WALEdit[mutations.length], start, stop, stop - start);
  }

  public static Put put(String row) {
    return new Put(Bytes.toBytes(row)).addColumn(FAMILY, Bytes.toBytes("v"), Bytes.toBytes("x"));
  }

  static Put putOf(long epoch) {
    Put put = put("row");
    put.setAttribute(Fence.EPOCH, Bytes.toBytes(epoch));
    return put;
  }

  static Put putOf(int shard, long epoch) {
    Put put = put("row");
    put.setAttribute(Fence.SHARD, Bytes.toBytes((long) shard << 48 | epoch));
    return put;
  }

  static Delete fenceOf(long epoch) {
    return fence(ByteBuffer.allocate(11).put((byte) 2).putLong(epoch).putShort((short) 0));
  }

  /** A fence of these shards, from first to last, which says nothing of the leader. */
  static Delete fenceOf(int first, int last, long epoch) {
    ByteBuffer value = ByteBuffer.allocate(21).put((byte) 2).putLong(0).putShort((short) 1);
    return fence(value.putShort((short) first).putLong((long) last << 48 | epoch));
  }

  private static Delete fence(ByteBuffer value) {
    Delete delete = new Delete(new byte[] {0}).addColumns(FAMILY, Bytes.toBytes("f"));
    delete.setAttribute(Fence.FENCE, value.array());
    return delete;
  }
}
