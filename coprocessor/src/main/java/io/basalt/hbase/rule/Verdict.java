package io.basalt.hbase.rule;

/** A fate, and the reason by which it is counted: the lines of the tables in docs/formats/retention.md and cells.md. */
public enum Verdict {
  UNREADABLE(Fate.KEEP, "unreadable"),
  UNKNOWN_TOPIC(Fate.KEEP, "unknown topic"),
  UNKNOWN_TABLE(Fate.KEEP, "unknown table"),
  OLD_GENERATION(Fate.DROP, "old generation"),
  EXPIRED(Fate.DROP, "expired"),
  NO_SNAPSHOT(Fate.KEEP, "no snapshot"),
  NO_TRANSACTION(Fate.KEEP, "no transaction"),
  ROLLED_BACK(Fate.DROP, "rolled back"),
  ROLLED_BACK_RETAINED(Fate.KEEP, "rolled back, retained"),
  INVALID(Fate.DROP, "invalid"),
  INVALID_RETAINED(Fate.ROLL_BACK, "invalid, retained"),
  INVALID_PAYLOAD_RETAINED(Fate.KEEP, "invalid payload, retained"),
  SUPERSEDED(Fate.DROP, "superseded"),
  DELETED(Fate.DROP, "deleted"),
  LIVE(Fate.KEEP, "live");

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

  Verdict(Fate fate, String reason) {
    this.fate = fate;
    this.reason = reason;
  }
}
