package io.basalt.hbase.gateway;

import io.basalt.hbase.format.BigEndian;
import io.basalt.hbase.format.CellKey;
import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.MessageKey;
import io.basalt.hbase.format.PayloadKey;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.format.Snapshot.Visibility;
import io.basalt.hbase.format.SystemRow;
import io.basalt.hbase.format.TopicPrefix;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.format.TopicRule.OnInvalid;
import io.basalt.hbase.knowledge.Knowledge;
import io.basalt.hbase.report.RegionReport;
import io.basalt.hbase.rule.CellFilter;
import io.basalt.hbase.rule.Counters;
import io.basalt.hbase.rule.FilterPass;
import io.basalt.hbase.rule.MessageFilter;
import io.basalt.hbase.rule.PayloadFilter;
import io.basalt.hbase.rule.Retention;
import io.basalt.hbase.rule.RowFilter;
import io.basalt.hbase.rule.Verdict;
import io.basalt.hbase.rule.Verdict.Fate;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.KeyValue;

/**
 * The rules and codecs that Python has, too, as tests/hbase/test_twins.py asks them: each method answers a whole batch.
 *
 * <p>Where bytes are refused, the answer holds the flag false and nothing more.
 */
public final class Twins {
  private static final int GC_ROUNDS = 3;

  private static final byte[] FAMILY = {'m'};
  private static final byte[] WRITER = {'t'};

  /** Fate and reason of each verdict, in the order of the numbers by which {@link #judge} names them. */
  public List<String> verdicts() {
    List<String> names = new ArrayList<>();
    for (Verdict verdict : Verdict.values()) {
      names.add(verdict.fate.value + ": " + verdict.reason);
    }
    return names;
  }

  /**
   * Judges rows: now, lifetime, the body of a snapshot or null, topics (generation, TTL, onInvalid, truncation), then for each
   * row the number of its topic (−1 unknown), whether it is a payload row, and its key and columns t and x. Answers a
   * byte for each row.
   */
  public byte[] judge(byte[] batch) throws IOException, CorruptionException {
    Frames.In input = new Frames.In(batch);
    long nowMs = input.number();
    long lifetimeMsMax = input.number();
    byte[] body = input.bytes();
    Snapshot snapshot = body == null ? null : Snapshot.decode(body);
    TopicRule[] topics = new TopicRule[input.count()];
    for (int index = 0; index < topics.length; index++) {
      topics[index] = readRule(input);
    }
    byte[] verdicts = new byte[input.count()];
    for (int index = 0; index < verdicts.length; index++) {
      int number = input.count();
      TopicRule topic = number < 0 ? null : topics[number];
      boolean isPayload = input.flag();
      byte[] key = input.bytes();
      long writtenBy = input.number();
      long expireMs = input.number();
      verdicts[index] =
          (byte) verdict(isPayload, key, writtenBy, expireMs, topic, snapshot, lifetimeMsMax, nowMs).ordinal();
    }
    return verdicts;
  }

  private static TopicRule readRule(Frames.In input) throws IOException {
    return new TopicRule(input.count(), input.number(), OnInvalid.values()[input.count()], input.number());
  }

  private static Verdict verdict(
      boolean isPayload,
      byte[] key,
      long writtenBy,
      long expireMs,
      TopicRule topic,
      Snapshot snapshot,
      long lifetimeMsMax,
      long nowMs)
      throws CorruptionException {
    if (isPayload) {
      PayloadKey decoded = PayloadKey.decode(key);
      return Retention.judgePayload(
          decoded.generation, decoded.writePointer, decoded.writeMs, topic, snapshot, lifetimeMsMax, nowMs);
    }
    MessageKey decoded = MessageKey.decode(key);
    return Retention.judgeMessage(
        decoded.generation, decoded.publishMs, writtenBy, expireMs, topic, snapshot, nowMs);
  }

