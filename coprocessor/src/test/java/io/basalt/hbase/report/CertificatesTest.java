package io.basalt.hbase.report;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.rule.FilterPass;
import io.basalt.hbase.rule.FilterPass.FileCertificate;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import org.junit.jupiter.api.Test;

class CertificatesTest {
  private static final long NOW_MS = 1_700_000_000_000L;
  private static final long LATER_MS = NOW_MS + 60_000;

  private final Certificates certificates = new Certificates();

  private static Snapshot decided(long pointer, long... invalid) {
    return new SnapshotBytes().decided(pointer).invalid(invalid).build();
  }

  private void flush(String file, Snapshot snapshot, long nowMs) {
    certificates.flushBegins(snapshot);
    certificates.flushed(file, nowMs);
  }

  private void assertCertificate(String file, long decided, long newest) {
    FileCertificate certificate = certificates.of(file);
    assertNotNull(certificate, file);
    assertEquals(decided, certificate.decided, file);
    assertEquals(newest, certificate.newest, file);
  }

  @Test
  void aFlushIsCertifiedByItsSnapshotAndTheClock() {
    flush("a", decided(10), NOW_MS);
    assertCertificate("a", 10, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void aFlushWithoutASnapshotIsUndecided() {
    flush("a", null, NOW_MS);
    assertCertificate("a", FileCertificate.UNDECIDED, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void aFlushOfWhichNothingBeganIsUndecided() {
    certificates.flushed("a", NOW_MS);
    assertCertificate("a", FileCertificate.UNDECIDED, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void aFlushThatFailedLeavesNothingToTheNextOne() {
    certificates.flushBegins(decided(10));
    flush("a", null, NOW_MS);
    assertCertificate("a", FileCertificate.UNDECIDED, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void allFilesOfOneFlushAreCertified() {
    certificates.flushBegins(decided(10));
    certificates.flushed("a", NOW_MS);
    certificates.flushed("b", NOW_MS);
    assertCertificate("a", 10, WritePointers.lastIn(NOW_MS));
    assertCertificate("b", 10, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void writersAheadOfTheClockCountAsNewest() {
    long ahead = WritePointers.lastIn(LATER_MS);
    FilterPass pass = certificates.flushBegins(decided(10));
    pass.kept(ahead);
    pass.kept(5);
    certificates.flushed("a", NOW_MS);
    assertCertificate("a", 10, ahead);
    flush("b", new SnapshotBytes().decided(10).writePointer(ahead + 1).build(), NOW_MS);
    assertCertificate("b", 10, ahead + 1);
  }

  @Test
  void aFailedWriterThatHadToBeKeptIsNotDecided() {
    FilterPass pass = certificates.flushBegins(decided(100, 40, 60, 80));
    pass.keptUnjudged(60);
    pass.keptUnjudged(80);
    pass.keptUnjudged(70); // did not fail
    certificates.flushed("a", NOW_MS);
    assertCertificate("a", 59, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void aCompactionIsDecidedByItsSnapshotAndAsNewAsItsNewestInput() {
    flush("a", decided(10), NOW_MS);
    flush("b", decided(10), LATER_MS);
    Object request = new Object();
    certificates.compactionBegins(request, Arrays.asList("a", "b"), decided(50), LATER_MS + 5);
    certificates.compacted(request, "c", LATER_MS + 9);
    assertCertificate("c", 50, WritePointers.lastIn(LATER_MS));
  }

  @Test
  void whatHeldOfAllInputsHoldsOfTheOutputThoughTheSnapshotIsOlderOrMissing() {
    flush("a", decided(30), NOW_MS);
    flush("b", decided(20), NOW_MS);
    Object request = new Object();
    certificates.compactionBegins(request, Arrays.asList("a", "b"), null, NOW_MS);
    certificates.compacted(request, "c", NOW_MS);
    assertCertificate("c", 20, WritePointers.lastIn(NOW_MS));
    certificates.compactionBegins(request = new Object(), Arrays.asList("a", "c"), decided(5), NOW_MS);
    certificates.compacted(request, "d", NOW_MS);
    assertCertificate("d", 20, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void anInputOfUnknownOriginMakesTheOutputAsNewAsTheCompaction() {
    flush("a", decided(30), NOW_MS);
    Object request = new Object();
    certificates.compactionBegins(request, Arrays.asList("a", "bulk"), decided(40), LATER_MS);
    certificates.compacted(request, "c", LATER_MS + 5);
    assertCertificate("c", 40, WritePointers.lastIn(LATER_MS));
    certificates.compactionBegins(request = new Object(), Arrays.asList("a", "bulk"), null, LATER_MS);
    certificates.compacted(request, "d", LATER_MS);
    assertCertificate("d", FileCertificate.UNDECIDED, WritePointers.lastIn(LATER_MS));
  }

  @Test
  void twoCompactionsAtOnceAreToldApartByTheirRequest() {
    flush("a", decided(10), NOW_MS);
    flush("b", decided(20), LATER_MS);
    Object first = new Object();
    Object second = new Object();
    certificates.compactionBegins(first, Collections.singletonList("a"), decided(30), LATER_MS);
    certificates.compactionBegins(second, Collections.singletonList("b"), decided(40), LATER_MS);
    certificates.compacted(second, "d", LATER_MS);
    certificates.compacted(first, "c", LATER_MS);
    assertCertificate("c", 30, WritePointers.lastIn(NOW_MS));
    assertCertificate("d", 40, WritePointers.lastIn(LATER_MS));
  }

  /** HBase's requests are equal when they are of the same files. */
  @Test
  void requestsAreToldApartByIdentity() {
    String first = new String("request");
    String second = new String("request");
    certificates.compactionBegins(first, Collections.emptyList(), decided(30), NOW_MS);
    certificates.compactionBegins(second, Collections.emptyList(), decided(40), NOW_MS);
    certificates.compacted(second, "d", NOW_MS);
    assertEquals(40, certificates.of("d").decided);
  }

  @Test
  void aFlushAndACompactionAtOnceDoNotMixUp() {
    flush("a", decided(10), NOW_MS);
    Object request = new Object();
    certificates.flushBegins(decided(20));
    certificates.compactionBegins(request, Collections.singletonList("a"), decided(30), NOW_MS);
    certificates.flushed("b", LATER_MS);
    certificates.compacted(request, "c", LATER_MS);
    assertCertificate("b", 20, WritePointers.lastIn(LATER_MS));
    assertCertificate("c", 30, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void aCompactionOfWhichNothingBeganIsUndecided() {
    certificates.compacted(new Object(), "c", NOW_MS);
    assertCertificate("c", FileCertificate.UNDECIDED, WritePointers.lastIn(NOW_MS));
  }

  @Test
  void aFileIsForgottenOnceTheStoreHadItAndHasItNoMore() {
    flush("a", decided(10), NOW_MS);
    certificates.listed(new HashSet<>(Collections.singletonList("other")));
    assertNotNull(certificates.of("a")); // not yet part of the store
    certificates.listed(new HashSet<>(Collections.singletonList("a")));
    certificates.listed(new HashSet<>());
    assertNull(certificates.of("a"));
  }

  @Test
  void whatIsRecoveredDoesNotReplaceWhatIsKnown() {
    flush("a", decided(10), NOW_MS);
    certificates.recover("a", new FileCertificate(5, 6));
    certificates.recover("b", new FileCertificate(7, 8));
    assertCertificate("a", 10, WritePointers.lastIn(NOW_MS));
    assertCertificate("b", 7, 8);
  }

  @Test
  void everyCertificateIsAChange() {
    long before = certificates.changes();
    flush("a", decided(10), NOW_MS);
    long flushed = certificates.changes();
    certificates.recover("b", new FileCertificate(7, 8));
    assertTrue(before < flushed && flushed < certificates.changes());
  }

  @Test
  void theLastPointerOfAMillisecondIsBelowTheNextOnesFirst() {
    assertEquals(NOW_MS * 1_000_000 + 999_999, WritePointers.lastIn(NOW_MS));
    assertEquals(Long.MAX_VALUE, WritePointers.lastIn(Long.MAX_VALUE - 1));
  }
}
