package io.basalt.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;
import org.junit.jupiter.api.Test;

/** How old what a compaction does not see can be, and which tombstones may go for that. */
class UnfiledCellsTest {
  private static final long NOW_MS = 1_700_000_000_000L;
  private static final long HOUR_MS = 3_600_000;
  private static final long LIFETIME_MS = 24 * HOUR_MS;

  private final AtomicLong clockMs = new AtomicLong(NOW_MS);
  private final RegionFake region = new RegionFake("r1", "f1", "f2");
  private final Fence fence = new Fence((opened, timeout) -> 1, clockMs::get);
  private final Set<String> files = new TreeSet<>(region.files);

  private long oldestMs() {
    return UnfiledCells.oldestMs(region, fence, files, NOW_MS);
  }

  @Test
  void withNothingInMemoryItIsNow() {
    assertEquals(NOW_MS, oldestMs());
  }

  @Test
  void itIsTheOldestEditInMemory() {
    region.oldestEditMs = NOW_MS - 5_000;
    assertEquals(NOW_MS - 5_000, oldestMs());
  }

  @Test
  void itIsTheOldestBatchThatIsUnderWay() throws IOException {
    clockMs.set(NOW_MS - 7_000);
    MiniBatchOperationInProgress<Mutation> batch = Batches.of(Batches.put("row"));
    fence.enter(batch);
    region.oldestEditMs = NOW_MS - 5_000;
    assertEquals(NOW_MS - 7_000, oldestMs());
    fence.leave(batch);
    assertEquals(NOW_MS - 5_000, oldestMs());
  }

  @Test
  void aBatchThatTookLongCountsFromWhenItWasLetIn() throws IOException {
    clockMs.set(NOW_MS - HOUR_MS);
    MiniBatchOperationInProgress<Mutation> batch = Batches.of(Batches.put("row"));
    fence.enter(batch);
    clockMs.set(NOW_MS);
    fence.leave(batch);
    region.oldestEditMs = NOW_MS;
    assertEquals(NOW_MS - HOUR_MS, oldestMs());
  }

  @Test
  void whileARegionIsFlushedOrClosedItCannotBeTold() {
    region.flushing = true;
    assertEquals(UnfiledCells.UNKNOWN, oldestMs());
    region.flushing = false;
    region.closing = true;
    assertEquals(UnfiledCells.UNKNOWN, oldestMs());
  }

  @Test
  void aFileThatTheCompactionDoesNotReadMakesItUnknown() {
    region.files.add("flushed since it was selected");
    assertEquals(UnfiledCells.UNKNOWN, oldestMs());
    files.addAll(region.files);
    assertEquals(NOW_MS, oldestMs());
  }

  @Test
  void cellsThatAFlushMovesMeanwhileAreFoundInOneOfTheTwoPlaces() {
    region.oldestEditMs = 5;
    Runnable flush = () -> {
      region.oldestEditMs = RegionView.EMPTY;
      region.files.add("new");
    };
    for (int read = 0; read < 4; read++) {
      region.oldestEditMs = 5;
      region.files.remove("new");
      int[] left = {read};
      region.beforeEachRead = () -> {
        if (left[0]-- == 0) {
          flush.run();
        }
      };
      long found = oldestMs();
      region.beforeEachRead = () -> {};
      assertEquals(true, found == UnfiledCells.UNKNOWN || found == 5, "flushed before read " + read + ": " + found);
    }
  }

  // What follows for tombstones.

  @Test
  void aTombstoneGoesAnHourAfterNoOlderWriterCanBeOutsideTheFiles() {
    long untilMs = NOW_MS - LIFETIME_MS - HOUR_MS;
    long bound = CellTableObserver.purgeBound(NOW_MS, LIFETIME_MS);
    assertEquals(untilMs, bound / Retention.POINTERS_PER_MS);
    assertEquals(FileCertificate.pointerAt(untilMs), bound);
  }

  @Test
  void whereThatCannotBeToldNoneGoes() {
    assertEquals(CellFilter.NO_PURGE, CellTableObserver.purgeBound(UnfiledCells.UNKNOWN, LIFETIME_MS));
    assertEquals(CellFilter.NO_PURGE, CellTableObserver.purgeBound(UnfiledCells.UNKNOWN, 0));
    assertEquals(CellFilter.NO_PURGE, CellTableObserver.purgeBound(NOW_MS, NOW_MS));
    assertEquals(CellFilter.NO_PURGE, CellTableObserver.purgeBound(NOW_MS, Long.MAX_VALUE));
  }
}
