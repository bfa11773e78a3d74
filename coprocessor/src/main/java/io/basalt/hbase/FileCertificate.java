package io.basalt.hbase;

/** Of which failed writers a store file can hold cells: of those with {@code decided < writer <= newest}. */
final class FileCertificate {
  /** Nothing is known of how the file came about: it can hold cells of any writer. */
  static final long UNDECIDED = -1;

  final long decided;
  /** By the clock of the server that wrote the newest cell; whoever compares allows for clocks. */
  final long newest;

  FileCertificate(long decided, long newest) {
    this.decided = decided;
    this.newest = newest;
  }

  /** The last write pointer that can be given out in this millisecond. */
  static long pointerAt(long timeMs) {
    long next = timeMs + 1;
    return next > Long.MAX_VALUE / Retention.POINTERS_PER_MS ? Long.MAX_VALUE : next * Retention.POINTERS_PER_MS - 1;
  }

  @Override
  public String toString() {
    return "(" + decided + ", " + newest + "]";
  }
}
