package io.basalt.hbase.knowledge;

import io.basalt.hbase.format.TopicChanges;
import io.basalt.hbase.format.TopicChanges.Mark;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The rows of one region of the metadata table that have changed since it was opened here, for all who ask: by a count, not by
 * timestamps, for those of different shards say nothing about each other.
 *
 * <p>A change is noted once readers can see it. So who was told of the count n, and reads rows then, sees each change up to n; one that it
 * misses has a higher number, and is told the next time. In memory only: another opening has another number, and all is read anew.
 */
public final class ChangedRows {
  /** The number of rows that are remembered. Who was away for more changes reads all rows: a hundred bytes each. */
  static final int ROWS_MAX = 1_000;

  private final long opened;
  /** By row, the number of its last change; the oldest change first. */
  private final Map<ByteBuffer, Long> numbers = new LinkedHashMap<>();
  private long count;
  private long forgotten;

  /** {@code opened}: a number that no other opening of any region has. */
  public ChangedRows(long opened) {
    this.opened = opened;
  }

  /** Note that these rows were written: after readers can see it, whatever became of the write. */
  public synchronized void changed(Iterable<byte[]> keys) {
    for (byte[] key : keys) {
      ByteBuffer row = ByteBuffer.wrap(key.clone());
      numbers.remove(row);
      numbers.put(row, ++count);
    }
    for (Iterator<Long> oldest = numbers.values().iterator(); numbers.size() > ROWS_MAX; oldest.remove()) {
      forgotten = oldest.next();
    }
  }

  /** What has changed since this mark, for a region that ends at {@code next}. */
  public synchronized TopicChanges since(Mark known, byte[] next) {
    Mark now = new Mark(opened, count);
    if (known.opened != opened || known.count < forgotten || known.count > count) {
      return new TopicChanges(now, next, true, Collections.emptyList());
    }
    List<byte[]> keys = new ArrayList<>();
    numbers.forEach((row, number) -> {
      if (number > known.count) {
        keys.add(row.array());
      }
    });
    return new TopicChanges(now, next, false, keys);
  }

  /** True when this is the opening of this number. */
  public boolean isOf(long number) {
    return opened == number;
  }
}
