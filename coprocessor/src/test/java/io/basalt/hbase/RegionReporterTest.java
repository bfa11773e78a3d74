package io.basalt.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

class RegionReporterTest {
  private static final long NOW_MS = 1_700_000_000_000L;
  private static final long HOUR_MS = 3_600_000;

  private static final class Rows implements ReportStore {
    final Map<String, byte[]> rows = new HashMap<>();
    boolean fails;
    int puts;
    long putMs;

    @Override
    public byte[] get(String name) throws IOException {
      failIfTold();
      return rows.get(name);
    }

    @Override
    public void put(String name, byte[] body) throws IOException {
      failIfTold();
      puts++;
      try {
        Thread.sleep(putMs);
      } catch (InterruptedException stopped) {
        throw new IOException(stopped);
      }
      rows.put(name, body);
    }

    private void failIfTold() throws IOException {
      if (fails) {
        throw new IOException("the system table is not there");
      }
    }

    RegionReport report(String name) throws CorruptionException {
      byte[] body = rows.get(name);
      return body == null ? null : RegionReport.decode(body);
    }
  }

  private static final class Source implements SnapshotSource {
    Snapshot snapshot;

    @Override
    public Snapshot latest() {
      return snapshot;
    }

    @Override
    public boolean neverPublished() {
      return false;
    }
  }

  /** A region on one server, with what it takes for its files to be certified. */
  private final class Opened {
    final RegionFake view;
    final Certificates certificates = new Certificates();
    final RegionReporter reporter;

    Opened(RegionReporter reporter, String name, String... files) {
      this.view = new RegionFake(name, files);
      this.reporter = reporter;
      reporter.opened(view, certificates, new Fence((opened, timeout) -> 0, clock::get));
    }

    void flush(String file, long decided) {
      certificates.flushBegins(new SnapshotBytes().decided(decided).build());
      certificates.flushed(file, clock.get());
      view.files.add(file);
    }

    void close() {
      reporter.closing(view.encodedName);
      view.files.clear();
      reporter.closed(view.encodedName);
    }
  }

  private final AtomicLong clock = new AtomicLong(NOW_MS);
  private final Rows rows = new Rows();
  private final Source source = new Source();
  private final RegionReporter reporter = server("one", HOUR_MS);

  private RegionReporter server(String name, long intervalMs) {
    return new RegionReporter(
        rows, source, () -> Collections.singletonMap("kept", 3L), name + ",16020,1", intervalMs, clock::get);
  }

  private long decidedOf(String region, String file) throws CorruptionException {
    for (RegionReport.StoreFile one : rows.report(region).files) {
      if (one.name.equals(file)) {
        return one.certificate.decided;
      }
    }
    throw new AssertionError("no file " + file);
  }

  @Test
  void anOpenedRegionIsReported() throws CorruptionException {
    source.snapshot = new SnapshotBytes().sequence(9).timeMs(NOW_MS - 5).decided(4).build();
    new Opened(reporter, "r1");
    reporter.tick();
    RegionReport report = rows.report("r1");
    assertEquals("one,16020,1", report.place.server);
    assertEquals("basalt.message", report.place.table);
    assertEquals(NOW_MS, report.reportMs);
    assertEquals(1, report.snapshot.epoch);
    assertEquals(9, report.snapshot.sequence);
    assertEquals(NOW_MS - 5, report.snapshot.timeMs);
    assertEquals(3L, report.counters.get("kept"));
    assertEquals(0L, report.counters.get("files.unknown"));
    assertEquals(0L, report.counters.get("report.failures"));
  }

  @Test
  void aReportIsWrittenAgainOnChangeOnly() {
    Opened region = new Opened(reporter, "r1");
    reporter.tick();
    reporter.tick();
    assertEquals(1, rows.puts);
    region.flush("a", 5);
    reporter.tick();
    reporter.tick();
    assertEquals(2, rows.puts);
  }

  @Test
  void aReportIsWrittenAgainAfterItsInterval() {
    RegionReporter eager = server("one", 0);
    new Opened(eager, "r1");
    eager.tick();
    eager.tick();
    assertEquals(2, rows.puts);
  }

  @Test
  void noReportIsWrittenWhileTheRegionIsFlushed() throws CorruptionException {
    Opened region = new Opened(reporter, "r1");
    region.view.flushing = true;
    reporter.tick();
    assertNull(rows.report("r1"));
    region.view.flushing = false;
    reporter.tick();
    assertEquals(NOW_MS, rows.report("r1").reportMs);
  }

  @Test
  void whatFailsIsCountedAndDoneLater() throws CorruptionException {
    new Opened(reporter, "r1");
    rows.fails = true;
    reporter.tick();
    assertEquals(1, reporter.failures());
    rows.fails = false;
    reporter.tick();
    assertEquals(1L, rows.report("r1").counters.get("report.failures"));
  }

  @Test
  void oneRegionsFailureHoldsBackNoOther() throws CorruptionException {
    Opened bad = new Opened(reporter, "r1");
    new Opened(reporter, "r2");
    bad.view.beforeEachRead = () -> {
      throw new IllegalStateException("the store is gone");
    };
    reporter.tick();
    assertEquals(1, reporter.failures());
    assertTrue(rows.rows.containsKey("r2"));
  }

  /** Each turn ends after a while; who had none comes first in the next. */
  @Test
  void aSlowTableHoldsUpATurnAndLeavesNobodyOut() {
    for (int count = 0; count < 4; count++) {
      new Opened(reporter, "r" + count);
    }
    rows.putMs = 1_200;
    reporter.tick();
    assertEquals(2, rows.puts);
    rows.putMs = 0;
    reporter.tick();
    assertEquals(4, rows.rows.size());
  }

