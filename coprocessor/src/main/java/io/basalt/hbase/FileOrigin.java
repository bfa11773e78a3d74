package io.basalt.hbase;

/**
 * In which region, and under which name there, the cells of a store file were written: by the file's name.
 *
 * <pre>
 *   hfile                      this region's own
 *   hfile.region               a reference that a split or a merge left: a part of that region's file
 *   table=region-hfile         a link to that region's file
 *   table=region-hfile.region  a reference to a link
 * </pre>
 */
final class FileOrigin {
  private static final char REFERENCE = '.';
  private static final char LINK = '=';
  private static final char LINKED_FILE = '-';

  final String region;
  final String file;

  private FileOrigin(String region, String file) {
    this.region = region;
    this.file = file;
  }

  /** The origin of a file of this name in this region. */
  static FileOrigin of(String name, String region) {
    int reference = name.lastIndexOf(REFERENCE);
    int link = name.lastIndexOf(LINK);
    // A table's name may hold periods and hyphens, and stands before the sign; neither comes in a region's or a file's.
    if (reference > link) {
      return new FileOrigin(name.substring(reference + 1), name.substring(0, reference));
    }
    int file = name.indexOf(LINKED_FILE, link);
    return link < 0 || file < 0
        ? new FileOrigin(region, name)
        : new FileOrigin(name.substring(link + 1, file), name.substring(file + 1));
  }
}
