package io.basalt.hbase.report;

import io.basalt.hbase.format.BigEndian;
import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.rule.FilterPass.FileCertificate;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.Charset;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * The report of a region server about one region, for the prune rule. Format and meaning: docs/formats/region-report.md; in
 * Python {@code RegionReport}. Immutable; refuses whatever is not exactly as its format says.
 */
public final class RegionReport {
  static final String KIND = "region";
  static final int FORMAT = 1;
  /** In place of a time or of a snapshot's numbers: there is none. */
  static final long NONE = -1;

  private static final int SHORT_MAX = 0xffff;
  private static final int SHORT_BYTES = 2;
  private static final int FILE_BYTES_MIN = SHORT_BYTES + 4 * BigEndian.LONG_BYTES;
  private static final int COUNTER_BYTES_MIN = SHORT_BYTES + BigEndian.LONG_BYTES;

  /** One store file. */
  public static final class StoreFile {
    public final String name;
    public final FileCertificate certificate;
    public final long sizeBytes;
    public final long modifiedMs;

    StoreFile(String name, FileCertificate certificate, long sizeBytes, long modifiedMs) {
      this.name = name;
      this.certificate = certificate;
      this.sizeBytes = sizeBytes;
      this.modifiedMs = modifiedMs;
    }
  }

  /** Which region, and where. */
  public static final class Place {
    public final String table;
    public final byte[] regionName;
    public final String server;
    public final byte[] startKey;
    public final byte[] endKey;

    Place(String table, byte[] regionName, String server, byte[] startKey, byte[] endKey) {
      this.table = table;
      this.regionName = regionName;
      this.server = server;
      this.startKey = startKey;
      this.endKey = endKey;
    }
  }

  /** The order and time of the snapshot that the server had. */
  public static final class SnapshotAge {
    static final SnapshotAge ABSENT = new SnapshotAge(NONE, NONE, NONE);

    public final long epoch;
    public final long sequence;
    public final long timeMs;

    SnapshotAge(long epoch, long sequence, long timeMs) {
      this.epoch = epoch;
      this.sequence = sequence;
      this.timeMs = timeMs;
    }

    static SnapshotAge of(Snapshot snapshot) {
      return snapshot == null ? ABSENT : new SnapshotAge(snapshot.epoch, snapshot.sequence, snapshot.timeMs);
    }
  }

  public final Place place;
  public final long reportMs;
  public final long oldestEditMs;
  public final SnapshotAge snapshot;
  public final List<StoreFile> files;
  public final Map<String, Long> counters;

  RegionReport(
      Place place,
      long reportMs,
      long oldestEditMs,
      SnapshotAge snapshot,
      List<StoreFile> files,
      Map<String, Long> counters) {
    this.place = place;
    this.reportMs = reportMs;
    this.oldestEditMs = oldestEditMs;
    this.snapshot = snapshot;
    this.files = Collections.unmodifiableList(new ArrayList<>(files));
    this.counters = Collections.unmodifiableMap(new TreeMap<>(counters));
  }

  /** The body of the row; what a reader would refuse is refused here, too. */
  public byte[] encode() throws CorruptionException {
    checkValues();
    Writer out = new Writer();
    out.write(FORMAT);
    out.text(place.table, StandardCharsets.UTF_8);
    out.bytes(place.regionName);
    out.text(place.server, StandardCharsets.UTF_8);
    out.longs(reportMs, oldestEditMs, snapshot.epoch, snapshot.sequence, snapshot.timeMs);
    out.bytes(place.startKey);
    out.bytes(place.endKey);
    out.integer(files.size());
    for (StoreFile file : files) {
      out.text(file.name, StandardCharsets.UTF_8);
      out.longs(file.certificate.decided, file.certificate.newest, file.sizeBytes, file.modifiedMs);
    }
    out.unsignedShort(counters.size());
    for (Map.Entry<String, Long> counter : counters.entrySet()) {
      out.text(counter.getKey(), StandardCharsets.US_ASCII);
      out.longs(counter.getValue());
    }
    return out.toByteArray();
  }

  /** The report in the body of its system row. */
  public static RegionReport decode(byte[] body) throws CorruptionException {
    Reader in = new Reader(body);
    if (in.unsignedByte() != FORMAT) {
      throw new CorruptionException("a region report of format " + body[0]);
    }
    String table = in.text(StandardCharsets.UTF_8);
    byte[] regionName = in.bytes();
    String server = in.text(StandardCharsets.UTF_8);
    long reportMs = in.number();
    long oldestEditMs = in.number();
    SnapshotAge snapshot = new SnapshotAge(in.number(), in.number(), in.number());
    Place place = new Place(table, regionName, server, in.bytes(), in.bytes());
    List<StoreFile> files = in.files();
    Map<String, Long> counters = in.counters();
    check(in.remaining() == 0, in.remaining() + " bytes follow its end");
    RegionReport report = new RegionReport(place, reportMs, oldestEditMs, snapshot, files, counters);
    report.checkValues();
    return report;
  }

