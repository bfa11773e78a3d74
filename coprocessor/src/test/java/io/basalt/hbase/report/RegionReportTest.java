package io.basalt.hbase.report;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.basalt.hbase.format.CorruptionException;
import io.basalt.hbase.format.Vectors;
import java.util.List;
import org.apache.hadoop.hbase.util.Bytes;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class RegionReportTest {
  static List<Vectors.Vector> vectors() {
    return Vectors.read("region-report");
  }

  static List<Vectors.Vector> corrupt() {
    return Vectors.read("region-report-corrupt");
  }

  @ParameterizedTest(name = "{0}")
  @MethodSource("vectors")
  void aReportIsReadAndWrittenAsItsVectorSays(Vectors.Vector vector) throws CorruptionException {
    RegionReport report = RegionReport.decode(vector.data);
    assertArrayEquals(vector.data, report.encode());
    assertEquals(vector.meaning.toString(), json(report));
  }

  @ParameterizedTest(name = "{0}")
  @MethodSource("corrupt")
  void whatIsNotAReportIsRefused(Vectors.Vector vector) {
    assertThrows(CorruptionException.class, () -> RegionReport.decode(vector.data), vector.meaning.toString());
  }

  @Test
  void aReportThatIsCutAnywhereIsRefused() throws Exception {
    byte[] body = vectors().get(0).data;
    for (int length = 0; length < body.length; length++) {
      byte[] cut = java.util.Arrays.copyOf(body, length);
      assertThrows(CorruptionException.class, () -> RegionReport.decode(cut), "cut to " + length);
    }
  }

  @Test
  void aReportThatNoReaderWouldTakeIsNotWritten() throws Exception {
    RegionReport good = RegionReport.decode(vectors().get(0).data);
    RegionReport bad =
        new RegionReport(good.place, -1, good.oldestEditMs, good.snapshot, good.files, good.counters);
    assertThrows(CorruptionException.class, bad::encode);
  }

  private static String json(RegionReport report) {
    StringBuilder files = new StringBuilder();
    for (RegionReport.StoreFile file : report.files) {
      files.append(files.length() == 0 ? "" : ",").append(String.format(
          "{\"name\":\"%s\",\"decided\":%d,\"newest\":%d,\"size_bytes\":%d,\"modified_ms\":%d}",
          file.name, file.certificate.decided, file.certificate.newest, file.sizeBytes, file.modifiedMs));
    }
    StringBuilder counters = new StringBuilder();
    report.counters.forEach((name, value) ->
        counters.append(counters.length() == 0 ? "" : ",").append(String.format("\"%s\":%d", name, value)));
    return String.format(
        "{\"table\":\"%s\",\"region_name\":\"%s\",\"server\":\"%s\",\"report_ms\":%d,\"oldest_edit_ms\":%d,"
            + "\"snapshot_epoch\":%d,\"snapshot_sequence\":%d,\"snapshot_time_ms\":%d,"
            + "\"start_key\":\"%s\",\"end_key\":\"%s\",\"files\":[%s],\"counters\":{%s}}",
        report.place.table, Bytes.toHex(report.place.regionName), report.place.server, report.reportMs,
        report.oldestEditMs, report.snapshot.epoch, report.snapshot.sequence, report.snapshot.timeMs,
        Bytes.toHex(report.place.startKey), Bytes.toHex(report.place.endKey), files, counters);
  }
}
