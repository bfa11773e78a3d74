package io.basalt.hbase.observer;

import io.basalt.hbase.format.Crc32c;
import io.basalt.hbase.knowledge.InstallationTables;
import io.basalt.hbase.knowledge.Refresher;
import io.basalt.hbase.report.RegionReporter;
import io.basalt.hbase.rule.Count;
import io.basalt.hbase.rule.Counters;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.CodeSource;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.util.VersionInfo;

/**
 * Shared by all regions of one installation (one table prefix) on one region server, whatever their table.
 *
 * <p>HBase's own place for shared things is one per coprocessor class name. Ours are four, and after an upgrade the same
 * name means a class of another jar, to which the old one's objects are strangers. A constant of this class is shared by
 * exactly the classes of one loaded jar. The last region that is closed stops the refresher, so that a jar that was
 * replaced leaves nothing behind.
 */
final class Installation {
  static final String REFRESH_INTERVAL_KEY = "basalt.refresh.interval.ms";
  static final String REPORT_INTERVAL_KEY = "basalt.report.interval.ms";

  /** The time after which a new topic, a new failed writer, a changed TTL is known. Ten thousand topics are read in a tenth of a second. */
  private static final long REFRESH_INTERVAL_MS = 10_000;
  private static final long REFRESH_INTERVAL_MS_MIN = 10;
  private static final long REPORT_INTERVAL_MS = 30_000;

  /** Those that this process serves, by region server and table prefix. Guarded by itself. */
  private static final Map<String, Shared> SERVED = new HashMap<>();

  private static final class Shared {
    final Installation installation;
    int uses;

    Shared(Installation installation) {
      this.installation = installation;
    }
  }

  final Counters counters = new Counters();
  final Refresher refresher;
  final RegionReporter reporter;

  Installation(String prefix, String server, Connection connection, Configuration configuration) {
    InstallationTables tables = new InstallationTables(connection, prefix);
    long refreshMs = configuration.getLong(REFRESH_INTERVAL_KEY, REFRESH_INTERVAL_MS);
    long reportMs = configuration.getLong(REPORT_INTERVAL_KEY, REPORT_INTERVAL_MS);
    refresher = new Refresher(prefix, tables, Math.max(REFRESH_INTERVAL_MS_MIN, refreshMs), counters);
    reporter = new RegionReporter(tables, server, reportMs, System::currentTimeMillis);
    refresher.setAfterwards(() -> reporter.tick(refresher.knowledge().snapshot, reportedCounters()));
  }

  /** The installation of this key, made and its refresher started if there is none. To be given back by {@link #release}. */
  static Installation acquire(String key, Supplier<Installation> maker) {
    synchronized (SERVED) {
      Shared found = SERVED.get(key);
      if (found == null) {
        found = new Shared(maker.get());
        Thread thread = new Thread(found.installation.refresher, "basalt-refresher-" + key);
        thread.setDaemon(true);
        thread.start();
        SERVED.put(key, found);
      }
      found.uses++;
      return found.installation;
    }
  }

  static void release(String key) {
    synchronized (SERVED) {
      Shared found = SERVED.get(key);
      if (found != null && --found.uses == 0) {
        SERVED.remove(key);
        found.installation.refresher.stop();
      }
    }
  }

  private Map<String, Long> reportedCounters() {
    Map<String, Long> all = new TreeMap<>(Deployment.counters());
    all.putAll(counters.all());
    all.put("metadata.time_ms", refresher.topicsReadMs());
    all.put("refresh.failures", counters.value(Count.REFRESH_FAILURES));
    return all;
  }

  /** Which jar of the coprocessor runs here, and on which HBase: what {@code basalt hbase check} compares. */
  static final class Deployment {
    /** In place of a number: it cannot be told. */
    static final long UNKNOWN = -1;

    private static final int PARTS = 3;
    private static final long PART = 1_000;
    private static final Pattern PART_FORM = Pattern.compile("[0-9]{1,3}");
    private static final Map<String, Long> COUNTERS = read();

    private Deployment() {}

    /** {@code jar.crc32c}, {@code jar.version} and {@code hbase.version}, as region reports carry them. */
    static Map<String, Long> counters() {
      return COUNTERS;
    }

    private static Map<String, Long> read() {
      Map<String, Long> counters = new TreeMap<>();
      counters.put("jar.crc32c", jarChecksum(Deployment.class.getProtectionDomain().getCodeSource()));
      counters.put("jar.version", number(Deployment.class.getPackage().getImplementationVersion()));
      counters.put("hbase.version", number(VersionInfo.getVersion()));
      return Collections.unmodifiableMap(counters);
    }

    /** HBase copies the jar to a file of its own for each class loader, so it is there for as long as the class is. */
    static long jarChecksum(CodeSource source) {
      if (source == null || source.getLocation() == null) {
        return UNKNOWN;
      }
      try {
        Path jar = Paths.get(source.getLocation().toURI());
        return Files.isRegularFile(jar) ? Integer.toUnsignedLong(Crc32c.of(Files.readAllBytes(jar))) : UNKNOWN;
      } catch (IOException | URISyntaxException | RuntimeException unreadable) {
        return UNKNOWN;
      }
    }

    /** 2.6.1-hadoop3 as 2,006,001. Format: docs/formats/region-report.md. */
    static long number(String version) {
      if (version == null) {
        return UNKNOWN;
      }
      String[] parts = version.split("-", 2)[0].split("\\.", -1);
      long number = 0;
      for (int index = 0; index < PARTS; index++) {
        String part = index < parts.length ? parts[index] : "0";
        if (!PART_FORM.matcher(part).matches()) {
          return UNKNOWN;
        }
        number = number * PART + Long.parseLong(part);
      }
      return number;
    }
  }
}
