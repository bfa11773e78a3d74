package io.basalt.hbase.format;

/**
 * The part of the metadata of a topic or table that retention needs. Format: docs/formats/metadata.md, column
 * m; in Python {@code TopicMetadata.rule}.
 *
 * <p>Region servers need the first fields only; the properties behind them are checked by the checksum, not read.
 */
public final class TopicRule {
  static final int VERSION = 1;
  private static final int GENERATION_OFFSET = 1;
  private static final int TTL_MS_OFFSET = 5;
  private static final int ON_INVALID_OFFSET = 13;
  private static final int OTHERS_LENGTH_OFFSET = 34;
  private static final int FIXED_BYTES = 38;

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

  public TopicRule(int generation, long ttlMs, OnInvalid onInvalid) {
    this.generation = generation;
    this.ttlMs = ttlMs;
    this.onInvalid = onInvalid;
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
    return new TopicRule(generation, ttlMs, OnInvalid.of(data[ON_INVALID_OFFSET]));
  }

  public boolean isAs(TopicRule other) {
    return other != null
        && generation == other.generation
        && ttlMs == other.ttlMs
        && onInvalid == other.onInvalid;
  }
}