  private void checkValues() throws CorruptionException {
    check(reportMs >= 0, "a time is negative");
    check(oldestEditMs >= NONE, "the oldest edit is before -1");
    boolean none = snapshot.epoch == NONE && snapshot.sequence == NONE && snapshot.timeMs == NONE;
    check(none || snapshot.epoch >= 0 && snapshot.sequence >= 0 && snapshot.timeMs >= 0,
        "the snapshot's numbers are neither all there nor all missing");
    Set<String> names = new HashSet<>();
    for (StoreFile file : files) {
      check(!file.name.isEmpty(), "a file has no name");
      check(names.add(file.name), "file " + file.name + " comes twice");
      check(file.certificate.decided >= FileCertificate.UNDECIDED, "a file is decided below -1");
      check(file.certificate.newest >= 0 && file.sizeBytes >= 0 && file.modifiedMs >= 0, "a file's number is negative");
    }
  }

  private static void check(boolean holds, String fault) throws CorruptionException {
    if (!holds) {
      throw new CorruptionException("the region report is damaged: " + fault);
    }
  }

  private static final class Writer extends ByteArrayOutputStream {
    private final byte[] number = new byte[BigEndian.LONG_BYTES];

    void unsignedShort(int value) {
      BigEndian.writeShort(number, 0, value);
      write(number, 0, SHORT_BYTES);
    }

    void integer(int value) {
      BigEndian.writeInt(number, 0, value);
      write(number, 0, BigEndian.INT_BYTES);
    }

    void longs(long... values) {
      for (long value : values) {
        BigEndian.writeLong(number, 0, value);
        write(number, 0, BigEndian.LONG_BYTES);
      }
    }

    void bytes(byte[] value) throws CorruptionException {
      check(value.length <= SHORT_MAX, "a field of " + value.length + " bytes");
      unsignedShort(value.length);
      write(value, 0, value.length);
    }

    void text(String value, Charset charset) throws CorruptionException {
      bytes(value.getBytes(charset));
    }
  }

  private static final class Reader {
    private final ByteBuffer data;

    Reader(byte[] body) {
      data = ByteBuffer.wrap(body);
    }

    int remaining() {
      return data.remaining();
    }

    int unsignedByte() throws CorruptionException {
      need(1);
      return data.get() & 0xff;
    }

    int unsignedShort() throws CorruptionException {
      need(SHORT_BYTES);
      return data.getShort() & SHORT_MAX;
    }

    long number() throws CorruptionException {
      need(BigEndian.LONG_BYTES);
      return data.getLong();
    }

    byte[] bytes() throws CorruptionException {
      int length = unsignedShort();
      need(length);
      byte[] value = new byte[length];
      data.get(value);
      return value;
    }

    String text(Charset charset) throws CorruptionException {
      try {
        return charset.newDecoder()
            .onMalformedInput(CodingErrorAction.REPORT)
            .onUnmappableCharacter(CodingErrorAction.REPORT)
            .decode(ByteBuffer.wrap(bytes()))
            .toString();
      } catch (CharacterCodingException malformed) {
        throw new CorruptionException("the region report is damaged: a text is not " + charset);
      }
    }

    List<StoreFile> files() throws CorruptionException {
      need(BigEndian.INT_BYTES);
      long count = data.getInt() & 0xffff_ffffL;
      check(count <= data.remaining() / FILE_BYTES_MIN, "more files than bytes");
      List<StoreFile> files = new ArrayList<>((int) count);
      for (long index = 0; index < count; index++) {
        String name = text(StandardCharsets.UTF_8);
        files.add(new StoreFile(name, new FileCertificate(number(), number()), number(), number()));
      }
      return files;
    }

    Map<String, Long> counters() throws CorruptionException {
      int count = unsignedShort();
      check(count <= data.remaining() / COUNTER_BYTES_MIN, "more counters than bytes");
      Map<String, Long> counters = new TreeMap<>();
      for (int index = 0; index < count; index++) {
        String name = text(StandardCharsets.US_ASCII);
        check(counters.put(name, number()) == null, "counter " + name + " comes twice");
      }
      return counters;
    }

    private void need(int bytes) throws CorruptionException {
      check(data.remaining() >= bytes, "it ends at byte " + data.limit());
    }
  }
}
