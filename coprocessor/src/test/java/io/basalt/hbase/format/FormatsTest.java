package io.basalt.hbase.format;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.format.Snapshot.Visibility;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The bytes that both languages read: each vector, each cut of it, each bit. */
class FormatsTest {
  static List<Vectors.Vector> rowKeys() {
    return Vectors.read("row-keys");
  }

  static List<Vectors.Vector> metadata() {
    return Vectors.read("metadata");
  }

  static List<Vectors.Vector> systemRows() {
    return Vectors.read("system-table");
  }

  static List<Vectors.Vector> snapshots() {
    return Vectors.read("region-snapshot");
  }

  static List<Vectors.Vector> owners() {
    return Vectors.read("owners-map");
  }

  static List<Vectors.Vector> corruptOwners() {
    return Vectors.read("owners-map-corrupt");
  }

  static List<Vectors.Vector> fences() {
    return Vectors.read("hbase-fences");
  }

  static List<Vectors.Vector> corruptFences() {
    return Vectors.read("hbase-fences-corrupt");
  }

  static List<Vectors.Vector> changes() {
    return Vectors.read("topic-changes");
  }

  static List<Vectors.Vector> corruptChanges() {
    return Vectors.read("topic-changes-corrupt");
  }

  static List<Vectors.Vector> corruptSnapshots() {
    return Vectors.read("region-snapshot-corrupt");
  }

  @Test
  void theChecksumIsCastagnolis() {
    assertEquals(0xE3069283, Crc32c.of("123456789".getBytes(StandardCharsets.US_ASCII)));
    assertEquals(0, Crc32c.of(new byte[0]));
    assertEquals(0x8A9136AA, Crc32c.of(new byte[32])); // RFC 3720, B.4
  }

  @ParameterizedTest
  @MethodSource("rowKeys")
  void aRowKeyIsReadAndWrittenAsInPython(Vectors.Vector vector) throws CorruptionException {
    JsonObject meaning = vector.object();
    String prefix = meaning.get("namespace").getAsString() + ":" + meaning.get("topic").getAsString() + ":";
    if (meaning.get("table").getAsString().equals("message")) {
      MessageKey key = MessageKey.decode(vector.data);
      assertEquals(prefix, new String(key.prefix, StandardCharsets.US_ASCII));
      assertEquals(meaning.get("salt").getAsInt(), key.salt);
      assertEquals(meaning.get("generation").getAsLong(), key.generation);
      assertEquals(Vectors.unsigned(meaning.get("publishMs")), key.publishMs);
      assertEquals(meaning.get("sequence").getAsInt(), key.sequence);
      assertArrayEquals(vector.data, key.encode());
    } else {
      PayloadKey key = PayloadKey.decode(vector.data);
      assertEquals(prefix, new String(key.prefix, StandardCharsets.US_ASCII));
      assertEquals(meaning.get("salt").getAsInt(), key.salt);
      assertEquals(meaning.get("generation").getAsLong(), key.generation);
      assertEquals(Vectors.unsigned(meaning.get("writePointer")), key.writePointer);
      assertEquals(Vectors.unsigned(meaning.get("writeMs")), key.writeMs);
      assertEquals(meaning.get("payloadSequence").getAsInt(), key.payloadSequence);
      assertArrayEquals(vector.data, key.encode());
    }
  }

  @ParameterizedTest
  @MethodSource("rowKeys")
  void aKeyThatIsCutOrLongerIsRefused(Vectors.Vector vector) {
    boolean isMessage = vector.object().get("table").getAsString().equals("message");
    for (int length = 0; length <= vector.data.length + 1; length++) {
      byte[] other = Arrays.copyOf(vector.data, length);
      if (length != vector.data.length) {
        assertThrows(CorruptionException.class, () -> decode(isMessage, other));
      }
    }
  }

  private static Object decode(boolean isMessage, byte[] key) throws CorruptionException {
    return isMessage ? MessageKey.decode(key) : PayloadKey.decode(key);
  }

  @ParameterizedTest
  @ValueSource(strings = {"", "\3", "\3:", "\3a:", "\3::", "\3a::", "\3:a:", "\3a b:c:", "\3a:b", "\3a:.c:", "\3..:b:", "\3a:.:", "\3é:b:"})
  void whatHasNoTopicPrefixIsNoKey(String start) {
    byte[] key = (start + "12345678901234").getBytes(StandardCharsets.ISO_8859_1);
    assertThrows(CorruptionException.class, () -> MessageKey.decode(key));
  }

