package io.basalt.hbase.rule;

import io.basalt.hbase.format.MessageKey;
import io.basalt.hbase.format.PayloadKey;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.rule.Verdict.Fate;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;

/** Payload rows: the key says it all, so each part of a row gets the verdict of the whole. */
public final class PayloadFilter extends RowFilter {
  /** Without a snapshot the longest life of a transaction is unknown, and so is when a payload can go. */
  private static final long UNKNOWN_LIFETIME_MS = Long.MAX_VALUE;

  private final long lifetimeMsMax;

  public PayloadFilter(Map<String, TopicRule> rules, FilterPass pass, long nowMs, Counters counters) {
    super(rules, pass, nowMs, counters);
    lifetimeMsMax = pass.snapshot() == null ? UNKNOWN_LIFETIME_MS : pass.snapshot().lifetimeMsMax;
  }

  @Override
  Verdict judge(List<Cell> cells, int from) {
    if (!keyEndsWith(PayloadKey.SUFFIX_BYTES)) {
      return Verdict.UNREADABLE;
    }
    long writePointer = PayloadKey.writePointer(key, prefixEnd);
    Verdict verdict = Retention.judgePayload(
        MessageKey.generation(key, prefixEnd),
        writePointer,
        PayloadKey.writeMs(key, prefixEnd),
        rule(),
        pass.snapshot(),
        lifetimeMsMax,
        nowMs);
    if (verdict == Verdict.UNKNOWN_TOPIC) {
      pass.keptUnjudged(writePointer);
    } else if (verdict.fate == Fate.KEEP) {
      pass.kept(writePointer);
    }
    return verdict;
  }
}
