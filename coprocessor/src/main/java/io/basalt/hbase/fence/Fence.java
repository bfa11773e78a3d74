package io.basalt.hbase.fence;

import io.basalt.hbase.format.BigEndian;
import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.Floors;
import io.basalt.hbase.knowledge.Refresher;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;

/**
 * The lowest epochs that may still write to one region: of each shard's owner, and of the leader for rows of no shard.
 * Each mutation carries its shard and the epoch under which its owner has it, or the leader's epoch; a new owner or
 * leader sends each region a fence before it writes anything.
 *
 * <p><b>Promise.</b> Once a fence of epoch e has returned to its caller, no mutation of the fenced shards (or leader)
 * with a lower epoch takes effect in the region's key range any more, wherever the region is served from then on.
 * Mutations of other shards notice nothing: they are neither refused nor waited for.
 *
 * <p><b>Within this server.</b> HBase calls {@code preBatchMutate} with the row locks and the updates lock held,
 * before anything is written to the log or to memory. There {@link #enter} compares the epochs and notes the batch as
 * in flight, both under one lock; {@link #leave} removes the note in {@code postBatchMutateIndispensably}, which
 * follows once the batch is applied and visible, and also when it failed, in {@code preBatchMutate} itself too. It
 * comes once per mini-batch, with the object that {@code preBatchMutate} got, however many a large batch is split
 * into; a conditional write is a mini-batch like any other. A fence raises the floors under the same lock, then waits.
 * A batch below it has either taken that lock before it, and is waited for, or takes it after it, and is refused.
 *
 * <p><b>No deadlock.</b> The fence waits in {@code preDelete}, where its handler holds neither a row lock nor the
 * updates lock, so that flushes go on. A batch is noted only when it has all its locks, so no batch that is waited
 * for waits itself for a lock of this handler; this is true even of a fence in a conditional write, which holds a row
 * lock. The wait is bounded; the caller tries again, and the floors stay raised.
 *
 * <p><b>A server that has lost the region</b> without knowing it, while it was paused, would promise for a region
 * that is served elsewhere. Therefore the fence's delete is not bypassed: it goes through the log, whose sync fails
 * once the region's log was taken over. A fence that succeeded came before that, and hence before the region's next
 * opening.
 *
 * <p><b>A region that was just opened</b> (moved, split, merged, recovered) lets in no mutation with an epoch before
 * it has learnt the epochs of the leader's lease and of the map of owners, from reads that began after its opening.
 * Both are written before their fences are sent, so whoever opens after a fence of e reads e or more. What the former server had
 * logged is replayed before the opening, and so before any fence that reaches this region. A fence is honoured at
 * once, but it does not replace that read: it may be the late fence of an owner whose time is over, too.
 *
 * <p>Mutations without an epoch pass: nobody who writes without one can be told apart.
 */
public final class Fence {
  /** In place of a time: no batch is in flight. */
  public static final long NONE_IN_FLIGHT = InFlightBatches.NONE;

  static final String FENCE = "basalt.fence";
  static final String EPOCH = "basalt.epoch";
  static final String SHARD = "basalt.shard";

  /** Well below HBase's 60 s for a remote call; a batch takes milliseconds, or as long as a log sync hangs. */
  static final long FENCE_WAIT_MS = 10_000;

  /** The rows are read as soon as a region opens; it takes longer only when the system table is not served. */
  static final long LEARN_WAIT_MS = 5_000;

  /** Handlers of a server that may wait for these rows at a time: fewer than it has, so that reads go on. */
  private static final int LEARNERS_MAX = 8;

  private static final Semaphore LEARNERS = new Semaphore(LEARNERS_MAX);

  /** A batch that took longer keeps the time at which it was let in: the hour that covers clocks has room for this. */
  public static final long SLOW_BATCH_MS = 600_000;

  private final LongSupplier clockMs;
  private final long fenceWaitMs;
  private final long openedNanos = System.nanoTime();
  private final InFlightBatches inFlight = new InFlightBatches();
  // Both guarded by inFlight's lock where they change; read without it only to find out early.
  private volatile Floors floors = Floors.NONE;
  private volatile boolean learnt;
  private volatile SlowBatch slow;