  @Test
  void aNameIsUpTo255CharactersLong() throws CorruptionException {
    char[] name = new char[TopicPrefix.NAME_CHARS_MAX];
    Arrays.fill(name, 'n');
    String longest = "\3" + new String(name) + ":" + new String(name) + ":12345678901234";
    MessageKey.decode(longest.getBytes(StandardCharsets.ISO_8859_1));
    byte[] longer = longest.replace("n:1", "nn:1").getBytes(StandardCharsets.ISO_8859_1);
    assertThrows(CorruptionException.class, () -> MessageKey.decode(longer));
  }

  @ParameterizedTest
  @MethodSource("metadata")
  void topicMetadataHasTheRuleThatPythonWrote(Vectors.Vector vector) throws CorruptionException {
    JsonObject meaning = vector.object();
    TopicRule rule = TopicRule.decode(vector.data);
    assertEquals(meaning.get("generation").getAsInt(), rule.generation);
    assertEquals(meaning.get("ttlMs").getAsLong(), rule.ttlMs);
    assertEquals(meaning.get("onInvalid").getAsString(), rule.onInvalid.value);
    boolean isTruncated = meaning.has("truncatedBeforeMs");
    assertEquals(isTruncated ? meaning.get("truncatedBeforeMs").getAsLong() : 0, rule.truncatedBeforeMs);
  }

  @ParameterizedTest
  @MethodSource("metadata")
  void damagedTopicMetadataIsRefused(Vectors.Vector vector) {
    eachCutAndBit(vector.data, TopicRule::decode);
  }

  @Test
  void metadataThatNobodyWritesIsRefused() {
    byte[] good = metadata().get(0).data;
    for (int[] change : new int[][] {{0, 2}, {4, 0}, {5, 0x80}, {13, 2}, {37, 3}}) {
      byte[] changed = good.clone();
      changed[change[0]] = (byte) change[1];
      BigEndian.writeInt(changed, changed.length - 4, Crc32c.of(changed, 0, changed.length - 4));
      assertThrows(CorruptionException.class, () -> TopicRule.decode(changed), "byte " + change[0]);
    }
  }

  @ParameterizedTest
  @MethodSource("systemRows")
  void aSystemRowIsOpenedAndSealedAsInPython(Vectors.Vector vector) throws CorruptionException {
    byte[] body = SystemRow.open(vector.data);
    assertArrayEquals(vector.data, SystemRow.seal(body));
    eachCutAndBit(vector.data, SystemRow::open);
  }

  @ParameterizedTest
  @MethodSource("snapshots")
  void aSnapshotHasWhatPythonWrote(Vectors.Vector vector) throws CorruptionException {
    JsonObject meaning = vector.object();
    Snapshot snapshot = Snapshot.decode(vector.data);
    assertEquals(meaning.get("epoch").getAsLong(), snapshot.epoch);
    assertEquals(meaning.get("sequence").getAsLong(), snapshot.sequence);
    assertEquals(meaning.get("time_ms").getAsLong(), snapshot.timeMs);
    assertEquals(meaning.get("read_pointer").getAsLong(), snapshot.readPointer);
    assertEquals(meaning.get("write_pointer").getAsLong(), snapshot.writePointer);
    assertEquals(meaning.get("decided").getAsLong(), snapshot.decided);
    assertEquals(meaning.get("visibility_upper_bound").getAsLong(), snapshot.visibilityUpperBound);
    assertEquals(meaning.get("lifetime_ms_max").getAsLong(), snapshot.lifetimeMsMax);
    assertArrayEquals(Vectors.longs(meaning.get("in_progress")), snapshot.inProgress());
    assertArrayEquals(Vectors.longs(meaning.get("invalid")), snapshot.invalid());
    assertArrayEquals(Vectors.longs(meaning.get("in_progress_runs")), snapshot.inProgressRuns());
    assertArrayEquals(Vectors.longs(meaning.get("invalid_runs")), snapshot.invalidRuns());
    for (long[] pointers : Arrays.asList(snapshot.invalid(), snapshot.invalidRuns())) {
      for (long pointer : pointers) {
        assertTrue(snapshot.isInvalid(pointer));
        assertEquals(Visibility.SKIP, snapshot.judge(pointer));
      }
    }
  }

  @ParameterizedTest
  @MethodSource("corruptSnapshots")
  void aSnapshotThatIsNotAsItsFormatSaysIsRefused(Vectors.Vector vector) {
    assertThrows(CorruptionException.class, () -> Snapshot.decode(vector.data));
  }

