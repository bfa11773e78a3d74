package io.basalt.hbase;

/** What a reader does at a row of some writer. */
enum Visibility {
  VISIBLE("visible"),
  /** Never to be seen: rolled back or invalid. */
  SKIP("skip"),
  /** Undecided for this reader: it must stop here, or it would lose the row. */
  HOLD("hold");

  final String value;

  Visibility(String value) {
    this.value = value;
  }
}
