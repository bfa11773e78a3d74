package io.basalt.hbase.report;

import io.basalt.hbase.fence.Fence;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hbase.MemoryCompactionPolicy;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptor;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.regionserver.MemStoreSize;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.StoreFile;

/** A region of HBase as its report and its tombstones need it. Each is used by one thread alone. */
public class LiveRegion {
  /** In place of a time: nothing is in memory. */
  static final long EMPTY = Long.MAX_VALUE;

  /** In place of a time: it cannot be told. */
  public static final long UNKNOWN = 0;

  /** HBase's setting for families that say nothing themselves. */
  private static final String MEMORY_COMPACTION_KEY = "hbase.hregion.compacting.memstore.type";

  private static final FileStat GONE = new FileStat(0, 0);

  private final RegionCoprocessorEnvironment environment;
  private Map<String, FileStat> stats = new HashMap<>();
  private Map<String, Path> paths = new HashMap<>();

  /** The facts of the file system about a file. */
  static final class FileStat {
    final long sizeBytes;
    final long modifiedMs;

    FileStat(long sizeBytes, long modifiedMs) {
      this.sizeBytes = sizeBytes;
      this.modifiedMs = modifiedMs;
    }
  }

  public LiveRegion(RegionCoprocessorEnvironment environment) {
    this.environment = environment;
  }

  private RegionInfo info() {
    return environment.getRegionInfo();
  }

  String encodedName() {
    return info().getEncodedName();
  }

  String table() {
    return info().getTable().getNameAsString();
  }

  byte[] regionName() {
    return info().getRegionName();
  }

  byte[] startKey() {
    return info().getStartKey();
  }

  byte[] endKey() {
    return info().getEndKey();
  }

  /**
   * When the oldest cell that is in memory was put there; {@link #EMPTY} when there is none, 0 when that cannot be
   * told. What a flush is just writing need not count.
   */
  long oldestEditMs() {
    long oldest = EMPTY;
    for (Store store : environment.getRegion().getStores()) {
      oldest = Math.min(oldest, oldestEditMs(store));
    }
    return oldest;
  }

  private long oldestEditMs(Store store) {
    long oldest = store.timeOfOldestEdit();
    if (isEmpty(store.getMemStoreSize())) {
      return EMPTY;
    }
    // With compaction in memory a flush may leave the older cells there, and forget their time.
    return oldest == Long.MAX_VALUE || compactsInMemory(store.getColumnFamilyDescriptor()) ? 0 : oldest;
  }

  private boolean compactsInMemory(ColumnFamilyDescriptor family) {
    MemoryCompactionPolicy policy = family.getInMemoryCompaction();
    String name = policy != null
        ? policy.name()
        : environment.getConfiguration().get(MEMORY_COMPACTION_KEY, MemoryCompactionPolicy.NONE.name());
    return !MemoryCompactionPolicy.NONE.name().equalsIgnoreCase(name);
  }

  /** True when a flush has taken cells out of memory whose file is not among {@link #files} yet. */
  boolean isFlushing() {
    for (Store store : environment.getRegion().getStores()) {
      if (!isEmpty(store.getSnapshotSize())) {
        return true;
      }
    }
    return false;
  }

  private static boolean isEmpty(MemStoreSize size) {
    return size.getDataSize() == 0 && size.getCellsCount() == 0;
  }

  /** The names of the store files of all readers that begin now. */
  Set<String> files() {
    Map<String, Path> found = new HashMap<>();
    for (Store store : environment.getRegion().getStores()) {
      for (StoreFile file : store.getStorefiles()) {
        found.put(file.getPath().getName(), file.getPath());
      }
    }
    paths = found;
    stats.keySet().retainAll(found.keySet());
    return found.keySet();
  }

  /** True when it is being closed, or was: then {@link #files} may lack some. */
  boolean isClosing() {
    return environment.getRegion().isClosing() || environment.getRegion().isClosed();
  }

  /** Size and time of a file that {@link #files} named. */
  FileStat stat(String file) throws IOException {
    FileStat known = stats.get(file);
    if (known == null) {
      known = stat(paths.get(file), environment.getConfiguration());
      stats.put(file, known);
    }
    return known;
  }

  private static FileStat stat(Path path, Configuration configuration) throws IOException {
    try {
      FileStatus status = path.getFileSystem(configuration).getFileStatus(path);
      return new FileStat(status.getLen(), status.getModificationTime());
    } catch (FileNotFoundException compactedAway) {
      return GONE;
    }
  }

  /**
   * The highest age of its cells that lie in none of these files: on their way into memory, in memory, or in a file that a
   * flush has written since. Cells move in that direction only, so these are looked at in that order, as {@link
   * ReportedRegion} does.
   *
   * @return when the oldest of them was let in, or ten minutes after that; {@code nowMs}, the time of this call, if
   *     there are none; {@link #UNKNOWN} when it cannot be told
   */
  public final long oldestUnfiledMs(Fence fence, Set<String> files, long nowMs) {
    long inFlightMs = fence.oldestInFlightMs();
    Fence.SlowBatch slow = fence.slowBatch();
    long oldestMs = Math.min(nowMs, oldestEditMs());
    if (isFlushing() || !files.containsAll(files()) || isClosing()) {
      return UNKNOWN;
    }
    if (inFlightMs != Fence.NONE_IN_FLIGHT) {
      oldestMs = Math.min(oldestMs, inFlightMs);
    }
    return slow == null ? oldestMs : Math.min(oldestMs, slow.admittedMs);
  }
}