  @ParameterizedTest
  @MethodSource("snapshots")
  void aSnapshotThatIsCutOrLongerIsRefusedAndEachBitOfItsRowCounts(Vectors.Vector vector) {
    for (int length = 0; length <= vector.data.length + 2; length++) {
      byte[] other = Arrays.copyOf(vector.data, length);
      if (length != vector.data.length) {
        assertThrows(CorruptionException.class, () -> Snapshot.decode(other), "length " + length);
      }
    }
    eachCutAndBit(SystemRow.seal(vector.data), row -> Snapshot.decode(SystemRow.open(row)));
  }

  @ParameterizedTest
  @MethodSource("snapshots")
  void noBitOfASnapshotBringsAnythingButARefusalOrAListInOrder(Vectors.Vector vector) {
    for (int bit = 0; bit < 8 * vector.data.length; bit++) {
      byte[] flipped = vector.data.clone();
      flipped[bit / 8] ^= (byte) (1 << bit % 8);
      try {
        Snapshot other = Snapshot.decode(flipped);
        long last = 0;
        for (long pointer : other.invalid()) {
          assertTrue(pointer > last);
          last = pointer;
        }
        last = -1;
        for (int index = 0; index < other.invalidRuns().length; index += 2) {
          assertTrue(other.invalidRuns()[index] > last + 1);
          last = other.invalidRuns()[index + 1];
          assertTrue(other.invalidRuns()[index] <= last);
        }
      } catch (CorruptionException refused) {
        continue;
      }
    }
  }

  @Test
  void aReaderHoldsAtTheUndecidedAndPassesWhatFailed() {
    Snapshot snapshot = new SnapshotBytes().decided(20).invalid(7).build();
    assertEquals(Visibility.VISIBLE, snapshot.judge(WritePointers.NONE));
    assertEquals(Visibility.VISIBLE, snapshot.judge(20));
    assertEquals(Visibility.HOLD, snapshot.judge(21));
    assertEquals(Visibility.SKIP, snapshot.judge(7));
    assertEquals(Visibility.SKIP, snapshot.judge(-20));
  }

  @Test
  void aRunIsJudgedAsIfEachOfItsWritersWereTold() {
    Snapshot snapshot = new SnapshotBytes().decided(30).invalid(7).invalidRuns(3, 5, 9, 9, 20, Long.MAX_VALUE).build();
    for (long failed : new long[] {3, 4, 5, 7, 9, 20, 21, 31, Long.MAX_VALUE}) {
      assertTrue(snapshot.isInvalid(failed), "writer " + failed);
    }
    for (long other : new long[] {1, 2, 6, 8, 10, 19}) {
      assertFalse(snapshot.isInvalid(other), "writer " + other);
    }
  }