  /** Since when a batch was under way that took unusually long, and when it had been applied. */
  public static final class SlowBatch {
    public final long admittedMs;
    public final long endedMs;

    SlowBatch(long admittedMs, long endedMs) {
      this.admittedMs = admittedMs;
      this.endedMs = endedMs;
    }
  }

  public Fence(LongSupplier clockMs) {
    this(clockMs, FENCE_WAIT_MS);
  }

  Fence(LongSupplier clockMs, long fenceWaitMs) {
    this.clockMs = clockMs;
    this.fenceWaitMs = fenceWaitMs;
  }

  /**
   * The hook before a single mutation, outside all locks: carries out a fence, and learns the epochs where one is asked.
   *
   * @param refresher who reads the lease and the map of owners; null when the coprocessor could not start
   */
  public void before(Mutation mutation, Refresher refresher) throws IOException {
    byte[] fence = mutation.getAttribute(FENCE);
    if (fence != null) {
      raise(floorsOf(fence));
    }
    if (!learnt && (mutation.getAttribute(SHARD) != null || mutation.getAttribute(EPOCH) != null)) {
      learn(refresher);
    }
  }

  /** The hook before a mini-batch, within its locks: refuses it, or notes it as in flight. */
  public void enter(MiniBatchOperationInProgress<Mutation> batch) throws IOException {
    Claims claims = claims(batch);
    synchronized (inFlight) {
      if (claims.any()) {
        String over = claims.whyOver(floors);
        if (over != null) {
          throw fenced(over);
        }
        if (!learnt) {
          throw new IOException("basalt: the region does not know yet who may write; try again");
        }
      }
      inFlight.begin(batch, claims, clockMs.getAsLong());
    }
  }

  /** The hook after a mini-batch, whatever became of it. */
  public void leave(MiniBatchOperationInProgress<Mutation> batch) {
    long nowMs = clockMs.getAsLong();
    synchronized (inFlight) { // a report finds it in one of the two places
      long admittedMs = inFlight.end(batch);
      if (admittedMs != InFlightBatches.NONE && nowMs - admittedMs > SLOW_BATCH_MS) {
        slow = new SlowBatch(slow == null ? admittedMs : Math.min(slow.admittedMs, admittedMs), nowMs);
      }
    }
  }

  /** When the oldest batch in flight was let in, or {@link #NONE_IN_FLIGHT}. */
  public long oldestInFlightMs() {
    return inFlight.oldestAdmittedMs();
  }

  /** The batches that took longer than {@link #SLOW_BATCH_MS}, or null. Their cells may be in memory. */
  public SlowBatch slowBatch() {
    return slow;
  }

  /** No cell of these batches is in memory any more. */
  public void forgetSlowBatch(SlowBatch flushed) {
    synchronized (inFlight) {
      if (slow == flushed) {
        slow = null;
      }
    }
  }

  private void raise(Floors fence) throws IOException {
    synchronized (inFlight) {
      String tooLow = floors.whyTooLow(fence);
      if (tooLow != null) {
        throw fenced(tooLow);
      }
      floors = floors.raisedTo(fence);
    }
    try {
      if (!inFlight.awaitNoneBelow(fence, fenceWaitMs)) {
        throw new IOException(
            "basalt: writes below a fence are still under way after " + fenceWaitMs + " ms; try again");
      }
    } catch (InterruptedException interrupted) {
      throw interruption(interrupted);
    }
  }

  private void learn(Refresher refresher) throws IOException {
    if (refresher == null) {
      throw new IOException("basalt: the region's coprocessor did not start; see the region server's log");
    }
    if (!LEARNERS.tryAcquire()) {
      throw new IOException("basalt: too many regions wait to know who may write; try again");
    }
    try {
      Floors read = refresher.readAfter(openedNanos, LEARN_WAIT_MS);
      synchronized (inFlight) {
        floors = floors.raisedTo(read);
        learnt = true;
      }
    } finally {
      LEARNERS.release();
    }
  }

