package io.basalt.hbase.rule;

import io.basalt.hbase.format.Snapshot;

/**
 * One pass of a flush or a compaction over rows, with one snapshot from beginning to end, and what its output may claim.
 *
 * <p>The snapshot decides on every writer up to {@link Snapshot#decided}: what the pass wrote holds nothing of a failed one
 * among them, unless it had to keep such a row without having asked the invalid list. Used by the one thread that flushes
 * or compacts.
 */
public final class FilterPass {
  private final Snapshot snapshot;
  private long decided;
  private long newestSeen;

  public FilterPass(Snapshot snapshot) {
    this.snapshot = snapshot;
    this.decided = snapshot == null ? FileCertificate.UNDECIDED : snapshot.decided;
  }

  /** The snapshot to judge by, or null. */
  public Snapshot snapshot() {
    return snapshot;
  }

  /** A row of this writer is kept, by a verdict that asked the invalid list or needs none. */
  public void kept(long writer) {
    if (writer > newestSeen) {
      newestSeen = writer;
    }
  }

  /** A row of this writer is kept, though the invalid list was not asked: its topic is unknown. */
  public void keptUnjudged(long writer) {
    kept(writer);
    if (snapshot != null && writer <= decided && snapshot.isInvalid(writer)) {
      decided = writer - 1;
    }
  }

  /** Cells are kept of which nobody can tell the writer. */
  public void keptUnread() {
    decided = FileCertificate.UNDECIDED;
  }

  /** Every failed writer up to here is gone from what was written. */
  public long decided() {
    return decided;
  }

  /** The highest writer of a row that was kept, or 0. */
  public long newestSeen() {
    return newestSeen;
  }

  /** Of which failed writers a store file can hold cells: of those with {@code decided < writer <= newest}. */
  public static final class FileCertificate {
    /** Nothing is known of how the file came about: it can hold cells of any writer. */
    public static final long UNDECIDED = -1;

    public final long decided;
    /** By the clock of the server that wrote the newest cell; whoever compares allows for clocks. */
    public final long newest;

    public FileCertificate(long decided, long newest) {
      this.decided = decided;
      this.newest = newest;
    }

    @Override
    public String toString() {
      return "(" + decided + ", " + newest + "]";
    }
  }
}
