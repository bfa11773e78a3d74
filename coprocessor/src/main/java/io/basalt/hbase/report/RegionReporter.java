package io.basalt.hbase.report;

import io.basalt.hbase.fence.Fence;
import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.Snapshot;
import io.basalt.hbase.knowledge.InstallationTables;
import io.basalt.hbase.rule.FilterPass.FileCertificate;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Writes the reports of a region server's regions to the system table, on the refresher's thread.
 *
 * <p>Hooks only tell it what was opened and closed. Before a region is reported for the first time, the reports of
 * its former server are read, and those of the regions that its files came from by a split or a merge: they certify
 * files that it did not write. A region that closes leaves a last report for that purpose. What fails is counted and
 * done later.
 */
public final class RegionReporter {
  /** The last report of a former server may be under way when the region opens: so long the next one waits. */
  static final long FIRST_REPORT_DELAY_MS = 10_000;

  /** For so long after it opened the certificates of a region's unknown files are looked for again. */
  static final long RECOVERY_MS = 60_000;

  /** After so long the rest waits for the next turn: the thread has snapshots and leases to read as well. */
  private static final long TURN_MS = 2_000;

  /** So many last reports are kept in memory for regions that open again, or whose daughters do, on this server. */
  private static final int CLOSED_MAX = 1_000;

  private static final Logger LOG = LoggerFactory.getLogger(RegionReporter.class);

  private final InstallationTables tables;
  private final String server;
  private final long intervalMs;
  private final LongSupplier clockMs;
  private final AtomicLong failures = new AtomicLong();
  private final Map<String, ReportedRegion> regions = new ConcurrentHashMap<>();
  /** The regions whose turn is next; those that were closed meanwhile are passed over. */
  private final Queue<ReportedRegion> turns = new ConcurrentLinkedQueue<>();
  /** Guarded by itself; the oldest goes when there are too many. */
  private final Map<String, RegionReport> closed = new LinkedHashMap<>();
  /** Last reports that are not written yet. */
  private final Map<String, RegionReport> queued = new ConcurrentHashMap<>();

  public RegionReporter(
      InstallationTables tables,
      String server,
      long intervalMs,
      LongSupplier clockMs) {
    this.tables = tables;
    this.server = server;
    this.intervalMs = intervalMs;
    this.clockMs = clockMs;
  }

  /** A region has opened. */
  public void opened(LiveRegion view, Certificates certificates, Fence fence) {
    ReportedRegion region = new ReportedRegion(view, certificates, fence, clockMs.getAsLong());
    regions.put(view.encodedName(), region);
    turns.add(region);
  }

  /** A region is about to close its store: it is not reported any more. */
  public void closing(String encodedName) {
    ReportedRegion region = regions.get(encodedName);
    if (region != null) {
      region.close();
    }
  }

  /** A region has closed. Its last report, which knows the file of its last flush, is written with the next turn. */
  public void closed(String encodedName) {
    ReportedRegion region = regions.remove(encodedName);
    if (region == null) {
      return;
    }
    region.close();
    RegionReport last = region.lastReport(server, clockMs.getAsLong());
    queued.put(encodedName, last);
    synchronized (closed) {
      closed.remove(encodedName);
      closed.put(encodedName, last);
      if (closed.size() > CLOSED_MAX) {
        closed.remove(closed.keySet().iterator().next());
      }
    }
  }

  /** The number of reports that could not be read or written. */
  long failures() {
    return failures.get();
  }

  /**
   * On the refresher's thread: writes what is due, as far as the time goes.
   *
   * @param snapshot the newest that this server has read, or null
   * @param counters what else each report says of this server
   */
  public void tick(Snapshot snapshot, Map<String, Long> counters) {
    long startNanos = System.nanoTime();
    for (Map.Entry<String, RegionReport> last : queued.entrySet()) {
      if (isOver(startNanos)) {
        return;
      }
      writeLast(last.getKey(), last.getValue());
    }
    for (int count = turns.size(); count > 0 && !isOver(startNanos); count--) {
      ReportedRegion region = turns.remove();
      if (regions.get(region.view.encodedName()) == region) {
        turns.add(region);
        reportOrCount(region, RegionReport.SnapshotAge.of(snapshot), counters);
      }
    }
  }

  private static boolean isOver(long startNanos) {
    return System.nanoTime() - startNanos > TimeUnit.MILLISECONDS.toNanos(TURN_MS);
  }

  private void reportOrCount(ReportedRegion region, RegionReport.SnapshotAge age, Map<String, Long> counters) {
    try {
      report(region, age, counters);
    } catch (IOException | CorruptionException | RuntimeException failure) {
      failed(region.view.encodedName(), failure);
    }
  }

  private void writeLast(String name, RegionReport last) {
    try {
      // A region that came back to this server meanwhile reports for itself, and has recovered from memory.
      if (!regions.containsKey(name)) {
        tables.putReport(name, last.encode());
      }
      queued.remove(name, last);
    } catch (IOException | CorruptionException | RuntimeException failure) {
      failed(name, failure);
    }
  }

