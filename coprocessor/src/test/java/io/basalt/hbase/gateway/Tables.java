package io.basalt.hbase.gateway;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.HRegionLocation;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.util.Bytes;

/** What tests do to tables and regions, and what they write past Basalt. */
public final class Tables {
  private static final byte[] FAMILY = Bytes.toBytes("m");
  private static final String COPROCESSOR = "coprocessor$1";
  private static final long DEADLINE_SECONDS = 60;

  private final MiniCluster cluster;

  Tables(MiniCluster cluster) {
    this.cluster = cluster;
  }

  private Connection connection() throws IOException {
    return cluster.utility().getConnection();
  }

  private Admin admin() throws IOException {
    return cluster.utility().getAdmin();
  }

  /**
   * Makes tables as Basalt's are, all at once: of each its name, coprocessor attribute (empty for none), and split
   * keys.
   */
  public void create(byte[] tables) throws Exception {
    List<Future<Void>> made = new ArrayList<>();
    Frames.In input = new Frames.In(tables);
    while (input.hasMore()) {
      TableDescriptorBuilder builder =
          TableDescriptorBuilder.newBuilder(TableName.valueOf(input.bytes()))
              .setColumnFamily(ColumnFamilyDescriptorBuilder.newBuilder(FAMILY).setMaxVersions(1).build());
      String coprocessor = new String(input.bytes(), StandardCharsets.UTF_8);
      if (!coprocessor.isEmpty()) {
        builder.setValue(COPROCESSOR, coprocessor);
      }
      byte[][] splits = new byte[input.count()][];
      for (int index = 0; index < splits.length; index++) {
        splits[index] = input.bytes();
      }
      made.add(admin().createTableAsync(builder.build(), splits.length == 0 ? null : splits));
    }
    await(made);
  }

  /** Removes all tables whose names start so. */
  public void dropAll(String start) throws Exception {
    List<TableName> names = new ArrayList<>();
    List<Future<Void>> done = new ArrayList<>();
    for (TableName name : admin().listTableNames()) {
      if (name.getNameAsString().startsWith(start)) {
        names.add(name);
        if (admin().isTableEnabled(name)) {
          done.add(admin().disableTableAsync(name));
        }
      }
    }
    await(done);
    for (TableName name : names) {
      done.add(admin().deleteTableAsync(name));
    }
    await(done);
  }

  private static void await(List<Future<Void>> steps) throws Exception {
    for (Future<Void> step : steps) {
      step.get(DEADLINE_SECONDS, TimeUnit.SECONDS);
    }
    steps.clear();
  }

  /** Changes the coprocessor attribute, empty to take it away; returns when every region was opened anew. */
  public void setCoprocessor(String table, String coprocessor) throws IOException {
    TableDescriptorBuilder builder = TableDescriptorBuilder.newBuilder(admin().getDescriptor(TableName.valueOf(table)));
    if (coprocessor.isEmpty()) {
      builder.removeValue(Bytes.toBytes(COPROCESSOR));
    } else {
      builder.setValue(COPROCESSOR, coprocessor);
    }
    admin().modifyTable(builder.build());
    cluster.settle();
  }

  public String coprocessor(String table) throws IOException {
    String value = admin().getDescriptor(TableName.valueOf(table)).getValue(COPROCESSOR);
    return value == null ? "" : value;
  }

  public void disable(String table) throws IOException {
    admin().disableTable(TableName.valueOf(table));
  }

  public void enable(String table) throws IOException {
    admin().enableTable(TableName.valueOf(table));
  }

  /** Copies a table as it is now, under a name. */
  public void snapshot(String table, String name) throws IOException {
    admin().snapshot(name, TableName.valueOf(table));
  }

  /** Makes a table that is off line what it was when it was copied, and removes the copy. */
  public void restore(String name) throws IOException {
    admin().restoreSnapshot(name);
    admin().deleteSnapshot(name);
  }

  /** Of each region in key order: encoded name, full name, server, start key, end key. */
  public byte[] regions(String table) throws IOException {
    Frames.Out output = new Frames.Out();
    for (HRegionLocation location : locations(table)) {
      output.text(location.getRegion().getEncodedName());
      output.bytes(location.getRegion().getRegionName());
      output.text(location.getServerName() == null ? null : location.getServerName().toString());
      output.bytes(location.getRegion().getStartKey()).bytes(location.getRegion().getEndKey());
    }
    return output.toBytes();
  }

  private List<HRegionLocation> locations(String table) throws IOException {
    connection().clearRegionLocationCache();
    return connection().getRegionLocator(TableName.valueOf(table)).getAllRegionLocations();
  }

  /** Moves a region and waits until it is open there. */
  public void move(String encodedName, String server) throws IOException, InterruptedException {
    admin().move(Bytes.toBytes(encodedName), ServerName.valueOf(server));
    cluster.settle();
  }

  /** Splits a region and waits until its daughters are open. */
  public void split(String table, String encodedName, byte[] at) throws Exception {
    byte[] region = regionNamed(table, encodedName);
    admin().splitRegionAsync(region, at).get(DEADLINE_SECONDS, TimeUnit.SECONDS);
    cluster.settle();
  }

  /** Merges two neighbours and waits until the result is open. */
  public void merge(String first, String second) throws Exception {
    byte[][] regions = {Bytes.toBytes(first), Bytes.toBytes(second)};
    admin().mergeRegionsAsync(regions, false).get(DEADLINE_SECONDS, TimeUnit.SECONDS);
    cluster.settle();
  }

  private byte[] regionNamed(String table, String encodedName) throws IOException {
    for (HRegionLocation location : locations(table)) {
      if (location.getRegion().getEncodedName().equals(encodedName)) {
        return location.getRegion().getRegionName();
      }
    }
    throw new IOException("no region " + encodedName + " in " + table);
  }

  /**
   * Writes rows: of each its key, the number of its columns, and their names and values; a null value deletes the
   * column. Every mutation carries the attribute, unless its name is empty. One round trip for all.
   */
  public void write(String table, byte[] rows, String attribute, byte[] attributeValue) throws Exception {
    List<Mutation> mutations = new ArrayList<>();
    Frames.In input = new Frames.In(rows);
    while (input.hasMore()) {
      byte[] row = input.bytes();
      Put put = new Put(row);
      Delete delete = new Delete(row);
      for (int left = input.count(); left > 0; left--) {
        byte[] qualifier = input.bytes();
        byte[] value = input.bytes();
        if (value == null) {
          delete.addColumns(FAMILY, qualifier);
        } else {
          put.addColumn(FAMILY, qualifier, value);
        }
      }
      for (Mutation mutation : new Mutation[] {put, delete}) {
        if (!mutation.isEmpty()) {
          if (!attribute.isEmpty()) {
            mutation.setAttribute(attribute, attributeValue);
          }
          mutations.add(mutation);
        }
      }
    }
    try (Table opened = connection().getTable(TableName.valueOf(table))) {
      opened.batch(mutations, new Object[mutations.size()]);
    }
  }

  /** Every cell that a scan sees: row, qualifier, value. */
  public byte[] scan(String table) throws IOException {
    Frames.Out output = new Frames.Out();
    try (Table opened = connection().getTable(TableName.valueOf(table));
        ResultScanner scanner = opened.getScanner(new Scan())) {
      for (Result result : scanner) {
        for (Cell cell : result.rawCells()) {
          output.bytes(CellUtil.cloneRow(cell)).bytes(CellUtil.cloneQualifier(cell)).bytes(CellUtil.cloneValue(cell));
        }
      }
    }
    return output.toBytes();
  }
}
