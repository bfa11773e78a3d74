package io.basalt.hbase;

/** {@code namespace:topic:}, as it stands behind the salt of every row key. Format: docs/formats/row-keys.md. */
final class TopicPrefix {
  static final int NAME_CHARS_MAX = 255;
  static final int NONE = -1;

  private TopicPrefix() {}

  /**
   * Where the topic prefix of a salted key ends, or {@link #NONE} when it has none.
   *
   * <p>Byte 0 is the salt and may be a colon, and so may any byte of the numbers: the prefix ends at the second colon
   * after byte 0.
   */
  static int end(byte[] key, int length) {
    int middle = nameEnd(key, 1, length);
    if (middle == NONE) {
      return NONE;
    }
    int last = nameEnd(key, middle + 1, length);
    return last == NONE ? NONE : last + 1;
  }

  /** Where the colon stands that ends the name which begins at {@code start}. */
  private static int nameEnd(byte[] key, int start, int length) {
    int stop = Math.min(length, start + NAME_CHARS_MAX + 1);
    for (int index = start; index < stop; index++) {
      if (key[index] == ':') {
        return index == start ? NONE : index;
      }
      if (!isNameChar(key[index])) {
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
