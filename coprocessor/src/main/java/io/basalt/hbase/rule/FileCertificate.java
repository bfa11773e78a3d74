package io.basalt.hbase.rule;

/** Of which failed writers a store file can hold cells: of those with {@code decided < writer <= newest}. */
public final class FileCertificate {
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
