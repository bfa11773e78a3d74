package io.basalt.hbase.observer;

import io.basalt.hbase.fence.WriteGuard;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.rule.Counters;
import io.basalt.hbase.rule.FilterPass;
import io.basalt.hbase.rule.MessageFilter;
import io.basalt.hbase.rule.RowFilter;
import java.util.Map;
import java.util.Set;

/** A region of the message table. */
public final class MessageTableObserver extends TableObserver {
  /** For HBase, which makes one for each region. */
  public MessageTableObserver() {
    super(WriteGuard.ofMessages());
  }

  @Override
  RowFilter filter(
      Map<String, TopicRule> rules, FilterPass pass, long nowMs, Set<String> allFiles, Counters counters) {
    return new MessageFilter(rules, pass, nowMs, allFiles != null, counters);
  }
}
