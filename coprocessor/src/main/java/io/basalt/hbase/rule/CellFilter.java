package io.basalt.hbase.rule;

import io.basalt.hbase.format.CellKey;
import io.basalt.hbase.format.MessageKey;
import io.basalt.hbase.format.TopicPrefix;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.rule.Verdict.Fate;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.ByteBufferExtendedCell;
import org.apache.hadoop.hbase.Cell;

/**
 * Versions of cells of transactional tables, each a row of its own with the one column {@code c}. A scan sees those of one
 * cell one after the other, the newest first, though perhaps not all of them: others lie in other files, or in memory.
 *
 * <p>What is carried along such a run is whether a newer version was seen that everybody sees, or something newer still.
 * It stays in what this scan writes, so what it hides may go in any scan. Only a tombstone hides versions that the scan
 * does not see, too; it goes when there are none and can be none: {@code CellTableObserver}.
 */
public final class CellFilter extends RowFilter {
  /** In place of a write pointer: no tombstone may go. */
  public static final long NO_PURGE = 0;

  private static final int CONTENT = 'c';
  private static final int TOMBSTONE = 0;
  private static final int VALUE = 1;
  private static final int NOTHING = -1;

  private final long purgeBound;

  // The cell of the row before: its key up to the write pointer.
  private byte[] run = {};
  private int runLength;
  private boolean isRunReadable;
  private boolean isSettled;

  // Of the row that is being judged.
  private boolean isReadable;
  private boolean isTombstone;

  /** {@code purgeBound}: of writers up to this one tombstones may go. */
  public CellFilter(Map<String, TopicRule> rules, FilterPass pass, long nowMs, long purgeBound, Counters counters) {
    super(rules, pass, nowMs, counters);
    this.purgeBound = purgeBound;
  }

  @Override
  int prefixEnd(byte[] rowKey, int length) {
    return TopicPrefix.tableEnd(rowKey, length);
  }

  @Override
  Verdict judge(List<Cell> cells, int from) {
    read(cells, from);
    long writer = CellKey.writePointer(key, keyLength);
    if (!isKeyReadable() || !isReadable || writer <= 0) {
      if (writer > 0) {
        pass.keptUnjudged(writer);
      }
      return Verdict.UNREADABLE;
    }
    Verdict verdict = Retention.judgeCell(
        MessageKey.generation(key, prefixEnd), writer, isTombstone, isSettled, purgeBound, rule(), pass.snapshot());
    isSettled |= Retention.settles(verdict, writer, pass.snapshot());
    if (verdict == Verdict.UNKNOWN_TABLE) {
      pass.keptUnjudged(writer);
    } else if (verdict.fate == Fate.KEEP) {
      pass.kept(writer);
    }
    return verdict;
  }

  /** True when the key can be read; if it is of another cell than the one before, nothing newer of it was seen. */
  private boolean isKeyReadable() {
    int length = Math.max(0, keyLength - CellKey.POINTER_BYTES);
    if (length != runLength || !keyHas(run, 0, length)) {
      if (run.length < length) {
        run = new byte[key.length];
      }
      System.arraycopy(key, 0, run, 0, length);
      runLength = length;
      isRunReadable = prefixEnd != TopicPrefix.NONE && CellKey.isReadable(key, prefixEnd, keyLength);
      isSettled = false;
    }
    return isRunReadable;
  }

  /** Of several contents the newest comes first, and counts. */
  private void read(List<Cell> cells, int from) {
    isReadable = false;
    for (int index = from; index < cells.size(); index++) {
      Cell cell = cells.get(index);
      if (isPut(cell) && !isReadable && column(cell) == CONTENT) {
        readContent(cell);
      }
    }
  }

  private void readContent(Cell cell) {
    int kind = firstByte(cell);
    isTombstone = kind == TOMBSTONE;
    isReadable = kind == VALUE || isTombstone && cell.getValueLength() == 1;
  }

  /** Without copying the value, which may be large. */
  private static int firstByte(Cell cell) {
    if (cell.getValueLength() == 0) {
      return NOTHING;
    }
    if (cell instanceof ByteBufferExtendedCell) { // its array would be a copy
      ByteBufferExtendedCell inBuffer = (ByteBufferExtendedCell) cell;
      return inBuffer.getValueByteBuffer().get(inBuffer.getValuePosition());
    }
    return cell.getValueArray()[cell.getValueOffset()];
  }
}
