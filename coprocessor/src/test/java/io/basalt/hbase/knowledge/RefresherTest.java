package io.basalt.hbase.knowledge;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.basalt.hbase.format.Floors;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.SnapshotBytes;
import io.basalt.hbase.format.SystemRow;
import io.basalt.hbase.format.TopicChanges;
import io.basalt.hbase.format.TopicChanges.Mark;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.format.Vectors;
import io.basalt.hbase.rule.Count;
import io.basalt.hbase.rule.Counters;
import io.basalt.hbase.rule.Retention;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** What a region server knows after each refresh: of good rows, of bad ones, and when nothing answers. */
class RefresherTest {
  private static final byte[] TOPIC_ROW = Vectors.read("metadata").get(0).data;
  private static final byte[] DELETED_ROW = Vectors.read("metadata").get(1).data;
  private static final byte[] EXAMPLE = snapshot("example"); // epoch 3, sequence 18
  private static final byte[] OLDER = snapshot("of_nobody"); // epoch 3, sequence 17
  private static final byte[] NEWER = snapshot("from_the_future"); // epoch 4, sequence 1

  private final Fake source = new Fake();
  private final Counters counters = new Counters();
  private final Refresher refresher = new Refresher("basalt", source, 60_000, counters);

  @AfterEach
  void stop() {
    refresher.stop();
  }

  private static byte[] snapshot(String name) {
    return Vectors.read("region-snapshot").stream().filter(vector -> vector.name.equals(name)).findAny().get().data;
  }

  private Map<String, TopicRule> rules() {
    return refresher.knowledge().rules(System.nanoTime());
  }

  private long failures() {
    return counters.value(Count.REFRESH_FAILURES);
  }

  @Test
  void beforeTheFirstRefreshNothingIsKnown() {
    assertNull(refresher.knowledge().snapshot);
    assertFalse(refresher.knowledge().neverPublished);
    assertTrue(rules().isEmpty());
  }

