package io.basalt.hbase.fence;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.format.PayloadKey;
import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.knowledge.Knowledge;
import io.basalt.hbase.rule.Rows;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.util.Bytes;
import org.junit.jupiter.api.Test;

class WriteGuardTest {
  private static final long NOW_MS = 1_700_000_000_000L;
  private static final long LIFETIME_MS = 90_000_000;
  private static final long YOUNG = (NOW_MS - 1_000) * 1_000_000;
  private static final long INVALID = YOUNG + 1;

  private final WriteGuard messages = WriteGuard.ofMessages();
  private final WriteGuard cells = WriteGuard.ofCells();
  private final WriteGuard payloads = WriteGuard.ofPayloads();
  private Knowledge known = Knowledge.NOTHING.withSnapshot(
      new SnapshotBytes().decided(INVALID).lifetimeMsMax(LIFETIME_MS).invalid(INVALID).build());

  private static Put message(long writer) {
    return message(Bytes.toBytes(writer));
  }

  private static Put message(byte[] t) {
    return Batches.put("\u0003shop:orders:").addColumn(Batches.FAMILY, Bytes.toBytes("t"), t);
  }

  private static byte[] payloadKey(long writer) {
    byte[] prefix = Bytes.toBytes("\u0003shop:orders:");
    return ByteBuffer.allocate(prefix.length + PayloadKey.SUFFIX_BYTES)
        .put(prefix).putInt(1).putLong(writer).putLong(NOW_MS).putShort((short) 0).array();
  }

  private static byte[] cellKey(long writer) {
    return Rows.cellKey("a", "c", 1, writer);
  }

  private static Put version(byte[] key) {
    return new Put(key).addColumn(Batches.FAMILY, Bytes.toBytes("c"), new byte[] {0});
  }

  private static Put payload(byte[] key) {
    return new Put(key).addColumn(Batches.FAMILY, Bytes.toBytes("p"), new byte[] {1});
  }

  private void assertPasses(WriteGuard guard, Mutation... mutations) {
    assertDoesNotThrow(() -> guard.check(Batches.of(mutations), known, NOW_MS));
  }

  private String assertRefused(WriteGuard guard, Mutation... mutations) {
    DoNotRetryIOException refused =
        assertThrows(DoNotRetryIOException.class, () -> guard.check(Batches.of(mutations), known, NOW_MS));
    assertTrue(refused.getMessage().contains("basalt refused"), refused.getMessage());
    return refused.getMessage();
  }

  private void assertToBeTriedAgain(WriteGuard guard, Mutation... mutations) {
    IOException later = assertThrows(IOException.class, () -> guard.check(Batches.of(mutations), known, NOW_MS));
    assertFalse(later instanceof DoNotRetryIOException);
  }

  @Test
  void aWriterInItsLifetimePasses() {
    assertPasses(messages, message(YOUNG));
    assertPasses(payloads, payload(payloadKey(YOUNG)));
  }

  @Test
  void aFailedWriterIsRefusedWithRowPointerAndReason() {
    String told = assertRefused(messages, message(INVALID));
    assertTrue(told.contains("shop:orders:") && told.contains("" + INVALID) && told.contains("failed"), told);
    assertRefused(payloads, payload(payloadKey(INVALID)));
  }

  @Test
  void aVersionOfACellIsRefusedByTheWriterAtTheEndOfItsKey() {
    long last = (NOW_MS - LIFETIME_MS + 1) * 1_000_000;
    assertPasses(cells, version(cellKey(YOUNG)), version(cellKey(last)), new Delete(cellKey(INVALID)));
    assertTrue(assertRefused(cells, version(cellKey(INVALID))).contains("failed"));
    assertRefused(cells, version(cellKey(YOUNG)), version(cellKey(last - 1)));
    assertPasses(cells, payload(payloadKey(INVALID)), Batches.put("row"));
  }

