package io.basalt.hbase.format;

import java.util.Arrays;

/** A payload row's key, taken apart. Format: docs/formats/row-keys.md. */
public final class PayloadKey {
  public static final int SUFFIX_BYTES = 22;
  private static final int WRITE_POINTER_OFFSET = 4;
  private static final int WRITE_MS_OFFSET = 12;
  private static final int PAYLOAD_SEQUENCE_OFFSET = 20;

  public final int salt;
  public final byte[] prefix;
  /** Unsigned, 32 bits. */
  public final long generation;
  /** Unsigned, 64 bits. */
  public final long writePointer;
  /** Unsigned, 64 bits; all ones in the key of a bound row. */
  public final long writeMs;
  public final int payloadSequence;

  private PayloadKey(byte[] key, int prefixEnd) {
    salt = key[0] & 0xff;
    prefix = Arrays.copyOfRange(key, 1, prefixEnd);
    generation = MessageKey.generation(key, prefixEnd);
    writePointer = writePointer(key, prefixEnd);
    writeMs = writeMs(key, prefixEnd);
    payloadSequence = BigEndian.readUnsignedShort(key, prefixEnd + PAYLOAD_SEQUENCE_OFFSET);
  }

  /** The key in these bytes. */
  public static PayloadKey decode(byte[] key) throws CorruptionException {
    return new PayloadKey(key, TopicPrefix.end(key, SUFFIX_BYTES, "payload"));
  }

  public byte[] encode() {
    byte[] key = TopicPrefix.key(salt, prefix, generation, SUFFIX_BYTES);
    int end = 1 + prefix.length;
    BigEndian.writeLong(key, end + WRITE_POINTER_OFFSET, writePointer);
    BigEndian.writeLong(key, end + WRITE_MS_OFFSET, writeMs);
    BigEndian.writeShort(key, end + PAYLOAD_SEQUENCE_OFFSET, payloadSequence);
    return key;
  }

  public static long writePointer(byte[] key, int prefixEnd) {
    return BigEndian.readLong(key, prefixEnd + WRITE_POINTER_OFFSET);
  }

  public static long writeMs(byte[] key, int prefixEnd) {
    return BigEndian.readLong(key, prefixEnd + WRITE_MS_OFFSET);
  }
}
