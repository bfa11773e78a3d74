package io.basalt.hbase;

/** Where a region gets the transaction snapshot from. */
interface SnapshotSource {
  /** The newest snapshot that this server has read, or null. */
  Snapshot latest();

  /**
   * Whether a read has found that there is no snapshot row at all. Then no writer was ever pruned, for pruning never
   * leaves the row away.
   */
  boolean neverPublished();
}
