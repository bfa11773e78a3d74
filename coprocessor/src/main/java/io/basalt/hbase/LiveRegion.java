package io.basalt.hbase;

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

/** A region of HBase as its report needs it. Used by the refresher's thread alone. */
final class LiveRegion implements RegionView {
  /** HBase's setting for families that say nothing themselves. */
  private static final String MEMORY_COMPACTION_KEY = "hbase.hregion.compacting.memstore.type";

  private static final FileStat GONE = new FileStat(0, 0);

  private final RegionCoprocessorEnvironment environment;
  private final RegionInfo info;
  private Map<String, FileStat> stats = new HashMap<>();
  private Map<String, Path> paths = new HashMap<>();

  LiveRegion(RegionCoprocessorEnvironment environment) {
    this.environment = environment;
    this.info = environment.getRegionInfo();
  }

  @Override
  public String encodedName() {
    return info.getEncodedName();
  }

  @Override
  public String table() {
    return info.getTable().getNameAsString();
  }

  @Override
  public byte[] regionName() {
    return info.getRegionName();
  }

  @Override
  public byte[] startKey() {
    return info.getStartKey();
  }

  @Override
  public byte[] endKey() {
    return info.getEndKey();
  }

  @Override
  public long oldestEditMs() {
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

  @Override
  public boolean isFlushing() {
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

  @Override
  public Set<String> files() {
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

  @Override
  public boolean isClosing() {
    return environment.getRegion().isClosing() || environment.getRegion().isClosed();
  }

  @Override
  public FileStat stat(String file) throws IOException {
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
}
