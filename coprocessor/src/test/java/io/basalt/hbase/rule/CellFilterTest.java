package io.basalt.hbase.rule;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.basalt.hbase.format.CellKey;
import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.format.TopicPrefix;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.format.TopicRule.OnInvalid;
import io.basalt.hbase.format.Vectors;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.ByteBufferKeyValue;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.KeyValue;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Which versions of cells a flush or compaction writes, and which tombstones. */
class CellFilterTest {
  private static final long BOUND = 100;
  private static final long FAILED = 90;

  private final Counters counters = new Counters();
  private final Map<String, TopicRule> rules =
      new HashMap<>(Collections.singletonMap(Rows.TABLE, new TopicRule(2, Long.MAX_VALUE, OnInvalid.DROP)));
  private FilterPass pass =
      new FilterPass(new SnapshotBytes().decided(200).upperBound(BOUND).invalid(FAILED).build());

  /** What is left of these rows: each as its cell's row and its writer. */
  @SafeVarargs
  private final List<String> left(long purgeBound, List<Cell>... rows) throws IOException {
    List<List<Cell>> all = new ArrayList<>();
    for (List<Cell> row : rows) {
      all.add(row);
    }
    return names(scan(new CellFilter(rules, pass, Rows.NOW_MS, purgeBound, counters), all));
  }

  private static List<Cell> scan(RowFilter filter, List<List<Cell>> rows) throws IOException {
    List<Cell> written = new ArrayList<>();
    try (RetentionScanner scanner = new RetentionScanner(new Rows.Inner(rows), filter)) {
      List<Cell> answer = new ArrayList<>(); // one row, or none: callers see a batch for each
      boolean hasMore = true;
      while (hasMore) {
        hasMore = scanner.next(answer);
        written.addAll(answer);
        answer.clear();
      }
    }
    return written;
  }

  private static List<String> names(List<Cell> cells) {
    List<String> names = new ArrayList<>();
    for (Cell cell : cells) {
      byte[] key = CellUtil.cloneRow(cell);
      names.add((char) key[1 + Rows.TABLE.length() + 4] + ":" + CellKey.writePointer(key, key.length));
    }
    return names;
  }

  // Superseded versions, in any scan.

  @Test
  void ofVersionsThatEverybodySeesTheNewestStays() throws IOException {
    assertEquals(
        Arrays.asList("a:80", "b:70"),
        left(CellFilter.NO_PURGE, Rows.version("a", 80), Rows.version("a", 70), Rows.version("a", 60),
            Rows.version("b", 70), Rows.version("b", 1)));
    assertEquals(3, counters.value(Count.ROWS_DROPPED_SUPERSEDED));
    assertEquals(2, counters.value(Count.ROWS_KEPT));
  }

  @Test
  void whatAReaderMayNeedStaysUpToTheBoundOfTheOldestOne() throws IOException {
    // Version 100 is the one that readers at the bound see; 101 and 150 are too new for some of them.
    assertEquals(
        Arrays.asList("a:150", "a:101", "a:100"),
        left(CellFilter.NO_PURGE, Rows.version("a", 150), Rows.version("a", 101), Rows.version("a", 100),
            Rows.version("a", 99)));
    assertEquals(
        Arrays.asList("a:101", "a:99"),
        left(CellFilter.NO_PURGE, Rows.version("a", 101), Rows.version("a", 99)));
  }

  @Test
  void aFailedWritersVersionGoesAndHidesNothing() throws IOException {
    assertEquals(
        Collections.singletonList("a:80"),
        left(CellFilter.NO_PURGE, Rows.version("a", FAILED), Rows.version("a", 80), Rows.version("a", 70)));
    assertEquals(1, counters.value(Count.ROWS_DROPPED_INVALID));
    assertEquals(200, pass.decided());
    assertEquals(80, pass.newestSeen());
  }

