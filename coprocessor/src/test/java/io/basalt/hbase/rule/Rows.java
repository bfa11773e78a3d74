package io.basalt.hbase.rule;

import io.basalt.hbase.format.BigEndian;
import io.basalt.hbase.format.MessageKey;
import io.basalt.hbase.format.PayloadKey;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.format.TopicRule.OnInvalid;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.KeyValue;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.ScannerContext;
import org.apache.hadoop.hbase.util.Bytes;

/** Cells of message, payload and cell rows, and a scanner over them, for tests. */
public final class Rows {
  static final byte[] FAMILY = {'m'};
  static final String TOPIC = "shop:orders:";
  static final String TABLE = "shop:~orders:";
  static final long NOW_MS = 2_000_000;
  static final TopicRule DROPPING = new TopicRule(2, 1_000_000, OnInvalid.DROP);
  static final TopicRule RETAINING = new TopicRule(2, 1_000_000, OnInvalid.RETAIN);
  static final TopicRule DELETED = new TopicRule(-2, 1_000_000, OnInvalid.DROP);

  private Rows() {}

  static byte[] messageKey(String topic, int generation, long publishMs) {
    byte[] prefix = Bytes.toBytes(topic);
    byte[] key = new byte[1 + prefix.length + MessageKey.SUFFIX_BYTES];
    System.arraycopy(prefix, 0, key, 1, prefix.length);
    BigEndian.writeInt(key, 1 + prefix.length, generation);
    BigEndian.writeLong(key, 1 + prefix.length + 4, publishMs);
    return key;
  }

  /** Of the present generation, with half of its life ahead. */
  static byte[] liveKey() {
    return messageKey(TOPIC, 2, NOW_MS - 500_000);
  }

  static byte[] expiredKey() {
    return messageKey(TOPIC, 2, NOW_MS - 1_000_000);
  }

  static byte[] payloadKey(int generation, long writePointer, long writeMs) {
    byte[] prefix = Bytes.toBytes(TOPIC);
    byte[] key = new byte[1 + prefix.length + PayloadKey.SUFFIX_BYTES];
    System.arraycopy(prefix, 0, key, 1, prefix.length);
    BigEndian.writeInt(key, 1 + prefix.length, generation);
    BigEndian.writeLong(key, 1 + prefix.length + 4, writePointer);
    BigEndian.writeLong(key, 1 + prefix.length + 12, writeMs);
    return key;
  }

  static Cell cell(byte[] key, String column, byte[] value, long timestampMs) {
    KeyValue cell = new KeyValue(key, FAMILY, Bytes.toBytes(column), timestampMs, KeyValue.Type.Put, value);
    cell.setSequenceId(timestampMs + 7);
    return cell;
  }

  static Cell batch(byte[] key) {
    return cell(key, "p", new byte[] {1, 2, 3}, 10);
  }

  static Cell reference(byte[] key) {
    return cell(key, "r", new byte[24], 10);
  }

  static Cell writer(byte[] key, long pointer) {
    return cell(key, "t", Bytes.toBytes(pointer), pointer < 0 ? 20 : 10);
  }

  static Cell expiry(byte[] key, long expireMs) {
    return cell(key, "x", Bytes.toBytes(expireMs), 10);
  }

  public static byte[] cellKey(String row, String column, int generation, long writer) {
    byte[] start = Bytes.toBytes("\0" + TABLE);
    byte[] end = Bytes.toBytes(row + "\0\u0001" + column + "\0\u0001");
    return java.nio.ByteBuffer.allocate(start.length + 4 + end.length + 8)
        .put(start).putInt(generation).put(end).putLong(Long.MAX_VALUE - writer).array();
  }

  /** A version of a cell of the present generation, as the one row that it is. */
  static List<Cell> version(String row, long writer) {
    return row(cell(cellKey(row, "c", 2, writer), "c", new byte[] {1, 42}, 10));
  }

  static List<Cell> tombstone(String row, long writer) {
    return row(cell(cellKey(row, "c", 2, writer), "c", new byte[] {0}, 10));
  }

  static Cell marker(byte[] key) {
    return new KeyValue(key, FAMILY, null, 30, KeyValue.Type.DeleteFamily);
  }

  static List<Cell> row(Cell... cells) {
    return new ArrayList<>(Arrays.asList(cells));
  }

  static Map<String, TopicRule> rules(TopicRule rule) {
    return Collections.singletonMap(TOPIC, rule);
  }

  /** An inner scanner over these rows, which counts what is asked of it. */
  static final class Inner implements InternalScanner, org.apache.hadoop.hbase.regionserver.Shipper {
    private final List<List<Cell>> rows;
    private int next;
    int shipped;
    int closed;

    Inner(List<List<Cell>> rows) {
      this.rows = rows;
    }

    @Override
    public boolean next(List<Cell> result) {
      if (next < rows.size()) {
        result.addAll(rows.get(next++));
      }
      return next < rows.size();
    }

    @Override
    public boolean next(List<Cell> result, ScannerContext context) {
      throw new AssertionError("asked for a part of a row");
    }

    @Override
    public void shipped() {
      shipped++;
    }

    @Override
    public void close() {
      closed++;
    }
  }
}
