package io.basalt.hbase.gateway;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.KeyValueUtil;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.io.hfile.CacheConfig;
import org.apache.hadoop.hbase.io.hfile.HFile;
import org.apache.hadoop.hbase.io.hfile.HFileScanner;
import org.apache.hadoop.hbase.regionserver.HRegion;
import org.apache.hadoop.hbase.regionserver.HRegionServer;
import org.apache.hadoop.hbase.regionserver.HStore;
import org.apache.hadoop.hbase.regionserver.HStoreFile;
import org.apache.hadoop.hbase.regionserver.StoreFileScanner;

/** Flushes and compacts as told, and reads the files that are left, past every scanner of a region. */
public final class StoreFiles {
  private final MiniCluster cluster;

  StoreFiles(MiniCluster cluster) {
    this.cluster = cluster;
  }

  /** Writes the memstores of all regions to files. */
  public void flush(String table) throws IOException {
    for (HRegion region : regions(table)) {
      region.flush(true);
    }
  }

  /**
   * Compacts all regions, and returns when the old files are gone. A minor compaction takes what the policy selects
   * of a store that has at least two files.
   */
  public void compact(String table, boolean major) throws IOException {
    for (HRegion region : regions(table)) {
      region.compact(major);
      for (HStore store : region.getStores()) {
        store.closeAndArchiveCompactedFiles();
      }
    }
  }

  /** Bytes in memory that are in no file yet, over all regions. */
  public long memstoreBytes(String table) {
    return regions(table).stream().mapToLong(HRegion::getMemStoreDataSize).sum();
  }

  /** Of each file: region (encoded), name, whether it is a reference to a parent's file, size, modification time. */
  public byte[] list(String table) throws IOException {
    Frames.Out output = new Frames.Out();
    for (HRegion region : regions(table)) {
      for (HStore store : region.getStores()) {
        for (HStoreFile file : store.getStorefiles()) {
          output.text(region.getRegionInfo().getEncodedName()).text(file.getPath().getName());
          output.flag(file.isReference()).number(file.getReader().length()).number(file.getModificationTimestamp());
        }
      }
    }
    return output.toBytes();
  }

  /**
   * Every cell in every file: file, row, qualifier, timestamp, type, value. Read from the file system, not through
   * the region.
   */
  public byte[] cells(String table) throws IOException {
    Frames.Out output = new Frames.Out();
    for (HRegion region : regions(table)) {
      for (HStore store : region.getStores()) {
        for (HStoreFile file : store.getStorefiles()) {
          for (Cell cell : isElsewhere(file) ? throughReader(file) : whole(region, file)) {
            output.text(file.getPath().getName());
            output.bytes(CellUtil.cloneRow(cell)).bytes(CellUtil.cloneQualifier(cell)).number(cell.getTimestamp());
            output.text(cell.getType().name()).bytes(CellUtil.cloneValue(cell));
          }
        }
      }
    }
    return output.toBytes();
  }

  private List<Cell> whole(HRegion region, HStoreFile file) throws IOException {
    List<Cell> cells = new ArrayList<>();
    try (HFile.Reader reader =
        HFile.createReader(
            region.getFilesystem(), file.getPath(), CacheConfig.DISABLED, true, cluster.getConfiguration())) {
      HFileScanner scanner = reader.getScanner(cluster.getConfiguration(), false, false);
      for (boolean more = scanner.seekTo(); more; more = scanner.next()) {
        cells.add(KeyValueUtil.copyToNewKeyValue(scanner.getCell()));
      }
    }
    return cells;
  }

  /** Whether the file only says which file of a parent region it stands for, or which half of one. */
  private static boolean isElsewhere(HStoreFile file) {
    return file.isReference() || file.getFileInfo().isLink();
  }

  private static List<Cell> throughReader(HStoreFile file) throws IOException {
    List<Cell> cells = new ArrayList<>();
    StoreFileScanner scanner = file.getPreadScanner(false, Long.MAX_VALUE, 0, false);
    try {
      scanner.seek(KeyValueUtil.createFirstOnRow(new byte[0], 0, (short) 0));
      for (Cell cell = scanner.next(); cell != null; cell = scanner.next()) {
        cells.add(KeyValueUtil.copyToNewKeyValue(cell));
      }
    } finally {
      scanner.close();
    }
    return cells;
  }

  private List<HRegion> regions(String table) {
    List<HRegion> regions = new ArrayList<>();
    for (HRegionServer server : cluster.running()) {
      regions.addAll(server.getRegions(TableName.valueOf(table)));
    }
    return regions;
  }
}
