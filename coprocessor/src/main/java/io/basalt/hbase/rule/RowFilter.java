package io.basalt.hbase.rule;

import io.basalt.hbase.format.TopicPrefix;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.rule.Verdict.Fate;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.ExtendedCell;

/**
 * What one flush or compaction does with its rows, one after the other: judges each by {@link Retention}, and carries the
 * verdict out on the row's cells. The driver's rule is in docs/formats/retention.md, "In HBase".
 *
 * <p>Used by one thread. The rule of the last topic or table is kept, so that a row of the same one costs one comparison, and
 * nothing is allocated per row or cell. Delete markers always pass: they hide cells of other files.
 */
public abstract class RowFilter {
  private static final Verdict[] VERDICTS = Verdict.values();
  private static final Count[] COUNTS = Count.values();
  /** Room for most keys; it grows for longer ones. */
  private static final int KEY_BYTES = 128;
  private static final int OTHER = -1;

  final FilterPass pass;
  final long nowMs;
  private final Map<String, TopicRule> rules;
  private final Counters counters;
  private final long[] rowsByVerdict = new long[VERDICTS.length];
  private final long[] counts = new long[COUNTS.length];

  /** The key of the row that is being judged, and where its prefix ends. */
  byte[] key = new byte[KEY_BYTES];
  int keyLength;
  int prefixEnd;

  private final byte[] name = new byte[1];
  private byte[] lastPrefix = {};
  private TopicRule lastRule;

  RowFilter(Map<String, TopicRule> rules, FilterPass pass, long nowMs, Counters counters) {
    this.rules = rules;
    this.pass = pass;
    this.nowMs = nowMs;
    this.counters = counters;
    counters.add(Count.SCANS_WITHOUT_SNAPSHOT, pass.snapshot() == null ? 1 : 0);
  }

  /** The verdict over the puts among these cells, of which there is one at least, all of one row. */
  abstract Verdict judge(List<Cell> cells, int from);

  /** Where the prefix of the row's key ends that says whose row it is; {@link TopicPrefix#NONE} when it has none. */
  int prefixEnd(byte[] rowKey, int length) {
    return TopicPrefix.end(rowKey, length);
  }

  /** Instead of a roll back's cell: the same, with its write pointer negated. Null: this cell stays as it is. */
  ExtendedCell rolledBack(Cell cell) {
    return null; // of all verdicts only one over a message row rolls back
  }

  /** Removes from the list, or replaces in it, what the row's verdict says; the row begins at {@code from}. */
  public final void filter(List<Cell> cells, int from) {
    int found = cells.size() - from;
    if (found == 0) {
      return;
    }
    try {
      apply(verdict(cells, from), cells, from);
    } catch (RuntimeException error) {
      // Cells of a kind that we do not know. Whoever wrote them is unknown too, so the file can be vouched for no more.
      pass.keptUnread();
      count(Count.HOOK_FAILURES, 1);
    }
    int left = cells.size() - from;
    count(Count.CELLS_KEPT, left);
    count(Count.CELLS_DROPPED, found - left);
  }

  /** The verdict over the cells of one row, which begins at {@code from}; null when nothing was to be judged. */
  public final Verdict verdict(List<Cell> cells, int from) {
    Cell first = cells.get(from);
    Cell last = cells.get(cells.size() - 1);
    if (first != last && !CellUtil.matchingRows(first, last)) {
      pass.keptUnread();
      return Verdict.UNREADABLE;
    }
    if (!hasPuts(cells, from)) {
      return null; // delete markers alone: a leader's fence is one, under a key that no row has
    }
    readKey(first);
    return judge(cells, from);
  }

  private static boolean hasPuts(List<Cell> cells, int from) {
    for (int index = from; index < cells.size(); index++) {
      if (isPut(cells.get(index))) {
        return true;
      }
    }
    return false;
  }

  private void apply(Verdict verdict, List<Cell> cells, int from) {
    if (verdict == null) {
      return;
    }
    if (verdict.fate == Fate.DROP) {
      removePuts(cells, from);
    } else if (verdict.fate == Fate.ROLL_BACK) {
      rollBack(cells, from);
    }
    rowsByVerdict[verdict.ordinal()]++;
  }

  private static void removePuts(List<Cell> cells, int from) {
    boolean onlyPuts = true;
    for (int index = from; index < cells.size(); index++) {
      onlyPuts &= isPut(cells.get(index));
    }
    if (onlyPuts) {
      cells.subList(from, cells.size()).clear();
      return;
    }
    for (Iterator<Cell> each = cells.listIterator(from); each.hasNext(); ) {
      if (isPut(each.next())) {
        each.remove();
      }
    }
  }

  private void rollBack(List<Cell> cells, int from) {
    for (int index = from; index < cells.size(); index++) {
      ExtendedCell replacement = rolledBack(cells.get(index));
      if (replacement != null) {
        cells.set(index, replacement);
      }
    }
  }

  static boolean isPut(Cell cell) {
    return cell.getType() == Cell.Type.Put;
  }

  /** The column's name where it is one byte, as all names are that we write; otherwise what is no byte. */
  final int column(Cell cell) {
    if (cell.getQualifierLength() != 1) {
      return OTHER;
    }
    CellUtil.copyQualifierTo(cell, name, 0);
    return name[0];
  }

  private void readKey(Cell cell) {
    keyLength = cell.getRowLength();
    if (keyLength > key.length) {
      key = new byte[keyLength];
    }
    CellUtil.copyRowTo(cell, key, 0);
    if (startsWithLastPrefix()) {
      prefixEnd = 1 + lastPrefix.length;
      return;
    }
    prefixEnd = prefixEnd(key, keyLength);
    if (prefixEnd != TopicPrefix.NONE) {
      lastPrefix = Arrays.copyOfRange(key, 1, prefixEnd);
      lastRule = rules.get(TopicPrefix.text(lastPrefix, 0, lastPrefix.length));
    }
  }

  /** No topic's prefix starts another's, so that this says it is the same topic. */
  private boolean startsWithLastPrefix() {
    int length = lastPrefix.length;
    return length != 0 && keyLength > length && keyHas(lastPrefix, 1, length);
  }

  /** Whether so many bytes of the key, from this place on, are the first ones of {@code bytes}. */
  final boolean keyHas(byte[] bytes, int from, int length) {
    for (int index = length - 1; index >= 0; index--) { // neighbours differ at the end
      if (key[from + index] != bytes[index]) {
        return false;
      }
    }
    return true;
  }

  /** The rule of the topic or table of the row's key, or null. */
  final TopicRule rule() {
    return lastRule;
  }

  final boolean keyEndsWith(int suffixBytes) {
    return prefixEnd != TopicPrefix.NONE && keyLength == prefixEnd + suffixBytes;
  }

  final void count(Count count, long amount) {
    counts[count.ordinal()] += amount;
  }

  /** Adds what was counted to the region's counters. */
  final void publishCounts() {
    for (Verdict verdict : VERDICTS) {
      long rows = rowsByVerdict[verdict.ordinal()];
      rowsByVerdict[verdict.ordinal()] = 0;
      counters.add(verdict.count, rows);
      counters.add(Count.ROWS_KEPT, verdict.fate == Fate.KEEP && verdict.count != Count.ROWS_KEPT ? rows : 0);
    }
    for (Count count : COUNTS) {
      counters.add(count, counts[count.ordinal()]);
      counts[count.ordinal()] = 0;
    }
  }
}
