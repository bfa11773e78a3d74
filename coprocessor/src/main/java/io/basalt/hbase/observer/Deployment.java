package io.basalt.hbase.observer;

import io.basalt.hbase.format.Crc32c;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.CodeSource;
import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.hbase.util.VersionInfo;

/** Which jar of the coprocessor runs here, and on which HBase: what {@code basalt hbase check} compares. */
final class Deployment {
  /** In place of a number: it cannot be told. */
  static final long UNKNOWN = -1;

  private static final int PARTS = 3;
  private static final long PART = 1_000;
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

  /** 2.6.1-hadoop3 as 2,006,001. */
  static long number(String version) {
    if (version == null) {
      return UNKNOWN;
    }
    String[] parts = version.split("-", 2)[0].split("\\.");
    long number = 0;
    try {
      for (int index = 0; index < PARTS; index++) {
        number = number * PART + (index < parts.length ? Long.parseLong(parts[index]) : 0);
      }
    } catch (NumberFormatException unknownForm) {
      return UNKNOWN;
    }
    return number;
  }
}
