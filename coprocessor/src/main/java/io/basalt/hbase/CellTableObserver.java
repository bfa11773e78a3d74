package io.basalt.hbase;

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
 *   <li>what is in no file yet was let in at {@link UnfiledCells#oldestMs} at the earliest, of writers whose age was
 *       then {@link WriteGuard#longestAgeMs} at most; so each began after that time less that age;
 *   <li>what comes later is refused if its writer is older than the longest life.
 * </ul>
 *
 * So <i>d</i> must have begun before the first of these times, less the longer one of both ages and the hour for clocks.
 * More: docs/formats/retention.md, "Tombstones in HBase".
 */
public final class CellTableObserver extends TableObserver {
  /** For HBase, which makes one for each region. */
  public CellTableObserver() {}

  @Override
  RowFilter filter(
      Map<String, TopicRule> rules, FilterPass pass, long nowMs, Set<String> allFiles, Counters counters) {
    return new CellFilter(rules, pass, nowMs, purgeBound(pass.snapshot(), allFiles), counters);
  }

  @Override
  WriteGuard writeGuard(SnapshotSource snapshots) {
    return WriteGuard.ofCells(snapshots, System::currentTimeMillis);
  }

  private long purgeBound(Snapshot snapshot, Set<String> allFiles) {
    if (snapshot == null || allFiles == null) {
      return CellFilter.NO_PURGE;
    }
    long unfiledMs = UnfiledCells.oldestMs(new LiveRegion(environment()), fence, allFiles, System.currentTimeMillis());
    // Only now: a cell that is in memory has been let in, and its writer's age counted.
    return purgeBound(unfiledMs, Math.max(snapshot.lifetimeMsMax, longestAgeMs()));
  }

  /** The last write pointer of whose writer tombstones may go. */
  static long purgeBound(long unfiledMs, long longestAgeMs) {
    long untilMs = unfiledMs - CLOCK_SLACK_MS;
    return untilMs < longestAgeMs ? CellFilter.NO_PURGE : FileCertificate.pointerAt(untilMs - longestAgeMs);
  }
}
