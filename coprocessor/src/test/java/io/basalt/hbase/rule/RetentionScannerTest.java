package io.basalt.hbase.rule;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.format.TopicRule;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.ExtendedCell;
import org.apache.hadoop.hbase.regionserver.ScannerContext;
import org.apache.hadoop.hbase.util.Bytes;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What a flush or compaction writes of its rows, and of the parts of rows that it sees. */
class RetentionScannerTest {
  private static final long FAILED = 40;
  private static final long GOOD = 41;

  private final Counters counters = new Counters();
  private FilterPass pass = new FilterPass(new SnapshotBytes().decided(100).invalid(FAILED).build());
  private Map<String, TopicRule> rules = Rows.rules(Rows.DROPPING);

  private List<Cell> pass(boolean allFiles, List<Cell> row) throws IOException {
    return scan(new MessageFilter(rules, pass, Rows.NOW_MS, allFiles, counters), Collections.singletonList(row));
  }

  private static List<Cell> scan(RowFilter filter, List<List<Cell>> rows) throws IOException {
    List<Cell> written = new ArrayList<>();
    try (RetentionScanner scanner = new RetentionScanner(new Rows.Inner(rows), filter)) {
      List<Cell> answer = new ArrayList<>();
      boolean hasMore = true;
      while (hasMore) {
        hasMore = scanner.next(answer, ScannerContext.newBuilder().setBatchLimit(1).build());
        written.addAll(answer);
        answer.clear();
      }
    }
    return written;
  }

  private void assertKept(boolean allFiles, List<Cell> row) throws IOException {
    List<Cell> written = pass(allFiles, new ArrayList<>(row));
    assertEquals(row.size(), written.size());
    for (int index = 0; index < row.size(); index++) {
      assertSame(row.get(index), written.get(index));
    }
  }

  private void assertDropped(boolean allFiles, List<Cell> row) throws IOException {
    assertEquals(Collections.emptyList(), pass(allFiles, row));
  }

