package io.basalt.hbase;

import java.util.Map;
import java.util.Set;

/** A region of the message table. */
public final class MessageTableObserver extends TableObserver {
  /** For HBase, which makes one for each region. */
  public MessageTableObserver() {}

  @Override
  RowFilter filter(
      Map<String, TopicRule> rules, FilterPass pass, long nowMs, Set<String> allFiles, Counters counters) {
    return new MessageFilter(rules, pass, nowMs, allFiles != null, counters);
  }

  @Override
  WriteGuard writeGuard(SnapshotSource snapshots) {
    return WriteGuard.ofMessages(snapshots, System::currentTimeMillis);
  }
}