  @Test
  void theLeasesEpochIsRead() throws CorruptionException {
    String lease = "{\"holder\":\"a\\\"b\\\\\",\"url\":\"epoch\",\"epoch\":17,\"expire_ms\":1700000000000,\"instance\":\"{,}\"}";
    assertEquals(17, LeaseRecord.epoch(lease.getBytes(StandardCharsets.UTF_8)));
    for (int length = 0; length < lease.length(); length++) {
      byte[] cut = lease.substring(0, length).getBytes(StandardCharsets.UTF_8);
      assertThrows(CorruptionException.class, () -> LeaseRecord.epoch(cut));
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {
      "{}", "{\"holder\":\"x\"}", "{\"epoch\":\"1\"}", "{\"epoch\":-1}", "{\"epoch\":1.5}", "{\"epoch\":1}x", "[1]", "",
      "{\"epoch\":1,\"epoch\":2}", "{\"epoch\":99999999999999999999}", "{\"epoch\":[1]}", "{\"epoch\":}", "{\"epoch\":null}"
  })
  void aLeaseWithoutAnEpochIsRefused(String lease) {
    byte[] body = lease.getBytes(StandardCharsets.UTF_8);
    assertThrows(CorruptionException.class, () -> LeaseRecord.epoch(body));
  }

  @ParameterizedTest
  @MethodSource("owners")
  void aMapOfOwnersIsReadAsInPython(Vectors.Vector vector) throws CorruptionException {
    Floors floors = OwnersMap.floors(vector.data, 17);
    assertEquals(17, floors.leader);
    for (JsonElement run : vector.object().get("shards").getAsJsonArray()) {
      long[] numbers = Vectors.longs(run);
      for (int shard = (int) numbers[0]; shard <= numbers[1]; shard++) {
        assertEquals(numbers[3], floors.shard(shard));
      }
    }
    for (int length = 0; length < vector.data.length; length++) {
      byte[] cut = Arrays.copyOf(vector.data, length);
      assertThrows(CorruptionException.class, () -> OwnersMap.floors(cut, 17));
    }
  }

  @ParameterizedTest
  @MethodSource("corruptOwners")
  void whatIsNoMapOfOwnersIsRefused(Vectors.Vector vector) {
    assertThrows(CorruptionException.class, () -> OwnersMap.floors(vector.data, 17));
  }

  @ParameterizedTest
  @MethodSource("fences")
  void aFenceIsReadAsInPython(Vectors.Vector vector) throws CorruptionException {
    Floors fence = Floors.ofFence(vector.data);
    assertEquals(vector.object().get("leader_epoch").getAsLong(), fence.leader);
    long[] expected = new long[Floors.SHARDS];
    for (JsonElement range : vector.object().get("ranges").getAsJsonArray()) {
      long[] numbers = Vectors.longs(range);
      Arrays.fill(expected, (int) numbers[0], (int) numbers[1] + 1, numbers[2]);
    }
    for (int shard = 0; shard < Floors.SHARDS; shard++) {
      assertEquals(expected[shard], fence.shard(shard));
    }
    for (int length = 0; length < vector.data.length; length++) {
      byte[] cut = Arrays.copyOf(vector.data, length);
      assertThrows(CorruptionException.class, () -> Floors.ofFence(cut));
    }
  }

  @ParameterizedTest
  @MethodSource("corruptFences")
  void whatIsNoFenceIsRefused(Vectors.Vector vector) {
    assertThrows(CorruptionException.class, () -> Floors.ofFence(vector.data));
  }

  @ParameterizedTest
  @MethodSource("changes")
  void changesOfTopicsAreWrittenAndReadAsTheirFormatSays(Vectors.Vector vector) throws CorruptionException {
    TopicChanges told = TopicChanges.decode(vector.data);
    JsonObject meaning = vector.object();
    assertEquals(meaning.get("opened").getAsLong(), told.mark.opened);
    assertEquals(meaning.get("count").getAsLong(), told.mark.count);
    assertEquals(meaning.get("next").getAsString(), new String(told.next, StandardCharsets.US_ASCII));
    assertEquals(meaning.get("all").getAsBoolean(), told.all);
    List<String> keys = new ArrayList<>();
    told.keys.forEach(key -> keys.add('"' + new String(key, StandardCharsets.US_ASCII) + '"'));
    assertEquals(meaning.get("keys").toString(), keys.toString().replace(", ", ","));
    assertArrayEquals(vector.data, told.encode());
    for (int length = 0; length < vector.data.length; length++) {
      byte[] cut = Arrays.copyOf(vector.data, length);
      assertThrows(CorruptionException.class, () -> TopicChanges.decode(cut));
    }
    byte[] mark = told.mark.encode();
    assertArrayEquals(Arrays.copyOf(vector.data, mark.length), mark);
    assertEquals(told.mark.count, TopicChanges.Mark.decode(mark).count);
  }

  @ParameterizedTest
  @MethodSource("corruptChanges")
  void whatAreNoChangesOfTopicsIsRefused(Vectors.Vector vector) {
    assertThrows(CorruptionException.class, () -> TopicChanges.decode(vector.data));
  }

  @Test
  void theHigherOfTwoFloorsCountsInEachPlace() throws CorruptionException {
    Floors all = Floors.ofFence(Vectors.unhex("0200000000000000000001000003ff000000000007"));
    Floors one = Floors.ofFence(Vectors.unhex("020000000000000009000100050005000000000008"));
    Floors both = all.raisedTo(one);
    assertEquals(9, both.leader);
    assertEquals(8, both.shard(5));
    assertEquals(7, both.shard(4));
    assertSame(both, both.raisedTo(all)); // regions share what a read found
    assertSame(both, one.raisedTo(both));
    assertSame(all, Floors.NONE.raisedTo(all));
  }

  private static void eachCutAndBit(byte[] good, Decoder decoder) {
    for (int length = 0; length < good.length; length++) {
      byte[] cut = Arrays.copyOf(good, length);
      assertThrows(CorruptionException.class, () -> decoder.decode(cut), "length " + length);
    }
    for (int bit = 0; bit < 8 * good.length; bit++) {
      byte[] flipped = good.clone();
      flipped[bit / 8] ^= (byte) (1 << bit % 8);
      assertThrows(CorruptionException.class, () -> decoder.decode(flipped), "bit " + bit);
    }
    assertFalse(good.length == 0);
  }

  private interface Decoder {
    Object decode(byte[] data) throws CorruptionException;
  }
}
