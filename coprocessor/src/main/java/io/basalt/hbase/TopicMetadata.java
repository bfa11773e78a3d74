package io.basalt.hbase;

/**
 * Column m of the metadata table. Format: docs/formats/metadata.md.
 *
 * <p>Region servers need the first fields only; the properties behind them are checked by the checksum, not read.
 */
final class TopicMetadata {
  static final int VERSION = 1;
  private static final int GENERATION_OFFSET = 1;
  private static final int TTL_MS_OFFSET = 5;
  private static final int ON_INVALID_OFFSET = 13;
  private static final int OTHERS_LENGTH_OFFSET = 34;
  private static final int FIXED_BYTES = 38;

  final TopicRule rule;

  private TopicMetadata(TopicRule rule) {
    this.rule = rule;
  }

  /** What the Python side wrote. */
  static TopicMetadata decode(byte[] data) throws CorruptionException {
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
    return new TopicMetadata(new TopicRule(generation, ttlMs, onInvalid(data[ON_INVALID_OFFSET])));
  }

  private static OnInvalid onInvalid(byte number) throws CorruptionException {
    for (OnInvalid value : OnInvalid.values()) {
      if (value.number == number) {
        return value;
      }
    }
    throw new CorruptionException("topic metadata with onInvalid " + number);
  }
}
