package io.basalt.hbase.format;

import java.nio.charset.StandardCharsets;

/** The one column of a system row: version, body, checksum. Format: docs/formats/system-table.md. */
public final class SystemRow {
  static final int VERSION = 1;

  private SystemRow() {}

  public static byte[] key(String kind, String name) {
    return (kind + ":" + name).getBytes(StandardCharsets.UTF_8);
  }

  /** The column that stores this body. */
  public static byte[] seal(byte[] body) {
    byte[] data = new byte[1 + body.length + BigEndian.INT_BYTES];
    data[0] = VERSION;
    System.arraycopy(body, 0, data, 1, body.length);
    BigEndian.writeInt(data, 1 + body.length, Crc32c.of(data, 0, 1 + body.length));
    return data;
  }

  /** The body in this column. */
  public static byte[] open(byte[] data) throws CorruptionException {
    int bodyEnd = data.length - BigEndian.INT_BYTES;
    if (bodyEnd < 1) {
      throw new CorruptionException("a system row of " + data.length + " bytes");
    }
    if (Crc32c.of(data, 0, bodyEnd) != BigEndian.readInt(data, bodyEnd)) {
      throw new CorruptionException("a system row does not match its checksum");
    }
    if (data[0] != VERSION) {
      throw new CorruptionException("a system row of version " + data[0]);
    }
    byte[] body = new byte[bodyEnd - 1];
    System.arraycopy(data, 1, body, 0, body.length);
    return body;
  }
}