  @Test
  void aTombstoneHidesWhatIsOlderAndStays() throws IOException {
    assertEquals(
        Collections.singletonList("a:80"),
        left(CellFilter.NO_PURGE, Rows.tombstone("a", 80), Rows.version("a", 70), Rows.tombstone("a", 60)));
  }

  @Test
  void ofTwoCellsInOneRowNeitherHidesTheOther() throws IOException {
    List<Cell> first = Rows.row(Rows.cell(Rows.cellKey("a", "c", 2, 80), "c", new byte[] {1}, 10));
    List<Cell> second = Rows.row(Rows.cell(Rows.cellKey("a", "d", 2, 70), "c", new byte[] {1}, 10));
    assertEquals(Arrays.asList("a:80", "a:70"), left(CellFilter.NO_PURGE, first, second));
  }

  @Test
  void aNameThatContinuesAnotherIsAnotherCell() throws IOException {
    assertEquals(
        Arrays.asList("a:80", "a:70"), left(CellFilter.NO_PURGE, Rows.version("a", 80), Rows.version("ab", 70)));
  }

  @Test
  void theTableOfAnotherNameOrGenerationIsAnotherRun() throws IOException {
    List<Cell> old = Rows.row(Rows.cell(Rows.cellKey("a", "c", 1, 90), "c", new byte[] {1}, 10));
    List<Cell> next = Rows.row(Rows.cell(Rows.cellKey("a", "c", 3, 50), "c", new byte[] {1}, 10));
    assertEquals(
        Arrays.asList("a:80", "a:50"), left(CellFilter.NO_PURGE, old, Rows.version("a", 80), next));
    assertEquals(1, counters.value(Count.ROWS_DROPPED_OLD_GENERATION));
  }

  // Tombstones, when they may go.

  @Test
  void aTombstoneGoesWithWhatItHidUpToThePurgeBound() throws IOException {
    assertEquals(
        Collections.emptyList(),
        left(80, Rows.tombstone("a", 80), Rows.version("a", 70), Rows.tombstone("a", 60)));
    assertEquals(1, counters.value(Count.ROWS_DROPPED_DELETED));
    assertEquals(2, counters.value(Count.ROWS_DROPPED_SUPERSEDED));
    assertEquals(
        Collections.singletonList("a:81"), left(80, Rows.tombstone("a", 81), Rows.version("a", 70)));
    assertEquals(
        Collections.emptyList(), left(BOUND, Rows.tombstone("a", BOUND), Rows.version("a", 70)));
  }

  @Test
  void aTombstoneUnderANewerVersionIsSupersededLikeAnyOther() throws IOException {
    assertEquals(Collections.singletonList("a:80"), left(80, Rows.version("a", 80), Rows.tombstone("a", 70)));
  }

  @Test
  void aTombstoneThatAReaderDoesNotSeeYetStays() throws IOException {
    assertEquals(
        Arrays.asList("a:101", "a:70"), left(Long.MAX_VALUE, Rows.tombstone("a", 101), Rows.version("a", 70)));
  }

  // What is not known.

  @Test
  void withoutASnapshotEverythingStaysAndTheFileIsNotVouchedFor() throws IOException {
    pass = new FilterPass(null);
    assertEquals(
        Arrays.asList("a:80", "a:70"),
        left(Long.MAX_VALUE, Rows.tombstone("a", 80), Rows.version("a", 70)));
    assertEquals(2, counters.value(Count.ROWS_NO_SNAPSHOT));
    assertEquals(FilterPass.FileCertificate.UNDECIDED, pass.decided());
  }

  @Test
  void ofAnUnknownTableEverythingStaysAndAFailedWriterIsNotVouchedFor() throws IOException {
    rules.clear();
    rules.put("shop:orders:", new TopicRule(2, 1, OnInvalid.DROP)); // a topic of the same name says nothing of it
    assertEquals(
        Arrays.asList("a:90", "a:70"),
        left(Long.MAX_VALUE, Rows.tombstone("a", FAILED), Rows.version("a", 70)));
    assertEquals(2, counters.value(Count.ROWS_UNKNOWN_TOPIC));
    assertEquals(FAILED - 1, pass.decided());
  }

