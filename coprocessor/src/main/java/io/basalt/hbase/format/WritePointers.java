package io.basalt.hbase.format;

/** Write pointers: milliseconds since 1970 times {@link #POINTERS_PER_MS}, plus a counter. They only rise. */
public final class WritePointers {
  /** In place of a write pointer: the row was written outside a transaction. No row stores 0. */
  public static final long NONE = 0;

  /** Write pointers are signed 64-bit numbers in every format that carries them. */
  public static final long POINTER_MAX = Long.MAX_VALUE;

  public static final long POINTERS_PER_MS = 1_000_000;

  private WritePointers() {}

  /** The last write pointer that can be given out in this millisecond. */
  public static long lastIn(long timeMs) {
    long next = timeMs + 1;
    return next > POINTER_MAX / POINTERS_PER_MS ? POINTER_MAX : next * POINTERS_PER_MS - 1;
  }
}