  // Whole rows, as one flush, one minor and one major compaction see them.

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void aLivingRowIsPassedOnAsItIs(boolean allFiles) throws IOException {
    byte[] key = Rows.liveKey();
    assertKept(allFiles, Rows.row(Rows.batch(key)));
    assertKept(allFiles, Rows.row(Rows.batch(key), Rows.writer(key, GOOD), Rows.expiry(key, Rows.NOW_MS + 1)));
    assertKept(allFiles, Rows.row(Rows.reference(key), Rows.writer(key, GOOD)));
    assertEquals(3, counters.value(Count.ROWS_KEPT));
    assertEquals(6, counters.value(Count.CELLS_KEPT));
    assertEquals(0, counters.value(Count.CELLS_DROPPED));
    assertEquals(100, pass.decided());
    assertEquals(GOOD, pass.newestSeen());
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void expiredOldAndFailedRowsAreDroppedBySeeingThemWhole(boolean allFiles) throws IOException {
    byte[] live = Rows.liveKey();
    byte[] expired = Rows.expiredKey();
    byte[] old = Rows.messageKey(Rows.TOPIC, 1, Rows.NOW_MS);
    assertDropped(allFiles, Rows.row(Rows.batch(expired), Rows.writer(expired, GOOD)));
    assertDropped(allFiles, Rows.row(Rows.batch(live), Rows.expiry(live, Rows.NOW_MS)));
    assertDropped(allFiles, Rows.row(Rows.batch(old)));
    assertDropped(allFiles, Rows.row(Rows.batch(live), Rows.writer(live, FAILED)));
    assertDropped(allFiles, Rows.row(Rows.reference(live), Rows.writer(live, FAILED)));
    assertEquals(2, counters.value(Count.ROWS_DROPPED_EXPIRED));
    assertEquals(1, counters.value(Count.ROWS_DROPPED_OLD_GENERATION));
    assertEquals(2, counters.value(Count.ROWS_DROPPED_INVALID));
    assertEquals(9, counters.value(Count.CELLS_DROPPED));
    assertEquals(100, pass.decided());
    assertEquals(0, pass.newestSeen());
  }

  @Test
  void retainNegatesTheWriterInANewCellWithTheOldOnesPlace() throws IOException {
    rules = Rows.rules(Rows.RETAINING);
    byte[] key = Rows.liveKey();
    Cell batch = Rows.batch(key);
    Cell writer = Rows.writer(key, FAILED);
    byte[] before = CellUtil.cloneValue(writer);
    List<Cell> written = pass(false, Rows.row(batch, writer));
    assertSame(batch, written.get(0));
    Cell negated = written.get(1);
    assertNotSame(writer, negated);
    assertArrayEquals(Bytes.toBytes(-FAILED), CellUtil.cloneValue(negated));
    assertArrayEquals(before, CellUtil.cloneValue(writer)); // the old array is shared
    assertTrue(CellUtil.matchingRowColumn(writer, negated));
    assertEquals(writer.getTimestamp(), negated.getTimestamp());
    assertEquals(writer.getType(), negated.getType());
    assertEquals(((ExtendedCell) writer).getSequenceId(), ((ExtendedCell) negated).getSequenceId());
    assertEquals(1, counters.value(Count.ROWS_ROLLED_BACK));
    assertEquals(100, pass.decided());
    assertKept(true, written);
  }

  // Parts of rows, and rows that were rolled back.

  @Test
  void aRollBackIsDroppedWithItsRowByACompactionOfAllFilesOnly() throws IOException {
    byte[] live = Rows.liveKey();
    byte[] expired = Rows.expiredKey();
    for (byte[] key : Arrays.asList(live, expired)) {
      // An older file may hold batch and writer a second time, from a put that was sent twice: it would be seen again.
      assertKept(false, Rows.row(Rows.batch(key), Rows.writer(key, -GOOD)));
      assertKept(false, Rows.row(Rows.batch(key), Rows.writer(key, -GOOD), Rows.writer(key, GOOD)));
      assertDropped(true, Rows.row(Rows.batch(key), Rows.writer(key, -GOOD)));
    }
    assertEquals(4, counters.value(Count.ROWS_GUARDED));
    assertEquals(1, counters.value(Count.ROWS_DROPPED_ROLLED_BACK));
    assertEquals(1, counters.value(Count.ROWS_DROPPED_EXPIRED));
  }

  @Test
  void aRollBackAloneIsKeptUntilACompactionOfAllFilesFindsThatItsRowCanGo() throws IOException {
    byte[] live = Rows.liveKey();
    byte[] expired = Rows.expiredKey();
    assertKept(false, Rows.row(Rows.writer(live, -GOOD)));
    assertKept(false, Rows.row(Rows.writer(expired, -GOOD)));
    assertKept(true, Rows.row(Rows.writer(live, -GOOD)));
    assertDropped(true, Rows.row(Rows.writer(expired, -GOOD)));
    assertEquals(4, counters.value(Count.ROWS_IN_PARTS));
  }

  @Test
  void theOldWriterWithoutItsNewerRollBackIsJudgedAsItStands() throws IOException {
    byte[] key = Rows.liveKey(); // the roll back lies in another file, where it stays
    assertKept(false, Rows.row(Rows.batch(key), Rows.writer(key, GOOD)));
    assertDropped(false, Rows.row(Rows.batch(key), Rows.writer(key, FAILED)));
  }

  @Test
  void aWriterWithoutItsBatchIsDroppedByItsKeyAloneAndTheFileNotVouchedForBefore() throws IOException {
    byte[] key = Rows.liveKey(); // a batch elsewhere would become a message of no transaction
    assertKept(false, Rows.row(Rows.writer(key, FAILED)));
    assertEquals(FAILED - 1, pass.decided());
    byte[] gone = Rows.expiredKey();
    assertKept(false, Rows.row(Rows.writer(gone, GOOD)));
    assertDropped(true, Rows.row(Rows.writer(gone, GOOD)));
  }

  @Test
  void deleteMarkersPassWhateverBecomesOfTheirRow() throws IOException {
    byte[] key = Rows.expiredKey();
    Cell marker = Rows.marker(key);
    assertKept(false, Rows.row(marker));
    List<Cell> written = pass(false, Rows.row(marker, Rows.batch(key), Rows.writer(key, GOOD)));
    assertEquals(1, written.size());
    assertSame(marker, written.get(0));
    assertSame(marker, pass(true, Rows.row(marker, Rows.batch(key))).get(0));
  }

  @Test
  void ofSeveralVersionsTheNewestCounts() throws IOException {
    byte[] key = Rows.liveKey();
    assertKept(true, Rows.row(Rows.batch(key), Rows.writer(key, GOOD), Rows.writer(key, FAILED)));
    assertDropped(true, Rows.row(Rows.batch(key), Rows.writer(key, FAILED), Rows.writer(key, GOOD)));
  }

  // What is unknown is kept.

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void whatCannotBeReadIsKeptAndCounted(boolean allFiles) throws IOException {
    byte[] key = Rows.expiredKey();
    Cell batch = Rows.batch(key);
    List<List<Cell>> unreadable = new ArrayList<>();
    for (int length : new int[] {0, 7, 9}) {
      unreadable.add(Rows.row(batch, Rows.cell(key, "t", new byte[length], 10)));
      unreadable.add(Rows.row(batch, Rows.cell(key, "x", new byte[length], 10)));
    }
    unreadable.add(Rows.row(batch, Rows.writer(key, 0)));
    unreadable.add(Rows.row(batch, Rows.writer(key, Long.MIN_VALUE)));
    unreadable.add(Rows.row(batch, Rows.expiry(key, -1)));
    unreadable.add(Rows.row(batch, Rows.reference(key)));
    unreadable.add(Rows.row(Rows.cell(key, "r", new byte[23], 10)));
    unreadable.add(Rows.row(Rows.batch(Arrays.copyOf(key, key.length - 1))));
    unreadable.add(Rows.row(Rows.batch(Arrays.copyOf(key, key.length + 1))));
    unreadable.add(Rows.row(Rows.batch(new byte[] {1})));
    unreadable.add(Rows.row(Rows.batch(new byte[300])));
    for (List<Cell> row : unreadable) {
      assertKept(allFiles, row);
    }
    assertEquals(unreadable.size(), counters.value(Count.ROWS_UNREADABLE));
    assertEquals(100, pass.decided());
  }

  @Test
  void anUnreadableRowOfAFailedWriterIsKeptAndTheFileNotVouchedFor() throws IOException {
    byte[] key = Rows.liveKey();
    assertKept(true, Rows.row(Rows.batch(key), Rows.reference(key), Rows.writer(key, FAILED)));
    assertEquals(FAILED - 1, pass.decided());
  }

  @Test
  void aRowOfAnUnknownTopicIsKeptAndTheFileNotVouchedForIfItsWriterFailed() throws IOException {
    rules = Collections.emptyMap();
    byte[] key = Rows.expiredKey();
    assertKept(true, Rows.row(Rows.batch(key), Rows.writer(key, GOOD)));
    assertEquals(100, pass.decided());
    assertKept(true, Rows.row(Rows.batch(key), Rows.writer(key, FAILED)));
    assertEquals(FAILED - 1, pass.decided());
    assertEquals(2, counters.value(Count.ROWS_UNKNOWN_TOPIC));
  }

  @Test
  void withoutASnapshotNoWriterHasFailed() throws IOException {
    pass = new FilterPass(null);
    byte[] key = Rows.liveKey();
    assertKept(true, Rows.row(Rows.batch(key), Rows.writer(key, FAILED)));
    assertDropped(true, Rows.row(Rows.batch(Rows.expiredKey()), Rows.writer(Rows.expiredKey(), FAILED)));
    assertEquals(1, counters.value(Count.ROWS_NO_SNAPSHOT));
    assertEquals(FilterPass.FileCertificate.UNDECIDED, pass.decided());
  }

  @Test
  void anErrorWhereNoneShouldBeKeepsTheRowAndVouchesForNothing() throws IOException {
    assertKept(true, Rows.row(Rows.batch(Rows.liveKey()), null));
    assertEquals(1, counters.value(Count.HOOK_FAILURES));
    assertEquals(FilterPass.FileCertificate.UNDECIDED, pass.decided());
  }

  @Test
  void severalRowsInOneAnswerAreKept() throws IOException {
    assertKept(true, Rows.row(Rows.batch(Rows.expiredKey()), Rows.batch(Rows.messageKey(Rows.TOPIC, 1, 5))));
    assertEquals(FilterPass.FileCertificate.UNDECIDED, pass.decided());
  }

  // Many rows.

  @Test
  void eachRowGetsTheRuleOfItsOwnTopicAndAnswersCanBeEmpty() throws IOException {
    rules = new java.util.HashMap<>(Rows.rules(Rows.DROPPING));
    rules.put("shop:orders-2:", Rows.RETAINING);
    rules.put("shop:order:", Rows.DELETED);
    List<List<Cell>> rows = new ArrayList<>();
    List<Cell> expected = new ArrayList<>();
    for (String topic : new String[] {"shop:order:", "shop:orders-2:", "shop:orders:", "shop:unknown:", "shop:orders:"}) {
      byte[] key = Rows.messageKey(topic, 2, Rows.NOW_MS);
      for (Cell writer : new Cell[] {Rows.writer(key, GOOD), Rows.writer(key, -GOOD)}) {
        Cell batch = Rows.batch(key);
        rows.add(Rows.row(batch, writer));
        boolean isRolledBack = writer.getTimestamp() == 20;
        if (topic.endsWith("2:") || topic.endsWith("unknown:") || topic.endsWith("orders:") && !isRolledBack) {
          expected.addAll(Arrays.asList(batch, writer));
        }
      }
    }
    List<Cell> written = scan(new MessageFilter(rules, pass, Rows.NOW_MS, true, counters), rows);
    assertEquals(expected.size(), written.size());
    for (int index = 0; index < expected.size(); index++) {
      assertSame(expected.get(index), written.get(index));
    }
  }

  @Test
  void cellsThatTheCallerAlreadyHasAreLeftAlone() throws IOException {
    byte[] key = Rows.expiredKey();
    Cell already = Rows.batch(key);
    List<Cell> answer = Rows.row(already);
    Rows.Inner inner = new Rows.Inner(Collections.singletonList(Rows.row(Rows.batch(key))));
    RetentionScanner scanner = new RetentionScanner(inner, new MessageFilter(rules, pass, Rows.NOW_MS, true, counters));
    assertFalse(scanner.next(answer));
    assertEquals(1, answer.size());
    assertSame(already, answer.get(0));
    scanner.shipped();
    scanner.close();
    assertEquals(1, inner.shipped);
    assertEquals(1, inner.closed);
  }

  // Payload rows.

  private List<Cell> payload(byte[] key) throws IOException {
    List<List<Cell>> rows = Collections.singletonList(Rows.row(Rows.batch(key)));
    return scan(new PayloadFilter(rules, pass, Rows.NOW_MS, counters), rows);
  }

  @Test
  void aPayloadRowIsJudgedByItsKey() throws IOException {
    pass = new FilterPass(new SnapshotBytes().decided(100).lifetimeMsMax(500_000).invalid(FAILED).build());
    assertEquals(1, payload(Rows.payloadKey(2, GOOD, 500_001)).size());
    assertEquals(0, payload(Rows.payloadKey(2, GOOD, 500_000)).size());
    assertEquals(0, payload(Rows.payloadKey(1, GOOD, Rows.NOW_MS)).size());
    assertEquals(0, payload(Rows.payloadKey(2, FAILED, Rows.NOW_MS)).size());
    assertEquals(1, payload(new byte[] {1, 2}).size());
    assertEquals(100, pass.decided());
    rules = Rows.rules(Rows.RETAINING);
    assertEquals(1, payload(Rows.payloadKey(2, FAILED, Rows.NOW_MS)).size());
    assertEquals(100, pass.decided());
    rules = Collections.emptyMap();
    assertEquals(1, payload(Rows.payloadKey(2, FAILED, Rows.NOW_MS)).size());
    assertEquals(FAILED - 1, pass.decided());
  }

  /** A leader fences each region by a delete of a row that nobody writes: key 00, which names no topic. */
  @Test
  void aDeleteMarkerInThePayloadTableIsPassedOnAndNotCountedAsARow() throws IOException {
    Cell fence = Rows.marker(new byte[] {0});
    PayloadFilter filter = new PayloadFilter(rules, pass, Rows.NOW_MS, counters);
    assertEquals(Collections.singletonList(fence), scan(filter, Collections.singletonList(Rows.row(fence))));
    assertEquals(0, counters.value(Count.ROWS_UNREADABLE));
    assertEquals(0, counters.value(Count.ROWS_KEPT));
    Cell marker = Rows.marker(Rows.payloadKey(1, GOOD, 1));
    List<Cell> row = Rows.row(marker, Rows.batch(Rows.payloadKey(1, GOOD, 1)));
    filter = new PayloadFilter(rules, pass, Rows.NOW_MS, counters);
    assertEquals(Collections.singletonList(marker), scan(filter, Collections.singletonList(row)));
    assertEquals(1, counters.value(Count.ROWS_DROPPED_OLD_GENERATION));
  }

  @Test
  void withoutASnapshotAPayloadRowDoesNotExpireForItsWritersLifeIsUnknown() throws IOException {
    pass = new FilterPass(null);
    assertEquals(1, payload(Rows.payloadKey(2, GOOD, 1)).size());
    assertEquals(0, payload(Rows.payloadKey(1, GOOD, 1)).size());
  }
}