  @ParameterizedTest
  @ValueSource(strings = {"", "02", "0000", "0102"})
  void aContentThatIsNeitherStaysAndHidesNothing(String content) throws IOException {
    byte[] value = Vectors.unhex(content);
    List<Cell> strange = Rows.row(Rows.cell(Rows.cellKey("a", "c", 2, 80), "c", value, 10));
    List<String> both = Arrays.asList("a:80", "a:70");
    List<String> expected = content.equals("0102") ? both.subList(0, 1) : both;
    assertEquals(expected, left(Long.MAX_VALUE, strange, Rows.version("a", 70)));
    assertEquals(content.equals("0102") ? 0 : 1, counters.value(Count.ROWS_UNREADABLE));
  }

  @Test
  void aRowWithoutTheColumnStays() throws IOException {
    List<Cell> other = Rows.row(Rows.cell(Rows.cellKey("a", "c", 2, FAILED), "x", new byte[] {1}, 10));
    assertEquals(Arrays.asList("a:90", "a:70"), left(Long.MAX_VALUE, other, Rows.version("a", 70)));
    assertEquals(FAILED - 1, pass.decided());
  }

  @Test
  void aDeleteMarkerPassesBesideADroppedVersion() throws IOException {
    List<Cell> marked = Rows.row(Rows.marker(Rows.cellKey("a", "c", 2, 70)));
    marked.addAll(Rows.version("a", 70));
    assertEquals(Arrays.asList("a:80", "a:70"), left(CellFilter.NO_PURGE, Rows.version("a", 80), marked));
    assertEquals(1, counters.value(Count.CELLS_DROPPED));
    List<Cell> fence = Rows.row(Rows.marker(new byte[] {0}));
    assertEquals(1, scan(new CellFilter(rules, pass, Rows.NOW_MS, 0, counters), Collections.singletonList(fence)).size());
    assertEquals(0, counters.value(Count.ROWS_UNREADABLE));
  }

  @Test
  void ofTwoContentsOfOneRowTheNewerOneCounts() throws IOException {
    byte[] key = Rows.cellKey("a", "c", 2, 80);
    List<Cell> twice =
        Rows.row(Rows.cell(key, "c", new byte[] {0}, 20), Rows.cell(key, "c", new byte[] {1, 1}, 10));
    assertEquals(Collections.emptyList(), left(80, twice));
  }

  @Test
  void aValueInABufferIsReadThere() throws IOException {
    List<Cell> rows = new ArrayList<>();
    for (List<Cell> row : Arrays.asList(Rows.tombstone("a", 80), Rows.version("a", 70))) {
      KeyValue cell = (KeyValue) row.get(0);
      java.nio.ByteBuffer buffer = java.nio.ByteBuffer.allocateDirect(cell.getLength() + 3);
      buffer.position(3);
      buffer.put(cell.getBuffer(), cell.getOffset(), cell.getLength());
      rows.add(new ByteBufferKeyValue(buffer, 3, cell.getLength()));
    }
    assertEquals(Collections.emptyList(), left(80, Rows.row(rows.get(0)), Rows.row(rows.get(1))));
    assertEquals(Collections.singletonList("a:70"), left(80, Rows.row(rows.get(1))));
  }

  // As the vectors say it.

  static List<Vectors.Vector> runs() {
    return Vectors.read("cell-retention");
  }

