package io.basalt.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class FileOriginTest {
  @ParameterizedTest
  @CsvSource({
    "0a1b, own, 0a1b",
    "0a1b_SeqId_17_, own, 0a1b_SeqId_17_",
    "0a1b.c0ffee, c0ffee, 0a1b",
    "basalt.message=c0ffee-0a1b, c0ffee, 0a1b",
    "ns=basalt.message=c0ffee-0a1b, c0ffee, 0a1b",
    "a-b.message=c0ffee-0a1b, c0ffee, 0a1b",
    "basalt.message=c0ffee-0a1b.decade, decade, basalt.message=c0ffee-0a1b",
  })
  void aFilesNameTellsWhereItsCellsWereWritten(String name, String region, String file) {
    FileOrigin origin = FileOrigin.of(name, "own");
    assertEquals(region, origin.region);
    assertEquals(file, origin.file);
  }
}
