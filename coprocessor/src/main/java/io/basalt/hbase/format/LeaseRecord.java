package io.basalt.hbase.format;

import java.nio.charset.StandardCharsets;

/**
 * The epoch in the leader's lease: a JSON object without white space, whose values are texts and whole numbers. Format:
 * docs/formats/system-table.md, "lease".
 *
 * <p>Read by hand, for HBase has no JSON to offer that every version of it has.
 */
public final class LeaseRecord {
  public static final String KIND = "lease";
  public static final String NAME = "leader";
  private static final String EPOCH = "epoch";

  private final String text;
  private int offset;

  private LeaseRecord(byte[] body) {
    text = new String(body, StandardCharsets.UTF_8);
  }

  /** The member {@code epoch} of the body. */
  public static long epoch(byte[] body) throws CorruptionException {
    return new LeaseRecord(body).readEpoch();
  }

  private long readEpoch() throws CorruptionException {
    long epoch = -1;
    take('{');
    do {
      String name = takeText();
      take(':');
      boolean isText = peek() == '"';
      String value = isText ? takeText() : takeWord();
      if (name.equals(EPOCH)) {
        check(epoch < 0 && !isText);
        epoch = number(value);
      }
    } while (takeComma());
    take('}');
    check(offset == text.length() && epoch >= 0);
    return epoch;
  }

  private String takeText() throws CorruptionException {
    take('"');
    int start = offset;
    while (peek() != '"') {
      offset += peek() == '\\' ? 2 : 1;
    }
    return text.substring(start, offset++);
  }

  private String takeWord() throws CorruptionException {
    int start = offset;
    while (peek() != ',' && peek() != '}') {
      check(Character.isLetterOrDigit(peek()) || peek() == '-' || peek() == '.' || peek() == '+');
      offset++;
    }
    return text.substring(start, offset);
  }

  private boolean takeComma() throws CorruptionException {
    if (peek() != ',') {
      return false;
    }
    offset++;
    return true;
  }

  private void take(char expected) throws CorruptionException {
    check(peek() == expected);
    offset++;
  }

  private char peek() throws CorruptionException {
    check(offset < text.length());
    return text.charAt(offset);
  }

  private static long number(String value) throws CorruptionException {
    try {
      return Long.parseUnsignedLong(value);
    } catch (NumberFormatException error) {
      throw new CorruptionException("the leader's lease has no epoch");
    }
  }

  private static void check(boolean holds) throws CorruptionException {
    if (!holds) {
      throw new CorruptionException("the leader's lease is not as its format says");
    }
  }
}
