package io.basalt.hbase;

/** Bytes that are not what their format says. Whoever reads them keeps what it had, and counts. */
final class CorruptionException extends Exception {
  private static final long serialVersionUID = 1L;

  CorruptionException(String message) {
    super(message);
  }
}
