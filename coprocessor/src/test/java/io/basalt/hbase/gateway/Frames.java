package io.basalt.hbase.gateway;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/**
 * How one call carries many values: one after the other, each a 4-byte length and its bytes; the length −1 is a null.
 * A call for each would cost far more than what is asked.
 */
public final class Frames {
  private Frames() {}

  /** What a batch is read from. */
  public static final class In {
    private final DataInputStream input;

    public In(byte[] batch) {
      input = new DataInputStream(new ByteArrayInputStream(batch));
    }

    public boolean hasMore() throws IOException {
      return input.available() > 0;
    }

    public byte[] bytes() throws IOException {
      int length = input.readInt();
      if (length < 0) {
        return null;
      }
      byte[] value = new byte[length];
      input.readFully(value);
      return value;
    }

    public long number() throws IOException {
      return input.readLong();
    }

    public int count() throws IOException {
      return input.readInt();
    }

    public boolean flag() throws IOException {
      return input.readBoolean();
    }
  }

  /** What a batch is written to. */
  public static final class Out {
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private final DataOutputStream output = new DataOutputStream(bytes);

    public Out bytes(byte[] value) throws IOException {
      output.writeInt(value == null ? -1 : value.length);
      if (value != null) {
        output.write(value);
      }
      return this;
    }

    public Out text(String value) throws IOException {
      return bytes(value == null ? null : value.getBytes(StandardCharsets.UTF_8));
    }

    public Out number(long value) throws IOException {
      output.writeLong(value);
      return this;
    }

    public Out count(int value) throws IOException {
      output.writeInt(value);
      return this;
    }

    public Out flag(boolean value) throws IOException {
      output.writeBoolean(value);
      return this;
    }

    public byte[] toBytes() {
      return bytes.toByteArray();
    }
  }
}
