package io.basalt.hbase.rule;

import io.basalt.hbase.format.BigEndian;
import io.basalt.hbase.format.MessageKey;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.rule.Verdict.Fate;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellBuilderType;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.ExtendedCell;
import org.apache.hadoop.hbase.ExtendedCellBuilderFactory;

/**
 * Message rows. A scan may see a part of a row: its other cells lie in other files, or in memory.
 *
 * <p>{@code p} or {@code r}, the first {@code t} and {@code x} come in one put and travel together; a roll back adds a
 * negative {@code t} later. That one is to its row what a delete marker is in HBase: what it hides may lie in an older
 * file, even a second time. So a row in which it is seen is dropped by a compaction of all files only, and so is a part
 * without {@code p} and {@code r}.
 */
public final class MessageFilter extends RowFilter {
  private static final int WRITER = 't';
  private static final int BATCH = 'p';
  private static final int REFERENCE = 'r';
  private static final int EXPIRY = 'x';
  private static final int REFERENCE_BYTES = 24;

  private final boolean allFiles;
  private final byte[] number = new byte[BigEndian.LONG_BYTES];

  // Of the row that is being judged: its newest cell of each column.
  private boolean isReadable;
  private boolean hasBatch;
  private boolean hasReference;
  private boolean hasExpiry;
  private boolean wasRolledBack;
  private long writtenBy;
  private long expireMs;

  /** {@code allFiles}: the scan sees every file of the store, so that nothing older is left behind it. */
  public MessageFilter(Map<String, TopicRule> rules, FilterPass pass, long nowMs, boolean allFiles, Counters counters) {
    super(rules, pass, nowMs, counters);
    this.allFiles = allFiles;
  }

  @Override
  Verdict judge(List<Cell> cells, int from) {
    read(cells, from);
    if (!isReadable || hasBatch && hasReference || !keyEndsWith(MessageKey.SUFFIX_BYTES)) {
      return kept(Verdict.UNREADABLE, cells, from);
    }
    boolean isPart = !hasBatch && !hasReference;
    if (isPart) {
      count(Count.ROWS_IN_PARTS, 1);
    }
    Verdict verdict = Retention.judgeMessage(
        MessageKey.generation(key, prefixEnd),
        MessageKey.publishMs(key, prefixEnd),
        isPart ? WritePointers.NONE : writtenBy, // a part is judged by its key alone
        isPart ? Retention.NO_EXPIRY : expireMs,
        rule(),
        pass.snapshot(),
        nowMs);
    if (verdict.fate == Fate.DROP && (isPart || wasRolledBack) && !allFiles) {
      count(Count.ROWS_GUARDED, 1);
      return kept(Verdict.LIVE, cells, from);
    }
    if (isPart && verdict.fate == Fate.KEEP) {
      return kept(allFiles ? Verdict.UNREADABLE : verdict, cells, from);
    }
    if (verdict == Verdict.UNKNOWN_TOPIC) {
      return kept(verdict, cells, from);
    }
    if (verdict.fate == Fate.KEEP) {
      pass.kept(writtenBy);
    }
    return verdict;
  }

  /** The row stays, and nobody asked for its writers whether they have failed. */
  private Verdict kept(Verdict verdict, List<Cell> cells, int from) {
    for (int index = from; index < cells.size(); index++) {
      Cell cell = cells.get(index);
      if (isPut(cell) && column(cell) == WRITER && cell.getValueLength() == BigEndian.LONG_BYTES) {
        pass.keptUnjudged(number(cell));
      }
    }
    return verdict;
  }

  private void read(List<Cell> cells, int from) {
    isReadable = true;
    hasBatch = false;
    hasReference = false;
    hasExpiry = false;
    wasRolledBack = false;
    writtenBy = WritePointers.NONE;
    expireMs = Retention.NO_EXPIRY;
    for (int index = from; index < cells.size(); index++) {
      Cell cell = cells.get(index);
      if (isPut(cell)) {
        read(cell);
      }
    }
  }

  /** Of several versions the newest comes first, and counts; but one roll back among them is enough to be careful. */
  private void read(Cell cell) {
    switch (column(cell)) {
      case BATCH:
        hasBatch = true;
        break;
      case REFERENCE:
        isReadable &= cell.getValueLength() == REFERENCE_BYTES;
        hasReference = true;
        break;
      case WRITER:
        readWriter(cell);
        break;
      case EXPIRY:
        readExpiry(cell);
        break;
      default: // readers pass over columns that they do not know, too
        break;
    }
  }

  private void readWriter(Cell cell) {
    long pointer = cell.getValueLength() == BigEndian.LONG_BYTES ? number(cell) : 0;
    isReadable &= pointer != 0 && pointer != Long.MIN_VALUE;
    wasRolledBack |= pointer < 0;
    if (writtenBy == WritePointers.NONE) {
      writtenBy = pointer;
    }
  }

  private void readExpiry(Cell cell) {
    long timeMs = cell.getValueLength() == BigEndian.LONG_BYTES ? number(cell) : -1;
    isReadable &= timeMs >= 0;
    if (!hasExpiry) {
      hasExpiry = true;
      expireMs = timeMs;
    }
  }

  @Override
  ExtendedCell rolledBack(Cell cell) {
    if (!isPut(cell) || column(cell) != WRITER || number(cell) != writtenBy) {
      return null;
    }
    ExtendedCell old = (ExtendedCell) cell;
    byte[] negated = new byte[BigEndian.LONG_BYTES];
    BigEndian.writeLong(negated, 0, -writtenBy);
    // Never in place: the array is the block's or the memory store's, which readers share.
    return ExtendedCellBuilderFactory.create(CellBuilderType.DEEP_COPY)
        .setRow(CellUtil.cloneRow(old))
        .setFamily(CellUtil.cloneFamily(old))
        .setQualifier(CellUtil.cloneQualifier(old))
        .setTimestamp(old.getTimestamp())
        .setType(Cell.Type.Put)
        .setValue(negated)
        .setTags(old.cloneTags())
        .setSequenceId(old.getSequenceId()) // else an equal cell of another file would come before it
        .build();
  }

  private long number(Cell cell) {
    CellUtil.copyValueTo(cell, number, 0);
    return BigEndian.readLong(number, 0);
  }
}
