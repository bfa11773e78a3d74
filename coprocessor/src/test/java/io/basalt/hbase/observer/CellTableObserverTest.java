package io.basalt.hbase.observer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.report.LiveRegion;
import io.basalt.hbase.rule.CellFilter;
import org.junit.jupiter.api.Test;

/** Which tombstones may go, by how old what a compaction does not see can be. */
class CellTableObserverTest {
  private static final long NOW_MS = 1_700_000_000_000L;
  private static final long HOUR_MS = 3_600_000;
  private static final long LIFETIME_MS = 24 * HOUR_MS;

  @Test
  void aTombstoneGoesAnHourAfterNoOlderWriterCanBeOutsideTheFiles() {
    long untilMs = NOW_MS - LIFETIME_MS - HOUR_MS;
    long bound = CellTableObserver.purgeBound(NOW_MS, LIFETIME_MS);
    assertEquals(untilMs, bound / WritePointers.POINTERS_PER_MS);
    assertEquals(WritePointers.lastIn(untilMs), bound);
  }

  @Test
  void whereThatCannotBeToldNoneGoes() {
    assertEquals(CellFilter.NO_PURGE, CellTableObserver.purgeBound(LiveRegion.UNKNOWN, LIFETIME_MS));
    assertEquals(CellFilter.NO_PURGE, CellTableObserver.purgeBound(LiveRegion.UNKNOWN, 0));
    assertEquals(CellFilter.NO_PURGE, CellTableObserver.purgeBound(NOW_MS, NOW_MS));
    assertEquals(CellFilter.NO_PURGE, CellTableObserver.purgeBound(NOW_MS, Long.MAX_VALUE));
  }
}
