package io.basalt.hbase.format;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.apache.hbase.thirdparty.com.google.gson.JsonParser;

/** The lines of tests/vectors, which the Python tests read, too: name, bytes in hex, meaning as JSON. */
public final class Vectors {
  private Vectors() {}

  /** One line. */
  public static final class Vector {
    public final String name;
    public final byte[] data;
    public final JsonElement meaning;

    Vector(String line) {
      String[] parts = line.split("\t");
      name = parts[0];
      data = unhex(parts[1]);
      meaning = JsonParser.parseString(parts[2]);
    }

    public JsonObject object() {
      return meaning.getAsJsonObject();
    }

    @Override
    public String toString() {
      return name;
    }
  }

  public static List<Vector> read(String file) {
    List<Vector> vectors = new ArrayList<>();
    try (BufferedReader lines = new BufferedReader(new InputStreamReader(
        Vectors.class.getResourceAsStream("/vectors/" + file + ".tsv"), StandardCharsets.UTF_8))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        if (!line.isEmpty() && !line.startsWith("#")) {
          vectors.add(new Vector(line));
        }
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return vectors;
  }

  public static byte[] unhex(String hex) {
    byte[] data = new byte[hex.length() / 2];
    for (int index = 0; index < data.length; index++) {
      data[index] = (byte) Integer.parseInt(hex.substring(2 * index, 2 * index + 2), 16);
    }
    return data;
  }

  public static long[] longs(JsonElement array) {
    List<JsonElement> items = array.getAsJsonArray().asList();
    return items.stream().mapToLong(JsonElement::getAsLong).toArray();
  }

  /** A number above 2^63 - 1 stands there as text. */
  static long unsigned(JsonElement number) {
    return Long.parseUnsignedLong(number.getAsString());
  }
}
