package io.basalt.hbase.rule;

/** A fate, and the reason by which it is counted: the lines of the tables in docs/formats/retention.md and cells.md. */
public enum Verdict {
  UNREADABLE(Fate.KEEP, "unreadable", Count.ROWS_UNREADABLE),
  UNKNOWN_TOPIC(Fate.KEEP, "unknown topic", Count.ROWS_UNKNOWN_TOPIC),
  UNKNOWN_TABLE(Fate.KEEP, "unknown table", Count.ROWS_UNKNOWN_TOPIC),
  OLD_GENERATION(Fate.DROP, "old generation", Count.ROWS_DROPPED_OLD_GENERATION),
  EXPIRED(Fate.DROP, "expired", Count.ROWS_DROPPED_EXPIRED),
  TRUNCATED(Fate.DROP, "truncated", Count.ROWS_DROPPED_EXPIRED),
  NO_SNAPSHOT(Fate.KEEP, "no snapshot", Count.ROWS_NO_SNAPSHOT),
  NO_TRANSACTION(Fate.KEEP, "no transaction", Count.ROWS_KEPT),
  ROLLED_BACK(Fate.DROP, "rolled back", Count.ROWS_DROPPED_ROLLED_BACK),
  ROLLED_BACK_RETAINED(Fate.KEEP, "rolled back, retained", Count.ROWS_KEPT),
  INVALID(Fate.DROP, "invalid", Count.ROWS_DROPPED_INVALID),
  INVALID_RETAINED(Fate.ROLL_BACK, "invalid, retained", Count.ROWS_ROLLED_BACK),
  INVALID_PAYLOAD_RETAINED(Fate.KEEP, "invalid payload, retained", Count.ROWS_KEPT),
  SUPERSEDED(Fate.DROP, "superseded", Count.ROWS_DROPPED_SUPERSEDED),
  DELETED(Fate.DROP, "deleted", Count.ROWS_DROPPED_DELETED),
  LIVE(Fate.KEEP, "live", Count.ROWS_KEPT);

  /** What compaction does with a row. */
  public enum Fate {
    KEEP("keep"),
    DROP("drop"),
    /** Keep the row, with its column t negated. */
    ROLL_BACK("roll back");

    public final String value;

    Fate(String value) {
      this.value = value;
    }
  }

  public final Fate fate;
  public final String reason;
  /** Under what rows of this verdict are counted. */
  final Count count;

  Verdict(Fate fate, String reason, Count count) {
    this.fate = fate;
    this.reason = reason;
    this.count = count;
  }
}