  private static Claims claims(MiniBatchOperationInProgress<Mutation> batch) throws IOException {
    Claims claims = new Claims();
    for (int index = 0; index < batch.size(); index++) {
      Mutation mutation = batch.getOperation(index);
      byte[] shard = mutation.getAttribute(SHARD);
      if (shard != null) {
        long claim = number(SHARD, shard);
        if (Floors.shardOf(claim) >= Floors.SHARDS) {
          throw new DoNotRetryIOException("basalt: there is no shard " + Floors.shardOf(claim));
        }
        claims.addShard(claim);
      }
      byte[] epoch = shard == null ? mutation.getAttribute(EPOCH) : null;
      if (epoch != null) {
        claims.addLeader(number(EPOCH, epoch));
      }
    }
    return claims;
  }

  private static long number(String attribute, byte[] value) throws IOException {
    if (value.length != BigEndian.LONG_BYTES || value[0] < 0) {
      throw new DoNotRetryIOException(
          "basalt: attribute " + attribute + " is no epoch: " + value.length + " bytes, expected 8 and no sign");
    }
    return BigEndian.readLong(value, 0);
  }

  private static Floors floorsOf(byte[] fence) throws IOException {
    try {
      return Floors.ofFence(fence);
    } catch (CorruptionException error) {
      throw new DoNotRetryIOException("basalt: attribute " + FENCE + ": " + error.getMessage());
    }
  }

  private static DoNotRetryIOException fenced(String why) {
    return new DoNotRetryIOException("basalt fenced: " + why);
  }

  private static IOException interruption(InterruptedException interrupted) {
    Thread.currentThread().interrupt();
    IOException answer = new InterruptedIOException("basalt: interrupted while a fence waited");
    answer.initCause(interrupted);
    return answer;
  }

  /**
   * The mini-batches of one region that were let in and have not ended: by the object that HBase passes to both hooks.
   *
   * <p>Entries are weak. HBase leaves the last hook out when another coprocessor throws in its own; the batch is over
   * then, its object becomes garbage, and the entry with it. While a batch is being applied HBase's own frame holds its
   * object, which it needs for the last hook, so that an entry never goes early. Two batches of one thread (a coprocessor
   * may write from within a hook) are two objects.
   */
  static final class InFlightBatches {
    static final long NONE = -1;

    /** A wait looks this often for entries that have become garbage, of which nobody tells it. */
    private static final long GARBAGE_CHECK_MS = 100;

    private final List<Entry> entries = new ArrayList<>();

    private static final class Entry {
      final WeakReference<Object> batch;
      final Claims claims;
      final long admittedMs;

      Entry(Object batch, Claims claims, long admittedMs) {
        this.batch = new WeakReference<>(batch);
        this.claims = claims;
        this.admittedMs = admittedMs;
      }
    }

    synchronized void begin(Object batch, Claims claims, long admittedMs) {
      entries.add(new Entry(batch, claims, admittedMs));
    }

    /** When the batch that ends here was let in, or {@link #NONE} when it never was. */
    synchronized long end(Object batch) {
      // The newest is at the end, and most batches are short.
      for (int index = entries.size() - 1; index >= 0; index--) {
        Entry entry = entries.get(index);
        if (entry.batch.get() == batch) {
          entries.remove(index);
          notifyAll();
          return entry.admittedMs;
        }
      }
      return NONE;
    }

    /** When the oldest batch was let in, or {@link #NONE}. */
    synchronized long oldestAdmittedMs() {
      long oldest = NONE;
      for (Entry entry : live()) {
        if (oldest == NONE || entry.admittedMs < oldest) {
          oldest = entry.admittedMs;
        }
      }
      return oldest;
    }

    /** Waits until no batch below these is in flight; false when some still are after the time. */
    synchronized boolean awaitNoneBelow(Floors fence, long timeoutMs) throws InterruptedException {
      long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
      while (isAnyBelow(fence)) {
        long remainingMs = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
        if (remainingMs <= 0) {
          return false;
        }
        wait(Math.min(remainingMs, GARBAGE_CHECK_MS));
      }
      return true;
    }

    synchronized int count() {
      return live().size();
    }

    private boolean isAnyBelow(Floors fence) {
      for (Entry entry : live()) {
        if (entry.claims.isBelow(fence)) {
          return true;
        }
      }
      return false;
    }

    private List<Entry> live() {
      for (Iterator<Entry> each = entries.iterator(); each.hasNext(); ) {
        if (each.next().batch.get() == null) {
          each.remove();
        }
      }
      return entries;
    }
  }
}
