package io.basalt.hbase;

import java.util.Set;

/**
 * How old the cells of a region can be that lie in none of these files: on their way into memory, in memory, or in a
 * file that a flush has written since. Cells move in that direction only, so these are looked at in that order, as
 * {@link ReportedRegion} does.
 */
final class UnfiledCells {
  /** In place of a time: it cannot be told. */
  static final long UNKNOWN = 0;

  private UnfiledCells() {}

  /** When the oldest of them was let in, or ten minutes after that; {@code nowMs}, the time of this call, if there are none. */
  static long oldestMs(RegionView view, Fence fence, Set<String> files, long nowMs) {
    long inFlightMs = fence.oldestInFlightMs();
    Fence.SlowBatch slow = fence.slowBatch();
    long oldestMs = Math.min(nowMs, view.oldestEditMs());
    if (view.isFlushing() || !files.containsAll(view.files()) || view.isClosing()) {
      return UNKNOWN;
    }
    if (inFlightMs != InFlightBatches.NONE) {
      oldestMs = Math.min(oldestMs, inFlightMs);
    }
    return slow == null ? oldestMs : Math.min(oldestMs, slow.admittedMs);
  }
}
