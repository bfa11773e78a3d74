package io.basalt.hbase.rule;

import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.hadoop.hbase.metrics.Counter;
import org.apache.hadoop.hbase.metrics.MetricRegistry;

/** What is counted on one region server in one installation: for region reports, and in HBase's metrics. */
public final class Counters {
  private static final Count[] COUNTS = Count.values();

  private final AtomicLongArray values;
  private final Counter[] shown;

  public Counters() {
    this(new AtomicLongArray(COUNTS.length), null);
  }

  private Counters(AtomicLongArray values, MetricRegistry registry) {
    this.values = values;
    shown = new Counter[registry == null ? 0 : COUNTS.length];
    for (int index = 0; index < shown.length; index++) {
      shown[index] = registry.counter(COUNTS[index].name);
    }
  }

  /** The same counts; what is added through this object is shown in these metrics, too. */
  public Counters shownIn(MetricRegistry registry) {
    return new Counters(values, registry);
  }

  public void add(Count count, long amount) {
    if (amount == 0) {
      return;
    }
    values.addAndGet(count.ordinal(), amount);
    if (shown.length > 0) {
      shown[count.ordinal()].increment(amount);
    }
  }

  public void increment(Count count) {
    add(count, 1);
  }

  public long value(Count count) {
    return values.get(count.ordinal());
  }

  /** All counts by name. */
  public Map<String, Long> all() {
    Map<String, Long> all = new TreeMap<>();
    for (Count count : COUNTS) {
      all.put(count.name, value(count));
    }
    return all;
  }
}
