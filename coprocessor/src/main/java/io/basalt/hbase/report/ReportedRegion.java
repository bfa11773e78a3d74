package io.basalt.hbase.report;

import io.basalt.hbase.fence.Fence;
import io.basalt.hbase.format.WritePointers;
import io.basalt.hbase.rule.FilterPass.FileCertificate;
import io.basalt.hbase.rule.Retention;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * One open region of this server, and how its report comes about.
 *
 * <p><b>The order of reading.</b> A report says where every cell can be that was let in before {@link
 * RegionReport#reportMs}: on its way into memory, in memory, or in a file. Cells only ever move in that direction, so
 * what they leave is read before what they enter:
 *
 * <ol>
 *   <li>the clock: what is let in later is none of this report's business;
 *   <li>batches in flight: one that is not among them any more is in memory, or further;
 *   <li>the oldest edit in memory: HBase forgets it when a flush takes the cells out;
 *   <li>whether a flush is under way: if it began before the third step and has not ended, its cells are neither in
 *       that time nor in a file, and there is no report. If it has ended, its file is listed;
 *   <li>the files.
 * </ol>
 *
 * A region that is being closed loses its files from the list, so that it is asked last whether it is. HBase asks for
 * no report on the refresher's thread while it flushes or compacts, and nothing here waits for either.
 */
final class ReportedRegion {
  final LiveRegion view;
  final Certificates certificates;
  private final Fence fence;
  private final long openedMs;
  private volatile boolean closing;

  // Of the refresher's thread alone.
  private boolean reported;
  private long reportedMs;
  private long reportedChanges;
  private boolean recovered;

  ReportedRegion(LiveRegion view, Certificates certificates, Fence fence, long openedMs) {
    this.view = view;
    this.certificates = certificates;
    this.fence = fence;
    this.openedMs = openedMs;
  }

  /** From here on there is no report: the store is about to be closed. */
  void close() {
    closing = true;
  }

  boolean isClosing() {
    return closing || view.isClosing();
  }

  /** Milliseconds since it was opened. */
  long ageMs(long nowMs) {
    return nowMs - openedMs;
  }

  /** True when a report is due: there was none, something changed, or so much time has passed. */
  boolean isDue(long nowMs, long intervalMs) {
    return !reported
        || certificates.changes() != reportedChanges
        || Math.abs(nowMs - reportedMs) >= intervalMs;
  }

  /** True when the reports of its former server, or of its parents, were read. */
  boolean isRecovered() {
    return recovered;
  }

  void setRecovered() {
    recovered = true;
  }

  /** A report of this state of certificates was written. */
  void setReported(long changes, long nowMs) {
    reported = true;
    reportedChanges = changes;
    reportedMs = nowMs;
  }

  boolean isReported() {
    return reported;
  }

  /** Files of unknown origin. */
  Set<String> unknownFiles() {
    Set<String> unknown = new HashSet<>();
    for (String file : view.files()) {
      if (certificates.of(file) == null) {
        unknown.add(file);
      }
    }
    return unknown;
  }

  /** The report as of this time, or null while the region is being flushed or closed. */
  RegionReport report(String server, long nowMs, RegionReport.SnapshotAge snapshot, Map<String, Long> counters)
      throws IOException {
    long inFlightMs = fence.oldestInFlightMs();
    Fence.SlowBatch slow = fence.slowBatch();
    long inMemoryMs = view.oldestEditMs();
    if (view.isFlushing()) {
      return null;
    }
    Set<String> names = view.files();
    certificates.listed(names);
    List<RegionReport.StoreFile> files = new ArrayList<>(names.size());
    for (String name : names) {
      files.add(file(name, nowMs));
    }
    if (isClosing()) {
      return null;
    }
    long oldestMs = oldestMs(inMemoryMs, slow);
    if (inFlightMs != Fence.NONE_IN_FLIGHT) {
      oldestMs = Math.min(oldestMs, inFlightMs);
    }
    return new RegionReport(
        place(server), nowMs, oldestMs == LiveRegion.EMPTY ? RegionReport.NONE : oldestMs, snapshot, files, counters);
  }

  /** The part of this knowledge that the next server of this region, or of its daughters, can use. It frees nothing. */
  RegionReport lastReport(String server, long nowMs) {
    List<RegionReport.StoreFile> files = new ArrayList<>();
    for (Map.Entry<String, FileCertificate> entry : certificates.all().entrySet()) {
      files.add(new RegionReport.StoreFile(entry.getKey(), entry.getValue(), 0, 0));
    }
    return new RegionReport(
        place(server), nowMs, 0, RegionReport.SnapshotAge.ABSENT, files, Collections.emptyMap());
  }

  private long oldestMs(long inMemoryMs, Fence.SlowBatch slow) {
    if (slow == null) {
      return inMemoryMs;
    }
    if (inMemoryMs > slow.endedMs) { // what is in memory came after it, or nothing is
      fence.forgetSlowBatch(slow);
      return inMemoryMs;
    }
    return Math.min(inMemoryMs, slow.admittedMs);
  }

  private RegionReport.StoreFile file(String name, long nowMs) throws IOException {
    LiveRegion.FileStat stat = view.stat(name);
    FileCertificate certificate = certificates.of(name);
    if (certificate == null) {
      // Written by whom and when its file system says; its clock may differ, too.
      long writtenMs = stat.modifiedMs == 0 ? nowMs : Math.min(nowMs, stat.modifiedMs + Retention.CLOCK_SLACK_MS);
      certificate = new FileCertificate(FileCertificate.UNDECIDED, WritePointers.lastIn(writtenMs));
    }
    return new RegionReport.StoreFile(name, certificate, stat.sizeBytes, stat.modifiedMs);
  }

  private RegionReport.Place place(String server) {
    return new RegionReport.Place(view.table(), view.regionName(), server, view.startKey(), view.endKey());
  }
}
