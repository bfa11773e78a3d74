package io.basalt.hbase;

import java.io.IOException;
import java.util.Set;

/** What a report needs of a live region: HBase's own ({@link LiveRegion}), or a test's. */
interface RegionView {
  /** In place of a time: nothing is in memory. */
  long EMPTY = Long.MAX_VALUE;

  String encodedName();

  String table();

  byte[] regionName();

  byte[] startKey();

  byte[] endKey();

  /**
   * When the oldest cell that is in memory was put there; {@link #EMPTY} when there is none, 0 when that cannot be
   * told. What a flush is just writing need not count.
   */
  long oldestEditMs();

  /** Whether a flush has taken cells out of memory whose file is not among {@link #files} yet. */
  boolean isFlushing();

  /** The names of the store files of all readers that begin now. */
  Set<String> files();

  /** Whether it is being closed, or was: then {@link #files} may lack some. */
  boolean isClosing();

  /** Size and time of a file that {@link #files} named. */
  FileStat stat(String file) throws IOException;

  /** What the file system says of a file. */
  final class FileStat {
    final long sizeBytes;
    final long modifiedMs;

    FileStat(long sizeBytes, long modifiedMs) {
      this.sizeBytes = sizeBytes;
      this.modifiedMs = modifiedMs;
    }
  }
}