  /**
   * Judges whole rows as a compaction of all files does: now, the body of a snapshot or null, topics (prefix,
   * generation, TTL, onInvalid, truncation), then for each row whether it is a payload row, its key, and its columns by name.
   * Answers a byte for each row.
   */
  public byte[] judgeRows(byte[] batch) throws IOException, CorruptionException {
    Frames.In input = new Frames.In(batch);
    long nowMs = input.number();
    byte[] body = input.bytes();
    Snapshot snapshot = body == null ? null : Snapshot.decode(body);
    Map<String, TopicRule> rules = new HashMap<>();
    for (int left = input.count(); left > 0; left--) {
      byte[] prefix = input.bytes();
      TopicRule rule = readRule(input);
      rules.put(TopicPrefix.text(prefix, 0, prefix.length), rule);
    }
    // One filter for all, as in a compaction: it must not take the topic of the row before.
    Counters counters = new Counters();
    RowFilter messages = new MessageFilter(rules, new FilterPass(snapshot), nowMs, true, counters);
    RowFilter payloads = new PayloadFilter(rules, new FilterPass(snapshot), nowMs, counters);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      RowFilter filter = input.flag() ? payloads : messages;
      output.text(fateOf(filter, input.bytes(), input));
    }
    return output.toBytes();
  }

  /** What is left of the row: nothing, the same, or the same with t negated; else what went wrong. */
  private static String fateOf(RowFilter filter, byte[] key, Frames.In columns) throws IOException {
    List<Cell> cells = new ArrayList<>();
    for (int left = columns.count(); left > 0; left--) {
      cells.add(new KeyValue(key, FAMILY, columns.bytes(), 1, columns.bytes()));
    }
    List<Cell> before = new ArrayList<>(cells);
    filter.filter(cells, 0);
    if (cells.isEmpty()) {
      return Fate.DROP.value;
    }
    boolean isSame = cells.size() == before.size();
    boolean isRolledBack = false;
    for (int index = 0; isSame && index < cells.size(); index++) {
      Cell left = cells.get(index);
      Cell had = before.get(index);
      boolean isNegated =
          CellUtil.matchingQualifier(left, WRITER)
              && left.getValueLength() == BigEndian.LONG_BYTES
              && had.getValueLength() == BigEndian.LONG_BYTES
              && BigEndian.readLong(CellUtil.cloneValue(left), 0) == -BigEndian.readLong(CellUtil.cloneValue(had), 0);
      isSame = CellUtil.equals(left, had) && (isNegated || CellUtil.matchingValue(left, had));
      isRolledBack |= isNegated && !CellUtil.matchingValue(left, had);
    }
    return !isSame ? "patched" : isRolledBack ? Fate.ROLL_BACK.value : Fate.KEEP.value;
  }

  /**
   * Judges versions of cells in the order of their keys: the body of a snapshot or null, the purge bound, tables (prefix,
   * generation), then for each row its key and its columns by name. Answers a byte for each row, as {@link #judge}.
   */
  public byte[] judgeCells(byte[] batch) throws IOException, CorruptionException {
    Frames.In input = new Frames.In(batch);
    byte[] body = input.bytes();
    FilterPass pass = new FilterPass(body == null ? null : Snapshot.decode(body));
    long purgeBound = input.number();
    Map<String, TopicRule> rules = new HashMap<>();
    for (int left = input.count(); left > 0; left--) {
      byte[] prefix = input.bytes();
      TopicRule rule = new TopicRule(input.count(), Long.MAX_VALUE, OnInvalid.DROP);
      rules.put(TopicPrefix.text(prefix, 0, prefix.length), rule);
    }
    // One filter for all, as in a compaction: what it learnt of a cell must not go over to the next.
    CellFilter filter = new CellFilter(rules, pass, 0, purgeBound, new Counters());
    byte[] verdicts = new byte[input.count()];
    for (int index = 0; index < verdicts.length; index++) {
      byte[] key = input.bytes();
      List<Cell> cells = new ArrayList<>();
      for (int left = input.count(); left > 0; left--) {
        cells.add(new KeyValue(key, FAMILY, input.bytes(), 1, input.bytes()));
      }
      verdicts[index] = (byte) filter.verdict(cells, 0).ordinal();
    }
    return verdicts;
  }

  /** Takes keys of cells apart: salt, prefix, generation, row, column, write pointer, and the key put together again. */
  public byte[] cellKeys(byte[] batch) throws IOException {
    Frames.In input = new Frames.In(batch);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      try {
        CellKey key = CellKey.decode(input.bytes());
        output.flag(true).number(key.salt).bytes(key.prefix).number(key.generation);
        output.bytes(key.row).bytes(key.column).number(key.writePointer).bytes(key.encode());
      } catch (CorruptionException refused) {
        output.flag(false);
      }
    }
    return output.toBytes();
  }

  /** Takes message keys apart: salt, prefix, generation, time, sequence, and the key put together again. */
  public byte[] messageKeys(byte[] batch) throws IOException {
    Frames.In input = new Frames.In(batch);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      try {
        MessageKey key = MessageKey.decode(input.bytes());
        output.flag(true).number(key.salt).bytes(key.prefix).number(key.generation);
        output.number(key.publishMs).number(key.sequence).bytes(key.encode());
      } catch (CorruptionException refused) {
        output.flag(false);
      }
    }
    return output.toBytes();
  }

  /**
   * Takes payload keys apart: salt, prefix, generation, write pointer, time, sequence, and the key put together
   * again.
   */
  public byte[] payloadKeys(byte[] batch) throws IOException {
    Frames.In input = new Frames.In(batch);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      try {
        PayloadKey key = PayloadKey.decode(input.bytes());
        output.flag(true).number(key.salt).bytes(key.prefix).number(key.generation);
        output.number(key.writePointer).number(key.writeMs).number(key.payloadSequence).bytes(key.encode());
      } catch (CorruptionException refused) {
        output.flag(false);
      }
    }
    return output.toBytes();
  }

  /** Reads bodies of snapshots: the eight numbers, then both lists and both lists of runs, each behind its length. */
  public byte[] snapshots(byte[] batch) throws IOException {
    Frames.In input = new Frames.In(batch);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      try {
        Snapshot read = Snapshot.decode(input.bytes());
        output.flag(true).number(read.epoch).number(read.sequence).number(read.timeMs).number(read.readPointer);
        output.number(read.writePointer).number(read.decided).number(read.visibilityUpperBound);
        output.number(read.lifetimeMsMax);
        for (long[] pointers : Arrays.asList(
            read.inProgress(), read.invalid(), read.inProgressRuns(), read.invalidRuns())) {
          output.count(pointers.length);
          for (long pointer : pointers) {
            output.number(pointer);
          }
        }
      } catch (CorruptionException refused) {
        output.flag(false);
      }
    }
    return output.toBytes();
  }

  /** For pairs of snapshots: whether the first is the newer one. */
  public byte[] isNewer(byte[] batch) throws IOException, CorruptionException {
    Frames.In input = new Frames.In(batch);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      Snapshot first = Snapshot.decode(input.bytes());
      output.flag(first.isNewerThan(Snapshot.decode(input.bytes())));
    }
    return output.toBytes();
  }

  /** What a snapshot says of writers: a number of {@link Visibility} for each. */
  public byte[] visibility(byte[] batch) throws IOException, CorruptionException {
    Frames.In input = new Frames.In(batch);
    Snapshot snapshot = Snapshot.decode(input.bytes());
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      output.text(snapshot.judge(input.number()).value);
    }
    return output.toBytes();
  }

  /** Reads rows of the metadata table: generation, TTL, onInvalid, truncation. */
  public byte[] metadata(byte[] batch) throws IOException {
    Frames.In input = new Frames.In(batch);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      try {
        TopicRule rule = TopicRule.decode(input.bytes());
        output.flag(true).number(rule.generation).number(rule.ttlMs).text(rule.onInvalid.value)
            .number(rule.truncatedBeforeMs);
      } catch (CorruptionException refused) {
        output.flag(false);
      }
    }
    return output.toBytes();
  }

  /** Opens values of the system table: the body, and its value sealed again. */
  public byte[] systemRows(byte[] batch) throws IOException {
    Frames.In input = new Frames.In(batch);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      try {
        byte[] body = SystemRow.open(input.bytes());
        output.flag(true).bytes(body).bytes(SystemRow.seal(body));
      } catch (CorruptionException refused) {
        output.flag(false);
      }
    }
    return output.toBytes();
  }

  /** Reads bodies of region reports: every field, and the body encoded again, with its counters by name. */
  public byte[] reports(byte[] batch) throws IOException {
    Frames.In input = new Frames.In(batch);
    Frames.Out output = new Frames.Out();
    while (input.hasMore()) {
      try {
        RegionReport report = RegionReport.decode(input.bytes());
        output.flag(true).text(report.place.table).bytes(report.place.regionName).text(report.place.server);
        output.number(report.reportMs).number(report.oldestEditMs).number(report.snapshot.epoch);
        output.number(report.snapshot.sequence).number(report.snapshot.timeMs);
        output.bytes(report.place.startKey).bytes(report.place.endKey).count(report.files.size());
        for (RegionReport.StoreFile file : report.files) {
          output.text(file.name).number(file.certificate.decided).number(file.certificate.newest);
          output.number(file.sizeBytes).number(file.modifiedMs);
        }
        output.count(report.counters.size());
        for (Map.Entry<String, Long> counter : report.counters.entrySet()) {
          output.text(counter.getKey()).number(counter.getValue());
        }
        output.bytes(report.encode());
      } catch (CorruptionException refused) {
        output.flag(false);
      }
    }
    return output.toBytes();
  }

  /** How many bytes of memory it takes to know so many topics and this snapshot. */
  public long knowledgeBytes(int topics, byte[] snapshot) throws CorruptionException {
    long before = usedBytes();
    Map<String, TopicRule> rules = new HashMap<>();
    for (int topic = 0; topic < topics; topic++) {
      rules.put("bench:topic-" + topic + ":", new TopicRule(1, Long.MAX_VALUE, OnInvalid.DROP));
    }
    Knowledge known = Knowledge.NOTHING.withRules(rules, 0, System.nanoTime()).withSnapshot(Snapshot.decode(snapshot));
    long bytes = usedBytes() - before;
    return known.snapshot == null ? -1 : bytes; // used after it was measured, so that it was not collected
  }

  private static long usedBytes() {
    Runtime runtime = Runtime.getRuntime();
    for (int round = 0; round < GC_ROUNDS; round++) {
      System.gc();
    }
    return runtime.totalMemory() - runtime.freeMemory();
  }
}
