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
    int end = TopicPrefix.end(key, key.length);
    if (end == TopicPrefix.NONE) {
      throw new CorruptionException("a message key has no topic prefix");
    }
    if (key.length != end + SUFFIX_BYTES) {
      throw new CorruptionException(
          "a message key is " + key.length + " bytes, expected " + (end + SUFFIX_BYTES));
    }
    return new MessageKey(key, end);
  }

  public byte[] encode() {
    byte[] key = new byte[1 + prefix.length + SUFFIX_BYTES];
    int end = 1 + prefix.length;
    key[0] = (byte) salt;
    System.arraycopy(prefix, 0, key, 1, prefix.length);
    BigEndian.writeInt(key, end, (int) generation);
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
