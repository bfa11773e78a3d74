package io.basalt.hbase.knowledge;

import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.SystemRow;
import io.basalt.hbase.format.TopicChanges;
import io.basalt.hbase.format.TopicChanges.Mark;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.DoNotRetryIOException;
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
import org.apache.hadoop.hbase.util.Bytes;

/** The system and metadata tables of one prefix, through the region server's own connection. */
public class InstallationTables {
  public static final byte[] FAMILY = {'m'};
  /** Of a read of the metadata table: what is known already, so that the region tells what has changed since. */
  public static final String CHANGES = "basalt.changes";
  /** The column of the answer, which is stored nowhere. */
  public static final byte[] CHANGED = {'c'};
  /** Of a write that changes nothing: the number of the opening that the region still must be of. */
  public static final String OPENED = "basalt.opened";
  private static final byte[] SYSTEM_VALUE = {'v'};
  private static final byte[] METADATA_VALUE = {'m'};
  /** Nothing is ever stored there: deleting it changes nothing. */
  private static final byte[] NO_COLUMN = {'f'};
  private static final String REPORT_KIND = "region";

  /** Long enough for a region that is being moved, short enough for the next refresh. */
  private static final int TIMEOUT_MS = (int) TimeUnit.SECONDS.toMillis(5);
  /** A hundred bytes a row: 10,000 topics come in five answers. */
  private static final int TOPICS_PER_ANSWER = 2_000;
  /** Of the metadata table. It has one region, unless somebody splits it: some 100 million topics fit into one. */
  private static final int REGIONS_MAX = 1_000;
  /** Lower than each row's key, and not empty, which a key must not be. */
  private static final byte[] FIRST_KEY = {0};

  /** What all regions said: the marks to ask with the next time, by the key at which a region begins. */
  static final class ChangesSince {
    final Map<byte[], Mark> marks = new TreeMap<>(Bytes.BYTES_COMPARATOR);
    final List<byte[]> keys = new ArrayList<>();
    /** Any row may have changed. */
    boolean all;

    void add(byte[] position, TopicChanges changes) {
      marks.put(position, changes.mark);
      keys.addAll(changes.keys);
      all |= changes.all;
    }
  }

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

  /** What the regions of the metadata table say has changed since these marks. */
  ChangesSince changes(Map<byte[], Mark> known) throws IOException {
    ChangesSince found = new ChangesSince();
    byte[] position = {};
    try (Table table = open(metadataTable)) {
      for (int regions = 0; regions < REGIONS_MAX; regions++) {
        Mark mark = known.getOrDefault(position, TopicChanges.NOTHING);
        Get question = new Get(keyAt(position)).addColumn(FAMILY, CHANGED);
        question.setAttribute(CHANGES, mark.encode());
        byte[] answer = table.get(question).getValue(FAMILY, CHANGED);
        if (answer == null) { // no coprocessor is there, or an older one
          found.all = true;
          return found;
        }
        TopicChanges changes = TopicChanges.decode(answer);
        found.add(position, changes);
        if (changes.next.length == 0) {
          return found;
        }
        if (Bytes.compareTo(changes.next, position) <= 0) {
          throw new IOException("basalt: a region of " + metadataTable + " ends before it begins");
        }
        position = changes.next;
      }
    } catch (CorruptionException damaged) {
      throw new IOException(damaged);
    }
    throw new IOException("basalt: " + metadataTable + " has more than " + REGIONS_MAX + " regions");
  }

  /**
   * True when the region at this position still is of this opening, proved by a write that goes through its log: see {@link #isStill}.
   */
  boolean isStillOpen(byte[] position, long opened) throws IOException {
    Delete nothing = new Delete(keyAt(position)).addColumns(FAMILY, NO_COLUMN);
    nothing.setAttribute(OPENED, Bytes.toBytes(opened));
    try (Table table = open(metadataTable)) {
      table.delete(nothing);
      return true;
    } catch (DoNotRetryIOException refused) {
      return false;
    }
  }

  private static byte[] keyAt(byte[] position) {
    return position.length == 0 ? FIRST_KEY : position;
  }

  /** Gives each metadata row. */
  void topics(Refresher.TopicReader reader) throws IOException {
    Scan scan = new Scan().addColumn(FAMILY, METADATA_VALUE).setCaching(TOPICS_PER_ANSWER);
    try (Table table = open(metadataTable);
        ResultScanner results = table.getScanner(scan)) {
      for (Result result : results) {
        reader.topic(result.getRow(), CellUtil.cloneValue(result.rawCells()[0]));
      }
    }
  }

  /** Gives each of these metadata rows; null in the place of a value where there is no such row. */
  void topics(List<byte[]> keys, Refresher.TopicReader reader) throws IOException {
    List<Get> gets = new ArrayList<>();
    for (byte[] key : keys) {
      gets.add(new Get(key).addColumn(FAMILY, METADATA_VALUE));
    }
    try (Table table = open(metadataTable)) {
      Result[] results = table.get(gets);
      for (int index = 0; index < results.length; index++) {
        reader.topic(keys.get(index), results[index].getValue(FAMILY, METADATA_VALUE));
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
