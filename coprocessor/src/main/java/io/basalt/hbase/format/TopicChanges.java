package io.basalt.hbase.format;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * The answer of a region of the metadata table: which of its rows have changed. Also the mark to ask with the next time.
 * Format: docs/formats/topic-changes.md.
 */
public final class TopicChanges {
  private static final byte FORMAT = 1;
  private static final int MARK_BYTES = 1 + 2 * BigEndian.LONG_BYTES;
  private static final int LENGTH_BYTES = 2;

  /** The mark of who knows nothing of the region. No opening has the number 0. */
  public static final Mark NOTHING = new Mark(0, 0);

  public final Mark mark;
  /** The key at which the next region begins; empty: this is the last one. */
  public final byte[] next;
  /** Any row may have changed, so all are to be read. */
  public final boolean all;
  /** The rows that may have changed. */
  public final List<byte[]> keys;

  public TopicChanges(Mark mark, byte[] next, boolean all, List<byte[]> keys) {
    this.mark = mark;
    this.next = next;
    this.all = all;
    this.keys = Collections.unmodifiableList(keys);
  }

  /** How far somebody knows the changes of one opening of a region. */
  public static final class Mark {
    public final long opened;
    public final long count;

    public Mark(long opened, long count) {
      this.opened = opened;
      this.count = count;
    }

    public byte[] encode() {
      return ByteBuffer.allocate(MARK_BYTES).put(FORMAT).putLong(opened).putLong(count).array();
    }

    public static Mark decode(byte[] data) throws CorruptionException {
      check(data.length == MARK_BYTES && data[0] == FORMAT);
      return new Mark(BigEndian.readLong(data, 1), BigEndian.readLong(data, 1 + BigEndian.LONG_BYTES));
    }
  }

  public byte[] encode() {
    int bytes = MARK_BYTES + LENGTH_BYTES + next.length + 1 + LENGTH_BYTES;
    for (byte[] key : keys) {
      bytes += LENGTH_BYTES + key.length;
    }
    ByteBuffer data = ByteBuffer.allocate(bytes).put(mark.encode());
    put(data, next);
    data.put((byte) (all ? 1 : 0)).putShort((short) keys.size());
    keys.forEach(key -> put(data, key));
    return data.array();
  }

  private static void put(ByteBuffer data, byte[] key) {
    data.putShort((short) key.length).put(key);
  }

  public static TopicChanges decode(byte[] data) throws CorruptionException {
    check(data.length >= MARK_BYTES);
    Mark mark = Mark.decode(Arrays.copyOf(data, MARK_BYTES));
    check(mark.opened != 0);
    byte[] next = key(data, MARK_BYTES);
    int offset = MARK_BYTES + LENGTH_BYTES + next.length;
    check(offset + 1 + LENGTH_BYTES <= data.length && (data[offset] == 0 || data[offset] == 1));
    boolean all = data[offset] == 1;
    int count = BigEndian.readUnsignedShort(data, offset + 1);
    check(!all || count == 0);
    offset += 1 + LENGTH_BYTES;
    List<byte[]> keys = new ArrayList<>();
    for (int index = 0; index < count; index++) {
      byte[] key = key(data, offset);
      check(key.length > 0);
      keys.add(key);
      offset += LENGTH_BYTES + key.length;
    }
    check(offset == data.length);
    return new TopicChanges(mark, next, all, keys);
  }

  private static byte[] key(byte[] data, int offset) throws CorruptionException {
    check(offset + LENGTH_BYTES <= data.length);
    int start = offset + LENGTH_BYTES;
    int length = BigEndian.readUnsignedShort(data, offset);
    check(start + length <= data.length);
    return Arrays.copyOfRange(data, start, start + length);
  }

  private static void check(boolean holds) throws CorruptionException {
    if (!holds) {
      throw new CorruptionException("the changes of topics are not as their format says");
    }
  }
}
