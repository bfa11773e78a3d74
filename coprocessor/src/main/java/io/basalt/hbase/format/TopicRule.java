package io.basalt.hbase.format;

import java.nio.charset.StandardCharsets;

/**
 * The part of the metadata of a topic or table that retention needs. Format: docs/formats/metadata.md, column
 * m; in Python {@code TopicMetadata.rule}.
 *
 * <p>Region servers need the first fields, and of the properties behind them the last, by which the topic was truncated:
 * they are sorted, and no other name has a tilde.
 */
public final class TopicRule {
  static final int VERSION = 1;
  private static final int GENERATION_OFFSET = 1;
  private static final int TTL_MS_OFFSET = 5;
  private static final int ON_INVALID_OFFSET = 13;
  private static final int OTHERS_LENGTH_OFFSET = 34;
  private static final int FIXED_BYTES = 38;
  private static final byte[] TRUNCATED_BEFORE = "\"~truncatedBefore\":\"".getBytes(StandardCharsets.US_ASCII);
  private static final int TIME_DIGITS_MAX = 18; // as many as Python writes: they fit into a long

  /** Topic property {@code onInvalid}: what becomes of rows whose writer failed. */
  public enum OnInvalid {
    DROP(0, "drop"),
    RETAIN(1, "retain");

    /** As the metadata table stores it. */
    final int number;
    public final String value;

    OnInvalid(int number, String value) {
      this.number = number;
      this.value = value;
    }

    private static OnInvalid of(byte number) throws CorruptionException {
      for (OnInvalid value : values()) {
        if (value.number == number) {
          return value;
        }
      }
      throw new CorruptionException("topic metadata with onInvalid " + number);
    }
  }

  /** Negative once the topic is deleted. */
  public final int generation;
  public final long ttlMs;
  public final OnInvalid onInvalid;

  /** What was published before in this generation is out of every reader's reach; 0: nothing is. */
  public final long truncatedBeforeMs;

  public TopicRule(int generation, long ttlMs, OnInvalid onInvalid) {
    this(generation, ttlMs, onInvalid, 0);
  }

  public TopicRule(int generation, long ttlMs, OnInvalid onInvalid, long truncatedBeforeMs) {
    this.generation = generation;
    this.ttlMs = ttlMs;
    this.onInvalid = onInvalid;
    this.truncatedBeforeMs = truncatedBeforeMs;
  }

  /** The rule in a row of the metadata table. */
  public static TopicRule decode(byte[] data) throws CorruptionException {
    int othersEnd = data.length - BigEndian.INT_BYTES;
    if (othersEnd < FIXED_BYTES) {
      throw new CorruptionException("topic metadata of " + data.length + " bytes");
    }
    if (Crc32c.of(data, 0, othersEnd) != BigEndian.readInt(data, othersEnd)) {
      throw new CorruptionException("topic metadata does not match its checksum");
    }
    if (data[0] != VERSION) {
      throw new CorruptionException("topic metadata of version " + data[0]);
    }
    if (BigEndian.readUnsignedInt(data, OTHERS_LENGTH_OFFSET) != othersEnd - FIXED_BYTES) {
      throw new CorruptionException("topic metadata with properties of a wrong length");
    }
    int generation = BigEndian.readInt(data, GENERATION_OFFSET);
    long ttlMs = BigEndian.readLong(data, TTL_MS_OFFSET);
    // A number that nobody writes must not become a reason to drop rows.
    if (generation == 0 || generation == Integer.MIN_VALUE || ttlMs < 0) {
      throw new CorruptionException("topic metadata with generation " + generation + " and TTL " + ttlMs);
    }
    long truncatedBeforeMs = truncatedBeforeMs(data, FIXED_BYTES, othersEnd);
    return new TopicRule(generation, ttlMs, OnInvalid.of(data[ON_INVALID_OFFSET]), truncatedBeforeMs);
  }

  /** The time at the end of the properties; 0 if another one is the last. Quotes within their texts are escaped. */
  private static long truncatedBeforeMs(byte[] data, int start, int stop) {
    int digitsEnd = stop - 2;
    if (digitsEnd < start || data[stop - 2] != '"' || data[stop - 1] != '}') {
      return 0;
    }
    int digits = digitsEnd;
    while (digits > start && data[digits - 1] >= '0' && data[digits - 1] <= '9') {
      digits--;
    }
    int name = digits - TRUNCATED_BEFORE.length;
    if (digits == digitsEnd || digitsEnd - digits > TIME_DIGITS_MAX || name <= start
        || data[name - 1] != '{' && data[name - 1] != ',') {
      return 0;
    }
    for (int index = 0; index < TRUNCATED_BEFORE.length; index++) {
      if (data[name + index] != TRUNCATED_BEFORE[index]) {
        return 0;
      }
    }
    return Long.parseLong(new String(data, digits, digitsEnd - digits, StandardCharsets.US_ASCII));
  }

  public boolean isAs(TopicRule other) {
    return other != null
        && generation == other.generation
        && ttlMs == other.ttlMs
        && onInvalid == other.onInvalid
        && truncatedBeforeMs == other.truncatedBeforeMs;
  }
}
