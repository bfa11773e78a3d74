package io.basalt.hbase.format;

import java.util.Arrays;

/**
 * The transactions as region servers know them. Format: docs/formats/region-snapshot.md; in Python {@code RegionSnapshot}.
 *
 * <p>Immutable. It refuses whatever is not exactly as its format says: without a snapshot every row is kept, while a list
 * misread would drop the wrong ones.
 */
public final class Snapshot {
  static final int FORMAT = 2;
  private static final int NUMBERS = 8;
  private static final int HEAD_BYTES = 1 + NUMBERS * BigEndian.LONG_BYTES;
  private static final int VARINT_BYTES_MAX = 9; // 63 bits, seven in each byte
  private static final int VARINT_BITS = 7;
  private static final int MORE = 0x80;

  /** The three things that a reader does at a row. */
  public enum Visibility {
    VISIBLE("visible"),
    /** Never to be seen: rolled back or invalid. */
    SKIP("skip"),
    /** Undecided for this reader: it must stop here, or it would lose the row. */
    HOLD("hold");

    public final String value;

    Visibility(String value) {
      this.value = value;
    }
  }

  public final long epoch;
  public final long sequence;
  public final long timeMs;
  public final long readPointer;
  public final long writePointer;
  /** Every writer up to it has committed, is undone, or is in the invalid list. */
  public final long decided;
  public final long visibilityUpperBound;
  public final long lifetimeMsMax;
  private final long[] inProgress;
  private final long[] invalid;
  // Of each run its first writer and, behind it, its last one: so they rise, and a run costs the same whatever its length.
  private final long[] inProgressRuns;
  private final long[] invalidRuns;

  private Snapshot(byte[] body) throws CorruptionException {
    if (body.length < HEAD_BYTES + BigEndian.INT_BYTES) {
      throw new CorruptionException("a snapshot of " + body.length + " bytes");
    }
    if (body[0] != FORMAT) {
      throw new CorruptionException("a snapshot of format " + body[0]);
    }
    long[] numbers = longs(body, 1, NUMBERS);
    for (long number : numbers) {
      check(number >= 0, "a number is negative");
    }
    epoch = numbers[0];
    sequence = numbers[1];
    timeMs = numbers[2];
    readPointer = numbers[3];
    writePointer = numbers[4];
    decided = numbers[5];
    visibilityUpperBound = numbers[6];
    lifetimeMsMax = numbers[7];
    Fields fields = new Fields(body, HEAD_BYTES);
    inProgress = fields.longs(1);
    inProgressRuns = fields.longs(2);
    invalid = fields.rising();
    invalidRuns = fields.runs();
    check(fields.offset == body.length, "bytes follow its end");
    checkOrder();
  }

  /** The snapshot in the body of its system row. */
  public static Snapshot decode(byte[] body) throws CorruptionException {
    return new Snapshot(body);
  }

  /** True when this copy is newer than the other: by (epoch, sequence). */
  public boolean isNewerThan(Snapshot other) {
    return epoch != other.epoch ? epoch > other.epoch : sequence > other.sequence;
  }

  /** True when this writer failed. Costs a bisection, and another one where there are runs. */
  public boolean isInvalid(long writePointer) {
    return Arrays.binarySearch(invalid, writePointer) >= 0 || isInRun(invalidRuns, writePointer);
  }

  boolean isInProgress(long writePointer) {
    return Arrays.binarySearch(inProgress, writePointer) >= 0 || isInRun(inProgressRuns, writePointer);
  }

  /** Before a writer within a run come a first one and no last one to it: an odd number. A run of one writer has it twice. */
  private static boolean isInRun(long[] runs, long writePointer) {
    int found = Arrays.binarySearch(runs, writePointer);
    return found >= 0 || (-found - 1) % 2 == 1;
  }

  /** The failed writers that are told one by one. */
  public long[] invalid() {
    return invalid.clone();
  }

  public long[] inProgress() {
    return inProgress.clone();
  }

  /** Of each run of failed writers its first and its last one. */
  public long[] invalidRuns() {
    return invalidRuns.clone();
  }

  public long[] inProgressRuns() {
    return inProgressRuns.clone();
  }

