package io.basalt.hbase.observer;

import io.basalt.hbase.fence.WriteGuard;
import io.basalt.hbase.format.TopicRule;
import io.basalt.hbase.knowledge.Knowledge;
import io.basalt.hbase.report.Certificates;
import io.basalt.hbase.report.LiveRegion;
import io.basalt.hbase.rule.Counters;
import io.basalt.hbase.rule.FilterPass;
import io.basalt.hbase.rule.Retention;
import io.basalt.hbase.rule.RetentionScanner;
import io.basalt.hbase.rule.RowFilter;
import java.io.IOException;
import java.util.Collection;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.coprocessor.ObserverContext;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.regionserver.FlushLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;
import org.apache.hadoop.hbase.regionserver.ScanType;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.StoreFile;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionRequest;

/**
 * One region of the message, payload or cell table: its flushes and compactions leave out what retention drops, its files are
 * certified for pruning, and late writes of transactions that are over are refused.
 *
 * <p>It only wraps HBase's scanners. Whatever fails here, the flush or compaction goes on without being filtered.
 */
public abstract class TableObserver extends FencedTableObserver {
  private final Certificates certificates = new Certificates();
  private final WriteGuard writeGuard;

  TableObserver(WriteGuard writeGuard) {
    this.writeGuard = writeGuard;
  }

  /** {@code allFiles}: the files that a compaction of all the store's files reads; null in any other scan. */
  abstract RowFilter filter(
      Map<String, TopicRule> rules, FilterPass pass, long nowMs, Set<String> allFiles, Counters counters);

  /** The highest age of a writer whose put this region has let in since it was opened. */
  final long longestAgeMs() {
    return writeGuard.longestAgeMs();
  }

  @Override
  void opened() {
    installation().reporter.opened(new LiveRegion(environment()), certificates, fence);
  }

  @Override
  void closed() {
    installation().reporter.closed(environment().getRegionInfo().getEncodedName());
  }

  @Override
  void guard(MiniBatchOperationInProgress<Mutation> batch) throws IOException {
    if (installation() == null) {
      throw new IOException("basalt: the region's coprocessor did not start; see the region server's log");
    }
    writeGuard.check(batch, knowledge(), System.currentTimeMillis());
  }

  @Override
  public void preClose(ObserverContext<RegionCoprocessorEnvironment> context, boolean abortRequested) {
    contain(() -> {
      if (installation() != null) {
        installation().reporter.closing(environment().getRegionInfo().getEncodedName());
      }
    });
  }

  @Override
  public void postClose(ObserverContext<RegionCoprocessorEnvironment> context, boolean abortRequested) {
    contain(() -> {
      if (installation() != null) {
        closed();
      }
    });
  }

  @Override
  public InternalScanner preFlush(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      InternalScanner scanner,
      FlushLifeCycleTracker tracker) {
    Knowledge known = knowledge();
    return wrap(scanner, known, certificates.flushBegins(known.snapshot), null);
  }

  /** Memory is compacted without a file coming of it: a pass of its own, which certifies nothing. */
  @Override
  public InternalScanner preMemStoreCompactionCompact(
      ObserverContext<RegionCoprocessorEnvironment> context, Store store, InternalScanner scanner) {
    Knowledge known = knowledge();
    return wrap(scanner, known, new FilterPass(known.snapshot), null);
  }

  @Override
  public void postFlush(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      StoreFile file,
      FlushLifeCycleTracker tracker) {
    contain(() -> {
      if (file != null) {
        certificates.flushed(file.getPath().getName(), System.currentTimeMillis());
      }
    });
  }

  @Override
  public InternalScanner preCompact(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      InternalScanner scanner,
      ScanType scanType,
      CompactionLifeCycleTracker tracker,
      CompactionRequest request) {
    Knowledge known = knowledge();
    Set<String> files = names(request.getFiles());
    FilterPass pass = certificates.compactionBegins(request, files, known.snapshot, System.currentTimeMillis());
    // HBase drops its own delete markers in this one: nothing that they hide is left in another file.
    return wrap(scanner, known, pass, scanType == ScanType.COMPACT_DROP_DELETES ? files : null);
  }

  @Override
  public void postCompact(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      StoreFile file,
      CompactionLifeCycleTracker tracker,
      CompactionRequest request) {
    contain(() -> {
      if (file != null) { // null: nothing was left
        certificates.compacted(request, file.getPath().getName(), System.currentTimeMillis());
      }
    });
  }

  private InternalScanner wrap(InternalScanner scanner, Knowledge known, FilterPass pass, Set<String> allFiles) {
    try {
      long nowMs = System.currentTimeMillis() - Retention.CLOCK_SLACK_MS;
      Map<String, TopicRule> rules = known.rules(System.nanoTime());
      return new RetentionScanner(scanner, filter(rules, pass, nowMs, allFiles, counters()));
    } catch (RuntimeException | LinkageError error) {
      pass.keptUnread();
      unexpected(error);
      return scanner;
    }
  }

  private Knowledge knowledge() {
    Installation shared = installation();
    return shared == null ? Knowledge.NOTHING : shared.refresher.knowledge();
  }

  private static Set<String> names(Collection<? extends StoreFile> files) {
    Set<String> names = new HashSet<>();
    for (StoreFile file : files) {
      names.add(file.getPath().getName());
    }
    return names;
  }
}
