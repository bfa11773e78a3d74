package io.basalt.hbase.observer;

import io.basalt.hbase.fence.WriteGuard;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.report.LiveRegion;
import io.basalt.hbase.rule.CellFilter;
import io.basalt.hbase.rule.Counters;
import io.basalt.hbase.rule.FilterPass;
import io.basalt.hbase.rule.Retention;
import io.basalt.hbase.rule.RowFilter;
import java.util.Map;
import java.util.Set;

/**
 * A region of the cell table.
 *
 * <p><b>When a tombstone may go.</b> Dropped too early, it would let an older version of its cell be seen again. A
 * compaction may drop that of writer <i>d</i> if none older than <i>d</i> is outside its files, now or later:
 *
 * <ul>
 *   <li>it reads all files that the store has when it begins, not only those it had when it was selected;
 *   <li>what is in no file yet was let in at {@link LiveRegion#oldestUnfiledMs} at the earliest, of writers whose age was
 *       then {@link WriteGuard#longestAgeMs} at most; so each began after that time less that age;
 *   <li>what comes later is refused if its writer is older than the longest life.
 * </ul>
 *
 * So <i>d</i> must have begun before the first of these times, less the longer one of both ages and the hour for clocks.
 * More: docs/formats/retention.md, "Tombstones in HBase".
 */
public final class CellTableObserver extends TableObserver {
  /** For HBase, which makes one for each region. */
  public CellTableObserver() {
    super(WriteGuard.ofCells());
  }

  @Override
  RowFilter filter(
      Map<String, TopicRule> rules, FilterPass pass, long nowMs, Set<String> allFiles, Counters counters) {
    return new CellFilter(rules, pass, nowMs, purgeBound(pass.snapshot(), allFiles), counters);
  }

  private long purgeBound(Snapshot snapshot, Set<String> allFiles) {
    if (snapshot == null || allFiles == null) {
      return CellFilter.NO_PURGE;
    }
    LiveRegion region = new LiveRegion(environment());
    long unfiledMs = region.oldestUnfiledMs(fence, allFiles, System.currentTimeMillis());
    // Only now: a cell that is in memory has been let in, and its writer's age counted.
    return purgeBound(unfiledMs, Math.max(snapshot.lifetimeMsMax, longestAgeMs()));
  }

  /** The last write pointer of whose writer tombstones may go. */
  static long purgeBound(long unfiledMs, long longestAgeMs) {
    long untilMs = unfiledMs - Retention.CLOCK_SLACK_MS;
    return untilMs < longestAgeMs ? CellFilter.NO_PURGE : WritePointers.lastIn(untilMs - longestAgeMs);
  }
}
