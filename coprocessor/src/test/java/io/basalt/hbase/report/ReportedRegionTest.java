package io.basalt.hbase.report;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.fence.Batches;
import io.basalt.hbase.fence.Fence;
import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.rule.FilterPass.FileCertificate;
import java.io.IOException;
import java.util.Collections;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;
import org.junit.jupiter.api.Test;

class ReportedRegionTest {
  private static final long START_MS = 1_700_000_000_000L;
  private static final String FILE = "aa";

  private final AtomicLong clock = new AtomicLong(START_MS);
  private final Fence fence = new Fence(clock::get);
  private final RegionFake view = new RegionFake("r1");
  private final Certificates certificates = new Certificates();
  private final ReportedRegion region = new ReportedRegion(view, certificates, fence, START_MS);

  private RegionReport report() throws IOException {
    return region.report(
        "server,1,2", clock.get(), RegionReport.SnapshotAge.ABSENT, Collections.singletonMap("kept", 1L));
  }

  /** One cell on its way: let in, in memory, taken out by a flush, in a file, its region closed. */
  private final class Journey {
    static final int STEPS = 5;
    final MiniBatchOperationInProgress<Mutation> batch = Batches.of(Batches.put("row"));
    int step;

    void advance() {
      switch (step++) {
        case 0:
          let();
          break;
        case 1:
          view.oldestEditMs = clock.get();
          fence.leave(batch);
          break;
        case 2:
          view.flushing = true;
          view.oldestEditMs = LiveRegion.EMPTY;
          break;
        case 3:
          view.files.add(FILE);
          view.flushing = false;
          break;
        default:
          view.closing = true;
          view.files.clear();
          break;
      }
    }

    private void let() {
      try {
        fence.enter(batch);
      } catch (IOException impossible) {
        throw new AssertionError(impossible);
      }
    }
  }

  /** Before the clock, before each of four reads, or after all of them. */
  private static final int MOMENTS = 6;

  /** Wherever the cell's steps fall between the reads of the report: it is somewhere in it, or there is no report. */
  @Test
  void aCellThatWasLetInBeforeAReportIsInItWheneverItMoves() throws IOException {
    int reports = 0;
    int[] moments = new int[Journey.STEPS];
    for (int code = 0; code < Math.pow(MOMENTS, Journey.STEPS - 1); code++) {
      int rest = code;
      boolean rises = true;
      for (int step = 1; step < Journey.STEPS; step++) {
        moments[step] = rest % (MOMENTS); // the first step is before all of them
        rest /= MOMENTS;
        rises &= moments[step] >= moments[step - 1];
      }
      if (rises) {
        ReportedRegionTest fresh = new ReportedRegionTest();
        reports += fresh.assertCovered(moments) ? 1 : 0;
      }
    }
    assertTrue(reports > 20, "some of the orders must come to a report: " + reports);
  }

  private boolean assertCovered(int[] moments) throws IOException {
    Journey cell = new Journey();
    cell.advance();
    AtomicInteger reads = new AtomicInteger();
    Runnable advance = () -> {
      while (cell.step < Journey.STEPS && moments[cell.step] <= reads.get()) {
        cell.advance();
      }
      reads.incrementAndGet();
    };
    advance.run(); // what happened before the clock was read
    view.beforeEachRead = advance;
    RegionReport report = report();
    if (report == null) {
      return false;
    }
    boolean inMemory = report.oldestEditMs != RegionReport.NONE && report.oldestEditMs <= START_MS;
    boolean inFile = report.files.stream().anyMatch(file -> file.name.equals(FILE));
    assertTrue(inMemory || inFile, "lost with steps before reads " + java.util.Arrays.toString(moments));
    return true;
  }

  @Test
  void aRegionWithNothingInMemorySaysSo() throws IOException {
    assertEquals(RegionReport.NONE, report().oldestEditMs);
  }

  @Test
  void theOldestOfMemoryAndFlightCounts() throws IOException {
    view.oldestEditMs = START_MS - 10;
    MiniBatchOperationInProgress<Mutation> batch = Batches.of(Batches.put("row"));
    fence.enter(batch);
    assertEquals(START_MS - 10, report().oldestEditMs);
    view.oldestEditMs = START_MS + 10;
    assertEquals(START_MS, report().oldestEditMs);
    fence.leave(batch);
    assertEquals(START_MS + 10, report().oldestEditMs);
  }

  @Test
  void aSlowBatchCountsFromWhenItWasLetInUntilItsCellsAreFlushed() throws IOException {
    MiniBatchOperationInProgress<Mutation> batch = Batches.of(Batches.put("row"));
    fence.enter(batch);
    view.oldestEditMs = clock.addAndGet(Fence.SLOW_BATCH_MS + 1);
    clock.incrementAndGet();
    fence.leave(batch);
    assertEquals(START_MS, report().oldestEditMs);
    view.flushing = true;
    view.oldestEditMs = LiveRegion.EMPTY;
    assertNull(report());
    assertNotNull(fence.slowBatch());
    view.flushing = false;
    view.oldestEditMs = clock.incrementAndGet(); // of a later batch
    assertEquals(clock.get(), report().oldestEditMs);
    assertNull(fence.slowBatch());
  }

  @Test
  void thereIsNoReportWhileAFlushIsUnderWay() throws IOException {
    view.flushing = true;
    assertNull(report());
    view.flushing = false;
    assertNotNull(report());
  }

  @Test
  void thereIsNoReportOnceTheRegionIsBeingClosed() throws IOException {
    region.close();
    assertNull(report());
  }

  @Test
  void aFileOfUnknownOriginIsReportedAsThat() throws IOException {
    view.files.add(FILE);
    view.modifiedMs = START_MS - 7_200_000;
    FileCertificate certificate = report().files.get(0).certificate;
    assertEquals(FileCertificate.UNDECIDED, certificate.decided);
    assertEquals(WritePointers.lastIn(START_MS - 3_600_000), certificate.newest);
    view.modifiedMs = 0; // nobody knows
    assertEquals(WritePointers.lastIn(START_MS), report().files.get(0).certificate.newest);
  }

  @Test
  void aCertifiedFileIsReportedWithItsCertificate() throws IOException {
    view.files.add(FILE);
    certificates.flushBegins(new SnapshotBytes().decided(17).build());
    certificates.flushed(FILE, START_MS);
    RegionReport.StoreFile file = report().files.get(0);
    assertEquals(17, file.certificate.decided);
    assertEquals(START_MS * 1_000_000 + 999_999, file.certificate.newest);
  }

  @Test
  void theLastReportKnowsAllFilesAndLetsNothingBePruned() {
    certificates.flushBegins(new SnapshotBytes().decided(17).build());
    certificates.flushed(FILE, START_MS); // of the flush within the close: nobody listed it
    RegionReport last = region.lastReport("server,1,2", START_MS);
    assertEquals(0, last.oldestEditMs);
    assertEquals(17, last.files.get(0).certificate.decided);
  }
}
