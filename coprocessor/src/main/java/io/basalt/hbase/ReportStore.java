package io.basalt.hbase;

import java.io.IOException;

/** Where region reports are kept: rows {@code region:<encoded name>} of the system table. */
interface ReportStore {
  /** The body of a region's report, or null when there is none or its row is corrupt. */
  byte[] get(String encodedRegionName) throws IOException;

  /** Replaces a region's report. */
  void put(String encodedRegionName, byte[] body) throws IOException;
}
