package io.basalt.hbase;

import java.io.IOException;

/** The epoch of the leader's lease, a row of the system table. */
interface LeaseEpoch {
  /**
   * The epoch in the lease row, or 0 when there is no such row, as a read found it that began after the given
   * {@link System#nanoTime}.
   *
   * <p>The read must be proved: a server that has lost the system table's region without knowing it yet answers with an
   * epoch that is over. A conditional write to the same row that goes through the log shows that it still has it.
   *
   * @throws IOException when no such read succeeded within the time
   */
  long readAfter(long openedNanos, long timeoutMs) throws IOException;
}
