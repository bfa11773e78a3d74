package io.basalt.hbase;

import java.util.Map;
import java.util.Set;

/** A region of the payload table. */
public final class PayloadTableObserver extends TableObserver {
  /** For HBase, which makes one for each region. */
  public PayloadTableObserver() {}

  @Override
  RowFilter filter(
      Map<String, TopicRule> rules, FilterPass pass, long nowMs, Set<String> allFiles, Counters counters) {
    return new PayloadFilter(rules, pass, nowMs, counters);
  }

  @Override
  WriteGuard writeGuard(SnapshotSource snapshots) {
    return WriteGuard.ofPayloads(snapshots, System::currentTimeMillis);
  }
}