  @Test
  void topicsAndSnapshotAreRead() {
    source.topic("shop:orders:", TOPIC_ROW);
    source.topic("shop:gone:", DELETED_ROW);
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(EXAMPLE));
    refresher.refresh();
    assertEquals(1, rules().get("shop:orders:").generation);
    assertEquals(-1, rules().get("shop:gone:").generation);
    assertEquals(18, refresher.knowledge().snapshot.sequence);
    assertEquals(0, failures());
  }

  @Test
  void aMissingSnapshotIsToldFromOneThatCannotBeRead() {
    refresher.refresh();
    assertTrue(refresher.knowledge().neverPublished);
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(EXAMPLE));
    refresher.refresh();
    assertFalse(refresher.knowledge().neverPublished);
    source.remove(Refresher.SNAPSHOT_KEY);
    refresher.refresh();
    assertFalse(refresher.knowledge().neverPublished);
    assertNotNull(refresher.knowledge().snapshot);
  }

  @Test
  void anOlderSnapshotIsRefusedAndANewerOneTaken() {
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(EXAMPLE));
    refresher.refresh();
    Snapshot first = refresher.knowledge().snapshot;
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(OLDER));
    refresher.refresh();
    assertSame(first, refresher.knowledge().snapshot);
    assertEquals(1, failures());
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(NEWER));
    refresher.refresh();
    assertEquals(4, refresher.knowledge().snapshot.epoch);
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(EXAMPLE)); // a higher sequence of a lower epoch
    refresher.refresh();
    assertEquals(4, refresher.knowledge().snapshot.epoch);
  }

  @Test
  void aSnapshotThatIsDamagedLeavesTheOneBefore() {
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(EXAMPLE));
    refresher.refresh();
    Snapshot first = refresher.knowledge().snapshot;
    byte[] flipped = SystemRow.seal(NEWER);
    flipped[20] ^= 1;
    for (byte[] row : new byte[][] {{}, {1}, flipped, SystemRow.seal(new byte[0]), SystemRow.seal(new byte[] {2})}) {
      source.put(Refresher.SNAPSHOT_KEY, row);
      refresher.refresh();
      assertSame(first, refresher.knowledge().snapshot);
    }
    assertEquals(5, failures());
  }

  @Test
  void aTopicThatCannotBeReadBecomesUnknownAndTheOthersStay() {
    source.topic("shop:orders:", TOPIC_ROW);
    source.topic("shop:other:", TOPIC_ROW);
    refresher.refresh();
    source.topic("shop:orders:", new byte[] {1, 2, 3});
    refresher.refresh();
    assertEquals(java.util.Collections.singleton("shop:other:"), rules().keySet());
    assertEquals(1, refresher.knowledge().corruptTopics);
    source.topic("shop:orders:", DELETED_ROW);
    refresher.refresh();
    assertEquals(-1, rules().get("shop:orders:").generation);
  }

  @Test
  void onlyChangesAreReadAndAScanKeepsTheRulesThatItBeganWith() {
    source.topic("shop:orders:", TOPIC_ROW);
    source.topic("shop:new:", TOPIC_ROW);
    refresher.refresh();
    Map<String, TopicRule> before = rules();
    source.read.set(0);
    refresher.refresh();
    assertEquals(0, source.read.get());
    assertEquals(2, counters.value(Count.TOPICS_READ));
    assertSame(before, rules()); // nothing changed, nothing copied
    source.topic("shop:orders:", DELETED_ROW);
    refresher.refresh();
    assertEquals(1, source.read.get());
    assertEquals(1, before.get("shop:orders:").generation);
    assertEquals(-1, rules().get("shop:orders:").generation);
    assertEquals(2, rules().size());
  }

  @Test
  void aWriteThatIsSeenBeforeItIsToldIsReadOnceItIsTold() {
    source.topic("shop:orders:", TOPIC_ROW);
    refresher.refresh();
    source.topicUntold("shop:orders:", DELETED_ROW);
    refresher.refresh();
    assertEquals(1, rules().get("shop:orders:").generation);
    source.region.changed(Collections.singletonList("shop:orders:".getBytes(StandardCharsets.US_ASCII)));
    refresher.refresh();
    assertEquals(-1, rules().get("shop:orders:").generation);
  }

  @Test
  void aChangeThatCouldNotBeReadIsReadTheNextTime() {
    source.topic("shop:orders:", TOPIC_ROW);
    refresher.refresh();
    long readMs = refresher.topicsReadMs();
    source.topic("shop:orders:", DELETED_ROW);
    source.failsToRead = true;
    refresher.refresh();
    assertEquals(1, rules().get("shop:orders:").generation);
    assertEquals(readMs, refresher.topicsReadMs());
    source.failsToRead = false;
    refresher.refresh();
    assertEquals(-1, rules().get("shop:orders:").generation);
  }

  @Test
  void aRegionThatWasOpenedAnewIsReadAsAWhole() {
    source.topic("shop:orders:", TOPIC_ROW);
    source.topic("shop:gone:", TOPIC_ROW);
    refresher.refresh();
    source.region = new ChangedRows(2);
    source.topicUntold("shop:orders:", DELETED_ROW); // restored, say: by no write of this opening
    source.topicUntold("shop:gone:", null);
    refresher.refresh();
    assertEquals(-1, rules().get("shop:orders:").generation);
    assertEquals(1, rules().size());
  }

  @Test
  void whereNoRegionTellsAllTopicsAreReadEachTime() {
    source.tells = false;
    source.topicUntold("shop:orders:", TOPIC_ROW);
    refresher.refresh();
    source.topicUntold("shop:orders:", DELETED_ROW);
    refresher.refresh();
    assertEquals(-1, rules().get("shop:orders:").generation);
  }

  @Test
  void manyChangesAreReadByAScanOfAll() {
    refresher.refresh();
    source.scans.set(0);
    for (int index = 0; index <= Refresher.CHANGED_KEYS_MAX; index++) {
      source.topic("shop:topic-" + index + ":", TOPIC_ROW);
    }
    refresher.refresh();
    assertEquals(Refresher.CHANGED_KEYS_MAX + 1, rules().size());
    assertEquals(1, source.scans.get());
  }

  @Test
  void topicsOfARegionThatIsNoLongerWhereTheyWereReadAreNotBelieved() {
    source.topic("shop:orders:", TOPIC_ROW);
    source.proves = false;
    refresher.refresh();
    assertTrue(rules().isEmpty());
    assertEquals(1, failures());
    source.proves = true;
    refresher.refresh();
    assertEquals(1, rules().size());
  }

  @Test
  void aSnapshotCountsOnlyWithTopicsThatWereReadAfterIt() {
    source.topic("shop:orders:", TOPIC_ROW);
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(EXAMPLE));
    refresher.refresh();
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(NEWER));
    source.topic("shop:orders:", DELETED_ROW);
    source.failsToRead = true;
    refresher.refresh();
    assertEquals(3, refresher.knowledge().snapshot.epoch);
    source.failsToRead = false;
    refresher.refresh();
    assertEquals(4, refresher.knowledge().snapshot.epoch);
  }

  @Test
  void whenNothingAnswersWhatWasKnownStaysAndIsCounted() {
    source.topic("shop:orders:", TOPIC_ROW);
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(EXAMPLE));
    refresher.refresh();
    source.fails = true;
    refresher.refresh();
    assertEquals(2, failures());
    assertNotNull(refresher.knowledge().snapshot);
    assertEquals(1, rules().size());
  }

  @Test
  void rulesThatWereNotReadForTooLongAreUnknown() {
    source.topic("shop:orders:", TOPIC_ROW);
    refresher.refresh();
    long lastNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Knowledge.RULES_AGE_MS_MAX);
    assertTrue(refresher.knowledge().rules(lastNanos).isEmpty());
    assertEquals(1, refresher.knowledge().rules(lastNanos - TimeUnit.SECONDS.toNanos(30)).size());
  }

  @Test
  void theRulesAgeLeavesRoomForTheClocksSlack() {
    assertTrue(Knowledge.RULES_AGE_MS_MAX + Refresher.ALL_TOPICS_INTERVAL_MS < Retention.CLOCK_SLACK_MS);
  }

  // The leader's lease, and the map of owners.

  private void start() {
    Thread thread = new Thread(refresher);
    thread.setDaemon(true);
    thread.start();
  }

  @Test
  void whoAsksForTheLeaderGetsWhatWasReadAfterwards() throws IOException {
    start();
    assertEquals(0, refresher.readAfter(System.nanoTime(), 10_000).leader); // nobody ever led
    source.put(Refresher.LEASE_KEY, lease(7));
    assertEquals(7, refresher.readAfter(System.nanoTime(), 10_000).leader);
    source.put(Refresher.LEASE_KEY, lease(8));
    long beforeNanos = System.nanoTime() - TimeUnit.HOURS.toNanos(1);
    assertEquals(7, refresher.readAfter(beforeNanos, 10_000).leader); // late enough: no need to read again
    assertEquals(8, refresher.readAfter(System.nanoTime(), 10_000).leader);
  }

  @Test
  void whoAsksForTheOwnersGetsWhatWasReadAfterwards() throws IOException {
    start();
    assertEquals(0, refresher.readAfter(System.nanoTime(), 10_000).shard(403)); // nobody ever owned one
    source.put(Refresher.OWNERS_KEY, owners(0));
    assertEquals(7, refresher.readAfter(System.nanoTime(), 10_000).shard(403));
    source.put(Refresher.OWNERS_KEY, owners(1));
    source.put(Refresher.LEASE_KEY, lease(9));
    Floors floors = refresher.readAfter(System.nanoTime(), 10_000);
    assertEquals(8, floors.shard(403));
    assertEquals(9, floors.leader);
  }

  @Test
  void aMapThatCannotBeProvedOrReadIsNotBelieved() throws IOException {
    source.put(Refresher.OWNERS_KEY, owners(0));
    source.unproved = Refresher.OWNERS_KEY;
    start();
    assertThrows(IOException.class, () -> refresher.readAfter(System.nanoTime(), 100));
    source.unproved = null;
    assertEquals(7, refresher.readAfter(System.nanoTime(), 10_000).shard(0));
    source.put(Refresher.OWNERS_KEY, SystemRow.seal(new byte[] {1, 2, 3}));
    assertThrows(IOException.class, () -> refresher.readAfter(System.nanoTime(), 100));
  }

  @Test
  void aLeaseThatCannotBeProvedIsNotBelieved() throws IOException {
    source.put(Refresher.LEASE_KEY, lease(7));
    source.proves = false;
    start();
    assertThrows(IOException.class, () -> refresher.readAfter(System.nanoTime(), 100));
    source.proves = true;
    assertEquals(7, refresher.readAfter(System.nanoTime(), 10_000).leader);
  }

  @Test
  void aDamagedLeaseIsNotBelieved() {
    source.put(Refresher.LEASE_KEY, new byte[] {1, 2, 3, 4, 5, 6});
    start();
    assertThrows(IOException.class, () -> refresher.readAfter(System.nanoTime(), 100));
    assertTrue(failures() > 0);
  }

  private static byte[] lease(int epoch) {
    return SystemRow.seal(("{\"holder\":\"a\",\"epoch\":" + epoch + "}").getBytes(StandardCharsets.UTF_8));
  }

  private static byte[] owners(int vector) {
    return SystemRow.seal(Vectors.read("owners-map").get(vector).data);
  }

  // The thread.

  @Test
  void theThreadOutlivesWhateverItsTaskThrowsAndEndsWithALastTurn() throws InterruptedException {
    Refresher quick = new Refresher("basalt", source, 1, counters);
    AtomicInteger turns = new AtomicInteger();
    quick.setAfterwards(() -> {
      turns.incrementAndGet();
      throw new IllegalStateException("a task's own fault");
    });
    Thread thread = new Thread(quick);
    thread.start();
    while (turns.get() < 3) {
      Thread.sleep(1);
    }
    quick.stop();
    thread.join(10_000);
    assertFalse(thread.isAlive());
    assertTrue(turns.get() >= 4);
  }

  @Test
  void reads10000TopicsAnd100000FailedWritersInTime() {
    for (int index = 0; index < 10_000; index++) {
      source.topic("shop:topic-" + index + ":", TOPIC_ROW);
    }
    long[] invalid = new long[100_000];
    for (int index = 0; index < invalid.length; index++) {
      invalid[index] = 1_700_000_000_000_000_000L + 60_000_000_017L * index;
    }
    source.put(Refresher.SNAPSHOT_KEY, SystemRow.seal(SnapshotBytes.body(invalid)));
    refresher.refresh(); // warm up, and read all topics
    long best = Long.MAX_VALUE;
    for (int round = 0; round < 5; round++) {
      Refresher other = new Refresher("basalt", source, 60_000, counters);
      long startNanos = System.nanoTime();
      other.refresh();
      best = Math.min(best, System.nanoTime() - startNanos);
      assertEquals(100_000, other.knowledge().snapshot.invalid().length);
    }
    System.out.println("refresh of 10,000 topics and 100,000 failed writers: " + best / 1_000 + " us");
    assertTrue(best < TimeUnit.MILLISECONDS.toNanos(200));
  }

  /** Tables in memory; that of metadata has one region. */
  private static final class Fake extends InstallationTables {
    private final Map<String, byte[]> system = new HashMap<>();
    private final Map<String, byte[]> topics = new TreeMap<>();
    final AtomicInteger read = new AtomicInteger();
    final AtomicInteger scans = new AtomicInteger();
    ChangedRows region = new ChangedRows(1);
    boolean tells = true;
    boolean failsToRead;
    volatile boolean fails;
    volatile boolean proves = true;
    volatile byte[] unproved;

    Fake() {
      super(null, "basalt");
    }

    synchronized void put(byte[] key, byte[] value) {
      system.put(text(key), value);
    }

    synchronized void remove(byte[] key) {
      system.remove(text(key));
    }

    synchronized void topic(String prefix, byte[] value) {
      topicUntold(prefix, value);
      region.changed(Collections.singletonList(prefix.getBytes(StandardCharsets.US_ASCII)));
    }

    synchronized void topicUntold(String prefix, byte[] value) {
      topics.put(prefix, value);
      topics.values().removeIf(Objects::isNull);
    }

    @Override
    public synchronized byte[] systemRow(byte[] key) throws IOException {
      check();
      return system.get(text(key));
    }

    @Override
    public synchronized boolean isStill(byte[] key, byte[] value) {
      return proves && key != unproved && java.util.Arrays.equals(system.get(text(key)), value);
    }

    @Override
    synchronized ChangesSince changes(Map<byte[], Mark> known) throws IOException {
      check();
      ChangesSince found = new ChangesSince();
      if (tells) {
        found.add(new byte[0], region.since(known.getOrDefault(new byte[0], TopicChanges.NOTHING), new byte[0]));
      }
      found.all |= !tells;
      return found;
    }

    @Override
    synchronized boolean isStillOpen(byte[] position, long opened) {
      return proves && region.isOf(opened);
    }

    @Override
    synchronized void topics(Refresher.TopicReader reader) throws IOException {
      checkReads();
      scans.incrementAndGet();
      for (Map.Entry<String, byte[]> topic : topics.entrySet()) {
        read.incrementAndGet();
        reader.topic(topic.getKey().getBytes(StandardCharsets.US_ASCII), topic.getValue());
      }
    }

    @Override
    synchronized void topics(List<byte[]> keys, Refresher.TopicReader reader) throws IOException {
      checkReads();
      for (byte[] key : keys) {
        read.incrementAndGet();
        reader.topic(key, topics.get(text(key)));
      }
    }

    private void checkReads() throws IOException {
      check();
      if (failsToRead) {
        throw new IOException("no answer");
      }
    }

    private void check() throws IOException {
      if (fails) {
        throw new IOException("no answer");
      }
    }

    private static String text(byte[] key) {
      return new String(key, StandardCharsets.UTF_8);
    }
  }
}
