package io.basalt.hbase.format;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;

/** Builds the bytes of a snapshot, for tests. */
public final class SnapshotBytes {
  private long sequence = 1;
  private long timeMs;
  private long writePointer;
  private long decided;
  private Long upperBound;
  private long lifetimeMsMax = 90_000_000;
  private long[] invalid = {};
  private long[] invalidRuns = {};

  public SnapshotBytes sequence(long value) {
    sequence = value;
    return this;
  }

  public SnapshotBytes timeMs(long value) {
    timeMs = value;
    return this;
  }

  public SnapshotBytes writePointer(long value) {
    writePointer = value;
    return this;
  }

  public SnapshotBytes decided(long value) {
    decided = value;
    writePointer = Math.max(writePointer, value);
    return this;
  }

  /** Otherwise all that is decided. */
  public SnapshotBytes upperBound(long value) {
    upperBound = value;
    return this;
  }

  public SnapshotBytes lifetimeMsMax(long value) {
    lifetimeMsMax = value;
    return this;
  }

  public SnapshotBytes invalid(long... rising) {
    invalid = rising;
    return this;
  }

  /** Of each run its first and its last writer. */
  public SnapshotBytes invalidRuns(long... rising) {
    invalidRuns = rising;
    return this;
  }

  public Snapshot build() {
    try {
      return Snapshot.decode(body());
    } catch (CorruptionException impossible) {
      throw new AssertionError(impossible);
    }
  }

  /** The bytes of a snapshot with this invalid list. */
  public static byte[] body(long... invalid) {
    return new SnapshotBytes().decided(Long.MAX_VALUE).invalid(invalid).body();
  }

  private byte[] body() {
    byte[] alone = deltas(invalid);
    byte[] runs = deltas(invalidRuns);
    ByteBuffer body = ByteBuffer.allocate(1 + 8 * 8 + 4 * 4 + alone.length + runs.length);
    body.put((byte) Snapshot.FORMAT).putLong(1).putLong(sequence).putLong(timeMs);
    body.putLong(decided).putLong(writePointer).putLong(decided).putLong(upperBound == null ? decided : upperBound);
    body.putLong(lifetimeMsMax);
    body.putInt(0).putInt(0).putInt(invalid.length).put(alone).putInt(invalidRuns.length / 2).put(runs);
    return body.array();
  }

  private static byte[] deltas(long[] rising) {
    ByteArrayOutputStream deltas = new ByteArrayOutputStream();
    long last = 0;
    for (long pointer : rising) {
      long delta = pointer - last;
      last = pointer;
      for (; delta > 0x7f; delta >>>= 7) {
        deltas.write((int) (delta & 0x7f | 0x80));
      }
      deltas.write((int) delta);
    }
    return deltas.toByteArray();
  }
}
