package io.basalt.hbase.knowledge;

import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.SystemRow;
import java.io.IOException;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.CheckAndMutate;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;

/** The system and metadata tables of one prefix, through the region server's own connection. */
public class InstallationTables {
  static final byte[] FAMILY = {'m'};
  private static final byte[] SYSTEM_VALUE = {'v'};
  private static final byte[] METADATA_VALUE = {'m'};
  /** Nothing is ever stored there: deleting it changes nothing. */
  private static final byte[] NO_COLUMN = {'f'};
  private static final String REPORT_KIND = "region";

  /** Long enough for a region that is being moved, short enough for the next refresh. */
  private static final int TIMEOUT_MS = (int) TimeUnit.SECONDS.toMillis(5);
  /** A hundred bytes a row: 10,000 topics come in five answers. */
  private static final int TOPICS_PER_ANSWER = 2_000;

  private final Connection connection;
  private final TableName systemTable;
  private final TableName metadataTable;

  public InstallationTables(Connection connection, String prefix) {
    this.connection = connection;
    systemTable = TableName.valueOf(prefix + ".system");
    metadataTable = TableName.valueOf(prefix + ".metadata");
  }

  /** The column v of a row of the system table, or null when there is no such row. */
  public byte[] systemRow(byte[] key) throws IOException {
    try (Table table = open(systemTable)) {
      return table.get(new Get(key).addColumn(FAMILY, SYSTEM_VALUE)).getValue(FAMILY, SYSTEM_VALUE);
    }
  }

  /**
   * True when the row still is {@code value} (null: absent), proved by a conditional write that goes through its region's
   * log. A server that has lost the region without knowing it can answer a read, but cannot do that.
   */
  public boolean isStill(byte[] key, byte[] value) throws IOException {
    CheckAndMutate.Builder check = CheckAndMutate.newBuilder(key);
    if (value == null) {
      check.ifNotExists(FAMILY, SYSTEM_VALUE);
    } else {
      check.ifEquals(FAMILY, SYSTEM_VALUE, value);
    }
    try (Table table = open(systemTable)) {
      return table.checkAndMutate(check.build(new Delete(key).addColumns(FAMILY, NO_COLUMN))).isSuccess();
    }
  }

  /** The body of a region's report, or null when there is none or its row is corrupt. */
  public byte[] report(String encodedRegionName) throws IOException {
    byte[] row = systemRow(SystemRow.key(REPORT_KIND, encodedRegionName));
    try {
      return row == null ? null : SystemRow.open(row);
    } catch (CorruptionException damaged) {
      return null;
    }
  }

  /** Replaces a region's report: row {@code region:<encoded name>} of the system table. */
  public void putReport(String encodedRegionName, byte[] body) throws IOException {
    try (Table table = open(systemTable)) {
      byte[] key = SystemRow.key(REPORT_KIND, encodedRegionName);
      table.put(new Put(key).addColumn(FAMILY, SYSTEM_VALUE, SystemRow.seal(body)));
    }
  }

  /** Gives each metadata row whose cell has this time stamp or a later one. */
  void topics(long fromTimestampMs, Refresher.TopicReader reader) throws IOException {
    Scan scan = new Scan().addColumn(FAMILY, METADATA_VALUE).setCaching(TOPICS_PER_ANSWER);
    scan.setTimeRange(fromTimestampMs, Long.MAX_VALUE);
    try (Table table = open(metadataTable);
        ResultScanner results = table.getScanner(scan)) {
      for (Result result : results) {
        Cell cell = result.rawCells()[0];
        reader.topic(result.getRow(), CellUtil.cloneValue(cell), cell.getTimestamp());
      }
    }
  }

  private Table open(TableName name) {
    return connection
        .getTableBuilder(name, null)
        .setOperationTimeout(TIMEOUT_MS)
        .setRpcTimeout(TIMEOUT_MS)
        .setReadRpcTimeout(TIMEOUT_MS)
        .build();
  }
}
