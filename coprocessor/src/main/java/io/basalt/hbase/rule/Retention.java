package io.basalt.hbase.rule;

import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.format.TopicRule.OnInvalid;
import io.basalt.hbase.format.WritePointers;
import java.util.concurrent.TimeUnit;

/**
 * The fate of one stored row: keep it, drop it, or roll it back; and why. Pure, and written twice: its twin is
 * {@code basalt_engine.retention}. The rules as tables: docs/formats/retention.md, cells.md.
 *
 * <p>Only positive knowledge drops: whatever is unknown is kept.
 */
public final class Retention {
  /** So far may any two clocks differ: what has expired by this server's clock goes this much later. */
  public static final long CLOCK_SLACK_MS = TimeUnit.HOURS.toMillis(1);

  /**
   * A clock that is set back leaves publish times ahead of it: payloads outlive by this much the messages that a
   * truncation took.
   */
  static final long CLOCK_SET_BACK_MS = TimeUnit.HOURS.toMillis(1);

  /** In place of a time: the row has no column x. None is ever negative. */
  static final long NO_EXPIRY = -1;

  /** The write time in the key of a writer's bound row. */
  static final long ALL_ONES_MS = -1;

  private Retention() {}

  /** Whether rows of {@code generation} belong to a past incarnation; {@code current} is negative once it is deleted. */
  static boolean isOldGeneration(long generation, int current) {
    return generation < Math.abs((long) current) || current < 0 && generation == -(long) current;
  }

  /** The verdict over a message row with columns t and x. */
  public static Verdict judgeMessage(
      long generation, long publishMs, long writtenBy, long expireMs, TopicRule topic, Snapshot snapshot, long nowMs) {
    if (topic == null) {
      return Verdict.UNKNOWN_TOPIC;
    }
    if (isOldGeneration(generation, topic.generation)) {
      return Verdict.OLD_GENERATION;
    }
    if (hasPassed(publishMs, topic.ttlMs, 0, nowMs) || expireMs != NO_EXPIRY && expireMs <= nowMs) {
      return Verdict.EXPIRED;
    }
    if (generation == topic.generation && hasPassed(publishMs, 0, 0, topic.truncatedBeforeMs - 1)) {
      return Verdict.TRUNCATED;
    }
    if (writtenBy == WritePointers.NONE) {
      return Verdict.NO_TRANSACTION;
    }
    if (writtenBy < 0) {
      return topic.onInvalid == OnInvalid.DROP ? Verdict.ROLLED_BACK : Verdict.ROLLED_BACK_RETAINED;
    }
    if (snapshot == null) {
      return Verdict.NO_SNAPSHOT;
    }
    if (snapshot.isInvalid(writtenBy)) {
      return topic.onInvalid == OnInvalid.DROP ? Verdict.INVALID : Verdict.INVALID_RETAINED;
    }
    return Verdict.LIVE;
  }

  /** The verdict over a payload row; it must outlive any reference that its writer may yet publish. */
  public static Verdict judgePayload(
      long generation,
      long writePointer,
      long writeMs,
      TopicRule topic,
      Snapshot snapshot,
      long lifetimeMsMax,
      long nowMs) {
    if (topic == null) {
      return Verdict.UNKNOWN_TOPIC;
    }
    if (isOldGeneration(generation, topic.generation)) {
      return Verdict.OLD_GENERATION;
    }
    long bornMs = writeMs == ALL_ONES_MS ? Long.divideUnsigned(writePointer, WritePointers.POINTERS_PER_MS) : writeMs;
    if (hasPassed(bornMs, topic.ttlMs, lifetimeMsMax, nowMs)) {
      return Verdict.EXPIRED;
    }
    if (generation == topic.generation
        && hasPassed(bornMs, lifetimeMsMax, CLOCK_SET_BACK_MS, topic.truncatedBeforeMs - 1)) {
      return Verdict.TRUNCATED;
    }
    if (snapshot == null) {
      return Verdict.NO_SNAPSHOT;
    }
    if (snapshot.isInvalid(writePointer)) {
      return topic.onInvalid == OnInvalid.DROP ? Verdict.INVALID : Verdict.INVALID_PAYLOAD_RETAINED;
    }
    return Verdict.LIVE;
  }

  /**
   * The verdict over one version of a cell. {@code settled}: a newer version of it was seen for which {@link #settles}
   * holds; {@code purgeBound}: what is older than a version of a writer up to it is all in this scan, and nothing more comes.
   */
  static Verdict judgeCell(
      long generation,
      long writer,
      boolean tombstone,
      boolean settled,
      long purgeBound,
      TopicRule table,
      Snapshot snapshot) {
    if (table == null) {
      return Verdict.UNKNOWN_TABLE;
    }
    if (isOldGeneration(generation, table.generation)) {
      return Verdict.OLD_GENERATION;
    }
    if (snapshot == null) {
      return Verdict.NO_SNAPSHOT;
    }
    if (snapshot.isInvalid(writer)) {
      return Verdict.INVALID;
    }
    if (writer > snapshot.visibilityUpperBound) {
      return Verdict.LIVE;
    }
    // From here on the writer has committed, and every reader sees this version or a newer one.
    if (settled) {
      return Verdict.SUPERSEDED;
    }
    return tombstone && writer <= purgeBound ? Verdict.DELETED : Verdict.LIVE;
  }

  /** Whether nobody can see an older version of the cell, after this verdict over one of this writer. */
  static boolean settles(Verdict verdict, long writer, Snapshot snapshot) {
    return verdict == Verdict.DELETED || verdict == Verdict.LIVE && writer <= snapshot.visibilityUpperBound;
  }

  /** Whether start + ttl + lifetime <= now. Times in keys are unsigned: from 2^63 on they lie in the future. */
  private static boolean hasPassed(long startMs, long ttlMs, long lifetimeMs, long nowMs) {
    if (startMs < 0) {
      return false;
    }
    long endMs = startMs + ttlMs;
    if (endMs < 0) {
      return false;
    }
    endMs += lifetimeMs;
    return endMs >= 0 && endMs <= nowMs;
  }
}