  private void report(ReportedRegion region, RegionReport.SnapshotAge age, Map<String, Long> counters)
      throws IOException, CorruptionException {
    if (region.isClosing()) {
      return;
    }
    long nowMs = clockMs.getAsLong();
    Set<String> unknown = region.unknownFiles();
    if (!region.isRecovered() || !unknown.isEmpty() && region.ageMs(nowMs) < RECOVERY_MS) {
      recover(region, unknown);
      unknown = region.unknownFiles();
    }
    boolean mayGetBetter = !region.isReported() && !unknown.isEmpty() && region.ageMs(nowMs) < FIRST_REPORT_DELAY_MS;
    if (mayGetBetter || !region.isDue(nowMs, intervalMs)) {
      return;
    }
    long changes = region.certificates.changes();
    RegionReport report = region.report(server, nowMs, age, withOwn(counters, unknown.size()));
    if (report != null) {
      tables.putReport(region.view.encodedName(), report.encode());
      region.setReported(changes, nowMs);
    }
  }

  private Map<String, Long> withOwn(Map<String, Long> counters, long unknownFiles) {
    Map<String, Long> all = new TreeMap<>(counters);
    all.put("files.unknown", unknownFiles);
    all.put("report.failures", failures.get());
    return all;
  }

  /** Takes over what former servers and parents reported of these files. An error leaves it to the next turn. */
  private void recover(ReportedRegion region, Set<String> unknown) throws IOException {
    Map<String, Map<String, FileCertificate>> read = new TreeMap<>();
    String own = region.view.encodedName();
    for (String file : unknown) {
      FileOrigin origin = FileOrigin.of(file, own);
      take(region, file, file, own, read);
      if (!origin.region.equals(own)) {
        take(region, file, origin.file, origin.region, read);
      }
    }
    region.setRecovered();
  }

  private void take(
      ReportedRegion region,
      String file,
      String reportedAs,
      String from,
      Map<String, Map<String, FileCertificate>> read)
      throws IOException {
    Map<String, FileCertificate> known = read.get(from);
    if (known == null) {
      known = certificatesOf(from);
      read.put(from, known);
    }
    FileCertificate certificate = known.get(reportedAs);
    if (certificate != null) {
      region.certificates.recover(file, certificate);
    }
  }

  /** All that is known of the files of a region: from its last report here, and from the one in the system table. */
  private Map<String, FileCertificate> certificatesOf(String encodedName) throws IOException {
    Map<String, FileCertificate> known = new TreeMap<>();
    addTo(known, tables.report(encodedName), encodedName);
    synchronized (closed) {
      addTo(known, closed.get(encodedName));
    }
    return known;
  }

  private void addTo(Map<String, FileCertificate> known, byte[] body, String encodedName) {
    if (body == null) {
      return;
    }
    try {
      addTo(known, RegionReport.decode(body));
    } catch (CorruptionException damaged) {
      failed(encodedName, damaged);
    }
  }

  private static void addTo(Map<String, FileCertificate> known, RegionReport report) {
    if (report == null) {
      return;
    }
    for (RegionReport.StoreFile file : report.files) {
      if (file.certificate.decided != FileCertificate.UNDECIDED) { // else it may be better known elsewhere
        known.put(file.name, file.certificate);
      }
    }
  }

  private void failed(String region, Exception failure) {
    long count = failures.incrementAndGet();
    LOG.warn("Basalt: the report of region {} failed, failure {}: {}", region, count, failure.toString());
  }

  /**
   * In which region, and under which name there, the cells of a store file were written: by the file's name.
   *
   * <pre>
   *   hfile                      this region's own
   *   hfile.region               a reference that a split or a merge left: a part of that region's file
   *   table=region-hfile         a link to that region's file
   *   table=region-hfile.region  a reference to a link
   * </pre>
   */
  static final class FileOrigin {
    private static final char REFERENCE = '.';
    private static final char LINK = '=';
    private static final char LINKED_FILE = '-';

    final String region;
    final String file;

    private FileOrigin(String region, String file) {
      this.region = region;
      this.file = file;
    }

    /** The origin of a file of this name in this region. */
    static FileOrigin of(String name, String region) {
      int reference = name.lastIndexOf(REFERENCE);
      int link = name.lastIndexOf(LINK);
      // Periods and hyphens may come in a table's name, which stands before the sign; never in a region's or a file's.
      if (reference > link) {
        return new FileOrigin(name.substring(reference + 1), name.substring(0, reference));
      }
      int file = name.indexOf(LINKED_FILE, link);
      return link < 0 || file < 0
          ? new FileOrigin(region, name)
          : new FileOrigin(name.substring(link + 1, file), name.substring(file + 1));
    }
  }
}
