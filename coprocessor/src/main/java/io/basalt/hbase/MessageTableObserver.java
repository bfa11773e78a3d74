package io.basalt.hbase;

import java.util.Map;

/** A region of the message table. */
public final class MessageTableObserver extends TableObserver {
  /** For HBase, which makes one for each region. */
  public MessageTableObserver() {}

  @Override
  RowFilter filter(
      Map<String, TopicRule> rules, FilterPass pass, long nowMs, boolean allFiles, Counters counters) {
    return new MessageFilter(rules, pass, nowMs, allFiles, counters);
  }

  @Override
  WriteGuard writeGuard(SnapshotSource snapshots) {
    return WriteGuard.ofMessages(snapshots, System::currentTimeMillis);
  }
}
