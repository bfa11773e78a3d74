package io.basalt.hbase;

import java.util.Arrays;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.hbase.util.Bytes;

/** A region that a test sets as it likes; {@link #beforeEachRead} lets it change between any two reads of a report. */
class RegionFake implements RegionView {
  final String encodedName;
  final Set<String> files = new TreeSet<>();
  long oldestEditMs = EMPTY;
  boolean flushing;
  boolean closing;
  long modifiedMs = 1_700_000_000_000L;
  Runnable beforeEachRead = () -> {};

  RegionFake(String encodedName, String... files) {
    this.encodedName = encodedName;
    this.files.addAll(Arrays.asList(files));
  }

  @Override
  public String encodedName() {
    return encodedName;
  }

  @Override
  public String table() {
    return "basalt.message";
  }

  @Override
  public byte[] regionName() {
    return Bytes.toBytes("basalt.message,,1." + encodedName + ".");
  }

  @Override
  public byte[] startKey() {
    return new byte[0];
  }

  @Override
  public byte[] endKey() {
    return new byte[] {1};
  }

  @Override
  public long oldestEditMs() {
    beforeEachRead.run();
    return oldestEditMs;
  }

  @Override
  public boolean isFlushing() {
    beforeEachRead.run();
    return flushing;
  }

  @Override
  public Set<String> files() {
    beforeEachRead.run();
    return new TreeSet<>(files);
  }

  @Override
  public boolean isClosing() {
    beforeEachRead.run();
    return closing;
  }

  @Override
  public FileStat stat(String file) {
    return new FileStat(1, modifiedMs);
  }
}
