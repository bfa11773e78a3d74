package io.basalt.hbase.fence;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * The mini-batches of one region that were let in and have not ended: by the object that HBase passes to both hooks.
 *
 * <p>Entries are weak. HBase leaves the last hook out when another coprocessor throws in its own; the batch is over
 * then, its object becomes garbage, and the entry with it. While a batch is being applied HBase's own frame holds its
 * object, which it needs for the last hook, so that an entry never goes early. Two batches of one thread (a coprocessor
 * may write from within a hook) are two objects.
 */
final class InFlightBatches {
  /** The epoch of a batch in which no mutation carries one. */
  static final long NO_EPOCH = Long.MAX_VALUE;

  static final long NONE = -1;

  /** A wait looks this often for entries that have become garbage, of which nobody tells it. */
  private static final long GARBAGE_CHECK_MS = 100;

  private final List<Entry> entries = new ArrayList<>();

  private static final class Entry {
    final WeakReference<Object> batch;
    final long epoch;
    final long admittedMs;

    Entry(Object batch, long epoch, long admittedMs) {
      this.batch = new WeakReference<>(batch);
      this.epoch = epoch;
      this.admittedMs = admittedMs;
    }
  }

  synchronized void begin(Object batch, long epoch, long admittedMs) {
    entries.add(new Entry(batch, epoch, admittedMs));
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

  /** Waits until no batch of a lower epoch is in flight; false when some still are after the time. */
  synchronized boolean awaitNoneBelow(long epoch, long timeoutMs) throws InterruptedException {
    long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    while (isAnyBelow(epoch)) {
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

  private boolean isAnyBelow(long epoch) {
    for (Entry entry : live()) {
      if (entry.epoch < epoch) {
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
