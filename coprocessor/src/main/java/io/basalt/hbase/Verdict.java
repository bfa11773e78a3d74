package io.basalt.hbase;

/** A fate, and the reason by which it is counted: the lines of the tables in docs/formats/retention.md and cells.md. */
enum Verdict {
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

  final Fate fate;
  final String reason;

  Verdict(Fate fate, String reason) {
    this.fate = fate;
    this.reason = reason;
  }
}
