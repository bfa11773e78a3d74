package io.basalt.hbase.format;

/** Bytes that are not what their format says. Whoever reads them keeps what it had, and counts. */
public final class CorruptionException extends Exception {
  private static final long serialVersionUID = 1L;

  public CorruptionException(String message) {
    super(message);
  }
}
