package io.basalt.hbase;

import java.io.IOException;

/** Where a refresher reads from: HBase's tables, or a test's. */
interface KnowledgeSource {
  /** The column v of a row of the system table, or null when there is no such row. */
  byte[] systemRow(byte[] key) throws IOException;

  /**
   * Whether the row still is {@code value} (null: absent), proved by a conditional write that goes through its region's
   * log. A server that has lost the region without knowing it can answer a read, but cannot do that.
   */
  boolean isStill(byte[] key, byte[] value) throws IOException;

  /** Give each metadata row whose cell has this time stamp or a later one. */
  void topics(long fromTimestampMs, TopicReceiver receiver) throws IOException;

  /** Takes one metadata row. */
  interface TopicReceiver {
    void topic(byte[] prefix, byte[] value, long timestampMs);
  }
}