  @ParameterizedTest
  @MethodSource("runs")
  void versionsGetTheVerdictsOfTheirVector(Vectors.Vector vector) {
    JsonObject meaning = vector.object();
    rules.clear();
    for (Map.Entry<String, JsonElement> table : meaning.getAsJsonObject("tables").entrySet()) {
      rules.put(table.getKey(), new TopicRule(table.getValue().getAsInt(), Long.MAX_VALUE, OnInvalid.DROP));
    }
    long purgeBound = CellFilter.NO_PURGE;
    pass = new FilterPass(null);
    if (!meaning.get("snapshot").isJsonNull()) {
      JsonObject snapshot = meaning.getAsJsonObject("snapshot");
      purgeBound = snapshot.get("purgeBound").getAsLong();
      pass = new FilterPass(new SnapshotBytes()
          .decided(Long.MAX_VALUE)
          .upperBound(snapshot.get("upperBound").getAsLong())
          .invalid(Vectors.longs(snapshot.get("invalid")))
          .build());
    }
    CellFilter filter = new CellFilter(rules, pass, Rows.NOW_MS, purgeBound, counters);
    for (JsonElement each : meaning.getAsJsonArray("rows")) {
      JsonObject row = each.getAsJsonObject();
      byte[] key = Vectors.unhex(row.get("key").getAsString());
      JsonElement content = row.get("c");
      Cell cell = content.isJsonNull()
          ? Rows.cell(key, "x", new byte[] {1}, 10)
          : Rows.cell(key, "c", Vectors.unhex(content.getAsString()), 10);
      Verdict verdict = filter.verdict(Rows.row(cell), 0);
      assertEquals(row.get("reason").getAsString(), verdict.reason);
      assertEquals(row.get("fate").getAsString(), verdict.fate.value);
    }
  }

  static List<Vectors.Vector> keys() {
    return Vectors.read("cells");
  }

  @ParameterizedTest
  @MethodSource("keys")
  void aKeyIsTakenApartAsItsVectorSays(Vectors.Vector vector) throws CorruptionException {
    JsonObject meaning = vector.object();
    CellKey key = CellKey.decode(vector.data);
    String prefix = meaning.get("namespace").getAsString() + ":~" + meaning.get("table").getAsString() + ":";
    assertEquals(prefix, TopicPrefix.text(key.prefix, 0, key.prefix.length));
    assertEquals(meaning.get("salt").getAsInt(), key.salt);
    assertEquals(meaning.get("generation").getAsLong(), key.generation);
    assertEquals(meaning.get("writePointer").getAsLong(), key.writePointer);
    assertArrayEquals(Vectors.unhex(meaning.get("row").getAsString()), key.row);
    assertArrayEquals(Vectors.unhex(meaning.get("column").getAsString()), key.column);
    assertArrayEquals(vector.data, key.encode());
  }

  static List<Vectors.Vector> corruptKeys() {
    return Vectors.read("cells-corrupt");
  }

  @ParameterizedTest
  @MethodSource("corruptKeys")
  void aDamagedKeyIsRefusedAndItsRowKept(Vectors.Vector vector) throws IOException {
    assertThrows(CorruptionException.class, () -> CellKey.decode(vector.data));
    List<Cell> row = Rows.row(Rows.cell(vector.data, "c", new byte[] {0}, 10));
    CellFilter filter = new CellFilter(rules, pass, Rows.NOW_MS, Long.MAX_VALUE, counters);
    assertEquals(1, scan(filter, Collections.singletonList(row)).size());
    assertEquals(1, counters.value(Count.ROWS_UNREADABLE));
  }

  @Test
  void aTopicsKeyHasNoTablesPrefixAndTheOtherWayRound() {
    byte[] table = Rows.cellKey("a", "c", 2, 80);
    assertEquals(TopicPrefix.NONE, TopicPrefix.end(table, table.length));
    byte[] topic = Rows.liveKey();
    assertEquals(TopicPrefix.NONE, TopicPrefix.tableEnd(topic, topic.length));
    assertEquals(1 + Rows.TABLE.length(), TopicPrefix.tableEnd(table, table.length));
  }
}
