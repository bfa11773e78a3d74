package io.basalt.hbase.report;

import java.util.Arrays;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.hbase.util.Bytes;

/** A region that a test sets as it likes; {@link #beforeEachRead} lets it change between any two reads of a report. */
final class RegionFake extends LiveRegion {
  final String encodedName;
  final Set<String> files = new TreeSet<>();
  long oldestEditMs = EMPTY;
  boolean flushing;
  boolean closing;
  long modifiedMs = 1_700_000_000_000L;
  Runnable beforeEachRead = () -> {};

  RegionFake(String encodedName, String... files) {
    super(null);
    this.encodedName = encodedName;
    this.files.addAll(Arrays.asList(files));
  }

  @Override
  String encodedName() {
    return encodedName;
  }

  @Override
  String table() {
    return "basalt.message";
  }

  @Override
  byte[] regionName() {
    return Bytes.toBytes("basalt.message,,1." + encodedName + ".");
  }

  @Override
  byte[] startKey() {
    return new byte[0];
  }

  @Override
  byte[] endKey() {
    return new byte[] {1};
  }

  @Override
  long oldestEditMs() {
    beforeEachRead.run();
    return oldestEditMs;
  }

  @Override
  boolean isFlushing() {
    beforeEachRead.run();
    return flushing;
  }

  @Override
  Set<String> files() {
    beforeEachRead.run();
    return new TreeSet<>(files);
  }

  @Override
  boolean isClosing() {
    beforeEachRead.run();
    return closing;
  }

  @Override
  FileStat stat(String file) {
    return new FileStat(1, modifiedMs);
  }
}