  @Test
  void theLongestAgeIsThatOfTheOldestWriterThatWasLetIn() {
    assertPasses(cells, version(cellKey((NOW_MS - 5_000) * 1_000_000)), version(cellKey(YOUNG)));
    assertRefused(cells, version(cellKey((NOW_MS - LIFETIME_MS) * 1_000_000)));
    assertEquals(5_000, cells.longestAgeMs());
    known = Knowledge.NOTHING.withoutSnapshotRow(); // then the longest life does not bound it
    assertPasses(cells, version(cellKey((NOW_MS - 2 * LIFETIME_MS) * 1_000_000)));
    assertEquals(2 * LIFETIME_MS, cells.longestAgeMs());
  }

  @Test
  void aWriterIsRefusedFromTheEndOfTheLongestLifeOn() {
    long last = (NOW_MS - LIFETIME_MS + 1) * 1_000_000;
    assertPasses(messages, message(last));
    assertRefused(messages, message(last - 1));
    assertPasses(payloads, payload(payloadKey(last)));
    assertRefused(payloads, payload(payloadKey(last - 1)));
  }

  @Test
  void aWriterAheadOfThisServersClockPasses() {
    assertPasses(messages, message((NOW_MS + 3_000_000) * 1_000_000));
  }

  @Test
  void rollBacksDeletesAndRowsOfNoTransactionPass() {
    assertPasses(messages, message(-INVALID), message(-1), message(Long.MIN_VALUE));
    assertPasses(messages, Batches.put("row"), new Delete(Bytes.toBytes("row")));
    assertPasses(payloads, new Delete(payloadKey(INVALID)));
  }

  @Test
  void aColumnTThatIsNoPointerPasses() {
    assertPasses(messages, message(new byte[7]), message(new byte[9]), message(new byte[0]));
  }

  @Test
  void aRowWithoutAPayloadKeyPassesInThePayloadTable() {
    byte[] key = payloadKey(INVALID);
    assertPasses(payloads, payload(java.util.Arrays.copyOf(key, key.length - 1)), payload(new byte[] {0}));
    assertPasses(payloads, payload(payloadKey(-INVALID)));
  }

  @Test
  void theWritersBoundRowIsRefusedLikeItsPayloads() {
    byte[] key = payloadKey(INVALID);
    java.util.Arrays.fill(key, key.length - 10, key.length - 2, (byte) 0xff);
    assertRefused(payloads, payload(key));
  }

  @Test
  void oneRefusedRowRefusesItsBatch() {
    assertRefused(messages, message(YOUNG), message(INVALID));
  }

  @Test
  void theHighestOfSeveralCellsCounts() {
    Put put = message(-YOUNG).addColumn(Batches.FAMILY, Bytes.toBytes("t"), 5L, Bytes.toBytes(INVALID));
    assertRefused(messages, put);
  }

  @Test
  void columnTOfAnotherFamilyIsNotTheWriter() {
    Put put = Batches.put("row").addColumn(Bytes.toBytes("x"), Bytes.toBytes("t"), Bytes.toBytes(INVALID));
    assertPasses(messages, put);
  }

  @Test
  void withoutASnapshotOnlyTheYoungPassAndTheOthersTryAgain() {
    known = Knowledge.NOTHING;
    assertPasses(messages, message(INVALID), message(-1), Batches.put("row"));
    long edge = (NOW_MS - WriteGuard.AGE_WITHOUT_SNAPSHOT_MS + 1) * 1_000_000;
    assertPasses(messages, message(edge));
    assertToBeTriedAgain(messages, message(edge - 1));
    assertToBeTriedAgain(payloads, payload(payloadKey(edge - 1)));
  }

  @Test
  void whereNoSnapshotWasEverPublishedNothingWasPrunedAndAllPasses() {
    known = Knowledge.NOTHING.withoutSnapshotRow();
    assertPasses(messages, message(1));
    assertPasses(payloads, payload(payloadKey(1)));
  }

  /** The prune rule allows an hour for clocks: without a snapshot a writer that may be pruned is never let in. */
  @Test
  void noWriterOldEnoughToBePrunedPassesWithoutASnapshot() {
    long hourMs = 3_600_000;
    assertTrue(WriteGuard.AGE_WITHOUT_SNAPSHOT_MS + Fence.SLOW_BATCH_MS < hourMs);
  }
}
