package io.basalt.hbase.knowledge;

import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.rule.Retention;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * The knowledge of a region server: topics and transactions. Immutable: a scan takes one and keeps to it.
 *
 * <p>Times are {@link System#nanoTime}, from before the read was sent. What was never read is unknown, and so are topics
 * whose last successful read is too long ago.
 */
public final class Knowledge {
  /**
   * The time for which the rules of topics hold without being read again. Far less than {@link Retention#CLOCK_SLACK_MS}: a
   * row that goes by an outdated TTL had expired for the slack's hour, so before the TTL was changed.
   */
  static final long RULES_AGE_MS_MAX = TimeUnit.MINUTES.toMillis(10);

  public static final Knowledge NOTHING = new Knowledge(null, 0, 0, null, false);

  private final Map<String, TopicRule> rules;
  private final long rulesReadNanos;
  /** The number of metadata rows that could not be read. */
  final int corruptTopics;
  /** The newest transaction snapshot, or null. However old: an older one only drops less. */
  public final Snapshot snapshot;
  /**
   * A read has found that there is no snapshot row at all. Then no writer was ever pruned, for pruning never leaves the
   * row away.
   */
  public final boolean neverPublished;

  private Knowledge(
      Map<String, TopicRule> rules, long rulesReadNanos, int corruptTopics, Snapshot snapshot, boolean neverPublished) {
    this.rules = rules;
    this.rulesReadNanos = rulesReadNanos;
    this.corruptTopics = corruptTopics;
    this.snapshot = snapshot;
    this.neverPublished = neverPublished;
  }

  public Knowledge withRules(Map<String, TopicRule> newRules, int newCorruptTopics, long readNanos) {
    return new Knowledge(newRules, readNanos, newCorruptTopics, snapshot, neverPublished);
  }

  public Knowledge withSnapshot(Snapshot newSnapshot) {
    return new Knowledge(rules, rulesReadNanos, corruptTopics, newSnapshot, false);
  }

  public Knowledge withoutSnapshotRow() {
    return new Knowledge(rules, rulesReadNanos, corruptTopics, snapshot, snapshot == null);
  }

  /** The row could not be read: what it says now, nobody knows. */
  Knowledge withSnapshotUnread() {
    return new Knowledge(rules, rulesReadNanos, corruptTopics, snapshot, false);
  }

  /** The rules by topic prefix; none when they are unknown or too old at this time. */
  public Map<String, TopicRule> rules(long nowNanos) {
    boolean known = rules != null && nowNanos - rulesReadNanos <= TimeUnit.MILLISECONDS.toNanos(RULES_AGE_MS_MAX);
    return known ? rules : Collections.emptyMap();
  }
}
