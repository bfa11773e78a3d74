package io.basalt.hbase.report;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.basalt.hbase.fence.Batches;
import io.basalt.hbase.fence.Fence;
import java.io.IOException;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;
import org.junit.jupiter.api.Test;

/** How old what a compaction does not see can be. */
class LiveRegionTest {
  private static final long NOW_MS = 1_700_000_000_000L;
  private static final long HOUR_MS = 3_600_000;

  private final AtomicLong clockMs = new AtomicLong(NOW_MS);
  private final RegionFake region = new RegionFake("r1", "f1", "f2");
  private final Fence fence = new Fence(clockMs::get);
  private final Set<String> files = new TreeSet<>(region.files);

  private long oldestMs() {
    return region.oldestUnfiledMs(fence, files, NOW_MS);
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
    assertEquals(LiveRegion.UNKNOWN, oldestMs());
    region.flushing = false;
    region.closing = true;
    assertEquals(LiveRegion.UNKNOWN, oldestMs());
  }

  @Test
  void aFileThatTheCompactionDoesNotReadMakesItUnknown() {
    region.files.add("flushed since it was selected");
    assertEquals(LiveRegion.UNKNOWN, oldestMs());
    files.addAll(region.files);
    assertEquals(NOW_MS, oldestMs());
  }

  @Test
  void cellsThatAFlushMovesMeanwhileAreFoundInOneOfTheTwoPlaces() {
    region.oldestEditMs = 5;
    Runnable flush = () -> {
      region.oldestEditMs = LiveRegion.EMPTY;
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
      assertEquals(true, found == LiveRegion.UNKNOWN || found == 5, "flushed before read " + read + ": " + found);
    }
  }
}
