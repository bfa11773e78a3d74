package io.basalt.hbase.format;

import java.nio.charset.StandardCharsets;

/**
 * {@code namespace:topic:} or {@code namespace:~table:}, as it stands behind the salt of every row key. Formats:
 * docs/formats/row-keys.md and cells.md. No topic's name begins with the sign, so that neither is taken for the other.
 */
public final class TopicPrefix {
  static final int NAME_CHARS_MAX = 255;
  public static final int NONE = -1;
  private static final byte TABLE_SIGN = '~';

  private TopicPrefix() {}

  /**
   * The end of the topic prefix of a salted key, or {@link #NONE} when it has none.
   *
   * <p>Byte 0 is the salt and may be a colon, and so may any byte of the numbers: the prefix ends at the second colon
   * after byte 0.
   */
  public static int end(byte[] key, int length) {
    int middle = nameEnd(key, 1, length);
    return middle == NONE ? NONE : behind(nameEnd(key, middle + 1, length));
  }

  /** The same of a table's prefix. */
  public static int tableEnd(byte[] key, int length) {
    int middle = nameEnd(key, 1, length);
    if (middle == NONE || middle + 1 >= length || key[middle + 1] != TABLE_SIGN) {
      return NONE;
    }
    return behind(nameEnd(key, middle + 2, length));
  }

  /** The end of the topic prefix of a key of this kind, behind which it has so many bytes. */
  static int end(byte[] key, int suffixBytes, String kind) throws CorruptionException {
    int end = end(key, key.length);
    if (end == NONE) {
      throw new CorruptionException("a " + kind + " key has no topic prefix");
    }
    if (key.length != end + suffixBytes) {
      throw new CorruptionException(
          "a " + kind + " key is " + key.length + " bytes, expected " + (end + suffixBytes));
    }
    return end;
  }

  /** A key of this salt, prefix and generation, with room for the rest of so many bytes behind the prefix. */
  static byte[] key(int salt, byte[] prefix, long generation, int suffixBytes) {
    byte[] key = new byte[1 + prefix.length + suffixBytes];
    key[0] = (byte) salt;
    System.arraycopy(prefix, 0, key, 1, prefix.length);
    BigEndian.writeInt(key, 1 + prefix.length, (int) generation);
    return key;
  }

  /** A prefix as text: how its rule is looked up. */
  public static String text(byte[] data, int offset, int length) {
    return new String(data, offset, length, StandardCharsets.ISO_8859_1);
  }

  private static int behind(int colon) {
    return colon == NONE ? NONE : colon + 1;
  }

  /** The place of the colon that ends the name which begins at {@code start}. */
  private static int nameEnd(byte[] key, int start, int length) {
    int stop = Math.min(length, start + NAME_CHARS_MAX + 1);
    for (int index = start; index < stop; index++) {
      if (key[index] == ':') {
        return index == start ? NONE : index;
      }
      if (!isNameChar(key[index]) && (key[index] != '.' || index == start)) {
        return NONE;
      }
    }
    return NONE;
  }

  private static boolean isNameChar(byte value) {
    return value >= 'a' && value <= 'z'
        || value >= '0' && value <= '9'
        || value >= 'A' && value <= 'Z'
        || value == '_'
        || value == '-';
  }
}
