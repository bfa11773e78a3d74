package io.basalt.hbase;

/** What compaction does with a row. */
enum Fate {
  KEEP("keep"),
  DROP("drop"),
  /** Keep the row, with its column t negated. */
  ROLL_BACK("roll back");

  final String value;

  Fate(String value) {
    this.value = value;
  }
}
