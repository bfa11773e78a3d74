package io.basalt.hbase.knowledge;

import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.Floors;
import io.basalt.hbase.format.LeaseRecord;
import io.basalt.hbase.format.OwnersMap;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.SystemRow;
import io.basalt.hbase.format.TopicChanges.Mark;
import io.basalt.hbase.format.TopicPrefix;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.knowledge.InstallationTables.ChangesSince;
import io.basalt.hbase.rule.Count;
import io.basalt.hbase.rule.Counters;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hbase.metrics.MetricRegistry;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps a region server's {@link Knowledge} of one installation fresh, on a thread of its own.
 *
 * <p>All regions of the installation on this server share it. A failure is counted and leaves what was known: hooks
 * only ever read {@link #knowledge} and do not wait, but for a region that must learn who may write.
 */
public class Refresher implements Runnable {
  static final byte[] SNAPSHOT_KEY = SystemRow.key("snapshot", "latest");
  static final byte[] LEASE_KEY = SystemRow.key(LeaseRecord.KIND, LeaseRecord.NAME);
  static final byte[] OWNERS_KEY = SystemRow.key(OwnersMap.KIND, OwnersMap.NAME);

  /** Between two refreshes of many servers, so that they do not all read at the same time: a tenth either way. */
  private static final int JITTER_PARTS = 10;

  /** Between two refreshes that somebody waits for. Reads that fail at once must not be tried without end. */
  private static final long PAUSE_MS_MIN = 20;

  /** So many failures are logged each; then only the ones whose number is a power of two. */
  private static final long FAILURES_LOGGED = 16;

  /** The interval at which all topics are read, rather than the changed ones. Half of the age at which they become unknown. */
  static final long ALL_TOPICS_INTERVAL_MS = Knowledge.RULES_AGE_MS_MAX / 2;

  /** More changed topics than this are read by a scan of all. */
  static final int CHANGED_KEYS_MAX = 1_000;

  /** In place of a time. */
  private static final long NEVER = -1;

  private static final Logger LOG = LoggerFactory.getLogger(Refresher.class);

  private final String name;
  private final InstallationTables tables;
  private final long intervalMs;
  private final Counters counters;
  private final Map<MetricRegistry, Integer> registries = new IdentityHashMap<>();
  private volatile Runnable afterwards = () -> {};
  private volatile Knowledge knowledge = Knowledge.NOTHING;
  private volatile long topicsReadMs = NEVER;

  // Guarded by this.
  private boolean started;
  private boolean stopped;
  private boolean requested;
  private boolean floorsRequested;
  private Floors floors;
  private long floorsReadNanos;

  // Of the refreshing thread alone.
  private Map<String, TopicRule> rules = new HashMap<>();
  private boolean allTopicsRead;
  private long allTopicsReadNanos;
  private Map<byte[], Mark> marks = Collections.emptyMap();
  private Set<String> corruptTopics = Collections.emptySet();

  public Refresher(String name, InstallationTables tables, long intervalMs, Counters counters) {
    this.name = name;
    this.tables = tables;
    this.intervalMs = intervalMs;
    this.counters = counters;
  }

  /** The knowledge of this moment. */
  public Knowledge knowledge() {
    return knowledge;
  }

  /** When the last read of topics began that succeeded; -1 when none has. What was written before it is known. */
  public long topicsReadMs() {
    return topicsReadMs;
  }

  /**
   * The epochs in the rows of the leader's lease and of the map of owners, each 0 when there is no such row, as reads found
   * them that began after the given {@link System#nanoTime}.
   *
   * <p>The reads must be proved: a server that has lost the system table's region without knowing it yet answers with
   * epochs that are over. A conditional write to the same row that goes through the log shows that it still has it.
   *
   * @throws IOException when no such read succeeded within the time
   */
  public synchronized Floors readAfter(long openedNanos, long timeoutMs) throws IOException {
    long deadlineNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    while (floors == null || floorsReadNanos - openedNanos <= 0) {
      long restNanos = deadlineNanos - System.nanoTime();
      if (restNanos <= 0 || stopped) {
        throw new IOException(
            "basalt: the leader's lease and the map of owners could not be read within " + timeoutMs + " ms; try again");
      }
      requestFloors();
      try {
        wait(1 + TimeUnit.NANOSECONDS.toMillis(restNanos));
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
        throw new InterruptedIOException("basalt: interrupted while the map of owners was read");
      }
    }
    return floors;
  }

  /** Refresh soon, the epochs of leader and owners too: a region has opened and will ask for them. */
  public synchronized void requestFloors() {
    requested = true;
    floorsRequested = true;
    notifyAll();
  }

  /** The work that this thread does after each refresh, and once more at the end. It bounds itself. */
  public void setAfterwards(Runnable task) {
    afterwards = task;
  }

  /** Show what the refreshes come to in these metrics; as often as it is removed again. */
  public void addMetrics(MetricRegistry registry) {
    synchronized (registries) {
      registries.merge(registry, 1, Integer::sum);
    }
  }

  public void removeMetrics(MetricRegistry registry) {
    synchronized (registries) {
      registries.computeIfPresent(registry, (same, uses) -> uses == 1 ? null : uses - 1);
    }
  }

  public synchronized void stop() {
    stopped = true;
    notifyAll();
  }

  @Override
  public void run() {
    while (awaitTurn()) {
      attempt(this::refresh, "the refresh");
      attempt(afterwards, "what follows it");
    }
    attempt(afterwards, "what follows it");
  }

  private void attempt(Runnable task, String what) {
    try {
      task.run();
    } catch (RuntimeException | LinkageError error) { // whatever it is, the thread goes on
      failed(what, error);
    }
  }

  /** Read everything once. */
  void refresh() {
    long startNanos = System.nanoTime();
    long failuresBefore = counters.value(Count.REFRESH_FAILURES);
    long topicsBefore = counters.value(Count.TOPICS_READ);
    if (takeFloorsRequest()) {
      readFloors(startNanos);
    }
    knowledge = readAll(knowledge, startNanos);
    show(
        System.nanoTime() - startNanos,
        counters.value(Count.REFRESH_FAILURES) - failuresBefore,
        counters.value(Count.TOPICS_READ) - topicsBefore);
  }

  private synchronized boolean takeFloorsRequest() {
    boolean wanted = floorsRequested;
    floorsRequested = false;
    return wanted;
  }

  private void readFloors(long startNanos) {
    try {
      byte[] lease = tables.systemRow(LEASE_KEY);
      byte[] owners = tables.systemRow(OWNERS_KEY);
      long leader = lease == null ? 0 : LeaseRecord.epoch(SystemRow.open(lease));
      Floors read = owners == null ? OwnersMap.floors(leader) : OwnersMap.floors(SystemRow.open(owners), leader);
      if (!tables.isStill(LEASE_KEY, lease) || !tables.isStill(OWNERS_KEY, owners)) {
        return; // written anew meanwhile; whoever waits asks again
      }
      synchronized (this) {
        floors = read;
        floorsReadNanos = startNanos;
      }
    } catch (IOException | CorruptionException | RuntimeException error) {
      failed("the leader's lease and the map of owners", error);
    } finally {
      synchronized (this) {
        notifyAll();
      }
    }
  }

  /**
   * A snapshot counts only with topics that were read after it. A writer that failed after its topic was told to retain the rows of
   * such writers would otherwise be judged by the rule of before, and its rows dropped.
   */
  private Knowledge readAll(Knowledge before, long startNanos) {
    Knowledge read = readSnapshot(before);
    if (readTopics(startNanos)) {
      return read.withRules(rules, corruptTopics.size(), startNanos);
    }
    return before.rules(startNanos).isEmpty() ? read : before.withSnapshotUnread();
  }

  private Knowledge readSnapshot(Knowledge before) {
    try {
      byte[] row = tables.systemRow(SNAPSHOT_KEY);
      if (row == null) {
        return before.withoutSnapshotRow();
      }
      Snapshot read = Snapshot.decode(SystemRow.open(row));
      if (before.snapshot == null || read.isNewerThan(before.snapshot)) {
        return before.withSnapshot(read);
      }
      if (before.snapshot.isNewerThan(read)) {
        failed("the snapshot", new CorruptionException("it is older than the one before"));
      }
    } catch (IOException | CorruptionException | RuntimeException error) {
      failed("the snapshot", error);
      return before.withSnapshotUnread();
    }
    return before;
  }

  /** True when {@link #rules} have all changes that could be seen when this began. */
  private boolean readTopics(long startNanos) {
    long startMs = System.currentTimeMillis();
    try {
      boolean due = !allTopicsRead
          || startNanos - allTopicsReadNanos >= TimeUnit.MILLISECONDS.toNanos(ALL_TOPICS_INTERVAL_MS);
      ChangesSince changes = tables.changes(marks);
      if (due || changes.all || changes.keys.size() > CHANGED_KEYS_MAX) {
        readAllTopics(changes, startNanos);
      } else if (!changes.keys.isEmpty()) {
        TopicReader reader = new TopicReader(null, new HashSet<>(corruptTopics));
        tables.topics(changes.keys, reader);
        take(reader);
      }
      marks = changes.marks;
    } catch (IOException | RuntimeException error) {
      failed("the metadata table", error);
      return false;
    }
    topicsReadMs = startMs;
    return true;
  }

  /** Reads all topics, and proves that the regions were not somebody else's by then: see {@link #readAfter}. */
  private void readAllTopics(ChangesSince changes, long startNanos) throws IOException {
    TopicReader reader = new TopicReader(new HashMap<>(), new HashSet<>());
    tables.topics(reader);
    for (Map.Entry<byte[], Mark> region : changes.marks.entrySet()) {
      if (!tables.isStillOpen(region.getKey(), region.getValue().opened)) {
        throw new IOException("a region of the metadata table was opened anew meanwhile");
      }
    }
    take(reader);
    allTopicsRead = true;
    allTopicsReadNanos = startNanos;
  }

  private void take(TopicReader reader) {
    corruptTopics = reader.corrupt;
    if (reader.rules != null) {
      rules = reader.rules;
    }
  }

  /** Wait for the next refresh; false when there is none. The first comes at once, one that is asked for soon. */
  private synchronized boolean awaitTurn() {
    long jitterMs = intervalMs / JITTER_PARTS;
    long pauseMs = started ? intervalMs + ThreadLocalRandom.current().nextLong(-jitterMs, jitterMs + 1) : 0;
    long startNanos = System.nanoTime();
    try {
      while (!stopped) {
        long waitMs = requested && started ? Math.min(pauseMs, PAUSE_MS_MIN) : pauseMs;
        long restNanos = TimeUnit.MILLISECONDS.toNanos(waitMs) - (System.nanoTime() - startNanos);
        if (restNanos <= 0) {
          break;
        }
        wait(1 + TimeUnit.NANOSECONDS.toMillis(restNanos));
      }
    } catch (InterruptedException error) {
      stopped = true; // nobody would but the end of the process
    }
    started = true;
    requested = false;
    return !stopped;
  }

  private void show(long tookNanos, long failures, long topics) {
    counters.increment(Count.REFRESHES);
    Knowledge now = knowledge;
    synchronized (registries) {
      for (MetricRegistry registry : registries.keySet()) {
        registry.counter(Count.REFRESHES.name).increment();
        registry.counter(Count.REFRESH_FAILURES.name).increment(failures);
        registry.counter(Count.TOPICS_READ.name).increment(topics);
        registry.histogram(Count.REFRESH_MS).update(TimeUnit.NANOSECONDS.toMillis(tookNanos));
        registry.histogram(Count.TOPICS_UNREADABLE).update(now.corruptTopics);
        if (now.snapshot != null) {
          registry.histogram(Count.SNAPSHOT_AGE_MS).update(System.currentTimeMillis() - now.snapshot.timeMs);
        }
      }
    }
  }

  private void failed(String what, Throwable error) {
    counters.increment(Count.REFRESH_FAILURES);
    long count = counters.value(Count.REFRESH_FAILURES);
    if (count <= FAILURES_LOGGED || Long.bitCount(count) == 1) {
      LOG.warn("Basalt {}: {}, failure {}: {}", name, what, count, error.toString());
    }
  }

  /** Collects the rules of topics; what cannot be read becomes unknown, for an older rule might drop too much. */
  final class TopicReader {
    private Map<String, TopicRule> rules;
    private final Set<String> corrupt;

    /** {@code rules}: null where only changes are read. */
    TopicReader(Map<String, TopicRule> rules, Set<String> corrupt) {
      this.rules = rules;
      this.corrupt = corrupt;
    }

    /** Takes one metadata row; null: there is none. */
    void topic(byte[] prefix, byte[] value) {
      counters.increment(Count.TOPICS_READ);
      String topic = TopicPrefix.text(prefix, 0, prefix.length);
      TopicRule rule = null;
      corrupt.remove(topic);
      try {
        rule = value == null ? null : TopicRule.decode(value);
      } catch (CorruptionException error) {
        corrupt.add(topic);
        failed("metadata of " + topic, error);
      }
      put(topic, rule);
    }

    private void put(String topic, TopicRule rule) {
      if (rules == null) {
        TopicRule known = Refresher.this.rules.get(topic);
        if (rule == null ? known == null : rule.isAs(known)) {
          return;
        }
        rules = new HashMap<>(Refresher.this.rules); // scans read the other one
      }
      if (rule == null) {
        rules.remove(topic);
      } else {
        rules.put(topic, rule);
      }
    }
  }
}
