package io.basalt.hbase.format;

import java.util.Arrays;

/**
 * The key of one version of a cell of a transactional table, taken apart. Format: docs/formats/cells.md.
 *
 * <pre>
 *   salt(1) "namespace:~table:" generation(4) escaped(row) 00 01 escaped(column) 00 01 inverted(8)
 * </pre>
 *
 * What stands before the inverted write pointer is the cell's own, so that two keys are versions of one cell exactly when
 * those bytes are the same. The static readers are for the scanner, which makes no object per row.
 */
public final class CellKey {
  public static final int POINTER_BYTES = BigEndian.LONG_BYTES;
  static final int ROW_BYTES_MAX = 4_096;
  static final int COLUMN_BYTES_MAX = 1_024;
  private static final int GENERATION_BYTES = BigEndian.INT_BYTES;
  private static final int END_BYTES = 2;
  private static final byte ESCAPE = 0;
  private static final byte ESCAPED_ZERO = (byte) 0xff;
  private static final byte END = 1;
  private static final int NONE = -1;

  public final int salt;
  public final byte[] prefix;
  /** Unsigned, 32 bits. */
  public final long generation;
  public final byte[] row;
  public final byte[] column;
  public final long writePointer;

  private CellKey(byte[] key, int prefixEnd) {
    int rowStart = prefixEnd + GENERATION_BYTES;
    int rowEnd = fieldEnd(key, rowStart, key.length);
    salt = key[0] & 0xff;
    prefix = Arrays.copyOfRange(key, 1, prefixEnd);
    generation = MessageKey.generation(key, prefixEnd);
    row = unescaped(key, rowStart, rowEnd);
    column = unescaped(key, rowEnd + END_BYTES, fieldEnd(key, rowEnd + END_BYTES, key.length));
    writePointer = writePointer(key, key.length);
  }

  /** The key in these bytes. */
  public static CellKey decode(byte[] key) throws CorruptionException {
    int end = TopicPrefix.tableEnd(key, key.length);
    if (end == TopicPrefix.NONE) {
      throw new CorruptionException("a cell's key has no table prefix");
    }
    if (!isReadable(key, end, key.length) || writePointer(key, key.length) <= 0) {
      throw new CorruptionException("a cell's key is damaged behind its table prefix");
    }
    return new CellKey(key, end);
  }

  public byte[] encode() {
    int suffixBytesMax = GENERATION_BYTES + 2 * (row.length + column.length + END_BYTES) + POINTER_BYTES;
    byte[] key = TopicPrefix.key(salt, prefix, generation, suffixBytesMax);
    int offset = escape(row, key, 1 + prefix.length + GENERATION_BYTES);
    offset = escape(column, key, offset);
    BigEndian.writeLong(key, offset, WritePointers.POINTER_MAX - writePointer);
    return Arrays.copyOf(key, offset + POINTER_BYTES);
  }

  /** The writer of the version with this key: positive in every key that was ever written. */
  public static long writePointer(byte[] key, int length) {
    return length < POINTER_BYTES ? NONE : WritePointers.POINTER_MAX - BigEndian.readLong(key, length - POINTER_BYTES);
  }

  /** True when the bytes behind the prefix are those of a key: all but the writer, which is checked apart. */
  public static boolean isReadable(byte[] key, int prefixEnd, int length) {
    int stop = length - POINTER_BYTES;
    int rowStart = prefixEnd + GENERATION_BYTES;
    int rowEnd = fieldEnd(key, rowStart, stop);
    if (rowEnd == NONE || !isLong(key, rowStart, rowEnd, 1, ROW_BYTES_MAX)) {
      return false;
    }
    int columnStart = rowEnd + END_BYTES;
    int columnEnd = fieldEnd(key, columnStart, stop);
    return columnEnd != NONE && columnEnd + END_BYTES == stop
        && isLong(key, columnStart, columnEnd, 1, COLUMN_BYTES_MAX);
  }

  /** The place of the two bytes that end the field which begins at {@code start}; -1 when it does not end. */
  private static int fieldEnd(byte[] key, int start, int stop) {
    int index = start;
    while (index + 1 < stop) {
      if (key[index] != ESCAPE) {
        index++;
      } else if (key[index + 1] == ESCAPED_ZERO) {
        index += 2;
      } else {
        return key[index + 1] == END ? index : NONE;
      }
    }
    return NONE;
  }

  private static boolean isLong(byte[] key, int start, int end, int least, int most) {
    int length = end - start;
    for (int index = start; index < end; index++) {
      if (key[index] == ESCAPE) {
        length--; // it stands for itself together with the byte behind it
      }
    }
    return least <= length && length <= most;
  }

  private static byte[] unescaped(byte[] key, int start, int end) {
    byte[] field = new byte[end - start];
    int length = 0;
    for (int index = start; index < end; index++) {
      field[length++] = key[index];
      if (key[index] == ESCAPE) {
        index++;
      }
    }
    return Arrays.copyOf(field, length);
  }

  private static int escape(byte[] field, byte[] key, int start) {
    int offset = start;
    for (byte value : field) {
      key[offset++] = value;
      if (value == ESCAPE) {
        key[offset++] = ESCAPED_ZERO;
      }
    }
    key[offset++] = ESCAPE;
    key[offset++] = END;
    return offset;
  }
}
