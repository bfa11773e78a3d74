package io.basalt.hbase.report;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.fence.Fence;
import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.knowledge.InstallationTables;
import io.basalt.hbase.rule.FilterPass.FileCertificate;
import java.io.IOException;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class RegionReporterTest {
  private static final long NOW_MS = 1_700_000_000_000L;
  private static final long HOUR_MS = 3_600_000;

  private static final class Rows extends InstallationTables {
    final Map<String, byte[]> rows = new HashMap<>();
    boolean fails;
    int puts;
    long putMs;

    Rows() {
      super(null, "basalt");
    }

    @Override
    public byte[] report(String name) throws IOException {
      failIfTold();
      return rows.get(name);
    }

    @Override
    public void putReport(String name, byte[] body) throws IOException {
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

    RegionReport reportOf(String name) throws CorruptionException {
      byte[] body = rows.get(name);
      return body == null ? null : RegionReport.decode(body);
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
      reporter.opened(view, certificates, new Fence(clock::get));
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
  private Snapshot snapshot;
  private final RegionReporter reporter = server("one", HOUR_MS);

  private RegionReporter server(String name, long intervalMs) {
    return new RegionReporter(rows, name + ",16020,1", intervalMs, clock::get);
  }

  private void tick(RegionReporter one) {
    one.tick(snapshot, Collections.singletonMap("kept", 3L));
  }

  private long decidedOf(String region, String file) throws CorruptionException {
    for (RegionReport.StoreFile one : rows.reportOf(region).files) {
      if (one.name.equals(file)) {
        return one.certificate.decided;
      }
    }
    throw new AssertionError("no file " + file);
  }

  @Test
  void anOpenedRegionIsReported() throws CorruptionException {
    snapshot = new SnapshotBytes().sequence(9).timeMs(NOW_MS - 5).decided(4).build();
    new Opened(reporter, "r1");
    tick(reporter);
    RegionReport report = rows.reportOf("r1");
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
    tick(reporter);
    tick(reporter);
    assertEquals(1, rows.puts);
    region.flush("a", 5);
    tick(reporter);
    tick(reporter);
    assertEquals(2, rows.puts);
  }

  @Test
  void aReportIsWrittenAgainAfterItsInterval() {
    RegionReporter eager = server("one", 0);
    new Opened(eager, "r1");
    tick(eager);
    tick(eager);
    assertEquals(2, rows.puts);
  }

  @Test
  void noReportIsWrittenWhileTheRegionIsFlushed() throws CorruptionException {
    Opened region = new Opened(reporter, "r1");
    region.view.flushing = true;
    tick(reporter);
    assertNull(rows.reportOf("r1"));
    region.view.flushing = false;
    tick(reporter);
    assertEquals(NOW_MS, rows.reportOf("r1").reportMs);
  }

  @Test
  void whatFailsIsCountedAndDoneLater() throws CorruptionException {
    new Opened(reporter, "r1");
    rows.fails = true;
    tick(reporter);
    assertEquals(1, reporter.failures());
    rows.fails = false;
    tick(reporter);
    assertEquals(1L, rows.reportOf("r1").counters.get("report.failures"));
  }

  @Test
  void oneRegionsFailureHoldsBackNoOther() throws CorruptionException {
    Opened bad = new Opened(reporter, "r1");
    new Opened(reporter, "r2");
    bad.view.beforeEachRead = () -> {
      throw new IllegalStateException("the store is gone");
    };
    tick(reporter);
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
    tick(reporter);
    assertEquals(2, rows.puts);
    rows.putMs = 0;
    tick(reporter);
    assertEquals(4, rows.rows.size());
  }

  @Test
  void aMovedRegionKeepsItsCertificates() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    tick(reporter);
    before.flush("b", 6); // within the close, after the last report
    before.close();
    tick(reporter);
    RegionReporter other = server("two", HOUR_MS);
    new Opened(other, "r1", "a", "b");
    tick(other);
    assertEquals("two,16020,1", rows.reportOf("r1").place.server);
    assertEquals(5, decidedOf("r1", "a"));
    assertEquals(6, decidedOf("r1", "b"));
  }

  @Test
  void aRegionOfACrashedServerKeepsWhatWasReportedAndNoMore() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    tick(reporter);
    before.flush("b", 6);
    RegionReporter other = server("two", HOUR_MS);
    Opened after = new Opened(other, "r1", "a", "b");
    tick(other);
    assertEquals(5, after.certificates.of("a").decided);
    assertNull(after.certificates.of("b"));
  }

  @Test
  void theFirstReportWaitsForCertificatesThatMayYetCome() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    tick(reporter);
    before.flush("b", 6);
    before.close(); // its last report is not written yet
    RegionReporter other = server("two", HOUR_MS);
    new Opened(other, "r1", "a", "b");
    tick(other);
    assertEquals("one,16020,1", rows.reportOf("r1").place.server);
    tick(reporter);
    tick(other);
    assertEquals("two,16020,1", rows.reportOf("r1").place.server);
    assertEquals(6, decidedOf("r1", "b"));
  }

  @Test
  void aRegionThatComesBackToItsServerRecoversFromMemoryAndReportsForItself() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    before.close();
    new Opened(reporter, "r1", "a");
    tick(reporter);
    assertEquals(5, decidedOf("r1", "a"));
    assertEquals(RegionReport.NONE, rows.reportOf("r1").oldestEditMs);
  }

  @Test
  void theLastReportOfAClosedRegionLetsNothingBePruned() throws CorruptionException {
    Opened region = new Opened(reporter, "r1");
    region.flush("a", 5);
    region.close();
    tick(reporter);
    assertEquals(0, rows.reportOf("r1").oldestEditMs);
    tick(reporter);
    assertEquals(1, rows.puts);
  }

  @Test
  void aLastReportThatCouldNotBeWrittenIsWrittenLater() throws CorruptionException {
    Opened region = new Opened(reporter, "r1");
    region.flush("a", 5);
    region.close();
    rows.fails = true;
    tick(reporter);
    rows.fails = false;
    tick(reporter);
    assertEquals(5, decidedOf("r1", "a"));
  }

  @Test
  void noReportIsMadeOfARegionThatIsBeingClosed() {
    Opened region = new Opened(reporter, "r1", "a");
    reporter.closing("r1");
    region.view.files.clear();
    tick(reporter);
    assertFalse(rows.rows.containsKey("r1"));
  }

  @Test
  void daughtersTakeTheCertificatesOfTheirParentsFiles() throws CorruptionException {
    Opened parent = new Opened(reporter, "dad");
    parent.flush("a", 5);
    parent.close();
    new Opened(reporter, "d1", "a.dad");
    tick(reporter);
    assertEquals(5, decidedOf("d1", "a.dad"));
    RegionReporter other = server("two", HOUR_MS); // knows it from the system table only
    new Opened(other, "d2", "a.dad");
    tick(other);
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
    tick(reporter);
    RegionReporter other = server("two", HOUR_MS);
    new Opened(other, "m1", "a.c1", "b.c2");
    tick(other);
    assertEquals(5, decidedOf("m1", "a.c1"));
    assertEquals(6, decidedOf("m1", "b.c2"));
  }

  @Test
  void aReferenceOfARegionThatMovedSinceTheSplitIsFoundInItsOwnReport() throws CorruptionException {
    rows.rows.clear();
    Opened before = new Opened(reporter, "d1", "a.dad");
    before.certificates.recover("a.dad", new FileCertificate(5, 6));
    tick(reporter);
    RegionReporter other = server("two", HOUR_MS);
    new Opened(other, "d1", "a.dad"); // the parent's report is gone
    tick(other);
    assertEquals(5, decidedOf("d1", "a.dad"));
  }

  @Test
  void aFileOfUnknownOriginIsNotRecoveredAsCertified() {
    new Opened(reporter, "r1", "bulk");
    RegionReporter eager = server("one", 0);
    Opened first = new Opened(eager, "r2", "bulk");
    first.certificates.recover("bulk", new FileCertificate(FileCertificate.UNDECIDED, 7));
    tick(eager);
    RegionReporter other = server("two", HOUR_MS);
    Opened after = new Opened(other, "r2", "bulk");
    tick(other);
    assertNull(after.certificates.of("bulk"));
  }

  @Test
  void aDamagedReportIsCountedAndCertifiesNothing() {
    rows.rows.put("r1", new byte[] {1, 2, 3});
    Opened region = new Opened(reporter, "r1", "a");
    tick(reporter);
    assertEquals(1, reporter.failures());
    assertNull(region.certificates.of("a"));
  }

  @Test
  void nothingIsReportedBeforeTheFormerReportsWereRead() throws CorruptionException {
    Opened before = new Opened(reporter, "r1");
    before.flush("a", 5);
    tick(reporter);
    RegionReporter other = server("two", 0);
    new Opened(other, "r1", "a");
    rows.fails = true;
    tick(other);
    rows.fails = false;
    assertEquals("one,16020,1", rows.reportOf("r1").place.server);
    tick(other);
    assertEquals(5, decidedOf("r1", "a"));
  }

  @ParameterizedTest
  @CsvSource({
    "0a1b, own, 0a1b",
    "0a1b_SeqId_17_, own, 0a1b_SeqId_17_",
    "0a1b.c0ffee, c0ffee, 0a1b",
    "basalt.message=c0ffee-0a1b, c0ffee, 0a1b",
    "ns=basalt.message=c0ffee-0a1b, c0ffee, 0a1b",
    "a-b.message=c0ffee-0a1b, c0ffee, 0a1b",
    "basalt.message=c0ffee-0a1b.decade, decade, basalt.message=c0ffee-0a1b",
  })
  void aFilesNameTellsWhereItsCellsWereWritten(String name, String region, String file) {
    RegionReporter.FileOrigin origin = RegionReporter.FileOrigin.of(name, "own");
    assertEquals(region, origin.region);
    assertEquals(file, origin.file);
  }
}
