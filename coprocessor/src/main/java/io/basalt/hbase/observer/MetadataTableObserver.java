package io.basalt.hbase.observer;

import io.basalt.hbase.format.BigEndian;
import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.TopicChanges;
import io.basalt.hbase.format.TopicChanges.Mark;
import io.basalt.hbase.knowledge.ChangedRows;
import io.basalt.hbase.knowledge.InstallationTables;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.KeyValue;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.coprocessor.ObserverContext;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;

/** A region of the metadata table: it also tells region servers which of its rows have changed. Format: docs/formats/topic-changes.md. */
public final class MetadataTableObserver extends FencedTableObserver {
  private final ChangedRows changes = new ChangedRows(openingNumber());

  /** For HBase, which makes one for each region. */
  public MetadataTableObserver() {}

  /** Random: a region that comes back to this server, even in the same millisecond, is another opening. */
  private static long openingNumber() {
    return UUID.randomUUID().getMostSignificantBits(); // its version is among these bits, so it is never 0
  }

  @Override
  public void preGetOp(ObserverContext<RegionCoprocessorEnvironment> context, Get get, List<Cell> result) {
    byte[] question = get.getAttribute(InstallationTables.CHANGES);
    if (question != null) {
      contain(() -> {
        byte[] next = context.getEnvironment().getRegionInfo().getEndKey();
        byte[] answer = changes.since(mark(question), next).encode();
        result.add(new KeyValue(get.getRow(), InstallationTables.FAMILY, InstallationTables.CHANGED, answer));
        context.bypass();
      });
    }
  }

  /** The mark that was asked with; of a form to come: nothing is known, so that all is told. */
  private static Mark mark(byte[] question) {
    try {
      return Mark.decode(question);
    } catch (CorruptionException newer) {
      return TopicChanges.NOTHING;
    }
  }

  /** Refuses the proof that the region is still open as somebody read it, when it is not. */
  @Override
  void guard(MiniBatchOperationInProgress<Mutation> batch) throws IOException {
    for (int index = 0; index < batch.size(); index++) {
      byte[] opened = batch.getOperation(index).getAttribute(InstallationTables.OPENED);
      if (opened != null && (opened.length != BigEndian.LONG_BYTES || !changes.isOf(BigEndian.readLong(opened, 0)))) {
        throw new DoNotRetryIOException("basalt: the region was opened anew; read its topics again");
      }
    }
  }

  @Override
  public void postBatchMutateIndispensably(
      ObserverContext<RegionCoprocessorEnvironment> context,
      MiniBatchOperationInProgress<Mutation> batch,
      boolean success) {
    super.postBatchMutateIndispensably(context, batch, success);
    contain(() -> {
      List<byte[]> keys = new ArrayList<>();
      for (int index = 0; index < batch.size(); index++) {
        Mutation mutation = batch.getOperation(index);
        if (mutation.getAttribute(InstallationTables.OPENED) == null) {
          keys.add(mutation.getRow());
        }
      }
      changes.changed(keys);
    });
  }
}
