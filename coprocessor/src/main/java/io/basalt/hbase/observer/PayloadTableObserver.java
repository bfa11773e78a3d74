package io.basalt.hbase.observer;

import io.basalt.hbase.fence.WriteGuard;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.rule.Counters;
import io.basalt.hbase.rule.FilterPass;
import io.basalt.hbase.rule.PayloadFilter;
import io.basalt.hbase.rule.RowFilter;
import java.util.Map;
import java.util.Set;

/** A region of the payload table. */
public final class PayloadTableObserver extends TableObserver {
  /** For HBase, which makes one for each region. */
  public PayloadTableObserver() {
    super(WriteGuard.ofPayloads());
  }

  @Override
  RowFilter filter(
      Map<String, TopicRule> rules, FilterPass pass, long nowMs, Set<String> allFiles, Counters counters) {
    return new PayloadFilter(rules, pass, nowMs, counters);
  }
}