  @Test
  void aMovedRegionKeepsItsCertificates() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    reporter.tick();
    before.flush("b", 6); // within the close, after the last report
    before.close();
    reporter.tick();
    RegionReporter other = server("two", HOUR_MS);
    new Opened(other, "r1", "a", "b");
    other.tick();
    assertEquals("two,16020,1", rows.report("r1").place.server);
    assertEquals(5, decidedOf("r1", "a"));
    assertEquals(6, decidedOf("r1", "b"));
  }

  @Test
  void aRegionOfACrashedServerKeepsWhatWasReportedAndNoMore() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    reporter.tick();
    before.flush("b", 6);
    RegionReporter other = server("two", HOUR_MS);
    Opened after = new Opened(other, "r1", "a", "b");
    other.tick();
    assertEquals(5, after.certificates.of("a").decided);
    assertNull(after.certificates.of("b"));
  }

  @Test
  void theFirstReportWaitsForCertificatesThatMayYetCome() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    reporter.tick();
    before.flush("b", 6);
    before.close(); // its last report is not written yet
    RegionReporter other = server("two", HOUR_MS);
    new Opened(other, "r1", "a", "b");
    other.tick();
    assertEquals("one,16020,1", rows.report("r1").place.server);
    reporter.tick();
    other.tick();
    assertEquals("two,16020,1", rows.report("r1").place.server);
    assertEquals(6, decidedOf("r1", "b"));
  }

  @Test
  void aRegionThatComesBackToItsServerRecoversFromMemoryAndReportsForItself() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    before.close();
    new Opened(reporter, "r1", "a");
    reporter.tick();
    assertEquals(5, decidedOf("r1", "a"));
    assertEquals(RegionReport.NONE, rows.report("r1").oldestEditMs);
  }

  @Test
  void theLastReportOfAClosedRegionLetsNothingBePruned() throws CorruptionException {
    Opened region = new Opened(reporter, "r1");
    region.flush("a", 5);
    region.close();
    reporter.tick();
    assertEquals(0, rows.report("r1").oldestEditMs);
    reporter.tick();
    assertEquals(1, rows.puts);
  }

  @Test
  void aLastReportThatCouldNotBeWrittenIsWrittenLater() throws CorruptionException {
    Opened region = new Opened(reporter, "r1");
    region.flush("a", 5);
    region.close();
    rows.fails = true;
    reporter.tick();
    rows.fails = false;
    reporter.tick();
    assertEquals(5, decidedOf("r1", "a"));
  }

  @Test
  void noReportIsMadeOfARegionThatIsBeingClosed() {
    Opened region = new Opened(reporter, "r1", "a");
    reporter.closing("r1");
    region.view.files.clear();
    reporter.tick();
    assertFalse(rows.rows.containsKey("r1"));
  }

  @Test
  void daughtersTakeTheCertificatesOfTheirParentsFiles() throws CorruptionException {
    Opened parent = new Opened(reporter, "dad");
    parent.flush("a", 5);
    parent.close();
    new Opened(reporter, "d1", "a.dad");
    reporter.tick();
    assertEquals(5, decidedOf("d1", "a.dad"));
    RegionReporter other = server("two", HOUR_MS); // knows it from the system table only
    new Opened(other, "d2", "a.dad");
    other.tick();
    assertEquals(5, decidedOf("d2", "a.dad"));
  }

  @Test
  void aMergedRegionTakesTheCertificatesOfBothParents() throws CorruptionException {
    Opened left = new Opened(reporter, "c1");
    left.flush("a", 5);
    Opened right = new Opened(reporter, "c2");
    right.flush("b", 6);
    left.close();
    right.close();
    reporter.tick();
    RegionReporter other = server("two", HOUR_MS);
    new Opened(other, "m1", "a.c1", "b.c2");
    other.tick();
    assertEquals(5, decidedOf("m1", "a.c1"));
    assertEquals(6, decidedOf("m1", "b.c2"));
  }

  @Test
  void aReferenceOfARegionThatMovedSinceTheSplitIsFoundInItsOwnReport() throws CorruptionException {
    rows.rows.clear();
    Opened before = new Opened(reporter, "d1", "a.dad");
    before.certificates.recover("a.dad", new FileCertificate(5, 6));
    reporter.tick();
    RegionReporter other = server("two", HOUR_MS);
    new Opened(other, "d1", "a.dad"); // the parent's report is gone
    other.tick();
    assertEquals(5, decidedOf("d1", "a.dad"));
  }

  @Test
  void aFileOfUnknownOriginIsNotRecoveredAsCertified() {
    new Opened(reporter, "r1", "bulk");
    RegionReporter eager = server("one", 0);
    Opened first = new Opened(eager, "r2", "bulk");
    first.certificates.recover("bulk", new FileCertificate(FileCertificate.UNDECIDED, 7));
    eager.tick();
    RegionReporter other = server("two", HOUR_MS);
    Opened after = new Opened(other, "r2", "bulk");
    other.tick();
    assertNull(after.certificates.of("bulk"));
  }

  @Test
  void aDamagedReportIsCountedAndCertifiesNothing() {
    rows.rows.put("r1", new byte[] {1, 2, 3});
    Opened region = new Opened(reporter, "r1", "a");
    reporter.tick();
    assertEquals(1, reporter.failures());
    assertNull(region.certificates.of("a"));
  }

  @Test
  void nothingIsReportedBeforeTheFormerReportsWereRead() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    reporter.tick();
    RegionReporter other = server("two", 0);
    new Opened(other, "r1", "a");
    rows.fails = true;
    other.tick();
    rows.fails = false;
    assertEquals("one,16020,1", rows.report("r1").place.server);
    other.tick();
    assertEquals(5, decidedOf("r1", "a"));
  }
}
