package io.basalt.hbase;

/** Topic property {@code onInvalid}: what becomes of rows whose writer failed. */
enum OnInvalid {
  DROP(0, "drop"),
  RETAIN(1, "retain");

  /** As the metadata table stores it. */
  final int number;
  final String value;

  OnInvalid(int number, String value) {
    this.number = number;
    this.value = value;
  }
}
