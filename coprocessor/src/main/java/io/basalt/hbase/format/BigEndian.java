package io.basalt.hbase.format;

/** Big-endian numbers in byte arrays: how all of Basalt's keys and columns hold them. */
public final class BigEndian {
  public static final int LONG_BYTES = 8;
  public static final int INT_BYTES = 4;
  private static final int BYTE_MASK = 0xff;

  private BigEndian() {}

  public static long readLong(byte[] data, int offset) {
    return (long) readInt(data, offset) << Integer.SIZE | readUnsignedInt(data, offset + INT_BYTES);
  }

  static int readInt(byte[] data, int offset) {
    return readUnsignedShort(data, offset) << Short.SIZE | readUnsignedShort(data, offset + 2);
  }

  static long readUnsignedInt(byte[] data, int offset) {
    return Integer.toUnsignedLong(readInt(data, offset));
  }

  static int readUnsignedShort(byte[] data, int offset) {
    return (data[offset] & BYTE_MASK) << Byte.SIZE | data[offset + 1] & BYTE_MASK;
  }

  public static void writeLong(byte[] data, int offset, long value) {
    writeInt(data, offset, (int) (value >>> Integer.SIZE));
    writeInt(data, offset + INT_BYTES, (int) value);
  }

  public static void writeInt(byte[] data, int offset, int value) {
    writeShort(data, offset, value >>> Short.SIZE);
    writeShort(data, offset + 2, value);
  }

  public static void writeShort(byte[] data, int offset, int value) {
    data[offset] = (byte) (value >>> Byte.SIZE);
    data[offset + 1] = (byte) value;
  }
}
