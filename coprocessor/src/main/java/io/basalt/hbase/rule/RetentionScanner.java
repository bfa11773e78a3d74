package io.basalt.hbase.rule;

import java.io.IOException;
import java.util.List;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.ScannerContext;
import org.apache.hadoop.hbase.regionserver.Shipper;

/**
 * HBase's flush or compaction scanner, without the rows that {@code RowFilter} drops.
 *
 * <p>It asks for whole rows, whatever limits its caller has: a row is at most four cells and 1 MiB, and is judged as a
 * whole. An answer has one row, or none if it was dropped: callers go on as long as there is more, and between two answers
 * they look whether they must stop.
 */
public final class RetentionScanner implements InternalScanner, Shipper {
  private final InternalScanner inner;
  private final RowFilter filter;

  public RetentionScanner(InternalScanner inner, RowFilter filter) {
    this.inner = inner;
    this.filter = filter;
  }

  // Raw, because the list's element type is another one in HBase 3; the method itself is the same.
  @Override
  @SuppressWarnings({"rawtypes", "unchecked"})
  public boolean next(List result) throws IOException {
    int from = result.size();
    boolean hasMore = inner.next(result);
    filter.filter((List<Cell>) result, from);
    if (!hasMore) {
      filter.publishCounts();
    }
    return hasMore;
  }

  @Override
  @SuppressWarnings("rawtypes")
  public boolean next(List result, ScannerContext context) throws IOException {
    return next(result);
  }

  /** A compaction lets go of the blocks that it has written out: without this it would hold all it ever read. */
  @Override
  public void shipped() throws IOException {
    if (inner instanceof Shipper) {
      ((Shipper) inner).shipped();
    }
  }

  @Override
  public void close() throws IOException {
    filter.publishCounts();
    inner.close();
  }
}
