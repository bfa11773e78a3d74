package io.basalt.hbase;

import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.client.Connection;

/** What all regions of one installation (one table prefix) on one region server share. */
final class Installation {
  static final String REFRESH_INTERVAL_KEY = "basalt.refresh.interval.ms";
  static final String REPORT_INTERVAL_KEY = "basalt.report.interval.ms";

  /** How soon a new topic, a new failed writer, a changed TTL is known. Ten thousand topics are read in a tenth of a second. */
  private static final long REFRESH_INTERVAL_MS = 10_000;
  private static final long REFRESH_INTERVAL_MS_MIN = 10;
  private static final long REPORT_INTERVAL_MS = 30_000;

  final Counters counters = new Counters();
  final Refresher refresher;
  final RegionReporter reporter;

  Installation(String prefix, String server, Connection connection, Configuration configuration) {
    InstallationTables tables = new InstallationTables(connection, prefix);
    long refreshMs = configuration.getLong(REFRESH_INTERVAL_KEY, REFRESH_INTERVAL_MS);
    long reportMs = configuration.getLong(REPORT_INTERVAL_KEY, REPORT_INTERVAL_MS);
    refresher = new Refresher(prefix, tables, Math.max(REFRESH_INTERVAL_MS_MIN, refreshMs), counters);
    reporter = new RegionReporter(
        tables, refresher, this::reportedCounters, server, reportMs, System::currentTimeMillis);
    refresher.setAfterwards(reporter::tick);
  }

  private Map<String, Long> reportedCounters() {
    Map<String, Long> all = new TreeMap<>(Deployment.counters());
    all.putAll(counters.all());
    all.put("metadata.time_ms", refresher.topicsReadMs());
    all.put("refresh.failures", counters.value(Count.REFRESH_FAILURES));
    return all;
  }
}
