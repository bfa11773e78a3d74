package io.basalt.hbase.observer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.basalt.hbase.format.Vectors;
import io.basalt.hbase.observer.Installation.Deployment;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The words of a region server on which jar it runs, and on which HBase. */
class DeploymentTest {
  static List<Vectors.Vector> versions() {
    return Vectors.read("version-numbers");
  }

  @ParameterizedTest
  @MethodSource("versions")
  void aVersionIsTheNumberThatPythonReads(Vectors.Vector vector) {
    assertEquals(vector.meaning.getAsLong(), Deployment.number(new String(vector.data, StandardCharsets.UTF_8)));
  }

  @Test
  void aJarWithoutAVersionTellsNone() {
    assertEquals(Deployment.UNKNOWN, Deployment.number(null));
  }

  @Test
  void eachReportTellsTheJarItsVersionAndThatOfHBase() {
    assertEquals(new HashSet<>(Arrays.asList("jar.crc32c", "jar.version", "hbase.version")), Deployment.counters().keySet());
  }
}
