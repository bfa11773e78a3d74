package io.basalt.hbase.rule;

/** What is counted, by its name in HBase's metrics and in region reports. */
public enum Count {
  ROWS_KEPT("rowsKept"),
  CELLS_KEPT("cellsKept"),
  CELLS_DROPPED("cellsDropped"),
  ROWS_DROPPED_OLD_GENERATION("rowsDroppedOldGeneration"),
  ROWS_DROPPED_EXPIRED("rowsDroppedExpired"),
  ROWS_DROPPED_ROLLED_BACK("rowsDroppedRolledBack"),
  ROWS_DROPPED_INVALID("rowsDroppedInvalid"),
  /** Versions of cells that nobody can see any more, for a newer one. */
  ROWS_DROPPED_SUPERSEDED("rowsDroppedSuperseded"),
  /** Tombstones of cells, of which nothing older is left. */
  ROWS_DROPPED_DELETED("rowsDroppedDeleted"),
  ROWS_ROLLED_BACK("rowsRolledBack"),
  /** Kept although they could go, until a compaction of all files: they may hide something in another one. */
  ROWS_GUARDED("rowsGuarded"),
  /** Cells of rows whose batch is in another file, or gone. */
  ROWS_IN_PARTS("rowsInParts"),
  ROWS_UNREADABLE("rowsUnreadable"),
  ROWS_UNKNOWN_TOPIC("rowsUnknownTopic"),
  ROWS_NO_SNAPSHOT("rowsNoSnapshot"),
  SCANS_WITHOUT_SNAPSHOT("scansWithoutSnapshot"),
  /** An exception where none should be: the hook did nothing. */
  HOOK_FAILURES("hookFailures"),
  WRITES_REFUSED("writesRefused"),
  WRITES_FENCED("writesFenced"),
  REFRESHES("refreshes"),
  REFRESH_FAILURES("refreshFailures"),
  /** Rows of topics and tables that refreshes have read: none where nothing has changed. */
  TOPICS_READ("topicsRead");

  /** Histograms of the refresher, in HBase's metrics alone. */
  public static final String REFRESH_MS = "refreshMs";
  public static final String SNAPSHOT_AGE_MS = "snapshotAgeMs";
  public static final String TOPICS_UNREADABLE = "topicsUnreadable";

  public final String name;

  Count(String name) {
    this.name = name;
  }
}