  /** The judgement over a row of this writer, for a reader that has no transaction of its own. */
  public Visibility judge(long writtenBy) {
    if (writtenBy == WritePointers.NONE) {
      return Visibility.VISIBLE;
    }
    if (writtenBy < 0 || isInvalid(writtenBy)) {
      return Visibility.SKIP;
    }
    return writtenBy > readPointer || isInProgress(writtenBy) ? Visibility.HOLD : Visibility.VISIBLE;
  }

  private void checkOrder() throws CorruptionException {
    long last = 0;
    for (long pointer : inProgress) {
      check(pointer > last, "the transactions in progress do not rise strictly from 1");
      last = pointer;
    }
    checkRuns(inProgressRuns);
    checkRuns(invalidRuns);
    check(decided <= writePointer, "it is decided on writers that do not exist yet");
    check(inProgress.length == 0 || decided < inProgress[0], "it is decided on a writer that is in progress");
    check(inProgressRuns.length == 0 || decided < inProgressRuns[0], "it is decided on a run that is in progress");
  }

  /** Runs that touch would be one. */
  private static void checkRuns(long[] runs) throws CorruptionException {
    long last = -1;
    for (int index = 0; index < runs.length; index += 2) {
      check(last < Long.MAX_VALUE && runs[index] > last + 1, "a run does not begin behind a gap after the one before it");
      last = runs[index + 1];
      check(runs[index] <= last, "a run ends before it begins");
    }
  }

  private static long[] longs(byte[] body, int offset, int count) {
    long[] numbers = new long[count];
    for (int index = 0; index < count; index++) {
      numbers[index] = BigEndian.readLong(body, offset + index * BigEndian.LONG_BYTES);
    }
    return numbers;
  }

  /** Takes one list after the other off a body. */
  private static final class Fields {
    private final byte[] body;
    private int offset;

    Fields(byte[] body, int offset) {
      this.body = body;
      this.offset = offset;
    }

    /** A count of items that take so many bytes at least; refused before anything of its size is allocated. */
    private int count(int itemBytes) throws CorruptionException {
      check(body.length - offset >= BigEndian.INT_BYTES, "it ends before a count");
      long count = BigEndian.readUnsignedInt(body, offset);
      offset += BigEndian.INT_BYTES;
      check(count <= (body.length - offset) / itemBytes, "a count is beyond its end");
      return (int) count;
    }

    /** A count, and so many numbers for each. */
    long[] longs(int each) throws CorruptionException {
      int count = count(each * BigEndian.LONG_BYTES) * each;
      long[] numbers = Snapshot.longs(body, offset, count);
      offset += count * BigEndian.LONG_BYTES;
      return numbers;
    }

    /** Numbers that rise strictly from 1, as deltas. */
    long[] rising() throws CorruptionException {
      long[] numbers = new long[count(1)];
      long last = 0;
      for (int index = 0; index < numbers.length; index++) {
        long delta = varint();
        last += delta;
        check(delta > 0 && last > 0, "the invalid list does not rise");
        numbers[index] = last;
      }
      return numbers;
    }

    /** Runs, each as the distance to the one before it, and what its last pointer is above its first one. */
    long[] runs() throws CorruptionException {
      long[] numbers = new long[2 * count(2)];
      long last = 0;
      for (int index = 0; index < numbers.length; index++) {
        last += varint();
        check(last >= 0, "a run ends above 2^63 - 1");
        numbers[index] = last;
      }
      return numbers;
    }

    private long varint() throws CorruptionException {
      long number = 0;
      int shift = 0;
      int value;
      do {
        check(offset < body.length && shift < VARINT_BYTES_MAX * VARINT_BITS, "a varint does not end");
        value = body[offset++];
        number |= (long) (value & ~MORE & 0xff) << shift;
        shift += VARINT_BITS;
      } while ((value & MORE) != 0);
      check(value != 0 || shift == VARINT_BITS, "a varint is longer than it need be");
      return number;
    }
  }

  private static void check(boolean holds, String fault) throws CorruptionException {
    if (!holds) {
      throw new CorruptionException("the snapshot is damaged: " + fault);
    }
  }
}
