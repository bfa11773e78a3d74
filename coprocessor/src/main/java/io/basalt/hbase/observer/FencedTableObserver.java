package io.basalt.hbase.observer;

import io.basalt.hbase.fence.Fence;
import io.basalt.hbase.rule.Count;
import io.basalt.hbase.rule.Counters;
import java.io.IOException;
import java.util.Optional;
import org.apache.hadoop.hbase.CoprocessorEnvironment;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.coprocessor.ObserverContext;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessor;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.coprocessor.RegionObserver;
import org.apache.hadoop.hbase.metrics.MetricRegistry;
import org.apache.hadoop.hbase.regionserver.MiniBatchOperationInProgress;
import org.apache.hadoop.hbase.wal.WALEdit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One region of a Basalt table: keeps former leaders and owners from writing to it ({@link Fence}).
 *
 * <p>No hook lets anything but an {@link IOException} out: HBase would end the region server, or go on without the
 * coprocessor. A write that cannot be checked fails; anything else goes on as if there were no coprocessor.
 */
public class FencedTableObserver implements RegionCoprocessor, RegionObserver {
  private static final Logger LOG = LoggerFactory.getLogger(FencedTableObserver.class);

  final Fence fence = new Fence(System::currentTimeMillis);
  private RegionCoprocessorEnvironment environment;
  private volatile Installation installation;
  private volatile Counters counters = new Counters();
  private String installationKey;
  private MetricRegistry metrics;

  /** For HBase, which makes one for each region. */
  public FencedTableObserver() {}

  @Override
  public Optional<RegionObserver> getRegionObserver() {
    return Optional.of(this);
  }

  @Override
  @SuppressWarnings("rawtypes")
  public void start(CoprocessorEnvironment started) {
    contain(() -> begin((RegionCoprocessorEnvironment) started));
  }

  private void begin(RegionCoprocessorEnvironment region) {
    environment = region;
    String prefix = prefix(region.getRegionInfo().getTable().getNameAsString());
    String server = region.getServerName().getServerName();
    installationKey = server + "/" + prefix; // one process can be several servers, in tests
    installation = Installation.acquire(
        installationKey,
        () -> new Installation(prefix, server, region.getConnection(), region.getConfiguration()));
    metrics = region.getMetricRegistryForRegionServer();
    installation.refresher.addMetrics(metrics);
    counters = installation.counters.shownIn(metrics);
  }

  @Override
  @SuppressWarnings("rawtypes")
  public void stop(CoprocessorEnvironment stopped) {
    contain(() -> {
      if (installation != null) {
        closed();
        installation.refresher.removeMetrics(metrics);
        Installation.release(installationKey);
      }
    });
  }

  /** The table's name up to its last period: what all tables of the installation begin with. */
  static String prefix(String table) {
    int end = table.lastIndexOf('.');
    return end < 0 ? table : table.substring(0, end);
  }

  @Override
  public void postOpen(ObserverContext<RegionCoprocessorEnvironment> context) {
    contain(() -> {
      if (installation != null) {
        opened();
        installation.refresher.requestFloors();
      }
    });
  }

  @Override
  public void prePut(ObserverContext<RegionCoprocessorEnvironment> context, Put put, WALEdit edit)
      throws IOException {
    before(put);
  }

  @Override
  public void preDelete(ObserverContext<RegionCoprocessorEnvironment> context, Delete delete, WALEdit edit)
      throws IOException {
    before(delete);
  }

  private void before(Mutation mutation) throws IOException {
    Installation known = installation;
    check(() -> fence.before(mutation, known == null ? null : known.refresher), Count.WRITES_FENCED);
  }

  @Override
  public void preBatchMutate(
      ObserverContext<RegionCoprocessorEnvironment> context, MiniBatchOperationInProgress<Mutation> batch)
      throws IOException {
    check(() -> fence.enter(batch), Count.WRITES_FENCED);
    check(() -> guard(batch), Count.WRITES_REFUSED);
  }

  @Override
  public void postBatchMutateIndispensably(
      ObserverContext<RegionCoprocessorEnvironment> context,
      MiniBatchOperationInProgress<Mutation> batch,
      boolean success) {
    contain(() -> fence.leave(batch));
  }

  /** The region is open. */
  void opened() {}

  /** The region is closed, and its observer about to go. */
  void closed() {}

  /** True when the batch may be written, by other rules than the epochs. */
  void guard(MiniBatchOperationInProgress<Mutation> batch) throws IOException {}

  final RegionCoprocessorEnvironment environment() {
    return environment;
  }

  /** The part that this region shares with others; null when the coprocessor could not start. */
  final Installation installation() {
    return installation;
  }

  final Counters counters() {
    return counters;
  }

  /** A check of a write: what it throws is counted, and an error that we did not expect is one to try again after. */
  private void check(WriteCheck check, Count refusals) throws IOException {
    try {
      check.run();
    } catch (DoNotRetryIOException refused) {
      counters.increment(refusals);
      throw refused;
    } catch (RuntimeException | LinkageError error) {
      unexpected(error);
      throw new IOException("basalt: a write could not be checked; try again", error);
    }
  }

  /** A hook that must not fail whatever happens. */
  final void contain(Runnable hook) {
    try {
      hook.run();
    } catch (RuntimeException | LinkageError error) {
      unexpected(error);
    }
  }

  final void unexpected(Throwable error) {
    counters.increment(Count.HOOK_FAILURES);
    LOG.error("Basalt: a hook failed, and did nothing", error);
  }

  private interface WriteCheck {
    void run() throws IOException;
  }
}
