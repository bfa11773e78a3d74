package io.basalt.hbase.format;

import java.util.Arrays;

/**
 * A message row's key, taken apart. Format: docs/formats/row-keys.md.
 *
 * <p>The static readers are for the scanner, which makes no object per row: they take a key whose prefix end is known.
 */
public final class MessageKey {
  public static final int SUFFIX_BYTES = 14;
  private static final int PUBLISH_MS_OFFSET = 4;
  private static final int SEQUENCE_OFFSET = 12;

  public final int salt;
  public final byte[] prefix;
  /** Unsigned, 32 bits. */
  public final long generation;
  /** Unsigned, 64 bits. */
  public final long publishMs;
  public final int sequence;

  private MessageKey(byte[] key, int prefixEnd) {
    salt = key[0] & 0xff;
    prefix = Arrays.copyOfRange(key, 1, prefixEnd);
    generation = generation(key, prefixEnd);
    publishMs = publishMs(key, prefixEnd);
    sequence = BigEndian.readUnsignedShort(key, prefixEnd + SEQUENCE_OFFSET);
  }

  /** The key in these bytes. */
  public static MessageKey decode(byte[] key) throws CorruptionException {
    return new MessageKey(key, TopicPrefix.end(key, SUFFIX_BYTES, "message"));
  }

  public byte[] encode() {
    byte[] key = TopicPrefix.key(salt, prefix, generation, SUFFIX_BYTES);
    int end = 1 + prefix.length;
    BigEndian.writeLong(key, end + PUBLISH_MS_OFFSET, publishMs);
    BigEndian.writeShort(key, end + SEQUENCE_OFFSET, sequence);
    return key;
  }

  public static long generation(byte[] key, int prefixEnd) {
    return BigEndian.readUnsignedInt(key, prefixEnd);
  }

  public static long publishMs(byte[] key, int prefixEnd) {
    return BigEndian.readLong(key, prefixEnd + PUBLISH_MS_OFFSET);
  }
}
